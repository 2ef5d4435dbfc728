package wire

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// faultPair is a pair over mem with faults on what prefill sends.
type faultPair struct {
	t               *testing.T
	faults          *Faults
	prefill, decode *heard
	link            Link // at prefill
	pool            *kv.Pool
	r               *kv.Reservation
	content         [][]byte // of the pages, at prefill
}

const faultPages = 6

func withFaults(t *testing.T, f func(p *faultPair)) {
	t.Helper()
	withFaultsOver(t, func(m Transport) Transport { return m }, f)
}

func withFaultsOver(t *testing.T, over func(Transport) Transport, f func(p *faultPair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := NewMem(Options{Streams: 1})
		p := &faultPair{t: t, faults: &Faults{Transport: over(m)}, prefill: newHeard(), decode: newHeard(), pool: testPool(t)}
		listener, err := p.faults.Listen("a", testHello(RolePrefill), p.prefill, nil)
		if err != nil {
			t.Fatal(err)
		}
		d, err := m.Dial(t.Context(), "a", testHello(RoleDecode), p.decode, p.pool.Landing())
		if err != nil {
			t.Fatal(err)
		}
		p.link = <-p.prefill.opened
		if p.r, err = p.pool.Reserve(kv.Domain{}, faultPages*16, 0, nil); err != nil {
			t.Fatal(err)
		}
		for i := range faultPages {
			p.content = append(p.content, slices.Repeat([]byte{byte(i + 1)}, testLayout().Bytes(16)))
		}
		f(p)
		d.Close(nil)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		<-p.prefill.closed
		<-p.decode.closed
	})
}

// write posts page i with its own content and waits until all is still.
func (p *faultPair) write(i int) {
	p.t.Helper()
	err := p.link.Write(PageWrite{ID: uint64(i), Key: p.r.Key(), Page: i, Rows: 16, Segments: [][]byte{p.content[i][:10], p.content[i][10:]}})
	if err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

func (p *faultPair) send(room uint64) {
	p.t.Helper()
	if err := p.link.Send(Message{Msg: handoff.Msg{Kind: handoff.Offer, Room: room}}); err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// completed returns how many writes were reported, and the last one's error.
func (p *faultPair) completed() (n int, err error) {
	for len(p.prefill.written) > 0 {
		n, err = n+1, <-p.prefill.written
	}
	return n, err
}

// rooms returns the rooms of the messages that arrived, in order.
func (p *faultPair) rooms() (out []uint64) {
	for len(p.decode.messages) > 0 {
		out = append(out, (<-p.decode.messages).Room)
	}
	return out
}

// holds seals the reservation and compares the last bytes of its pages.
func (p *faultPair) holds(want ...byte) {
	p.t.Helper()
	sealed, err := p.pool.Seal(p.r)
	if err != nil {
		p.t.Fatal(err)
	}
	digests := make([]kv.Digest, faultPages)
	for i, b := range want {
		digests[i] = kv.Digest{b, b, b, b}
	}
	if _, err := p.pool.Verify(sealed, tail{}, digests); err != nil {
		p.t.Errorf("the pages do not end in %v: %v", want, err)
	}
}

// onPage gives the fault to one page or room, and passes the others.
func onPage(i int, f Fault) func(PageWrite) Fault {
	return func(w PageWrite) Fault {
		if w.Page == i {
			return f
		}
		return Fault{}
	}
}

func onRoom(room uint64, f Fault) func(Message) Fault {
	return func(m Message) Fault {
		if m.Room == room {
			return f
		}
		return Fault{}
	}
}

// expect checks how many writes were reported since it was asked last, all
// without an error.
func (p *faultPair) expect(completions int) {
	p.t.Helper()
	if n, err := p.completed(); n != completions || err != nil {
		p.t.Errorf("%d completions, %v; want %d", n, err, completions)
	}
}

func TestFaultsOnPages(t *testing.T) {
	run := func(name string, f func(p *faultPair)) {
		t.Run(name, func(t *testing.T) { withFaults(t, f) })
	}
	run("pass", func(p *faultPair) {
		p.write(0)
		p.expect(1)
		p.holds(1)
	})
	run("delay", func(p *faultPair) {
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActDelay, Until: gate})
		p.write(0)
		p.write(1)
		p.expect(1)
		if gate.Held() != 1 {
			p.t.Errorf("%d held", gate.Held())
		}
		gate.Open()
		synctest.Wait()
		p.expect(1)
		gate.Open() // again: nothing
		p.write(2)
		p.expect(1)
		p.holds(1, 2, 3)
	})
	run("drop", func(p *faultPair) {
		p.faults.Page = onPage(0, Fault{Do: ActDrop})
		p.write(0)
		p.write(1)
		p.expect(1)
		p.holds(0, 2)
	})
	run("duplicate", func(p *faultPair) {
		seen := 0
		p.faults.Page = func(PageWrite) Fault { seen++; return Fault{Do: ActDuplicate} }
		p.write(0)
		p.expect(1)
		if n := p.link.(*faultLink).Link.(*link).streams[0].sent; seen != 1 || n != 2 {
			p.t.Errorf("%d frames were sent, the hook was asked %d times", n, seen)
		}
		p.holds(1)
	})
	run("reorder", func(p *faultPair) {
		p.faults.Page = onPage(0, Fault{Do: ActReorder})
		p.write(0)
		p.expect(0)
		p.write(1)
		p.expect(2)
		p.holds(1, 2)
	})
	run("cut", func(p *faultPair) {
		p.faults.Page = onPage(0, Fault{Do: ActCut})
		err := p.link.Write(PageWrite{Key: p.r.Key(), Rows: 16, Segments: [][]byte{p.content[0]}})
		if ReasonOf(err) != ReasonClosed || !errors.Is(err, errFaultCut) {
			p.t.Errorf("%v", err)
		}
		p.expect(0)
		p.holds(0)
	})
	run("stall", func(p *faultPair) {
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActStall, Until: gate, After: 15})
		p.write(0)
		p.write(1)
		p.expect(0) // the connection stands still
		gate.Open()
		synctest.Wait()
		p.expect(2)
		p.holds(1, 2)
	})
	run("stall in mid-frame, then cut", func(p *faultPair) {
		p.faults.Page = onPage(0, Fault{Do: ActStall, After: 10}) // no gate: for ever
		p.write(0)
		p.link.Close(nil)
		p.expect(0)
		p.holds(0)
	})
}

