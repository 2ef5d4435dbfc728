package twin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fabric is what carries KV from the prefill twins to the decode twins of SGLang: rooms,
// by number and nothing else.
type fabric struct {
	mu    sync.Mutex
	rooms map[int64]*room
}

// room is where two legs meet. Whoever comes with its number is let in.
type room struct {
	wrote chan []string // what prefill wrote, once
	taken chan struct{} // closed once decode has it
}

func newFabric() *fabric { return &fabric{rooms: map[int64]*room{}} }

// enter opens a room, or the one that is open.
func (f *fabric) enter(n int64) *room {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rooms[n]
	if r == nil {
		r = &room{wrote: make(chan []string, 1), taken: make(chan struct{})}
		f.rooms[n] = r
	}
	return r
}

func (f *fabric) leave(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rooms, n)
}

// pages is a KV pool: what was last written to each of its tokens, and which are free,
// first in, first out. A page keeps what it held until somebody writes it.
type pages struct {
	mu   sync.Mutex
	held []string
	free []int
}

func newPages(n int) *pages {
	p := &pages{held: make([]string, n)}
	for i := range n {
		p.free = append(p.free, i)
	}
	return p
}

// take takes n pages; nil if there are not that many.
func (p *pages) take(n int) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > len(p.free) {
		return nil
	}
	got := slices.Clone(p.free[:n])
	p.free = slices.Delete(p.free, 0, n)
	return got
}

func (p *pages) give(list []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, list...)
}

// write writes tokens to pages, as many as there are of both.
func (p *pages) write(list []int, tokens []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range min(len(list), len(tokens)) {
		p.held[list[i]] = tokens[i]
	}
}

// read is the text that pages hold, whoever wrote it.
func (p *pages) read(list []int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, i := range list {
		b.WriteString(p.held[i])
	}
	return b.String()
}

// sglangEngine is a node of SGLang.
type sglangEngine struct {
	t      *Twin
	fabric *fabric
	pool   *pages

	mu     sync.Mutex
	aborts map[string]chan struct{} // by rid, of legs that wait
	salted map[string]int           // tokens that a prefix cache holds, by salt and text
	hits   int                      // tokens that came from there
	queue  int                      // decode legs that wait for a transfer
}

func newSGLang(t *Twin, f *fabric) *sglangEngine {
	return &sglangEngine{t: t, fabric: f, pool: newPages(t.opts.Pool), aborts: map[string]chan struct{}{}, salted: map[string]int{}}
}

// reserve is what an SGLang node keeps of its pool.
const reserve = 6

func (e *sglangEngine) limit() int { return min(e.t.opts.Window, e.t.pool()) - reserve }

func (e *sglangEngine) serve(c *call) bool {
	switch c.r.URL.Path {
	case "/health", "/health_generate":
		c.w.WriteHeader(http.StatusOK)
	case "/server_info", "/get_server_info":
		writeJSON(c.w, http.StatusOK, e.info())
	case "/model_info", "/get_model_info":
		writeJSON(c.w, http.StatusOK, object{"model_path": "/model", "served_model_name": e.t.face(), "tokenizer_path": "/model", "weight_version": "default", "model_type": "llama", "architectures": []string{"LlamaForCausalLM"}})
	case "/v1/models":
		writeJSON(c.w, http.StatusOK, object{"object": "list", "data": []object{{"id": e.t.face(), "object": "model", "created": 1, "owned_by": "sglang", "root": e.t.opts.Model, "parent": nil, "max_model_len": e.t.opts.Window}}})
	case "/v1/loads":
		writeJSON(c.w, http.StatusOK, e.loads())
	case "/tokenize", "/v1/tokenize":
		a := countable(c)
		if a.malformed {
			flat(c, http.StatusBadRequest, "1 validation error")
			return true
		}
		writeJSON(c.w, http.StatusOK, object{"tokens": make([]int, a.count()), "count": a.count(), "max_model_len": e.t.opts.Window})
	case "/metrics", "/metrics/":
		e.mu.Lock()
		hits := e.hits
		e.mu.Unlock()
		c.w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintf(c.w, "sglang:cached_tokens_total{cache_source=\"device\",model_name=\"%s\"} %d.0\n", e.t.opts.Model, hits)
	case "/abort_request":
		e.abort(c)
	case "/v1/chat/completions", "/v1/completions":
		e.complete(c, c.r.URL.Path == "/v1/chat/completions")
	default:
		return false
	}
	return true
}

