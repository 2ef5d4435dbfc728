package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// credentialLife is longer than any run.
const credentialLife = time.Hour

// end is one end of a link: it passes on what it hears.
type end struct {
	opened  chan wire.Link
	written chan completion
	closed  chan error
}

// completion is one page write that completed.
type completion struct {
	id  uint64
	err error
}

func newEnd(writes int) *end {
	return &end{make(chan wire.Link, 1), make(chan completion, writes), make(chan error, 1)}
}

// Opened implements [wire.Handler].
func (e *end) Opened(l wire.Link) { e.opened <- l }

// Receive implements [wire.Handler].
func (*end) Receive(wire.Link, wire.Message) {}

// Written implements [wire.Handler].
func (e *end) Written(_ wire.Link, id uint64, err error) { e.written <- completion{id, err} }

// Closed implements [wire.Handler].
func (e *end) Closed(_ wire.Link, cause error) { e.closed <- cause }

// transports makes the two ends of a fleet of two.
type transports struct{ prefill, decode wire.TCP }

func newTransports(streams int, p wire.Protection) (transports, error) {
	var t transports
	ca, err := wire.NewAuthority(time.Now(), credentialLife)
	if err != nil {
		return t, err
	}
	for _, x := range [...]struct {
		role wire.Role
		to   *wire.TCP
	}{{wire.RolePrefill, &t.prefill}, {wire.RoleDecode, &t.decode}} {
		c, err := ca.Issue(time.Now(), credentialLife, wire.Identity{Role: x.role, Name: x.role.String()})
		if err != nil {
			return t, err
		}
		*x.to = wire.TCP{Options: wire.Options{Streams: streams}, Credential: c, Protection: p}
	}
	return t, nil
}

// joint is a link over loopback TCP, seen from prefill.
type joint struct {
	wire.Link
	*end
	decode   wire.Link
	decodeAt *end
	listener wire.Listener
}

// newJoint links two ends. writes is how many page writes may be outstanding.
func newJoint(streams int, p wire.Protection, layout kv.Layout, landing *kv.Landing, writes int) (*joint, error) {
	t, err := newTransports(streams, p)
	if err != nil {
		return nil, err
	}
	hello := func(r wire.Role) wire.Hello {
		return wire.Hello{Role: r, Name: r.String(), Incarnation: uint64(r), Layout: layout}
	}
	j := &joint{end: newEnd(writes), decodeAt: newEnd(0)}
	if j.listener, err = t.prefill.Listen("127.0.0.1:0", hello(wire.RolePrefill), j.end, nil); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), linkTime)
	defer cancel()
	if j.decode, err = t.decode.Dial(ctx, j.listener.Addr(), hello(wire.RoleDecode), j.decodeAt, landing); err != nil {
		_ = j.listener.Close() // the error that counts is err
		return nil, err
	}
	<-j.decodeAt.opened
	select {
	case j.Link = <-j.opened:
		return j, nil
	case <-ctx.Done():
		j.decode.Close(nil)
		_ = j.listener.Close() // the error that counts is that nothing was opened
		return nil, fmt.Errorf("bench: link: %w: %w", ctx.Err(), <-j.decodeAt.closed)
	}
}

// close ends the link and waits for it.
func (j *joint) close() {
	j.decode.Close(nil)
	_, _ = <-j.decodeAt.closed, <-j.end.closed // that we closed it
	_ = j.listener.Close()                     // nothing is left to accept
}

// linkTime bounds the making of a link, and the time until one of many page writes
// completes.
const linkTime = 20 * time.Second

var errStuck = errors.New("bench: no page write completes")

// wait waits for n completions.
func (j *joint) wait(n int) error {
	stuck := time.NewTimer(linkTime)
	defer stuck.Stop()
	for range n {
		select {
		case c := <-j.written:
			if c.err != nil {
				return fmt.Errorf("bench: page write: %w", c.err)
			}
		case err := <-j.end.closed:
			j.end.closed <- err // for close
			return fmt.Errorf("bench: link: %w", err)
		case <-stuck.C:
			return errStuck
		}
	}
	return nil
}

var errBusyMover = errors.New("bench: more pages than the mover was made for")

// mostMoved is how many pages a mover takes at once.
const mostMoved = 1024

// tcpMover is a mover over loopback TCP with two plain streams, as bulkhead up has
// them, of pages to the landing of one pool. It makes the link at its first move;
// end closes it.
func tcpMover() (move mover, end func()) {
	var j *joint
	move = func(e *engine, s *kv.Sequence, r *kv.Reservation) (err error) {
		if r.Pages() > mostMoved {
			return errBusyMover
		}
		if j == nil {
			if j, err = newJoint(2, wire.PlainData, s.Layout(), e.decode.pool.Landing(), mostMoved); err != nil {
				return err
			}
		}
		for i := range r.Pages() {
			segments, rows := s.Segments(i)
			if err := j.Write(wire.PageWrite{ID: uint64(i), Key: r.Key(), Page: i, Rows: rows, Segments: segments}); err != nil {
				return err
			}
		}
		return j.wait(r.Pages())
	}
	return move, func() {
		if j != nil {
			j.close()
		}
	}
}
