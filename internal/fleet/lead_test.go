package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

// miss makes the only engine of the model miss its question as often as it takes.
func (r *rig) miss() {
	r.t.Helper()
	for range maxMisses {
		p := r.g.Probe(0)
		if p == nil {
			r.t.Fatal("nobody is asked")
		}
		p.Release(Cancelled)
		r.f.SetHealth(p, Wrong)
	}
	if r.g.Ready() {
		r.t.Fatal("ready after three misses")
	}
}

// TestMissesFollowTheQuestion: a question that is asked no more, or is another one, keeps
// nobody from work, and another one is asked at once.
func TestMissesFollowTheQuestion(t *testing.T) {
	for name, tc := range map[string]struct {
		question uint64
		served   string
		ready    bool
	}{
		"the same": {7, "m", false}, "none": {0, "m", true}, "another": {8, "m", true}, "of another model": {7, "n", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				first, engines := plains(t, n, 1, 672, nil)
				s := first.g.Spec()
				s.Question = 7
				r := n.startAll(t, map[string]Spec{"m": s})
				r.miss()
				s.Question, s.Served = tc.question, tc.served
				for _, e := range engines {
					e.do(func() {
						e.pages["/v1/models"] = page{200, map[string]any{"data": []any{map[string]any{"id": "m"}, map[string]any{"id": "n"}}}}
					})
				}
				next := r.next(map[string]Spec{"m": s})
				next.refresh()
				if got := next.node("a"); got.Ready != tc.ready || tc.ready && got.Misses != 0 {
					t.Errorf("%v, %d misses", got.Why, got.Misses)
				}
				asked := next.g.Probe(time.Hour)
				if (asked != nil) != tc.ready {
					t.Errorf("a question within the hour: %v", asked)
				}
				if asked != nil {
					asked.Release(Cancelled)
				}
			})
		})
	}
}

// TestOnlyTheLeaderAsks: under an earlier configuration no question is asked any more, and
// what became of the last one counts for nothing. Until the next one leads nothing changes.
func TestOnlyTheLeaderAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 1, 672, nil)
		late := r.g.Probe(0)
		f, err := New(r.config(map[string]Spec{"m": r.g.Spec()}))
		if err != nil {
			t.Fatal(err)
		}
		f.Follow(r.f)
		if f.Model("m").Probe(0) != nil {
			t.Error("asked before it leads")
		}
		late.Release(Cancelled)
		late = r.g.Probe(0)
		if late == nil {
			t.Fatal("the one that leads does not ask")
		}
		select {
		case <-r.f.Succeeded():
			t.Error("succeeded already")
		default:
		}
		f.Lead()
		<-r.f.Succeeded()
		for range maxMisses {
			r.f.SetHealth(late, Silent)
		}
		late.Release(Cancelled)
		if !f.Model("m").Ready() {
			t.Error("an earlier question counts")
		}
		if r.g.Probe(0) != nil {
			t.Error("asked under an earlier configuration")
		}
		p := f.Model("m").Probe(0)
		if p == nil {
			t.Fatal("not asked")
		}
		p.Release(Cancelled)
		f.Leave()
		if got := r.g.board.meters["http://a:1"].nodes; got != 1 {
			t.Errorf("%d nodes have the meter", got)
		}
	})
}

// TestOnlyTheLeaderWrites: the looks of an earlier configuration change neither the limits
// nor the slow start of the next one's engines.
func TestOnlyTheLeaderWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 1, 100, nil)
		s := r.g.Spec()
		s.Overcommit, s.SlowStart, s.Served = 2, time.Minute, "n"
		engines[0].do(func() {
			engines[0].pages["/v1/models"] = page{200, map[string]any{"data": []any{map[string]any{"id": "n"}}}}
		})
		engines[0].say("served_model_name", "n")
		next := r.next(map[string]Spec{"m": s})
		m := next.g.Nodes()[0].meter
		next.refresh()
		since := m.since
		if !next.g.Ready() || m.pool.Limit().Tokens != 200 {
			t.Fatalf("%v, %+v", next.node("a").Why, m.pool.Limit())
		}
		for range 3 {
			time.Sleep(10 * time.Second)
			r.refresh()
			if got := m.pool.Limit().Tokens; got != 200 || !m.up {
				t.Errorf("after a look of the earlier one: limit %d, up %t", got, m.up)
			}
			next.refresh()
			if m.since != since {
				t.Fatal("it starts once more")
			}
		}
		if r.node("a").Why != Unmatched {
			t.Errorf("the earlier one finds %v", r.node("a").Why)
		}
		// What it finds itself counts.
		engines[0].say("max_total_num_tokens", 50)
		next.refresh()
		if got := m.pool.Limit().Tokens; got != 100 {
			t.Errorf("limit %d", got)
		}
	})
}

// TestEngineOfTwoModels: two models that one engine serves do not take turns at its limit,
// and the one that it does not have keeps the other from nothing.
func TestEngineOfTwoModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		first, _ := plains(t, n, 1, 100, nil)
		one := first.g.Spec()
		one.SlowStart = time.Minute
		two := one
		two.Overcommit, two.Served = 3, "other"
		r := n.startAll(t, map[string]Spec{"m": one, "o": two})
		m := r.g.Nodes()[0].meter
		since := m.since
		for range 3 {
			time.Sleep(10 * time.Second)
			for _, g := range r.f.groups {
				g.refresh(t.Context())
				if got := m.pool.Limit().Tokens; got != 100 || !m.up || m.since != since {
					t.Errorf("after a look of %s: limit %d, up %t since %v", g.name, got, m.up, m.since)
				}
			}
		}
		n.at["a:1"].do(func() { n.at["a:1"].down = true })
		if r.refresh(); m.up {
			t.Error("up while it is away")
		}
	})
}
