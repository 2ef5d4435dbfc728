package wire

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The handshake (H-13). The dialling side opens the control connection, and says
// hello; the listening side answers welcome, with a ticket, or refused. The
// dialling side opens the data connections, each of which proves that it holds
// the ticket, and gets a proof back; then it says start. Whatever goes wrong ends
// the connection that it went wrong on with a reason.

// spareHandshakes is room for connections that will be refused.
const spareHandshakes = 16

// opener opens one more connection to the same peer.
type opener func(ctx context.Context, data bool) (*conn, error)

// dialling is the dialling side of one handshake.
type dialling struct {
	side
	ours  greeting
	open  opener
	conns []*conn
	stops []func() bool
}

// dial makes a link. ctx and the handshake's deadline bound it.
func dial(ctx context.Context, s side, p Protection, open opener) (Link, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Handshake)
	defer cancel()
	d := &dialling{side: s, open: open, ours: greeting{Hello: s.hello, protection: p, streams: s.opts.Streams}}
	peer, err := d.shake(ctx)
	for _, stop := range d.stops {
		if !stop() && err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		for _, c := range d.conns {
			_ = c.raw.Close() // the error that counts is err
		}
		return nil, handshakeError(ctx, err)
	}
	l := newLink(s, peer, d.conns[0], d.conns[1:], func() {})
	l.start()
	return l, nil
}

// connect opens a connection that is closed when ctx ends.
func (d *dialling) connect(ctx context.Context, data bool) (*conn, error) {
	c, err := d.open(ctx, data)
	if err != nil {
		return nil, err
	}
	d.conns = append(d.conns, c)
	d.stops = append(d.stops, context.AfterFunc(ctx, func() { _ = c.raw.Close() })) // wakes whoever reads or writes it
	return c, nil
}

func (d *dialling) shake(ctx context.Context) (Hello, error) {
	control, err := d.connect(ctx, false)
	if err != nil {
		return Hello{}, err
	}
	_, writeErr := control.Write(appendHello(nil, d.ours))
	body, err := answer(control, frameWelcome)
	if err != nil {
		return Hello{}, err // says more than a broken pipe
	}
	if writeErr != nil {
		return Hello{}, writeErr
	}
	t, theirs, err := parseWelcome(body)
	if err == nil {
		err = d.ours.compare(theirs, control.who)
	}
	if err == nil && theirs.streams > d.ours.streams {
		err = fail(ReasonMalformed, "welcome with %d streams", theirs.streams)
	}
	if err != nil {
		_, _ = control.Write(appendRefused(nil, ReasonOf(err))) // the error that counts is err
		return Hello{}, err
	}
	for i := range theirs.streams {
		if err := d.bind(ctx, t, uint8(i), control.who); err != nil {
			return Hello{}, err
		}
	}
	frame := endFrame(beginFrame(nil, frameStart), 0, 0)
	_, err = control.Write(frame)
	return theirs.Hello, err
}

// bind opens a data connection and binds it to the link.
func (d *dialling) bind(ctx context.Context, t ticket, index uint8, who Identity) error {
	c, err := d.connect(ctx, true)
	if err != nil {
		return err
	}
	if c.who != who && c.kind != kindPlain {
		return fail(ReasonIdentity, "a data connection reached %s, the control connection %s", c.who, who)
	}
	_, writeErr := c.Write(appendBind(nil, bind{id: t.id, index: index, proof: t.prove(index, frameBind)}))
	body, err := answer(c, frameBound)
	if err != nil {
		return err
	}
	proof := t.prove(index, frameBound)
	if subtle.ConstantTimeCompare(body, proof[:]) != 1 {
		return fail(ReasonToken, "data connection %d: the peer has no proof", index)
	}
	return writeErr
}

// answer reads one frame of the wanted type, or the peer's refusal as an error.
func answer(c *conn, want frameType) ([]byte, error) {
	kind, body, err := readFrame(c, nil, want, frameRefused)
	if err == nil && kind == frameRefused {
		return nil, parseRefused(body)
	}
	return body, err
}

