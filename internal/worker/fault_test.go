package worker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/wire"
)

// TestNetwork serves requests over a network that duplicates, reorders or
// replays what it carries: the answers are the same.
func TestNetwork(t *testing.T) {
	for how, f := range map[string]wire.Fault{
		"duplicates": {Do: wire.ActDuplicate}, "reorders": {Do: wire.ActReorder}, "replays": {Do: wire.ActReplay, Until: wire.NewGate()},
	} {
		for _, what := range []string{"messages", "pages"} {
			t.Run(how+" "+what, func(t *testing.T) {
				t.Parallel()
				testNetwork(t, f, what)
			})
		}
	}
}

func testNetwork(t *testing.T, f wire.Fault, what string) {
	var calm atomic.Bool
	faults := func() *wire.Faults {
		n := 0
		some := func() wire.Fault {
			if n++; n%3 == 0 && !calm.Load() {
				return f
			}
			return wire.Fault{}
		}
		if what == "pages" {
			return &wire.Faults{Page: func(wire.PageWrite) wire.Fault { return some() }}
		}
		return &wire.Faults{Message: func(wire.Message) wire.Fault { return some() }}
	}
	p := newPair(t, func(c *Config) { c.Chunk, c.LegTime = 48, time.Minute }, faulty(wire.RolePrefill, faults()), faulty(wire.RoleDecode, faults()))
	var all, pump sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			prompt, want := recital(100+10*i, i)
			if pre, dec := p.both(p.complete(prompt, len(want))); text(dec) != want {
				t.Errorf("request %d: prefill %d %s, decode %d %s", i, pre.status, pre.body, dec.status, dec.body)
			}
		})
	}
	over := make(chan struct{})
	for range 3 { // what waits to be overtaken waits for traffic; one thing in each direction can
		pump.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					p.both(p.complete(shipPrompt, 1))
				}
			}
		})
	}
	all.Wait()
	calm.Store(true)
	close(over)
	p.serves()
	pump.Wait()
	if f.Until != nil {
		f.Until.Open()
	}
	p.whole()
}

// TestLateCopy replays a page of a request under its own key after its pages
// were given to the next one: it is refused where it lands.
func TestLateCopy(t *testing.T) {
	gate := wire.NewGate()
	var armed atomic.Bool
	p := newPair(t, faulty(wire.RolePrefill, &wire.Faults{Page: func(wire.PageWrite) wire.Fault {
		if armed.Load() {
			return wire.Fault{Do: wire.ActReplay, Until: gate}
		}
		return wire.Fault{}
	}}), faulty(wire.RoleDecode, &wire.Faults{}))
	armed.Store(true)
	first, want := recital(300, 1)
	if pre, dec := p.both(p.complete(first, len(want))); text(dec) != want {
		t.Fatalf("prefill %d %s, decode %d %s", pre.status, pre.body, dec.status, dec.body)
	}
	armed.Store(false)
	if gate.Held() == 0 {
		t.Fatal("no copy is held: the test tests nothing")
	}
	// The heir reads the same pages for as long as the copies come.
	heir := p.endless()
	pre, dec := p.beginPrefill(heir), p.beginDecode(heir)
	p.eventually("the heir reads", func() bool { return p.prefill.events.ended(heir.attempt) == handoff.OK })
	gate.Open()
	<-pre.done
	r := <-dec.done
	if s := parseStream(t, r.body); !s.done || len(s.text) != 900 {
		t.Errorf("the heir: %d, %d bytes of text", r.status, len(s.text))
	}
	p.whole()
}

