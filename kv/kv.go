// Package kv is the paged KV pool of one worker: pages, generations, write
// keys, page lives, and the only way to read or write a row.
//
// What it promises:
//
//   - A page that a peer may write is readable only through a [Verified] token,
//     and that token exists only after the page's write key was revoked and a
//     digest over every reserved page was compared (H-4, H-5, H-7).
//   - A row is read only while its page still carries the tag that the reader
//     expects: the generation of the reservation and the tenant domain (H-12).
//     The check runs in the read loop, once per layer and page.
//   - A reader never sees a row beyond the token count of its sequence, nor a row
//     that its sequence announced and has not written.
//   - A write key opens one reservation, by ordinal of its pages. A frame cannot
//     name a page of anybody else.
//
// What must not come in: clocks, randomness, I/O, goroutines, knowledge of the
// protocol's messages. The boot epoch and the source of keys are arguments.
//
// A [Pool] belongs to one goroutine. Its [Landing] table has a lock of its own
// and may be used from the connections that carry pages (H-6). The rows of a
// [Sequence] may be read and written on another goroutine while the owner works
// on other reservations and sequences; the rest of it is the owner's.
package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// Sentinels that callers decide on.
var (
	// ErrFull says that the pool has too few free pages now. Retry after a free.
	ErrFull = errors.New("kv: pool full")
	// ErrNever says that the request is larger than the whole pool.
	ErrNever = errors.New("kv: larger than the pool")
	// ErrTag says that a page no longer belongs to the reader.
	ErrTag = errors.New("kv: page tag mismatch")
	// ErrDigest says that a page does not hold what its writer computed.
	ErrDigest = errors.New("kv: page digest mismatch")
	// ErrExtent says that the digests do not cover exactly the reserved pages.
	ErrExtent = errors.New("kv: extent mismatch")
	// ErrLife says that a page was asked to do what its life does not allow.
	// It is a fault of the caller, never of a peer.
	ErrLife = errors.New("kv: page life violated")
	// ErrQuarantine says that too many pages wait for proof of quiet. The caller
	// must close the connection of the peer that owes the proof (H-9).
	ErrQuarantine = errors.New("kv: quarantine over budget")
)

// Domain names a cache domain: KV is shared only inside one (H-12). The zero
// Domain shares with nobody, itself included: to forget the domain costs hits,
// never a leak.
type Domain [16]byte

// Generation is fresh at every reservation and never repeats across restarts.
// It is compared for equality only (H-2). The zero value is no generation.
type Generation struct {
	Epoch   uint64 // random, drawn at start
	Counter uint64 // 1, 2, 3 ... within the epoch
}

// Key opens one reservation for writing. It is a secret of the grant. The zero
// Key opens nothing.
type Key [16]byte

// Bounds that keep every size below the range of int, and a page's length in a
// uint32.
const (
	maxTokens    = 1 << 30 // of one request, prompt and output together
	maxPages     = 1 << 24 // of one pool
	maxPageBytes = 1 << 30
	maxPoolBytes = 1 << 42
)

// Layout is the shape of one page. Values are float32, little endian.
//
// A page holds, for each layer, PageTokens rows of K, then PageTokens rows of V;
// a row is Heads*Dim values. Page memory is contiguous.
type Layout struct {
	Layers     int // transformer layers
	Heads      int // KV heads
	Dim        int // values per head
	PageTokens int // tokens per page: 16 or 64
}

// Row is the number of float32 values of one token in one layer's K (or V).
func (l Layout) Row() int { return l.Heads * l.Dim }

// Floats is the number of float32 values of one page.
func (l Layout) Floats() int { return l.Layers * 2 * l.PageTokens * l.Row() }

// Bytes is the number of bytes that rows tokens of one page take on the wire.
func (l Layout) Bytes(rows int) int { return l.Layers * 2 * rows * l.Row() * 4 }

// Pages is the number of pages that tokens take.
func (l Layout) Pages(tokens int) int { return (tokens + l.PageTokens - 1) / l.PageTokens }

// pageBytes is the size of one page; each factor is in range already.
func (l Layout) pageBytes() uint64 {
	return uint64(l.Layers) * 2 * uint64(l.PageTokens) * uint64(l.Heads) * uint64(l.Dim) * 4
}

// rows is how many of tokens fall into page i, which is a page of some table.
func (l Layout) rows(tokens, i int) int {
	return max(0, min(l.PageTokens, max(0, tokens)-i*l.PageTokens))
}

