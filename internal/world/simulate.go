package world

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/handoff"
)

// SimulateSchema names the form of a [SimulateReport] in JSON.
const SimulateSchema = "bulkhead.simulate/v1"

// SimulateOptions says how long to walk, and from which seed.
type SimulateOptions struct {
	Seed    uint64         // of the first run; each next run has the next seed
	Runs    int            // 0 means 1
	Guards  handoff.Guards // 0 means every guard
	Workers int            // runs at a time; 0 means 1
	Clock   func() time.Time
}

// SimulateReport is what the runs showed.
type SimulateReport struct {
	Schema  string  `json:"schema"`
	Verdict Outcome `json:"verdict"`
	Seed    uint64  `json:"seed"`
	Runs    int     `json:"runs"`
	Steps   int     `json:"steps"`
	Rested  int     `json:"rested"` // runs that came to rest; the others reached a bound of the World
	Served  int     `json:"served"` // of these, runs in which every valid attempt was served
	Seconds float64 `json:"seconds"`
	// Of the failing run with the lowest seed:
	Failed    uint64 `json:"failed,omitempty"` // its seed: alone, it fails again
	Invariant string `json:"invariant,omitempty"`
	Broken    string `json:"broken,omitempty"`
	Story     string `json:"story,omitempty"`
}

