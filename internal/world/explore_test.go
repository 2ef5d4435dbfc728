package world

import (
	"context"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

// scenario returns one of the suite.
func scenario(t testing.TB, name string) Scenario {
	t.Helper()
	for _, sc := range Suite() {
		if sc.Name == name {
			return sc
		}
	}
	t.Fatalf("no scenario %s", name)
	return Scenario{}
}

func model(t testing.TB, sc Scenario, g handoff.Guards) *Model {
	t.Helper()
	m, err := NewModel(sc, g)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestExploreAgainstPlainSearch holds that the explorer sees every World there
// is: a search that keeps whole Worlds, under all their names, meets exactly as
// many different encodings as the explorer has states, and as many steps out of
// them.
func TestExploreAgainstPlainSearch(t *testing.T) {
	for _, c := range []struct {
		name string
		g    handoff.Guards
	}{
		{"two-tenants", handoff.All}, {"late-swap", handoff.All}, {"stops-short", handoff.All}, {"same-attempt-again", handoff.All},
		{"three-tenants", handoff.All}, {"three-tenants", handoff.All.Without(handoff.GuardDigest)},
	} {
		m := model(t, scenario(t, c.name), c.g)
		x := m.Explore(context.Background(), Limits{})
		if x.Outcome != Pass {
			t.Fatalf("%s: %v %v", c.name, x.Outcome, x.Broken)
		}
		plain, names, steps := plainSearch(m)
		if len(names) != x.States || steps != x.Steps {
			t.Errorf("%s: the explorer has %d states and %d steps, the plain search %d and %d", c.name, x.States, x.Steps, len(names), steps)
		}
		if plain <= x.States && c.name == "three-tenants" {
			t.Errorf("%s: renaming pages saves nothing: %d Worlds, %d states", c.name, plain, x.States)
		}
		t.Logf("%s: %d Worlds are %d states", c.name, plain, x.States)
	}
}

// plainSearch visits every World by value. It returns their number, their
// encodings, and the moves that one World of each encoding has.
func plainSearch(m *Model) (worlds int, names map[string]bool, steps int) {
	start := m.Start()
	seen, queue := map[World]bool{start: true}, []World{start}
	names = map[string]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		w := queue[0]
		moves, _ := m.Moves(&w, make([]Move, 0, 96))
		if name := string(m.encode(&w, nil)); !names[name] {
			names[name] = true
			steps += len(moves)
		}
		for _, mv := range moves {
			next := w
			m.Apply(&next, mv, &Step{})
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return len(seen), names, steps
}

// TestNamesOfPages holds that Worlds which differ in the names of pages and the
// slots of writes have one encoding, and go on alike.
func TestNamesOfPages(t *testing.T) {
	for _, g := range []handoff.Guards{handoff.All, handoff.All.Without(handoff.GuardKey), 0} {
		m := model(t, scenario(t, "at-once"), g)
		x := uint32(1)
		choose := func(n int) int {
			x = x*1664525 + 1013904223
			return int(x>>8) % n
		}
		renamed := 0
		for range 300 {
			w := m.Start()
			for range 40 {
				twin := rename(w, !g.Has(handoff.GuardKey))
				moves, _ := m.Moves(&w, make([]Move, 0, 96))
				others, _ := m.Moves(&twin, make([]Move, 0, 96))
				if len(moves) != len(others) {
					t.Fatalf("%d moves under other names, not %d", len(others), len(moves))
				}
				if string(m.encode(&w, nil)) != string(m.encode(&twin, nil)) {
					t.Fatal("other names, other encoding")
				}
				if twin != w {
					renamed++
				}
				if len(moves) == 0 {
					break
				}
				mv := moves[choose(len(moves))]
				other, ok := sameMove(m, &w, mv, &twin, others)
				if !ok {
					t.Fatalf("%s is not enabled under other names", m.Name(&w, mv))
				}
				var s, s2 Step
				m.Apply(&w, mv, &s)
				m.Apply(&twin, other, &s2)
				if s.Broken != s2.Broken || string(m.encode(&w, nil)) != string(m.encode(&twin, nil)) {
					t.Fatalf("%s goes another way under other names: %v, %v", m.Name(&w, mv), s.Broken, s2.Broken)
				}
			}
		}
		if renamed == 0 {
			t.Error("no World was renamed: the test compares nothing")
		}
	}
}

// rename swaps the names of the first two pages of both pools, wherever they
// stand, and the first two slots of writes. Grants name pages only without keys.
func rename(w World, grants bool) World {
	swap := func(p *uint8) {
		if *p < 2 {
			*p = 1 - *p
		}
	}
	w.pool[0], w.pool[1] = w.pool[1], w.pool[0]
	w.source[0], w.source[1] = w.source[1], w.source[0]
	for i := range w.free.n {
		swap(&w.free.list[i])
	}
	for i := range w.sfree.n {
		swap(&w.sfree.list[i])
	}
	if w.cache.is {
		swap(&w.cache.page)
	}
	for a := range w.dec {
		d := &w.dec[a]
		for i := range d.n {
			swap(&d.pages[i])
		}
		if d.pin {
			swap(&d.prefix)
		}
	}
	for side := range w.pre {
		p := &w.pre[side]
		for i := range p.n {
			swap(&p.pages[i])
		}
		if grants && p.res != 0 {
			for i := range p.dst[:p.granted] {
				swap(&p.dst[i])
			}
		}
	}
	msgs := w.msgs
	w.msgs = [maxMessages]message{}
	for _, m := range msgs {
		if m == 0 {
			continue
		}
		if l := m.unpack(); grants && l.kind == handoff.Grant {
			for i := range l.view.pages() {
				swap(&l.pages[i])
			}
			m = l.pack()
		}
		w.add(m)
	}
	for i := range w.writes {
		if wr := &w.writes[i]; wr.used {
			if grants && wr.ord < wr.of {
				swap(&wr.dst)
			}
			if !wr.captured {
				swap(&wr.src)
			}
		}
	}
	w.writes[0], w.writes[1] = w.writes[1], w.writes[0]
	return w
}

// sameMove finds the move of the twin that has the same name.
func sameMove(m *Model, w *World, mv Move, twin *World, moves []Move) (Move, bool) {
	for _, o := range moves {
		if m.Name(twin, o) == m.Name(w, mv) {
			return o, true
		}
	}
	return Move{}, false
}

// TestExploreBounds holds that what was cut short is unknown, never a pass.
func TestExploreBounds(t *testing.T) {
	m := model(t, scenario(t, "at-once"), handoff.All)
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		name   string
		ctx    context.Context
		limits Limits
		why    string
	}{
		{"states", context.Background(), Limits{States: 1000}, "memory"},
		{"depth", context.Background(), Limits{Depth: 5}, "depth"},
		{"stopped", stopped, Limits{}, "stopped"},
	} {
		if x := m.Explore(c.ctx, c.limits); x.Outcome != Unknown || !strings.Contains(x.Why, c.why) {
			t.Errorf("%s: %v (%s)", c.name, x.Outcome, x.Why)
		}
	}
	w := m.Start()
	for i := range maxMessages + 1 {
		w.add(message(i + 1))
	}
	if !w.overflow {
		t.Error("a full bag of messages goes unnoticed")
	}
}

// TestCircles holds that fair moves that go round are found, and that a graph
// without a circle is not.
func TestCircles(t *testing.T) {
	m := model(t, scenario(t, "two-tenants"), handoff.All)
	for _, c := range []struct {
		name  string
		fair  [4][]uint32 // from each state
		found bool
	}{
		{"none", [4][]uint32{{1, 2}, {3}, {3}, nil}, false},
		{"a loop", [4][]uint32{{1, 2}, {3}, {3}, {3}}, true},
		{"a circle", [4][]uint32{{1, 2}, {3}, {3}, {1}}, true},
		{"a circle aside", [4][]uint32{{1}, nil, {3}, {2}}, true},
	} {
		e := &explorer{m: m, parents: make([]uint32, 4), moves: make([]Move, 4)}
		for _, to := range c.fair {
			e.first = append(e.first, uint32(len(e.fair)))
			e.fair = append(e.fair, to...)
		}
		e.circles()
		if found := e.x.Broken.Invariant == V8; found != c.found {
			t.Errorf("%s: found: %v", c.name, found)
		}
	}
}

// TestTable holds that keys keep their numbers while the table grows.
func TestTable(t *testing.T) {
	var tab table
	const n = 50_000
	mix := func(i int) key {
		x := uint64(i) * 0x9e3779b97f4a7c15
		return key{uint64(i), x ^ x>>32}
	}
	for i := range n {
		if got, found := tab.number(mix(i)); found || got != uint32(i) {
			t.Fatalf("key %d: number %d, found: %v", i, got, found)
		}
	}
	for i := range n {
		if got, found := tab.number(mix(i)); !found || got != uint32(i) {
			t.Fatalf("key %d again: number %d, found: %v", i, got, found)
		}
	}
}

// TestStepDoesNotAllocate holds the explorer's budget for the inner loop.
func TestStepDoesNotAllocate(t *testing.T) {
	m := model(t, scenario(t, "late-writes"), handoff.All)
	var room [96]Move
	buf := make([]byte, 0, 512)
	n := testing.AllocsPerRun(50, func() {
		w, x := m.Start(), uint32(3)
		for {
			moves, _ := m.Moves(&w, room[:])
			if len(moves) == 0 {
				return
			}
			x = x*1664525 + 1013904223
			var s Step
			m.Apply(&w, moves[int(x>>8)%len(moves)], &s)
			buf = m.encode(&w, buf[:0])
		}
	})
	if n != 0 {
		t.Errorf("%v allocations in a walk", n)
	}
}

// TestModelRefuses holds that a scenario outside the World's bounds is refused.
func TestModelRefuses(t *testing.T) {
	good := func() Scenario {
		return Scenario{Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 2}}, DecodePages: 2, SourcePages: 2}
	}
	if _, err := NewModel(good(), handoff.All); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(sc *Scenario){
		"no attempt":            func(sc *Scenario) { sc.Attempts = nil },
		"too many attempts":     func(sc *Scenario) { sc.Attempts = make([]Attempt, MaxAttempts+1) },
		"no pool":               func(sc *Scenario) { sc.DecodePages = 0 },
		"a pool too large":      func(sc *Scenario) { sc.SourcePages = MaxPages + 1 },
		"a prompt too large":    func(sc *Scenario) { sc.Attempts[0].Pages = 3 },
		"no domain":             func(sc *Scenario) { sc.Attempts[0].Domain = 0 },
		"no room":               func(sc *Scenario) { sc.Attempts[0].Room = 0 },
		"after itself":          func(sc *Scenario) { sc.Attempts[0].After = 1 },
		"after nobody":          func(sc *Scenario) { sc.Attempts[0].After = 2 },
		"a swap into nothing":   func(sc *Scenario) { sc.Attempts[0].Prefill = SwapsAfter },
		"a stub that is whole":  func(sc *Scenario) { sc.Attempts[0].Prefill, sc.Attempts[0].Stub = StopsShort, 2 },
		"a stub that is spare":  func(sc *Scenario) { sc.Attempts[0].Stub = 1 },
		"ranks that do not fit": func(sc *Scenario) { sc.Ranks, sc.Attempts[0].Pages = 2, 2 },
		"too many ranks":        func(sc *Scenario) { sc.Ranks, sc.Attempts[0].Pages = 3, 1 },
		"torn ranks":            func(sc *Scenario) { sc.Ranks, sc.Attempts[0].Pages, sc.Torn = 2, 1, true },
		"a handle beside a leg": func(sc *Scenario) { sc.Attempts[0].Handle = 1 },
		"an unknown habit":      func(sc *Scenario) { sc.Habits = habitEnd },
		"decode that swaps":     func(sc *Scenario) { sc.Attempts[0].Decode = SwapsAfter },
		"an unknown conduct":    func(sc *Scenario) { sc.Attempts[0].Prefill = conducts },
		"a cached page":         func(sc *Scenario) { sc.CachedDomain = 4 },
	} {
		sc := good()
		spoil(&sc)
		if _, err := NewModel(sc, handoff.All); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestPacking holds that packing loses nothing of a message, and that a value
// outside the vocabulary is never packed into another.
func TestPacking(t *testing.T) {
	l := letter{
		kind: handoff.Quiet, to: Prefill, slot: 2, rank: 1, attempt: 3, room: 7, epoch: 7, counter: 15, code: handoff.NoRoom, limit: tooLong,
		conn: 7, res: 7, pages: [MaxExtent]uint8{3, 2, 1}, view: viewOf(2, true, 3, 2, 1, 3),
	}
	if got := l.pack().unpack(); got != l {
		t.Errorf("got %+v, want %+v", got, l)
	}
	v := l.view.view()
	if packView(&v) != l.view {
		t.Errorf("view %+v", v)
	}
	for name, f := range map[string]func(){
		"a message": func() { l.counter = 16; l.pack() },
		"a view":    func() { v.Layout++; packView(&v) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s outside the vocabulary was packed", name)
				}
			}()
			f()
		}()
	}
}

// TestInvariants holds that every invariant has a number and a sentence of its
// own, and that every way to break one says so.
func TestInvariants(t *testing.T) {
	seen := map[string]bool{}
	for _, i := range Invariants() {
		if seen[i.String()] || seen[i.Sentence()] || i.Sentence() == "" {
			t.Errorf("%v: %q", i, i.Sentence())
		}
		seen[i.String()], seen[i.Sentence()] = true, true
	}
	broken := map[Invariant]bool{}
	for y := whyNone + 1; y < whys; y++ {
		if y.invariant() == NoInvariant || y.say() == "" || seen[y.say()] {
			t.Errorf("way %d: %v %q", y, y.invariant(), y.say())
		}
		seen[y.say()], broken[y.invariant()] = true, true
	}
	for _, i := range Invariants() {
		if !broken[i] {
			t.Errorf("%v: nothing in this World can break it", i)
		}
	}
}