// TestLost drops every message of one kind, in turn. The legs end at their
// deadline or with the peer's reason, never with text, and nothing is left
// behind: aborts go on until they are acknowledged.
func TestLost(t *testing.T) {
	for _, k := range []handoff.Kind{handoff.Ask, handoff.Offer, handoff.Refuse, handoff.Grant, handoff.Notice, handoff.Accept, handoff.Abort, handoff.Seen, handoff.Quiet} {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			dropped := atomic.Int32{}
			hook := func(m wire.Message) wire.Fault {
				// The first two of a kind; of a kind that is repeated, the third arrives.
				if m.Kind == k && armed.Load() && dropped.Add(1) <= 2 {
					return wire.Fault{Do: wire.ActDrop}
				}
				return wire.Fault{}
			}
			p := newPair(t, func(c *Config) { c.LegTime = 300 * time.Millisecond },
				faulty(wire.RolePrefill, &wire.Faults{Message: hook}), faulty(wire.RoleDecode, &wire.Faults{Message: hook}))
			armed.Store(true)
			good, bad := p.complete(shipPrompt, 12), p.complete(shipPrompt, 12)
			pre, dec := p.both(good)
			if k < handoff.Accept && k != handoff.Refuse && (pre.status == 200 || dec.status == 200 || text(dec) != "") {
				t.Errorf("prefill %d %s, decode %d %s", pre.status, pre.body, dec.status, dec.body)
			}
			x, y := p.begin(p.prefill, bad.forPrefill().with(map[string]any{"prompt": "other"})), p.beginDecode(bad)
			large := p.complete(shipPrompt, 5000)
			z, q := p.beginPrefill(large), p.beginDecode(large)
			for _, r := range []reply{<-x.done, <-y.done, <-z.done, <-q.done} {
				if r.status < 400 || text(r) != "" {
					t.Errorf("a refused request: %d %s", r.status, r.body)
				}
			}
			p.whole()
			armed.Store(false)
			p.serves()
			if dropped.Load() == 0 {
				t.Error("nothing was dropped: the test tests nothing")
			}
		})
	}
}

// TestRestart stops a worker in mid-transfer and in mid-answer and starts
// another one in its place. The other worker's pool is whole without a restart,
// what it had proved it still answers, and the next request is served.
func TestRestart(t *testing.T) {
	for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			stalled := make(chan struct{})
			strike := sync.OnceFunc(func() { close(stalled) })
			p := newPair(t, faulty(wire.RolePrefill, &wire.Faults{Page: func(wire.PageWrite) wire.Fault {
				if armed.Load() {
					strike()
					return wire.Fault{Do: wire.ActStall, After: 100}
				}
				return wire.Fault{}
			}}))
			reading := p.endless()
			a, b := p.beginPrefill(reading), p.beginDecode(reading)
			p.eventually("decode reads", func() bool { return p.prefill.events.ended(reading.attempt) == handoff.OK })
			armed.Store(true)
			moving := p.complete(shipPrompt, 12)
			c, d := p.beginPrefill(moving), p.beginDecode(moving)
			<-stalled
			before := p.prefill.Incarnation()
			if role == wire.RolePrefill {
				p.prefill.stop()
			} else {
				p.decode.stop()
			}
			refused(t, "prefill's leg in transfer", <-c.done, "peer_gone")
			refused(t, "decode's leg in transfer", <-d.done, "peer_gone")
			if r := <-a.done; r.status != 200 {
				t.Errorf("prefill's leg that was over: %d %s", r.status, r.body)
			}
			armed.Store(false)
			if r := <-b.done; role == wire.RolePrefill {
				if s := parseStream(t, r.body); !s.done || len(s.text) != 900 {
					t.Errorf("decode's own answer: %d, %d bytes of text", r.status, len(s.text))
				}
				p.eventually("decode's pool is whole", func() bool { return atRest(p.decode) })
				p.prefill = p.start(role)
				if p.prefill.Incarnation() == before {
					t.Error("two lives with one incarnation (H-2)")
				}
			} else {
				p.eventually("prefill's pool is whole", func() bool { return atRest(p.prefill) })
				p.decode = p.start(role)
			}
			p.linked()
			p.serves()
			p.whole()
		})
	}
}

