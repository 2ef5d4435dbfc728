package upstream

import (
	"bytes"
	"errors"
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
)

// ErrMalformed says that a leg's text is not what the dialect allows.
var ErrMalformed = errors.New("upstream: malformed answer")

// Done is the data of the event that ends a stream.
const Done = "[DONE]"

// Reply is what one answer, or one chunk of a stream, says. What it does not say is
// unknown: an empty ID or Finish, a Count that is not known, a Text that is not there.
type Reply struct {
	// ID is the id that the leg claims to answer.
	ID string
	// Prompt, Completion and Total are the usage, in tokens.
	Prompt, Completion, Total Count
	// Listed says whether the reply has choices at all; Choices is how many.
	Listed  bool
	Choices int
	// Index is the index of the first choice.
	Index Count
	// Finish is the finish reason of the first choice.
	Finish string
	// HasText says that the first choice has a text, even an empty one.
	HasText bool
	// Failure is set if the reply carries an error, whatever its status was.
	Failure *fault.Error

	body    []byte
	members []member
	edits   []edit
	id      span
	model   span
	usage   int // index in members, or -1
	text    str
}

// ParseAnswer reads a whole answer.
func ParseAnswer(e Endpoint, body []byte) (Reply, error) { return parse(e, "message", body) }

// ParseChunk reads the data of one event of a stream.
func ParseChunk(e Endpoint, body []byte) (Reply, error) { return parse(e, "delta", body) }

// Text returns the text of the first choice, decoded. It may refer to the body.
func (r *Reply) Text() []byte {
	if !r.HasText {
		return nil
	}
	return decode(r.body, r.text)
}

// IsUsageChunk says whether the reply is the chunk that carries only the usage.
func (r *Reply) IsUsageChunk() bool { return r.Listed && r.Choices == 0 }

// Usage says what happens to the usage of a rewritten reply.
type Usage uint8

const (
	// StripUsage cuts it out: the client did not ask.
	StripUsage Usage = iota
	// KeepUsage leaves it.
	KeepUsage
)

// Rewrite appends the reply as the client gets it: under its public id and the model
// name that the client used, without members that are on no list. Other bytes stay.
func (r *Reply) Rewrite(dst []byte, id, model string, u Usage) []byte {
	edits := append(make([]edit, 0, len(r.edits)+4), r.edits...)
	if r.id.to > 0 {
		edits = append(edits, edit{r.id, quoted(id)})
	}
	if r.model.to > 0 {
		edits = append(edits, edit{r.model, quoted(model)})
	}
	members := append(make([]member, 0, len(r.members)), r.members...)
	if r.usage >= 0 && u == StripUsage {
		members[r.usage].keep = false
	}
	return apply(dst, r.body, cuts(edits, members))
}

func quoted(s string) string { return string(appendString(nil, s)) }

// parse reads a reply; inner is the name of the object that holds the text of a chat.
func parse(e Endpoint, inner string, body []byte) (Reply, error) {
	p := replyScanner{lexer: lexer{b: body}, chat: e == Chat, inner: inner, r: Reply{body: body, usage: -1}}
	if !p.top() {
		return Reply{}, ErrMalformed
	}
	p.space()
	if p.i != len(body) {
		return Reply{}, ErrMalformed
	}
	return p.r, nil
}

// replyScanner walks over one reply. Objects that are inspected may not repeat a key
// that is read.
type replyScanner struct {
	lexer
	r     Reply
	chat  bool
	inner string
}

// once notes a bit and fails if it was there.
func (p *replyScanner) once(seen *uint, bit int) bool {
	if *seen&(1<<bit) != 0 {
		return p.fail(malformed)
	}
	*seen |= 1 << bit
	return true
}

func (p *replyScanner) top() bool {
	seen := uint(0)
	return p.object(0, func(key str) bool {
		from := key.raw.from - 1
		keep, ok := p.topMember(string(decode(p.b, key)), &seen)
		p.r.members = append(p.r.members, member{span{from, p.i}, keep})
		return ok
	})
}

