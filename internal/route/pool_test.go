package route

import "testing"

func TestPool(t *testing.T) {
	var p Pool
	if p.Fits(Size{1, 1}) {
		t.Error("the zero pool has room")
	}
	p.Resize(Size{672, Unbounded})
	a := Size{400, 1}
	if !p.Fits(a) {
		t.Fatal("no room for the first")
	}
	h := p.Take(a)
	if p.Fits(a) {
		t.Error("800 tokens in a pool of 672")
	}
	if !p.Fits(Size{272, 1}) || p.Fits(Size{273, 1}) {
		t.Error("what is left is not what is left")
	}
	p.Give(h)
	if !p.Fits(a) || p.Used() != (Size{}) {
		t.Errorf("not all came back: %+v", p.Used())
	}
	p.Resize(Size{Unbounded, 2})
	p.Take(Size{Unbounded / 2, 1})
	if p.Fits(Size{Unbounded, 1}) {
		t.Error("wrapped round")
	}
	p.Take(Size{1, 1})
	if p.Fits(Size{1, 1}) {
		t.Error("three requests in two slots")
	}
}

func TestPoolLower(t *testing.T) {
	var p Pool
	p.Resize(Size{100, 10})
	h := p.Take(Size{80, 1})
	h = p.Lower(h, Size{30, 1})
	if p.Used() != (Size{30, 1}) {
		t.Errorf("lowered to %+v", p.Used())
	}
	h = p.Lower(h, Size{90, 5})
	if p.Used() != (Size{30, 1}) {
		t.Errorf("raised to %+v", p.Used())
	}
	p.Give(h)
	if p.Used() != (Size{}) {
		t.Errorf("left %+v", p.Used())
	}
}

// TestPoolKeeps is a large request among small ones: what was there before goes on, small
// ones still come in beside the kept room, and once the earlier ones are gone it fits.
func TestPoolKeeps(t *testing.T) {
	var p Pool
	p.Resize(Size{100, Unbounded})
	var old []Hold
	for range 10 {
		old = append(old, p.Take(Size{10, 1}))
	}
	if !p.Keep(Size{70, 1}) || p.Keep(Size{1, 1}) {
		t.Fatal("keeping for one")
	}
	p.Give(old[0])
	p.Give(old[1])
	p.Give(old[2])
	var young []Hold
	for p.Fits(Size{10, 1}) {
		young = append(young, p.Take(Size{10, 1}))
	}
	if len(young) != 3 {
		t.Fatalf("%d small ones beside a kept 70 of 100", len(young))
	}
	for _, h := range old[3:] {
		if p.FitsKept(Size{70, 1}) {
			t.Error("fits too early")
		}
		if p.Fits(Size{10, 1}) {
			t.Error("a small one takes kept room")
		}
		p.Give(h)
	}
	if !p.FitsKept(Size{70, 1}) {
		t.Error("the kept room is not there")
	}
	p.Give(young[0])
	if !p.Fits(Size{10, 1}) {
		t.Error("a small one gone makes no room for another")
	}
	p.Unkeep()
	p.Give(young[1])
	p.Give(young[2])
	if p.Used() != (Size{}) || p.Keeps() {
		t.Errorf("left %+v", p.Used())
	}
}

// TestPoolConserves does random things: what is in flight is the sum of the holds and
// never more than the limit, and a kept request is let in as soon as those are gone that
// were there before it.
func TestPoolConserves(t *testing.T) {
	d := dice(11)
	var p Pool
	limit := Size{1000, 20}
	p.Resize(limit)
	type held struct {
		Hold
		before bool // before the keeping
	}
	var holds []held
	kept := Size{}
	met := 0
	for range 50000 {
		s := Size{int64(1 + d.upTo(500)), 1}
		switch d.upTo(5) {
		case 0, 1:
			if p.Fits(s) {
				holds = append(holds, held{p.Take(s), false})
			}
		case 2:
			if len(holds) > 0 {
				i := d.upTo(len(holds))
				p.Give(holds[i].Hold)
				holds = append(holds[:i], holds[i+1:]...)
			}
		case 3:
			if len(holds) > 0 {
				i := d.upTo(len(holds))
				holds[i].Hold = p.Lower(holds[i].Hold, Size{holds[i].size.Tokens / 2, 1})
			}
		case 4:
			if !p.Keeps() && d.upTo(4) == 0 {
				kept = Size{int64(500 + d.upTo(501)), 1}
				p.Keep(kept)
				for i := range holds {
					holds[i].before = true
				}
			}
		}
		sum, before := Size{}, false
		for _, h := range holds {
			sum = sum.plus(h.size)
			before = before || h.before
		}
		if sum != p.Used() || sum.Tokens > limit.Tokens || sum.Requests > limit.Requests {
			t.Fatalf("holds %+v, used %+v", sum, p.Used())
		}
		if p.Keeps() && !before {
			met++
			if !p.FitsKept(kept) {
				t.Fatalf("%+v kept, %+v in flight, and all of it younger", kept, sum)
			}
			p.Unkeep()
			holds = append(holds, held{p.Take(kept), false})
		}
	}
	if met < 100 {
		t.Fatalf("kept room was used %d times: the walk shows nothing", met)
	}
}