// TestSuccession leaves more attempts to remember than a connection may: decode
// goes over to a new one in time, no request fails of it, and the worker counts
// as linked all the while.
func TestSuccession(t *testing.T) {
	p := newPair(t, func(c *Config) { c.Tombstones = 16 })
	unlinked := atomic.Bool{}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		look := time.NewTicker(100 * time.Microsecond)
		defer look.Stop()
		for {
			select {
			case <-over:
				return
			case <-look.C:
				if p.decode.Linked() != 1 {
					unlinked.Store(true)
				}
			}
		}
	})
	long := p.endless() // lives on the first connection for as long as it can
	a, b := p.beginPrefill(long), p.beginDecode(long)
	for i := range 60 {
		if pre, dec := p.both(p.complete(shipPrompt, 12)); text(dec) != shipAnswer {
			t.Errorf("request %d: prefill %d %s, decode %d %s", i, pre.status, pre.body, dec.status, dec.body)
		}
		if i%4 == 3 {
			p.eventually("the link has no use for more", func() bool { return len(p.decode.events.of(LinkUp)) >= (i+1)/16 })
		}
	}
	<-a.done
	if s := parseStream(t, (<-b.done).body); !s.done || len(s.text) != 900 {
		t.Errorf("the long answer: %d bytes of text", len(s.text))
	}
	close(over)
	watch.Wait()
	if unlinked.Load() {
		t.Error("decode counted as unlinked in between")
	}
	if n := len(p.decode.events.of(LinkUp)); n < 4 || n > 12 {
		t.Errorf("%d links", n)
	}
	for _, s := range []*side{p.prefill, p.decode} {
		if full := s.events.of(TombstonesFull); len(full) != 0 {
			t.Errorf("%d connections were cut off", len(full))
		}
	}
	p.eventually("old connections are closed", func() bool { return p.prefill.Linked() == 1 })
	if st := p.decode.Status(); st.Stones > 16 {
		t.Errorf("decode remembers %d", st.Stones)
	}
	p.whole()
}

// TestTwoLinks dials a second link beside a good one, as a redial that comes too
// late does: the old one is closed.
func TestTwoLinks(t *testing.T) {
	p := newPair(t)
	on(p.decode, func(w *Worker) { w.peers[0].redial() })
	p.eventually("there was a second link", func() bool { return len(p.prefill.events.of(LinkUp)) == 2 })
	p.eventually("one of them is left", func() (one bool) {
		on(p.decode, func(w *Worker) { one = len(w.conns) == 1 && w.peers[0].current != nil })
		return one && p.prefill.Linked() == 1
	})
	p.serves()
	p.whole()
}

// TestLateBind gives an attempt that ended without a connection to one that
// brings a message for it: it counts there as a tombstone, or the connection
// could never be retired.
func TestLateBind(t *testing.T) {
	p := newPair(t)
	c := p.complete(shipPrompt, 12)
	refused(t, "prefill", p.leg(context.Background(), p.prefill, c.forPrefill().with(map[string]any{"temperature": 9})), "value_out_of_range")
	refused(t, "decode", p.leg(context.Background(), p.decode, c), "bad_input")
	on(p.prefill, func(w *Worker) {
		for _, k := range w.conns {
			if k.stones != 1 || len(k.attempts) != 1 {
				t.Errorf("%d of %d have ended", k.stones, len(k.attempts))
			}
		}
	})
	p.whole()
}

// TestTombstonesFull has a peer that makes prefill remember more than it may: its
// connection is closed, what it left is forgotten, and a new one serves.
func TestTombstonesFull(t *testing.T) {
	p := newPair(t, atPrefill(func(c *Config) { c.Tombstones = 8 }))
	for range 8 { // decode legs alone: prefill remembers each ask
		d := p.beginDecode(p.complete(shipPrompt, 12))
		defer d.leave()
	}
	p.eventually("the connection was cut off", func() bool { return len(p.prefill.events.of(TombstonesFull)) == 1 })
	p.eventually("nothing is remembered", func() bool { return p.prefill.Status().Attempts+p.prefill.Status().Stones == 0 })
	p.linked()
	p.serves()
	p.whole()
}

