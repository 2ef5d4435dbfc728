// Package worker is one prefill or decode worker: its KV pool, its hand-off
// machines, its engine, its connections to the other role, and the HTTP dialect
// that a gateway or a router speaks to it.
//
// What it promises: one goroutine, the owner loop, holds the pool, the machines
// and the engine; everything else sends it events. Every effect of a machine is
// carried out in order, and nothing touches a page without one. No header of an
// answer leaves before the machine said so (H-14). Queues, bodies, tombstones
// and time are bounded. No prompt, answer or key goes into an error, an event
// or a metric.
//
// What must not come in: a way to rewrite a prompt, a release on a clock (H-9),
// a logger, a metrics library.
package worker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// Config makes a worker. The zero value of a field takes the default that is
// named beside it; fields without one are required.
type Config struct {
	Role       wire.Role
	Name       string // label in handshakes and events
	Model      *llm.Model
	ServedName string // the model's name in requests and answers

	PageTokens int // 64
	Pages      int // pages in the pool
	Window     int // longest prompt plus output, in tokens; what fits the pool if 0
	Quarantine int // source pages that may wait for proof of quiet (H-9); a quarter of the pool if 0
	// PrefixCache, at decode, is how many pages may be pinned for requests that do
	// not have their own yet. They share KV inside one domain (H-12), and requests
	// may need that many pages less than the pool has. 0: nothing is shared.
	PrefixCache int

	// OpenDialect also serves legs without a pass, as routers of SGLang send them: the
	// room is where the two legs meet, and nothing more (H-16). Whoever reaches the
	// worker can then ask it. Workers of a pair have the same.
	OpenDialect bool

	Digest    digest.Algorithm // XXH3
	Passes    *wire.Passer     // checks what the gateway authorised (H-16)
	Control   string           // bearer token of /abort_request; empty refuses all calls
	Transport wire.Transport
	Bootstrap string // prefill only: where decode workers connect, host:port
	Peers     []Peer // decode only: the prefill workers that it may be paired with

	Chunk      int           // tokens of one prefill chunk: 256
	Batch      int           // sequences of one decode step: 32
	Attempts   int           // legs in progress: 256
	Tombstones int           // attempts remembered for one connection: 65536 (H-2)
	BodyBytes  int64         // of one request: 8 MiB
	BodyTotal  int64         // of all bodies that are being read and parsed: 128 MiB
	BodyTime   time.Duration // for a request's body to arrive: 30 s
	LegTime    time.Duration // until a leg's first header: 120 s
	TickTime   time.Duration // between repeats of what is unanswered: 500 ms
	WriteTime  time.Duration // for a client to take what was written: 30 s
	Threads    int           // of the engine: 1

	Random    io.Reader        // crypto/rand; safe for concurrent use
	Now       func() time.Time // time.Now
	Events    Events           // nil drops them
	Trace     handoff.Tracer   // told of every step and touch of pages, from one goroutine; nil tells nobody
	Guards    handoff.Guards   // 0 means all, unless Unguarded is given
	Unguarded *kv.Unguarded    // required if a guard is off; nil in production
}

// Peer is a prefill worker that decode may be paired with. Requests name it by
// label; it is dialled by address (H-13).
type Peer struct {
	Label string // bootstrap_host:bootstrap_port as requests have it
	Addr  string // host:port to dial
}

// setDefaults fills in zero values.
func (c *Config) setDefaults() error {
	def(&c.PageTokens, 64)
	def(&c.Chunk, 256)
	def(&c.Batch, 32)
	def(&c.Attempts, 256)
	def(&c.Tombstones, 65536)
	def(&c.BodyBytes, 8<<20)
	def(&c.BodyTotal, max(128<<20, c.BodyBytes))
	def(&c.BodyTime, 30*time.Second)
	def(&c.LegTime, 120*time.Second)
	def(&c.TickTime, 500*time.Millisecond)
	def(&c.WriteTime, 30*time.Second)
	def(&c.Threads, 1)
	if c.Unguarded == nil {
		def(&c.Guards, handoff.All)
	}
	def(&c.Digest, digest.XXH3)
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Events == nil {
		c.Events = nowhere{}
	}
	if err := c.check(); err != nil {
		return err
	}
	if _, err := digest.New(c.Digest, [32]byte{}); err != nil {
		return err // an algorithm that nobody knows, or that this process may not use
	}
	def(&c.Window, min((c.Pages-c.PrefixCache)*c.PageTokens, c.Model.Config().Window))
	if most := c.Model.Config().Window; c.Window < 2 || c.Window > most {
		return fmt.Errorf("worker: window of %d tokens: want 2 to %d", c.Window, most)
	}
	return nil
}

