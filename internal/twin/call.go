package twin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// call is one request to a twin.
type call struct {
	t    *Twin
	w    http.ResponseWriter
	r    *http.Request
	body []byte
	id   string // of the answer, where the engine mints it
	ask  ask
	tee  func([]byte) // takes what a stream says; may be nil
}

// ask is what a completion asks for.
type ask struct {
	chat      bool
	prompts   []string // one for each sequence of the prompt list; a chat has one
	n         int
	limit     int // tokens of an answer
	stream    bool
	usage     bool // the usage chunk
	running   bool // usage in every chunk
	model     string
	members   map[string]json.RawMessage
	malformed bool
}

// text is a member that is a string, else empty.
func (a ask) text(name string) string {
	var s string
	_ = json.Unmarshal(a.members[name], &s) // another type is as good as none
	return s
}

// number is a member that is a whole number.
func (a ask) number(name string) (n int64, ok bool) {
	raw := a.members[name]
	if raw == nil || json.Unmarshal(raw, &n) != nil {
		return 0, false
	}
	return n, true
}

const defaultLimit = 16

// parse reads a completion. It tolerates what engines tolerate: whatever it does not know.
func parse(chat bool, body []byte) ask {
	a := ask{chat: chat, n: 1, limit: defaultLimit}
	if json.Unmarshal(body, &a.members) != nil || a.members == nil {
		a.malformed = true
		return a
	}
	a.model = a.text("model")
	for _, name := range []string{"max_tokens", "max_completion_tokens", "n_predict"} {
		if n, ok := a.number(name); ok {
			a.limit = int(n)
		}
	}
	if n, ok := a.number("n"); ok {
		a.n = int(n)
	}
	_ = json.Unmarshal(a.members["stream"], &a.stream)
	var options struct {
		Usage   bool `json:"include_usage"`
		Running bool `json:"continuous_usage_stats"`
	}
	_ = json.Unmarshal(a.members["stream_options"], &options)
	a.usage, a.running = options.Usage, options.Running
	if chat {
		a.prompts = []string{chatText(a.members["messages"])}
	} else {
		a.prompts = promptTexts(a.members["prompt"])
	}
	a.malformed = len(a.prompts) == 0 || a.prompts[0] == "" && !chat
	return a
}

// chatText is the text of a chat as the twin's template puts it.
func chatText(raw json.RawMessage) string {
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &messages) != nil || len(messages) == 0 {
		return ""
	}
	var b strings.Builder
	for _, m := range messages {
		var s string
		if json.Unmarshal(m.Content, &s) != nil {
			var parts []struct {
				Text string `json:"text"`
			}
			_ = json.Unmarshal(m.Content, &parts)
			for _, p := range parts {
				s += p.Text
			}
		}
		fmt.Fprintf(&b, "<%-*s>%s", overhead*tokenBytes-2, m.Role, s)
	}
	return b.String()
}

// promptTexts is the prompt of a completion, one text for each sequence.
func promptTexts(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil {
		return many
	}
	var ids []int64
	if json.Unmarshal(raw, &ids) == nil {
		return []string{idText(ids)}
	}
	var lists [][]int64
	if json.Unmarshal(raw, &lists) == nil {
		for _, l := range lists {
			many = append(many, idText(l))
		}
	}
	return many
}

// idText is a prompt of token ids as text: one token for each.
func idText(ids []int64) string {
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, "%*d", tokenBytes, id%10000)
	}
	return b.String()
}

// shape is what one answer is made of.
type shape struct {
	id         string
	choices    []source
	prompt     int // tokens, over all prompts
	cached     int // below 0: not told
	extra      object
	perChoice  object
	finishFrom int // choices from here on never finish
	// counts is how many choices are counted; 0: all.
	counts int
}

// counted says whether the words of a choice are counted.
func (s *shape) counted(i int) bool { return s.counts == 0 || i < s.counts }

// source is where the words of one choice come from. It is asked word by word, so that
// what changes under it in mid-stream shows.
type source func(i int) (word string, finish string)

// fixed is a source that says the same, whatever happens.
func fixed(words []string, finish string) source {
	return func(i int) (string, string) {
		if i < len(words) {
			return words[i], ""
		}
		return "", finish
	}
}

// speak is a source over a context that read returns at each word.
func speak(limit int, read func() string) source {
	return func(i int) (string, string) {
		if i >= limit {
			return "", "length"
		}
		w := word(read(), i)
		if w == "" {
			return "", "stop"
		}
		return w, ""
	}
}

func (c *call) usage(s *shape, completion int, fault string) object {
	prompt := s.prompt
	if fault == "count-off" {
		prompt++
	}
	total, cached := prompt+completion, s.cached
	var said any = completion
	switch fault {
	case "usage-negative":
		said = -1
	case "usage-off":
		total += 7
	case "usage-nan":
		said = notANumber
	case "usage-over":
		said, total = completion+c.ask.limit, total+c.ask.limit
	case "usage-zero":
		prompt, said, total, cached = 0, 0, 0, min(0, cached)
	case "cached-over":
		cached = 2*prompt - 1
	case "cached-all":
		cached = prompt - 1
	}
	u := object{"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": total}
	if cached >= 0 {
		u["prompt_tokens_details"] = object{"cached_tokens": cached}
	}
	return u
}

