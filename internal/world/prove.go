package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/handoff"
)

// Schema names the form of a [Report] in JSON.
const Schema = "bulkhead.prove/v1"

// Options says what to prove and with what. The zero value is the whole proof
// on one processor.
type Options struct {
	Scenarios []Scenario       // nil means [Suite]
	Drop      []handoff.Guards // guards to leave out, one at a time; nil means each; empty means none, and then no edge is demanded
	Workers   int              // explorations at a time; 0 means 1
	States    int              // kept by one exploration; 0 means 20 million. 100 bytes each, and 530 in the widest level
	Memory    int64            // bytes, about, of all explorations at a time; 0 means no bound but States
	Clock     func() time.Time // for Seconds; nil leaves them 0
	CPU       func() float64   // seconds of processor time so far; nil leaves the rate 0
}

// Report is the proof's result.
type Report struct {
	Schema     string            `json:"schema"`
	Verdict    Outcome           `json:"verdict"`
	Reasons    []string          `json:"reasons"` // why it is not a pass
	States     int               `json:"states"`
	Steps      int               `json:"steps"`
	Seconds    float64           `json:"seconds"` // wall clock
	CPUSeconds float64           `json:"cpu_seconds"`
	Rate       float64           `json:"states_per_cpu_second"`
	Scenarios  []ScenarioReport  `json:"scenarios"`
	Dropped    []DroppedReport   `json:"dropped"`
	Unguarded  []DroppedReport   `json:"unguarded"` // every guard off, V1 alone
	Coverage   CoverageReport    `json:"coverage"`
	Invariants []InvariantReport `json:"invariants"`
}

// ScenarioReport is one scenario with every guard on, explored whole.
type ScenarioReport struct {
	Name    string  `json:"name"`
	About   string  `json:"about"`
	Outcome Outcome `json:"outcome"`
	Why     string  `json:"why,omitempty"` // it is unknown
	States  int     `json:"states"`
	Steps   int     `json:"steps"`
	Depth   int     `json:"depth"`  // moves to the deepest state
	Rests   int     `json:"rests"`  // states in which nothing happens by itself any more
	Served  int     `json:"served"` // of these, with every valid attempt served
	Seconds float64 `json:"seconds"`
	Broken  string  `json:"broken,omitempty"`
	Story   string  `json:"story,omitempty"`
}

// DroppedReport is what came of leaving a guard out. Outcome is fail if the
// removal was found, which is what must be.
type DroppedReport struct {
	Guard     string  `json:"guard"`
	Outcome   Outcome `json:"outcome"`
	Invariant string  `json:"invariant"`
	Broken    string  `json:"broken"`
	Scenario  string  `json:"scenario"` // of the shortest story
	Length    int     `json:"length"`   // moves
	States    int     `json:"states"`   // over all scenarios
	Steps     int     `json:"steps"`
	Seconds   float64 `json:"seconds"`
	Story     string  `json:"story"`
}

// CoverageReport says which edges of the transition table were taken.
type CoverageReport struct {
	Edges   int      `json:"edges"`
	Taken   int      `json:"taken"`   // in any exploration
	Guarded int      `json:"guarded"` // with every guard on
	Missing []string `json:"missing"`
}

// InvariantReport is one invariant.
type InvariantReport struct {
	Number   string `json:"number"`
	Sentence string `json:"sentence"`
	Vacuous  bool   `json:"vacuous"`
}

// Prove explores every scenario with every guard on, then without each guard in
// turn, then sweeps up the edges that were not taken yet. An error is an option
// that makes no sense; what was found is in the report.
func Prove(ctx context.Context, o Options) (Report, error) {
	p, err := newProof(o)
	if err != nil {
		return Report{}, err
	}
	start, cpu := p.now(), p.cpu()
	p.run(len(p.o.Scenarios), func(i int) { p.sound(ctx, i) })
	p.run(len(p.o.Drop), func(i int) { p.drop(ctx, i) })
	p.run(len(p.r.Unguarded), func(i int) { p.bare(ctx, i) })
	if len(p.o.Drop) > 0 {
		p.sweep(ctx)
	}
	p.r.Seconds = p.since(start)
	if p.r.CPUSeconds = p.cpu() - cpu; p.r.CPUSeconds > 0 {
		p.r.Rate = float64(p.r.States) / p.r.CPUSeconds
	}
	p.conclude()
	return p.r, nil
}

// proof is one run of Prove.
type proof struct {
	o  Options
	r  Report
	mu sync.Mutex // holds what follows, and the report's totals
	on Coverage   // taken with every guard on
	of Coverage   // taken at all
}

// Names of the scenarios that are also shown with every guard off.
var unguarded = [...]string{"one-token-stub", "late-writes"}

