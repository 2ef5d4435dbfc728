package fleet

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/route"
)

// Errors with which a request gets no target.
var (
	// ErrNoneReady: no engine can take the request at the moment, whatever its length.
	ErrNoneReady = errors.New("fleet: no target is ready")
	// ErrQueueFull: too many requests wait already.
	ErrQueueFull = errors.New("fleet: the queue is full")
	// ErrTenantQueue: too many of this tenant do. It comes with ErrQueueFull.
	ErrTenantQueue = errors.New("fleet: the queue is full of this tenant's requests")
	// ErrQueueWait: there was no room in time.
	ErrQueueWait = errors.New("fleet: no room in time")
)

// Ask is a request that needs a target.
type Ask struct {
	// Tokens says what is known of its length.
	Tokens admit.Request
	// Estimate is the likely length of the prompt in tokens, where Tokens has no exact
	// one; 0 means the upper bound. It bears on how much is in flight, never on admission.
	Estimate int64
	// Parallel is how many sequences of this length are to run at the same time; 0 means
	// 1. The target may allow fewer: [Target.Parallel].
	Parallel int
	// Tenant is whose request it is.
	Tenant string
	// Session and Prefix are keyed hashes of what the request should share a target with;
	// 0 means none. A prefix includes the cache domain (G-7). The session comes first.
	Session, Prefix uint64
	// Not is a target that was tried already: another is taken if there is one.
	Not *Target
	// Private names the node, source or pair in state Private that is to take the request.
	Private string
}

// waiter is a request that waits for room. The board's lock guards it.
type waiter struct {
	ask  Ask
	who  uint64 // the tenant, for breakers
	item *route.Item[*waiter]
	// canary is the source of canaries that the request was drawn for; nil for most. drawn
	// says that it was drawn.
	canary *source
	drawn  bool
	begun  time.Time
	// What became of it: a target, or a decision that none will take it.
	target   *Target
	decision admit.Decision
	done     bool
	// settled is closed then, if somebody waits for that.
	settled chan struct{}
}

func (w *waiter) settle(t *Target, d admit.Decision) {
	w.target, w.decision, w.done = t, d, true
	if w.settled != nil {
		close(w.settled)
	}
}

// Acquire waits until a target with room takes the request: fairly between tenants, no
// longer than the queue allows, and no longer than ctx. It never returns a target whose
// limits do not admit the request.
//
// Without a target and without an error, the decision says why none will take it; that
// it has to be counted is one such decision, and is returned at once. Errors are
// [ErrNoneReady], [ErrQueueFull], [ErrTenantQueue], [ErrQueueWait] and those of ctx.
//
// A request acquires one target at a time, for all its sequences: whoever waited while
// holding another could wait for itself.
func (g *Group) Acquire(ctx context.Context, a Ask) (*Target, admit.Decision, error) {
	w := &waiter{ask: a, who: route.Hash(a.Tenant), begun: g.clock.Now()}
	if err := ctx.Err(); err != nil {
		return nil, admit.Decision{}, err
	}
	err := g.enter(w)
	if errors.Is(err, ErrNoneReady) {
		if err := g.lookNow(ctx); err != nil {
			return nil, admit.Decision{}, err
		}
		err = g.enter(w)
	}
	if err != nil || w.settled == nil {
		return w.target, w.decision, err
	}
	late := make(chan struct{})
	timer := g.clock.AfterFunc(g.spec.Queue.Wait, func() { close(late) })
	defer timer.Stop()
	select {
	case <-w.settled:
		return w.target, w.decision, nil
	case <-late:
		err = ErrQueueWait
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case g.withdraw(w):
	case errors.Is(err, ErrQueueWait):
		return w.target, w.decision, nil // it was given at the last moment
	case w.target != nil:
		w.target.Release(Cancelled)
	}
	return nil, admit.Decision{}, err
}