// check refuses what cannot work.
func (c *Config) check() error {
	switch {
	case c.Model == nil || c.Passes == nil || c.Transport == nil || c.ServedName == "":
		return errors.New("worker: model, served name, passes and transport are required")
	case c.Role != wire.RolePrefill && c.Role != wire.RoleDecode:
		return errors.New("worker: role must be prefill or decode")
	case c.Guards != handoff.All && c.Unguarded == nil:
		return errors.New("worker: a guard is off outside a drill")
	case !c.Guards.Has(handoff.GuardSeal) && c.Guards.Has(handoff.GuardDigest):
		return errors.New("worker: a digest without a seal proves nothing")
	case c.Pages < 1 || c.Chunk < 1 || c.Batch < 1 || c.Attempts < 1:
		return errors.New("worker: pages, chunk, batch and attempts must be positive")
	case c.Tombstones < leastTombstones:
		return fmt.Errorf("worker: %d tombstones: want at least %d", c.Tombstones, leastTombstones)
	case c.BodyBytes < 1 || c.BodyTotal < c.BodyBytes:
		return errors.New("worker: body bytes must be positive, and no more than all bodies together")
	case c.LegTime < 0 || c.TickTime < 0 || c.WriteTime < 0 || c.BodyTime < 0:
		return errors.New("worker: times must be positive")
	case c.PrefixCache < 0 || c.PrefixCache >= c.Pages:
		return fmt.Errorf("worker: prefix cache of %d pages: want fewer than the pool's %d", c.PrefixCache, c.Pages)
	case c.PrefixCache > 0 && (c.Role != wire.RoleDecode || c.Guards != handoff.All):
		return errors.New("worker: a prefix cache is decode's, with every guard on")
	}
	labels := map[string]bool{}
	for _, p := range c.Peers {
		if labels[p.Label] {
			return errors.New("worker: two peers with one label")
		}
		labels[p.Label] = true
	}
	return nil
}

// leastTombstones leaves a connection time to be succeeded before its budget is
// used up.
const leastTombstones = 8

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Worker is one worker. Make it with [New], run it with [Worker.Run], and serve
// HTTP with [Worker.Handler].
type Worker struct {
	cfg    Config
	pool   *kv.Pool
	layout kv.Layout
	hello  wire.Hello
	print  uint64 // fingerprint of layout and model, for views
	mail   *mailbox
	seats  chan struct{} // legs in progress
	bodies purse
	status status
	ended  chan struct{} // closed when the owner loop has returned

	owner // everything below belongs to the owner loop
}

// New makes a worker. It starts nothing.
func New(c Config) (*Worker, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	layout := c.Model.Layout(c.PageTokens)
	var seed [16]byte
	if _, err := io.ReadFull(c.Random, seed[:]); err != nil {
		return nil, fmt.Errorf("worker: randomness: %w", err)
	}
	epoch := binary.LittleEndian.Uint64(seed[:8]) | 1
	pool, err := kv.New(kv.Config{Layout: layout, Pages: c.Pages, Epoch: epoch, Keys: keySource(c.Random), Quarantine: c.Quarantine})
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: c, pool: pool, layout: layout, mail: newMailbox(),
		seats: make(chan struct{}, c.Attempts), bodies: purse{left: c.BodyTotal}, ended: make(chan struct{}),
		hello: wire.Hello{
			Role: c.Role, Name: c.Name, Incarnation: binary.LittleEndian.Uint64(seed[8:]) | 1,
			Model: c.Model.Digest(), Layout: layout,
		},
	}
	w.print = fingerprint(w.hello)
	if err := w.owner.init(w); err != nil {
		return nil, err
	}
	w.publish()
	return w, nil
}

// keySource draws write keys. A key that cannot be drawn is fatal: a guessable
// key would open a reservation.
func keySource(r io.Reader) func() kv.Key {
	return func() kv.Key {
		var k kv.Key
		if _, err := io.ReadFull(r, k[:]); err != nil {
			panic("worker: no randomness for a write key")
		}
		return k
	}
}

// Status is the worker's state as of the owner loop's last turn.
func (w *Worker) Status() Status { return w.status.get() }

// Pool returns the pool's state in pages, as of the owner loop's last turn.
func (w *Worker) Pool() kv.Counts { return w.Status().Counts }

// Incarnation is this life of the worker (H-2).
func (w *Worker) Incarnation() uint64 { return w.hello.Incarnation }

// Linked returns how many peers this worker has a live link to.
func (w *Worker) Linked() int { return w.Status().Links }

// Run runs the owner loop and the links until ctx ends, once. It returns after
// every goroutine of the worker has, after every leg was answered, and with
// every page free.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	links := make(chan error, 1)
	go func() {
		links <- w.links(ctx)
		cancel() // without links there is nothing to serve
	}()
	w.loop(ctx)
	w.shutdown()
	err := w.drain(links)
	close(w.ended)
	return err
}

// loop is the owner loop: take what happened, then give the engine one step.
// Neither can starve the other: what comes in during a turn waits for the next.
func (w *Worker) loop(ctx context.Context) {
	tick := time.NewTicker(w.cfg.TickTime)
	defer tick.Stop()
	always := make(chan struct{})
	close(always)
	for ctx.Err() == nil {
		var work <-chan struct{} // never ready while the engine has none
		if len(w.running) > 0 {
			work = always
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			w.tick()
		case <-w.mail.ready:
		case <-work:
		}
		w.hear(w.mail.take())
		w.step()
		w.publish()
	}
}

func (w *Worker) hear(all []mail) {
	for _, e := range all {
		e(w)
	}
}

// drain hears the links out until they have closed: that frees the source pages
// that their writers still read (H-8).
func (w *Worker) drain(links <-chan error) error {
	for {
		w.publish()
		select {
		case err := <-links:
			w.hear(w.mail.close())
			w.pool.Flush()
			w.publish()
			return err
		case <-w.mail.ready:
			w.hear(w.mail.take())
		}
	}
}
