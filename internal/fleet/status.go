package fleet

import (
	"slices"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/route"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Event is one change at an engine. It holds names of the configuration and words of
// ours, and nothing that an engine wrote.
type Event struct {
	Time  time.Time
	Model string
	// Node is the name of the engine or of the source.
	Node string
	Role upstream.Role
	Kind EventKind
	Why  Why
}

// NodeStatus is one engine, or a source that names none at the moment, for its operator.
type NodeStatus struct {
	// Source is what the configuration calls the place that the engine comes from; Name is
	// the same for one that stands there by itself.
	Model, Name, URL, Source string
	Dialect                  upstream.Dialect
	Role                     upstream.Role
	State                    State
	// Ready says that it takes requests; Why is what keeps it from that, or NodeReady.
	Ready bool
	Why   Why
	// Misfit says why it fits none of its partners, or not the model; a text of ours.
	Misfit string
	// SourceFailed says that its source gives no usable list, and it is of the last one.
	SourceFailed bool
	// Misses counts known answers in a row that did not come.
	Misses int
	// Breaker is closed, open or half-open.
	Breaker string
	// Weight is the present one, slow start included.
	Weight float64
	// Seen is when it last answered a look; zero if never.
	Seen time.Time
	// Info is what it said then. Its texts are the engine's own.
	Info upstream.Info
	// Findings are faults of the set-up, as sentences of ours.
	Findings []string
	// Pool is how many tokens the engine holds, unknown if it does not tell.
	Pool admit.Tokens
	// Tokens are estimated to be in flight, in Requests.
	Tokens, Requests int64
}

// TargetStatus is engines that take requests together, for their operator.
type TargetStatus struct {
	Model, Name string
	Ready       bool
	Why         Why
	Limits      admit.Limits
	Misses      int
}

// Status returns what is known of every engine, in the order of the models by name and
// then of the configuration. It asks nobody.
func (f *Fleet) Status() []NodeStatus {
	var all []NodeStatus
	for _, g := range f.groups {
		all = append(all, g.status()...)
	}
	return all
}

func (g *Group) status() []NodeStatus {
	g.board.lock()
	defer g.board.unlock()
	now, at := g.clock.Now(), g.board.now()
	var all []NodeStatus
	for _, s := range g.sources {
		if len(s.current) == 0 {
			all = append(all, NodeStatus{
				Model: g.name, Name: s.Name, Source: s.Name, Dialect: g.spec.Dialect, Role: s.role, State: s.State,
				Why: Unresolved, SourceFailed: s.failed, Breaker: route.Closed.String(),
			})
		}
	}
	for _, n := range g.nodes {
		why, misfit := g.state(n, now)
		used := n.meter.pool.Used()
		all = append(all, NodeStatus{
			Model: g.name, Name: n.name, URL: n.url, Source: n.source.Name, Dialect: g.spec.Dialect, Role: n.role,
			State: n.source.State, Ready: why == NodeReady, Why: why, Misfit: misfit,
			SourceFailed: n.source.failed, Misses: n.meter.misses, Breaker: n.meter.breaker.State(at, g.rule).String(),
			Weight: n.weight(at), Seen: n.seen, Info: n.info, Findings: g.findings(n),
			Pool: tokens(n.info.Pool), Tokens: used.Tokens, Requests: used.Requests,
		})
	}
	return all
}

// maxFindings is how many findings of one engine are shown.
const maxFindings = 16

// findings are those of an engine, and for a decode engine those of its pairs.
func (g *Group) findings(n *Node) []string {
	all := slices.Clone(n.info.Findings)
	for _, c := range g.combos {
		if len(c.nodes) < 2 || c.nodes[1] != n || !c.told || c.misfit != "" {
			continue
		}
		for _, f := range upstream.PairFindings(c.nodes[0].info, n.info) {
			if len(all) < maxFindings && !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all
}

// Targets returns what is known of the combinations of engines that take requests
// together, in a fixed order. It asks nobody.
func (g *Group) Targets() []TargetStatus {
	g.board.lock()
	defer g.board.unlock()
	now := g.clock.Now()
	var all []TargetStatus
	for _, c := range g.combos {
		why := c.why()
		for _, n := range c.nodes {
			if of := n.why(now); why == NodeReady && of != NodeReady {
				why = of
			}
		}
		all = append(all, TargetStatus{Model: g.name, Name: c.name, Ready: why == NodeReady, Why: why, Limits: c.limits, Misses: c.match.misses})
	}
	return all
}