// enter judges a request, and gives it a target if there is room; else it waits, and
// settled tells the end of that.
func (g *Group) enter(w *waiter) error {
	g.board.lock()
	defer g.board.unlock()
	g.draw(w)
	decision, options := g.judge(w)
	if len(options) == 0 {
		w.decision = decision
		if decision.Outcome == admit.Unsettled {
			return ErrNoneReady
		}
		return nil
	}
	if g.queue.Len() == 0 && g.pick(w, options) == route.Placed {
		return nil
	}
	at := route.Back
	if w.ask.Not != nil {
		at = route.Front // it has waited before
	}
	flow := w.ask.Tenant + "\x00" + w.ask.Private
	item, err := g.queue.Push(flow, g.need(w, options[0]).decode.Tokens, w, at)
	switch {
	case errors.Is(err, route.ErrFlowFull):
		return errors.Join(ErrTenantQueue, ErrQueueFull)
	case err != nil:
		return ErrQueueFull
	}
	w.item = item
	g.serve()
	if g.board.freed {
		g.board.serve()
	}
	if !w.done {
		w.settled = make(chan struct{})
	}
	return nil
}

// withdraw takes a request out that waits no more. It returns false if that came too
// late.
func (g *Group) withdraw(w *waiter) bool {
	g.board.lock()
	defer g.board.unlock()
	if w.done {
		return false
	}
	g.queue.Remove(w.item)
	g.board.serve()
	return true
}

// draw decides whether a request is one for a canary. A session stays with what was
// drawn for it.
func (g *Group) draw(w *waiter) {
	var of []*source
	var shares []float64
	for _, s := range g.sources {
		if s.State == Canary {
			of, shares = append(of, s), append(shares, s.Share)
		}
	}
	if len(of) == 0 || w.drawn {
		return
	}
	w.drawn = true
	draw := g.board.random.Uint64()
	if w.ask.Session != 0 {
		draw = route.Hash("canary" + strconv.FormatUint(w.ask.Session, 16))
	}
	if i := route.Draw(shares, draw); i >= 0 {
		w.canary = of[i]
	}
}

// need is what a request takes of the engines of a combination.
type need struct {
	// prefill is taken of a prefill engine, decode of a decode or plain one.
	prefill, decode route.Size
	parallel        int
}

// option is a combination that admits a request, and which of the group's decisions says
// so.
type option struct {
	*combo
	decision int
}

// judge returns the combinations that are ready for a request and admit it, of the best
// kind that there is: for one drawn for a canary that, for one that was tried before
// others than then. If none admits it, the decision says why; one that is unsettled, that
// none is ready. What it returns holds until the next call.
func (g *Group) judge(w *waiter) (admit.Decision, []option) {
	now := g.clock.Now()
	var best admit.Decision
	options := g.options[:0]
	rank := math.MaxInt
	var limits admit.Limits
	var decision admit.Decision
	g.decisions = g.decisions[:0]
	at := route.Time(now.Sub(g.board.start))
	for _, n := range g.nodes {
		n.fit = n.why(now) == NodeReady && n.meter.breaker.AllowsTo(w.who, at, g.rule)
	}
	usual := w.ask.Not == nil && w.canary == nil && w.ask.Private == ""
	for _, c := range g.combos {
		if !c.sound || c.match.misses >= maxMisses || !c.fit() {
			continue
		}
		kind, ok := 0, true
		if !usual || !c.active {
			kind, ok = g.kind(w, c)
		}
		if !ok {
			continue
		}
		if len(g.decisions) == 0 || c.limits != limits {
			// Most have the same limits as the one before.
			limits, decision = c.limits, admit.Decide(w.ask.Tokens, c.limits)
			g.decisions = append(g.decisions, decision)
		}
		if decision.Outcome != admit.Admit {
			best = better(best, decision)
			continue
		}
		if kind < rank {
			rank, options = kind, options[:0]
		}
		if kind == rank {
			options = append(options, option{c, len(g.decisions) - 1})
		}
	}
	g.options = options
	return best, options
}