// TestQuarantine leaves writes under way that do not end, after their attempts
// were aborted. The source pages count as quarantined; over the budget the
// connection is torn down at our end, and the pages are free.
func TestQuarantine(t *testing.T) {
	var armed atomic.Bool
	p := newPair(t, atPrefill(func(c *Config) { c.Quarantine, c.TickTime = 12, time.Hour }),
		faulty(wire.RolePrefill, &wire.Faults{Page: func(wire.PageWrite) wire.Fault {
			if armed.Load() {
				return wire.Fault{Do: wire.ActDelay} // for ever
			}
			return wire.Fault{}
		}}))
	armed.Store(true)
	abandon := func() {
		t.Helper()
		before := p.prefill.Pool().Quarantined
		c := p.complete(shipPrompt+shipPrompt, 12) // 9 pages
		pre, dec := p.beginPrefill(c), p.beginDecode(c)
		p.eventually("its pages are on their way", func() bool {
			posted := 0
			on(p.prefill, func(w *Worker) { posted = len(w.writes) })
			return posted >= before+9
		})
		pre.leave()
		<-pre.done
		refused(t, "decode", <-dec.done, "cancelled")
		p.eventually("decode is whole", func() bool { return atRest(p.decode) })
	}
	abandon()
	p.eventually("its pages are in quarantine", func() bool { return p.prefill.Pool().Quarantined == 9 })
	info := read(p.client.Get(p.prefill.http.URL + "/server_info"))
	if want := `"quarantined_pages":9`; !containsAll(info.body, want, `"pages_free":55`) {
		t.Errorf("server_info: %s", info.body)
	}
	for range 5 { // within the budget nothing is torn down, and nothing freed on a clock
		on(p.prefill, (*Worker).tick)
	}
	if n, q := len(p.prefill.events.of(QuarantineFull)), p.prefill.Pool().Quarantined; n != 0 || q != 9 {
		t.Fatalf("%d connections were torn down, %d pages in quarantine", n, q)
	}
	abandon()
	p.eventually("all of them are in quarantine", func() bool { return p.prefill.Pool().Quarantined == 18 })
	for range overTicks - 1 { // a peer that is well gets a moment
		on(p.prefill, (*Worker).tick)
	}
	if n := len(p.prefill.events.of(QuarantineFull)); n != 0 {
		t.Fatal("the connection was torn down at once")
	}
	on(p.prefill, (*Worker).tick)
	p.eventually("the connection was torn down", func() bool { return len(p.prefill.events.of(QuarantineFull)) == 1 })
	if e := p.prefill.events.of(QuarantineFull)[0]; e.Peer != "decode" || e.Pages != 18 {
		t.Errorf("told %+v", e)
	}
	armed.Store(false)
	p.eventually("every page is free", func() bool { return atRest(p.prefill) })
	on(p.prefill, func(w *Worker) {
		if len(w.writes) != 0 {
			t.Errorf("%d writes are waited for", len(w.writes))
		}
	})
	p.linked()
	p.serves()
	p.whole()
}

// TestStrip ends attempts in every way and looks at what is kept of them.
func TestStrip(t *testing.T) {
	p := newPair(t)
	p.serves()
	refusals := []legCall{p.complete("x", 5000), p.complete(shipPrompt, 1).with(map[string]any{"temperature": 9})}
	for _, c := range refusals {
		p.both(c)
	}
	late := p.complete(shipPrompt, 12)
	d := p.beginDecode(late)
	p.reaches(p.prefill, late)
	d.leave()
	<-d.done
	p.whole()
	refused(t, "the late leg", p.leg(context.Background(), p.prefill, late.forPrefill()), "cancelled")
	p.whole()
	for _, s := range []*side{p.prefill, p.decode} {
		on(s, func(w *Worker) {
			for _, a := range w.attempts {
				if a.leg != nil || a.req != nil || a.notice != nil || a.digests != nil || a.seq != nil || a.res != nil || a.prefix != nil ||
					a.secret != [32]byte{} || a.key != [16]byte{} || a.out.req != nil || a.out.held != nil {
					t.Errorf("%v keeps more than a tombstone: %+v", w.cfg.Role, a)
				}
			}
			if len(w.rids)+len(w.armed)+len(w.writes)+len(w.waiting)+len(w.running) != 0 || len(w.attempts) != 4 {
				t.Errorf("%v: %d ids, %d armed, %d writes, %d waiting, %d running, %d attempts", w.cfg.Role,
					len(w.rids), len(w.armed), len(w.writes), len(w.waiting), len(w.running), len(w.attempts))
			}
		})
	}
}

// TestStrays ends prefill legs that no decode worker ever asked for.
func TestStrays(t *testing.T) {
	p := newPair(t)
	on(p.prefill, func(w *Worker) {
		for i := range maxStrays + 100 {
			c := p.complete("x", 1)
			req := &request{rid: fmt.Sprint(i), attempt: c.attempt, expiry: c.expiry, room: c.room, code: handoff.BadInput}
			leg := newLeg(make(chan struct{}, 1))
			w.door(req, leg)
			if n := leg.look(); n.verdict == nil || n.verdict.Code != handoff.BadInput {
				t.Fatalf("stray %d: %+v", i, n)
			}
		}
		if len(w.attempts) != maxStrays || len(w.strays) != maxStrays || w.live != 0 {
			t.Errorf("%d attempts, %d strays, %d live", len(w.attempts), len(w.strays), w.live)
		}
	})
	p.serves()
}
