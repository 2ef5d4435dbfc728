package wire

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"bulkhead.dev/bulkhead/kv"
)

// Faults is test equipment: a transport that does to the messages and pages of
// another one what a bad network, a bad peer, or a network card does. Drills and
// tests use it; nothing in production makes one. It touches what its own side
// sends: wrap both sides for both directions.
//
// It is deterministic. The hooks decide for each message and each page, one call
// at a time, in the order of Send and Write; what is held goes on in the
// goroutine that opens its [Gate], in the order in which it was held. What is
// held when its link closes is lost.
type Faults struct {
	Transport Transport
	Message   func(Message) Fault   // nil passes everything
	Page      func(PageWrite) Fault // nil passes everything

	mu sync.Mutex // one hook at a time
}

var _ Transport = (*Faults)(nil)

// Act is what is done to one message or page.
type Act uint8

const (
	ActPass      Act = iota // nothing
	ActDelay                // held until the gate opens
	ActDrop                 // lost; a page write never completes
	ActDuplicate            // sent twice; of a page write one completion is reported
	ActReorder              // sent right after the next one of its kind on its link that passes
	ActCut                  // lost, and the link is closed
	// ActStall sends After bytes of the message's frame or the page's content, and
	// the rest when the gate opens; meanwhile its connection stands still. A
	// transport of another package delays instead.
	ActStall
	// ActReplay sends it, and sends a copy of its bytes, under the same key, when
	// the gate opens: also after completion.
	ActReplay
	// ActEarly reports a page as landed at once, and reads its source and sends it
	// when the gate opens: a card that completes before it has read. A message
	// passes.
	ActEarly
	// ActFail reports a page as failed at once, and reads its source and sends it
	// when the gate opens: an error that is no proof of quiet (H-8). A message passes.
	ActFail
)

// Fault is one decision of a hook. The zero value passes.
type Fault struct {
	Do    Act
	Until *Gate // nil never opens
	After int   // bytes, of ActStall
}

// Errors that faults make.
var (
	errFaultCut  = errors.New("cut by a fault")
	errFaultFail = errors.New("wire: page write failed by a fault")
)

// Gate holds what faults hold, until it is opened once and for all.
type Gate struct {
	mu     sync.Mutex
	opened chan struct{}
	open   bool
	held   []func()
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{opened: make(chan struct{})} }

// Open sends on everything that is held, in order, and lets later things pass.
func (g *Gate) Open() {
	g.mu.Lock()
	if g.open {
		g.mu.Unlock()
		return
	}
	g.open = true
	held := g.held
	g.held = nil
	close(g.opened)
	g.mu.Unlock()
	for _, f := range held {
		f()
	}
}

// Held is how many messages and pages wait at the gate; stalls do not count.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held)
}