// better picks the decision to tell of those that refuse: one that may still become an
// admission, else the one with the greatest limit.
func better(a, b admit.Decision) admit.Decision {
	rank := func(d admit.Decision) int {
		switch d.Outcome {
		case admit.Unsettled:
			return 0
		case admit.LimitUnknown:
			return 1
		case admit.NeedCount:
			return 3
		}
		return 2
	}
	if rank(b) > rank(a) || rank(b) == rank(a) && b.Limit > a.Limit {
		return b
	}
	return a
}

// Kinds of combinations, the best first; kind adds them up.
const (
	kindOnceMore  = 1 // shares an engine with what was tried
	kindTried     = 2 // is what was tried
	kindNotCanary = 4 // for a request that was drawn for a canary
)

// kind says whether a request may go to a combination at all, and how well it suits.
func (g *Group) kind(w *waiter, c *combo) (kind int, ok bool) {
	named, drawn := false, false
	for _, n := range c.nodes {
		s := n.source
		switch s.State {
		case Private:
			if w.ask.Private != n.name && w.ask.Private != s.Name && w.ask.Private != c.name {
				return 0, false
			}
		case Canary:
			if w.canary == nil || w.canary != s && (s.pair < 0 || w.canary.pair != s.pair) {
				return 0, false
			}
			drawn = true
		}
		named = named || s.State == Private
	}
	if w.ask.Private != "" && !named {
		return 0, false
	}
	if w.canary != nil && !drawn {
		kind += kindNotCanary
	}
	if not := w.ask.Not; not != nil {
		switch {
		case not.combo.key == c.key:
			kind += kindTried
		case slices.ContainsFunc(c.nodes, func(n *Node) bool {
			return slices.ContainsFunc(not.combo.nodes, func(o *Node) bool { return o.url == n.url })
		}):
			kind += kindOnceMore
		}
	}
	return kind, true
}

// need is what a request takes of a combination. The prompt counts with its exact
// length, or else with the estimate within its bounds.
func (g *Group) need(w *waiter, o option) need {
	r := w.ask.Tokens
	prompt, exact := r.Exact.Value()
	if !exact {
		prompt = r.High
		if e := w.ask.Estimate; e > 0 {
			prompt = min(max(e, r.Low), r.High)
		}
	}
	n := need{parallel: max(1, w.ask.Parallel)}
	one := need{prefill: route.Size{Tokens: prompt, Requests: 1}, decode: route.Size{Tokens: prompt + g.decisions[o.decision].MaxTokens, Requests: 1}, parallel: 1}
	if n.parallel == 1 {
		return one
	}
	for i, node := range o.nodes {
		limit := node.meter.pool.Limit()
		s := one.of(o.combo, i)
		n.parallel = max(1, min(n.parallel, int(min(limit.Tokens/max(1, s.Tokens), limit.Requests, math.MaxInt32))))
	}
	n.prefill, n.decode = times(one.prefill, n.parallel), times(one.decode, n.parallel)
	return n
}

func times(s route.Size, n int) route.Size {
	return route.Size{Tokens: s.Tokens * int64(n), Requests: s.Requests * int64(n)}
}

// of is what is needed of the i-th engine. Nobody needs more than all that there is.
func (n need) of(c *combo, i int) route.Size {
	s := n.decode
	if i == 0 && len(c.nodes) == 2 {
		s = n.prefill
	}
	limit := c.nodes[i].meter.pool.Limit()
	return route.Size{Tokens: min(s.Tokens, limit.Tokens), Requests: min(s.Requests, limit.Requests)}
}

// serve gives targets to requests that wait, as far as there is room, and then keeps room
// for one that was overtaken too often. The caller has the board's lock, and serves again
// if that says that room was freed.
func (g *Group) serve() {
	g.reconsider()
	g.queue.Serve(func(i *route.Item[*waiter]) route.Fate { return g.place(i.Value) })
	if g.kept == nil {
		g.keep()
	}
	g.board.enlist(g)
}

// place gives a request a target, if one has room.
func (g *Group) place(w *waiter) route.Fate {
	decision, options := g.judge(w)
	if len(options) == 0 {
		if decision.Outcome == admit.Unsettled {
			return route.Waits // something may come back while it waits
		}
		g.unkeep(w)
		w.settle(nil, decision)
		return route.Dropped
	}
	return g.pick(w, options)
}