// opaque is a transport whose links can do no more than the interface says.
type opaque struct{ Transport }

type opaqueLink struct{ Link }

type opaqueHandler struct{ Handler }

func (o opaque) Listen(addr string, hello Hello, h Handler, landing *kv.Landing) (Listener, error) {
	return o.Transport.Listen(addr, hello, opaqueHandler{h}, landing)
}

func (h opaqueHandler) Opened(l Link)             { h.Handler.Opened(opaqueLink{l}) }
func (h opaqueHandler) Receive(l Link, m Message) { h.Handler.Receive(opaqueLink{l}, m) }
func (h opaqueHandler) Written(l Link, id uint64, err error) {
	h.Handler.Written(opaqueLink{l}, id, err)
}
func (h opaqueHandler) Closed(l Link, err error) { h.Handler.Closed(opaqueLink{l}, err) }

// TestStallElsewhere: what cannot stall in mid-frame is delayed.
func TestStallElsewhere(t *testing.T) {
	withFaultsOver(t, func(m Transport) Transport { return opaque{m} }, func(p *faultPair) {
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActStall, Until: gate, After: 10})
		p.faults.Message = onRoom(1, Fault{Do: ActStall, Until: gate, After: 10})
		p.write(0)
		p.write(1)
		p.send(1)
		p.send(2)
		p.expect(1)
		if got := p.rooms(); !slices.Equal(got, []uint64{2}) || gate.Held() != 2 {
			t.Errorf("arrived %v, %d held", got, gate.Held())
		}
		gate.Open()
		synctest.Wait()
		p.expect(1)
		if got := p.rooms(); !slices.Equal(got, []uint64{1}) {
			t.Errorf("arrived then %v", got)
		}
		p.holds(1, 2)
	})
}