func (e *sglangEngine) info() object {
	mode := string(e.t.opts.Role)
	if e.t.opts.Role == Plain {
		mode = "null"
	}
	return object{
		"version": e.t.profile.Version, "served_model_name": e.t.face(), "model_path": "/model", "context_length": e.t.opts.Window, "page_size": 1,
		"max_total_num_tokens": e.t.pool(), "max_req_input_len": e.limit(), "allow_auto_truncate": false, "disaggregation_mode": mode,
		"disaggregation_bootstrap_port": 8998, "tp_size": 1, "dp_size": 1, "status": "ready", "api_key": nil, "internal_states": []object{{}},
	}
}

func (e *sglangEngine) loads() object {
	e.mu.Lock()
	defer e.mu.Unlock()
	return object{"version": e.t.profile.Version, "loads": []object{{
		"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "max_total_num_tokens": e.t.pool(),
		"disaggregation": object{
			"mode": e.t.opts.Role, "prefill_bootstrap_queue_reqs": e.waiting(Prefill), "prefill_inflight_queue_reqs": 0,
			"decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": e.waiting(Decode), "decode_retracted_queue_reqs": 0,
		},
	}}}
}

// waiting is how many legs wait for the other one, at a node of that role.
func (e *sglangEngine) waiting(r Role) int {
	if e.t.opts.Role != r {
		return 0
	}
	return e.queue
}

// abort ends every request whose rid begins with the one that is given, or all of them.
func (e *sglangEngine) abort(c *call) {
	var v struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	_ = json.Unmarshal(c.body, &v) // without a rid there is nothing to end
	e.mu.Lock()
	for rid, ch := range e.aborts {
		if v.All || v.RID != "" && strings.HasPrefix(rid, v.RID) {
			close(ch)
			delete(e.aborts, rid)
		}
	}
	e.mu.Unlock()
	c.w.WriteHeader(http.StatusOK)
}

// watch returns what is closed once the request of that rid is aborted, and how to stop
// watching.
func (e *sglangEngine) watch(rid string) (<-chan struct{}, func()) {
	ch := make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aborts[rid] = ch
	return ch, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.aborts[rid] == ch {
			delete(e.aborts, rid)
		}
	}
}

// wait counts a leg that waits for the other one.
func (e *sglangEngine) wait(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue += n
}

// until is a source that ends with the reason abort once its request is aborted.
func until(aborted <-chan struct{}, from source) source {
	return func(i int) (string, string) {
		select {
		case <-aborted:
			return "", "abort"
		default:
			return from(i)
		}
	}
}

func flat(c *call, status int, message string) {
	writeJSON(c.w, status, object{"object": "error", "message": message, "type": "BadRequestError", "param": nil, "code": status})
}

func (e *sglangEngine) complete(c *call, chat bool) {
	a := parse(chat, c.body)
	if a.malformed {
		flat(c, http.StatusBadRequest, "1 validation error")
		return
	}
	if raw := a.members["temperature"]; raw != nil && string(raw) != "null" {
		if _, err := strconv.ParseFloat(string(raw), 64); err != nil {
			flat(c, http.StatusBadRequest, fmt.Sprintf("1 validation error: input_value=%s, in protocol.py", raw))
			return
		}
	}
	c.ask = a
	c.id = "twin-" + c.id
	for _, own := range []string{a.text("rid"), c.r.Header.Get("X-Override-Rid")} {
		if own != "" {
			c.id = own
		}
	}
	n := a.count()
	if n > e.t.opts.Window {
		flat(c, http.StatusBadRequest, fmt.Sprintf("The input (%d tokens) is longer than the model's context length (%d tokens).", n, e.t.opts.Window))
		return
	}
	over := n > e.limit()
	if over && (e.t.opts.Role != Prefill || e.t.profile.Version != "0.5.19") {
		e.tooLong(c, n)
		return
	}
	switch e.t.opts.Role {
	case Prefill:
		e.prefill(c, over)
	case Decode:
		e.decode(c)
	default:
		e.plain(c)
	}
}

