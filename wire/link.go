package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead.dev/bulkhead/kv"
)

const (
	farewell   = 250 * time.Millisecond // for the last frame of a link
	missable   = 3                      // pings that may be unanswered
	pingBudget = 1024                   // pings of the peer in one keep-alive interval of ours
)

// link is both ends of a [Link]. Its goroutines: one reader and one writer for
// each connection, and keep, which owns them: it waits for all and then says
// Closed.
type link struct {
	side
	peer    Hello
	control *conn
	streams []*stream
	release func() // the listener's, once the link is over

	out   outbox
	post  post
	done  chan struct{} // closed when the end has begun
	mu    sync.Mutex
	cause *Error // nil while the link is open

	pinged  atomic.Uint64 // number of our last ping
	ponged  atomic.Uint64 // number of the last answer
	flooded atomic.Int64  // pings of the peer since the last tick
}

func newLink(s side, peer Hello, control *conn, data []*conn, release func()) *link {
	l := &link{side: s, peer: peer, control: control, release: release, done: make(chan struct{})}
	l.out.limit, l.out.wake = s.opts.Queue, make(chan struct{}, 1)
	l.post.limit = s.opts.Writes
	l.post.changed.L = &l.post.mu
	for _, c := range data {
		l.streams = append(l.streams, newStream(l, c))
	}
	return l
}

// start tells the handler and sets the goroutines off.
func (l *link) start() {
	l.handler.Opened(l)
	g := &goroutines{}
	g.hear.Go(func() { l.end(l.hear()) })
	g.speak.Go(func() { l.end(l.speak()) })
	for _, s := range l.streams {
		if l.hello.Role == RolePrefill {
			g.data.Go(func() { l.end(s.write()) })
			g.data.Go(func() { l.end(s.acknowledged()) })
		} else {
			g.data.Go(func() { l.end(s.land()) })
			g.data.Go(func() { l.end(s.acknowledge()) })
		}
	}
	go l.keep(g)
}

// goroutines are what keep waits for.
type goroutines struct{ hear, speak, data sync.WaitGroup }

// end closes the link if a goroutine ended with an error.
func (l *link) end(err error) {
	if err != nil {
		l.Close(asError(err))
	}
}

// Peer implements [Link].
func (l *link) Peer() Hello { return l.peer }

// Close implements [Link].
func (l *link) Close(cause error) {
	e := &Error{Reason: ReasonClosed}
	if cause != nil && !errors.As(cause, &e) {
		e.Err = cause
	}
	l.mu.Lock()
	first := l.cause == nil
	// Of a peer that ends a link we may see the broken pipes before its reason.
	if first || (e.Remote && l.cause.Reason == ReasonGone) {
		l.cause = e
	}
	l.mu.Unlock()
	if first {
		close(l.done)
		l.post.close()
	}
}

// why is the cause of the end, nil while the link is open.
func (l *link) why() *Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// ended is what Send and Write return on a link that is closing, else nil.
func (l *link) ended() error {
	if e := l.why(); e != nil {
		return e
	}
	return nil
}

// keep watches over the link, ends it, waits for its goroutines and says so.
func (l *link) keep(g *goroutines) {
	ticker := time.NewTicker(l.opts.KeepAlive)
	defer ticker.Stop()
	for open := true; open; {
		select {
		case <-ticker.C:
			l.end(l.tick())
		case <-l.done:
			open = false
		}
	}
	// Errors of the calls below say that a connection is closed already.
	for _, s := range l.streams {
		_ = s.conn.raw.Close()
	}
	_ = l.control.SetWriteDeadline(time.Now().Add(farewell))
	g.speak.Wait()
	if l.why().Reason == ReasonGone {
		_ = l.control.SetReadDeadline(time.Now().Add(farewell)) // its reason may be on the way
		g.hear.Wait()
	}
	_ = l.control.raw.Close()
	g.hear.Wait()
	g.data.Wait()
	l.release()
	l.handler.Closed(l, l.why())
}

// tick looks for a peer that is silent or has stalled, and sends the next ping.
func (l *link) tick() error {
	l.flooded.Store(0)
	if n := l.pinged.Load(); n-l.ponged.Load() >= missable {
		return fail(ReasonSilent, "%d pings unanswered", missable)
	}
	for _, s := range l.streams {
		if s.source.meter.stalled(l.opts.KeepAlive, l.opts.Stall) {
			return fail(ReasonStalled, "a frame does not go on for %v", l.opts.Stall)
		}
		if s.acks.stalled(l.opts.KeepAlive, l.opts.Stall) {
			return fail(ReasonStalled, "no acknowledgement for %v", l.opts.Stall)
		}
	}
	return l.out.add(func(b []byte) []byte { return appendPing(b, framePing, l.pinged.Add(1)) })
}

// Send implements [Link].
func (l *link) Send(m Message) error { return l.send(m, nil, 0) }

