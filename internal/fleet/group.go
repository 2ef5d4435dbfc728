package fleet

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/route"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Group is the engines of one model.
type Group struct {
	name   string
	fleet  *Fleet
	spec   Spec
	rule   route.BreakerRule
	clock  Clock
	bounds Bounds
	events func(Event)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	// looking lets one look run at a time. Its holder owns the sources, and looked: when
	// the last one ended.
	looking chan struct{}
	sources []*source
	looked  time.Time

	board *board
	// The board's lock guards what follows.
	nodes  []*Node // in the order of the configuration
	combos []*combo
	queue  *route.Queue[*waiter]
	// What one judgement finds, until the next.
	decisions  []admit.Decision
	options    []option
	room       []option
	candidates []route.Candidate
	// kept is the waiter for which room is kept at the nodes of keptAt.
	kept   *waiter
	keptAt *combo
}

func newGroup(name string, spec Spec, c Config, b *board) (*Group, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	spec = spec.WithDefaults()
	g := &Group{
		name: name, spec: spec, clock: c.Clock, bounds: c.Bounds, events: c.Events, dial: c.Dial, board: b,
		rule: route.BreakerRule{
			Failures: spec.Breaker.Failures, Rate: spec.Breaker.Rate, Least: spec.Breaker.Least,
			Window: route.Time(spec.Breaker.Window), Open: route.Time(spec.Breaker.Open),
		},
		looking: make(chan struct{}, 1),
		queue:   route.NewQueue[*waiter](spec.Queue.PerTenant, spec.Queue.Total),
	}
	for _, list := range []struct {
		role upstream.Role
		of   []Source
	}{{upstream.Plain, spec.Plain}, {upstream.PrefillRole, spec.Prefill}, {upstream.DecodeRole, spec.Decode}} {
		for _, s := range list.of {
			g.sources = append(g.sources, &source{Source: s, role: list.role, pair: -1, resolver: c.Resolver})
		}
	}
	for i, p := range spec.Pairs {
		g.sources = append(g.sources,
			&source{Source: p.Prefill, role: upstream.PrefillRole, pair: i, resolver: c.Resolver},
			&source{Source: p.Decode, role: upstream.DecodeRole, pair: i, resolver: c.Resolver})
	}
	for _, s := range g.sources {
		if s.URL != "" {
			u, err := parseURL(s.URL, spec.Dialect.Traits())
			if err != nil {
				return nil, err
			}
			s.current = []*address{{u}}
		}
	}
	g.settle()
	for _, n := range g.nodes {
		if n.barred == Surplus {
			return nil, fmt.Errorf("more than %d nodes, or %d combinations of two", g.bounds.Nodes, g.bounds.Targets)
		}
	}
	return g, nil
}

// Spec is the specification with its defaults.
func (g *Group) Spec() Spec { return g.spec }

// Nodes returns the engines that there are now, in the order of the configuration.
func (g *Group) Nodes() []*Node {
	g.board.lock()
	defer g.board.unlock()
	return slices.Clone(g.nodes)
}

// tell tells what happened once the lock is free. The caller has the lock.
func (g *Group) tell(e Event) {
	if g.events == nil {
		return
	}
	e.Time, e.Model = g.clock.Now(), g.name
	g.board.told = append(g.board.told, telling{g.events, e})
}

// settle makes nodes of what the sources name now, keeping those that stay, and then the
// combinations of them. The caller has the board's lock, or is alone.
func (g *Group) settle() {
	var nodes []*Node
	seen := map[string]bool{}
	for _, s := range g.sources {
		for _, a := range s.current {
			n := g.node(s, a.String())
			if n == nil {
				n = newNode(g, s, a.URL)
				n.meter = g.board.meter(n.url)
				if s.URL == "" {
					n.tell(NodeAdded, Unseen)
				}
			}
			n.barred = Unseen
			switch {
			case seen[n.url]:
				n.barred = Duplicate
			case len(nodes) >= g.bounds.Nodes:
				n.barred = Surplus
			}
			seen[n.url] = true
			nodes = append(nodes, n)
		}
	}
	for _, n := range g.nodes {
		if !slices.Contains(nodes, n) {
			g.part(n)
		}
	}
	g.nodes = nodes
	g.combine()
}

// part lets a node go that no source names any more. Its requests go on.
func (g *Group) part(n *Node) {
	n.barred = Gone
	n.tell(NodeRemoved, Gone)
	g.board.drop(n.url)
	n.transport.CloseIdleConnections()
}

func (g *Group) node(s *source, url string) *Node {
	for _, n := range g.nodes {
		if n.source == s && n.url == url {
			return n
		}
	}
	return nil
}

// combine makes the combinations of the nodes, keeping those that stay.
func (g *Group) combine() {
	old := map[string]*combo{}
	for _, c := range g.combos {
		old[c.key] = c
	}
	g.combos = nil
	for _, n := range g.nodes {
		switch {
		case n.barred != Unseen:
		case n.role == upstream.Plain:
			g.add(old, n.name, n)
		case n.role == upstream.PrefillRole:
			for _, d := range g.nodes {
				if d.role == upstream.DecodeRole && d.barred == Unseen && d.source.pair == n.source.pair {
					g.add(old, g.nameOf(n, d), n, d)
				}
			}
		}
	}
	for _, c := range old {
		g.board.unmatch(c.key)
	}
	g.acquaint()
}

