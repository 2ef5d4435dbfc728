package upstream

import (
	"slices"
	"strconv"
	"unicode/utf8"
)

// Control is what the gateway writes into the calls of one request. Every value is the
// gateway's own; none comes from a client.
type Control struct {
	// ID is the internal id of the attempt, which every answer must carry where the
	// engine lets us choose it (G-12).
	ID string
	// Model is the served name of the model (G-13).
	Model string
	// MaxTokens is the answer's length (G-2). It must be positive, but for a hosted API,
	// which is sent none if it is 0.
	MaxTokens int64
	// Seed is used on both legs of a [Bulkhead] pair if the client gave none.
	Seed int64
	// Salt separates the prefix cache (G-7); empty: none is sent.
	Salt string
	// Priority is sent to the engines that know one, if it is known.
	Priority Count
	// Sequence is the one that the call is for; -1: all of them, as the client wrote
	// them, for an engine whose [Lists] are [Native].
	Sequence int
	// Stream asks decode for a stream although the client wants its answer whole. Its
	// zero value means as the client asked.
	Stream Streaming

	// Host and Port name the prefill node for decode (SGLang's shape).
	Host string
	Port int
	// Room is where the legs meet: 1 to 2^63-1, random, never used twice.
	Room int64

	// TransferID is where the legs of Mooncake meet: 128 random bits, never used twice.
	TransferID string
	// RemoteAddr is the URL of prefill's bootstrap server, RemoteEngine its engine's id.
	RemoteAddr, RemoteEngine string

	// Handle is what prefill's answer said, for decode (vLLM over NIXL, G-11).
	Handle *Handle

	// SafetyID is the tenant's pseudonym for a hosted API; empty: none is sent.
	SafetyID string
}

// Header is one header of a call.
type Header struct{ Name, Value string }

// Call is one HTTP request to an engine: a POST of JSON.
type Call struct {
	// Path is that of the engine's URL.
	Path string
	// Headers are those that the dialect needs besides Content-Type.
	Headers []Header
	Body    []byte
}

// Leg returns the call for one server of a dialect, the one that the request was judged
// for. The body is the client's own, with what is controlled cut out and the control
// fields written in front, in one pass (G-4). Prefill is asked for one token and never
// for a stream (G-3).
func (r *Request) Leg(d Dialect, role Role, c Control) Call {
	call, edits := r.call(d, role, c)
	call.Body = r.joined(d, role, c, edits)
	return call
}

// Limits of a body in pieces.
const (
	// maxPieces is the most that there are: more cost more than a copy.
	maxPieces = 64
	// small is the longest body of a client, in bytes, that comes in one piece: a call that
	// lies in memory whole leaves in one write with its headers.
	small = 16 << 10
)

// Pieces returns the call that [Request.Leg] returns, with its body in pieces that lie
// one behind the other, and nothing in Call.Body: most of them are parts of the client's
// own body, which is not copied and must not change while they are in use. A body that
// is small, or is cut in many places, comes in one piece that was copied.
func (r *Request) Pieces(d Dialect, role Role, c Control) (call Call, pieces [][]byte) {
	call, edits := r.call(d, role, c)
	if len(r.body.raw) <= small || len(edits) > maxPieces {
		return call, [][]byte{r.joined(d, role, c, edits)}
	}
	return call, r.apart(d, role, c, edits)
}

// joined is a body in one piece.
func (r *Request) joined(d Dialect, role Role, c Control, edits []edit) []byte {
	return apply(r.front(make([]byte, 0, r.size(edits)+c.room(r)), d, role, c), r.body.raw, r.body.open, edits)
}

// apart is a body in pieces.
func (r *Request) apart(d Dialect, role Role, c Control, edits []edit) [][]byte {
	raw, from := r.body.raw, r.body.open
	pieces := make([][]byte, 0, 2*len(edits)+2)
	pieces = append(pieces, r.front(make([]byte, 0, c.room(r)), d, role, c))
	for i := range edits {
		e := &edits[i]
		pieces = append(pieces, raw[from:e.from:e.from])
		if e.with != "" {
			pieces = append(pieces, []byte(e.with))
		}
		from = e.to
	}
	return append(pieces, raw[from:len(raw):len(raw)])
}

// call makes a call but for its body, and the edits that make its body.
func (r *Request) call(d Dialect, role Role, c Control) (Call, []edit) {
	edits := r.edits
	if role == PrefillRole {
		edits = r.prefill
	}
	call := Call{Path: r.Endpoint.Path()}
	switch d {
	case VLLM, VLLMNixl, VLLMMooncake:
		call.Headers = []Header{{"X-Request-Id", c.ID}}
	case OpenAI:
		call.Headers = []Header{{"X-Client-Request-Id", c.ID}}
	}
	return call, r.sole(c.Sequence, edits)
}

// front writes the beginning of a body: all that stands before the client's first member.
func (r *Request) front(b []byte, d Dialect, role Role, c Control) []byte {
	b = append(b, r.body.raw[:r.body.open]...)
	b = r.control(b, d, role, c)
	return append(b, ',')
}

// sole adds the edits that leave one prompt of a list.
func (r *Request) sole(sequence int, edits []edit) []edit {
	p := &r.body.prompt
	if p.list.to == 0 || sequence < 0 && r.Prompts > 1 {
		return edits
	}
	it := r.item(sequence)
	at, _ := slices.BinarySearchFunc(edits, p.list.from, func(e edit, from int) int { return e.from - from })
	all := make([]edit, 0, len(edits)+2)
	all = append(all, edits[:at]...)
	all = append(all, edit{span: span{p.list.from, it.from}}, edit{span: span{it.to, p.list.to}})
	return append(all, edits[at:]...)
}

