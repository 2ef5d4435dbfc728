package kv

import (
	"fmt"
	"math"
	"sync/atomic"
)

// Sequence is the page table of one request: what an engine reads K and V
// through, and appends to. It belongs to the goroutine that owns the pool.
//
// Two things may happen elsewhere, until the sequence is released: between
// [Sequence.Extend] and [Sequence.Commit], [Sequence.Rows] and [Sequence.Write]
// may be called on other goroutines (rows of one layer are written before they
// are read; that order is the engine's); and the bytes that [Sequence.Segments]
// returned for whole pages, or after the last Commit, may be read by a
// connection.
type Sequence struct {
	pool   *Pool
	domain Domain
	pages  []int32
	want   []Tag // the tag that each page must carry
	shared int   // leading pages that are Cached
	tokens int   // rows committed
	ahead  int   // rows being written after them
	over   bool

	// written has one bit for each row ahead that Write handed out: one word for
	// each page from the one of the first row ahead, and layer.
	written []atomic.Uint64
}

// nobody is a tag that no page carries: a pool's epoch is never 0, and a free
// page's tag is all zero.
func nobody() Tag { return Tag{Gen: Generation{Counter: math.MaxUint64}} }

func (s *Sequence) push(pg int32, t Tag) {
	s.pages, s.want = append(s.pages, pg), append(s.want, t)
}

// lead puts the pages of a prefix, whose pins are the sequence's now, in front.
func (s *Sequence) lead(x *Prefix) {
	if x == nil {
		return
	}
	for _, e := range x.entries {
		s.push(e.page, e.tag)
	}
	s.shared = len(x.entries)
}

// Local takes pages for a sequence of up to tokens that this worker computes
// itself. prefix, if not nil, gives the leading pages; its pins pass to the
// sequence, which then holds prefix.Tokens() committed rows.
//
// Errors as those of [Pool.Reserve], and the same holds after one.
func (p *Pool) Local(d Domain, tokens int, prefix *Prefix) (*Sequence, error) {
	if tokens < 1 || tokens > maxTokens {
		return nil, fmt.Errorf("kv: local %d tokens: out of range", tokens)
	}
	if err := p.usable(prefix, d); err != nil {
		return nil, err
	}
	if prefix.Tokens() > tokens {
		return nil, fmt.Errorf("kv: prefix of %d tokens is longer than %d", prefix.Tokens(), tokens)
	}
	total := p.layout.Pages(tokens)
	n := total - prefix.Pages()
	if err := p.room(total, n); err != nil {
		return nil, err
	}
	tag := Tag{Gen: p.next(), Domain: d}
	pages, err := p.take(n, PageLocal, tag)
	if err != nil {
		return nil, err
	}
	s := &Sequence{pool: p, domain: d}
	s.lead(prefix.pass())
	s.tokens = prefix.Tokens()
	for _, pg := range pages {
		s.push(pg, tag)
	}
	return s, nil
}

// Domain is the cache domain that the sequence belongs to.
func (s *Sequence) Domain() Domain { return s.domain }

// Tokens is the number of committed rows.
func (s *Sequence) Tokens() int { return s.tokens }

// Cap is the number of tokens that fit.
func (s *Sequence) Cap() int { return len(s.pages) * s.pool.layout.PageTokens }

// Layout is the shape of the pages.
func (s *Sequence) Layout() Layout { return s.pool.layout }

// Extend announces n rows after the committed ones. They may be written, and
// once written read back by later rows of the same step, until
// [Sequence.Commit]. An Extend without Commit is forgotten at the next one.
func (s *Sequence) Extend(n int) error {
	if s.over || n < 1 || n > s.Cap()-s.tokens {
		return fmt.Errorf("kv: extend %d rows after %d of %d", n, s.tokens, s.Cap())
	}
	s.ahead = n
	l := s.pool.layout
	words := (l.Pages(s.tokens+n) - s.tokens/l.PageTokens) * l.Layers
	if words > cap(s.written) {
		s.written = make([]atomic.Uint64, words)
		return nil
	}
	s.written = s.written[:words]
	for i := range s.written {
		s.written[i].Store(0)
	}
	return nil
}

// Commit makes the rows of the last Extend part of the sequence.
//
// It returns [ErrLife], and commits nothing, if a row of them was not written
// in some layer: behind such a row is what the page's last owner left (H-4).
func (s *Sequence) Commit() error {
	if s.over {
		return fmt.Errorf("%w: commit after release", ErrLife)
	}
	l := s.pool.layout
	end := s.tokens + s.ahead
	for i := s.tokens / l.PageTokens; i*l.PageTokens < end; i++ {
		for layer := range l.Layers {
			if !s.has(layer, i, end) {
				return fmt.Errorf("%w: commit of %d rows, some not written", ErrLife, s.ahead)
			}
		}
	}
	s.tokens, s.ahead = end, 0
	return nil
}

