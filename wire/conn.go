package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"bulkhead.dev/bulkhead/kv"
)

// conn is one connection of a link.
type conn struct {
	net.Conn          // what frames go through
	raw      net.Conn // what is closed: closing TLS politely could block
	who      Identity // from the peer's certificate; zero where there is none
	kind     connKind
}

// connKind says how a connection is protected.
type connKind uint8

const (
	kindTLS connKind = iota
	kindPlain
	kindInProcess
)

// carries reports whether a connection of kind k may be part of a link.
func (p Protection) carries(k connKind, data bool) bool {
	switch p {
	case TLSAll:
		return k == kindTLS
	case PlainData:
		return data == (k == kindPlain) && k != kindInProcess
	case inProcess:
		return k == kindInProcess
	}
	return false
}

// meter shows the keeper of a link whether one direction of a connection gets
// on with what it has begun.
type meter struct {
	busy  atomic.Bool
	moved atomic.Uint64

	seen uint64 // the keeper's
	idle time.Duration
}

// stalled is asked every step; it reports no progress for limit.
func (m *meter) stalled(step, limit time.Duration) bool {
	if moved := m.moved.Load(); !m.busy.Load() || moved != m.seen {
		m.seen, m.idle = moved, 0
		return false
	}
	m.idle += step
	return m.idle >= limit
}

// source is the reading half of a data connection as kv.Landing wants it. An
// interrupt is a read deadline in the past: it wakes a blocked Read of a plain
// and of a TLS connection alike, and both go on afterwards where they were.
// Nothing else sets a deadline on an open link.
type source struct {
	conn  net.Conn
	meter meter
	waste []byte // where drained bytes go
}

var _ kv.Source = (*source)(nil)

// Read reads from the connection; see kv.Source.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.conn.Read(p)
	if n > 0 {
		s.meter.moved.Add(1)
		s.meter.busy.Store(true)
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		// An interrupt that comes between these two lines is lost, and may be:
		// its caller has marked the key before, and Land looks at that next.
		if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
			return n, err
		}
		return n, kv.ErrInterrupted
	}
	return n, err
}

// Interrupt implements kv.Source.
func (s *source) Interrupt() {
	_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // fails only if the connection is closed, and then Read has returned
}

// head reads the start of a page frame into b, in one read if it can. Late
// interrupts mean nothing here.
func (s *source) head(b []byte) error {
	for n := 0; n < len(b); {
		m, err := s.Read(b[n:])
		n += m
		if n >= prefixSize && n < len(b) {
			if _, err := parsePrefix(b[:n]); err != nil { // do not wait for the rest of what is no frame
				return err
			}
		}
		switch {
		case err == nil, errors.Is(err, kv.ErrInterrupted):
		case n > 0 && n < len(b):
			return cutShort(err)
		case n == 0:
			return err
		}
	}
	return nil
}

// drain reads n bytes to nowhere.
func (s *source) drain(n int) error {
	if s.waste == nil {
		s.waste = make([]byte, 64<<10)
	}
	for n > 0 {
		m, err := s.Read(s.waste[:min(n, len(s.waste))])
		n -= m
		if err != nil && !errors.Is(err, kv.ErrInterrupted) && n > 0 {
			return cutShort(err)
		}
	}
	return nil
}

// hangUp ends a connection that is refused: the peer may still be writing, and
// closing now could destroy our last words before it reads them.
func hangUp(c net.Conn) {
	type closeWriter interface{ CloseWrite() error }
	if half, ok := c.(closeWriter); ok && half.CloseWrite() == nil {
		if c.SetReadDeadline(time.Now().Add(time.Second)) == nil {
			_, _ = io.CopyN(io.Discard, c, 64<<10) // whatever comes, the connection is closed next
		}
	}
	_ = c.Close() // nothing is left to lose
}