// size is what is left of the client's body after the edits.
func (r *Request) size(edits []edit) int {
	n := len(r.body.raw)
	for i := range edits {
		n += len(edits[i].with) - (edits[i].to - edits[i].from)
	}
	return n
}

// room is at least what the control fields take.
func (c *Control) room(r *Request) int {
	const longest = 6 // bytes of a character as it is written
	n := 768 + r.body.open + longest*(len(c.ID)+len(c.Model)+len(c.Salt)+len(c.Host)+len(c.TransferID)+len(c.RemoteAddr)+len(c.RemoteEngine)+len(c.SafetyID))
	if c.Handle != nil {
		n += c.Handle.Size()
	}
	for i := range r.writes {
		w := &r.writes[i]
		n += len(w.before) + w.raw.to - w.raw.from + len(w.text) + len(w.after) + 1
	}
	return n
}

// control writes the control fields, the first of them without a comma in front.
func (r *Request) control(b []byte, d Dialect, role Role, c Control) []byte {
	if d == Bulkhead || d == SGLangPD || d == SGLang {
		b = appendMember(b, "rid", c.ID)
		if d != SGLang {
			b = appendMember(b, "bootstrap_host", c.Host)
			b = appendInt(b, "bootstrap_port", int64(c.Port))
			b = appendInt(b, "bootstrap_room", c.Room)
		}
	}
	b = appendMember(b, "model", c.Model)
	b = r.seed(b, d, c)
	if d.Traits().Salted && c.Salt != "" {
		b = appendMember(b, "cache_salt", c.Salt)
	}
	if c.Priority.Known && d != Bulkhead && d != LlamaCPP && d != OpenAI {
		b = appendInt(b, "priority", c.Priority.N)
	}
	switch d {
	case LlamaCPP:
		b = append(b, `,"cache_prompt":false`...)
	case OpenAI:
		if c.SafetyID != "" {
			b = appendMember(b, "safety_identifier", c.SafetyID)
		}
	case VLLMNixl, VLLMMooncake:
		b = transfer(b, d, role, c)
	}
	if c.Sequence < 0 && r.N > 1 {
		b = appendInt(b, "n", int64(r.N))
	}
	b = r.length(b, d, role, c)
	for i := range r.writes {
		w := &r.writes[i]
		b = append(b, ',')
		b = append(b, w.before...)
		b = append(b, r.body.raw[w.raw.from:w.raw.to]...)
		b = append(b, w.text...)
		b = append(b, w.after...)
	}
	return b
}

// seed writes the seed where the client's own bytes do not say it.
func (r *Request) seed(b []byte, d Dialect, c Control) []byte {
	base := c.Seed
	if r.reseed {
		base = r.Seed.N
	} else if r.Seed.Known || d != Bulkhead {
		return b
	}
	// Equal seeds would make the answers of one prompt equal. It may wrap around.
	return appendInt(b, "seed", base+int64(max(c.Sequence, 0)%r.N))
}

// transfer writes vLLM's hand-off.
func transfer(b []byte, d Dialect, role Role, c Control) []byte {
	b = append(b, `,"kv_transfer_params":`...)
	switch {
	case role != PrefillRole && d == VLLMNixl && c.Handle != nil:
		return c.Handle.AppendTo(b)
	case role != PrefillRole && d == VLLMNixl:
		// Without a handle decode would compute the prompt itself, in silence. This is
		// refused by the engine.
		return append(b, `"none"`...)
	case role != PrefillRole:
		b = append(b, `{"do_remote_decode":false,"do_remote_prefill":true`...)
		b = appendMember(b, "remote_bootstrap_addr", c.RemoteAddr)
		b = appendMember(b, "remote_engine_id", c.RemoteEngine)
	default:
		b = append(b, `{"do_remote_decode":true,"do_remote_prefill":false`...)
	}
	if d == VLLMMooncake {
		b = appendMember(b, "transfer_id", c.TransferID)
	}
	return append(b, '}')
}

// length writes how long the answer may be and how it is to come. A stream is asked for
// with its counts, on every chunk where the engine knows how: so it states its prompt's
// before its first byte is released (G-3).
func (r *Request) length(b []byte, d Dialect, role Role, c Control) []byte {
	if role == PrefillRole {
		if d == VLLMNixl || d == VLLMMooncake {
			// Mooncake hands over only what ended by its length.
			b = append(b, `,"ignore_eos":true`...)
		}
		if d == SGLangPD && r.ongoing {
			// Decode does not take it back if prefill's one token ends the answer.
			b = append(b, `,"min_tokens":1`...)
		}
		return append(b, `,"max_tokens":1,"stream":false`...)
	}
	name := "max_tokens"
	if d == OpenAI && r.maxName != "" {
		name = r.maxName
	}
	if c.MaxTokens > 0 || d != OpenAI {
		b = appendInt(b, name, c.MaxTokens)
	}
	switch {
	case r.Streaming == Whole && c.Stream == Whole:
		return append(b, `,"stream":false`...)
	case d == LlamaCPP || d == OpenAI:
		return append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	default:
		return append(b, `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`...)
	}
}

// comma appends a comma unless a brace is at the end.
func comma(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] == '{' {
		return b
	}
	return append(b, ',')
}

// appendMember appends a member whose value is a string.
func appendMember(b []byte, name, value string) []byte {
	b = append(comma(b), '"')
	b = append(b, name...)
	b = append(b, `":`...)
	return appendString(b, value)
}

// appendInt appends a member whose value is a whole number.
func appendInt(b []byte, name string, n int64) []byte {
	b = append(comma(b), '"')
	b = append(b, name...)
	b = append(b, `":`...)
	return strconv.AppendInt(b, n, 10)
}

// appendString appends s as a JSON string. Bytes that are no UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return append(b, '"')
}
