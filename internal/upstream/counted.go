package upstream

import (
	"fmt"
	"strconv"
)

// maxCounted is the longest prompt that is believed, in tokens.
const maxCounted = 1 << 40

// ReadCount reads the answer to [Request.CountCall]: how many tokens a prompt has. An
// answer that says it twice must say the same twice; one that does not say it is an error,
// never zero.
func ReadCount(d Dialect, status int, body []byte) (int64, error) {
	if status != 200 {
		return 0, fmt.Errorf("upstream: read count: %v answered with status %d", d, status)
	}
	s := countScanner{lexer: lexer{b: body}}
	if !s.object(0, s.member) || s.peek() != 0 || s.i != len(body) {
		return 0, fmt.Errorf("upstream: read count: %v answered with no count that can be read", d)
	}
	switch n := s.stated; {
	case !n.Known && !s.listed.Known:
		return 0, fmt.Errorf("upstream: read count: %v answered without a count", d)
	case !n.Known:
		return s.listed.N, nil
	case s.listed.Known && s.listed.N != n.N:
		return 0, fmt.Errorf("upstream: read count: %v states %d tokens and lists %d", d, n.N, s.listed.N)
	default:
		return n.N, nil
	}
}

// countScanner reads the members of a count.
type countScanner struct {
	lexer
	stated Count // a number
	listed Count // a list of the tokens
}

// member reads one member: count (vLLM, SGLang), input_tokens (llama.cpp), and the tokens
// themselves. None may come twice.
func (s *countScanner) member(key str) bool {
	switch string(decode(s.b, key)) {
	case "count", "input_tokens":
		at, whole, ok := s.number()
		if !ok || !whole || s.stated.Known || at.to-at.from > maxNumber {
			return s.fail(malformed)
		}
		n, err := strconv.ParseInt(string(s.b[at.from:at.to]), 10, 64)
		if err != nil || n < 0 || n > maxCounted {
			return s.fail(malformed)
		}
		s.stated = Count{N: n, Known: true}
		return true
	case "tokens":
		if s.listed.Known {
			return s.fail(malformed)
		}
		n := int64(0)
		ok := s.array(1, func(int) bool { n++; _, ok := s.value(2); return ok })
		s.listed = Count{N: n, Known: ok}
		return ok
	default:
		_, ok := s.value(1)
		return ok
	}
}
