package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// vllmFault is one thing that a fake vLLM, or the fake gateway before it, does wrong.
type vllmFault uint

const (
	obeys     vllmFault = 1 << iota // control fields of a client reach the engine
	lists                           // one handle serves a whole list
	alone                           // decode answers when prefill has refused
	ownIDs                          // the client's id is the answer's
	open                            // every path is open
	unsalted                        // tenants share the prefix cache
	lateReads                       // pages are read after the lease
	doneAfter                       // [DONE] follows an error event
	silent                          // prefill's death is answered with 200
	computes                        // decode computes a prompt that was handed over
	mute                            // the model does not say again what it is told
	shallow                         // nothing is cached at all
	unmetered                       // the engine has no metrics
	broken                          // nothing is answered
)

// fakeVLLM is a pair, or one server, and a gateway before it. A model of it says the last
// line of a prompt again; tokens are words.
type fakeVLLM struct {
	has vllmFault

	mu       sync.Mutex
	live     bool // decode, or the one server
	far      bool // prefill
	handles  int
	held     map[string]string // what a handle's pages hold
	poisoned map[string]string // what decode's cache holds instead
	cached   map[string]bool   // by salt and prompt
	hits     int
	expired  int
	taken    int
	computed int
	gate     chan struct{} // a decode leg waits here
	arrived  chan struct{} // closed when one does; nil: none is to
	due      chan struct{} // the same, for who waits
	struck   chan struct{} // the worker was killed
	// tokenised is what was tokenised last: the fake reads all token ids as this.
	tokenised string
	last      string // the prompt that was answered last
}

const (
	fakeLease  = 20 * time.Millisecond
	fakeWindow = 900 // of prefill, in words; decode's is four times as long
)

func newFakeVLLM(t *testing.T, d upstream.Dialect, has vllmFault) (*fakeVLLM, Site) {
	t.Helper()
	f := &fakeVLLM{has: has, live: true, far: true, held: map[string]string{}, poisoned: map[string]string{}, cached: map[string]bool{},
		struck: make(chan struct{})}
	serve := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	site := Site{Dialect: d, Model: "model", Served: "served", Keys: []string{"key-of-tenant-0-0", "key-of-tenant-1-1"}, Lease: fakeLease}
	front := func(w http.ResponseWriter, r *http.Request) { f.engine(w, r, false) }
	site.Gateway = serve(f.gateway)
	if d == upstream.VLLM {
		site.Plain = serve(front)
		return f, site
	}
	site.Decode = serve(front)
	site.Prefill = serve(func(w http.ResponseWriter, r *http.Request) { f.engine(w, r, true) })
	if d == upstream.VLLMMooncake {
		site.Bootstrap = serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"0":{"engine_id":"e"}}`) })
	}
	return f, site
}

// set changes the fake; lives asks it.
func (f *fakeVLLM) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakeVLLM) lives(prefill bool) (yes bool) {
	f.set(func() {
		if yes = f.live; prefill {
			yes = f.far
		}
	})
	return yes
}

func (f *fakeVLLM) is(x vllmFault) bool { return f.has&x != 0 }

// hands is what the one who runs can do.
func (f *fakeVLLM) hands() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"hold-decode": func(context.Context) error {
			f.set(func() {
				f.gate, f.arrived = make(chan struct{}), make(chan struct{})
				f.due = f.arrived
			})
			return nil
		},
		"decode-held": func(ctx context.Context) error {
			var due chan struct{}
			f.set(func() { due = f.due })
			select {
			case <-due:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		"release-decode": func(context.Context) error { f.set(func() { close(f.gate) }); return nil },
		"kill-worker":    func(context.Context) error { close(f.struck); return nil },
		"kill-prefill":   func(context.Context) error { f.set(func() { f.far = false }); return nil },
		"revive":         func(context.Context) error { f.set(func() { f.live, f.far = true, true }); return nil },
	}
}

func fakeRefusal(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"error":{"code":"refused","message":"x"}}`)
}

// ask is what the fakes read of a request.
type ask struct {
	body    map[string]any
	prompts []string
	handle  map[string]any
	salt    string
	stream  bool
	gateway bool // it came through the gateway
	late    bool // its lease has ended
}