// accepting is a listener: it makes links of the connections that come.
type accepting struct {
	side
	protection Protection
	net        net.Listener
	secure     func(ctx context.Context, raw net.Conn) (*conn, error)
	stop       context.CancelFunc
	work       sync.WaitGroup // the accept loop and the handshakes

	mu      sync.Mutex
	closed  bool
	busy    int // handshakes under way
	pending map[[16]byte]*pending
	links   map[*link]struct{}
}

// pending is a link whose data connections are not all bound.
type pending struct {
	ticket ticket
	who    Identity
	conns  []*conn
	taken  []bool
	bound  int
	ready  chan struct{} // closed when all are bound
}

// listen starts to accept from n.
func listen(s side, p Protection, n net.Listener, secure func(context.Context, net.Conn) (*conn, error)) *accepting {
	ctx, stop := context.WithCancel(context.Background())
	a := &accepting{
		side: s, protection: p, net: n, secure: secure, stop: stop,
		pending: map[[16]byte]*pending{}, links: map[*link]struct{}{},
	}
	a.work.Go(func() { a.accept(ctx) })
	return a
}

// Addr implements [Listener].
func (a *accepting) Addr() string { return a.net.Addr().String() }

// Close implements [Listener].
func (a *accepting) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	err := a.net.Close()
	a.stop()
	a.work.Wait()
	a.mu.Lock()
	links := make([]*link, 0, len(a.links))
	for l := range a.links {
		links = append(links, l)
	}
	a.mu.Unlock()
	for _, l := range links {
		l.Close(&Error{Reason: ReasonShutdown})
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("wire: close listener: %w", err)
	}
	return nil
}

// accept hands every connection to a goroutine of its own, up to a bound that
// leaves room for data connections when all links are in their handshake.
func (a *accepting) accept(ctx context.Context) {
	for {
		raw, err := a.net.Accept()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if err == nil {
				_ = raw.Close() // nobody will use it
			}
			return
		}
		if err != nil {
			// The process is out of something, descriptors as a rule. The next
			// try waits until a handshake or a link may have given it back.
			a.opts.Refused(asError(err))
			if !pause(ctx, a.opts.KeepAlive/50) {
				return
			}
			continue
		}
		// Every link in its handshake may have all its connections there at once.
		most := a.opts.Links*(1+a.opts.Streams) + spareHandshakes
		a.mu.Lock()
		full := a.busy >= most
		if !full {
			a.busy++
		}
		a.mu.Unlock()
		if full {
			_ = raw.Close() // no goroutine to spare for a last word
			a.opts.Refused(fail(ReasonBusy, "%d handshakes", most))
			continue
		}
		a.work.Go(func() { a.handshake(ctx, raw) })
	}
}

// handshake makes raw part of a link, or refuses it.
func (a *accepting) handshake(ctx context.Context, raw net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Handshake)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // wakes whoever reads or writes it
	c, err := a.secure(ctx, raw)
	if err == nil {
		err = a.admit(ctx, c, stop)
	}
	a.mu.Lock()
	a.busy--
	a.mu.Unlock()
	if err == nil {
		return
	}
	err = handshakeError(ctx, err)
	var e *Error
	if c != nil && errors.As(err, &e) && !e.Remote && e.Reason != ReasonGone {
		_ = c.SetWriteDeadline(time.Now().Add(farewell))
		_, _ = c.Write(appendRefused(nil, e.Reason)) // best effort
	}
	hangUp(raw)
	a.opts.Refused(err)
}

// admit reads the first frame of a connection. The connection belongs to a link
// if it returns nil.
func (a *accepting) admit(ctx context.Context, c *conn, stop func() bool) error {
	kind, body, err := readFrame(c, nil, frameHello, frameBind)
	if err != nil {
		return err
	}
	if !a.protection.carries(c.kind, kind == frameBind) {
		return fail(ReasonProtection, "a connection that is not protected as %v wants", a.protection)
	}
	if kind == frameBind {
		return a.bind(c, body, stop)
	}
	return a.greet(ctx, c, body, stop)
}