// word is where written keeps the rows of page i in layer.
func (s *Sequence) word(layer, i int) *atomic.Uint64 {
	l := &s.pool.layout
	return &s.written[(i-s.tokens/l.PageTokens)*l.Layers+layer]
}

// has reports whether every row of page i that lies ahead, and before limit,
// was written in layer.
func (s *Sequence) has(layer, i, limit int) bool {
	l := &s.pool.layout
	from, to := l.rows(s.tokens, i), l.rows(limit, i)
	if from >= to {
		return true
	}
	need := (uint64(1)<<to - 1) &^ (uint64(1)<<from - 1)
	return s.word(layer, i).Load()&need == need
}

// Write returns the K and V row of token pos in layer for writing: Row()
// values each, to be filled before they are read. pos must lie in the range of
// the last Extend.
//
// Errors: [ErrLife] (no such row to write), [ErrTag] (the page is not this
// sequence's any more).
func (s *Sequence) Write(layer, pos int) (k, v []float32, err error) {
	if s.over {
		return nil, nil, ErrTag
	}
	l := &s.pool.layout
	i := pos / l.PageTokens
	if pos < s.tokens || pos >= s.tokens+s.ahead || layer < 0 || layer >= l.Layers {
		return nil, nil, fmt.Errorf("%w: write of row %d", ErrLife, pos)
	}
	pg := s.pages[i]
	if s.pool.tags[pg] != s.want[i] || s.pool.life[pg] != PageLocal {
		return nil, nil, ErrTag
	}
	s.word(layer, i).Or(1 << (pos % l.PageTokens))
	page, row := s.pool.page(pg), l.Row()
	at := (2*layer*l.PageTokens + pos%l.PageTokens) * row
	half := l.PageTokens * row
	return page[at : at+row : at+row], page[at+half : at+half+row : at+half+row], nil
}

// Rows returns page i of layer for reading: the K rows and the V rows of its
// tokens before limit. A kernel cannot read past them: the slices end there,
// and the rows of another owner behind them are out of reach. The page's tag is
// compared here, once per layer and page (H-12). Like a slice it panics if there
// is no such layer or page.
//
// It returns [ErrTag] if the page is no longer this sequence's, and [ErrLife] if
// limit takes in a row of this step that was not written in this layer.
func (s *Sequence) Rows(layer, i, limit int) (k, v []float32, err error) {
	pg := s.pages[i]
	if s.pool.tags[pg] != s.want[i] {
		return nil, nil, ErrTag
	}
	if limit > s.tokens {
		limit = min(limit, s.tokens+s.ahead)
		if !s.has(layer, i, limit) {
			return nil, nil, ErrLife
		}
	}
	l := &s.pool.layout
	rows := l.rows(limit, i)
	page, half := s.pool.page(pg), l.PageTokens*l.Row()
	at, n := 2*layer*half, rows*l.Row()
	return page[at : at+n : at+n], page[at+half : at+half+n : at+half+n], nil
}

// Segments returns the bytes of the committed rows of page i, as they go on
// the wire, and the number of rows. The memory is the pool's: it must not be
// read after the sequence was released (H-8). A page that is not this
// sequence's, or not any more, has no rows.
func (s *Sequence) Segments(i int) ([][]byte, int) {
	if i < 0 || i >= len(s.pages) || s.pool.tags[s.pages[i]] != s.want[i] {
		return nil, 0
	}
	l := s.pool.layout
	rows := l.rows(s.tokens, i)
	return segments(l, s.pool.page(s.pages[i]), rows), rows
}

// Digest computes the digest of page i over its committed rows. Take it once
// per page, right after the last layer of its last row was written (H-7).
func (s *Sequence) Digest(d Digester, i int) Digest {
	segs, _ := s.Segments(i)
	return d.Page(i, segs)
}

// Release ends the sequence: its own pages become Free, its shared pages lose
// one reader. From then on it reads and writes nothing. Releasing twice does
// nothing.
func (p *Pool) Release(s *Sequence) error {
	if s == nil || s.over {
		return nil
	}
	if s.pool != p {
		return fmt.Errorf("%w: release to another pool", ErrLife)
	}
	s.over = true
	for i := range s.want {
		s.want[i] = nobody()
	}
	for i := s.shared - 1; i >= 0; i-- {
		p.unref(s.pages[i])
	}
	return p.give(s.pages[s.shared:])
}