func readAsk(r *http.Request) ask {
	var a ask
	data, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(data, &a.body)
	switch p := a.body["prompt"].(type) {
	case string:
		a.prompts = []string{p}
	case []any:
		for _, one := range p {
			text, _ := one.(string)
			a.prompts = append(a.prompts, text)
		}
	default:
		text, _ := json.Marshal(a.body["messages"])
		a.prompts = []string{string(text)}
	}
	a.handle, _ = a.body[handleKey].(map[string]any)
	a.salt, _ = a.body["cache_salt"].(string)
	a.stream, _ = a.body["stream"].(bool)
	return a
}

// gateway is Bulkhead as it should be, or with the fault.
func (f *fakeVLLM) gateway(w http.ResponseWriter, r *http.Request) {
	if f.is(broken) {
		fakeRefusal(w, http.StatusInternalServerError)
		return
	}
	if r.URL.Path != chatPath && r.URL.Path != completionPath {
		if f.is(open) {
			_, _ = io.WriteString(w, `{}`)
			return
		}
		fakeRefusal(w, http.StatusNotFound)
		return
	}
	a := readAsk(r)
	for name := range vllmControl() {
		if _, given := a.body[name]; given && !f.is(obeys) && !(f.is(unsalted) && name == "cache_salt") && !(f.is(ownIDs) && name == "request_id") {
			fakeRefusal(w, http.StatusBadRequest)
			return
		}
	}
	if len(strings.Fields(a.prompts[0])) > fakeWindow && !f.is(alone) {
		fakeRefusal(w, http.StatusBadRequest)
		return
	}
	if !f.is(unsalted) {
		a.salt = r.Header.Get("Authorization")
	}
	a.gateway = true
	a.late = f.wait(r)
	if !f.lives(true) && !f.is(silent) {
		fakeRefusal(w, http.StatusBadGateway)
		return
	}
	f.answer(w, r, a)
}

// wait holds one request back if somebody wants it, and says whether it did.
func (f *fakeVLLM) wait(r *http.Request) bool {
	f.mu.Lock()
	gate, arrived := f.gate, f.arrived
	f.arrived = nil
	f.mu.Unlock()
	if arrived == nil {
		return false
	}
	// The lease runs out meanwhile, and the pages go to others.
	close(arrived)
	select {
	case <-gate:
	case <-r.Context().Done():
	}
	f.mu.Lock()
	f.expired++
	f.mu.Unlock()
	return true
}

// engine is prefill, or decode and the one server.
func (f *fakeVLLM) engine(w http.ResponseWriter, r *http.Request, prefill bool) {
	switch {
	case r.URL.Path == "/health":
		if !f.lives(prefill) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	case f.is(broken):
		fakeRefusal(w, http.StatusInternalServerError)
		return
	case r.URL.Path == "/metrics":
		f.metrics(w)
		return
	case r.URL.Path == "/v1/models":
		window := 4 * fakeWindow
		if prefill {
			window = fakeWindow
		}
		fmt.Fprintf(w, `{"data":[{"max_model_len":%d}]}`, window)
		return
	case r.URL.Path == "/tokenize":
		text := readAsk(r).prompts[0]
		f.set(func() { f.tokenised = text })
		ids := make([]string, len(strings.Fields(text)))
		for i := range ids {
			ids[i] = "7"
		}
		fmt.Fprintf(w, `{"tokens":[%s]}`, strings.Join(ids, ","))
		return
	case r.URL.Path != chatPath && r.URL.Path != completionPath:
		_, _ = io.WriteString(w, `{}`)
		return
	}
	a := readAsk(r)
	if prefill {
		f.prefill(w, a)
		return
	}
	a.late = f.wait(r)
	if a.handle != nil && !f.lives(true) && !f.is(silent) {
		fakeRefusal(w, http.StatusInternalServerError)
		return
	}
	if len(strings.Fields(a.prompts[0])) > fakeWindow && !f.is(alone) {
		fakeRefusal(w, http.StatusBadRequest)
		return
	}
	f.answer(w, r, a)
}

func (f *fakeVLLM) metrics(w http.ResponseWriter) {
	if f.is(unmetered) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(w, "vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\"} %d\n", f.taken)
	fmt.Fprintf(w, "vllm:prompt_tokens_by_source_total{source=\"local_compute\"} %d\n", f.computed)
	fmt.Fprintf(w, "vllm:prefix_cache_hits_total{engine=\"0\"} %d\n", f.hits)
	fmt.Fprintf(w, "vllm:nixl_num_kv_expired_reqs_total{engine=\"0\"} %d\n", f.expired)
}

