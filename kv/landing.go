package kv

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// Sentinels of a landing.
var (
	// ErrRefused says that the frame opens no live reservation, or names a page
	// or a row count outside of it, or a page that has landed. No byte was
	// placed and none was read.
	ErrRefused = errors.New("kv: landing refused")
	// ErrRevoked says that the key was revoked while the frame was landing. The
	// returned count of bytes was taken from the source.
	ErrRevoked = errors.New("kv: key revoked while landing")
	// ErrInterrupted is what a [Source] returns from Read after Interrupt, once.
	ErrInterrupted = errors.New("kv: read interrupted")
)

// Source is where the bytes of a landing page come from: a connection. Its
// dynamic type must be comparable (a pointer).
type Source interface {
	io.Reader
	// Interrupt makes a blocked Read return soon with [ErrInterrupted]. The next
	// Read goes on where the last one stopped. If no Read is blocked, the
	// interruption waits for the next one: it is never lost, or a revocation could
	// wait for a stalled sender. For the same reason Read forgets it before it
	// returns, not after. It may be late: the Read that sees it may be one after
	// the landing, so whoever reads the next frame takes ErrInterrupted for
	// nothing and reads again. Any goroutine may call it; it must not block.
	Interrupt()
}

// maxIdleReads bounds the reads in a row that bring no byte.
const maxIdleReads = 100

// Landing places pages that peers send. It is the only door by which bytes of a
// peer reach page memory. Safe for concurrent use.
type Landing struct {
	mu    sync.RWMutex
	slots map[Key]*slot
}

// slot is one open reservation.
type slot struct {
	gate    sync.RWMutex // placers share it; revoke takes it
	revoked atomic.Bool
	layout  Layout
	pages   [][]float32
	tokens  int // in these pages

	mu      sync.Mutex
	active  map[Source]struct{}
	busy    []bool // a placer is in the page
	arrived []bool // the page has landed whole
}

// Land places one page: rows tokens of the reservation's page number page, read
// from src. It returns the bytes taken from src. See [ErrRefused] and
// [ErrRevoked] for what the caller must drain; any other error is src's own
// (io.EOF: the frame was cut short), or io.ErrNoProgress. A page of which only
// a part landed may be sent again.
//
// The key is checked while holding the gate under which the bytes are placed
// (H-6), and nothing is placed after [Landing.Revoke] has returned (H-5).
func (l *Landing) Land(key Key, page, rows int, src Source) (int, error) {
	l.mu.RLock()
	s := l.slots[key]
	l.mu.RUnlock()
	if s == nil || page < 0 || page >= len(s.pages) || rows != s.layout.rows(s.tokens, page) {
		return 0, ErrRefused
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if !s.enter(page, src) {
		return 0, ErrRefused
	}
	n, err := s.place(page, rows, src)
	s.leave(page, src, err == nil)
	return n, err
}

// enter claims a page for one placer. Registered before the key is looked at,
// so that a revocation either is seen here or interrupts src.
func (s *slot) enter(page int, src Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoked.Load() || s.busy[page] || s.arrived[page] {
		return false
	}
	s.busy[page] = true
	s.active[src] = struct{}{}
	return true
}

func (s *slot) leave(page int, src Source, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[page] = false
	s.arrived[page] = whole
	delete(s.active, src)
}

// place reads the page's bytes straight into page memory.
func (s *slot) place(page, rows int, src Source) (int, error) {
	total, idle := 0, 0
	for _, seg := range segments(s.layout, s.pages[page], rows) {
		for len(seg) > 0 {
			if s.revoked.Load() {
				return total, ErrRevoked
			}
			n, err := src.Read(seg)
			total, seg = total+n, seg[n:]
			if n > 0 {
				idle = 0
			} else {
				idle++
			}
			if err != nil && !errors.Is(err, ErrInterrupted) {
				if len(seg) == 0 && errors.Is(err, io.EOF) {
					continue
				}
				return total, err
			}
			if idle == maxIdleReads {
				return total, io.ErrNoProgress
			}
		}
	}
	return total, nil
}

// holds reports whether the key opens something.
func (l *Landing) holds(key Key) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.slots[key] != nil
}

// open makes the pages of a reservation writable under its key.
func (l *Landing) open(key Key, s *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots[key] = s
}

// Revoke takes the key away. When it returns, no byte of that key lands any
// more, whoever else revokes it at the same time. A sender that stalls in the
// middle of a frame cannot delay it. Revoking an unknown key does nothing.
func (l *Landing) Revoke(key Key) {
	l.mu.RLock()
	s := l.slots[key]
	l.mu.RUnlock()
	if s == nil {
		return
	}
	s.revoked.Store(true)
	s.mu.Lock()
	for src := range s.active {
		src.Interrupt()
	}
	s.mu.Unlock()
	s.gate.Lock() // waits until the placers have left
	defer s.gate.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots[key] == s { // until here, so that a second Revoke waits as well
		delete(l.slots, key)
	}
}

// Open returns how many reservations are open for writing.
func (l *Landing) Open() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.slots)
}
