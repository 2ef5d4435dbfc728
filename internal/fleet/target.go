package fleet

import (
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/route"
)

// Outcome is how a request at a target ended.
type Outcome uint8

const (
	// Cancelled: it was ended by us or by the client; it says nothing about the engines.
	Cancelled Outcome = iota
	// Answered: the engines did what they were asked.
	Answered
	// Refused: they refused the request by itself, as they may.
	Refused
	// Failed: they answered with an error of theirs, or broke off.
	Failed
	// Unreachable: no connection came about.
	Unreachable
	// Void: the answer was not the one to this request.
	Void
)

// String returns the outcome's name.
func (o Outcome) String() string {
	names := [...]string{"cancelled", "answered", "refused", "failed", "unreachable", "void"}
	if int(o) < len(names) {
		return names[o]
	}
	return "no outcome"
}

// result is what the outcome says of an engine.
func (o Outcome) result() route.Result {
	switch o {
	case Answered, Refused:
		return route.Good
	case Failed, Unreachable, Void:
		return route.Bad
	}
	return route.Nothing
}

// Target is what takes one request: one plain engine, or a prefill and a decode engine.
// It belongs to the request until Release.
type Target struct {
	// Plain, or Prefill and Decode, are the engines; the others are nil.
	Plain, Prefill, Decode *Node
	// Limits are what the target takes.
	Limits admit.Limits
	// Name names the target in events.
	Name string
	// Parallel is how many sequences of the request may run at the same time, at least 1.
	Parallel int
	// Queued is how long the request waited for it.
	Queued time.Duration

	group  *Group
	combo  *combo
	output int64 // tokens of one sequence's answer at most
	// The board's lock guards what follows.
	holds    []route.Hold // of each engine
	passes   []route.Pass
	released bool
	question bool // of a known answer
}

// target makes the target of a request that was placed. The caller has the board's lock.
func (g *Group) target(w *waiter, o option) *Target {
	need := g.need(w, o)
	t := &Target{
		Limits: o.limits, Name: o.name, Parallel: need.parallel, Queued: g.clock.Now().Sub(w.begun),
		group: g, combo: o.combo, output: g.decisions[o.decision].MaxTokens,
	}
	t.name()
	for i, n := range o.nodes {
		t.holds = append(t.holds, n.meter.pool.Take(need.of(o.combo, i)))
		t.passes = append(t.passes, n.meter.breaker.Begin(w.who, g.board.now(), g.rule))
	}
	return t
}

// name fills in the engines by their roles.
func (t *Target) name() {
	if len(t.combo.nodes) == 1 {
		t.Plain = t.combo.nodes[0]
		return
	}
	t.Prefill, t.Decode = t.combo.nodes[0], t.combo.nodes[1]
}

// Release gives the target back. The first call counts, and there must be one. blame
// names the engines that the outcome speaks of; none means all of the target.
func (t *Target) Release(o Outcome, blame ...*Node) {
	b := t.group.board
	b.lock()
	defer b.unlock()
	if t.released {
		return
	}
	t.released = true
	now := b.now()
	for i, n := range t.combo.nodes {
		n.meter.pool.Give(t.holds[i])
		if t.question {
			n.meter.asking--
		}
		b.sweep(n.url)
		result := o.result()
		if result == route.Bad && len(blame) > 0 {
			result = route.Nothing
			for _, at := range blame {
				if at == n {
					result = route.Bad
				}
			}
		}
		before := n.meter.breaker.State(now, t.group.rule)
		switch after := n.meter.breaker.End(t.passes[i], result, now, t.group.rule); {
		case after == before:
		case after == route.Open:
			n.meter.up = false
			n.tell(BreakerOpened, Broken)
		case after == route.Closed:
			n.meter.up, n.meter.since = true, now // it starts slowly
			n.tell(BreakerClosed, NodeReady)
		}
	}
	b.serve()
}

// Prefilled says that prefill holds nothing of the request any more: its share is free.
func (t *Target) Prefilled() {
	b := t.group.board
	b.lock()
	defer b.unlock()
	if t.released || t.Prefill == nil {
		return
	}
	t.holds[0] = t.Prefill.meter.pool.Lower(t.holds[0], route.Size{})
	b.serve()
}

// maxCounted is the longest prompt that a count is believed of, in tokens.
const maxCounted = 1 << 40

// Counted says how long the prompt of each sequence is by the engine's own count, in
// tokens; what was held too much for it is free.
func (t *Target) Counted(prompt int64) {
	b := t.group.board
	b.lock()
	defer b.unlock()
	if t.released || prompt < 0 || prompt > maxCounted {
		return
	}
	for i, n := range t.combo.nodes {
		tokens := prompt + t.output
		if i == 0 && t.Prefill != nil {
			tokens = prompt
		}
		t.holds[i] = n.meter.pool.Lower(t.holds[i], times(route.Size{Tokens: tokens, Requests: 1}, t.Parallel))
	}
	b.serve()
}

// Probe returns the target that waited longest for a question with a known answer, ready
// or not, if one has waited for every (G-9); else nil. An engine that has not answered the
// last one is not asked another, save as the partner of one that is due. Pairs are chosen so that engines
// meet different partners. It takes no room, for an engine that hangs may have none. It
// is to be released as any other, and [Fleet.SetHealth] told what came of it. Under a
// fleet that leads no more there is none.
func (g *Group) Probe(every time.Duration) *Target {
	g.board.lock()
	defer g.board.unlock()
	if !g.leads() {
		return nil // its question is not the one that counts
	}
	now, at := g.clock.Now(), g.board.now()
	var best *combo
	most := 0
	for _, c := range g.combos {
		due := 0
		for _, n := range c.nodes {
			switch n.why(now) {
			case NodeReady, Unwell, Broken:
				if n.meter.asking == 0 && (!n.meter.tried || at-n.meter.asked >= route.Time(every)) {
					due++
				}
			default:
				due = -len(c.nodes)
			}
		}
		if why := c.why(); why != NodeReady && why != Unwell || due < 0 {
			continue
		}
		if due > most || due == most && due > 0 && older(c.match, best.match) {
			best, most = c, due
		}
	}
	if best == nil {
		return nil
	}
	best.match.asked, best.match.tried = at, true
	t := &Target{Limits: best.limits, Name: best.name, Parallel: 1, group: g, combo: best, question: true}
	t.name()
	for _, n := range best.nodes {
		n.meter.asked, n.meter.tried = at, true
		n.meter.asking++
		t.holds = append(t.holds, n.meter.pool.Take(route.Size{}))
		t.passes = append(t.passes, n.meter.breaker.Begin(prober, at, g.rule))
	}
	return t
}

// prober is who asks the questions, for breakers: nobody whose name [route.Hash] has seen.
const prober = 0

// older says whether a was asked longer ago than b.
func older(a, b *match) bool {
	return b.tried && (!a.tried || a.asked < b.asked)
}

// setHealth notes what a question showed at a combination.
func (g *Group) setHealth(c *combo, h Health) {
	g.board.lock()
	defer g.board.unlock()
	if !g.leads() {
		return // it speaks of a question that is not asked any more
	}
	if h == Right {
		c.match.misses = 0
	} else {
		c.match.misses++
	}
	for _, n := range c.nodes {
		if h == Right {
			n.meter.misses = 0
		} else {
			n.meter.misses++
		}
	}
	g.announce()
	g.board.serve()
}
