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
	f := &Fleet{byName: map[string]*Group{}, clock: c.Clock, bounds: c.Bounds}
	for name, spec := range c.Models {
		g, err := newGroup(name, spec, c, b)
		if err != nil {
			return nil, fmt.Errorf("fleet: configure: models[%s]: %w", name, err)
		}
		f.byName[name] = g
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
			for _, g := range f.groups {
				g.leave()
			}
			return
		}
	}
}

// Follow takes over what an earlier fleet knows of the engines that both name: looks,
// health, breakers, slow start. What is in flight under either counts for both, and
// requests that wait under either are served by what either gives back. It must come
// before anything else is asked of the fleet; the earlier one may go on and end.
func (f *Fleet) Follow(old *Fleet) {
	if len(old.groups) == 0 || len(f.groups) == 0 {
		return
	}
	b := old.groups[0].board
	b.lock()
	defer b.unlock()
	for _, g := range f.groups {
		g.follow(old, b)
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
