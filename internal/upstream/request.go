package upstream

import (
	"bytes"
	"math"
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
)

// Count is a number that a text did or did not give. The zero value is "not given",
// which is not zero.
type Count struct {
	N     int64
	Known bool
}

// Streaming says whether an answer is wanted piece by piece.
type Streaming uint8

const (
	// Whole: the answer in one body.
	Whole Streaming = iota
	// Streamed: the answer as server-sent events.
	Streamed
)

// Request is what a scanned body asks for. It refers to the body's bytes, which must
// not change while it is in use, and it holds no decoded prompt.
type Request struct {
	// Endpoint is the path that was asked.
	Endpoint Endpoint
	// Model is the name as the client wrote it.
	Model string
	// Streaming says how the answer is wanted.
	Streaming Streaming
	// UsageChunk says whether a streaming client asked for the usage chunk.
	UsageChunk bool
	// Max is the answer length asked for, in tokens.
	Max Count
	// Stops are the stop strings, decoded.
	Stops []string
	// Text is the length of the prompt's decoded text in bytes, over all messages.
	Text int64
	// Messages counts the messages; 1 for a completion.
	Messages int
	// Dropped names the fields that were taken and had no effect.
	Dropped []string

	body   []byte
	open   int // the byte after the opening brace
	seeded bool
	edits  []edit
	// stop is the value of the stop field, which only decode gets.
	stop span
}

// Limits of what is small by nature.
const (
	maxModelName = 256 // bytes
	maxStops     = 4
	maxStop      = 256 // bytes
	maxNumber    = 64  // bytes
)

// Scan reads a client's body for an endpoint, strictly and once (G-1, G-4). The error is
// ready for the client but for its id. Whether the model exists is not judged here.
func Scan(e Endpoint, body []byte) (*Request, *fault.Error) {
	s := scanner{lexer: lexer{b: body}, req: &Request{Endpoint: e, body: body}}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return nil, fault.New(fault.ByteOrderMark)
	}
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
	return s.req, nil
}

// scanner walks over one request.
type scanner struct {
	lexer
	req  *Request
	err  *fault.Error
	seen uint64 // bits of fields
	// maxAt says that a length was given, whose second spelling conflicts.
	maxAt   bool
	message int
	part    int
	top0    []member
	mid     []member
}

// refuse notes an error of meaning and stops the walk.
func (s *scanner) refuse(code fault.Code, args ...fault.Arg) bool {
	if s.err == nil {
		s.err = fault.New(code, args...)
	}
	return false
}

// failure says why the walk stopped.
func (s *scanner) failure() *fault.Error {
	at := fault.Int(int64(s.i))
	switch {
	case s.err != nil:
		return s.err
	case s.bad == badUTF8:
		return fault.New(fault.InvalidUTF8, at)
	case s.bad == badSurrogate:
		return fault.New(fault.LoneSurrogate, at)
	case s.bad == tooDeep:
		return fault.New(fault.TooDeep, fault.Int(maxDepth))
	default:
		return fault.New(fault.MalformedJSON, at)
	}
}

// complete checks what only the whole request can tell.
func (s *scanner) complete() *fault.Error {
	r := s.req
	prompt := fault.Field("messages")
	if r.Endpoint == Completions {
		prompt = fault.Field("prompt")
	}
	switch {
	case s.seen&1 == 0:
		return fault.New(fault.MissingField, fault.Field("model"))
	case r.Messages == 0 && s.seen&(1<<1|1<<2) == 0:
		return fault.New(fault.MissingField, prompt)
	case r.Text == 0:
		return fault.New(fault.EmptyPrompt, prompt)
	}
	return nil
}

// top scans the object at top level.
func (s *scanner) top() bool {
	if s.peek() != '{' {
		if _, ok := s.value(0); !ok {
			return false
		}
		return s.refuse(fault.WrongType, fault.Field("body"), fault.Fixed("a JSON object"))
	}
	s.req.open = s.i + 1
	ok := s.object(0, func(key str) bool {
		f, ok := s.find(key)
		if !ok {
			return false
		}
		keep, ok := s.field(f, fault.Field(f.name))
		s.top0 = append(s.top0, member{span{key.raw.from - 1, s.i}, keep})
		return ok
	})
	s.req.edits = cuts(s.req.edits, s.top0)
	return ok
}

