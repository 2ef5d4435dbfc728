package kv

// Unguarded is the way around the proofs: it reads pages that nobody proved
// and frees pages that a peer can still write. It exists so that a drill can
// show, on the real engine, what the guards prevent. Only internal/drill, and
// bench to measure what the guards cost, may make one; a test at the root of the
// module holds that.
type Unguarded struct{ made bool }

// NewUnguarded makes the way around. See [Unguarded].
func NewUnguarded() *Unguarded { return &Unguarded{made: true} }

// Trust takes a reservation for verified. If it was not sealed, its write key
// stays live. A reservation that is over, or of another pool, it leaves alone:
// its pages are somebody else's.
func (u *Unguarded) Trust(p *Pool, r *Reservation) Verified {
	if u == nil || !u.made || !p.owns(r) || r.life == PageFree {
		return Verified{}
	}
	for _, pg := range r.pages {
		p.life[pg] = PageVerified
	}
	r.life = PageVerified
	return Verified{r}
}

// Free ends a reservation in whatever life it is. If it was not sealed, its
// write key stays live: what the peer still sends lands in the next owner's
// pages.
func (u *Unguarded) Free(p *Pool, r *Reservation) error {
	if v := u.Trust(p, r); v.r == nil {
		return ErrLife
	}
	return p.end(r)
}
