package worker

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"bulkhead.dev/bulkhead/internal/fault"
)

// maxDepth is how deep arrays and objects of a body may nest.
const maxDepth = 64

// members are the fields of one JSON object by their exact, unescaped names. The
// values are slices of the body.
type members map[string][]byte

// parse reads a body as one JSON object. It is stricter than encoding/json where
// that would let two readers see two requests: names are case-exact and given
// once, text is valid UTF-8, and nothing follows the object.
func parse(data []byte) (members, *fault.Error) {
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return nil, fault.New(fault.ByteOrderMark)
	}
	if !utf8.Valid(data) {
		return nil, fault.New(fault.InvalidUTF8, fault.Int(int64(firstInvalid(data))))
	}
	if f := scan(data); f != nil {
		return nil, f
	}
	if !json.Valid(data) {
		return nil, malformed(data)
	}
	data = bytes.TrimLeft(data, " \t\r\n")
	if data[0] != '{' {
		return nil, fault.New(fault.MalformedJSON, fault.Int(0))
	}
	return object(data)
}

func firstInvalid(data []byte) int {
	at := 0
	for at < len(data) {
		r, n := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return at
}

// malformed says where JSON stops being valid, or that something follows it.
func malformed(data []byte) *fault.Error {
	dec := json.NewDecoder(bytes.NewReader(data))
	var skip json.RawMessage
	if dec.Decode(&skip) != nil {
		return fault.New(fault.MalformedJSON, fault.Int(dec.InputOffset()))
	}
	return fault.New(fault.TrailingBytes, fault.Int(dec.InputOffset()))
}

// scan bounds the depth, before anything recurses, and refuses halves of
// surrogate pairs, which encoding/json would rewrite.
func scan(data []byte) *fault.Error {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return fault.New(fault.TooDeep, fault.Int(maxDepth))
			}
		case '}', ']':
			depth--
		case '"':
			end := quoted(data[i:])
			if at := loneSurrogate(data[i : i+end]); at >= 0 {
				return fault.New(fault.LoneSurrogate, fault.Int(int64(i+at)))
			}
			i += end - 1
		}
	}
	return nil
}

// quoted is the length of the string that b begins with, quotes included; all
// of b if it does not end.
func quoted(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// loneSurrogate is where half a surrogate pair stands escaped in a quoted
// string, or -1. What is no valid escape is left to the JSON check.
func loneSurrogate(s []byte) int {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		switch u := unit(s[i:]); {
		case u >= 0xD800 && u < 0xDC00 && low(unit(s[min(i+6, len(s)):])):
			i += 11
		case u >= 0xD800 && u < 0xE000:
			return i
		case u >= 0:
			i += 5
		default:
			i++
		}
	}
	return -1
}

func low(u int64) bool { return u >= 0xDC00 && u < 0xE000 }

// unit is the UTF-16 unit of the \u escape that s begins with, or -1.
func unit(s []byte) int64 {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	u, err := strconv.ParseUint(string(s[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(u)
}

// maxMembers bounds the members of an object. The body's are read before its pass
// is checked, for the pass holds for its room.
const maxMembers = 256

// object splits a valid JSON object into its members.
func object(data []byte) (members, *fault.Error) {
	m := members{}
	i := space(data, 1)
	for data[i] != '}' {
		if len(m) == maxMembers {
			return nil, fault.New(fault.TooManyValues, fault.Field("body"), fault.Int(maxMembers))
		}
		end := i + quoted(data[i:])
		var name string
		if json.Unmarshal(data[i:end], &name) != nil {
			return nil, fault.New(fault.MalformedJSON, fault.Int(int64(i)))
		}
		if _, twice := m[name]; twice {
			return nil, fault.New(fault.RepeatedField, fault.Field(name))
		}
		i = space(data, space(data, end)+1) // past the colon
		end = i + value(data[i:])
		m[name] = data[i:end]
		if i = space(data, end); data[i] == ',' {
			i = space(data, i+1)
		}
	}
	return m, nil
}

// space skips white space from i.
func space(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n' {
		i++
	}
	return i
}

// value is the length of the value that b begins with, in valid JSON.
func value(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += quoted(b[i:]) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 { // a string, or the last bracket
			return i + 1
		}
		if depth < 0 { // a number or a word before the end of what holds it
			return i
		}
	}
	return len(b)
}

// null reports whether a value is missing or null.
func null(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// read decodes a member into v, which stays as it is if the member is missing or
// null. want is the type in words.
func (m members) read(name string, v any, want fault.Arg) *fault.Error {
	if raw := m[name]; !null(raw) && json.Unmarshal(raw, v) != nil {
		return fault.New(fault.WrongType, fault.Field(name), want)
	}
	return nil
}

// integer reads an integer. It is never a float: through one it would lose its
// low bits. ok is false if it is missing or null.
func (m members) integer(name string, low, high int64) (n int64, ok bool, f *fault.Error) {
	raw := m[name]
	if null(raw) {
		return 0, false, nil
	}
	digits := bytes.TrimPrefix(raw, []byte("-"))
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false, fault.New(fault.WrongType, fault.Field(name), fault.Fixed("an integer"))
		}
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < low || n > high {
		return 0, false, fault.New(fault.OutOfRange, fault.Field(name), fault.Int(low), fault.Int(high))
	}
	return n, true, nil
}
