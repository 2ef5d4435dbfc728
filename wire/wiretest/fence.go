package wiretest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// faulty puts faults on what prefill sends.
func faulty(f Fabric, page func(wire.PageWrite) wire.Fault, message func(wire.Message) wire.Fault) Fabric {
	f.Prefill = &wire.Faults{Transport: f.Prefill, Page: page, Message: message}
	return f
}

// once gives the fault to the first page, and passes the others.
func once(f wire.Fault) func(wire.PageWrite) wire.Fault {
	done := false
	return func(wire.PageWrite) wire.Fault {
		if done {
			return wire.Fault{}
		}
		done = true
		return f
	}
}

// testRevoke stalls a sender in the middle of a page, takes the key away, gives
// the pages to another request, and lets the sender go on.
func testRevoke(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	gate := wire.NewGate()
	f := faulty(fabric(t, wire.Options{Streams: 1}), once(wire.Fault{Do: wire.ActStall, Until: gate, After: 1000}), nil)
	p := join(t, f)
	victim, other := p.request(16, 1), p.request(3*16, 2)
	stalled := p.write(p.page(victim, 0))
	var ids []uint64
	for i := range other.to.Pages() {
		ids = append(ids, p.write(p.page(other, i)))
	}

	sealed := make(chan struct{})
	go func() { // in a goroutine, so that a seal that hangs fails the test
		defer close(sealed)
		p.pool.Landing().Revoke(victim.to.Key())
	}()
	wait(t, sealed, "the seal under a stalled sender (H-6)")
	p.verify(victim, kv.ErrDigest)
	p.free(victim)
	heir := p.request(16, 3) // gets the victim's page
	ids = append(ids, p.write(p.page(heir, 0)))

	gate.Open()
	got := p.completions(1 + len(ids))
	if err := got[stalled]; !errors.Is(err, kv.ErrRefused) {
		t.Errorf("the stalled page: %v, want it refused", err)
	}
	for _, id := range ids {
		if got[id] != nil {
			t.Errorf("another page of the connection: %v", got[id])
		}
	}
	p.verify(heir, nil)
	p.verify(other, nil)
}

