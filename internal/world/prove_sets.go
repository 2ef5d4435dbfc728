package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"bulkhead.dev/bulkhead/handoff"
)

// SetsOptions says which guards are in question and what must hold without the others.
type SetsOptions struct {
	Scenarios []Scenario     // nil means [Small]
	Fixed     handoff.Guards // on in every set
	Hold      Invariant
	Workers   int // scenarios at a time; 0 means 1
	States    int // kept by one exploration; 0 means 4 million
}

// SetsReport lists every minimal set of guards under which the invariant holds in every
// scenario: with one guard less it breaks. It takes for granted that a guard more never
// makes an unsafe set of a safe one.
type SetsReport struct {
	Sets         []handoff.Guards // besides the fixed ones; smallest first
	Needs        []handoff.Guards // at least one of each of these is in every set
	Explorations int
	States       int
}

// lattice is the search in one scenario.
type lattice struct {
	sc           Scenario
	o            *SetsOptions
	safe, unsafe []handoff.Guards // known: every superset, every subset
	needs        []handoff.Guards // complements of the largest unsafe sets
	sets         []handoff.Guards // smallest safe sets
	explorations int
	states       int
	err          error
}

// MinimalSets finds all minimal sets. For each scenario it keeps the smallest sets that meet
// every need seen so far; each is explored; one that is unsafe is grown to a largest unsafe
// set, and what that lacks is a new need. An error is an exploration that was not finished.
func MinimalSets(ctx context.Context, o SetsOptions) (SetsReport, error) {
	if o.Scenarios == nil {
		o.Scenarios = Small()
	}
	if o.States == 0 {
		o.States = 4_000_000
	}
	all := make([]lattice, len(o.Scenarios))
	jobs := make(chan int)
	var wait sync.WaitGroup
	for range max(1, o.Workers) {
		wait.Go(func() {
			for i := range jobs {
				all[i] = lattice{sc: o.Scenarios[i], o: &o}
				all[i].search(ctx)
			}
		})
	}
	for i := range all {
		jobs <- i
	}
	close(jobs)
	wait.Wait()
	r := SetsReport{Sets: []handoff.Guards{0}}
	for i := range all {
		l := &all[i]
		if l.err != nil {
			return r, fmt.Errorf("world: scenario %s: %w", l.sc.Name, l.err)
		}
		r.Explorations += l.explorations
		r.States += l.states
		r.Needs = append(r.Needs, l.needs...)
		var joined []handoff.Guards
		for _, a := range r.Sets {
			for _, b := range l.sets {
				joined = append(joined, a|b)
			}
		}
		r.Sets = smallest(joined)
	}
	r.Needs = smallest(r.Needs)
	order(r.Sets)
	order(r.Needs)
	return r, nil
}

// question is every guard that is not fixed.
func (l *lattice) question() handoff.Guards { return handoff.All &^ l.o.Fixed }

func (l *lattice) search(ctx context.Context) {
	tries := []handoff.Guards{0}
	for len(tries) > 0 && l.err == nil {
		g := tries[0]
		if l.isSafe(ctx, g) {
			l.sets, tries = append(l.sets, g), tries[1:]
			continue
		}
		for one := handoff.Guards(1); one <= handoff.All && l.err == nil; one <<= 1 {
			if l.question()&one&^g != 0 && !l.isSafe(ctx, g|one) {
				g |= one
			}
		}
		need := l.question() &^ g
		if need == 0 && l.err == nil {
			l.err = errors.New("it breaks with every guard on")
		}
		l.needs = append(l.needs, need)
		tries = l.meet(tries, need)
	}
}

// meet changes the sets that do not meet a need so that they do.
func (l *lattice) meet(tries []handoff.Guards, need handoff.Guards) []handoff.Guards {
	var next []handoff.Guards
	for _, t := range tries {
		if t&need != 0 {
			next = append(next, t)
			continue
		}
		for one := handoff.Guards(1); one <= need; one <<= 1 {
			if need&one != 0 {
				next = append(next, t|one)
			}
		}
	}
	// A set that holds a known safe one is not smallest.
	next = smallest(append(next, l.sets...))
	return slices.DeleteFunc(next, func(g handoff.Guards) bool { return slices.Contains(l.sets, g) })
}

