package worker

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// form is the shape in which a request is asked and answered.
type form uint8

const (
	// formChat is /v1/chat/completions.
	formChat form = iota
	// formText is /v1/completions.
	formText
	// formGenerate is /generate, SGLang's own.
	formGenerate
)

// Bounds of one request, beside its length.
const (
	maxStops     = 4
	maxStopBytes = 256
	maxRID       = 128     // bytes of a request id
	maxOutput    = 1 << 24 // tokens
	maxMessages  = 1 << 16
)

// Defaults of what a request may leave out: OpenAI's and SGLang's.
const (
	defaultOutput        = 16
	defaultBootstrapPort = 8998
)

// request is a parsed leg. The gateway's allow-list is the strict one; here a
// field that is not known is ignored, as an engine does.
type request struct {
	form      form
	stream    bool
	usage     bool   // a usage chunk at the end
	running   bool   // usage in every chunk
	rid       string // one of its own for each sequence of a call
	served    string
	open      bool   // no pass came with it; the attempt is found at the door (H-16)
	peer      string // bootstrap host:port (H-13)
	room      int64
	attempt   handoff.Attempt
	domain    kv.Domain
	expiry    time.Time // of its pass
	count     int       // tokens of the prompt
	tokens    []llm.Token
	hashes    []kv.Hash // of tokens; none if the request is refused
	maxTokens int
	sampling  llm.Sampling
	stops     [][]byte
	limit     int          // with code TooLong or NoRoom: tokens
	code      handoff.Code // why this worker will not serve it, or NoCode
}

// roomOf is the rendezvous as SGLang sends it: an integer in [0, 2^63-1].
func roomOf(m members) (int64, *fault.Error) {
	room, ok, f := m.integer("bootstrap_room", 0, math.MaxInt64)
	if f == nil && !ok {
		f = fault.New(fault.MissingField, fault.Field("bootstrap_room"))
	}
	return room, f
}

// identify reads whom the leg names and how it is called. What does not hold is
// the refusal of the leg; the peer comes first, for it must learn of that.
func (r *request) identify(m members) *fault.Error {
	var rid, host string
	if f := m.read("bootstrap_host", &host, fault.Fixed("a string")); f != nil {
		return f
	}
	port, ok, f := m.integer("bootstrap_port", 0, math.MaxUint16)
	if f != nil {
		return f
	}
	if !ok {
		port = defaultBootstrapPort
	}
	r.peer = host + ":" + strconv.FormatInt(port, 10)
	if f := m.read("rid", &rid, fault.Fixed("a string")); f != nil {
		return f
	}
	switch {
	case rid == "":
		return fault.New(fault.MissingField, fault.Field("rid"))
	case !printable(rid):
		return fault.New(fault.WrongType, fault.Field("rid"), fault.Fixed("up to 128 letters, digits, - _ . or :"))
	}
	r.rid = rid
	return nil
}

// printable reports whether a request id is fit for headers and logs.
func printable(rid string) bool {
	for i := range len(rid) {
		c := rid[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == ':') {
			return false
		}
	}
	return len(rid) <= maxRID
}

// fill reads everything but the identity. It returns the fault that the leg is
// refused with. A prompt of over limit tokens is counted and not tokenised.
func (r *request) fill(m members, served string, limit int) *fault.Error {
	r.served = served
	if !r.names(m, served) {
		return fault.New(fault.ModelNotFound, fault.Field("model"))
	}
	if f := r.prompt(m, limit); f != nil {
		return f
	}
	if f := r.sample(m); f != nil {
		return f
	}
	if f := r.length(m); f != nil {
		return f
	}
	if f := m.read("stream", &r.stream, fault.Fixed("true or false")); f != nil {
		return f
	}
	if f := r.streamOptions(m["stream_options"]); f != nil {
		return f
	}
	return r.stop(m["stop"])
}

// names reports whether the request names the model. A router that was not told a name
// writes none, null or unknown.
func (r *request) names(m members, served string) bool {
	var model string
	if m.read("model", &model, fault.Fixed("")) != nil {
		return false
	}
	return model == served || r.open && (model == "" || model == "unknown")
}

// length reads how many tokens the answer may have. Routers write the newer name.
func (r *request) length(m members) *fault.Error {
	name := "max_tokens"
	if r.open && null(m[name]) {
		name = "max_completion_tokens"
	}
	n, ok, f := m.integer(name, 1, maxOutput)
	if r.maxTokens = int(n); !ok {
		r.maxTokens = defaultOutput
	}
	return f
}