// nameOf names a prefill and a decode engine together.
func (g *Group) nameOf(p, d *Node) string {
	if i := p.source.pair; i >= 0 {
		return g.spec.Pairs[i].Name
	}
	return p.name + ">" + d.name
}

// add adds a combination, the old one if there was it.
func (g *Group) add(old map[string]*combo, name string, nodes ...*Node) {
	urls := make([]string, len(nodes))
	for i, n := range nodes {
		urls[i] = n.url
	}
	key := strings.Join(urls, " ")
	c := old[key]
	if c != nil && slices.Equal(c.nodes, nodes) {
		delete(old, key)
		g.combos = append(g.combos, c)
		return
	}
	if len(g.combos) >= g.bounds.Targets {
		for _, n := range nodes {
			if !slices.ContainsFunc(g.combos, func(c *combo) bool { return slices.Contains(c.nodes, n) }) {
				n.barred = Surplus
			}
		}
		return
	}
	c = &combo{nodes: nodes, name: name, key: key, id: route.Hash(key), match: g.board.match(key), active: true}
	for _, n := range nodes {
		c.active = c.active && n.source.State == Active
	}
	g.combos = append(g.combos, c)
}

// acquaint works out from the last looks what fits together, and which nodes are one
// engine.
func (g *Group) acquaint() {
	for i, n := range g.nodes {
		n.twin = false
		for _, other := range g.nodes[:i] {
			n.twin = n.twin || other.barred == Unseen && same(n, other)
		}
	}
	for _, c := range g.combos {
		c.learn(&g.spec)
	}
}

// same says whether two nodes are one engine, by what tells one life from all others.
func same(a, b *Node) bool {
	if !a.told || !b.told || a.found != NodeReady || b.found != NodeReady {
		return false
	}
	x, y := a.info, b.info
	return x.Incarnation != "" && x.Incarnation == y.Incarnation || x.EngineID != "" && x.EngineID == y.EngineID
}

// refresh resolves what is due, looks at every engine, and serves what waits.
func (g *Group) refresh(ctx context.Context) {
	g.looking <- struct{}{}
	defer func() { <-g.looking }()
	g.refreshLocked(ctx)
}

const (
	// maxLooks is how many engines are looked at at the same time, those apart that are slow.
	maxLooks = 32
	// slowLook is after which part of the bound on a look an engine is slow: the next one
	// takes its place then, so that those which do not answer keep nobody waiting.
	slowLook = 16
)

// refreshLocked is refresh by the holder of looking.
func (g *Group) refreshLocked(ctx context.Context) {
	g.resolve(ctx)
	nodes := g.Nodes()
	infos, errs, asked := make([]upstream.Info, len(nodes)), make([]error, len(nodes)), make([]bool, len(nodes))
	var wg sync.WaitGroup
	room := make(chan struct{}, maxLooks)
	for i, n := range nodes {
		if n.barred != Unseen || !g.due(n) {
			continue
		}
		asked[i] = true
		wg.Go(func() {
			room <- struct{}{}
			free := sync.OnceFunc(func() { <-room })
			defer free()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer g.clock.AfterFunc(g.bounds.Probe, cancel).Stop()
			defer g.clock.AfterFunc(g.bounds.Probe/slowLook, free).Stop()
			infos[i], errs[i] = n.look(ctx)
		})
	}
	wg.Wait()
	g.board.lock()
	defer g.board.unlock()
	now := g.clock.Now()
	for i, n := range nodes {
		if asked[i] {
			n.note(infos[i], errs[i], now)
		}
	}
	g.acquaint()
	g.announce()
	g.board.serve()
	g.looked = now
}

// rarely is how many times less often a hosted API is looked at than an engine.
const rarely = 15

// due says whether a node is to be looked at again. A hosted API is asked rarely while
// it answers.
func (g *Group) due(n *Node) bool {
	if !g.spec.Dialect.Traits().Hosted {
		return true
	}
	g.board.lock()
	defer g.board.unlock()
	return n.found != NodeReady || g.clock.Now().Sub(n.seen) >= rarely*g.bounds.Refresh
}

// fresh is how long a look holds.
func (g *Group) fresh() time.Duration {
	if g.spec.Dialect.Traits().Hosted {
		return rarely * g.bounds.Fresh
	}
	return g.bounds.Fresh
}

// announce notes and tells which nodes came up and went down.
func (g *Group) announce() {
	now, at := g.clock.Now(), g.board.now()
	for _, n := range g.nodes {
		why, _ := g.state(n, now)
		if up := why == NodeReady; up != n.up {
			n.up = up
			if up {
				n.tell(NodeUp, why)
			} else {
				n.tell(NodeDown, why)
			}
		}
		switch {
		case !g.leads():
		case why == NodeReady && !n.meter.up:
			n.meter.up, n.meter.since = true, at
		case why != NodeReady && why != Drains && !g.fleet.uses(n.meter):
			n.meter.up = false
		}
	}
}

