package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// cross is a fleet of so many prefill and decode engines, of which any works with any.
func cross(t *testing.T, n *network, prefills, decodes int, change func(s *Spec)) *rig {
	t.Helper()
	s := Spec{Dialect: upstream.SGLangPD, SlowStart: -1}
	for i := range prefills {
		name := fmt.Sprint("p", i)
		n.worker(name+":1", upstream.PrefillRole, 672)
		s.Prefill = append(s.Prefill, Source{Name: name, URL: "http://" + name + ":1"})
	}
	for i := range decodes {
		name := fmt.Sprint("d", i)
		n.worker(name+":1", upstream.DecodeRole, 672)
		s.Decode = append(s.Decode, Source{Name: name, URL: "http://" + name + ":1"})
	}
	if change != nil {
		change(&s)
	}
	return n.start(t, s)
}

// tally takes targets one after the other, and counts where they are.
func (r *rig) tally(times int, a Ask) map[string]int {
	r.t.Helper()
	count := map[string]int{}
	for range times {
		target := r.take(a)
		for _, n := range target.combo.nodes {
			count[n.name]++
		}
		target.Release(Answered)
	}
	return count
}

func TestSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r := cross(t, n, 2, 3, nil)
		count := r.tally(600, exact(10, 10))
		for name, least := range map[string]int{"p0": 200, "p1": 200, "d0": 120, "d1": 120, "d2": 120} {
			if count[name] < least {
				t.Errorf("%v", count)
			}
		}
		// With one busy, the others are taken.
		var held []*Target
		for range 6 {
			held = append(held, r.take(exact(190, 10)))
		}
		for _, name := range []string{"d0", "d1", "d2"} {
			if f := r.flight(name); f < 200 || f > 600 {
				t.Errorf("%s has %d in flight", name, f)
			}
		}
		for _, h := range held {
			h.Release(Answered)
		}
		r.idle()
	})
}

func TestWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 2, 100000, func(i int, s *Source) { s.Weight = []float64{3, 1}[i] })
		var held []*Target
		for range 200 {
			held = append(held, r.take(exact(50, 50)))
		}
		if a, b := r.flight("a"), r.flight("b"); a < 2*b || a > 4*b {
			t.Errorf("three to one: %d to %d", a, b)
		}
		for _, h := range held {
			h.Release(Answered)
		}
	})
}

// TestNot is a second attempt: it goes to engines that share nothing with the first, else
// to another combination, else to the same.
func TestNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		for range 20 {
			r := cross(t, n, 2, 2, nil)
			first := r.take(exact(10, 10))
			first.Release(Unreachable)
			a := exact(10, 10)
			a.Not = first
			second := r.take(a)
			if second.Prefill == first.Prefill || second.Decode == first.Decode {
				t.Errorf("%s after %s", second.Name, first.Name)
			}
			second.Release(Answered)
			r.f.groups[0].leave()
		}
		r := cross(t, n, 1, 2, nil)
		first := r.take(exact(10, 10))
		first.Release(Unreachable)
		a := exact(10, 10)
		a.Not = first
		second := r.take(a)
		if second.Decode == first.Decode {
			t.Errorf("%s after %s", second.Name, first.Name)
		}
		second.Release(Answered)
		r = cross(t, n, 1, 1, nil)
		first = r.take(exact(10, 10))
		first.Release(Unreachable)
		a.Not = first
		if second := r.take(a); second.Name != first.Name {
			t.Errorf("%s", second.Name)
		} else {
			second.Release(Answered)
		}
	})
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r := cross(t, n, 2, 1, func(s *Spec) { s.Breaker = Breaker{Failures: 3, Open: 10 * time.Second} })
		r.run()
		fail := func(name string) {
			for range 1000 {
				target := r.take(exact(10, 10))
				if target.Prefill.Name() == name {
					target.Release(Failed, target.Prefill)
					return
				}
				target.Release(Cancelled)
			}
			t.Fatalf("%s is never taken", name)
		}
		for range 3 {
			fail("p0")
		}
		if s := r.node("p0"); s.Ready || s.Why != Broken || s.Breaker != "open" {
			t.Fatalf("%v %v", s.Why, s.Breaker)
		}
		if s := r.node("d0"); !s.Ready || s.Breaker != "closed" {
			t.Errorf("prefill failed, and decode is %v", s.Why)
		}
		if count := r.tally(50, exact(10, 10)); count["p0"] != 0 {
			t.Errorf("%v", count)
		}
		time.Sleep(10 * time.Second)
		if s := r.node("p0"); s.Breaker != "half-open" {
			t.Errorf("%v", s.Breaker)
		}
		// One at a time tries it.
		var trial *Target
		for range 100 {
			target := r.take(exact(10, 10))
			if target.Prefill.Name() == "p0" {
				if trial != nil {
					t.Fatal("two trials at once")
				}
				trial = target
				continue
			}
			target.Release(Answered)
		}
		if trial == nil {
			t.Fatal("no trial")
		}
		trial.Release(Answered)
		if s := r.node("p0"); !s.Ready || s.Breaker != "closed" {
			t.Errorf("%v %v", s.Why, s.Breaker)
		}
		if events := fmt.Sprint(r.kinds()); !strings.Contains(events, "p0 breaker_opened") || !strings.Contains(events, "p0 breaker_closed") {
			t.Errorf("%s", events)
		}
		// When all are open, nobody waits for them.
		for range 3 {
			target := r.take(exact(10, 10))
			target.Release(Void, target.Decode)
		}
		r.fails(exact(10, 10), ErrNoneReady)
		r.idle()
	})
}

