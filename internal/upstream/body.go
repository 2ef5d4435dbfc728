package upstream

import (
	"bytes"

	"bulkhead.dev/bulkhead/internal/fault"
)

// Body is a client's body that was scanned: sound JSON, no repeated keys where anybody
// looks, a model, and a prompt that was measured. It refers to the body's bytes, which
// must not change while it is in use, and it holds no decoded prompt. What may be sent
// to an engine is not judged yet; see [Body.Judge].
type Body struct {
	// Endpoint is the path that was asked.
	Endpoint Endpoint
	// Model is the name as the client wrote it. Whether it exists is not judged here.
	Model string

	raw     []byte
	open    int     // the byte after the opening brace
	entries []entry // the members at top level, in order

	chat   talk
	prompt prompt
}

// entry is one member at top level.
type entry struct {
	span  // from the quote of the key to the end of the value
	name  []byte
	value span
}

// Limits of what is small by nature.
const (
	maxModelName = 256 // bytes
	maxEntries   = 256 // members at top level
)

// Scan reads a client's body for an endpoint, strictly and once, whatever engine it may
// be meant for (G-1, G-4): the text must be sound JSON in UTF-8, at most 64 deep, with
// no key twice at top level, in a message or in a part of one, no reserved key inside a
// message, and a model and a prompt. The error is ready for the client but for its id.
func Scan(e Endpoint, body []byte) (*Body, *fault.Error) {
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return nil, fault.New(fault.ByteOrderMark)
	}
	b := &Body{Endpoint: e, raw: body, entries: make([]entry, 0, 16)}
	s := scanner{reader: reader{lexer: lexer{b: body}}, body: b}
	if !s.top() {
		return nil, s.failure()
	}
	s.space()
	if s.i != len(body) {
		return nil, fault.New(fault.TrailingBytes, fault.Int(int64(s.i)))
	}
	if err := s.complete(); err != nil {
		return nil, err
	}
	return b, nil
}

// scanner walks over one body.
type scanner struct {
	reader
	body    *Body
	modeled bool
	message int
	part    int
	object  int // number of the inspected object at hand, over the whole body
	mid     []member
}

// top scans the object at top level.
func (s *scanner) top() bool {
	if s.peek() != '{' {
		if _, ok := s.value(0); !ok {
			return false
		}
		return s.refuse(fault.WrongType, fault.Field("body"), fault.Fixed("a JSON object"))
	}
	s.body.open = s.i + 1
	return s.reader.object(0, func(key str) bool {
		b := s.body
		name := decode(s.b, key)
		for i := range b.entries {
			if bytes.Equal(b.entries[i].name, name) {
				return s.refuse(fault.RepeatedField, fault.Field(string(name)))
			}
		}
		if len(b.entries) >= maxEntries {
			return s.refuse(fault.TooManyValues, fault.Field("body"), fault.Int(maxEntries))
		}
		s.space()
		from := s.i
		ok := false
		switch {
		case string(name) == "model":
			ok = s.model()
		case string(name) == "messages" && b.Endpoint == Chat:
			ok = s.messages()
		case string(name) == "prompt" && b.Endpoint == Completions:
			ok = s.promptField()
		default:
			_, ok = s.value(1)
		}
		b.entries = append(b.entries, entry{span{key.raw.from - 1, s.i}, name, span{from, s.i}})
		return ok
	})
}

// model scans the name of the model.
func (s *scanner) model() bool {
	at := fault.Field("model")
	name, ok := s.text(at)
	if !ok {
		return false
	}
	if name.size > maxModelName {
		return s.refuse(fault.ModelNotFound, at)
	}
	s.modeled = true
	s.body.Model = string(decode(s.b, name))
	return true
}

// complete checks what only the whole body can tell.
func (s *scanner) complete() *fault.Error {
	b := s.body
	at, given, empty := fault.Field("messages"), b.chat.given, b.chat.text+b.chat.more == 0 && b.chat.media == 0
	if b.Endpoint == Completions {
		at, given, empty = fault.Field("prompt"), b.prompt.given, b.prompt.empty()
	}
	switch {
	case !s.modeled:
		return fault.New(fault.MissingField, fault.Field("model"))
	case !given:
		return fault.New(fault.MissingField, at)
	case empty:
		return fault.New(fault.EmptyPrompt, at)
	}
	return nil
}