// notANumber stands where NaN is written, which JSON does not have.
const notANumber = "@NaN"

// encode writes a value as JSON, and NaN as some servers do.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return bytes.ReplaceAll(b, []byte(`"`+notANumber+`"`), []byte("NaN"))
}

// answer sends an answer in the form that was asked for, with the fault that is due.
func (c *call) answer(s shape) { c.answerWith(s, c.t.draw()) }

// answerWith is answer with a fault that was drawn before.
func (c *call) answerWith(s shape, fault string) {
	if s.finishFrom == 0 {
		s.finishFrom = len(s.choices)
	}
	if c.before(fault) {
		return
	}
	switch fault {
	case "foreign-id":
		s.id += "f"
	case "junk":
		for i := range s.choices {
			s.choices[i] = fixed([]string{"zz", " zz"}, "stop")
		}
	case "unfinished":
		s.finishFrom = len(s.choices) - 1
	case "swapped":
		c.swap(&s)
	}
	if c.ask.stream {
		c.streamed(s, fault)
		return
	}
	c.whole(s, fault)
}

// swap gives the answer to the other request that has this fault, and takes its one.
func (c *call) swap(s *shape) {
	mine := *s
	select {
	case c.t.swaps <- mine:
		*s = <-c.t.swapped
	case *s = <-c.t.swaps:
		c.t.swapped <- mine
	case <-c.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

// before carries out the faults that come instead of an answer.
func (c *call) before(fault string) bool {
	if c.t.on("frozen") {
		fault = "hang"
	}
	failed := func(status int, kind string) bool {
		writeJSON(c.w, status, object{"error": object{"message": "The twin was told to fail.", "type": kind, "param": nil, "code": status}})
		return true
	}
	if c.t.idle() {
		fault = "broken"
	}
	switch fault {
	case "crash":
		c.t.Kill()
		panic(http.ErrAbortHandler)
	case "reset":
		panic(http.ErrAbortHandler)
	case "hang":
		<-c.r.Context().Done()
		panic(http.ErrAbortHandler)
	case "busy":
		return failed(http.StatusServiceUnavailable, "ServiceUnavailable")
	case "broken":
		return failed(http.StatusInternalServerError, "InternalServerError")
	case "refuse":
		return failed(http.StatusBadRequest, "BadRequestError")
	}
	if fault == "error-in-200" && !c.ask.stream {
		writeJSON(c.w, http.StatusOK, errorEvent())
		return true
	}
	return false
}

func errorEvent() object {
	return object{"error": object{"message": "The twin was told to fail.", "type": "InternalServerError", "param": nil, "code": 500}}
}

// maxWords bounds an answer, whatever was asked.
const maxWords = 4096

func (c *call) whole(s shape, fault string) {
	var choices []object
	completion := 0
	for i, from := range s.choices {
		var text strings.Builder
		finish := ""
		for k := range maxWords {
			w, f := from(k)
			if f != "" {
				finish = f
				break
			}
			text.WriteString(w)
			if s.counted(i) {
				completion++
			}
		}
		switch {
		case fault == "abort-in-200":
			finish = "abort"
		case fault == "finish-error":
			finish = "error"
		}
		ch := object{"index": i, "finish_reason": finish, "logprobs": nil}
		if i >= s.finishFrom {
			ch["finish_reason"] = nil
		}
		switch {
		case c.ask.chat && fault == "no-content":
			ch["message"] = object{"role": "assistant"}
		case c.ask.chat:
			ch["message"] = object{"role": "assistant", "content": text.String()}
		case fault != "no-content":
			ch["text"] = text.String()
		}
		for k, v := range s.perChoice {
			ch[k] = v
		}
		choices = append(choices, ch)
	}
	kind := "text_completion"
	if c.ask.chat {
		kind = "chat.completion"
	}
	out := object{"id": s.id, "object": kind, "created": 1, "model": c.t.opts.Model, "choices": choices}
	if fault != "usage-missing" {
		out["usage"] = c.usage(&s, completion, fault)
	}
	for k, v := range s.extra {
		out[k] = v
	}
	writeJSON(c.w, http.StatusOK, out)
}

// stream writes events.
type stream struct {
	c     *call
	s     *shape
	fault string
	words int
	// tokens are the words of the choices that are counted.
	tokens int
}

func (st *stream) event(v any) {
	st.raw(append(append([]byte("data: "), encode(v)...), "\n\n"...))
}

func (st *stream) raw(b []byte) {
	if st.c.tee != nil {
		st.c.tee(b)
	}
	if _, err := st.c.w.Write(b); err != nil || st.c.r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	_ = http.NewResponseController(st.c.w).Flush() // it is what the next write would meet
}

// chunk is one chunk with at most one choice.
func (st *stream) chunk(choice object) object {
	kind := "text_completion"
	if st.c.ask.chat {
		kind = "chat.completion.chunk"
	}
	out := object{"id": st.s.id, "object": kind, "created": 1, "model": st.c.t.opts.Model}
	if choice == nil {
		out["choices"] = []object{}
	} else {
		out["choices"] = []object{choice}
	}
	if st.c.ask.running && st.fault != "usage-missing" && choice != nil && st.words > 0 {
		out["usage"] = st.c.usage(st.s, st.tokens, st.fault)
	}
	return out
}

func (st *stream) delta(index int, word string, finish any) object {
	ch := object{"index": index, "finish_reason": finish, "logprobs": nil}
	if !st.c.ask.chat {
		ch["text"] = word
		return ch
	}
	ch["delta"] = object{}
	if word != "" {
		ch["delta"] = object{"content": word}
	}
	return ch
}

// wordsBeforeFault is how many words a stream has before its fault shows.
const wordsBeforeFault = 2

func (c *call) streamed(s shape, fault string) {
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	st := &stream{c: c, s: &s, fault: fault}
	done := func() { st.raw([]byte("data: [DONE]\n\n")) }
	if fault == "error-first" || fault == "error-in-200" {
		st.event(errorEvent())
		done()
		return
	}
	if c.ask.chat {
		for i := range s.choices {
			st.event(st.chunk(object{"index": i, "delta": object{"role": "assistant", "content": ""}, "finish_reason": nil}))
		}
	}
	if st.run() {
		return
	}
	if c.ask.usage && fault != "usage-missing" {
		for range map[bool]int{true: 2, false: 1}[fault == "usage-twice"] {
			last := st.chunk(nil)
			last["usage"] = c.usage(&s, st.tokens, fault)
			st.event(last)
		}
	}
	if fault != "no-done" {
		done()
	}
	if fault == "surplus" {
		st.event(st.chunk(st.delta(0, " surplus", nil)))
	}
}

// run streams the words of all choices, one of each in turn, and their ends. It returns
// true if a fault has ended the stream.
func (st *stream) run() (over bool) {
	open := map[int]bool{}
	for i := range st.s.choices {
		open[i] = true
	}
	for k := 0; len(open) > 0 && k < maxWords; k++ {
		for i, from := range st.s.choices {
			if !open[i] {
				continue
			}
			if st.words == wordsBeforeFault*len(st.s.choices) && st.midway() {
				return true
			}
			switch {
			case !st.c.t.Alive():
				panic(http.ErrAbortHandler)
			case st.c.t.idle():
				st.event(errorEvent())
				st.raw([]byte("data: [DONE]\n\n"))
				return true
			}
			w, finish := from(k)
			if finish == "" {
				st.words++
				if st.s.counted(i) {
					st.tokens++
				}
				st.event(st.chunk(st.delta(i, w, nil)))
				st.c.pace()
				continue
			}
			delete(open, i)
			switch st.fault {
			case "abort-in-200":
				finish = "abort"
			case "finish-error":
				finish = "error"
			}
			if st.fault != "no-finish" && st.fault != "no-end" && i < st.s.finishFrom {
				st.event(st.chunk(st.delta(i, "", finish)))
			}
		}
	}
	return st.fault == "no-end"
}

// midway carries out the faults that come between two words.
func (st *stream) midway() (over bool) {
	switch st.fault {
	case "error-then-done":
		st.event(errorEvent())
		st.raw([]byte("data: [DONE]\n\n"))
		return true
	case "cut":
		st.raw([]byte(`data: {"id":"`))
		panic(http.ErrAbortHandler)
	case "silence":
		for st.c.r.Context().Err() == nil {
			st.raw([]byte(": nothing yet\n\n"))
			st.c.wait(time.Second)
		}
		panic(http.ErrAbortHandler)
	}
	return false
}

// compute takes the time that n tokens of a prompt take. A twin that dies meanwhile says
// nothing more.
func (c *call) compute(n int) {
	if d := c.t.opts.PerToken; d > 0 && n > 0 {
		c.wait(time.Duration(n) * d)
	}
	if !c.t.Alive() || c.r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

// pace waits between two words.
func (c *call) pace() {
	if c.t.opts.Pace > 0 {
		c.wait(c.t.opts.Pace)
	}
}

// wait waits for a time or for the client to leave; false if it left.
func (c *call) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.r.Context().Done():
		return false
	}
}

// count is the tokens of all prompts.
func (a ask) count() int {
	n := 0
	for _, p := range a.prompts {
		n += len(tokens(p))
	}
	return n
}

// reachTime is how long a peer that does not know the protocol is given.
const reachTime = 200 * time.Millisecond

// reach calls an address, if it is one of this machine's own.
func (c *call) reach(address string) {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(c.r.Context(), "tcp", address)
	if err != nil {
		return
	}
	defer conn.Close()
	c.wait(reachTime)
}

// countable parses what a tokenizer endpoint is asked: a chat or a prompt.
func countable(c *call) ask {
	a := parse(false, c.body)
	return parse(a.members["messages"] != nil, c.body)
}

// isJSON says whether the body is JSON at all.
func (c *call) isJSON() bool { return json.Valid(bytes.TrimSpace(c.body)) }