// find looks a key up at top level, and refuses what may not be there or is there twice.
func (s *scanner) find(key str) (field, bool) {
	name := decode(s.b, key)
	for i := range fields {
		if string(name) != fields[i].name || fields[i].in&s.req.Endpoint == 0 {
			continue
		}
		if s.seen&(1<<i) != 0 {
			return field{}, s.refuse(fault.RepeatedField, fault.Field(fields[i].name))
		}
		s.seen |= 1 << i
		return fields[i], true
	}
	return field{}, s.unlisted(string(name), string(name))
}

// unlisted refuses a key that is on no list.
func (s *scanner) unlisted(name, path string) bool {
	for i := range reserved {
		if name == reserved[i].name {
			return s.refuse(fault.ReservedField, fault.Field(path), reserved[i].reason)
		}
	}
	return s.refuse(fault.UnknownField, fault.Field(path))
}

// field scans the value of a listed field and says whether its bytes stay.
func (s *scanner) field(f field, at fault.Arg) (keep, ok bool) {
	if s.peek() == 'n' {
		if !s.word("null") {
			return false, false
		}
		switch f.kind {
		case kindModel:
			return false, s.refuse(fault.WrongType, at, fault.Fixed("a string"))
		case kindMessages:
			return false, s.refuse(fault.WrongType, at, fault.Fixed("an array of messages"))
		case kindPrompt:
			return false, s.refuse(fault.WrongType, at, fault.Fixed("a string"))
		}
		return false, true
	}
	switch f.mode {
	case pass:
		return true, s.passed(f, at)
	case mapped:
		return false, s.mapped(f, at)
	case drop:
		if !s.dropped(f, at) {
			return false, false
		}
		s.req.Dropped = append(s.req.Dropped, f.name)
		return false, true
	default:
		return false, s.isOff(f, at)
	}
}

// passed scans a value whose bytes go to the legs.
func (s *scanner) passed(f field, at fault.Arg) bool {
	switch f.kind {
	case kindMessages:
		return s.messages(at)
	case kindPrompt:
		return s.prompt(at)
	case kindNumber:
		x, ok := s.float(at)
		if ok && !(x >= f.low && x <= f.high) {
			return s.refuse(fault.OutOfRange, at, fault.Num(f.low), fault.Num(f.high))
		}
		return ok
	case kindShare:
		x, ok := s.float(at)
		if ok && !(x > 0 && x <= 1) {
			return s.refuse(fault.WrongType, at, fault.Fixed("a number above 0 and at most 1"))
		}
		return ok
	case kindSeed:
		s.req.seeded = true
		_, ok := s.integer(at, math.MinInt64)
		return ok
	default:
		return s.stopField(at)
	}
}

// mapped scans a value that the gateway writes anew for the legs.
func (s *scanner) mapped(f field, at fault.Arg) bool {
	switch f.kind {
	case kindModel:
		name, ok := s.text(at)
		if ok && name.size > maxModelName {
			return s.refuse(fault.ModelNotFound, at)
		}
		if ok {
			s.req.Model = string(decode(s.b, name))
		}
		return ok
	case kindStream:
		on, ok := s.boolean(at)
		if on {
			s.req.Streaming = Streamed
		}
		return ok
	case kindStreamOptions:
		return s.streamOptions(at)
	default:
		if s.maxAt {
			return s.refuse(fault.ConflictingFields, at)
		}
		s.maxAt = true
		n, ok := s.integer(at, 1)
		s.req.Max = Count{N: n, Known: ok}
		return ok
	}
}

// dropped scans a value that has no effect.
func (s *scanner) dropped(f field, at fault.Arg) bool {
	if f.kind == kindText {
		_, ok := s.text(at)
		return ok
	}
	if s.peek() != '{' {
		return s.wrong(at, fault.Fixed("an object"))
	}
	_, ok := s.value(1)
	return ok
}

// isOff scans the value of something that the model cannot do, and takes it only if it
// says that it is not wanted.
func (s *scanner) isOff(f field, at fault.Arg) bool {
	from := s.peek()
	v, ok := s.value(1)
	if !ok {
		return false
	}
	raw := s.b[v.from:v.to]
	switch f.kind {
	case kindOne:
		if string(raw) != "1" {
			return s.refuse(fault.OutOfRange, at, fault.Int(1), fault.Int(1))
		}
		return true
	case kindFalse:
		ok = string(raw) == "false"
	case kindZero:
		x, err := strconv.ParseFloat(string(raw[:min(len(raw), maxNumber)]), 64)
		ok = err == nil && x == 0 && len(raw) <= maxNumber
	case kindEmpty:
		ok = (from == '[' || from == '{' || from == '"') && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0 &&
			(from != '"' || len(raw) == 2)
	case kindWord:
		ok = string(raw) == `"none"` || string(raw) == `"auto"` || string(raw) == `"default"`
	case kindBool:
		ok = string(raw) == "true" || string(raw) == "false"
	case kindFormat:
		ok = string(squeezed(raw)) == `{"type":"text"}`
	}
	if !ok {
		return s.refuse(fault.UnsupportedField, at)
	}
	return true
}