// Simulate makes a scenario from each seed, larger and stranger than the suite's, and
// takes one path through it that the seed chooses. It proves nothing; it finds what
// nobody thought of.
func Simulate(ctx context.Context, o SimulateOptions) SimulateReport {
	if o.Guards == 0 {
		o.Guards = handoff.All
	}
	o.Runs, o.Workers = max(1, o.Runs), max(1, o.Workers)
	r := SimulateReport{Schema: SimulateSchema, Verdict: Pass, Seed: o.Seed}
	var start time.Time
	if o.Clock != nil {
		start = o.Clock()
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for worker := range o.Workers {
		all.Go(func() {
			for i := worker; i < o.Runs && ctx.Err() == nil; i += o.Workers {
				run := simulate(o.Seed+uint64(i), o.Guards)
				mu.Lock()
				r.add(o.Seed+uint64(i), run)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if r.Verdict == Pass && r.Runs < o.Runs {
		r.Verdict = Unknown
	}
	if o.Clock != nil {
		r.Seconds = o.Clock().Sub(start).Seconds()
	}
	return r
}

// walked is one run.
type walked struct {
	m      *Model
	path   []Move
	broken Violation
	rested bool
	served bool
}

func (r *SimulateReport) add(seed uint64, w walked) {
	r.Runs++
	r.Steps += len(w.path)
	if w.rested {
		r.Rested++
	}
	if w.served {
		r.Served++
	}
	if w.broken.Invariant == NoInvariant || r.Verdict == Fail && r.Failed < seed {
		return
	}
	r.Verdict, r.Failed = Fail, seed
	r.Invariant, r.Broken = w.broken.Invariant.String(), w.broken.String()
	r.Story = w.m.Story(w.path, w.broken, NoInvariant)
}

// dice is a source of choices that a seed determines (splitmix64).
type dice uint64

func (d *dice) below(n int) int {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(n))
}

// simulate is the run of one seed.
func simulate(seed uint64, g handoff.Guards) walked {
	d := dice(seed)
	m := randomModel(d.below, g)
	return m.walk(d.below)
}

// randomModel makes a scenario that fits the World out of choices.
func randomModel(below func(int) int, g handoff.Guards) *Model {
	for {
		if m, err := NewModel(randomScenario(below), g); err == nil {
			return m
		}
	}
}

func randomScenario(below func(int) int) Scenario {
	sc := Scenario{
		Name: "random", DecodePages: uint8(1 + below(MaxPages)), SourcePages: uint8(1 + below(MaxPages)), Reads: uint8(1 + below(2)),
		Torn: below(2) == 0, Ranks: uint8(1 + below(5)/4), Publishes: below(3) == 0,
	}
	if sc.Ranks > 1 {
		sc.Torn = false
	}
	for i := range 1 + below(MaxSides/int(sc.Ranks)) {
		a := Attempt{Domain: uint8(1 + below(2)), Room: uint8(1 + below(3)), Prompt: uint8(below(2)), Pages: uint8(1 + below(MaxExtent))}
		switch c := Conduct(below(3 * int(conducts))); {
		case c == Refuses || c == Absent:
			a.Prefill = c
		case c > Refuses && c < Absent:
			a.Prefill, a.Stub = c, uint8(1+below(int(a.Pages)))
		case c == conducts:
			a.Decode = Refuses
		case c == conducts+1:
			a.DecodePages, a.DecodePrompt = uint8(1+below(MaxExtent)), uint8(below(3))
		}
		if i > 0 && below(2) == 0 {
			a.After = uint8(1 + below(i))
		}
		sc.Attempts = append(sc.Attempts, a)
	}
	if below(4) == 0 {
		sc.CachedDomain, sc.CachedPrompt = uint8(1+below(2)), uint8(below(2))
	}
	for range below(7) {
		sc.Budget[below(int(faults))]++
	}
	for _, a := range sc.Attempts {
		// A stray abort ends decode in the name of a prefill that was only asked. If its own leg
		// never comes, or came in an earlier life or over an earlier connection, nobody tells that
		// prefill, and its entry stays until the connection closes.
		if a.Prefill == Absent || sc.Budget[FaultSecond]+sc.Budget[FaultCrashPrefill]+sc.Budget[FaultCrashDecode]+sc.Budget[FaultCut]+
			sc.Budget[FaultWrite]+sc.Budget[FaultTruncate] > 0 {
			sc.Budget[FaultStray] = 0
		}
		if a.Prefill == StopsShort { // beside a prefix, too few pages may be just enough
			sc.CachedDomain, sc.CachedPrompt, sc.Publishes = 0, 0, false
		}
	}
	sc.scarce = sc.CachedDomain != 0 || sc.Publishes
	return sc
}

// walk takes one path: what below chooses of the enabled moves, now and then one of the
// adversary's, until nothing is left or something breaks.
func (m *Model) walk(below func(int) int) (r walked) {
	r.m = m
	w, room := m.Start(), make([]Move, 0, 128)
	for len(r.path) < longest {
		moves, fair := m.Moves(&w, room)
		s := Step{}
		if fair == 0 {
			r.served = m.CheckRest(&w, &s)
			r.rested = true
			if r.broken = s.Broken; s.Broken.Invariant != NoInvariant || len(moves) == 0 || below(2) == 0 {
				return r
			}
		}
		choice := below(max(1, fair))
		if len(moves) > fair && (fair == 0 || below(4) == 0) {
			choice = fair + below(len(moves)-fair)
		}
		r.path = append(r.path, moves[choice])
		m.Apply(&w, moves[choice], &s)
		if r.broken = s.Broken; s.Broken.Invariant != NoInvariant || w.overflow {
			r.rested, r.served = false, false
			return r
		}
		r.rested, r.served = false, false
	}
	r.broken = Violation{Invariant: V8, why: whyForever}
	return r
}

// longest is more moves than any path that comes to rest has: the suite's longest has
// fewer than a hundred.
const longest = 2000

// Text prints the report for people.
func (r SimulateReport) Text() string {
	var b strings.Builder
	if r.Verdict == Fail {
		fmt.Fprintf(&b, "%s\nseed %d breaks %s: %s\n", r.Story, r.Failed, r.Invariant, r.Broken)
	}
	fmt.Fprintf(&b, "seed %d: %d runs, %d steps, %d came to rest, %d of these with every valid attempt served, %.1f s: %v\n",
		r.Seed, r.Runs, r.Steps, r.Rested, r.Served, r.Seconds, r.Verdict)
	return b.String()
}