func (r *request) streamOptions(raw []byte) *fault.Error {
	if null(raw) {
		return nil
	}
	m, f := objectAt(raw, "stream_options")
	if f != nil {
		return f
	}
	if f := m.read("include_usage", &r.usage, fault.Fixed("true or false")); f != nil {
		return f
	}
	return m.read("continuous_usage_stats", &r.running, fault.Fixed("true or false"))
}

// objectAt splits a value that must be an object.
func objectAt(raw []byte, field string) (members, *fault.Error) {
	if raw[0] != '{' {
		return nil, fault.New(fault.WrongType, fault.Field(field), fault.Fixed("an object"))
	}
	return object(raw)
}

// prompt turns messages or a prompt into tokens.
func (r *request) prompt(m members, limit int) *fault.Error {
	field := "prompt"
	if r.form == formChat {
		field = "messages"
	}
	if null(m[field]) {
		return fault.New(fault.MissingField, fault.Field(field))
	}
	if r.form == formChat {
		return r.messages(m[field], limit)
	}
	return r.text(m[field], limit)
}

// messages reads the messages of a chat.
func (r *request) messages(raw []byte, limit int) *fault.Error {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return fault.New(fault.WrongType, fault.Field("messages"), fault.Fixed("a list of messages"))
	}
	if len(list) > maxMessages {
		return fault.New(fault.TooManyValues, fault.Field("messages"), fault.Int(maxMessages))
	}
	text := false
	msgs := make([]llm.Message, 0, len(list))
	for _, x := range list {
		msg, f := message(x)
		if f != nil {
			return f
		}
		text = text || msg.Content != ""
		msgs = append(msgs, msg)
	}
	if !text {
		return fault.New(fault.EmptyPrompt, fault.Field("messages"))
	}
	n, err := llm.Bytes{}.CountChat(msgs)
	if err != nil {
		return fault.New(fault.WrongType, fault.Field("messages"), fault.Fixed("messages of known roles"))
	}
	if r.count = n; n <= limit {
		r.tokens, err = llm.Bytes{}.Chat(msgs)
	}
	if err != nil {
		return fault.New(fault.BadInput)
	}
	return nil
}

