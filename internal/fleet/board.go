package fleet

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/route"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// board is what all models share, and what one fleet hands on to the next: how much each
// engine has in flight, its breaker and its health. One lock guards it and all groups
// that stand on it, so that no wake-up is lost between them; nothing under it blocks.
type board struct {
	mu      sync.Mutex
	clock   Clock
	start   time.Time
	meters  map[string]*meter // by URL
	matches map[string]*match // by the URLs of both
	random  *rand.Rand
	// leader is the fleet whose configuration holds; others only use what there is.
	leader *Fleet
	// waiting are the groups with requests that wait.
	waiting []*Group
	// freed says that room was freed that was kept: others may fit now.
	freed bool
	// told are the events to be told once the lock is free.
	told []telling
}

type telling struct {
	to    func(Event)
	event Event
}

// lock takes the lock.
func (b *board) lock() { b.mu.Lock() }

// unlock gives the lock back, and then tells what happened.
func (b *board) unlock() {
	told := b.told
	b.told = nil
	b.mu.Unlock()
	for _, t := range told {
		t.to(t.event)
	}
}

// now is the time for package route.
func (b *board) now() route.Time { return route.Time(b.clock.Now().Sub(b.start)) }

// meter is what is known of one engine under whatever model and configuration.
type meter struct {
	pool    route.Pool
	breaker route.Breaker
	// up says that it took requests when last looked at, and since when.
	up    bool
	since route.Time
	// misses counts known answers in a row that did not come; asked is when one was last
	// tried for, asking in how many questions it has part now.
	misses int
	asked  route.Time
	tried  bool
	asking int
	// nodes are how many nodes have this meter.
	nodes int
}

// match is the health of two engines together.
type match struct {
	misses int
	asked  route.Time
	tried  bool
	combos int
}

// maxMisses is how many known answers in a row may be missing.
const maxMisses = 3

// meter returns the meter of an engine, for one node more.
func (b *board) meter(url string) *meter {
	m := b.meters[url]
	if m == nil {
		m = &meter{}
		b.meters[url] = m
	}
	m.nodes++
	return m
}

// drop gives a node's meter back. One that still has something in flight stays until
// that is over.
func (b *board) drop(url string) {
	if m := b.meters[url]; m != nil {
		m.nodes--
		b.sweep(url)
	}
}

// sweep forgets a meter that no node has and nothing is in flight of.
func (b *board) sweep(url string) {
	if m := b.meters[url]; m != nil && m.nodes <= 0 && m.pool.Used() == (route.Size{}) {
		delete(b.meters, url)
	}
}

// match returns the health of a combination, for one combination more.
func (b *board) match(key string) *match {
	m := b.matches[key]
	if m == nil {
		m = &match{}
		b.matches[key] = m
	}
	m.combos++
	return m
}

func (b *board) unmatch(key string) {
	if m := b.matches[key]; m != nil {
		if m.combos--; m.combos <= 0 {
			delete(b.matches, key)
		}
	}
}

// serve lets every group that has requests waiting serve what there is room for.
func (b *board) serve() {
	for b.freed = true; b.freed; {
		b.freed = false
		for _, g := range slices.Clone(b.waiting) {
			g.serve()
		}
	}
}

// enlist notes whether a group has requests that wait.
func (b *board) enlist(g *Group) {
	at := slices.Index(b.waiting, g)
	switch waits := g.queue.Len() > 0; {
	case waits && at < 0:
		b.waiting = append(b.waiting, g)
	case !waits && at >= 0:
		b.waiting = slices.Delete(b.waiting, at, at+1)
	}
}

// combo is engines that take requests together: one plain engine, or a prefill and a
// decode engine. The board's lock guards it.
type combo struct {
	// nodes are the plain one, or prefill and decode.
	nodes []*Node
	name  string
	key   string
	id    uint64
	match *match
	// active says that the operator wants nothing special of its engines.
	active bool
	// told says that the engines once told what they are; limits are of then. misfit says
	// why they do not fit together, if they do not.
	told   bool
	limits admit.Limits
	misfit string
	// sound says that they told, fit, and that their limits are known.
	sound bool
}

// learn works out from the last looks what the engines take together.
func (c *combo) learn(s *Spec) {
	for _, n := range c.nodes {
		if !n.told {
			return
		}
	}
	p, d := c.nodes[0].info, c.nodes[len(c.nodes)-1].info
	c.misfit, c.sound = "", false
	if err := upstream.Match(s.Dialect, s.Served, p, d); err != nil {
		c.misfit = err.Error()
		return
	}
	c.told = true
	c.limits = limits(s, p, d)
	_, c.sound = c.limits.Advertised().Value()
}

// fit says whether its engines, by themselves, take requests, as judged last.
func (c *combo) fit() bool {
	for _, n := range c.nodes {
		if !n.fit {
			return false
		}
	}
	return true
}

// limits is what engines take, by what they say. A pool is a capacity, whatever is free
// (G-2).
func limits(s *Spec, p, d upstream.Info) admit.Limits {
	l := admit.Limits{
		Window:       admit.Min(tokens(p.Window), tokens(d.Window)),
		Prefill:      longest(s.Dialect, p),
		DecodePrompt: longest(s.Dialect, d),
		Decode:       tokens(d.Pool),
	}
	if s.Dialect.Traits().Hosted {
		l.Basis = admit.WindowAlone
	}
	if s.Window == 0 {
		return l
	}
	if _, known := l.Window.Value(); known {
		l.Window = admit.Min(l.Window, admit.Known(s.Window))
	} else {
		l.Window = admit.Known(s.Window)
	}
	return l
}

// longest is the longest prompt that an engine takes. SGLang's is a little less than its
// pool, and by how much only it can tell; others take what fits.
func longest(d upstream.Dialect, i upstream.Info) admit.Tokens {
	switch d {
	case upstream.Bulkhead, upstream.SGLangPD, upstream.SGLang:
		return admit.Min(tokens(i.Pool), tokens(i.MaxInput))
	}
	if !i.MaxInput.Known {
		return tokens(i.Pool)
	}
	if !i.Pool.Known && d.Traits().Hosted {
		return tokens(i.MaxInput)
	}
	return admit.Min(tokens(i.Pool), tokens(i.MaxInput))
}

func tokens(c upstream.Count) admit.Tokens {
	if !c.Known {
		return admit.Unknown()
	}
	return admit.Known(c.N)
}

// why is what keeps the combination from taking requests, its engines apart.
func (c *combo) why() Why {
	switch {
	case c.misfit != "":
		return Unmatched
	case !c.told:
		return Unseen
	case c.match.misses >= maxMisses:
		return Unwell
	case !c.sound:
		return LimitsUnknown
	}
	return NodeReady
}

// ready says whether it takes requests.
func (c *combo) ready(now time.Time) bool {
	if c.why() != NodeReady {
		return false
	}
	for _, n := range c.nodes {
		if n.why(now) != NodeReady {
			return false
		}
	}
	return true
}

// load is the estimated tokens in flight at its engines.
func (c *combo) load() int64 {
	sum := int64(0)
	for _, n := range c.nodes {
		sum += n.meter.pool.Used().Tokens
	}
	return sum
}

// weight is its part of the load: that of its weaker engine, as far as it has started.
func (c *combo) weight(now route.Time) float64 {
	w := c.nodes[0].weight(now)
	for _, n := range c.nodes[1:] {
		w = min(w, n.weight(now))
	}
	return w
}