// testMany has several writers at once, with reservations that are taken away
// in between.
func testMany(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{Streams: 4}))
	const writers, each, tokens = 4, 5, 3*16 + 7
	requests := make([]*request, writers*each)
	writes := make([][]wire.PageWrite, writers)
	total := 0
	for i := range requests {
		requests[i] = p.request(tokens, uint64(i))
		for page := range requests[i].to.Pages() {
			writes[i%writers] = append(writes[i%writers], p.page(requests[i], page))
			total++
		}
	}
	var wg sync.WaitGroup
	for _, mine := range writes {
		wg.Go(func() {
			for _, w := range mine {
				if err := p.p.Write(w); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i, r := range requests {
		if i%5 == 4 {
			p.pool.Landing().Revoke(r.to.Key())
		}
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	p.completions(total)
	for i, r := range requests {
		if i%5 != 4 {
			p.verify(r, nil)
		}
	}
}

// testFence closes links in the middle of their work. What the race detector
// sees is part of the test: after Closed the segments are overwritten, and the
// pages at decode given to somebody else.
func testFence(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	for _, who := range []string{"prefill closes", "decode closes", "prefill closes in mid-frame"} {
		t.Run(who, func(t *testing.T) {
			f := fabric(t, wire.Options{Streams: 2})
			if who == "prefill closes in mid-frame" {
				f = faulty(f, once(wire.Fault{Do: wire.ActStall, Until: wire.NewGate(), After: 100}), nil) // never opens
			}
			p := join(t, f)
			r := p.request(200*16, 1)
			first := p.page(r, 0)
			p.write(first)
			for i := 1; i < r.to.Pages(); i++ {
				p.write(p.page(r, i))
			}
			wait(t, p.prefill.written, "one completion")
			if who == "decode closes" {
				p.d.Close(nil)
			} else {
				p.p.Close(nil)
			}
			wait(t, p.prefill.closed, "prefill's Closed")
			for i := range r.to.Pages() {
				segs, _ := r.from.Segments(i)
				for _, s := range segs {
					clear(s)
				}
			}
			wait(t, p.decode.closed, "decode's Closed")
			sealed, err := p.pool.Seal(r.to)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = p.pool.Verify(sealed, hasher{}, r.want) // reads all of it; how much has landed is open
			p.free(r)
			if err := p.p.Write(first); wire.ReasonOf(err) == wire.NoReason {
				t.Errorf("write after the end: %v", err)
			}
			if err := p.d.Send(Samples()[0]); wire.ReasonOf(err) == wire.NoReason {
				t.Errorf("send after the end: %v", err)
			}
			p.d.Close(errors.New("again")) // changes nothing
		})
	}
}

func testWritesBounded(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	const most = 8
	gate := wire.NewGate()
	stall := func(wire.PageWrite) wire.Fault { return wire.Fault{Do: wire.ActStall, Until: gate} }
	p := join(t, faulty(fabric(t, wire.Options{Streams: 1, Writes: most}), stall, nil))
	r := p.request(32*16, 1)
	for i := range most {
		p.write(p.page(r, i))
	}
	err := p.p.Write(p.page(r, most))
	if wire.ReasonOf(err) != wire.ReasonOverflow {
		t.Fatalf("write %d: %v, want %v", most, err, wire.ReasonOverflow)
	}
	ended(t, p, wire.ReasonOverflow)
}

func testMessagesBounded(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	gate := wire.NewGate()
	first := true
	stall := func(wire.Message) wire.Fault {
		if first {
			first = false
			return wire.Fault{Do: wire.ActStall, Until: gate, After: 3}
		}
		return wire.Fault{}
	}
	p := join(t, faulty(fabric(t, wire.Options{Queue: 10_000}), nil, stall))
	m := Samples()[0]
	sent := 0
	var err error
	for ; err == nil && sent < 1000; sent++ {
		err = p.p.Send(m)
	}
	if wire.ReasonOf(err) != wire.ReasonOverflow || sent < 50 || sent > 150 {
		t.Fatalf("after %d messages: %v", sent, err)
	}
	if cause := wait(t, p.prefill.closed, "Closed"); wire.ReasonOf(cause) != wire.ReasonOverflow {
		t.Fatalf("closed by %v", cause)
	}
}

// ended waits for both sides' Closed: ours with the reason, the peer's with the
// same as the peer's word.
func ended(t *testing.T, p *pair, why wire.Reason) {
	t.Helper()
	if cause := wait(t, p.prefill.closed, "prefill's Closed"); wire.ReasonOf(cause) != why {
		t.Errorf("prefill closed by %v, want %v", cause, why)
	}
	cause := wait(t, p.decode.closed, "decode's Closed")
	var e *wire.Error
	if !errors.As(cause, &e) || e.Reason != why || !e.Remote {
		t.Errorf("decode closed by %v, want to hear %v", cause, why)
	}
}

func testMisuse(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{}))
	for _, change := range []func(*wire.Message){
		func(m *wire.Message) { m.Kind = handoff.NoKind },
		func(m *wire.Message) { m.Kind = handoff.Quiet + 1 },
		func(m *wire.Message) { m.Code = 255 },
		func(m *wire.Message) { m.Key = kv.Key{1} },
		func(m *wire.Message) { m.First = 1 },
		func(m *wire.Message) { m.Algorithm = 1 },
		func(m *wire.Message) { m.DigestKey[31] = 1 },
		func(m *wire.Message) { m.MAC[0] = 1 },
		func(m *wire.Message) { m.Digests = make([]kv.Digest, 1) },
		func(m *wire.Message) { m.Kind, m.Digests = handoff.Notice, make([]kv.Digest, wire.MaxDigests+1) },
	} {
		m := wire.Message{Msg: handoff.Msg{Kind: handoff.Ask, ID: id(1)}}
		change(&m)
		if err := p.d.Send(m); err == nil {
			t.Errorf("%+v was sent", m.Msg)
		}
	}
	r := p.request(16, 1)
	good := p.page(r, 0)
	for name, change := range map[string]func(*wire.PageWrite){
		"negative page":  func(w *wire.PageWrite) { w.Page = -1 },
		"page too large": func(w *wire.PageWrite) { w.Page = wire.MaxDigests },
		"no rows":        func(w *wire.PageWrite) { w.Rows, w.Segments = 0, nil },
		"too many rows":  func(w *wire.PageWrite) { w.Rows = 17 },
		"too few bytes":  func(w *wire.PageWrite) { w.Segments = [][]byte{w.Segments[0][1:]} },
	} {
		w := good
		change(&w)
		if err := p.p.Write(w); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := p.d.Write(good); err == nil {
		t.Error("decode wrote a page")
	}
	// None of it has hurt the link.
	p.landed(p.write(good))
	p.verify(r, nil)
	if err := p.d.Send(Samples()[0]); err != nil {
		t.Error(err)
	}
	wait(t, p.prefill.message, "a message")
}

func testReason(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{}))
	p.p.Close(&wire.Error{Reason: wire.ReasonShutdown})
	p.p.Close(errors.New("too late to be the cause"))
	ended(t, p, wire.ReasonShutdown)
}

func testMismatch(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	for _, c := range []struct {
		name   string
		want   wire.Reason
		change func(*wire.Hello)
	}{
		{"nothing", wire.NoReason, func(*wire.Hello) {}},
		{"model", wire.ReasonModel, func(h *wire.Hello) { h.Model[31]++ }},
		{"layers", wire.ReasonLayout, func(h *wire.Hello) { h.Layout.Layers++ }},
		{"heads", wire.ReasonLayout, func(h *wire.Hello) { h.Layout.Heads++ }},
		{"dim", wire.ReasonLayout, func(h *wire.Hello) { h.Layout.Dim++ }},
		{"page size", wire.ReasonPageSize, func(h *wire.Hello) { h.Layout.PageTokens = 64 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := make(chan error, 64)
			f := fabric(t, wire.Options{Refused: func(err error) { refused <- err }})
			prefill, decode := NewEnd(t), NewEnd(t)
			listener, err := f.Prefill.Listen(f.Addr, PrefillHello(), prefill, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }() // its error has a test of its own
			hello := DecodeHello()
			c.change(&hello)
			link, err := f.Decode.Dial(t.Context(), listener.Addr(), hello, decode, newPool(t, 3, 1).Landing())
			if c.want == wire.NoReason { // the positive control
				if err != nil {
					t.Fatal(err)
				}
				link.Close(nil)
				wait(t, decode.closed, "Closed")
				return
			}
			var e *wire.Error
			if !errors.As(err, &e) || e.Reason != c.want || !e.Remote {
				t.Fatalf("dial: %v, want to hear %v", err, c.want)
			}
			if err := wait(t, refused, "the listener's report"); wire.ReasonOf(err) != c.want {
				t.Fatalf("refused: %v, want %v", err, c.want)
			}
			if len(prefill.opened)+len(decode.opened) != 0 {
				t.Fatal("a link was opened")
			}
		})
	}
}

func testListenerClose(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	f := fabric(t, wire.Options{})
	p := join(t, f)
	if err := p.listener.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, p, wire.ReasonShutdown)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := f.Decode.Dial(ctx, p.listener.Addr(), DecodeHello(), p.decode, p.pool.Landing()); wire.ReasonOf(err) != wire.ReasonGone {
		t.Fatalf("dial after close: %v", err)
	}
	if err := p.listener.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
}

