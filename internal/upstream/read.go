package upstream

import (
	"math"
	"strconv"
	"strings"

	"bulkhead.dev/bulkhead/internal/fault"
)

// reader reads values of a client's body and notes the first error.
type reader struct {
	lexer
	err *fault.Error
}

// maxNumber bounds the text of a number, in bytes.
const maxNumber = 64

// refuse notes an error of meaning and stops the walk.
func (r *reader) refuse(code fault.Code, args ...fault.Arg) bool {
	if r.err == nil {
		r.err = fault.New(code, args...)
	}
	return false
}

// failure says why the walk stopped.
func (r *reader) failure() *fault.Error {
	at := fault.Int(int64(r.i))
	switch {
	case r.err != nil:
		return r.err
	case r.bad == badUTF8:
		return fault.New(fault.InvalidUTF8, at)
	case r.bad == badSurrogate:
		return fault.New(fault.LoneSurrogate, at)
	case r.bad == tooDeep:
		return fault.New(fault.TooDeep, fault.Int(maxDepth))
	default:
		return fault.New(fault.MalformedJSON, at)
	}
}

// wrong refuses the next value for its type, if it is well formed.
func (r *reader) wrong(at, want fault.Arg) bool {
	if _, ok := r.value(1); !ok {
		return false
	}
	return r.refuse(fault.WrongType, at, want)
}

// text scans a string.
func (r *reader) text(at fault.Arg) (str, bool) {
	if r.peek() != '"' {
		return str{}, r.wrong(at, fault.Fixed("a string"))
	}
	return r.str()
}

// textIn scans a string; the path of the field is made only if it is none.
func (r *reader) textIn(path func(name string) string, name string) (str, bool) {
	if r.peek() == '"' {
		return r.str()
	}
	return r.text(fault.Field(path(name)))
}

// boolean scans true or false.
func (r *reader) boolean(at fault.Arg) (value, ok bool) {
	switch r.peek() {
	case 't':
		return true, r.word("true")
	case 'f':
		return false, r.word("false")
	default:
		return false, r.wrong(at, fault.Fixed("true or false"))
	}
}

// isNumber says whether a number is next; the rest of it may still be malformed.
func (r *reader) isNumber() bool {
	c := r.peek()
	return c == '-' || c >= '0' && c <= '9'
}

// float scans a number from low to high.
func (r *reader) float(at fault.Arg, low, high float64) bool {
	x, ok := r.anyFloat(at)
	if ok && !(x >= low && x <= high) {
		return r.refuse(fault.OutOfRange, at, fault.Num(low), fault.Num(high))
	}
	return ok
}

// anyFloat scans a number; one that is too great for a float64 is infinite.
func (r *reader) anyFloat(at fault.Arg) (float64, bool) {
	if !r.isNumber() {
		return 0, r.wrong(at, fault.Fixed("a number"))
	}
	n, _, ok := r.number()
	if !ok {
		return 0, false
	}
	raw := r.b[n.from:n.to]
	if len(raw) > maxNumber {
		return 0, r.refuse(fault.WrongType, at, fault.Fixed("a number of ordinary length"))
	}
	// Only the range can be wrong: infinity is outside of every range we know.
	x, _ := strconv.ParseFloat(string(raw), 64)
	return x, true
}

// integer scans a whole number from low to high.
func (r *reader) integer(at fault.Arg, low, high int64) (int64, bool) {
	if !r.isNumber() {
		return 0, r.wrong(at, fault.Fixed("a whole number"))
	}
	n, whole, ok := r.number()
	if !ok {
		return 0, false
	}
	if !whole {
		return 0, r.refuse(fault.WrongType, at, fault.Fixed("a whole number"))
	}
	raw := r.b[n.from:n.to]
	x, err := strconv.ParseInt(string(raw[:min(len(raw), maxNumber)]), 10, 64)
	if err != nil || x < low || x > high {
		return 0, r.refuse(fault.OutOfRange, at, fault.Int(low), fault.Int(high))
	}
	return x, true
}

// bound turns a bound of a row into one of a whole number.
func bound(x float64) int64 {
	switch {
	case x >= math.MaxInt64:
		return math.MaxInt64
	case x <= math.MinInt64:
		return math.MinInt64
	}
	return int64(x)
}

// scalar scans a string, a number, true or false.
func (r *reader) scalar(path func(name string) string, name string) bool {
	switch r.peek() {
	case '{', '[':
		return r.wrong(fault.Field(path(name)), fault.Fixed("a string, a number, true or false"))
	}
	_, ok := r.value(1)
	return ok
}

// keyed scans an inspected object at a depth: every key must be one of names, which are
// separated by spaces, and none may come twice. path gives the path of a key; stray
// judges a key that is not among the names, whose value is then skipped; each scans the
// value of the one that is.
func (r *reader) keyed(depth int, names string, path func(name string) string, stray func(name string) bool, each func(name string) bool) bool {
	if r.peek() != '{' {
		return r.wrong(fault.Field(path("")), fault.Fixed("an object"))
	}
	var seen uint64
	var strays []string
	return r.object(depth, func(key str) bool {
		name := decode(r.b, key)
		known, i := word(names, name)
		if i < 0 {
			if reason, yes := forbidden(name); yes {
				return r.refuse(fault.ReservedField, fault.Field(path(string(name))), reason)
			}
			for _, s := range strays {
				if s == string(name) {
					return r.refuse(fault.RepeatedField, fault.Field(path(s)))
				}
			}
			strays = append(strays, string(name))
			if len(strays) > maxStrays || !stray(string(name)) {
				return r.refuse(fault.UnknownField, fault.Field(path(string(name))))
			}
			_, ok := r.value(depth + 1)
			return ok
		}
		if seen&(1<<i) != 0 {
			return r.refuse(fault.RepeatedField, fault.Field(path(known)))
		}
		seen |= 1 << i
		return each(known)
	})
}

// maxStrays bounds how many unknown keys of one object are looked at before it is
// refused for them, whatever is allowed to pass.
const maxStrays = 16

// word finds a name among words that are separated by spaces, and returns it as it
// stands there, and its place; -1 if it is not there.
func word(words string, name []byte) (string, int) {
	for i := 0; words != ""; i++ {
		w, rest, _ := strings.Cut(words, " ")
		if w == string(name) {
			return w, i
		}
		words = rest
	}
	return "", -1
}

// forbidden says whether a name is reserved, and why.
func forbidden(name []byte) (reason fault.Arg, yes bool) {
	for i := range reserved {
		if string(name) == reserved[i].name {
			return reserved[i].reason, true
		}
	}
	return fault.Arg{}, false
}