// send queues a message; with a gate, after bytes of its frame nothing goes out
// until the gate is open. See [Faults].
func (l *link) send(m Message, gate *Gate, after int) error {
	if err := m.check(); err != nil {
		return err
	}
	if err := l.ended(); err != nil {
		return err
	}
	err := l.out.add(func(b []byte) []byte {
		start := len(b)
		b = appendMessage(b, &m)
		if gate != nil {
			l.out.stops = append(l.out.stops, stop{at: min(start+after, len(b)), gate: gate})
		}
		return b
	})
	l.end(err)
	return err
}

// hear reads the control connection.
func (l *link) hear() error {
	r := bufio.NewReader(l.control)
	var buf []byte
	for {
		kind, body, err := readFrame(r, buf, frameMessage, framePing, framePong, frameRefused)
		if err != nil {
			return err
		}
		if cap(body) <= 64<<10 { // a long notice leaves nothing behind
			buf = body
		}
		if kind != frameRefused && l.ended() != nil {
			continue
		}
		if err := l.obey(kind, body); err != nil {
			return err
		}
	}
}

// obey acts on one control frame.
func (l *link) obey(kind frameType, body []byte) error {
	switch kind {
	case frameMessage:
		m, err := parseMessage(body)
		if err != nil {
			return err
		}
		l.handler.Receive(l, m)
	case framePing:
		if l.flooded.Add(1) > pingBudget {
			return fail(ReasonFlood, "over %d pings", pingBudget)
		}
		return l.out.add(func(b []byte) []byte { return appendPing(b, framePong, binary.LittleEndian.Uint64(body)) })
	case framePong:
		if n := binary.LittleEndian.Uint64(body); n > l.pinged.Load() || n <= l.ponged.Load() {
			return fail(ReasonUnexpected, "an answer to no ping")
		}
		l.ponged.Store(binary.LittleEndian.Uint64(body))
	case frameRefused:
		return parseRefused(body)
	}
	return nil
}

// speak writes the control connection, and the reason of the end last.
func (l *link) speak() error {
	for {
		select {
		case <-l.out.wake:
			b, stops := l.out.take()
			if err := l.say(b, stops); err != nil {
				return err
			}
		case <-l.done:
			if e := l.why(); !e.Remote && e.Reason != ReasonGone {
				_, _ = l.control.Write(appendRefused(nil, e.Reason)) // best effort; the link is over either way
			}
			return nil
		}
	}
}

// say writes b, and waits at each stop.
func (l *link) say(b []byte, stops []stop) error {
	done := 0
	for _, s := range stops {
		if _, err := l.control.Write(b[done:s.at]); err != nil {
			return err
		}
		done = s.at
		if !s.gate.wait(l.done) {
			return io.ErrClosedPipe
		}
	}
	_, err := l.control.Write(b[done:])
	return err
}

// outbox holds the control frames that wait to be written.
type outbox struct {
	limit int
	wake  chan struct{} // holds one token while there is something to take

	mu    sync.Mutex
	buf   []byte
	spare []byte // the buffer that was taken before, to be used again
	stops []stop
}

// stop is a place in the outbox where the writer waits.
type stop struct {
	at   int
	gate *Gate
}

// add appends what encode appends. Over the limit it fails.
func (o *outbox) add(encode func([]byte) []byte) error {
	o.mu.Lock()
	o.buf = encode(o.buf)
	n := len(o.buf)
	o.mu.Unlock()
	if n > o.limit {
		return fail(ReasonOverflow, "over %d bytes of messages", o.limit)
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return nil
}

// take returns what was added since. The result is valid until the next take.
func (o *outbox) take() ([]byte, []stop) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b, stops := o.buf, o.stops
	if cap(o.spare) > 1<<20 {
		o.spare = nil
	}
	o.buf, o.spare, o.stops = o.spare[:0], b, nil
	return b, stops
}

// Write implements [Link].
func (l *link) Write(w PageWrite) error { return l.write(w, nil, 0) }

// write queues a page; with a gate, after bytes of its content the connection
// stands still until the gate is open. See [Faults].
func (l *link) write(w PageWrite, gate *Gate, after int) error {
	if err := l.checkWrite(&w); err != nil {
		return err
	}
	if err := l.post.add(item{PageWrite: w, gate: gate, after: after}); err != nil {
		l.end(err)
		return err
	}
	return l.ended()
}

func (l *link) checkWrite(w *PageWrite) error {
	layout := l.hello.Layout
	switch {
	case l.hello.Role != RolePrefill:
		return errors.New("wire: page write: this worker does not write pages")
	case w.Page < 0 || w.Page >= MaxDigests || w.Rows < 1 || w.Rows > layout.PageTokens:
		return fmt.Errorf("wire: page write: page %d with %d rows", w.Page, w.Rows)
	}
	total := 0
	for _, s := range w.Segments {
		total += len(s)
	}
	if total != layout.Bytes(w.Rows) {
		return fmt.Errorf("wire: page write: %d bytes for %d rows", total, w.Rows)
	}
	return nil
}

// refused is what Written gets for a page that did not land.
func refused(page int) error { return fmt.Errorf("wire: page %d: %w", page, kv.ErrRefused) }