// topMember reads one member at top level and says whether clients may see it.
func (p *replyScanner) topMember(name string, seen *uint) (keep, ok bool) {
	switch name {
	case "id":
		v, ok := p.maybeString()
		if ok && v.raw.to > 0 {
			p.r.ID = string(decode(p.b, v))
			p.r.id = span{v.raw.from - 1, v.raw.to + 1}
		}
		return true, ok && p.once(seen, 0)
	case "model":
		v, ok := p.maybeString()
		if ok && v.raw.to > 0 {
			p.r.model = span{v.raw.from - 1, v.raw.to + 1}
		}
		return true, ok && p.once(seen, 1)
	case "usage":
		p.r.usage = len(p.r.members)
		return true, p.usage() && p.once(seen, 2)
	case "choices":
		return true, p.choices() && p.once(seen, 3)
	case "error":
		v, ok := p.value(1)
		if raw := p.b[v.from:v.to]; ok && string(raw) != "null" {
			p.failed(raw)
		}
		return false, ok && p.once(seen, 4)
	case "object":
		v, ok := p.value(1)
		if ok && string(p.b[v.from:v.to]) == `"error"` {
			p.failed(nil)
		}
		return true, ok && p.once(seen, 5)
	case "created", "system_fingerprint":
		_, ok := p.value(1)
		return true, ok
	default:
		_, ok := p.value(1)
		return false, ok
	}
}

// failed notes an error inside a reply.
func (p *replyScanner) failed(object []byte) {
	if p.r.Failure == nil || p.r.Failure.Code == fault.EngineFailed {
		p.r.Failure = fault.Parse(0, bytes.Join([][]byte{[]byte(`{"error":`), object, []byte(`}`)}, nil))
	}
}

// maybeString scans a string or null; the span of null is empty.
func (p *replyScanner) maybeString() (str, bool) {
	switch p.peek() {
	case '"':
		return p.str()
	case 'n':
		return str{}, p.word("null")
	default:
		return str{}, p.fail(malformed)
	}
}

// count scans a whole number of at least 0, or null.
func (p *replyScanner) count() (Count, bool) {
	if p.peek() == 'n' {
		return Count{}, p.word("null")
	}
	s, whole, ok := p.number()
	if !ok || !whole {
		return Count{}, p.fail(malformed)
	}
	n, err := strconv.ParseInt(string(p.b[s.from:s.to]), 10, 64)
	if err != nil || n < 0 {
		return Count{}, p.fail(malformed)
	}
	return Count{N: n, Known: true}, true
}

func (p *replyScanner) usage() bool {
	if p.peek() == 'n' {
		return p.word("null")
	}
	seen := uint(0)
	return p.object(1, func(key str) bool {
		into, bit := (*Count)(nil), 0
		switch string(decode(p.b, key)) {
		case "prompt_tokens":
			into = &p.r.Prompt
		case "completion_tokens":
			into, bit = &p.r.Completion, 1
		case "total_tokens":
			into, bit = &p.r.Total, 2
		default:
			_, ok := p.value(2)
			return ok
		}
		n, ok := p.count()
		*into = n
		return ok && p.once(&seen, bit)
	})
}

func (p *replyScanner) choices() bool {
	p.r.Listed = true
	return p.array(1, func(i int) bool {
		p.r.Choices++
		if i > 0 {
			_, ok := p.value(2)
			return ok
		}
		return p.choice()
	})
}

// choice reads the first choice.
func (p *replyScanner) choice() bool {
	var members []member
	seen := uint(0)
	ok := p.object(2, func(key str) bool {
		from, keep, ok := key.raw.from-1, true, false
		switch name := string(decode(p.b, key)); {
		case name == "index":
			p.r.Index, ok = p.count()
			ok = ok && p.once(&seen, 0)
		case name == "finish_reason":
			var v str
			v, ok = p.maybeString()
			p.r.Finish = string(decode(p.b, v))
			ok = ok && p.once(&seen, 1)
		case p.chat && name == p.inner:
			ok = p.message() && p.once(&seen, 2)
		case !p.chat && name == "text":
			p.r.text, ok = p.str()
			p.r.HasText = ok
			ok = ok && p.once(&seen, 2)
		case name == "logprobs":
			_, ok = p.value(3)
		default:
			keep = false
			_, ok = p.value(3)
		}
		members = append(members, member{span{from, p.i}, keep})
		return ok
	})
	p.r.edits = cuts(p.r.edits, members)
	return ok
}

// message reads the message or delta of a choice.
func (p *replyScanner) message() bool {
	var members []member
	seen := uint(0)
	ok := p.object(3, func(key str) bool {
		from, keep, ok := key.raw.from-1, true, false
		switch string(decode(p.b, key)) {
		case "content":
			var v str
			v, ok = p.maybeString()
			if v.raw.to > 0 {
				p.r.text, p.r.HasText = v, true
			}
			ok = ok && p.once(&seen, 0)
		case "role":
			_, ok = p.value(4)
		default:
			keep = false
			_, ok = p.value(4)
		}
		members = append(members, member{span{from, p.i}, keep})
		return ok
	})
	p.r.edits = cuts(p.r.edits, members)
	return ok
}
