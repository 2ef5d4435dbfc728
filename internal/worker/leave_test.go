package worker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/wire"
)

// held is a fault that, while it is armed, holds what it meets, and counts it.
type held struct {
	gate  *wire.Gate
	armed atomic.Bool
	met   atomic.Int32
}

// TestLeave has the client of either leg leave, or its gateway abort it, in
// every phase of the hand-off. What held the phase goes on afterwards; it acts on
// nothing. Both pools are whole, and the pair serves.
func TestLeave(t *testing.T) {
	for _, k := range []handoff.Kind{handoff.Ask, handoff.Offer, handoff.Grant, handoff.Notice} {
		for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
			for _, how := range []string{"leaves", "is aborted"} {
				t.Run(fmt.Sprintf("%v %s before %v arrives", role, how, k), func(t *testing.T) {
					t.Parallel()
					leaveBefore(t, k, role, how)
				})
			}
		}
	}
}

// holds puts a gate before a kind of message, in both directions.
func (h *held) holds(k handoff.Kind) []setup {
	hook := func(m wire.Message) wire.Fault {
		if m.Kind != k || !h.armed.Load() {
			return wire.Fault{}
		}
		h.met.Add(1)
		return wire.Fault{Do: wire.ActDelay, Until: h.gate}
	}
	return []setup{faulty(wire.RolePrefill, &wire.Faults{Message: hook}), faulty(wire.RoleDecode, &wire.Faults{Message: hook})}
}

func leaveBefore(t *testing.T, k handoff.Kind, role wire.Role, how string) {
	h := &held{gate: wire.NewGate()}
	p := newPair(t, append(h.holds(k), func(c *Config) { c.Chunk = 32 })...)
	h.armed.Store(true)
	prompt, want := recital(200, 3)
	c := p.complete(prompt, len(want)).with(map[string]any{"stream": true})
	pre, dec := p.beginPrefill(c), p.beginDecode(c)
	p.eventually("the message is held", func() bool { return h.met.Load() == 1 })
	leaver, other, side := pre, dec, p.prefill
	if role == wire.RoleDecode {
		leaver, other, side = dec, pre, p.decode
	}
	p.reaches(side, c) // an abort ends what is there
	if how == "leaves" {
		leaver.leave()
		<-leaver.done
	} else {
		p.abort(side, c.rid())
		refused(t, "the aborted leg", <-leaver.done, "cancelled")
	}
	h.armed.Store(false)
	if k == handoff.Ask && role == wire.RolePrefill {
		p.eventually("prefill has ended it", func() bool { return p.prefill.events.ended(c.attempt) == handoff.Cancelled })
		h.gate.Open() // nothing else tells prefill which decode worker it is
	}
	refused(t, "the other leg", <-other.done, "cancelled")
	p.eventually("decode has no pages of it", func() bool { return p.decode.Pool().Free == p.decode.Pool().Total })
	h.gate.Open()
	p.whole()
	p.serves()
}

// TestLeaveBeforeAccept has prefill's client leave when decode has proved the
// pages and prefill does not know that yet. Decode's answer is right and goes on.
func TestLeaveBeforeAccept(t *testing.T) {
	h := &held{gate: wire.NewGate()}
	p := newPair(t, h.holds(handoff.Accept)...)
	h.armed.Store(true)
	for _, how := range []string{"leaves", "is aborted"} {
		c := p.complete(shipPrompt, 12)
		pre, dec := p.beginPrefill(c), p.beginDecode(c)
		if r := <-dec.done; text(r) != shipAnswer {
			t.Errorf("decode: %d %s", r.status, r.body)
		}
		if how == "leaves" {
			pre.leave()
			<-pre.done
		} else {
			p.abort(p.prefill, c.rid())
			refused(t, "prefill", <-pre.done, "cancelled")
		}
		p.whole()
	}
	h.armed.Store(false)
	h.gate.Open()
	p.serves()
}

// TestLeaveAtDoor has the client of one leg leave before the other leg comes. The
// late leg is told so at once.
func TestLeaveAtDoor(t *testing.T) {
	p := newPair(t)
	for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		c := p.complete(shipPrompt, 12)
		var gone, late *pending
		if role == wire.RolePrefill {
			gone = p.beginPrefill(c)
		} else {
			gone = p.beginDecode(c)
		}
		p.reaches(p.prefill, c)
		gone.leave()
		<-gone.done
		p.eventually("it is over", func() bool { return p.prefill.Status().Attempts == 0 })
		if role == wire.RolePrefill {
			late = p.beginDecode(c)
		} else {
			late = p.beginPrefill(c)
		}
		refused(t, fmt.Sprintf("after the %v leg left", role), <-late.done, "cancelled")
		p.whole()
	}
	p.serves()
}