// TestRefusalsAreNoFailures holds that requests which were refused as they may be, or
// which nobody waited for, open no breaker.
func TestRefusalsAreNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, _ := one(t, n)
		for range 100 {
			r.take(exact(10, 10)).Release(Refused)
			r.take(exact(10, 10)).Release(Cancelled)
		}
		if !r.g.Ready() {
			t.Error("not ready")
		}
		for range 5 {
			r.take(exact(10, 10)).Release(Unreachable)
		}
		if r.g.Ready() || r.node("a-p").Why != Broken {
			t.Error("failures open none either")
		}
	})
}

func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		s := Spec{Dialect: upstream.SGLang, SlowStart: 20 * time.Second}
		var engines []*engine
		for _, name := range []string{"a", "b"} {
			engines = append(engines, n.plain(name+":1", 100000))
			s.Plain = append(s.Plain, Source{Name: name, URL: "http://" + name + ":1"})
		}
		r := n.start(t, s)
		r.run()
		time.Sleep(20500 * time.Millisecond)
		if r.node("a").Weight != 1 {
			t.Errorf("weight %v", r.node("a").Weight)
		}
		engines[1].do(func() { engines[1].down = true })
		time.Sleep(3 * time.Second)
		engines[1].do(func() { engines[1].down = false })
		time.Sleep(2500 * time.Millisecond)
		if w := r.node("b").Weight; w < 0.1 || w > 0.3 {
			t.Errorf("back for 2 s: weight %v", w)
		}
		load := func() float64 {
			var held []*Target
			for range 100 {
				held = append(held, r.take(exact(50, 50)))
			}
			part := float64(r.flight("b")) / float64(r.flight("a")+r.flight("b"))
			for _, h := range held {
				h.Release(Answered)
			}
			return part
		}
		if part := load(); part > 0.3 || part == 0 {
			t.Errorf("it has %.2f of the load at once", part)
		}
		time.Sleep(20 * time.Second)
		if part := load(); part < 0.4 || r.node("b").Weight != 1 {
			t.Errorf("it has %.2f of the load after 20 s", part)
		}
	})
}

func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r := cross(t, n, 2, 2, nil)
		var old *Target
		for old == nil || old.Prefill.Name() != "p0" {
			if old != nil {
				old.Release(Cancelled)
			}
			old = r.take(exact(10, 10))
		}
		next := r.next(map[string]Spec{"m": withState(r.g.Spec(), "p0", Draining)})
		if count := next.tally(100, exact(10, 10)); count["p0"] != 0 || count["d0"] == 0 {
			t.Errorf("a draining prefill engine took %v", count)
		}
		if s := next.node("p0"); s.Why != Drains || s.Requests != 1 {
			t.Errorf("%v, %d requests", s.Why, s.Requests)
		}
		// What is in progress goes on to its end, at both.
		old.Prefilled()
		old.Release(Answered)
		if next.node("p0").Requests != 0 {
			t.Error("not drained")
		}
		next.idle()
	})
}

// withState is a specification with one source in another state.
func withState(s Spec, name string, state State) Spec {
	for _, list := range [][]Source{s.Plain, s.Prefill, s.Decode} {
		for i := range list {
			if list[i].Name == name {
				list[i].State = state
			}
		}
	}
	return s
}

func TestPrivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 2, 672, func(i int, s *Source) {
			if i == 1 {
				s.State = Private
			}
		})
		if count := r.tally(50, exact(10, 10)); count["b"] != 0 {
			t.Errorf("%v", count)
		}
		a := exact(10, 10)
		a.Private = "b"
		if count := r.tally(50, a); count["b"] != 50 {
			t.Errorf("%v", count)
		}
		a.Private = "a" // not private
		r.fails(a, ErrNoneReady)
		a.Private = "c"
		r.fails(a, ErrNoneReady)
		r.idle()
	})
}

func TestCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 3, 672, func(i int, s *Source) {
			if i == 2 {
				s.State, s.Share = Canary, 0.1
			}
		})
		if c := r.tally(2000, exact(10, 10))["c"]; c < 150 || c > 250 {
			t.Errorf("a tenth of 2000: %d", c)
		}
		// A session stays on its side.
		for session := uint64(1); session < 100; session++ {
			a := exact(10, 10)
			a.Session = session
			if c := r.tally(5, a)["c"]; c != 0 && c != 5 {
				t.Fatalf("session %d: %d of 5", session, c)
			}
		}
		// Without its canary everybody is served; with nothing but it, its share is.
		engines[2].do(func() { engines[2].down = true })
		r.refresh()
		r.tally(100, exact(10, 10))
		engines[2].do(func() { engines[2].down = false })
		engines[0].do(func() { engines[0].down = true })
		engines[1].do(func() { engines[1].down = true })
		r.refresh()
		served := 0
		for range 500 {
			target, _, err := r.g.Acquire(context.Background(), exact(10, 10))
			if err == nil {
				served++
				target.Release(Answered)
			}
		}
		if served < 25 || served > 80 {
			t.Errorf("the canary took %d of 500", served)
		}
		if r.g.Ready() {
			t.Error("ready with nothing but a canary")
		}
	})
}

func TestAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 4, 672, nil)
		home := map[uint64]string{}
		for key := uint64(1); key <= 40; key++ {
			a := exact(10, 10)
			a.Session = key
			count := r.tally(5, a)
			for name := range count {
				home[key] = name
			}
			if len(count) != 1 {
				t.Fatalf("session %d was at %v", key, count)
			}
			a.Session, a.Prefix = 0, key
			if count := r.tally(5, a); count[home[key]] != 5 {
				t.Fatalf("a prefix of the same key was at %v", count)
			}
		}
		at := map[string]int{}
		for _, name := range home {
			at[name]++
		}
		if len(at) != 4 {
			t.Errorf("all sessions at %v", at)
		}
		// Only the sessions of an engine that goes move.
		engines[0].do(func() { engines[0].down = true })
		r.refresh()
		for key, name := range home {
			a := exact(10, 10)
			a.Session = key
			if count := r.tally(1, a); name != "a" && count[name] != 1 || count["a"] != 0 {
				t.Errorf("session %d moved from %s to %v", key, name, count)
			}
		}
		// A session that is all the load does not stay at one engine.
		a := exact(90, 10)
		a.Session = 1
		used := map[string]bool{}
		var held []*Target
		for range 12 {
			target := r.take(a)
			used[target.Name] = true
			held = append(held, target)
		}
		if len(used) != 3 {
			t.Errorf("1200 tokens at %v", used)
		}
		for _, h := range held {
			h.Release(Answered)
		}
		r.idle()
	})
}

// TestHealth is recipe S1 beside frozen and slow engines, which TestSlowIsNotDead has:
// three misses evict, one right answer brings back, junk counts as silence does, and two
// engines that do not meet are not used together while each is with others.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r := cross(t, n, 2, 2, nil)
		r.run()
		const every = 10 * time.Second
		// The answers of the engines, by pair.
		answers := func(t *Target) Health { return Right }
		slow := time.Duration(0)
		ask := func() (asked int) {
			for range 4 {
				target := r.g.Probe(every)
				if target == nil {
					break
				}
				asked++
				time.Sleep(slow)
				h := answers(target)
				if h == Right {
					target.Release(Answered)
				} else {
					target.Release(Cancelled)
				}
				r.f.SetHealth(target, h)
			}
			return asked
		}
		rounds := func(n int) (asked int) {
			for range n {
				asked += ask()
				time.Sleep(every)
			}
			return asked
		}
		if asked := rounds(2); asked != 4 {
			t.Errorf("asked %d times: two pairs in two rounds", asked)
		}
		// Right but slow is ready.
		slow = 2 * time.Second
		rounds(2)
		slow = 0
		if len(r.readyNodes()) != 4 {
			t.Errorf("slow but right: %v", r.readyNodes())
		}
		for name, wrong := range map[string]Health{"junk": Wrong, "nothing": Silent} {
			answers = func(t *Target) Health {
				if t.Prefill.Name() == "p1" {
					return wrong
				}
				return Right
			}
			rounds(2)
			if len(r.readyNodes()) != 4 {
				t.Errorf("%s twice: %v", name, r.readyNodes())
			}
			rounds(3)
			if got := fmt.Sprint(r.readyNodes()); got != "[p0 d0 d1]" {
				t.Errorf("%s: ready are %s", name, got)
			}
			if s := r.node("p1"); s.Why != Unwell || s.Misses < maxMisses {
				t.Errorf("%v, %d misses", s.Why, s.Misses)
			}
			if count := r.tally(50, exact(10, 10)); count["p1"] != 0 {
				t.Errorf("%v", count)
			}
			answers = func(t *Target) Health { return Right }
			rounds(1)
			if len(r.readyNodes()) != 4 {
				t.Errorf("after one right answer: %v", r.readyNodes())
			}
			rounds(3)
		}
		// One pair whose hand-shake fails.
		answers = func(t *Target) Health {
			if t.Prefill.Name() == "p1" && t.Decode.Name() == "d1" {
				return Silent
			}
			return Right
		}
		rounds(8)
		if len(r.readyNodes()) != 4 {
			t.Errorf("each works with others, and ready are %v", r.readyNodes())
		}
		for range 50 {
			target := r.take(exact(10, 10))
			if target.Name == "p1>d1" {
				t.Fatal("two that do not meet are used together")
			}
			target.Release(Answered)
		}
		r.idle()
	})
}