// prefill hands out a handle, or refuses what is too long.
func (f *fakeVLLM) prefill(w http.ResponseWriter, a ask) {
	if len(strings.Fields(a.prompts[0])) > fakeWindow {
		fakeRefusal(w, http.StatusBadRequest)
		return
	}
	f.lookup(a)
	f.mu.Lock()
	f.handles++
	id := fmt.Sprintf("h%d", f.handles)
	if x, ok := a.handle["transfer_id"].(string); ok {
		id = x
	}
	f.held[id] = a.prompts[0]
	f.mu.Unlock()
	fmt.Fprintf(w, `{"id":"cmpl-p","choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1},`+
		`"kv_transfer_params":{"do_remote_prefill":true,"remote_request_id":%q,"words":%d}}`, id, len(strings.Fields(a.prompts[0])))
}

// lookup is the prefix cache of the engine that reads prompts.
func (f *fakeVLLM) lookup(a ask) (hit int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := a.salt + "\n" + a.prompts[0]
	if f.cached[key] {
		hit = len(strings.Fields(a.prompts[0]))
		f.hits += hit
	}
	f.cached[key] = !f.is(shallow)
	return hit
}

// pages is what the answer to a prompt is really made of; ok false: it was answered with
// an error, or the engine has died.
func (f *fakeVLLM) pages(w http.ResponseWriter, a ask) (text string, ok bool) {
	text = a.prompts[0]
	words := len(strings.Fields(text))
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, bad := f.poisoned[text]; bad && a.handle == nil && a.salt == "" {
		return other, true
	}
	if a.late && f.is(lateReads) {
		return f.last, true
	}
	id, _ := a.handle["remote_request_id"].(string)
	if id == "" {
		id, _ = a.handle["transfer_id"].(string)
	}
	size, _ := a.handle["words"].(float64)
	port, _ := a.handle["remote_port"].(float64)
	other, held := f.held[id]
	switch {
	case a.handle["prompt_token_ids"] != nil:
		return f.tokenised, true
	case a.handle["do_remote_prefill"] != true:
		if !a.gateway {
			f.computed += words
			return text, true
		}
	case port > 0:
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%.0f", port)); err == nil {
			c.Close()
		}
		fakeRefusal(w, http.StatusInternalServerError)
		return "", false
	case id == "", size > 0 && words > int(size):
		f.live = false
		fakeRefusal(w, http.StatusInternalServerError)
		return "", false
	case held:
		if other != text {
			f.poisoned[text] = other
		}
		text = other
	}
	if f.is(computes) {
		f.computed += words
	} else {
		f.taken += words
	}
	return text, true
}

// answer says the last line again of what the pages hold.
func (f *fakeVLLM) answer(w http.ResponseWriter, r *http.Request, a ask) {
	if args, _ := a.body["vllm_xargs"].(map[string]any); args[handleKey] != nil {
		fakeRefusal(w, http.StatusInternalServerError)
		return
	}
	text, ok := f.pages(w, a)
	if !ok {
		return
	}
	hit := 0
	if a.gateway || a.handle == nil {
		hit = f.lookup(a)
	}
	if a.stream {
		f.stream(w)
		return
	}
	var choices []string
	for i, prompt := range a.prompts {
		if i == 0 || f.is(lists) {
			prompt = text
		}
		lines := strings.Split(strings.TrimSpace(prompt), "\n")
		said := lines[len(lines)-1]
		if f.is(mute) {
			said = "apple"
		}
		quoted, _ := json.Marshal(said)
		choices = append(choices, fmt.Sprintf(`{"index":%d,"text":%s,"finish_reason":"length"}`, i, quoted))
	}
	f.mu.Lock()
	f.last = a.prompts[0]
	f.mu.Unlock()
	id := "minted"
	if f.is(ownIDs) {
		id += r.Header.Get("X-Request-Id")
		if own, ok := a.body["request_id"].(string); ok {
			id += own
		}
	}
	details := ""
	if f.is(unsalted) {
		details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, hit)
	}
	fmt.Fprintf(w, `{"id":"cmpl-%s","choices":[%s],"usage":{"prompt_tokens":%d,"completion_tokens":4%s}}`,
		id, strings.Join(choices, ","), len(strings.Fields(a.prompts[0])), details)
}

// stream runs until the worker is killed.
func (f *fakeVLLM) stream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: %s\n\n", chunk("one two three four five six", ""))
	w.(http.Flusher).Flush()
	<-f.struck
	_, _ = io.WriteString(w, "data: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\n")
	if f.is(doneAfter) {
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}