// Check refuses a layout that cannot be laid out, or whose page is over 1 GiB.
func (l Layout) Check() error {
	switch {
	case l.PageTokens != 16 && l.PageTokens != 64:
		return fmt.Errorf("kv: page size %d: want 16 or 64 tokens", l.PageTokens)
	case l.Layers < 1 || l.Heads < 1 || l.Dim < 1,
		l.Layers > 1024 || l.Heads > 4096 || l.Dim > 4096,
		l.pageBytes() > maxPageBytes:
		return fmt.Errorf("kv: layout %d layers, %d heads, %d dim: out of range", l.Layers, l.Heads, l.Dim)
	}
	return nil
}

// Life is the state of one page (H-4).
type Life uint8

const (
	// PageFree: on the free list; its tag is zero, so that no old reader passes the
	// check. May become Reserved or Local.
	PageFree Life = iota
	// PageReserved: granted to a peer, whose writes may land. Not readable. May
	// become Sealed.
	PageReserved
	// PageSealed: the write key is revoked, nothing lands any more; not yet known to
	// be right. Not readable. May become Verified, or Free.
	PageSealed
	// PageVerified: sealed and equal to the digest of its writer. Readable up to the
	// token count. May become Local (the last prompt page, for appending),
	// Cached, or Free.
	PageVerified
	// PageLocal: written by this worker alone; never had a write key in this life.
	// Readable up to the rows written. May become Cached, or Free.
	PageLocal
	// PageCached: a whole page, read-only, shared inside one domain, with a count of
	// its readers. May become Free when nobody reads it.
	PageCached
	lives
)

// String names the life as the documents do.
func (l Life) String() string {
	if l >= lives {
		return "Unknown"
	}
	return [lives]string{"Free", "Reserved", "Sealed", "Verified", "Local", "Cached"}[l]
}

// follows reports whether a page may go from one life to the next (H-4).
func follows(from, to Life) bool {
	switch from {
	case PageFree:
		return to == PageReserved || to == PageLocal
	case PageReserved:
		return to == PageSealed
	case PageSealed:
		return to == PageVerified || to == PageFree
	case PageVerified:
		return to == PageLocal || to == PageCached || to == PageFree
	case PageLocal:
		return to == PageCached || to == PageFree
	case PageCached:
		return to == PageFree
	}
	return false
}

// Tag says whose a page is. The read loop compares it (H-12).
type Tag struct {
	Gen    Generation
	Domain Domain
}

// Config makes a pool.
type Config struct {
	Layout     Layout
	Pages      int        // pages in the pool
	Epoch      uint64     // boot epoch of this process: random, never 0
	Keys       func() Key // a fresh unguessable write key for every call, never 0
	Quarantine int        // pages that may wait for proof of quiet; 0 means a quarter of the pool
}

// Pool is the paged KV memory of one worker. One goroutine owns it.
type Pool struct {
	layout  Layout
	mem     []float32
	tags    []Tag
	life    []Life
	refs    []int32 // readers of a Cached page
	free    []int32 // LIFO: the page freed last is reused first
	epoch   uint64
	counter uint64
	keys    func() Key
	landing *Landing
	cache   cache

	quarantined int // pages whose proof of quiet is pending
	quarantine  int // budget for them
}

// New makes a pool with every page free.
func New(c Config) (*Pool, error) {
	if err := c.Layout.Check(); err != nil {
		return nil, err
	}
	if c.Pages < 1 || c.Pages > maxPages || uint64(c.Pages)*c.Layout.pageBytes() > min(maxPoolBytes, math.MaxInt) {
		return nil, fmt.Errorf("kv: %d pages of %d bytes: want 1 to %d pages and up to %d bytes",
			c.Pages, c.Layout.pageBytes(), maxPages, uint64(maxPoolBytes))
	}
	if c.Epoch == 0 || c.Keys == nil {
		return nil, errors.New("kv: boot epoch and key source are required")
	}
	if c.Quarantine < 0 {
		return nil, fmt.Errorf("kv: quarantine of %d pages: want 0 or more", c.Quarantine)
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("kv: this machine is big endian: page bytes would not mean the same elsewhere")
	}
	if c.Quarantine == 0 {
		c.Quarantine = max(1, c.Pages/4)
	}
	p := &Pool{
		layout:     c.Layout,
		mem:        make([]float32, c.Pages*c.Layout.Floats()),
		tags:       make([]Tag, c.Pages),
		life:       make([]Life, c.Pages),
		refs:       make([]int32, c.Pages),
		free:       make([]int32, 0, c.Pages),
		epoch:      c.Epoch,
		keys:       c.Keys,
		quarantine: c.Quarantine,
		landing:    &Landing{slots: map[Key]*slot{}},
	}
	p.cache.empty()
	for i := c.Pages - 1; i >= 0; i-- {
		p.free = append(p.free, int32(i))
	}
	return p, nil
}

// Layout returns the shape of the pool's pages.
func (p *Pool) Layout() Layout { return p.layout }