func newProof(o Options) (*proof, error) {
	if o.Scenarios == nil {
		o.Scenarios = Suite()
	}
	if o.Drop == nil {
		o.Drop = handoff.Each()
	}
	o.Workers = max(1, o.Workers)
	for _, sc := range o.Scenarios {
		if _, err := NewModel(sc, handoff.All); err != nil {
			return nil, fmt.Errorf("%w (scenario %s)", err, sc.Name)
		}
	}
	for _, g := range o.Drop {
		if g == 0 || g&^handoff.All != 0 {
			return nil, errors.New("world: a guard to drop that is none")
		}
	}
	p := &proof{o: o, r: Report{
		Schema: Schema, Reasons: []string{}, Coverage: CoverageReport{Missing: []string{}}, Scenarios: make([]ScenarioReport, len(o.Scenarios)), Dropped: make([]DroppedReport, len(o.Drop)),
	}}
	for _, sc := range o.Scenarios {
		if len(o.Drop) > 0 && slices.Contains(unguarded[:], sc.Name) {
			p.r.Unguarded = append(p.r.Unguarded, DroppedReport{Scenario: sc.Name})
		}
	}
	for _, i := range Invariants() {
		p.r.Invariants = append(p.r.Invariants, InvariantReport{Number: i.String(), Sentence: i.Sentence()})
	}
	return p, nil
}

func (p *proof) now() time.Time {
	if p.o.Clock == nil {
		return time.Time{}
	}
	return p.o.Clock()
}

func (p *proof) cpu() float64 {
	if p.o.CPU == nil {
		return 0
	}
	return p.o.CPU()
}

func (p *proof) since(start time.Time) float64 { return p.now().Sub(start).Seconds() }

