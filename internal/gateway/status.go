package gateway

import (
	"slices"
	"time"

	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Status is what a gateway knows of itself and its engines, for its operator. It holds
// names of the configuration and numbers, and what engines wrote only where
// [fleet.NodeStatus] says so.
type Status struct {
	// Ready says that some model can be served.
	Ready bool
	// InFlight counts requests in progress, those of earlier configurations included.
	InFlight int64
	// Models are in the order of the configuration.
	Models []ModelStatus
	// Nodes are the engines of all models.
	Nodes []fleet.NodeStatus
}

// ModelStatus is one model in a [Status].
type ModelStatus struct {
	Name    string
	Dialect upstream.Dialect
	// Ready says that some engine takes requests; Waiting is how many requests wait for room.
	Ready   bool
	Waiting int
	// Advertised is the least number of tokens that any engine serves; 0 if not known.
	Advertised int64
}

// Status returns what the gateway knows now. It asks no engine.
func (g *Gateway) Status() Status {
	s := Status{InFlight: g.seats.Held(), Nodes: g.fleet.Status()}
	for _, name := range g.names {
		m := g.models[name]
		n, _ := m.group.Advertised().Value()
		ms := ModelStatus{Name: name, Dialect: m.Dialect, Ready: m.group.Ready(), Waiting: m.group.Waiting(), Advertised: n}
		s.Ready = s.Ready || ms.Ready
		s.Models = append(s.Models, ms)
	}
	return s
}

// Explain finds what is remembered of a request, by its public id.
func (g *Gateway) Explain(id string) (Record, bool) { return g.records.Get(id) }

// Shadow returns what passed only because a control is in shadow, the most frequent
// first.
func (g *Gateway) Shadow() []ShadowCount {
	all := g.shadows.All()
	for i := range all {
		if m := g.models[all[i].Model]; m != nil && upstream.Grantable(m.Dialect, all[i].Field) {
			all[i].Grantable = true
		}
	}
	return all
}

// StanceState says whether a rule holds on a route.
type StanceState uint8

const (
	// Unproven: it cannot be told whether the rule holds; the reason says why.
	Unproven StanceState = iota
	// Enforced: it holds.
	Enforced
	// Shadowed: what breaks it is counted and passes, until a date.
	Shadowed
	// Disabled: what breaks it passes.
	Disabled
	// NotApplicable: there is nothing on this route that it could hold for.
	NotApplicable
)

// String returns the state's name.
func (s StanceState) String() string {
	names := [...]string{"UNKNOWN", "ENFORCED", "SHADOW", "OFF", "NOT APPLICABLE"}
	if int(s) < len(names) {
		return names[s]
	}
	return "UNKNOWN"
}

// Stance says whether one rule holds on the route of one model.
type Stance struct {
	Route, Rule string
	State       StanceState
	// Until is the end of a shadow.
	Until time.Time
	// Reason is a sentence of ours.
	Reason string
}

// Posture says for each model which rules hold (G-10, G-15). It is in the order of the
// configuration, then of the rules.
func (g *Gateway) Posture() []Stance {
	status := g.fleet.Status()
	var all []Stance
	for _, name := range g.names {
		var of []fleet.NodeStatus
		for _, n := range status {
			if n.Model == name {
				of = append(of, n)
			}
		}
		p := posture{g: g, m: g.models[name], nodes: of}
		all = append(all, p.stances()...)
	}
	return all
}

// posture finds the stances of one model.
type posture struct {
	g     *Gateway
	m     *model
	nodes []fleet.NodeStatus
	all   []Stance
}

func (p *posture) add(rule string, state StanceState, reason string) {
	p.all = append(p.all, Stance{Route: p.m.Name, Rule: rule, State: state, Reason: reason})
}

// control adds a rule that has a mode.
func (p *posture) control(rule string, c Control, enforced StanceState, reason string) {
	switch p.g.mode(c) {
	case Shadow:
		p.all = append(p.all, Stance{Route: p.m.Name, Rule: rule, State: Shadowed, Until: p.g.modes[c].Until, Reason: "What it would refuse is counted."})
	case Off:
		p.add(rule, Disabled, "The configuration switches it off.")
	default:
		p.add(rule, enforced, reason)
	}
}

// routed says whether some node is a router and not an engine.
func (p *posture) routed() bool {
	return slices.ContainsFunc(p.nodes, func(n fleet.NodeStatus) bool { return n.Info.Router != "" })
}

// unseen says whether some node never answered a look, so that it may be a router.
func (p *posture) unseen() bool {
	return len(p.nodes) == 0 || slices.ContainsFunc(p.nodes, func(n fleet.NodeStatus) bool { return n.Seen.IsZero() })
}

// unseenYet is the reason of what depends on that.
const unseenYet = "An engine has not answered yet, so that it may be a router."

func (p *posture) stances() []Stance {
	t := p.m.traits
	p.control("G-1", AllowList, Enforced, "Only listed and granted fields reach the engine.")
	state, reason := p.admission()
	p.control("G-2", Admission, state, reason)
	state, reason = p.agreement()
	p.add("G-3", state, reason)
	if d := p.m.Hold.CommitAfter; d > 0 {
		p.add("G-3", Disabled, "hold.commit_after: after "+d.String()+" the header of a stream leaves before its verdict, so that a refusal is no status but a broken stream.")
	}
	p.add("G-5", Enforced, "A stream is complete only with its end mark and all finish reasons.")
	p.add("G-6", Enforced, "Whoever leaves ends the legs; one more attempt before the first byte.")
	state, reason = p.domains()
	p.add("G-7", state, reason)
	p.add("G-8", Enforced, "Headers and members of answers pass by list.")
	if p.m.Probe.Prompt == "" {
		p.add("G-9", Unproven, `No known answer is asked for; set models[].probe, such as {prompt: "What is the capital of France?", want: Paris}.`)
	} else {
		p.add("G-9", Enforced, "Engines are asked a question with a known answer.")
	}
	switch {
	case t.Leased:
		p.add("G-11", Enforced, "A handle serves one sequence, within its lease.")
	case t.Legs == upstream.One:
		p.add("G-11", NotApplicable, "There is no hand-off.")
	default:
		p.add("G-11", Enforced, "Each sequence has a hand-off of its own.")
	}
	if t.IDs == upstream.Minted {
		p.add("G-12", Enforced, "Every answer and chunk carries the id that we minted.")
	} else {
		p.add("G-12", Unproven, "The engine chooses its ids: it is held only that one answer keeps one id.")
	}
	p.add("G-13", Enforced, "The model is one of the tenant's; URLs pass by host.")
	p.add("G-14", Enforced, "Bytes, requests, rates and prefills have budgets.")
	switch {
	case p.routed():
		p.add("G-15", Unproven, "A router answers in place of an engine: what it does between cannot be seen.")
	case p.unseen():
		p.add("G-15", Unproven, unseenYet)
	default:
		p.add("G-15", Enforced, "No router was seen upstream.")
	}
	return p.all
}

// admission says how far G-2 can hold.
func (p *posture) admission() (StanceState, string) {
	switch _, known := p.m.group.Advertised().Value(); {
	case p.m.traits.Hosted:
		return Unproven, "A hosted model has no pool to read; only the window is held."
	case !known:
		return Unproven, "The engines have not told their limits."
	}
	return Enforced, "What does not fit every limit that the engines tell is refused."
}

// agreement says how far G-3 can hold.
func (p *posture) agreement() (StanceState, string) {
	switch {
	case p.m.traits.Legs == upstream.One:
		return NotApplicable, "There is one leg, and nothing to compare it with."
	case p.routed():
		return Unproven, "A router answers in place of an engine, so that its legs cannot be compared."
	case p.unseen():
		return Unproven, unseenYet
	case p.m.traits.Counting == upstream.AtEnd:
		return Enforced, "Late agreement: counts are compared at the end of an answer."
	}
	return Enforced, "No part of an answer leaves before both legs agree."
}

// domains says how far G-7 can hold.
func (p *posture) domains() (StanceState, string) {
	switch {
	case p.m.Dialect == upstream.Bulkhead:
		return Enforced, "The domain is part of every key of the prefix cache."
	case p.routed():
		return Unproven, "A router answers in place of an engine and may keep a cache of its own."
	case p.unseen():
		return Unproven, unseenYet
	case p.m.traits.Salted:
		return Enforced, "Each domain has its own salt."
	case p.m.Dialect == upstream.LlamaCPP:
		return Enforced, "The engine is asked to reuse nothing."
	}
	return Unproven, "How the provider separates caches cannot be seen."
}