// tooLong refuses a prompt that is longer than the pool: in a stream inside a 200.
func (e *sglangEngine) tooLong(c *call, n int) {
	message := fmt.Sprintf("Input length (%d tokens) exceeds the maximum allowed length (%d tokens). Use a shorter input or enable --allow-auto-truncate.", n, e.limit())
	if !c.ask.stream {
		flat(c, http.StatusBadRequest, message)
		return
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	st := &stream{c: c}
	st.event(object{"error": object{"message": message, "type": "BAD_REQUEST", "code": 400}})
	st.raw([]byte("data: [DONE]\n\n"))
}

// cachedTokens says what a prefix cache under the request's salt holds of a text, and
// puts the text there.
func (e *sglangEngine) cachedTokens(a ask) int {
	key := strconv.Quote(a.text("cache_salt")) + strconv.Quote(a.text("extra_key")) + a.prompts[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	cached := e.salted[key]
	e.salted[key] = len(tokens(a.prompts[0])) - 1
	e.hits += cached
	return cached
}

func (e *sglangEngine) plain(c *call) {
	aborted, forget := e.watch(c.id)
	defer forget()
	s := shape{id: c.id, prompt: c.ask.count(), cached: e.cachedTokens(c.ask)}
	c.compute(s.prompt - s.cached)
	for _, p := range c.ask.prompts {
		for range c.ask.n {
			s.choices = append(s.choices, until(aborted, speak(c.ask.limit, func() string { return p })))
		}
	}
	c.answer(s)
}

// roomOf reads the room.
func (e *sglangEngine) roomOf(c *call) (int64, bool) {
	n, err := strconv.ParseInt(string(c.ask.members["bootstrap_room"]), 10, 64)
	if err != nil || n < 0 {
		flat(c, http.StatusBadRequest, "1 validation error")
		return 0, false
	}
	return n, true
}

func (e *sglangEngine) prefill(c *call, stub bool) {
	n, ok := e.roomOf(c)
	if !ok {
		return
	}
	written := tokens(c.ask.prompts[0])
	c.compute(len(written) - e.cachedTokens(c.ask))
	if stub {
		written = []string{"-"} // what version 0.5.19 computes in place of a prompt that it cannot hold
	}
	r := &room{taken: make(chan struct{})} // nobody is there
	if !e.t.on("unmet") {
		r = e.fabric.enter(n)
		defer e.fabric.leave(n)
		select {
		case r.wrote <- written:
		default: // somebody's KV waits there already
		}
	}
	aborted, forget := e.watch(c.id)
	defer forget()
	e.wait(1)
	defer e.wait(-1)
	select {
	case <-r.taken:
	case <-aborted:
		flat(c, http.StatusInternalServerError, "Aborted by AbortReq")
		return
	case <-c.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	text := strings.Join(written, "")
	words, _ := said(text, 1)
	c.ask.limit = 1
	c.answer(shape{id: c.id, prompt: len(written), cached: -1, choices: []source{fixed(words, "length")}})
}

func (e *sglangEngine) decode(c *call) {
	if c.ask.members["bootstrap_room"] == nil {
		flat(c, http.StatusBadRequest, "Disaggregated request received without bootstrap room id")
		return
	}
	n, ok := e.roomOf(c)
	if !ok {
		return
	}
	need := c.ask.count()
	mine := e.pool.take(need)
	if mine == nil {
		flat(c, http.StatusInternalServerError, "out of memory")
		return
	}
	defer e.pool.give(mine)
	r := e.fabric.enter(n)
	aborted, forget := e.watch(c.id)
	defer forget()
	limit := time.NewTimer(e.t.opts.Wait)
	defer limit.Stop()
	e.wait(1)
	waited := sync.OnceFunc(func() { e.wait(-1) })
	defer waited()
	select {
	case written := <-r.wrote:
		waited()
		// As much is written as prefill has computed, and all pages are read.
		own := tokens(c.ask.prompts[0])
		e.pool.write(mine, own[:min(len(own), len(written))])
		close(r.taken)
		if c.ask.n > 1 {
			// One room serves one answer; the others wait for theirs.
			e.unanswered(c, aborted, limit.C)
			return
		}
	case <-aborted:
		flat(c, http.StatusInternalServerError, "Aborted by AbortReq")
		return
	case <-limit.C:
		e.timedOut(c)
		return
	case <-c.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	text := e.pool.read(mine)
	c.answer(shape{id: c.id, prompt: need, cached: -1, choices: []source{until(aborted, speak(c.ask.limit, func() string { return text }))}})
}

// timedOut is what decode says when prefill did not come.
func (e *sglangEngine) timedOut(c *call) {
	flat(c, http.StatusInternalServerError, fmt.Sprintf("timed out after %.1fs in KVPoll.WaitingForInput", e.t.opts.Wait.Seconds()))
}

// unanswered waits for what does not come.
func (e *sglangEngine) unanswered(c *call, aborted <-chan struct{}, limit <-chan time.Time) {
	select {
	case <-aborted:
		flat(c, http.StatusInternalServerError, "Aborted by AbortReq")
	case <-limit:
		e.timedOut(c)
	case <-c.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}
