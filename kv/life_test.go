package kv

import (
	"fmt"
	"testing"
)

// TestPageLives is H-4 as a table: what may follow what, and nothing else.
func TestPageLives(t *testing.T) {
	allowed := map[Life][]Life{
		PageFree:     {PageReserved, PageLocal},
		PageReserved: {PageSealed},
		PageSealed:   {PageVerified, PageFree},
		PageVerified: {PageLocal, PageCached, PageFree},
		PageLocal:    {PageCached, PageFree},
		PageCached:   {PageFree},
	}
	for from := range lives + 1 { // one beyond the last: an unknown life
		for to := range lives + 1 {
			want := false
			for _, l := range allowed[from] {
				want = want || l == to
			}
			p := newPool(t, 1)
			p.life[0] = from
			err := p.become(0, to)
			switch {
			case want && (err != nil || p.life[0] != to):
				t.Errorf("%v to %v: %v", from, to, err)
			case !want && (err == nil || p.life[0] != from):
				t.Errorf("%v to %v is allowed", from, to)
			case !want:
				wants(t, err, ErrLife, fmt.Sprint(from, " to ", to))
			}
		}
	}
	names := ""
	for l := range lives + 1 {
		names += l.String() + " "
	}
	if names != "Free Reserved Sealed Verified Local Cached Unknown " {
		t.Errorf("names: %s", names)
	}
}

// station is a point in the life of a reservation.
type station struct {
	name string
	ops  string // of s(eal) v(erify) o(pen) f(ree), those that are legal here
	at   Life   // of the prompt's pages
}

// walk is a reservation on its way, and every token that it ever gave out.
type walk struct {
	p        *Pool
	r        *Reservation
	src      *Sequence
	sealed   Sealed
	verified Verified
	seq      *Sequence
}

func newWalk(t *testing.T) *walk {
	w := &walk{p: newPool(t, 8), src: source(t, small(), "walk", 40)}
	w.r = reserve(t, w.p, tenant('a'), 40, 20, nil)
	for i := range 3 {
		if err := send(w.p.Landing(), w.r.Key(), w.src, 0, i); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *walk) do(op byte) error {
	switch op {
	case 's':
		s, err := w.p.Seal(w.r)
		if err == nil {
			w.sealed = s
		}
		return err
	case 'v':
		v, err := w.p.Verify(w.sealed, &hashing{}, digests(w.src, 0))
		if err == nil {
			w.verified = v
		}
		return err
	case 'o':
		s, err := w.p.Open(w.verified)
		if err == nil {
			w.seq = s
		}
		return err
	default:
		return w.p.Free(w.r)
	}
}

// Each operation at each station of a reservation's life: seal before verify,
// verify before open, nothing twice, nothing after the end, whatever tokens the
// caller kept.
func TestReservationLives(t *testing.T) {
	paths := map[string]station{
		"":     {"reserved", "s", PageReserved},
		"s":    {"sealed", "vf", PageSealed},
		"sv":   {"verified", "of", PageVerified},
		"svo":  {"opened", "", PageVerified},
		"sf":   {"freed after seal", "", PageFree},
		"svf":  {"freed after verify", "", PageFree},
		"svoR": {"released", "", PageFree},
	}
	for path, st := range paths {
		for _, op := range []byte("svof") {
			w := newWalk(t)
			for _, step := range []byte(path) {
				var err error
				if step == 'R' {
					err = w.p.Release(w.seq)
				} else {
					err = w.do(step)
				}
				if err != nil {
					t.Fatalf("%s: step %c: %v", st.name, step, err)
				}
			}
			legal := false
			for _, l := range []byte(st.ops) {
				legal = legal || l == op
			}
			before, open, kept := w.p.Counts(), w.p.Landing().Open(), w.seq
			err := w.do(op)
			if legal {
				if err != nil {
					t.Errorf("%c when %s: %v", op, st.name, err)
				}
				continue
			}
			wants(t, err, ErrLife, fmt.Sprintf("%c when %s", op, st.name))
			if w.p.Counts() != before || w.p.Landing().Open() != open || w.seq != kept {
				t.Errorf("%c when %s: refused, and changed the pool", op, st.name)
			}
			for i, pg := range w.r.pages {
				want := st.at
				if st.name == "opened" && i == 2 {
					want = PageLocal // the last prompt page, for appending
				}
				if w.p.life[pg] != want {
					t.Errorf("%c when %s: page %d is %v, want %v", op, st.name, i, w.p.life[pg], want)
				}
			}
		}
	}
}

// A page is readable only by who proved it: tokens and reservations of another
// pool, and values made from nothing, prove nothing.
func TestTokensAreOfOnePool(t *testing.T) {
	a, b := newWalk(t), newWalk(t)
	sa := seal(t, a.p, a.r)
	want := digests(a.src, 0)
	_, err := b.p.Verify(sa, &hashing{}, want)
	wants(t, err, ErrLife, "verify in another pool")
	va, err := a.p.Verify(sa, &hashing{}, want)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.p.Open(va)
	wants(t, err, ErrLife, "open in another pool")
	wants(t, b.p.Free(a.r), ErrLife, "free in another pool")
	_, err = b.p.Seal(a.r)
	wants(t, err, ErrLife, "seal in another pool")
	seq, err := a.p.Open(va)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, b.p.Release(seq), ErrLife, "release to another pool")
	if n := b.p.Publish(seq, chainOf("walk", 2)); n != 0 {
		t.Errorf("published %d pages of another pool", n)
	}
	holds(t, seq, "walk")

	_, err = a.p.Seal(nil)
	wants(t, err, ErrLife, "seal nil")
	_, err = a.p.Seal(&Reservation{})
	wants(t, err, ErrLife, "seal of nothing")
	wants(t, a.p.Free(nil), ErrLife, "free nil")
	_, err = a.p.Verify(Sealed{}, &hashing{}, nil)
	wants(t, err, ErrLife, "verify of nothing")
	_, err = a.p.Open(Verified{})
	wants(t, err, ErrLife, "open of nothing")
	if err := a.p.Release(nil); err != nil {
		t.Error(err)
	}
	a.p.Unpin(nil)
	if a.p.Publish(nil, nil) != 0 {
		t.Error("published nothing")
	}
	release(t, a.p, seq)
	release(t, a.p, seq) // twice does nothing
	seal(t, b.p, b.r)
	free(t, b.p, b.r)
	whole(t, a.p)
	whole(t, b.p)
}

