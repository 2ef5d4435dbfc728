package twin

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// llamaEngine is a llama.cpp server: slots that keep the text of their last request, and
// streams that anybody can read who names the conversation.
type llamaEngine struct {
	t *Twin

	mu      sync.Mutex
	slots   []slot
	streams map[string]*talk
}

type slot struct {
	text string // what its KV holds
	busy bool
}

// talk is a stream with a conversation id.
type talk struct {
	mu     sync.Mutex
	said   strings.Builder // its events
	killed chan struct{}
	once   sync.Once
	ended  chan struct{} // closed when no more comes
}

func (t *talk) kill() { t.once.Do(func() { close(t.killed) }) }

func newLlama(t *Twin) *llamaEngine {
	return &llamaEngine{t: t, slots: make([]slot, t.opts.Slots), streams: map[string]*talk{}}
}

func (e *llamaEngine) perSlot() int { return e.t.pool() / e.t.opts.Slots }

func (e *llamaEngine) serve(c *call) bool {
	switch path := c.r.URL.Path; {
	case path == "/health":
		writeJSON(c.w, http.StatusOK, object{"status": "ok"})
	case path == "/props":
		writeJSON(c.w, http.StatusOK, object{
			"default_generation_settings": object{"n_ctx": e.perSlot()}, "total_slots": e.t.opts.Slots, "model_alias": e.t.face(), "model_path": "/model.gguf",
			"endpoint_slots": true, "endpoint_props": true, "endpoint_metrics": true, "build_info": e.t.profile.Version, "chat_template": "",
		})
	case path == "/v1/models":
		writeJSON(c.w, http.StatusOK, object{"object": "list", "data": []object{{"id": e.t.face(), "object": "model", "created": 1, "owned_by": "llamacpp", "meta": object{"n_ctx_train": e.t.opts.Window}}}})
	case path == "/slots":
		e.listSlots(c)
	case path == "/tokenize":
		var v struct {
			Content string `json:"content"`
		}
		_ = json.Unmarshal(c.body, &v) // no content is no token
		writeJSON(c.w, http.StatusOK, object{"tokens": make([]int, len(tokens(v.Content)))})
	case path == "/v1/chat/completions/input_tokens":
		writeJSON(c.w, http.StatusOK, object{"object": "response.input_tokens", "input_tokens": parse(true, c.body).count()})
	case path == "/apply-template":
		var v struct {
			Messages json.RawMessage `json:"messages"`
		}
		_ = json.Unmarshal(c.body, &v)
		writeJSON(c.w, http.StatusOK, object{"prompt": chatText(v.Messages)})
	case path == "/v1/streams/lookup":
		e.lookup(c)
	case path == "/v1/stream":
		e.resume(c)
	case path == "/v1/chat/completions", path == "/v1/completions":
		e.complete(c, path == "/v1/chat/completions")
	case path == "/completion":
		e.complete(c, false)
	default:
		return false
	}
	return true
}

func (e *llamaEngine) listSlots(c *call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []object{}
	for i, s := range e.slots {
		out = append(out, object{"id": i, "n_ctx": e.perSlot(), "is_processing": s.busy, "n_prompt_tokens": len(tokens(s.text))})
	}
	writeJSON(c.w, http.StatusOK, out)
}

func (e *llamaEngine) lookup(c *call) {
	var v struct {
		IDs []string `json:"conversation_ids"`
	}
	_ = json.Unmarshal(c.body, &v) // no ids find nothing
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []object{}
	for _, id := range v.IDs {
		if t := e.streams[id]; t != nil {
			t.mu.Lock()
			out = append(out, object{"conversation_id": id, "live": true, "bytes": t.said.Len()})
			t.mu.Unlock()
		}
	}
	writeJSON(c.w, http.StatusOK, out)
}

