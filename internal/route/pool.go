package route

// Size is an amount of work: tokens, and the requests that have them.
type Size struct{ Tokens, Requests int64 }

func (s Size) plus(t Size) Size  { return Size{s.Tokens + t.Tokens, s.Requests + t.Requests} }
func (s Size) minus(t Size) Size { return Size{s.Tokens - t.Tokens, s.Requests - t.Requests} }

// Unbounded is the limit of a dimension that has none.
const Unbounded = int64(1<<63 - 1)

// Pool is what one engine may have in flight, and what it has. The zero value has no
// room; [Pool.Resize] gives it some.
//
// Room can be kept for one request that is large: what was in flight then may go on, and
// others may still come in as far as they leave the kept room once the earlier ones have
// gone. So the large request waits no longer than for them, and the others go on beside
// it.
type Pool struct {
	limit, used Size
	// keeps says that room is kept; kept is how much, young what others took since then.
	keeps       bool
	kept, young Size
	// era tells what was taken during one keeping from what was taken earlier.
	era uint64
}

// Hold is what one request has of a pool.
type Hold struct {
	size Size
	era  uint64
}

// Resize sets the limit. What is in flight stays, even if it is more.
func (p *Pool) Resize(limit Size) { p.limit = limit }

// Limit is what the pool may hold.
func (p *Pool) Limit() Size { return p.limit }

// Used is what is in flight.
func (p *Pool) Used() Size { return p.used }

// Fits says whether a request of size s may come in.
func (p *Pool) Fits(s Size) bool {
	return within(p.used, s, p.limit) && (!p.keeps || within(p.young.plus(p.kept), s, p.limit))
}

// FitsKept says whether the request may come in for which the room is kept.
func (p *Pool) FitsKept(s Size) bool { return within(p.used, s, p.limit) }

// within says whether used and s together are at most limit, without wrapping round.
func within(used, s, limit Size) bool {
	return s.Tokens <= limit.Tokens-used.Tokens && s.Requests <= limit.Requests-used.Requests
}

// Take lets a request of size s in. The caller has asked whether it fits.
func (p *Pool) Take(s Size) Hold {
	p.used = p.used.plus(s)
	if p.keeps {
		p.young = p.young.plus(s)
	}
	return Hold{size: s, era: p.era}
}

// Give gives a hold back, once.
func (p *Pool) Give(h Hold) { p.lower(h.era, h.size) }

// Lower makes a hold smaller: to s, where s is less.
func (p *Pool) Lower(h Hold, s Size) Hold {
	s = Size{min(s.Tokens, h.size.Tokens), min(s.Requests, h.size.Requests)}
	p.lower(h.era, h.size.minus(s))
	return Hold{size: s, era: h.era}
}

func (p *Pool) lower(era uint64, by Size) {
	p.used = p.used.minus(by)
	if p.keeps && era == p.era {
		p.young = p.young.minus(by)
	}
}

// Keep keeps room for a request of size s. It returns false if room is kept already.
func (p *Pool) Keep(s Size) bool {
	if p.keeps {
		return false
	}
	p.era++
	p.keeps, p.kept, p.young = true, s, Size{}
	return true
}

// Unkeep ends the keeping.
func (p *Pool) Unkeep() { p.keeps, p.kept, p.young = false, Size{}, Size{} }

// Keeps says whether room is kept.
func (p *Pool) Keeps() bool { return p.keeps }