// Landing returns the table through which peers' pages land.
func (p *Pool) Landing() *Landing { return p.landing }

// Counts is the pool's state in pages.
type Counts struct {
	Total       int // all pages
	Free        int // on the free list
	Held        int // by reservations and sequences, and not cached
	Cached      int // held by the prefix cache; of these Idle have no reader
	Idle        int
	Quarantined int // waiting for proof of quiet
}

// Counts returns the pool's state in pages.
func (p *Pool) Counts() Counts {
	return Counts{
		Total: len(p.life), Free: len(p.free), Held: len(p.life) - len(p.free) - len(p.cache.entries),
		Cached: len(p.cache.entries), Idle: p.cache.idle, Quarantined: p.quarantined,
	}
}

// Whole reports whether the pool is at rest: every page is on the free list
// exactly once, with a tag that no reader expects; no key opens anything, and
// nothing waits in quarantine. The prefix cache must have been flushed.
func (p *Pool) Whole() bool {
	if len(p.free) != len(p.life) || len(p.cache.entries) != 0 || p.cache.idle != 0 || p.quarantined != 0 || p.landing.Open() != 0 {
		return false
	}
	seen := make([]bool, len(p.life))
	for _, pg := range p.free {
		if seen[pg] || p.life[pg] != PageFree || p.refs[pg] != 0 || p.tags[pg] != (Tag{}) {
			return false
		}
		seen[pg] = true
	}
	return true
}

// next mints a generation.
func (p *Pool) next() Generation {
	p.counter++
	return Generation{Epoch: p.epoch, Counter: p.counter}
}

// room makes sure that n pages are on the free list, evicting idle cached pages
// if needed, for a request of total pages. If it fails, nothing was evicted.
func (p *Pool) room(total, n int) error {
	switch {
	case total > len(p.life):
		return ErrNever
	case len(p.free)+p.cache.idle < n:
		return ErrFull
	}
	for len(p.free) < n {
		if err := p.evict(); err != nil {
			return err
		}
	}
	return nil
}

// take pops n pages from the free list, which holds them, and gives them life
// and tag. A page that cannot take the life stays where it is, and the pages
// taken before it are lost: a pool that broke its own rules shrinks, it never
// hands out a page twice.
func (p *Pool) take(n int, to Life, tag Tag) ([]int32, error) {
	pages := make([]int32, n)
	for i := range pages {
		pg := p.free[len(p.free)-1]
		if err := p.become(pg, to); err != nil {
			return nil, err
		}
		p.free = p.free[:len(p.free)-1]
		p.tags[pg] = tag
		pages[i] = pg
	}
	return pages, nil
}

// give returns pages to the free list, first page last, so that the next
// reservation of the same size gets the same pages in the same order. Their tag
// becomes the zero tag, which no reader expects.
func (p *Pool) give(pages []int32) error {
	for i := len(pages) - 1; i >= 0; i-- {
		pg := pages[i]
		if err := p.become(pg, PageFree); err != nil {
			return err
		}
		p.tags[pg] = Tag{}
		p.mangle(pg)
		p.free = append(p.free, pg)
	}
	return nil
}

// become moves a page to its next life.
func (p *Pool) become(pg int32, to Life) error {
	if !follows(p.life[pg], to) {
		return fmt.Errorf("%w: page %d: %v to %v", ErrLife, pg, p.life[pg], to)
	}
	p.life[pg] = to
	return nil
}

// page returns the memory of one page.
func (p *Pool) page(pg int32) []float32 {
	n := p.layout.Floats()
	return p.mem[int(pg)*n : (int(pg)+1)*n : (int(pg)+1)*n]
}

// segments returns the byte ranges of the first rows tokens of a page, in
// order: K then V of each layer. A whole page is one range.
func segments(l Layout, page []float32, rows int) [][]byte {
	if rows == l.PageTokens {
		return [][]byte{floatBytes(page)}
	}
	segs := make([][]byte, 0, l.Layers*2)
	stride, used := l.PageTokens*l.Row(), rows*l.Row()
	for s := range l.Layers * 2 {
		segs = append(segs, floatBytes(page[s*stride:s*stride+used]))
	}
	return segs
}

// floatBytes views float32 values as bytes. The wire is little endian, and so
// is every machine that this builds for; the handshake compares the layout.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}

// Quarantine accounts n pages as waiting for proof of quiet. Over the budget it
// returns [ErrQuarantine]; the pages count all the same.
func (p *Pool) Quarantine(n int) error {
	p.quarantined += max(0, n)
	if p.quarantined > p.quarantine {
		return ErrQuarantine
	}
	return nil
}

// Quiet takes n pages out of quarantine: the proof came.
func (p *Pool) Quiet(n int) {
	p.quarantined = max(0, p.quarantined-max(0, n))
}
