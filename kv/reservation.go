package kv

import (
	"crypto/subtle"
	"errors"
	"fmt"
)

// Digest is the digest of one page. Shorter algorithms leave the rest zero.
type Digest [16]byte

// Digester computes page digests under the key of one hand-off (H-7). It is
// used by one goroutine at a time.
//
// Page digests number index (from 0, of the whole prompt) over its segments in
// order; the segments hold exactly the rows up to the token count.
type Digester interface {
	Page(index int, segments [][]byte) Digest
}

// Reservation is a set of pages that one peer may write, and the pages that
// this worker keeps beside them for its output. The prompt's leading pages may
// come from the prefix cache; those are pinned, and not part of what the peer
// may write (H-3).
type Reservation struct {
	pool   *Pool
	tag    Tag
	key    Key
	tokens int     // of the whole prompt
	prefix *Prefix // pinned, may be nil
	pages  []int32 // the rest of the prompt, written by the peer
	output []int32 // Local pages for appending
	life   Life    // of pages; PageFree when the reservation is over
}

// Generation is the identity of the reservation.
func (r *Reservation) Generation() Generation { return r.tag.Gen }

// Key is the write key. It goes to the one peer that is granted the pages.
func (r *Reservation) Key() Key { return r.key }

// Pages is the number of pages that the peer must write.
func (r *Reservation) Pages() int { return len(r.pages) }

// Reserve takes the pages for a prompt of tokens and for output tokens after
// it, under a fresh generation and a fresh write key, and opens the prompt's
// pages for writing under that key. prefix, if not nil, must be of the same
// domain and shorter than the prompt; its pins pass to the reservation.
//
// Errors: [ErrFull] (retry after a free), [ErrNever], [ErrTag] (prefix of
// another domain), [ErrLife] (prefix used before). After an error the pool is as
// it was, and the prefix is still the caller's, to use again or to unpin.
func (p *Pool) Reserve(d Domain, tokens, output int, prefix *Prefix) (*Reservation, error) {
	if tokens < 1 || output < 0 || tokens > maxTokens || output > maxTokens-tokens {
		return nil, fmt.Errorf("kv: reserve %d+%d tokens: out of range", tokens, output)
	}
	if err := p.usable(prefix, d); err != nil {
		return nil, err
	}
	if prefix.Tokens() >= tokens {
		return nil, fmt.Errorf("kv: prefix of %d tokens covers the prompt of %d", prefix.Tokens(), tokens)
	}
	have, total := prefix.Pages(), p.layout.Pages(tokens+output)
	prompt := p.layout.Pages(tokens) - have
	key := p.keys() // first, so that its failure evicts nothing
	if key == (Key{}) || p.landing.holds(key) {
		return nil, errors.New("kv: reserve: the key source gave no fresh key") // H-6
	}
	if err := p.room(total, total-have); err != nil {
		return nil, err
	}
	tag := Tag{Gen: p.next(), Domain: d}
	pages, err := p.take(prompt, PageReserved, tag)
	if err != nil {
		return nil, err
	}
	extra, err := p.take(total-have-prompt, PageLocal, tag) // no key opens these
	if err != nil {
		return nil, err
	}
	r := &Reservation{
		pool: p, tag: tag, key: key, tokens: tokens, prefix: prefix.pass(),
		pages: pages, output: extra, life: PageReserved,
	}
	s := &slot{
		layout: p.layout, tokens: tokens - prefix.Tokens(),
		active: map[Source]struct{}{}, busy: make([]bool, prompt), arrived: make([]bool, prompt),
	}
	for _, pg := range r.pages {
		s.pages = append(s.pages, p.page(pg))
	}
	p.landing.open(r.key, s)
	return r, nil
}

// owns reports whether r is a reservation of this pool.
func (p *Pool) owns(r *Reservation) bool { return r != nil && r.pool == p }

// Sealed proves that no byte of the peer lands in the reservation any more.
type Sealed struct{ r *Reservation }

// Verified proves that the reservation was sealed and that every reserved page
// then held what its writer computed.
type Verified struct{ r *Reservation }

// Seal takes the write key away (H-5). It returns once nothing can land.
func (p *Pool) Seal(r *Reservation) (Sealed, error) {
	if !p.owns(r) || r.life != PageReserved {
		return Sealed{}, fmt.Errorf("%w: seal of a reservation that is not Reserved", ErrLife)
	}
	p.landing.Revoke(r.key)
	return Sealed{r}, p.advance(r, PageSealed)
}

// advance moves all prompt pages of a reservation to the next life.
func (p *Pool) advance(r *Reservation, to Life) error {
	for _, pg := range r.pages {
		if err := p.become(pg, to); err != nil {
			return err
		}
	}
	r.life = to
	return nil
}

// Verify compares the digest of every reserved page with what its writer
// computed, in order. want must cover exactly the reserved pages.
//
// What it computes is compared and forgotten: it must not reach a peer.
//
// Errors: [ErrExtent], [ErrDigest] (also if d is nil), [ErrLife]; the
// reservation stays sealed.
func (p *Pool) Verify(s Sealed, d Digester, want []Digest) (Verified, error) {
	r := s.r
	if !p.owns(r) || r.life != PageSealed {
		return Verified{}, fmt.Errorf("%w: verify before seal", ErrLife)
	}
	if len(want) != len(r.pages) {
		return Verified{}, ErrExtent
	}
	if d == nil {
		return Verified{}, fmt.Errorf("%w: no digester", ErrDigest)
	}
	have, wrong, first := r.prefix.Pages(), 0, 0
	for i, pg := range r.pages {
		rows := p.layout.rows(r.tokens, have+i)
		got := d.Page(have+i, segments(p.layout, p.page(pg), rows))
		if subtle.ConstantTimeCompare(got[:], want[i][:]) != 1 {
			if wrong++; wrong == 1 {
				first = have + i
			}
		}
	}
	if wrong > 0 {
		return Verified{}, fmt.Errorf("%w: %d of %d pages, the first is page %d", ErrDigest, wrong, len(want), first)
	}
	return Verified{r}, p.advance(r, PageVerified)
}

// Free ends a reservation that was sealed, or verified, and never opened. A
// reservation whose key is live cannot be freed: seal it first (H-9).
func (p *Pool) Free(r *Reservation) error {
	if !p.owns(r) || r.life != PageSealed && r.life != PageVerified {
		return fmt.Errorf("%w: free of a reservation that is not Sealed or Verified", ErrLife)
	}
	return p.end(r)
}

// end gives every page of the reservation back.
func (p *Pool) end(r *Reservation) error {
	r.life = PageFree
	p.Unpin(r.prefix)
	if err := p.give(r.output); err != nil {
		return err
	}
	return p.give(r.pages)
}

// Open turns a verified reservation into a sequence that reads the prompt and
// appends after it. The last prompt page, if it has room, becomes Local (H-4).
func (p *Pool) Open(v Verified) (*Sequence, error) {
	r := v.r
	if !p.owns(r) || r.life != PageVerified {
		return nil, fmt.Errorf("%w: open before verify", ErrLife)
	}
	s := &Sequence{pool: p, domain: r.tag.Domain, tokens: r.tokens}
	s.lead(r.prefix.pass())
	for _, pg := range r.pages {
		s.push(pg, r.tag)
	}
	if r.tokens%p.layout.PageTokens != 0 {
		if err := p.become(r.pages[len(r.pages)-1], PageLocal); err != nil {
			return nil, err
		}
	}
	for _, pg := range r.output {
		s.push(pg, r.tag)
	}
	r.life = PageFree // the sequence owns the pages now
	return s, nil
}