// TestStalledPage stops a page in mid-frame and lets the client leave. Decode has
// its pages back while the sender still stands there; another request is served
// in them over the other connection, and the rest of the page lands nowhere.
func TestStalledPage(t *testing.T) {
	gate := wire.NewGate()
	stalled := make(chan struct{})
	strike := sync.OnceFunc(func() { close(stalled) })
	var armed atomic.Bool
	armed.Store(true)
	p := newPair(t, func(c *Config) { c.Quarantine = c.Pages }, faulty(wire.RolePrefill, &wire.Faults{Page: func(wire.PageWrite) wire.Fault {
		if !armed.CompareAndSwap(true, false) {
			return wire.Fault{}
		}
		strike()
		return wire.Fault{Do: wire.ActStall, Until: gate, After: 1000}
	}}))
	prompt, want := recital(300, 1)
	c := p.complete(prompt, len(want))
	pre, dec := p.beginPrefill(c), p.beginDecode(c)
	<-stalled
	dec.leave()
	<-dec.done
	refused(t, "prefill", <-pre.done, "cancelled")
	p.eventually("decode has its pages back", func() bool { return atRest(p.decode) || p.decode.Pool().Free == p.decode.Pool().Total })
	p.eventually("prefill's pages are in quarantine", func() bool { return p.prefill.Pool().Quarantined == 21 })
	other, answer := recital(280, 2)
	if pre, dec := p.both(p.complete(other, len(answer))); text(dec) != answer {
		t.Errorf("beside the stall: prefill %d %s, decode %d %s", pre.status, pre.body, dec.status, dec.body)
	}
	if c := p.prefill.Pool(); c.Quarantined != 21 || c.Free != c.Total-21 {
		t.Errorf("prefill gave back pages that a write still reads: %+v", c)
	}
	gate.Open()
	p.whole()
	p.serves()
}

// TestLeaveInStream has a client leave in mid-answer, by either end.
func TestLeaveInStream(t *testing.T) {
	p := newPair(t)
	for _, how := range []string{"leaves", "is aborted"} {
		c := p.endless()
		pre := p.beginPrefill(c)
		ctx, leave := context.WithCancel(context.Background())
		resp, err := p.send(ctx, p.decode, c)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(resp.Body)
		if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
			t.Fatalf("%q %v", line, err)
		}
		if how == "leaves" {
			leave()
		} else {
			p.abort(p.decode, c.rid())
		}
		rest, err := io.ReadAll(r)
		if err == nil || strings.Contains(string(rest), "[DONE]") {
			t.Errorf("%s: the stream ended cleanly: %q", how, rest)
		}
		if how == "is aborted" && !strings.Contains(string(rest), `"code":"cancelled"`) {
			t.Errorf("no error event: %q", rest)
		}
		leave()
		_ = resp.Body.Close()
		<-pre.done
		p.whole()
		if got := p.decode.events.ended(c.attempt); got != handoff.Cancelled {
			t.Errorf("%s: decode ended with %v", how, got)
		}
	}
	p.serves()
}

// endless is a stream of about 900 tokens: text that repeats for ever.
func (p *pair) endless() legCall {
	return p.complete(strings.Repeat("round and round we go ", 4), 900).with(map[string]any{"stream": true})
}

// TestStopsReading has a client that takes nothing of its answer. The write
// deadline ends its attempt; the pages are free, and its seat.
func TestStopsReading(t *testing.T) {
	p := newPair(t, func(c *Config) { c.Pages, c.WriteTime = 256, 100*time.Millisecond })
	// The kernel's buffers hold less than this answer, once they are small.
	srv := httptest.NewUnstartedServer(p.decode.Handler(nil))
	srv.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(4096); err != nil {
			t.Error(err)
		}
		return ctx
	}
	srv.Start()
	defer srv.Close()
	c := p.complete(strings.Repeat("round and round we go ", 4), 3000).with(map[string]any{"stream": true})
	pre := p.beginPrefill(c)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if err := p.request(context.Background(), p.decode, c).Write(conn); err != nil {
		t.Fatal(err)
	}
	if r := <-pre.done; r.status != 200 {
		t.Fatalf("prefill %d %s", r.status, r.body)
	}
	p.eventually("the attempt was cancelled", func() bool { return p.decode.events.ended(c.attempt) == handoff.Cancelled })
	p.eventually("the seat is free", func() bool { return len(p.decode.seats) == 0 })
	p.whole()
}