// squeezed is a short raw value without white space; a long one stays as it is.
func squeezed(raw []byte) []byte {
	if len(raw) > maxNumber {
		return raw
	}
	return bytes.Join(bytes.Fields(raw), nil)
}

// wrong refuses the next value for its type, if it is well formed.
func (s *scanner) wrong(at, want fault.Arg) bool {
	if _, ok := s.value(1); !ok {
		return false
	}
	return s.refuse(fault.WrongType, at, want)
}

// text scans a string.
func (s *scanner) text(at fault.Arg) (str, bool) {
	if s.peek() != '"' {
		return str{}, s.wrong(at, fault.Fixed("a string"))
	}
	return s.str()
}

// boolean scans true or false.
func (s *scanner) boolean(at fault.Arg) (value, ok bool) {
	switch s.peek() {
	case 't':
		return true, s.word("true")
	case 'f':
		return false, s.word("false")
	default:
		return false, s.wrong(at, fault.Fixed("true or false"))
	}
}

// isNumber says whether a number is next; the rest of it may still be malformed.
func (s *scanner) isNumber() bool {
	c := s.peek()
	return c == '-' || c >= '0' && c <= '9'
}

// float scans a number.
func (s *scanner) float(at fault.Arg) (float64, bool) {
	if !s.isNumber() {
		return 0, s.wrong(at, fault.Fixed("a number"))
	}
	n, _, ok := s.number()
	if !ok {
		return 0, false
	}
	raw := s.b[n.from:n.to]
	if len(raw) > maxNumber {
		return 0, s.refuse(fault.WrongType, at, fault.Fixed("a number of ordinary length"))
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		// Only the range can be wrong: infinity is outside of every range we know.
		return x, true
	}
	return x, true
}

// integer scans a whole number of at least low.
func (s *scanner) integer(at fault.Arg, low int64) (int64, bool) {
	if !s.isNumber() {
		return 0, s.wrong(at, fault.Fixed("a whole number"))
	}
	n, whole, ok := s.number()
	if !ok {
		return 0, false
	}
	if !whole {
		return 0, s.refuse(fault.WrongType, at, fault.Fixed("a whole number"))
	}
	raw := s.b[n.from:n.to]
	x, err := strconv.ParseInt(string(raw[:min(len(raw), maxNumber)]), 10, 64)
	if err != nil || x < low {
		return 0, s.refuse(fault.OutOfRange, at, fault.Int(low), fault.Int(math.MaxInt64))
	}
	return x, true
}

// streamOptions scans the object of that name. It is inspected: its keys are listed.
func (s *scanner) streamOptions(at fault.Arg) bool {
	if s.peek() != '{' {
		return s.wrong(at, fault.Fixed("an object"))
	}
	seen := [2]bool{}
	return s.object(1, func(key str) bool {
		name := string(decode(s.b, key))
		path := "stream_options." + name
		which := 0
		switch name {
		case "include_usage":
		case "include_obfuscation":
			which = 1
		default:
			return s.unlisted(name, path)
		}
		if seen[which] {
			return s.refuse(fault.RepeatedField, fault.Field(path))
		}
		seen[which] = true
		if s.peek() == 'n' {
			return s.word("null")
		}
		on, ok := s.boolean(fault.Field(path))
		if ok && which == 0 {
			s.req.UsageChunk = on
		} else if ok && on {
			return s.refuse(fault.UnsupportedField, fault.Field(path))
		}
		return ok
	})
}

// stopField scans the stop strings.
func (s *scanner) stopField(at fault.Arg) bool {
	s.space()
	from := s.i
	one := func() bool {
		v, ok := s.text(at)
		if ok && (v.size == 0 || v.size > maxStop) {
			return s.refuse(fault.WrongType, at, fault.Fixed("a string, or strings, of 1 to 256 bytes"))
		}
		if ok {
			s.req.Stops = append(s.req.Stops, string(decode(s.b, v)))
		}
		return ok
	}
	ok := false
	if s.peek() == '[' {
		ok = s.array(1, func(i int) bool {
			if i >= maxStops {
				return s.refuse(fault.TooManyValues, at, fault.Int(maxStops))
			}
			return one()
		})
	} else {
		ok = one()
	}
	s.req.stop = span{from, s.i}
	return ok
}
