// Package fleet is the engines as HTTP servers: which there are, what they say of
// themselves, how much each has in flight, and which one takes the next request.
//
// It promises that a request gets a target only if the target's limits admit it (G-2),
// that the estimated tokens in flight of an engine never exceed what its pool holds,
// that tenants wait fairly and for a bounded time, and that an engine which is gone,
// which answers a known question wrongly (G-9) or which is not what it seems takes
// nothing.
//
// What must not come in: bodies of requests and answers, tenants' keys, the gateway's
// errors, logging, and the choice itself, which is pure and lives in package route.
package fleet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Resolver finds the addresses of a name; *net.Resolver is one.
type Resolver interface {
	LookupHost(ctx context.Context, name string) ([]string, error)
}

// Config is everything that a fleet needs to know. Nothing in it may change afterwards.
type Config struct {
	// Models are the engines of each model, by the name that clients use.
	Models map[string]Spec
	// Clock is where time comes from. Required.
	Clock Clock
	// Random seeds the choices between engines. Required.
	Random io.Reader
	// Resolver resolves names; nil means the system's.
	Resolver Resolver
	// Dial makes the connections to engines; nil means TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Events takes what happens to engines; nil drops it. It is called from several
	// goroutines and must not call the fleet.
	Events func(Event)
	// Bounds limits what engines can make us hold or wait for.
	Bounds Bounds
}

// Fleet is the engines of all models.
type Fleet struct {
	groups []*Group // in the order of their names
	byName map[string]*Group
	clock  Clock
	bounds Bounds
	board  *board
	// succeeded is closed once a later fleet leads.
	succeeded chan struct{}
}

// New checks a configuration and makes a fleet of it. Nothing is ready before the first
// look: see [Fleet.Run]. The error holds the path of the setting, and no address.
func New(c Config) (*Fleet, error) {
	if c.Clock == nil || c.Random == nil {
		return nil, errors.New("fleet: configure: clock and random are required")
	}
	c.Bounds = c.Bounds.WithDefaults()
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: c.Bounds.Connect, KeepAlive: 15 * time.Second}).DialContext
	}
	var seed [16]byte
	if _, err := io.ReadFull(c.Random, seed[:]); err != nil {
		return nil, fmt.Errorf("fleet: configure: random: %w", err)
	}
	b := &board{
		meters: map[string]*meter{}, matches: map[string]*match{}, clock: c.Clock, start: c.Clock.Now(),
		random: rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:]))),
	}
	f := &Fleet{byName: map[string]*Group{}, clock: c.Clock, bounds: c.Bounds, board: b, succeeded: make(chan struct{})}
	b.leader = f
	for name, spec := range c.Models {
		g, err := newGroup(name, spec, c, b)
		if err != nil {
			return nil, fmt.Errorf("fleet: configure: models[%s]: %w", name, err)
		}
		g.fleet, f.byName[name] = f, g
		f.groups = append(f.groups, g)
	}
	slices.SortFunc(f.groups, func(x, y *Group) int {
		if x.name < y.name {
			return -1
		}
		return 1
	})
	return f, nil
}

// Model returns the engines of a model; nil if there is none of that name.
func (f *Fleet) Model(name string) *Group { return f.byName[name] }

// Refresh resolves what is due, looks at every engine once, and returns when all have
// answered or timed out. [Fleet.Run] calls it over and over.
func (f *Fleet) Refresh(ctx context.Context) {
	var wg sync.WaitGroup
	for _, g := range f.groups {
		wg.Go(func() { g.refresh(ctx) })
	}
	wg.Wait()
}

// Run looks at the engines until ctx ends; then it closes their idle connections.
// Exactly one goroutine runs it, for as long as the fleet is used.
func (f *Fleet) Run(ctx context.Context) {
	tick := make(chan struct{}, 1)
	for {
		f.Refresh(ctx)
		t := f.clock.AfterFunc(f.bounds.Refresh, func() { tick <- struct{}{} })
		select {
		case <-tick:
		case <-ctx.Done():
			t.Stop()
			f.Leave()
			return
		}
	}
}

// Leave gives back what the fleet has of that which it shares with others. It is called
// once, and nothing is asked of the fleet afterwards: by [Fleet.Run] as it ends, or for a
// fleet that is never run.
func (f *Fleet) Leave() {
	for _, g := range f.groups {
		g.leave()
	}
}

// Follow takes over what an earlier fleet knows of the engines that both name: looks,
// health, breakers, slow start. What is in flight under either counts for both, and
// requests that wait under either are served by what either gives back. It must come
// before anything else is asked of the fleet; the earlier one may go on and end. Until
// [Fleet.Lead] it changes nothing for the earlier one.
func (f *Fleet) Follow(old *Fleet) {
	b := old.board
	b.lock()
	defer b.unlock()
	f.board = b
	for _, g := range f.groups {
		g.follow(old, b)
	}
}

// Lead makes the fleet the one whose configuration holds for the engines that it shares
// with earlier ones: how much each may have in flight, its slow start, and which question
// it is asked. Who leads until then takes no part in that any more, and its engines are
// asked no known questions. A fleet that follows no other leads from the start.
func (f *Fleet) Lead() {
	b := f.board
	b.lock()
	defer b.unlock()
	old := b.leader
	if old == f {
		return
	}
	b.leader = f
	close(old.succeeded)
	f.forgive(old)
	for _, g := range f.groups {
		for _, n := range g.nodes {
			if n.told {
				n.resize()
			}
		}
		g.announce()
	}
	b.serve()
}

// Succeeded is closed once a later fleet leads.
func (f *Fleet) Succeeded() <-chan struct{} { return f.succeeded }

// forgive forgets the misses of the engines that were asked another question under the
// fleet that led before, or are asked none any more.
func (f *Fleet) forgive(old *Fleet) {
	meters, matches := map[*meter]bool{}, map[*match]bool{}
	for _, g := range f.groups {
		asked, together := map[*meter]bool{}, map[*match]bool{}
		for _, before := range old.groups {
			if before.spec.Question != g.spec.Question || before.spec.Dialect != g.spec.Dialect || before.spec.Served != g.spec.Served {
				continue
			}
			for _, n := range before.nodes {
				asked[n.meter] = true
			}
			for _, c := range before.combos {
				together[c.match] = true
			}
		}
		for _, n := range g.nodes {
			meters[n.meter] = meters[n.meter] || asked[n.meter]
		}
		for _, c := range g.combos {
			matches[c.match] = matches[c.match] || together[c.match]
		}
	}
	for m, same := range meters {
		if !same {
			m.misses, m.tried = 0, false
		}
	}
	for m, same := range matches {
		if !same {
			m.misses, m.tried = 0, false
		}
	}
}

// SetHealth notes what a question with a known answer showed at a target (G-9). Three
// misses in a row, of an engine or of two together, and it takes nothing more; one right
// answer brings it back.
func (f *Fleet) SetHealth(t *Target, h Health) { t.group.setHealth(t.combo, h) }

// Health is what a question with a known answer showed (G-9).
type Health uint8

const (
	// Right: the answer was right, however long it took within its deadline.
	Right Health = iota
	// Wrong: there was an answer, and it was another.
	Wrong
	// Silent: there was no answer, or an error.
	Silent
)

// String returns the health's name.
func (h Health) String() string {
	names := [...]string{"right", "wrong", "silent"}
	if int(h) < len(names) {
		return names[h]
	}
	return "no health"
}
