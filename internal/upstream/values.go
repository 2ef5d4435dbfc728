package upstream

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"bulkhead.dev/bulkhead/internal/fault"
)

// read reads the value of a field by its kind.
func (j *judge) read(f *field, at fault.Arg) bool {
	r := j.req
	switch f.kind {
	case kindModel, kindMessages, kindPrompt:
		return true // Scan has read it.
	case kindStream:
		on, ok := j.boolean(at)
		if on {
			r.Streaming = Streamed
		}
		return ok
	case kindStreamOptions:
		return j.streamOptions()
	case kindMax:
		if j.maxAt {
			return j.refuse(fault.ConflictingFields, at)
		}
		j.maxAt = true
		n, ok := j.integer(at, 1, math.MaxInt64)
		r.Max, r.maxName = Count{N: n, Known: ok}, f.name
		return ok
	case kindSeed:
		return j.seed(at)
	case kindStop:
		return j.stops(at)
	case kindN:
		n, ok := j.integer(at, 1, int64(j.p.MaxSequences))
		r.N = int(max(n, 1))
		return ok
	case kindPriority:
		n, ok := j.integer(at, math.MinInt32, math.MaxInt32)
		r.Priority = Count{N: n, Known: ok}
		return ok
	case kindSafety:
		v, ok := j.bounded(at, maxSafetyID)
		if ok {
			r.SafetyID = string(decode(j.b, v))
		}
		return ok
	case kindLogprobs:
		if j.isNumber() {
			r.Logprobs = true
			_, ok := j.integer(at, bound(f.low), bound(f.high))
			return ok
		}
		on, ok := j.boolean(at)
		r.Logprobs = on
		return ok
	case kindTools, kindFunctions, kindToolChoice, kindKeys, kindScalars, kindFormat:
		return j.inspected(f, at)
	default:
		return j.plain(f, at)
	}
}

// plain reads a value that says nothing to the gateway.
func (j *judge) plain(f *field, at fault.Arg) bool {
	switch f.kind {
	case kindBool:
		on, ok := j.boolean(at)
		if on && f.name == "echo" {
			j.req.Echo = true
		}
		return ok
	case kindInt:
		n, ok := j.integer(at, bound(f.low), bound(f.high))
		if f.name == "min_tokens" {
			j.req.ongoing = n > 0
		}
		return ok
	case kindNumber:
		return j.float(at, f.low, f.high)
	case kindShare:
		x, ok := j.anyFloat(at)
		if ok && !(x > 0 && x <= 1) {
			return j.refuse(fault.WrongType, at, fault.Fixed("a number above 0 and at most 1"))
		}
		return ok
	case kindText:
		_, ok := j.bounded(at, int(f.high))
		return ok
	case kindWords:
		v, ok := j.bounded(at, maxShort)
		if !ok {
			return false
		}
		if _, i := word(f.words, decode(j.b, v)); i < 0 && f.words != "" {
			return j.refuse(fault.WrongType, at, fault.Fixed("one of the words that this model knows for it"))
		}
		return true
	case kindEffort:
		if j.isNumber() && f.low < f.high {
			return j.float(at, f.low, f.high)
		}
		_, ok := j.bounded(at, maxShort)
		return ok
	case kindTokens:
		return j.list(at, int(f.high), func() bool {
			_, ok := j.integer(at, 0, math.MaxInt32)
			return ok
		})
	case kindTexts:
		one := func() bool { _, ok := j.bounded(at, maxPattern); return ok }
		if j.peek() == '"' {
			return one()
		}
		return j.list(at, int(f.high), one)
	case kindObject:
		if j.peek() != '{' {
			return j.wrong(at, fault.Fixed("an object"))
		}
		return j.capped(at, int(f.high))
	case kindOpaque:
		return j.capped(at, int(f.high))
	default:
		return j.constraint(f, at)
	}
}

// constraint reads a grammar or a schema.
func (j *judge) constraint(f *field, at fault.Arg) bool {
	j.constraints++
	switch f.kind {
	case kindGrammar:
		v, ok := j.bounded(at, j.p.MaxSchema)
		return ok && j.flat(span{v.raw.from - 1, v.raw.to + 1})
	case kindSchema:
		if c := j.peek(); c != '{' && c != '"' {
			return j.wrong(at, fault.Fixed("an object, or a string that holds one"))
		}
		j.req.Loose = true
		return j.capped(at, j.p.MaxSchema)
	default: // kindChoices
		from := j.i
		if !j.list(at, math.MaxInt32, func() bool { _, ok := j.text(at); return ok }) {
			return false
		}
		return j.notOver(at, j.i-from, j.p.MaxSchema)
	}
}