// TestBreaksInStream has the engine fail in mid-answer: after the first byte the
// client sees an error event and a connection that breaks, never an end; before it,
// an error.
func TestBreaksInStream(t *testing.T) {
	p := newPair(t)
	for _, stream := range []bool{true, false} {
		c := p.endless().with(map[string]any{"stream": stream})
		pre := p.beginPrefill(c)
		var r reply
		if stream {
			resp, err := p.send(context.Background(), p.decode, c)
			if err != nil {
				t.Fatal(err)
			}
			p.chokeDecode(c)
			r = read(resp, nil)
		} else {
			dec := p.beginDecode(c)
			p.chokeDecode(c)
			r = <-dec.done
		}
		<-pre.done
		if !stream {
			refused(t, "decode", r, "engine_failed")
		} else if r.err == nil || r.status != 200 || strings.Contains(r.body, "[DONE]") || !strings.Contains(r.body, `"code":"engine_failed"`) ||
			strings.Contains(r.body, `"finish_reason":"`) {
			t.Errorf("decode: %v %d ...%s", r.err, r.status, r.body[max(0, len(r.body)-300):])
		}
		p.whole()
	}
	p.serves()
}

// chokeDecode gives decode's engine a token that the model does not have, once
// the attempt is being read.
func (p *pair) chokeDecode(c legCall) {
	p.t.Helper()
	p.eventually("decode reads", func() (reads bool) {
		on(p.decode, func(w *Worker) {
			if a := w.attempts[c.attempt]; a != nil && a.seq != nil {
				a.out.last, reads = 1<<20, true
			}
		})
		return reads
	})
}

// TestShutdown stops a worker under load: every leg is answered, no stream ends
// cleanly, Run returns, and the peer's pool is whole.
func TestShutdown(t *testing.T) {
	for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		p := newPair(t, func(c *Config) { c.Pages, c.Chunk = 80, 16 })
		reading := p.endless()
		var legs []*pending
		legs = append(legs, p.beginPrefill(reading), p.beginDecode(reading))
		p.eventually("decode reads", func() bool { return p.prefill.events.ended(reading.attempt) == handoff.OK })
		for i := range 12 { // in transfer, waiting for pages, waiting for the other leg
			prompt, want := recital(400, i)
			c := p.complete(prompt, len(want))
			legs = append(legs, p.beginPrefill(c))
			if i%3 != 0 {
				legs = append(legs, p.beginDecode(c))
			}
		}
		stopped := p.prefill
		if role == wire.RoleDecode {
			stopped = p.decode
		}
		ok := 0
		stopped.stop()
		if role == wire.RoleDecode {
			p.prefill.stop() // legs that wait for a decode leg that was never sent
		} else {
			p.decode.stop()
		}
		for _, l := range legs {
			r := <-l.done
			switch {
			case r.status == 200 && r.err == nil:
				ok++
			case r.err == nil && code(r) != "peer_gone" && code(r) != "cancelled":
				t.Errorf("%v stops: %d %s", role, r.status, r.body)
			case strings.Contains(r.body, "[DONE]"):
				t.Errorf("%v stops: a stream ended as if it were whole", role)
			}
		}
		if ok == len(legs) {
			t.Errorf("%v stops: nothing was in progress", role)
		}
		if st := stopped.Status(); st.Attempts != 0 {
			t.Errorf("%v stopped with %+v", role, st)
		}
	}
}

// TestStopping asks a worker that drains its links.
func TestStopping(t *testing.T) {
	p := newPair(t)
	for _, s := range []*side{p.prefill, p.decode} {
		on(s, func(w *Worker) { w.stopping = true })
		refused(t, "a leg", p.leg(context.Background(), s, p.complete(shipPrompt, 12)), "peer_gone")
		on(s, func(w *Worker) {
			if len(w.attempts) != 0 {
				t.Errorf("%v took it in", w.cfg.Role)
			}
		})
	}
}

// TestAfterRun asks a worker that has ended.
func TestAfterRun(t *testing.T) {
	p := newPair(t)
	h := p.decode.Worker.Handler(nil)
	p.decode.stop()
	c := p.complete(shipPrompt, 12)
	req := p.request(context.Background(), p.decode, c)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	refused(t, "a leg", reply{status: rec.Code, header: rec.Header(), body: rec.Body.String()}, "peer_gone")
}