// hold runs f when the gate opens, or now if it is open.
func (g *Gate) hold(f func()) {
	if g == nil {
		return
	}
	g.mu.Lock()
	if !g.open {
		g.held = append(g.held, f)
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	f()
}

// wait returns true once the gate is open, and false if done comes first.
func (g *Gate) wait(done <-chan struct{}) bool {
	select {
	case <-g.opened:
		return true
	case <-done:
		return false
	}
}

// Dial implements [Transport].
func (f *Faults) Dial(ctx context.Context, addr string, hello Hello, h Handler, landing *kv.Landing) (Link, error) {
	fh := &faultHandler{faults: f, outer: h, links: map[Link]*faultLink{}}
	if _, err := f.Transport.Dial(ctx, addr, hello, fh, landing); err != nil {
		return nil, err
	}
	return fh.newest(), nil
}

// Listen implements [Transport].
func (f *Faults) Listen(addr string, hello Hello, h Handler, landing *kv.Landing) (Listener, error) {
	return f.Transport.Listen(addr, hello, &faultHandler{faults: f, outer: h, links: map[Link]*faultLink{}}, landing)
}

// faultHandler stands between the links of a transport and the handler, which
// sees the links of the wrapper.
type faultHandler struct {
	faults *Faults
	outer  Handler
	mu     sync.Mutex
	links  map[Link]*faultLink
	last   *faultLink
}

func (h *faultHandler) newest() *faultLink {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

func (h *faultHandler) find(l Link) *faultLink {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.links[l]
}

// Opened implements [Handler].
func (h *faultHandler) Opened(l Link) {
	fl := &faultLink{Link: l, faults: h.faults, open: map[uint64]uint64{}, news: make(chan struct{}, 1), over: make(chan struct{})}
	h.mu.Lock()
	h.links[l], h.last = fl, fl
	h.mu.Unlock()
	h.outer.Opened(fl)
	fl.teller.Go(func() { fl.tell(h.outer) })
}

// Receive implements [Handler].
func (h *faultHandler) Receive(l Link, m Message) { h.outer.Receive(h.find(l), m) }

// Written implements [Handler].
func (h *faultHandler) Written(l Link, id uint64, err error) {
	fl := h.find(l)
	if theirs, ok := fl.take(id); ok {
		h.outer.Written(fl, theirs, err)
	}
}

// Closed implements [Handler].
func (h *faultHandler) Closed(l Link, cause error) {
	fl := h.find(l)
	close(fl.over)
	fl.teller.Wait()
	h.mu.Lock()
	delete(h.links, l)
	h.mu.Unlock()
	h.outer.Closed(fl, cause)
}

// faultLink is a link as its handler sees it. It gives page writes ids of its
// own, so that what the handler did not ask for is not reported to it.
type faultLink struct {
	Link
	faults *Faults

	mu      sync.Mutex
	ids     uint64
	open    map[uint64]uint64 // the handler's id, by ours
	message func()            // waits for the next one to pass
	page    func()            // waits for the next one to pass
	early   []report

	news   chan struct{} // holds one token while there is something to tell
	over   chan struct{}
	teller sync.WaitGroup
}

// report is a completion that nobody waited for.
type report struct {
	id  uint64
	err error
}

// staller is a link that can stop in the middle of a frame.
type staller interface {
	send(m Message, gate *Gate, after int) error
	write(w PageWrite, gate *Gate, after int) error
}

// give makes an id of ours for one of the handler's.
func (l *faultLink) give(w PageWrite, reported bool) PageWrite {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids++
	if reported {
		l.open[l.ids] = w.ID
	}
	w.ID = l.ids
	return w
}

func (l *faultLink) take(id uint64) (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	theirs, ok := l.open[id]
	delete(l.open, id)
	return theirs, ok
}

// report tells the handler about a page from a goroutine of the link, as a
// transport does.
func (l *faultLink) report(id uint64, err error) {
	l.mu.Lock()
	l.early = append(l.early, report{id, err})
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
}

func (l *faultLink) tell(h Handler) {
	for {
		select {
		case <-l.news:
		case <-l.over:
			return
		}
		l.mu.Lock()
		early := l.early
		l.early = nil
		l.mu.Unlock()
		for _, r := range early {
			h.Written(l, r.id, r.err)
		}
	}
}

// swap replaces what waits for the next one to pass.
func (l *faultLink) swap(at *func(), f func()) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := *at
	*at = f
	if before == nil {
		return func() {}
	}
	return before
}

// Send implements [Link].
func (l *faultLink) Send(m Message) error {
	var f Fault
	if hook := l.faults.Message; hook != nil {
		l.faults.mu.Lock()
		f = hook(m)
		l.faults.mu.Unlock()
	}
	// What is sent later finds the link closed, or not; either is part of the fault.
	later := func() { _ = l.Link.Send(m) }
	switch f.Do {
	case ActDrop:
		return nil
	case ActCut:
		return l.cut()
	case ActDelay:
		f.Until.hold(later)
		return nil
	case ActReorder:
		l.swap(&l.message, later)()
		return nil
	}
	var err error
	if f.Do == ActStall {
		err = l.send(m, f.Until, f.After)
	} else {
		err = l.Link.Send(m)
	}
	l.swap(&l.message, nil)()
	switch f.Do {
	case ActDuplicate:
		later()
	case ActReplay:
		f.Until.hold(later)
	}
	return err
}

// Write implements [Link].
func (l *faultLink) Write(w PageWrite) error {
	var f Fault
	if hook := l.faults.Page; hook != nil {
		l.faults.mu.Lock()
		f = hook(w)
		l.faults.mu.Unlock()
	}
	later := func(w PageWrite) func() { return func() { _ = l.Link.Write(w) } } // see Send
	switch f.Do {
	case ActDrop:
		return nil
	case ActCut:
		return l.cut()
	case ActEarly:
		f.Until.hold(later(l.give(w, false)))
		l.report(w.ID, nil)
		return nil
	case ActFail:
		f.Until.hold(later(l.give(w, false)))
		l.report(w.ID, errFaultFail)
		return nil
	case ActDelay:
		f.Until.hold(later(l.give(w, true)))
		return nil
	case ActReorder:
		l.swap(&l.page, later(l.give(w, true)))()
		return nil
	}
	again := w
	if f.Do == ActReplay {
		again.Segments = nil
		for _, s := range w.Segments {
			again.Segments = append(again.Segments, bytes.Clone(s))
		}
	}
	var err error
	if f.Do == ActStall {
		err = l.write(w, f.Until, f.After)
	} else {
		err = l.Link.Write(l.give(w, true))
	}
	l.swap(&l.page, nil)()
	switch f.Do {
	case ActDuplicate:
		later(l.give(w, false))()
	case ActReplay:
		f.Until.hold(later(l.give(again, false)))
	}
	return err
}

// send stalls in a message, or delays it where the transport cannot stall.
func (l *faultLink) send(m Message, gate *Gate, after int) error {
	if gate == nil {
		gate = NewGate()
	}
	if inner, can := l.Link.(staller); can {
		return inner.send(m, gate, after)
	}
	gate.hold(func() { _ = l.Link.Send(m) }) // see Send
	return nil
}

// write stalls in a page, or delays it where the transport cannot stall.
func (l *faultLink) write(w PageWrite, gate *Gate, after int) error {
	if gate == nil {
		gate = NewGate()
	}
	w = l.give(w, true)
	if inner, can := l.Link.(staller); can {
		return inner.write(w, gate, after)
	}
	gate.hold(func() { _ = l.Link.Write(w) }) // see Send
	return nil
}

func (l *faultLink) cut() error {
	err := &Error{Reason: ReasonClosed, Err: errFaultCut}
	l.Link.Close(err)
	return err
}
