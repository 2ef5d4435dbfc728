package upstream

import (
	"strconv"
	"strings"
)

// maxHandle is the longest handle that is taken, in bytes.
const maxHandle = 1 << 20

// Extent says how well a handle's blocks are known to fit its prompt.
type Extent uint8

const (
	// ExtentUnknown: there is at least one block in each group. The size of a block is not
	// known, or there are several groups of which some hold less than the whole prompt.
	ExtentUnknown Extent = iota
	// ExtentExact: each group has the blocks of the whole prompt and no more.
	ExtentExact
)

// Handle is what prefill holds for decode (G-11): it serves one sequence of one attempt,
// once. It is what prefill sent, byte for byte, of which every member was checked.
type Handle struct {
	// Engine, Host and Port say who holds it, Request under which name.
	Engine, Host, Request string
	Port                  int64
	// Tokens is how many tokens of the prompt it covers.
	Tokens int64
	// Blocks is how many blocks each KV group has.
	Blocks []int64
	// Extent says whether the blocks could be compared with the tokens.
	Extent Extent

	json []byte
}

// AppendTo appends the handle as the value of decode's kv_transfer_params.
func (h *Handle) AppendTo(dst []byte) []byte { return append(dst, h.json...) }

// Size returns the length of the handle's JSON in bytes.
func (h *Handle) Size() int { return len(h.json) }

// ReadHandle takes the handle out of a sound prefill answer of vLLM over NIXL; block is
// the size of a block in tokens, 0 if it is not known. It must be there, be meant for
// pulling, be of the request that this answer answers, and cover exactly the prompt that
// prefill counted; nothing else may be in it, for decode obeys whatever it is given.
func ReadHandle(p *Reply, block int64) (*Handle, Agreement) {
	if p.handle.to == 0 || p.handle.to-p.handle.from > maxHandle {
		return nil, Unproved
	}
	raw := p.body[p.handle.from:p.handle.to]
	s := handleScanner{lexer: lexer{b: raw}, h: &Handle{}}
	if !s.object(0, s.member) || !s.complete() {
		return nil, Unproved
	}
	h := s.h
	if h.Request != p.ID && !strings.HasPrefix(h.Request, p.ID+"-") {
		return nil, Foreign // another request's: the engine adds to the id that we minted, and takes nothing from it
	}
	if !p.Prompt.Known || h.Tokens != p.Prompt.N {
		return nil, CountsDiffer
	}
	if a := h.measure(block); a != Agreed {
		return nil, a
	}
	h.json = append([]byte(nil), raw...)
	return h, Agreed
}

// measure compares the blocks with the tokens.
func (h *Handle) measure(block int64) Agreement {
	whole := int64(0)
	if block > 0 {
		whole = (h.Tokens + block - 1) / block
	}
	exact := block > 0
	for _, n := range h.Blocks {
		switch {
		case n < 1:
			return Unproved
		case block > 0 && n > whole || block > 0 && n != whole && len(h.Blocks) == 1:
			return CountsDiffer
		}
		exact = exact && n == whole
	}
	if exact {
		h.Extent = ExtentExact
	}
	return Agreed
}

// handleScanner reads the members of a handle.
type handleScanner struct {
	lexer
	h    *Handle
	seen uint
}

// What a handle must have.
const (
	handlePull = 1 << iota
	handleNotPush
	handleBlocks
	handleEngine
	handleRequest
	handleHost
	handlePort
	handleTokens
	handleMode
	handleOther // times and sizes that decode takes as they are

	handleNeeds = handlePull | handleNotPush | handleBlocks | handleEngine | handleRequest | handleHost | handlePort | handleTokens
)

func (s *handleScanner) complete() bool {
	return s.seen&handleNeeds == handleNeeds && s.i == len(s.b) && len(s.h.Blocks) > 0
}

// once notes a member that may not come twice.
func (s *handleScanner) once(bit uint) bool {
	if s.seen&bit != 0 {
		return s.fail(malformed)
	}
	s.seen |= bit
	return true
}

// member reads one member. Names are compared as they are written: an escape in one is
// not what any engine sends.
func (s *handleScanner) member(key str) bool {
	switch string(s.b[key.raw.from:key.raw.to]) {
	case "do_remote_prefill":
		return s.once(handlePull) && s.word("true")
	case "do_remote_decode":
		return s.once(handleNotPush) && s.word("false")
	case "transfer_mode":
		return s.once(handleMode) && s.word(`"pull"`)
	case "remote_block_ids":
		return s.once(handleBlocks) && s.blocks()
	case "remote_engine_id":
		return s.once(handleEngine) && s.text(&s.h.Engine)
	case "remote_request_id":
		return s.once(handleRequest) && s.text(&s.h.Request)
	case "remote_host":
		return s.once(handleHost) && s.text(&s.h.Host)
	case "remote_port":
		return s.once(handlePort) && s.whole(1, 65535, &s.h.Port)
	case "remote_num_tokens":
		return s.once(handleTokens) && s.whole(1, 1<<40, &s.h.Tokens)
	case "tp_size", "dcp_size", "pp_size", "remote_prefill_cached_tokens":
		var n int64
		return s.null() || s.bad == fine && s.whole(0, 1<<40, &n)
	case "remote_blocks_expiry_time":
		if s.null() {
			return true
		}
		_, _, ok := s.number()
		return ok
	}
	return s.fail(malformed)
}

// null takes a null.
func (s *handleScanner) null() bool { return s.peek() == 'n' && s.word("null") }

// text reads a name of 1 to 512 bytes.
func (s *handleScanner) text(into *string) bool {
	v, ok := s.str()
	if !ok || v.size == 0 || v.size > 512 {
		return s.fail(malformed)
	}
	*into = string(decode(s.b, v))
	return true
}

// whole reads a whole number from low to high.
func (s *handleScanner) whole(low, high int64, into *int64) bool {
	at, whole, ok := s.number()
	if !ok || !whole {
		return s.fail(malformed)
	}
	n, err := strconv.ParseInt(string(s.b[at.from:at.to]), 10, 64)
	if err != nil || n < low || n > high {
		return s.fail(malformed)
	}
	*into = n
	return true
}

// blocks reads lists of block numbers, one for each KV group.
func (s *handleScanner) blocks() bool {
	return s.array(0, func(int) bool {
		n := int64(0)
		ok := s.array(1, func(int) bool {
			var block int64
			n++
			return s.whole(0, 1<<31, &block)
		})
		s.h.Blocks = append(s.h.Blocks, n)
		return ok
	})
}