// A token outlives the reservation; what it proved does not pass on to the
// next owner of the same pages.
func TestStaleTokens(t *testing.T) {
	p := newPool(t, 3)
	src := source(t, small(), "next", 40)
	old := reserve(t, p, tenant('a'), 40, 0, nil)
	sealed := seal(t, p, old)
	free(t, p, old)
	next := reserve(t, p, tenant('b'), 40, 0, nil)
	for i := range 3 {
		if old.pages[i] != next.pages[i] {
			t.Fatal("the pages were not reused: this shows nothing")
		}
		if err := send(p.Landing(), next.Key(), src, 0, i); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when string) {
		t.Helper()
		_, err := p.Seal(old)
		wants(t, err, ErrLife, "seal "+when)
		_, err = p.Verify(sealed, &hashing{}, digests(src, 0))
		wants(t, err, ErrLife, "verify "+when)
		_, err = p.Open(Verified{old})
		wants(t, err, ErrLife, "open "+when)
		wants(t, p.Free(old), ErrLife, "free "+when)
	}
	refused("while the next is reserved")
	s := seal(t, p, next)
	refused("while the next is sealed")
	v, err := p.Verify(s, &hashing{}, digests(src, 0))
	if err != nil {
		t.Fatal(err)
	}
	refused("while the next is verified")
	seq, err := p.Open(v)
	if err != nil {
		t.Fatal(err)
	}
	refused("while the next is open")
	holds(t, seq, "next")
	release(t, p, seq)
	whole(t, p)
}

// Only a last prompt page that has room becomes Local.
func TestOpenLeavesWholePagesVerified(t *testing.T) {
	for tokens, last := range map[int]Life{31: PageLocal, 32: PageVerified, 33: PageLocal} {
		p := newPool(t, 4)
		s := receive(t, p, tenant('a'), "last page", tokens, 16, nil)
		for i := range small().Pages(tokens) {
			want := PageVerified
			if i == small().Pages(tokens)-1 {
				want = last
			}
			if got := p.life[s.pages[i]]; got != want {
				t.Errorf("%d tokens: page %d is %v, want %v", tokens, i, got, want)
			}
		}
		write(t, s, "last page", s.Cap()-tokens)
		holds(t, s, "last page")
		release(t, p, s)
		whole(t, p)
	}
}

// The output's pages are Local from the start: no key opens them.
func TestOutputPagesAreNotGranted(t *testing.T) {
	p := newPool(t, 8)
	r := reserve(t, p, tenant('a'), 33, 60, nil)
	if r.Pages() != 3 || len(r.output) != 3 {
		t.Fatalf("%d pages granted, %d kept", r.Pages(), len(r.output))
	}
	for _, pg := range r.pages {
		if p.life[pg] != PageReserved {
			t.Errorf("a granted page is %v", p.life[pg])
		}
	}
	for _, pg := range r.output {
		if p.life[pg] != PageLocal {
			t.Errorf("a page for output is %v", p.life[pg])
		}
	}
	for page := 3; page < 7; page++ {
		src := &stored{rest: make([]byte, 512)}
		n, err := p.Landing().Land(r.Key(), page, 16, src)
		if wants(t, err, ErrRefused, "a page kept for output"); n != 0 || src.taken != 0 {
			t.Errorf("%d bytes placed, %d taken", n, src.taken)
		}
	}
	seal(t, p, r)
	free(t, p, r)
	whole(t, p)
}