// message reads one message: a role, and a string or a list of text parts.
func message(raw []byte) (llm.Message, *fault.Error) {
	wrong := fault.New(fault.WrongType, fault.Field("messages"), fault.Fixed("messages with a role, and text or a list of text parts"))
	var msg llm.Message
	m, f := objectAt(raw, "messages")
	if f != nil {
		return msg, f
	}
	if json.Unmarshal(m["role"], &msg.Role) != nil {
		return msg, wrong
	}
	content := m["content"]
	if null(content) || json.Unmarshal(content, &msg.Content) == nil {
		return msg, nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil {
		return msg, wrong
	}
	var all strings.Builder
	for _, p := range parts {
		var kind, text string
		m, f := objectAt(p, "messages")
		if f != nil {
			return msg, f
		}
		if json.Unmarshal(m["type"], &kind) != nil || kind != "text" || json.Unmarshal(m["text"], &text) != nil {
			return msg, wrong
		}
		all.WriteString(text)
	}
	msg.Content = all.String()
	return msg, nil
}

// text reads the prompt of a completion: a string, a list of one string, or
// token ids, which are taken as they are.
func (r *request) text(raw []byte, limit int) *fault.Error {
	var text string
	var one []string
	var ids []uint32
	switch {
	case json.Unmarshal(raw, &text) == nil:
	case json.Unmarshal(raw, &one) == nil && len(one) == 1:
		text = one[0]
	case json.Unmarshal(raw, &ids) == nil:
		return r.ids(ids, limit)
	default:
		return fault.New(fault.WrongType, fault.Field("prompt"), fault.Fixed("a string, a list of one string, or token ids"))
	}
	if text == "" {
		return fault.New(fault.EmptyPrompt, fault.Field("prompt"))
	}
	if r.count = (llm.Bytes{}).CountText(text); r.count <= limit {
		r.tokens = llm.Bytes{}.Text(text)
	}
	return nil
}

func (r *request) ids(ids []uint32, limit int) *fault.Error {
	if len(ids) == 0 {
		return fault.New(fault.EmptyPrompt, fault.Field("prompt"))
	}
	vocab := uint32(llm.Bytes{}.Vocab())
	if r.count = len(ids); r.count <= limit {
		r.tokens = make([]llm.Token, 0, len(ids))
	}
	for _, id := range ids {
		if id >= vocab {
			return fault.New(fault.OutOfRange, fault.Field("prompt"), fault.Int(0), fault.Int(int64(vocab)-1))
		}
		if r.tokens != nil {
			r.tokens = append(r.tokens, llm.Token(id))
		}
	}
	return nil
}

func (r *request) sample(m members) *fault.Error {
	r.sampling = llm.Sampling{Temperature: 1, TopP: 1}
	for _, x := range [...]struct {
		name string
		v    *float64
		high float64
	}{{"temperature", &r.sampling.Temperature, 2}, {"top_p", &r.sampling.TopP, 1}} {
		if f := m.read(x.name, x.v, fault.Fixed("a number")); f != nil {
			return f
		}
		if !(*x.v >= 0 && *x.v <= x.high) {
			return fault.New(fault.OutOfRange, fault.Field(x.name), fault.Num(0), fault.Num(x.high))
		}
	}
	seed, _, f := m.integer("seed", math.MinInt64, math.MaxInt64)
	r.sampling.Seed = uint64(seed)
	return f
}

func (r *request) stop(raw []byte) *fault.Error {
	if null(raw) {
		return nil
	}
	var list []string
	var one string
	if json.Unmarshal(raw, &one) == nil {
		list = []string{one}
	} else if json.Unmarshal(raw, &list) != nil {
		return fault.New(fault.WrongType, fault.Field("stop"), fault.Fixed("a string or a list of strings"))
	}
	if len(list) > maxStops {
		return fault.New(fault.TooManyValues, fault.Field("stop"), fault.Int(maxStops))
	}
	for _, s := range list {
		if len(s) == 0 || len(s) > maxStopBytes {
			return fault.New(fault.OutOfRange, fault.Field("stop"), fault.Int(1), fault.Int(maxStopBytes))
		}
		r.stops = append(r.stops, []byte(s))
	}
	return nil
}

// limit is the most tokens that one attempt may need at this worker: what fits
// the window, the running pool, and one notice (H-1).
func (w *Worker) limit() int {
	return min(w.cfg.Window, w.capacity(), wire.MaxDigests*w.cfg.PageTokens)
}

// capacity is the tokens that the pool can hold for one attempt, whatever is
// pinned for others.
func (w *Worker) capacity() int { return (w.cfg.Pages - w.cfg.PrefixCache) * w.cfg.PageTokens }

// judge is the door's verdict on a well-formed leg, before any allocation (H-1).
func (w *Worker) judge(r *request) {
	limit := w.limit()
	switch {
	case r.count > limit:
		r.code, r.limit = handoff.TooLong, limit
	case r.count+r.maxTokens > limit && w.cfg.Role == wire.RoleDecode:
		r.code, r.limit = handoff.NoRoom, limit
	default:
		r.hashes = chain(r.tokens, w.cfg.PageTokens)
	}
}

// over is a number for people of what was over a limit. A leg that was refused by
// its peer knows the peer's limit, and of its own numbers perhaps none that is
// over it.
func over(n, limit int) fault.Arg {
	if n > limit {
		return fault.Int(int64(n))
	}
	return fault.AtLeast(int64(limit) + 1)
}

// faultOf is what people see of a verdict.
func faultOf(v verdict, maxTokens int) *fault.Error {
	switch v.Code {
	case handoff.TooLong:
		return fault.New(fault.TooLong, over(v.Tokens, v.Limit), fault.Int(int64(v.Limit)))
	case handoff.NoRoom:
		return fault.New(fault.PoolExceeded, over(v.Tokens+maxTokens, v.Limit), fault.Int(int64(v.Limit)))
	case handoff.BadInput:
		return fault.New(fault.BadInput)
	case handoff.Disagree:
		return fault.New(fault.LegsDisagree)
	case handoff.Integrity:
		return fault.New(fault.Integrity)
	case handoff.Cancelled:
		return fault.New(fault.Cancelled)
	case handoff.Deadline:
		return fault.New(fault.Deadline)
	case handoff.PeerGone:
		return fault.New(fault.PeerGone)
	case handoff.Busy:
		return fault.New(fault.Busy)
	case handoff.Duplicate:
		return fault.New(fault.DuplicateAttempt)
	default:
		return fault.New(fault.EngineFailed)
	}
}