// isSafe reports whether the invariant holds under a set.
func (l *lattice) isSafe(ctx context.Context, g handoff.Guards) bool {
	for _, s := range l.safe {
		if g.Has(s) {
			return true
		}
	}
	for _, u := range l.unsafe {
		if u.Has(g) {
			return false
		}
	}
	m, err := NewModel(l.sc, g|l.o.Fixed)
	if err != nil {
		l.err = err
		return false
	}
	x := m.Explore(ctx, Limits{States: l.o.States, Only: l.o.Hold, Slack: true})
	l.explorations++
	l.states += x.States
	switch x.Outcome {
	case Pass:
		l.safe = append(l.safe, g)
		return true
	case Unknown:
		l.err = fmt.Errorf("with %v: %s", g|l.o.Fixed, x.Why)
	}
	l.unsafe = append(l.unsafe, g)
	return false
}

// smallest keeps the sets that hold no other.
func smallest(sets []handoff.Guards) []handoff.Guards {
	order(sets)
	var kept []handoff.Guards
next:
	for _, g := range sets {
		for _, k := range kept {
			if g.Has(k) {
				continue next
			}
		}
		kept = append(kept, g)
	}
	return kept
}

// order sorts sets by size, then by their guards' order.
func order(sets []handoff.Guards) {
	slices.SortFunc(sets, func(a, b handoff.Guards) int {
		return cmp.Or(cmp.Compare(bits.OnesCount32(uint32(a)), bits.OnesCount32(uint32(b))), cmp.Compare(a, b))
	})
}

// Text prints the report: what a golden file holds.
func (r SetsReport) Text() string {
	var b strings.Builder
	for _, g := range r.Sets {
		fmt.Fprintf(&b, "%2d %v\n", bits.OnesCount32(uint32(g)), g)
	}
	b.WriteString("\nat least one of each:\n")
	for _, g := range r.Needs {
		fmt.Fprintf(&b, "   %v\n", g)
	}
	return b.String()
}

// Small returns scenarios that are explored in a moment under any set of guards and
// between them have every adversary that can change what decode reads.
func Small() []Scenario {
	one := []Attempt{{Domain: 1, Room: 1, Pages: 1}}
	turns := []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1, After: 1}}
	both := []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1}}
	swap := func(name string, c Conduct, pages, stub uint8) Scenario {
		return Scenario{Name: name, Attempts: []Attempt{{Domain: 1, Room: 1, Pages: pages, Stub: stub, Prefill: c}}, DecodePages: pages, SourcePages: pages}
	}
	return []Scenario{
		swap("stub", SwapsBefore, 2, 1), swap("one-page-stub", SwapsBefore, 1, 1), swap("careless", Careless, 1, 1),
		swap("late-swap", SwapsAfter, 2, 2), swap("stops-short", StopsShort, 2, 1),
		{Name: "unequal-legs", Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 1, DecodePages: 2, DecodePrompt: 1}}, DecodePages: 2, SourcePages: 1},
		{Name: "shorter-leg", Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 2, DecodePages: 1}}, DecodePages: 2, SourcePages: 2},
		{Name: "one-room", Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 1, Prompt: 1, Pages: 1}}, DecodePages: 2, SourcePages: 2},
		{Name: "early", Attempts: one, DecodePages: 1, SourcePages: 1, Reads: 2, Torn: true, Budget: budget(FaultEarly, FaultAgain)},
		{Name: "source", Attempts: both, DecodePages: 2, SourcePages: 1, Budget: budget(FaultCancel)},
		{Name: "source-again", Attempts: both, DecodePages: 2, SourcePages: 1, Torn: true, Reads: 2, Budget: budget(FaultAgain)},
		{Name: "next", Attempts: turns, DecodePages: 1, SourcePages: 2, Torn: true, Budget: budget(FaultCancel, FaultAgain)},
		{Name: "next-early", Attempts: turns, DecodePages: 1, SourcePages: 2, Budget: budget(FaultCancel, FaultEarly)},
		{Name: "next-lost", Attempts: turns, DecodePages: 1, SourcePages: 2, Budget: budget(FaultDeadline, FaultRepeat)},
		{Name: "next-failed", Attempts: turns, DecodePages: 1, SourcePages: 2, Budget: budget(FaultWrite, FaultCut)},
		{Name: "restart", Attempts: turns, DecodePages: 1, SourcePages: 2, Torn: true, Budget: budget(FaultCrashDecode, FaultAgain)},
		{Name: "both-restart", Attempts: turns, DecodePages: 1, SourcePages: 2, Budget: budget(FaultCrashDecode, FaultCrashPrefill)},
		{Name: "ranks", Attempts: one, DecodePages: 1, SourcePages: 2, Ranks: 2, Budget: budget(FaultEarly)},
		{Name: "odd-rank", Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 1, Odd: SwapsAfter, Stub: 1}}, DecodePages: 1, SourcePages: 2, Ranks: 2},
	}
}
