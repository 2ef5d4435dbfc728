package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// faults are the switches of a fake engine. Without any it is sound.
type faults struct {
	slotTheft, streams, tellsCached, timings, verbose, fields, template, paths bool
	malformed500, takesLong, oneCounted, worksOn, quietCut                     bool
	// cacheless: the engine caches nothing, so that nothing can be shown.
	cacheless bool
	// broken: nothing is answered.
	broken bool
	// idle: no slot is ever busy.
	idle bool
}

// fake stands in for llama.cpp's server, and at its front for a gateway before it, which
// differs in that it does not show the engine's state.
type fake struct {
	faults
	// holdFrom is the number of the stream from which on streams wait for a strike.
	holdFrom int

	mu      sync.Mutex
	seen    map[string]bool
	begun   int
	live    *live
	stopped chan struct{} // closed when it is "killed"
}

// live is a stream in progress.
type live struct {
	id     string // conversation
	strike chan struct{}
	once   sync.Once
	extra  string // what a theft puts into it
	cut    bool
	prompt string
}

func (l *live) release() { l.once.Do(func() { close(l.strike) }) }

const fakeText = "one two three four five six seven eight nine ten"

func newFake(t *testing.T, has faults, holdFrom int) (*fake, Site) {
	t.Helper()
	f := &fake{faults: has, holdFrom: holdFrom, seen: map[string]bool{}, stopped: make(chan struct{})}
	engine := httptest.NewServer(f)
	t.Cleanup(engine.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/props", "/slots", "/v1/streams/lookup":
			if !f.paths {
				f.nothing(w)
				return
			}
		}
		f.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return f, fakeSite(engine.URL, front.URL)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.broken {
		http.Error(w, `{"error":{"code":"broken","message":"x"}}`, http.StatusInternalServerError)
		return
	}
	switch r.URL.Path {
	case "/props":
		fmt.Fprint(w, `{"default_generation_settings":{"n_ctx":400},"total_slots":2}`)
		return
	case "/slots":
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(w, `[{"id":0,"is_processing":%t},{"id":1,"is_processing":false}]`, f.live != nil && !f.idle)
		return
	case "/v1/streams/lookup":
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.streams && f.live != nil && f.live.id != "" {
			fmt.Fprint(w, `[{"conversation_id":"x"}]`)
			return
		}
		fmt.Fprint(w, `[]`)
		return
	case "/v1/stream":
		f.resumed(w, r)
		return
	case chatPath:
		f.generate(w, r)
		return
	case "/completion", completionPath, "/v1/responses":
		if f.slotTheft {
			f.generate(w, r)
			return
		}
	}
	if f.paths {
		fmt.Fprint(w, `{}`)
		return
	}
	f.nothing(w)
}

// nothing refuses a path, which is a strike all the same.
func (f *fake) nothing(w http.ResponseWriter) {
	f.strike(func(*live) {})
	http.Error(w, `{"error":{"code":"not_found","message":"no such path"}}`, http.StatusNotFound)
}

// strike does something to the live stream and lets it go on.
func (f *fake) strike(do func(*live)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live != nil {
		do(f.live)
		f.live.release()
	}
}

// resumed is the path of streams that can be taken up again.
func (f *fake) resumed(w http.ResponseWriter, r *http.Request) {
	if !f.streams {
		f.nothing(w)
		return
	}
	if r.Method == http.MethodDelete {
		f.strike(func(l *live) { l.cut = true })
		w.WriteHeader(http.StatusNoContent)
		return
	}
	f.strike(func(*live) {})
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", chunk(fakeText, ""))
}

func chunk(text, finish string) string {
	reason := "null"
	if finish != "" {
		reason = `"` + finish + `"`
	}
	quoted, _ := json.Marshal(text)
	return fmt.Sprintf(`{"id":"chatcmpl-x","choices":[{"index":0,"delta":{"content":%s},"finish_reason":%s}]}`, quoted, reason)
}

