package kv

import (
	"testing"
)

// Success is not coverage: of all 256 sets of written pages exactly the full one
// verifies, whatever the writer says. All pages held another tenant's rows.
func TestVerifyNeedsEveryPage(t *testing.T) {
	const tokens = 8 * 16
	src := source(t, small(), "prompt of b", tokens)
	want := digests(src, 0)
	p := newPool(t, 8)
	served := 0
	for set := range 256 {
		old := receive(t, p, tenant('a'), "secret of a", tokens, 0, nil)
		release(t, p, old)
		r := reserve(t, p, tenant('b'), tokens, 0, nil)
		for i := range 8 {
			if set>>i&1 == 1 {
				if err := send(p.Landing(), r.Key(), src, 0, i); err != nil {
					t.Fatal(err)
				}
			}
		}
		v, err := p.Verify(seal(t, p, r), &hashing{}, want)
		if set != 255 {
			wants(t, err, ErrDigest, "a set with holes")
			_, err = p.Open(v)
			wants(t, err, ErrLife, "open of what did not verify")
			free(t, p, r)
			continue
		}
		if err != nil {
			t.Fatalf("all pages written: %v", err)
		}
		s, err := p.Open(v)
		if err != nil {
			t.Fatal(err)
		}
		holds(t, s, "prompt of b")
		release(t, p, s)
		served++
	}
	if served != 1 {
		t.Errorf("%d sets served", served)
	}
	whole(t, p)
}

// flips runs f for every bit of the reserved pages flipped alone, and says
// whether the bit lies in a row of the prompt.
func flips(p *Pool, r *Reservation, f func(page, bit int, ours bool)) {
	l := p.Layout()
	for i, pg := range r.pages {
		b := floatBytes(p.page(pg))
		rows := l.rows(r.tokens, r.prefix.Pages()+i)
		for bit := range len(b) * 8 {
			row := bit / 8 / 4 / l.Row() % l.PageTokens
			b[bit/8] ^= 1 << (bit % 8)
			f(i, bit, row < rows)
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// A write that lands beside the protocol, and be it one bit, is seen; bytes
// behind the token count are not even looked at.
func TestVerifySeesEveryBit(t *testing.T) {
	const tokens = 21 // one whole page and 5 rows
	src := source(t, small(), "every bit", tokens)
	want := digests(src, 0)
	p := newPool(t, 2)
	r := reserve(t, p, tenant('a'), tokens, 0, nil)
	for i := range 2 {
		if err := send(p.Landing(), r.Key(), src, 0, i); err != nil {
			t.Fatal(err)
		}
	}
	s := seal(t, p, r)
	ours, behind := 0, 0
	flips(p, r, func(page, bit int, in bool) {
		v, err := p.Verify(s, &hashing{}, want)
		if in {
			ours++
			wants(t, err, ErrDigest, "a flipped bit")
			return
		}
		behind++
		if err != nil || v.r != r {
			t.Fatalf("page %d, bit %d behind the token count: %v", page, bit, err)
		}
		r.life = PageSealed // and once more
		for _, pg := range r.pages {
			p.life[pg] = PageSealed
		}
	})
	if ours != small().Bytes(tokens)*8 || behind != small().Bytes(32-tokens)*8 {
		t.Fatalf("flipped %d bits of the prompt and %d behind it", ours, behind)
	}
	d := &hashing{}
	if _, err := p.Verify(s, d, want); err != nil {
		t.Fatalf("untouched: %v", err)
	}
	if d.bytes != small().Bytes(tokens) {
		t.Errorf("digested %d bytes, want %d", d.bytes, small().Bytes(tokens))
	}
}

func TestVerifyExtent(t *testing.T) {
	w := newWalk(t)
	good := digests(w.src, 0)
	s := seal(t, w.p, w.r)
	swapped := []Digest{good[1], good[0], good[2]}
	for name, c := range map[string]struct {
		want []Digest
		err  error
	}{
		"none":      {nil, ErrExtent},
		"empty":     {[]Digest{}, ErrExtent},
		"one short": {good[:2], ErrExtent},
		"one over":  {append(good[:3:3], Digest{}), ErrExtent},
		"swapped":   {swapped, ErrDigest},
		"zero":      {make([]Digest, 3), ErrDigest},
	} {
		_, err := w.p.Verify(s, &hashing{}, c.want)
		wants(t, err, c.err, name)
	}
	_, err := w.p.Verify(s, nil, good)
	wants(t, err, ErrDigest, "no digester") // H-7: no digest fails closed
	if w.r.life != PageSealed {
		t.Fatalf("the reservation is %v", w.r.life)
	}
	if _, err := w.p.Verify(s, &hashing{}, good); err != nil {
		t.Fatalf("positive control: %v", err)
	}
}

// Page digests number the pages of the whole prompt: behind a prefix of two
// pages the first digest is that of page 2.
func TestVerifyBehindPrefix(t *testing.T) {
	p := newPool(t, 8)
	chain := chainOf("long prompt", 2)
	first := receive(t, p, tenant('a'), "long prompt", 32, 0, nil)
	if p.Publish(first, chain) != 2 {
		t.Fatal("not published")
	}
	release(t, p, first)
	x := p.Pin(tenant('a'), chain)
	if x.Pages() != 2 || x.Tokens() != 32 {
		t.Fatalf("pinned %d pages, %d tokens", x.Pages(), x.Tokens())
	}
	src := source(t, small(), "long prompt", 53)
	r := reserve(t, p, tenant('a'), 53, 11, x)
	if r.Pages() != 2 {
		t.Fatalf("%d pages granted", r.Pages())
	}
	for i := 2; i < 4; i++ {
		if err := send(p.Landing(), r.Key(), src, 2, i); err != nil {
			t.Fatal(err)
		}
	}
	s := seal(t, p, r)
	all := digests(src, 0)
	_, err := p.Verify(s, &hashing{}, all[:2])
	wants(t, err, ErrDigest, "digests of the prefix's pages")
	v, err := p.Verify(s, &hashing{}, all[2:])
	if err != nil {
		t.Fatal(err)
	}
	seq, err := p.Open(v)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, seq, "long prompt")
	write(t, seq, "long prompt", 11)
	holds(t, seq, "long prompt")
	if p.Counts().Idle != 0 {
		t.Error("the prefix is idle while it is read")
	}
	release(t, p, seq)
	if c := p.Counts(); c.Idle != 2 || c.Cached != 2 {
		t.Errorf("after release: %+v", c)
	}
	whole(t, p)
}