// TestFaultsInTime: what comes when nobody expects it any more.
func TestFaultsInTime(t *testing.T) {
	run := func(name string, f func(p *faultPair)) {
		t.Run(name, func(t *testing.T) { withFaults(t, f) })
	}
	run("replay after completion", func(p *faultPair) {
		// Under the key of a reservation that does not exist yet, so that the
		// first write is refused and the replay can be seen to land.
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActReplay, Until: gate})
		next := kv.Key{2, 99}
		err := p.link.Write(PageWrite{Key: next, Rows: 16, Segments: [][]byte{p.content[0]}})
		if err != nil {
			p.t.Fatal(err)
		}
		synctest.Wait()
		if n, err := p.completed(); n != 1 || !errors.Is(err, kv.ErrRefused) {
			p.t.Errorf("%d completions, %v", n, err)
		}
		clear(p.content[0]) // the copy does not change
		if p.r, err = p.pool.Reserve(kv.Domain{}, faultPages*16, 0, nil); err != nil || p.r.Key() != next {
			p.t.Fatal(err)
		}
		gate.Open()
		synctest.Wait()
		p.expect(0)
		p.holds(1)
	})
	run("complete early, read late", func(p *faultPair) {
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActEarly, Until: gate})
		p.write(0)
		p.expect(1)
		p.content[0][len(p.content[0])-1], p.content[0][len(p.content[0])-2] = 9, 9
		p.content[0][len(p.content[0])-3], p.content[0][len(p.content[0])-4] = 9, 9
		gate.Open()
		synctest.Wait()
		p.expect(0)
		p.holds(9) // the source was read after its completion
	})
	run("fail, and land all the same", func(p *faultPair) {
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActFail, Until: gate})
		p.write(0)
		if n, err := p.completed(); n != 1 || !errors.Is(err, errFaultFail) {
			p.t.Errorf("%d completions, %v", n, err)
		}
		gate.Open()
		synctest.Wait()
		p.expect(0)
		p.holds(1)
	})
	run("what is held when the link closes is lost", func(p *faultPair) {
		gate := NewGate()
		p.faults.Page = onPage(0, Fault{Do: ActEarly, Until: gate})
		p.write(0)
		p.expect(1)
		p.link.Close(nil)
		synctest.Wait()
		gate.Open()
		synctest.Wait()
		p.expect(0)
		p.holds(0)
	})
}

func TestFaultsOnMessages(t *testing.T) {
	run := func(name string, want []uint64, f Fault) {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(p *faultPair) {
				p.faults.Message = onRoom(1, f)
				p.send(1)
				p.send(2)
				p.send(3)
				if got := p.rooms(); !slices.Equal(got, want) {
					t.Errorf("arrived %v, want %v", got, want)
				}
			})
		})
	}
	run("pass", []uint64{1, 2, 3}, Fault{})
	run("drop", []uint64{2, 3}, Fault{Do: ActDrop})
	run("duplicate", []uint64{1, 1, 2, 3}, Fault{Do: ActDuplicate})
	run("reorder", []uint64{2, 1, 3}, Fault{Do: ActReorder})
	run("early is for pages", []uint64{1, 2, 3}, Fault{Do: ActEarly})
	run("no gate never opens", []uint64{2, 3}, Fault{Do: ActDelay})
	t.Run("with gates", func(t *testing.T) {
		for _, c := range []struct {
			act           Act
			before, after []uint64
		}{
			{ActDelay, []uint64{2, 3}, []uint64{1}},
			{ActStall, nil, []uint64{1, 2, 3}},
			{ActReplay, []uint64{1, 2, 3}, []uint64{1}},
		} {
			withFaults(t, func(p *faultPair) {
				gate := NewGate()
				p.faults.Message = onRoom(1, Fault{Do: c.act, Until: gate, After: 20})
				p.send(1)
				p.send(2)
				p.send(3)
				if got := p.rooms(); !slices.Equal(got, c.before) {
					t.Errorf("%d: arrived %v, want %v", c.act, got, c.before)
				}
				gate.Open()
				synctest.Wait()
				if got := p.rooms(); !slices.Equal(got, c.after) {
					t.Errorf("%d: arrived then %v, want %v", c.act, got, c.after)
				}
			})
		}
	})
	t.Run("cut", func(t *testing.T) {
		withFaults(t, func(p *faultPair) {
			p.faults.Message = onRoom(1, Fault{Do: ActCut})
			if err := p.link.Send(Message{Msg: handoff.Msg{Kind: handoff.Offer, Room: 1}}); !errors.Is(err, errFaultCut) {
				t.Errorf("%v", err)
			}
		})
	})
}