func testLinksBounded(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	f := fabric(t, wire.Options{Links: 1})
	p := join(t, f)
	dial := func() (wire.Link, error) {
		return f.Decode.Dial(t.Context(), p.listener.Addr(), DecodeHello(), p.decode, p.pool.Landing())
	}
	if _, err := dial(); wire.ReasonOf(err) != wire.ReasonBusy {
		t.Fatalf("second link: %v, want %v", err, wire.ReasonBusy)
	}
	p.p.Close(nil)
	p.fences()
	again, err := dial()
	if err != nil {
		t.Fatalf("after the first one closed: %v", err)
	}
	wait(t, p.decode.opened, "Opened")
	wait(t, p.prefill.opened, "Opened")
	again.Close(nil)
	wait(t, p.decode.closed, "Closed")
	wait(t, p.prefill.closed, "Closed")
}

func testDialGivesUp(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	f := fabric(t, wire.Options{})
	p := join(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Decode.Dial(ctx, p.listener.Addr(), DecodeHello(), p.decode, p.pool.Landing()); wire.ReasonOf(err) != wire.ReasonClosed {
		t.Fatalf("cancelled: %v", err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if _, err := f.Decode.Dial(late, p.listener.Addr(), DecodeHello(), p.decode, p.pool.Landing()); wire.ReasonOf(err) != wire.ReasonHandshake {
		t.Fatalf("too late: %v", err)
	}
}