// run does n jobs, a few at a time, and waits for them.
func (p *proof) run(n int, job func(i int)) {
	jobs := make(chan int)
	var all sync.WaitGroup
	for range min(p.o.Workers, n) {
		all.Go(func() {
			for i := range jobs {
				job(i)
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	all.Wait()
}

// explore explores one model and books what it took.
func (p *proof) explore(ctx context.Context, sc Scenario, g handoff.Guards, l Limits) (*Model, Exploration) {
	m, err := NewModel(sc, g)
	if err != nil {
		return nil, Exploration{Why: err.Error()} // it was checked before
	}
	if l.States == 0 {
		l.States = p.o.States
	}
	l.Memory = p.o.Memory / int64(p.o.Workers)
	x := m.Explore(ctx, l)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.r.States += x.States
	p.r.Steps += x.Steps
	p.of.Add(x.Coverage)
	if g == handoff.All {
		p.on.Add(x.Coverage)
	}
	return m, x
}

// sound explores a scenario with every guard on.
func (p *proof) sound(ctx context.Context, i int) {
	sc, start := p.o.Scenarios[i], p.now()
	m, x := p.explore(ctx, sc, handoff.All, Limits{})
	r := &p.r.Scenarios[i]
	*r = ScenarioReport{
		Name: sc.Name, About: sc.About, Outcome: x.Outcome, Why: x.Why, States: x.States, Steps: x.Steps, Depth: x.Depth,
		Rests: x.Rests, Served: x.Served, Seconds: p.since(start),
	}
	if x.Outcome == Fail {
		r.Broken, r.Story = x.Broken.Invariant.String()+": "+x.Broken.String(), m.Story(x.Path, x.Broken, NoInvariant)
	}
}

// drop looks for the shortest story without one guard, over all scenarios: each
// is searched only as deep as could still be shorter.
func (p *proof) drop(ctx context.Context, i int) {
	g := p.o.Drop[i]
	p.r.Dropped[i] = p.shortest(ctx, p.o.Scenarios, handoff.All.Without(g), NoInvariant)
	p.r.Dropped[i].Guard = g.String()
}

// bare looks for the shortest story with every guard off that ends in text that
// is not the request's own.
func (p *proof) bare(ctx context.Context, i int) {
	name := p.r.Unguarded[i].Scenario
	j := slices.IndexFunc(p.o.Scenarios, func(sc Scenario) bool { return sc.Name == name })
	p.r.Unguarded[i] = p.shortest(ctx, p.o.Scenarios[j:j+1], 0, V1)
	p.r.Unguarded[i].Scenario, p.r.Unguarded[i].Guard = name, "every guard"
}

// atMost is n states, or fewer if the options say so.
func (p *proof) atMost(n int) int {
	if p.o.States > 0 {
		return min(n, p.o.States)
	}
	return n
}

// firstLook is how many states of each scenario are kept in the first look for a
// story. Most are found there, and bound the depth of the second.
const firstLook = 4000

// shortest searches scenarios for the shortest story that breaks an invariant
// under g: each only as deep as could still be shorter.
func (p *proof) shortest(ctx context.Context, scenarios []Scenario, g handoff.Guards, only Invariant) DroppedReport {
	start, best := p.now(), DroppedReport{Outcome: Pass}
	whole := make([]bool, len(scenarios))
	for _, states := range [...]int{p.atMost(firstLook), p.o.States} {
		for i, sc := range scenarios {
			if whole[i] || best.Length == 1 {
				continue
			}
			m, x := p.explore(ctx, sc, g, Limits{States: states, Depth: max(0, best.Length-1), Only: only})
			whole[i] = x.Why != whyMemory
			best.States += x.States
			best.Steps += x.Steps
			if x.Outcome == Fail {
				best.Outcome, best.Scenario, best.Length = Fail, sc.Name, len(x.Path)
				best.Invariant, best.Broken = x.Broken.Invariant.String(), x.Broken.String()
				best.Story = m.shortStory(x.Path, x.Broken, only)
			}
		}
	}
	if best.Outcome == Pass && slices.Contains(whole, false) || ctx.Err() != nil {
		best.Outcome = Unknown
	}
	best.Seconds = p.since(start)
	return best
}

// sweepStates bounds one exploration of the sweep.
const sweepStates = 60_000

// sweep explores beside violations, without one guard or without any, until
// every edge of the transition table was taken: small scenarios first.
func (p *proof) sweep(ctx context.Context) {
	sets := []handoff.Guards{0}
	for _, g := range p.o.Drop {
		sets = append(sets, handoff.All.Without(g))
	}
	order := make([]int, len(p.o.Scenarios))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(p.r.Scenarios[i].States, p.r.Scenarios[j].States) })
	for _, i := range order {
		for _, g := range sets {
			if len(p.missing()) == 0 || ctx.Err() != nil {
				return
			}
			p.explore(ctx, p.o.Scenarios[i], g, Limits{States: p.atMost(sweepStates), Sweep: true})
		}
	}
}

// missing is what was never taken.
func (p *proof) missing() []handoff.Transition {
	var not []handoff.Transition
	for _, t := range handoff.Transitions() {
		if !p.of.Has(t) {
			not = append(not, t)
		}
	}
	return not
}

// conclude fills in coverage and verdict: a pass only if every scenario was
// explored whole and is sound and could serve, every guard's removal was found,
// and every edge was taken.
func (p *proof) conclude() {
	c := &p.r.Coverage
	c.Edges, c.Taken, c.Guarded = len(handoff.Transitions()), p.of.Taken(), p.on.Taken()
	for _, t := range p.missing() {
		c.Missing = append(c.Missing, fmt.Sprintf("%s %d: %s, on %v %s", t.Role, t.Edge, t.From, t.On, t.When))
	}
	verdict := Pass
	worse := func(o Outcome, format string, args ...any) {
		if verdict != Fail {
			verdict = o
		}
		p.r.Reasons = append(p.r.Reasons, fmt.Sprintf(format, args...))
	}
	for _, s := range p.r.Scenarios {
		switch {
		case s.Outcome == Fail:
			worse(Fail, "scenario %s: %s", s.Name, s.Broken)
		case s.Outcome == Unknown:
			worse(Unknown, "scenario %s: %s", s.Name, s.Why)
		case s.Served == 0:
			worse(Fail, "scenario %s: nothing could be served", s.Name)
		}
	}
	for _, d := range slices.Concat(p.r.Dropped, p.r.Unguarded) {
		switch d.Outcome {
		case Pass:
			worse(Fail, "without %s nothing broke", d.Guard)
		case Unknown:
			worse(Unknown, "without %s the search was not finished", d.Guard)
		}
	}
	if len(c.Missing) > 0 && len(p.o.Drop) > 0 {
		missing := Fail
		if verdict == Unknown {
			missing = Unknown // what was not finished may have them
		}
		worse(missing, "%d edges of the transition table were never taken", len(c.Missing))
	}
	p.r.Verdict = verdict
}

// Text prints the report for people.
func (r Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-22s %-8s %10s %10s %6s %7s %8s\n", "every guard on", "", "states", "steps", "depth", "served", "seconds")
	for _, s := range r.Scenarios {
		fmt.Fprintf(&b, "%-22s %-8v %10d %10d %6d %7d %8.2f\n", s.Name, s.Outcome, s.States, s.Steps, s.Depth, s.Served, s.Seconds)
	}
	if len(r.Dropped) > 0 {
		fmt.Fprintf(&b, "\n%-13s %-9s %-7s %5s  %-20s %s\n", "without", "found", "breaks", "moves", "scenario", "")
	}
	for _, d := range slices.Concat(r.Dropped, r.Unguarded) {
		found := [...]string{Unknown: "unknown", Pass: "NOTHING", Fail: "found"}[d.Outcome]
		fmt.Fprintf(&b, "%-13s %-9s %-7s %5d  %-20s %s\n", d.Guard, found, d.Invariant, d.Length, d.Scenario, d.Broken)
	}
	fmt.Fprintf(&b, "\nedges of the transition table: %d, taken %d (%d with every guard on)\n", r.Coverage.Edges, r.Coverage.Taken, r.Coverage.Guarded)
	for _, m := range r.Coverage.Missing {
		if len(r.Dropped) > 0 {
			fmt.Fprintf(&b, "  never taken: %s\n", m)
		}
	}
	fmt.Fprintf(&b, "\n%d worlds, %d states, %d steps, %.1f s", len(r.Scenarios), r.States, r.Steps, r.Seconds)
	if r.Rate > 0 {
		fmt.Fprintf(&b, ", %.1f s of processor time, %.0f states a second and core", r.CPUSeconds, r.Rate)
	}
	fmt.Fprintf(&b, ": %s\n", cmp.Or(r.Verdict.String(), "unknown"))
	for _, why := range r.Reasons {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	return b.String()
}