// within refuses a value that is longer than it may be, in bytes.
func (j *judge) notOver(at fault.Arg, size, limit int) bool {
	if limit > 0 && size > limit {
		return j.refuse(fault.ValueTooLong, at, fault.Int(int64(limit)))
	}
	return true
}

// bounded reads a string of at most limit bytes; 0: of any length.
func (j *judge) bounded(at fault.Arg, limit int) (str, bool) {
	v, ok := j.text(at)
	return v, ok && j.notOver(at, v.size, limit)
}

// capped reads any value of at most limit bytes; 0: of any length.
func (j *judge) capped(at fault.Arg, limit int) bool {
	v, ok := j.value(1)
	return ok && j.notOver(at, v.to-v.from, limit) && j.flat(v)
}

// maxNest is how deep brackets may nest inside a text.
const maxNest = 256

// flat refuses a value with a text whose brackets nest too deep, be it a grammar, a pattern
// of a schema, or a schema in a string. Whoever compiles one calls itself for each, and must
// not run out of its stack, for it serves others too.
func (j *judge) flat(v span) bool {
	if nests(j.b[v.from:v.to], 2) {
		return j.refuse(fault.TooDeep, fault.Int(maxNest))
	}
	return true
}

// nests says whether a text of a JSON value nests too deep; within is how often a text may
// hold JSON itself.
func nests(raw []byte, within int) bool {
	l := lexer{b: raw}
	for l.i < len(raw) {
		at := bytes.IndexByte(raw[l.i:], '"')
		if at < 0 {
			return false
		}
		l.i += at
		v, ok := l.str()
		if !ok {
			return false // a text need not hold JSON
		}
		if v.size <= maxNest {
			continue
		}
		text := decode(raw, v)
		if deep(text) || within > 0 && nests(text, within-1) {
			return true
		}
	}
	return false
}

// deep says whether brackets of any kind are open more than maxNest deep somewhere.
func deep(text []byte) bool {
	n := 0
	for _, c := range text {
		switch c {
		case '(', '[', '{':
			if n++; n > maxNest {
				return true
			}
		case ')', ']', '}':
			n = max(0, n-1)
		}
	}
	return false
}

// list reads a list of at most limit values.
func (j *judge) list(at fault.Arg, limit int, one func() bool) bool {
	if j.peek() != '[' {
		return j.wrong(at, fault.Fixed("a list"))
	}
	return j.array(1, func(i int) bool {
		if i >= limit {
			return j.refuse(fault.TooManyValues, at, fault.Int(int64(limit)))
		}
		return one()
	})
}

// stops reads the stop strings.
func (j *judge) stops(at fault.Arg) bool {
	one := func() bool {
		v, ok := j.text(at)
		if ok && (v.size == 0 || v.size > maxStop) {
			return j.refuse(fault.WrongType, at, fault.Fixed("a string, or strings, of 1 to 256 bytes"))
		}
		if ok {
			j.req.Stops = append(j.req.Stops, string(decode(j.b, v)))
		}
		return ok
	}
	if j.peek() == '[' {
		return j.list(at, maxStops, one)
	}
	return one()
}

// isOff scans the value of something that the engine cannot do, and takes it only if it
// says that it is not wanted.
func (j *judge) isOff(f *field, at fault.Arg) bool {
	from := j.peek()
	v, ok := j.value(1)
	if !ok {
		return false
	}
	raw := j.b[v.from:v.to]
	switch f.kind {
	case kindOne:
		if string(raw) != "1" {
			return j.refuse(fault.OutOfRange, at, fault.Int(1), fault.Int(1))
		}
		return true
	case kindFalse:
		ok = string(raw) == "false"
	case kindZero:
		x, err := strconv.ParseFloat(string(raw[:min(len(raw), maxNumber)]), 64)
		ok = err == nil && x == 0 && len(raw) <= maxNumber
	case kindEmpty:
		ok = isEmpty(raw) || string(raw) == `""` || f.words != "" && string(squeezed(raw)) == f.words
	case kindWord:
		word := strings.Trim(string(raw), `"`)
		ok = from == '"' && (word == "none" || word == "auto" || word == "default" || word != "" && word == f.words)
	case kindNoBool:
		ok = from == 't' || from == 'f'
	case kindPlain:
		ok = string(squeezed(raw)) == `{"type":"text"}`
	default:
		ok = false
	}
	if !ok {
		return j.refuse(fault.UnsupportedField, at)
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