// leads says whether it is this group's configuration that holds for its engines. The
// caller has the board's lock.
func (g *Group) leads() bool { return g.board.leader == g.fleet }

// uses says whether some node of the fleet took requests of an engine when last judged,
// be it for another model. The caller has the board's lock.
func (f *Fleet) uses(m *meter) bool {
	for _, g := range f.groups {
		for _, n := range g.nodes {
			if n.meter == m && n.up {
				return true
			}
		}
	}
	return false
}

// state is what keeps a node from taking requests: something of its own, or that it fits
// none of its partners, with the words of the first of them.
func (g *Group) state(n *Node, now time.Time) (why Why, misfit string) {
	if why := n.why(now); why != NodeReady {
		return why, ""
	}
	why = Unmatched
	for _, c := range g.combos {
		if !slices.Contains(c.nodes, n) {
			continue
		}
		switch of := c.why(); {
		case of == NodeReady:
			return NodeReady, ""
		case of == Unmatched && misfit == "":
			misfit = c.misfit
		case of != Unmatched:
			why = of
		}
	}
	return why, misfit
}

// minLookGap is the least time between two looks that requests bring about.
const minLookGap = 250 * time.Millisecond

// lookNow refreshes if the last look is not very recent. A request calls it that finds
// nothing ready, so that an engine which is back serves at once.
func (g *Group) lookNow(ctx context.Context) error {
	select {
	case g.looking <- struct{}{}:
		defer func() { <-g.looking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.looked.IsZero() || g.clock.Now().Sub(g.looked) >= minLookGap {
		// A client that leaves must not make engines look dead.
		g.refreshLocked(context.WithoutCancel(ctx))
	}
	return nil
}

// leave gives back what the group has of the board, at the end of its fleet.
func (g *Group) leave() {
	g.board.lock()
	defer g.board.unlock()
	for _, n := range g.nodes {
		g.board.drop(n.url)
		n.transport.CloseIdleConnections()
	}
	for _, c := range g.combos {
		g.board.unmatch(c.key)
	}
}

// follow moves the group to the board of an earlier fleet, and takes over what that knows
// of the same engines. The caller has that board's lock.
func (g *Group) follow(old *Fleet, b *board) {
	g.board = b
	for _, s := range g.sources {
		for _, before := range old.groups {
			for _, prev := range before.sources {
				if s.URL == "" && prev.DNS == s.DNS && prev.File == s.File && before.spec.Dialect == g.spec.Dialect {
					// What the name meant last; it is resolved again soon.
					s.inherit(prev)
				}
			}
		}
	}
	for _, n := range g.nodes {
		n.meter = b.meter(n.url)
	}
	for _, c := range g.combos {
		c.match = b.match(c.key)
	}
	g.settle()
	for _, n := range g.nodes {
		for _, before := range old.groups {
			for _, prev := range before.nodes {
				if prev.url == n.url && prev.role == n.role && before.spec.Dialect == g.spec.Dialect && before.spec.Served == g.spec.Served {
					n.found, n.told, n.seen, n.info, n.up = prev.found, prev.told, prev.seen, prev.info, prev.up
					n.face, n.faces, n.steady, n.twoFaced = prev.face, slices.Clone(prev.faces), prev.steady, prev.twoFaced
				}
			}
		}
	}
	g.acquaint()
}

// Advertised is the least number of tokens that any target serves, over those that ever
// told (G-2). It is unknown if none did, or if one told too little.
func (g *Group) Advertised() admit.Tokens {
	g.board.lock()
	defer g.board.unlock()
	all, some := admit.Unknown(), false
	for _, c := range g.combos {
		switch {
		case !c.told:
		case !some:
			all, some = c.limits.Advertised(), true
		default:
			all = admit.Min(all, c.limits.Advertised())
		}
	}
	return all
}

// Ready says that some target takes requests of everybody.
func (g *Group) Ready() bool {
	g.board.lock()
	defer g.board.unlock()
	now := g.clock.Now()
	return slices.ContainsFunc(g.combos, func(c *combo) bool {
		return c.active && c.ready(now)
	})
}

// Waiting is how many requests wait for room.
func (g *Group) Waiting() int {
	g.board.lock()
	defer g.board.unlock()
	return g.queue.Len()
}

// Counter returns an engine to ask how many tokens a prompt has: a ready plain or prefill
// one, else a ready decode one; nil if none is ready.
func (g *Group) Counter() *Node {
	g.board.lock()
	defer g.board.unlock()
	now := g.clock.Now()
	var last *Node
	for _, n := range g.nodes {
		if n.source.State == Private || n.source.State == Canary {
			continue
		}
		if why, _ := g.state(n, now); why != NodeReady {
			continue // what serves another model counts another way
		}
		if n.role != upstream.DecodeRole {
			return n
		}
		last = n
	}
	return last
}
