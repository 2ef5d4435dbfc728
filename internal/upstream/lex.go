package upstream

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may nest, the outermost counted (G-1).
const maxDepth = 64

// problem says what is wrong with a text, where the lexer stands.
type problem uint8

const (
	fine problem = iota
	malformed
	badUTF8
	badSurrogate
	tooDeep
)

// span is a part of the text: b[from:to].
type span struct{ from, to int }

// lexer walks over one JSON text, strictly by RFC 8259: no byte order mark, no
// comments, no NaN, no lone surrogates, valid UTF-8, and a bounded depth.
type lexer struct {
	b   []byte
	i   int
	bad problem
}

// fail notes the first problem and stops the walk.
func (l *lexer) fail(p problem) bool {
	if l.bad == fine {
		l.bad = p
	}
	return false
}

// space skips white space.
func (l *lexer) space() {
	for l.i < len(l.b) {
		switch l.b[l.i] {
		case ' ', '\t', '\n', '\r':
			l.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, or 0 at the end. A NUL byte is
// legal nowhere outside a string and not even there, so 0 is never taken for a token.
func (l *lexer) peek() byte {
	l.space()
	if l.i < len(l.b) {
		return l.b[l.i]
	}
	return 0
}

// take consumes c if it is the next byte that is not white space.
func (l *lexer) take(c byte) bool {
	if l.peek() != c {
		return false
	}
	l.i++
	return true
}

// str is a scanned string.
type str struct {
	// raw lies between the quotes.
	raw span
	// size is the length of the decoded text in bytes.
	size int
	// plain says that raw is the decoded text: there is no escape in it.
	plain bool
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks, in the highest bit of its byte, the first byte of x that is a quote, a
// backslash, a control character or no ASCII. Marks above the first may be wrong.
func special(x uint64) uint64 {
	quote := x ^ (ones * '"')
	slash := x ^ (ones * '\\')
	return ((x - ones*0x20) | (quote - ones) | (slash - ones) | x) & highs
}

// str scans the string whose opening quote is next.
func (l *lexer) str() (str, bool) {
	if !l.take('"') {
		return str{}, l.fail(malformed)
	}
	s := str{raw: span{from: l.i}, plain: true}
	shrink := 0 // how much shorter the decoded text is than the raw one
	for {
		l.run()
		if l.i >= len(l.b) {
			return str{}, l.fail(malformed)
		}
		switch c := l.b[l.i]; {
		case c == '"':
			s.raw.to = l.i
			s.size = s.raw.to - s.raw.from - shrink
			l.i++
			return s, true
		case c == '\\':
			n, ok := l.escape()
			if !ok {
				return str{}, false
			}
			shrink += n
			s.plain = false
		case c < 0x20:
			return str{}, l.fail(malformed)
		default:
			for l.i < len(l.b) && l.b[l.i] >= utf8.RuneSelf {
				r, n := utf8.DecodeRune(l.b[l.i:])
				if r == utf8.RuneError && n == 1 {
					return str{}, l.fail(badUTF8)
				}
				l.i += n
			}
		}
	}
}

// run skips plain ASCII up to the next byte that needs a look.
func (l *lexer) run() {
	b := l.b[l.i:]
	for len(b) >= 32 {
		// Four words at a time; where one is marked, the loop below finds which.
		if special(binary.LittleEndian.Uint64(b))|special(binary.LittleEndian.Uint64(b[8:]))|
			special(binary.LittleEndian.Uint64(b[16:]))|special(binary.LittleEndian.Uint64(b[24:])) != 0 {
			break
		}
		b = b[32:]
	}
	for len(b) >= 8 {
		if m := special(binary.LittleEndian.Uint64(b)); m != 0 {
			l.i = len(l.b) - len(b) + bits.TrailingZeros64(m)/8
			return
		}
		b = b[8:]
	}
	l.i = len(l.b) - len(b)
	for l.i < len(l.b) {
		if c := l.b[l.i]; c < 0x20 || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return
		}
		l.i++
	}
}

// escape scans one escape (a surrogate pair counts as one) and returns by how many
// bytes the decoded text is shorter.
func (l *lexer) escape() (shrink int, ok bool) {
	if l.i+1 >= len(l.b) {
		l.i = len(l.b)
		return 0, l.fail(malformed)
	}
	switch l.b[l.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		l.i += 2
		return 1, true
	case 'u':
		r, n, p := unescape(l.b[l.i:])
		if p != fine {
			return 0, l.fail(p)
		}
		l.i += n
		return n - utf8.RuneLen(r), true
	default:
		return 0, l.fail(malformed)
	}
}

// unescape decodes the \u escape at the front of b, with the second half of a surrogate
// pair if it has one; n is its length in bytes.
func unescape(b []byte) (r rune, n int, p problem) {
	r, ok := hex4(b)
	if !ok {
		return 0, 0, malformed
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, fine
	}
	low, ok := hex4(b[6:])
	if !ok {
		return 0, 0, badSurrogate
	}
	r = utf16.DecodeRune(r, low)
	if r == utf8.RuneError {
		return 0, 0, badSurrogate
	}
	return r, 12, fine
}

// hex4 reads \uXXXX at the front of b.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// decode returns the text of a scanned string. It copies only if there are escapes.
func decode(b []byte, s str) []byte {
	raw := b[s.raw.from:s.raw.to]
	if s.plain {
		return raw
	}
	out := make([]byte, 0, s.size)
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'u':
			r, n, _ := unescape(raw[i:])
			out = utf8.AppendRune(out, r)
			i += n
			continue
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		default:
			out = append(out, c)
		}
		i += 2
	}
	return out
}

// number scans a number; whole says that it has neither fraction nor exponent.
func (l *lexer) number() (s span, whole, ok bool) {
	l.space()
	s.from = l.i
	whole = true
	if l.at('-') {
		l.i++
	}
	switch {
	case l.at('0'):
		l.i++
	case !l.digits():
		return s, false, l.fail(malformed)
	}
	if l.at('.') {
		l.i++
		whole = false
		if !l.digits() {
			return s, false, l.fail(malformed)
		}
	}
	if l.at('e') || l.at('E') {
		l.i++
		whole = false
		if l.at('+') || l.at('-') {
			l.i++
		}
		if !l.digits() {
			return s, false, l.fail(malformed)
		}
	}
	s.to = l.i
	return s, whole, true
}

func (l *lexer) at(c byte) bool { return l.i < len(l.b) && l.b[l.i] == c }

// digits skips at least one digit.
func (l *lexer) digits() bool {
	from := l.i
	for l.i < len(l.b) && l.b[l.i] >= '0' && l.b[l.i] <= '9' {
		l.i++
	}
	return l.i > from
}

// word scans a literal name.
func (l *lexer) word(w string) bool {
	l.space()
	if len(l.b)-l.i < len(w) || string(l.b[l.i:l.i+len(w)]) != w {
		return l.fail(malformed)
	}
	l.i += len(w)
	return true
}

// value scans any value. depth is how many arrays and objects stand around it.
func (l *lexer) value(depth int) (span, bool) {
	c := l.peek()
	from := l.i
	var ok bool
	switch c {
	case '{':
		ok = l.object(depth, func(str) bool { _, ok := l.value(depth + 1); return ok })
	case '[':
		ok = l.array(depth, func(int) bool { _, ok := l.value(depth + 1); return ok })
	case '"':
		_, ok = l.str()
	case 't':
		ok = l.word("true")
	case 'f':
		ok = l.word("false")
	case 'n':
		ok = l.word("null")
	default:
		_, _, ok = l.number()
	}
	return span{from, l.i}, ok
}

// object scans an object and calls member after each colon; member must scan the value.
func (l *lexer) object(depth int, member func(key str) bool) bool {
	if depth >= maxDepth {
		return l.fail(tooDeep)
	}
	if !l.take('{') {
		return l.fail(malformed)
	}
	if l.take('}') {
		return true
	}
	for {
		l.space()
		key, ok := l.str()
		if !ok {
			return false
		}
		if !l.take(':') {
			return l.fail(malformed)
		}
		if !member(key) {
			return false
		}
		if l.take('}') {
			return true
		}
		if !l.take(',') {
			return l.fail(malformed)
		}
	}
}

// array scans an array and calls element before each; element must scan it.
func (l *lexer) array(depth int, element func(i int) bool) bool {
	if depth >= maxDepth {
		return l.fail(tooDeep)
	}
	if !l.take('[') {
		return l.fail(malformed)
	}
	if l.take(']') {
		return true
	}
	for i := 0; ; i++ {
		if !element(i) {
			return false
		}
		if l.take(']') {
			return true
		}
		if !l.take(',') {
			return l.fail(malformed)
		}
	}
}
