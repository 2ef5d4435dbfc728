package wire

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/kv"
)

// Mem is a transport inside one process: the same frames and the same handshake
// as tcp, over synchronous pipes, without certificates. Addresses are names of
// its own. It works under testing/synctest.
type Mem struct {
	opts Options
	mu   sync.Mutex
	at   map[string]*memListener
}

// NewMem returns a transport whose addresses nobody else sees.
func NewMem(o Options) *Mem { return &Mem{opts: o, at: map[string]*memListener{}} }

// Listen implements [Transport].
func (m *Mem) Listen(addr string, hello Hello, h Handler, landing *kv.Landing) (Listener, error) {
	s, err := newSide(m.opts, hello, h, landing)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at[addr] != nil {
		return nil, fmt.Errorf("wire: listen on %s: address in use", addr)
	}
	n := &memListener{mem: m, addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	m.at[addr] = n
	return listen(s, inProcess, n, func(_ context.Context, raw net.Conn) (*conn, error) {
		return &conn{Conn: raw, raw: raw, kind: kindInProcess}, nil
	}), nil
}

// Dial implements [Transport].
func (m *Mem) Dial(ctx context.Context, addr string, hello Hello, h Handler, landing *kv.Landing) (Link, error) {
	s, err := newSide(m.opts, hello, h, landing)
	if err != nil {
		return nil, err
	}
	return dial(ctx, s, inProcess, func(ctx context.Context, _ bool) (*conn, error) {
		m.mu.Lock()
		n := m.at[addr]
		m.mu.Unlock()
		if n == nil {
			return nil, fail(ReasonGone, "nobody listens on %s", addr)
		}
		near, far := net.Pipe()
		select {
		case n.conns <- far:
			return &conn{Conn: near, raw: near, kind: kindInProcess}, nil
		case <-n.done:
			return nil, fail(ReasonGone, "nobody listens on %s", addr)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

// memListener is a net.Listener of pipes.
type memListener struct {
	mem   *Mem
	addr  string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Accept implements net.Listener.
func (n *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *memListener) Close() error {
	n.once.Do(func() {
		n.mem.mu.Lock()
		defer n.mem.mu.Unlock()
		delete(n.mem.at, n.addr)
		close(n.done)
	})
	return nil
}

// Addr implements net.Listener.
func (n *memListener) Addr() net.Addr { return memAddr(n.addr) }

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

// pause waits for d, and reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
