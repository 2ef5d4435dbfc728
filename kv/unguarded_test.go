package kv

import "testing"

// The way around must really go around, or a drill would show nothing: pages
// that nobody wrote are read, and a key that was never revoked goes on opening
// the pages after they were freed.
func TestUnguardedLetsThrough(t *testing.T) {
	u := NewUnguarded()
	p := newPool(t, 4)
	r := reserve(t, p, tenant('b'), 64, 0, nil)
	src := source(t, small(), "one page", 64)
	if err := send(p.Landing(), r.Key(), src, 0, 0); err != nil {
		t.Fatal(err)
	}
	s, err := p.Open(u.Trust(p, r)) // not sealed, not verified
	if err != nil {
		t.Fatal(err)
	}
	if k, _, err := s.Rows(0, 3, 64); err != nil || len(k) != 32 {
		t.Fatalf("rows that nobody wrote: %d values, %v", len(k), err)
	}
	if err := send(p.Landing(), r.Key(), src, 0, 1); err != nil {
		t.Fatalf("the key is live, as it says: %v", err)
	}
	release(t, p, s)

	next := receive(t, p, tenant('c'), "next owner", 64, 0, nil)
	if err := send(p.Landing(), r.Key(), src, 0, 2); err != nil {
		t.Fatalf("a late write: %v", err)
	}
	if differs(next, "next owner") == "" {
		t.Error("the late write landed nowhere: this shows nothing")
	}
	if p.Landing().Open() != 1 {
		t.Errorf("%d keys open", p.Landing().Open())
	}
	release(t, p, next)
	p.Landing().Revoke(r.Key())
	whole(t, p)
}

func TestUnguardedFree(t *testing.T) {
	u := NewUnguarded()
	p := newPool(t, 4)
	for _, sealed := range []string{"no", "yes"} {
		r := reserve(t, p, tenant('a'), 20, 20, nil)
		if sealed == "yes" {
			seal(t, p, r)
		}
		if err := u.Free(p, r); err != nil {
			t.Fatal(err)
		}
		wants(t, u.Free(p, r), ErrLife, "a second free")
		p.Landing().Revoke(r.Key())
		whole(t, p)
	}
}

// It is no master key: a value made from nothing does nothing, and a
// reservation that is over stays over, for its pages are somebody else's.
func TestUnguardedRefuses(t *testing.T) {
	p := newPool(t, 4)
	r := reserve(t, p, tenant('a'), 20, 20, nil)
	var none *Unguarded
	for _, u := range []*Unguarded{none, {}} {
		if v := u.Trust(p, r); v.r != nil {
			t.Error("trusted by nothing")
		}
		wants(t, u.Free(p, r), ErrLife, "freed by nothing")
	}
	u := NewUnguarded()
	if v := u.Trust(p, nil); v.r != nil {
		t.Error("trusted nothing")
	}
	if v := u.Trust(newPool(t, 4), r); v.r != nil {
		t.Error("trusted for another pool")
	}
	seal(t, p, r)
	free(t, p, r)
	other := reserve(t, p, tenant('b'), 20, 20, nil)
	if v := u.Trust(p, r); v.r != nil {
		t.Error("trusted a reservation that is over")
	}
	wants(t, u.Free(p, r), ErrLife, "free of a reservation that is over")
	if p.life[other.pages[0]] != PageReserved {
		t.Errorf("the next owner's page is %v", p.life[other.pages[0]])
	}
	seal(t, p, other)
	free(t, p, other)
	whole(t, p)
}
