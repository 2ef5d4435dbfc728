package kv

import "fmt"

// Hash names a run of token ids from the start of a prompt: the chained hash of
// its whole pages. It is compared for equality only.
type Hash [32]byte

// cacheKey keeps domains apart by construction (H-12).
type cacheKey struct {
	domain Domain
	hash   Hash
}

// entry is one Cached page. While it has no reader it is in the ring of idle
// entries.
type entry struct {
	key        cacheKey
	page       int32
	tag        Tag // its publisher's; readers expect it
	prev, next *entry
}

type cache struct {
	entries map[cacheKey]*entry
	byPage  map[int32]*entry
	ring    entry // its next is idle for the longest time, its prev for the shortest
	idle    int   // entries in the ring
}

// empty makes the cache empty.
func (c *cache) empty() {
	c.entries, c.byPage = map[cacheKey]*entry{}, map[int32]*entry{}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
}

// rest puts an entry that lost its last reader into the ring.
func (c *cache) rest(e *entry) {
	e.prev, e.next = c.ring.prev, &c.ring
	e.prev.next, e.next.prev = e, e
	c.idle++
}

// wake takes an entry out of the ring.
func (c *cache) wake(e *entry) {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
	c.idle--
}

// Prefix is a run of cached pages, pinned for its holder. Only [Pool.Pin] makes
// one. It is used once: its pins pass to a reservation or a sequence, or they
// are let go. The nil Prefix is empty.
type Prefix struct {
	pool    *Pool
	domain  Domain
	entries []*entry
	tokens  int
	spent   bool // the pins were passed on, or let go
}

// Pages is the number of whole pages.
func (x *Prefix) Pages() int {
	if x == nil {
		return 0
	}
	return len(x.entries)
}

// Tokens is the number of tokens in them.
func (x *Prefix) Tokens() int {
	if x == nil {
		return 0
	}
	return x.tokens
}

// Pin looks up the longest run of cached pages of the domain whose hashes are
// chain[0], chain[1], ... and pins it, or returns nil. The holder must pass it
// to [Pool.Reserve] or [Pool.Local], or give it to [Pool.Unpin]. If Reserve or
// Local fails, the pins are still the holder's.
func (p *Pool) Pin(d Domain, chain []Hash) *Prefix {
	x := &Prefix{pool: p, domain: d}
	for _, h := range chain {
		e := p.cache.entries[cacheKey{d, h}]
		if e == nil {
			break
		}
		if p.refs[e.page] == 0 {
			p.cache.wake(e)
		}
		p.refs[e.page]++
		x.entries = append(x.entries, e)
	}
	if len(x.entries) == 0 {
		return nil
	}
	x.tokens = len(x.entries) * p.layout.PageTokens
	return x
}

// Unpin lets go of a prefix that was not used. For a prefix that was passed on
// it does nothing: the pins are not the caller's any more.
func (p *Pool) Unpin(x *Prefix) {
	if x == nil || x.pool != p || x.spent {
		return
	}
	x.spent = true
	for i := len(x.entries) - 1; i >= 0; i-- {
		p.unref(x.entries[i].page)
	}
}

// usable says whether a prefix may lead a request of the domain.
func (p *Pool) usable(x *Prefix, d Domain) error {
	switch {
	case x == nil:
		return nil
	case x.pool != p || x.spent:
		return fmt.Errorf("%w: prefix used twice, or of another pool", ErrLife)
	case x.domain != d:
		return fmt.Errorf("%w: prefix of another domain", ErrTag) // H-12
	}
	return nil
}

// pass hands the pins on: what it returns holds them, x holds none.
func (x *Prefix) pass() *Prefix {
	if x == nil {
		return nil
	}
	held := *x
	x.spent = true
	return &held
}

// unref takes one reader from a cached page; a run is let go from its end, so
// that deeper pages are evicted first.
func (p *Pool) unref(pg int32) {
	e := p.cache.byPage[pg]
	if e == nil || p.refs[pg] == 0 {
		return
	}
	p.refs[pg]--
	if p.refs[pg] == 0 {
		p.cache.rest(e)
	}
}

// Publish makes the leading whole pages of a sequence shareable inside its
// domain: page i under chain[i]. Pages stay the sequence's to read until it is
// released. It stops at the first page that is not whole, or whose hash is
// cached already under another page. It returns the number of shared pages. A
// sequence that was released, and the zero domain, publish nothing.
func (p *Pool) Publish(s *Sequence, chain []Hash) int {
	if s == nil || s.pool != p || s.over || s.domain == (Domain{}) {
		return 0
	}
	for i := s.shared; i < len(chain) && (i+1)*p.layout.PageTokens <= s.tokens; i++ {
		key := cacheKey{s.domain, chain[i]}
		pg := s.pages[i]
		if p.cache.entries[key] != nil || p.tags[pg] != s.want[i] || p.become(pg, PageCached) != nil {
			break
		}
		e := &entry{key: key, page: pg, tag: p.tags[pg]}
		p.cache.entries[key], p.cache.byPage[pg] = e, e
		p.refs[pg] = 1
		s.shared = i + 1
	}
	return s.shared
}

// evict frees the cached page that has had no reader for the longest time.
// There must be one.
func (p *Pool) evict() error {
	old := p.cache.ring.next
	delete(p.cache.entries, old.key)
	delete(p.cache.byPage, old.page)
	p.cache.wake(old)
	return p.give([]int32{old.page})
}

// Flush evicts every cached page that has no reader and returns their number.
func (p *Pool) Flush() int {
	n := 0
	for p.cache.idle > 0 && p.evict() == nil {
		n++
	}
	return n
}