func (f *fake) refuse(w http.ResponseWriter, status int, code, message string) {
	f.strike(func(*live) {})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%q,"message":%q}}`, code, message)
}

// generate answers a request.
func (f *fake) generate(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	data, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(data, &body) != nil {
		status := http.StatusBadRequest
		if f.malformed500 {
			status = http.StatusInternalServerError
		}
		f.refuse(w, status, "invalid_json", "not JSON")
		return
	}
	for name := range body {
		if _, command := llamaCommands()[name]; (command || name == "chat_template_kwargs") && r.URL.Path == chatPath && !f.obeys(name) {
			f.refuse(w, http.StatusBadRequest, "reserved_field", name)
			return
		}
	}
	prompt := promptOf(body)
	tokens := len(strings.Fields(strings.ReplaceAll(prompt, "-", " ")))
	if tokens > 400 && !f.takesLong {
		f.refuse(w, http.StatusBadRequest, "context_length_exceeded", "too long")
		return
	}
	if r.Header.Get(conversation) != "" && !f.streams {
		f.refuse(w, http.StatusBadRequest, "reserved_header", conversation)
		return
	}
	if stream, _ := body["stream"].(bool); stream && body["ignore_eos"] == true {
		f.streaming(w, r, prompt)
		return
	}
	f.answer(w, r, body, prompt, tokens)
}

// obeys says whether a field that commands the engine is taken.
func (f *fake) obeys(name string) bool {
	switch name {
	case "verbose":
		return f.verbose || f.fields
	case "id_slot":
		return f.slotTheft || f.fields
	case "chat_template_kwargs":
		return f.template
	}
	return f.fields
}

func promptOf(body map[string]any) string {
	for _, name := range []string{"prompt", "input"} {
		if text, ok := body[name].(string); ok {
			return text
		}
	}
	data, _ := json.Marshal(body["messages"])
	return string(data)
}

// answer is whole, or a stream that nobody strikes at.
func (f *fake) answer(w http.ResponseWriter, r *http.Request, body map[string]any, prompt string, tokens int) {
	_, named := body["id_slot"]
	f.strike(func(l *live) {
		if named && f.slotTheft {
			l.extra = prompt
		}
		if r.Header.Get(conversation) != "" && r.Header.Get(conversation) == l.id {
			l.cut = true
		}
	})
	f.mu.Lock()
	cached := 0
	if f.seen[prompt] && !f.cacheless {
		cached = tokens
	}
	f.seen[prompt] = true
	f.mu.Unlock()
	if _, other := body["chat_template_kwargs"]; other {
		tokens = 1
	}
	n, each := 1, 4
	if k, ok := body["n"].(float64); ok {
		n = int(k)
	}
	counted := n * each
	if f.oneCounted {
		counted = each
	}
	if stream, _ := body["stream"].(bool); stream {
		w.Header().Set("Content-Type", "text/event-stream")
		extra := ""
		if f.timings {
			extra = `,"timings":{"cache_n":0}`
		}
		fmt.Fprintf(w, "data: %s\n\ndata: {\"choices\":[]%s}\n\ndata: [DONE]\n\n", chunk("apple", "stop"), extra)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	choice := `{"index":%d,"message":{"role":"assistant","content":"apple"},"finish_reason":"length"}`
	var choices []string
	for i := range n {
		choices = append(choices, fmt.Sprintf(choice, i))
	}
	details, more := "", ""
	// Straight at the engine under its own name, it always tells.
	if f.tellsCached || body["model"] == "served" {
		details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	}
	if f.timings {
		more += `,"timings":{"cache_n":0}`
	}
	if body["verbose"] == true && f.verbose {
		more += `,"__verbose":{"prompt":"templated","id_slot":1}`
	}
	fmt.Fprintf(w, `{"id":"chatcmpl-x","choices":[%s],"usage":{"prompt_tokens":%d,"completion_tokens":%d%s}%s}`,
		strings.Join(choices, ","), tokens, counted, details, more)
}

// streaming answers bit by bit and waits for a strike where it is told to.
func (f *fake) streaming(w http.ResponseWriter, r *http.Request, prompt string) {
	l := &live{id: r.Header.Get(conversation), strike: make(chan struct{}), prompt: prompt}
	f.mu.Lock()
	f.begun++
	hold := f.begun >= f.holdFrom
	f.live = l
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.live = nil
		f.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	half := len(fakeText) / 2
	fmt.Fprintf(w, "data: %s\n\n", chunk(fakeText[:half], ""))
	w.(http.Flusher).Flush()
	if hold {
		gone := r.Context().Done()
		if f.worksOn {
			gone = nil
		}
		select {
		case <-l.strike:
		case <-gone:
			return
		case <-f.stopped:
			if f.quietCut {
				return
			}
			fmt.Fprint(w, "data: {\"error\":{\"code\":\"upstream_failed\",\"message\":\"x\"}}\n\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	f.mu.Lock()
	extra, cut := l.extra, l.cut
	f.mu.Unlock()
	if cut {
		return
	}
	fmt.Fprintf(w, "data: %s\n\ndata: %s\n\ndata: [DONE]\n\n", chunk(fakeText[half:]+extra, ""), chunk("", "length"))
}

// hands: kill ends the fake in mid-stream; start brings it back.
func (f *fake) hands() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"kill":  func(context.Context) error { close(f.stopped); return nil },
		"start": func(context.Context) error { return nil },
	}
}

// fakeSite is a site with a fake engine and a fake gateway.
func fakeSite(engine, gateway string) Site {
	s := Site{Dialect: upstream.LlamaCPP, Model: "model", Served: "served", Plain: engine}
	s.Gateway, s.Keys = gateway, []string{"key-of-tenant-0-0", "key-of-tenant-1-1"}
	return s
}

// tried runs one case on one way.
func tried(t *testing.T, site Site, name string, w Way, f *fake) Result {
	t.Helper()
	patience := 20 * time.Second
	if f.worksOn {
		patience = 50 * time.Millisecond // it would wait in vain
	}
	r, err := Run(t.Context(), site, Options{Only: []string{name}, Ways: []Way{w}, Kills: true, Timeout: 30 * time.Second, patience: patience, Faults: f.hands()})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 1 {
		t.Fatalf("%d results, want 1", len(r.Results))
	}
	return r.Results[0]
}