// resume reads or kills the stream of a conversation, whosever it is.
func (e *llamaEngine) resume(c *call) {
	e.mu.Lock()
	t := e.streams[c.r.URL.Query().Get("conv_id")]
	e.mu.Unlock()
	if t == nil {
		writeJSON(c.w, http.StatusNotFound, object{"error": object{"code": 404, "message": "no such stream", "type": "not_found_error"}})
		return
	}
	if c.r.Method == http.MethodDelete {
		t.kill()
		c.w.WriteHeader(http.StatusNoContent)
		return
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	select {
	case <-t.ended:
	case <-t.killed:
	case <-c.r.Context().Done():
	}
	t.mu.Lock()
	text := t.said.String()
	t.mu.Unlock()
	_, _ = io.WriteString(c.w, text) // whoever left needs no more
}

func (e *llamaEngine) refuse(c *call, status int, kind, message string, more object) {
	inner := object{"code": status, "message": message, "type": kind}
	for k, v := range more {
		inner[k] = v
	}
	writeJSON(c.w, status, object{"error": inner})
}

func (e *llamaEngine) complete(c *call, chat bool) {
	if !c.isJSON() {
		// The older of the two builds calls it a fault of its own.
		status, kind := http.StatusInternalServerError, "server_error"
		if e.t.profile.Name != "llamacpp-10434" {
			status, kind = http.StatusBadRequest, "invalid_request_error"
		}
		e.refuse(c, status, kind, "parse error", nil)
		return
	}
	c.ask = parse(chat, c.body)
	if c.ask.malformed && (!chat || c.ask.members["messages"] == nil) || !chat && len(c.ask.prompts) == 0 {
		e.refuse(c, http.StatusBadRequest, "invalid_request_error", "a field is missing or of another type", nil)
		return
	}
	if c.ask.n > e.t.opts.Slots {
		e.refuse(c, http.StatusBadRequest, "invalid_request_error", "too many choices", nil)
		return
	}
	if n := c.ask.count(); n > e.perSlot() {
		e.refuse(c, http.StatusBadRequest, "exceed_context_size_error", fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", n, e.perSlot()),
			object{"n_prompt_tokens": n, "n_ctx": e.perSlot()})
		return
	}
	c.id = "chatcmpl-twin" + c.id
	k, cached := e.enter(c)
	defer e.leave(k)
	c.compute(c.ask.count() - cached)
	s := shape{id: c.id, prompt: c.ask.count(), cached: cached, counts: 1}
	s.extra = object{"system_fingerprint": e.t.profile.Version, "timings": object{"cache_n": cached, "prompt_n": s.prompt - cached}}
	if string(c.ask.members["verbose"]) == "true" {
		s.extra["__verbose"] = object{"id_slot": k, "prompt": c.ask.prompts[0]}
	}
	read := func() string {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.slots[k].text
	}
	for range max(1, c.ask.n) {
		s.choices = append(s.choices, speak(c.ask.limit, read))
	}
	if id := c.r.Header.Get("X-Conversation-Id"); id != "" && c.ask.stream {
		e.resumable(c, id, s)
		return
	}
	c.answer(s)
}

// enter waits for a slot and puts the prompt there: the named one, or any that is free.
func (e *llamaEngine) enter(c *call) (k, cached int) {
	prompt := c.ask.prompts[0]
	named := -1
	if n, ok := c.ask.number("id_slot"); ok && n >= 0 {
		named = min(int(n), len(e.slots)-1)
	}
	for {
		k, cached = e.tryEnter(prompt, named, string(c.ask.members["cache_prompt"]) != "false")
		if k >= 0 {
			return k, cached
		}
		if !c.wait(slotPoll) {
			panic(http.ErrAbortHandler)
		}
	}
}

// slotPoll is how often a request that waits looks for a free slot.
const slotPoll = 5 * time.Millisecond

func (e *llamaEngine) tryEnter(prompt string, named int, cache bool) (k, cached int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k = -1
	for i := range e.slots {
		if k < 0 && !e.slots[i].busy && (named < 0 || named == i) {
			k = i
		}
	}
	if k < 0 {
		return k, 0
	}
	if cache {
		for _, s := range e.slots {
			cached = max(cached, len(tokens(shared(s.text, prompt))))
		}
		cached = max(0, min(cached, len(tokens(prompt))-1))
	}
	e.slots[k] = slot{prompt, true}
	return k, cached
}

// shared is what two texts begin with.
func shared(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && !utf8.RuneStart(a[n-1]) {
		n--
	}
	return a[:n]
}

func (e *llamaEngine) leave(k int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots[k].busy = false
}

// resumable streams under a conversation id. Another stream of the same id ends it.
func (e *llamaEngine) resumable(c *call, id string, s shape) {
	t := &talk{killed: make(chan struct{}), ended: make(chan struct{})}
	defer close(t.ended)
	c.tee = func(b []byte) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.said.Write(b)
	}
	e.mu.Lock()
	if before := e.streams[id]; before != nil {
		before.kill()
	}
	e.streams[id] = t
	e.mu.Unlock()
	for i, from := range s.choices {
		s.choices[i] = func(k int) (string, string) {
			select {
			case <-t.killed:
				panic(http.ErrAbortHandler)
			default:
			}
			return from(k)
		}
	}
	c.answer(s)
}