func (r *rig) readyNodes() (names []string) {
	for _, s := range r.f.Status() {
		if s.Ready {
			names = append(names, s.Name)
		}
	}
	return names
}

// TestProbeOfFull holds that an engine which hangs, full of requests, is asked all the
// same.
func TestProbeOfFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 1, 100, nil)
		held := r.take(exact(90, 10))
		probe := r.g.Probe(time.Second)
		if probe == nil {
			t.Fatal("not asked")
		}
		if r.g.Probe(time.Second) != nil {
			t.Error("asked twice at once")
		}
		for range maxMisses {
			r.f.SetHealth(probe, Silent)
		}
		probe.Release(Cancelled)
		if r.g.Ready() || r.node("a").Why != Unwell {
			t.Errorf("%v", r.node("a").Why)
		}
		waits := r.later(context.Background(), exact(10, 10))
		if !waits.got().done {
			t.Error("waits for an engine that is unwell")
		}
		held.Release(Answered)
		synctest.Wait()
		r.idle()
	})
}

// TestFollow is a new configuration: what is known and what is in flight goes on.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 2, 672, nil)
		for range maxMisses {
			for {
				time.Sleep(time.Nanosecond)
				p := r.g.Probe(0)
				if p.Name == "b" {
					r.f.SetHealth(p, Wrong)
					p.Release(Cancelled)
					break
				}
				p.Release(Cancelled)
			}
		}
		held := r.take(exact(400, 10))
		old := r.later(context.Background(), exact(400, 10))
		next := r.next(map[string]Spec{"m": r.g.Spec()})
		if !next.g.Ready() || next.node("b").Why != Unwell || engines[0].times("/v1/models") != 1 {
			t.Fatalf("not ready at once: %v, %v", next.node("a").Why, next.node("b").Why)
		}
		if next.flight("a") != 410 {
			t.Errorf("%d in flight by the new count", next.flight("a"))
		}
		other := exact(400, 10)
		other.Tenant = "u"
		young := next.later(context.Background(), other)
		if old.got().done || young.got().done {
			t.Fatalf("%+v %+v", old.got(), young.got())
		}
		// Each release serves one that waits, under whatever configuration.
		held.Release(Answered)
		synctest.Wait()
		if (old.got().t == nil) == (young.got().t == nil) {
			t.Fatalf("%+v %+v", old.got(), young.got())
		}
		first, second := old, young
		if old.got().t == nil {
			first, second = young, old
		}
		first.got().t.Release(Answered)
		synctest.Wait()
		if second.got().t == nil {
			t.Fatalf("a wake-up was lost: %+v", second.got())
		}
		second.got().t.Release(Answered)
		r.idle()
		next.idle()
		// The end of the old one takes nothing from the new one.
		for _, g := range r.f.groups {
			g.leave()
		}
		next.take(exact(10, 10)).Release(Answered)
		if got := len(next.g.board.meters); got != 2 {
			t.Errorf("%d meters", got)
		}
	})
}

// TestFollowForgets holds that engines which no configuration names any more leave
// nothing behind, once their requests have ended.
func TestFollowForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 2, 672, nil)
		var held *Target
		for held == nil || held.Name != "b" {
			if held != nil {
				held.Release(Cancelled)
			}
			held = r.take(exact(10, 10))
		}
		s := r.g.Spec()
		s.Plain = s.Plain[:1]
		next := r.next(map[string]Spec{"m": s})
		for _, g := range r.f.groups {
			g.leave()
		}
		b := next.g.board
		if len(b.meters) != 2 {
			t.Errorf("%d meters while one has a request", len(b.meters))
		}
		held.Release(Answered)
		if len(b.meters) != 1 || len(b.matches) != 1 {
			t.Errorf("%d meters, %d matches", len(b.meters), len(b.matches))
		}
		r.f.groups = nil
	})
}
