package upstream

import (
	"math"

	"bulkhead.dev/bulkhead/internal/fault"
)

// prompt is what was scanned of the prompt of a completion.
type prompt struct {
	given bool
	// list is the array around several prompts, or around one; empty if there is none.
	list span
	// items are the prompts; one is the text or the list of token ids.
	items []item
	first [1]item // room for the usual case
	// ids says that the prompts are token ids.
	ids bool
}

// item is one prompt: its value, and its length in bytes of decoded text or in tokens.
type item struct {
	span
	size int
}

// maxPrompts bounds the prompts of one request that are looked at.
const maxPrompts = 1 << 10

// empty says whether any of the prompts is.
func (p *prompt) empty() bool {
	for i := range p.items {
		if p.items[i].size == 0 {
			return true
		}
	}
	return len(p.items) == 0
}

// promptField scans the prompt: a string, a list of strings, a list of token ids, or a
// list of lists of token ids.
func (s *scanner) promptField() bool {
	p := &s.body.prompt
	p.given = true
	p.items = p.first[:0]
	switch s.peek() {
	case '"':
		v, ok := s.str()
		p.items = append(p.items, item{span{v.raw.from - 1, v.raw.to + 1}, v.size})
		return ok
	case '[':
		return s.prompts(p)
	default:
		return s.wrong(fault.Field("prompt"), fault.Fixed("a string, or a list of strings or of tokens"))
	}
}

// prompts scans a prompt that is an array.
func (s *scanner) prompts(p *prompt) bool {
	from, kind, tokens := s.i, byte(0), 0
	mixed := func() bool {
		return s.wrong(fault.Field("prompt"), fault.Fixed("a string, or a list of strings or of tokens"))
	}
	ok := s.array(1, func(i int) bool {
		c := s.peek()
		if s.isNumber() {
			c = '0'
		}
		if i == 0 {
			kind = c
		}
		if c != kind {
			return mixed()
		}
		if c != '0' && i >= maxPrompts {
			return s.refuse(fault.TooManyValues, fault.Field("prompt"), fault.Int(maxPrompts))
		}
		switch c {
		case '"':
			v, ok := s.str()
			p.items = append(p.items, item{span{v.raw.from - 1, v.raw.to + 1}, v.size})
			return ok
		case '[':
			from, tokens := s.i, 0
			ok := s.array(2, func(int) bool { tokens++; return s.token() })
			p.items = append(p.items, item{span{from, s.i}, tokens})
			return ok
		case '0':
			tokens++
			return s.token()
		default:
			return mixed()
		}
	})
	p.ids = kind == '0' || kind == '['
	if kind == '0' {
		p.items = append(p.items, item{span{from, s.i}, tokens})
	} else {
		p.list = span{from, s.i}
	}
	return ok
}

// token scans one token id.
func (s *scanner) token() bool {
	_, ok := s.integer(fault.Field("prompt"), 0, math.MaxInt32)
	return ok
}