// greet answers a hello, waits for the data connections, and starts the link.
func (a *accepting) greet(ctx context.Context, c *conn, body []byte, stop func() bool) error {
	theirs, err := parseGreeting(body)
	if err != nil {
		return err
	}
	ours := greeting{Hello: a.hello, protection: a.protection, streams: min(theirs.streams, a.opts.Streams)}
	if err := ours.compare(theirs, c.who); err != nil {
		return err
	}
	p, err := a.expect(c.who, ours.streams)
	if err != nil {
		return err
	}
	defer a.forget(p)
	if _, err := c.Write(appendWelcome(nil, p.ticket, ours)); err != nil {
		return err
	}
	if _, err := answer(c, frameStart); err != nil {
		return err
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !stop() {
		return ctx.Err()
	}
	return a.open(c, p, theirs.Hello)
}

// expect mints a ticket and waits for its data connections.
func (a *accepting) expect(who Identity, streams int) (*pending, error) {
	p := &pending{who: who, conns: make([]*conn, streams), taken: make([]bool, streams), ready: make(chan struct{})}
	for _, secret := range [...][]byte{p.ticket.id[:], p.ticket.token[:]} {
		if _, err := io.ReadFull(a.opts.Rand, secret); err != nil {
			return nil, fail(ReasonClosed, "random source: %w", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.pending)+len(a.links) >= a.opts.Links {
		return nil, fail(ReasonBusy, "%d links", a.opts.Links)
	}
	a.pending[p.ticket.id] = p
	return p, nil
}

// forget ends a pending link; connections that did not get into it are closed.
func (a *accepting) forget(p *pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pending, p.ticket.id)
	for _, c := range p.conns {
		if c != nil {
			_ = c.raw.Close() // the handshake has failed, and says why
		}
	}
}

// bind takes a data connection for the link that it proves to belong to. A wrong
// proof costs the connection, not the link.
func (a *accepting) bind(c *conn, body []byte, stop func() bool) error {
	b, err := parseBind(body)
	if err != nil {
		return err
	}
	p, err := a.claim(b, c)
	if err != nil {
		return err
	}
	if _, err := c.Write(appendBound(nil, p.ticket.prove(b.index, frameBound))); err != nil {
		return err
	}
	if !stop() {
		return context.DeadlineExceeded
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending[p.ticket.id] != p {
		return fail(ReasonToken, "the link is not waiting any more")
	}
	p.conns[b.index] = c
	p.bound++
	if p.bound == len(p.conns) {
		close(p.ready)
	}
	return nil
}

// claim finds the pending link that the proof opens, and uses its index up.
func (a *accepting) claim(b bind, c *conn) (*pending, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pending[b.id]
	if p == nil || int(b.index) >= len(p.taken) || p.taken[b.index] {
		return nil, fail(ReasonToken, "no link waits for it")
	}
	proof := p.ticket.prove(b.index, frameBind)
	if subtle.ConstantTimeCompare(proof[:], b.proof[:]) != 1 {
		return nil, fail(ReasonToken, "wrong proof")
	}
	if c.kind == kindTLS && c.who != p.who {
		return nil, fail(ReasonIdentity, "a data connection of %s for a link of %s", c.who, p.who)
	}
	p.taken[b.index] = true
	return p, nil
}

// open makes the link.
func (a *accepting) open(control *conn, p *pending, peer Hello) error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return fail(ReasonShutdown, "in a handshake")
	}
	var l *link
	l = newLink(a.side, peer, control, p.conns, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.links, l)
	})
	a.links[l] = struct{}{}
	delete(a.pending, p.ticket.id)
	p.conns = nil // the link's now
	a.mu.Unlock()
	l.start()
	return nil
}