// pick gives a request one of the combinations that admit it, if one has room.
func (g *Group) pick(w *waiter, options []option) route.Fate {
	key := w.ask.Session
	if key == 0 {
		key = w.ask.Prefix
	}
	random := g.board.random
	var room []option
	if n := uint64(len(options)); key == 0 && n > 2 {
		// Two of them will mostly do, and the others need not be looked at.
		i, _ := bits.Mul64(random.Uint64(), n)
		j, _ := bits.Mul64(random.Uint64(), n-1)
		if j >= i {
			j++
		}
		room = g.withRoom(w, []option{options[i], options[j]})
	}
	if len(room) == 0 {
		room = g.withRoom(w, options)
	}
	if len(room) == 0 {
		return route.Waits
	}
	tokens := g.need(w, room[0]).decode.Tokens
	var i int
	if key != 0 {
		i = route.Sticky(g.candidates, tokens, key, g.spec.Affinity.Slack)
	} else {
		i = route.Two(g.candidates, tokens, random.Uint64(), random.Uint64())
	}
	o := room[max(0, i)]
	g.unkeep(w)
	w.settle(g.target(w, o), g.decisions[o.decision])
	return route.Placed
}

// withRoom returns the combinations that have room for a request, and lists them as
// candidates.
func (g *Group) withRoom(w *waiter, options []option) []option {
	at := g.board.now()
	room, candidates := g.room[:0], g.candidates[:0]
	for _, o := range options {
		if g.fits(w, o) {
			room = append(room, o)
			candidates = append(candidates, route.Candidate{ID: o.id, Load: o.load(), Weight: o.weight(at)})
		}
	}
	g.room, g.candidates = room, candidates
	return room
}

// fits says whether a combination has room for a request.
func (g *Group) fits(w *waiter, o option) bool {
	need := g.need(w, o)
	for i, n := range o.nodes {
		s := need.of(o.combo, i)
		if p := &n.meter.pool; g.kept == w && g.keptAt == o.combo {
			if !p.FitsKept(s) {
				return false
			}
		} else if !p.Fits(s) {
			return false
		}
	}
	return true
}

// keep keeps room for the request that was overtaken too often, where there will be the
// most.
func (g *Group) keep() {
	due := g.queue.Due()
	if due == nil {
		return
	}
	_, options := g.judge(due.Value)
	var best *option
	var most float64
	for i := range options {
		o := &options[i]
		need, least := g.need(due.Value, *o), 1.0
		for j, n := range o.nodes {
			p := &n.meter.pool
			if p.Keeps() {
				least = -1
			}
			left := float64(p.Limit().Tokens-p.Used().Tokens-need.of(o.combo, j).Tokens) / float64(max(1, p.Limit().Tokens))
			least = min(least, left)
		}
		if least > -1 && (best == nil || least > most) {
			best, most = o, least
		}
	}
	if best == nil {
		return
	}
	for j, n := range best.nodes {
		n.meter.pool.Keep(g.need(due.Value, *best).of(best.combo, j))
	}
	g.kept, g.keptAt = due.Value, best.combo
}

// unkeep ends the keeping of room for a request, if there is any.
func (g *Group) unkeep(w *waiter) {
	if g.kept != w || w == nil {
		return
	}
	for _, n := range g.keptAt.nodes {
		n.meter.pool.Unkeep()
	}
	g.kept, g.keptAt, g.board.freed = nil, nil, true
}

// reconsider ends the keeping of room for a request that does not wait any more, or at a
// target that will not take it.
func (g *Group) reconsider() {
	w := g.kept
	if w == nil {
		return
	}
	if g.queue.Waiting(w.item) {
		_, options := g.judge(w)
		if slices.ContainsFunc(options, func(o option) bool { return o.combo == g.keptAt }) {
			return
		}
	}
	g.unkeep(w)
}
