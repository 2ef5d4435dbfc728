package worker

import (
	"sync"

	"bulkhead.dev/bulkhead/kv"
)

// mail is one thing for the owner loop to do.
type mail func(*Worker)

// Weights of what lies in the mailbox.
const (
	maxMail     = 1 << 13 // over this, whoever brings more waits
	mailDigests = 64      // digests of a notice that weigh as much as one mail
)

// mailbox hands events to the owner loop, in order. Whoever finds it full waits
// for the loop's next turn: a peer that floods is not read meanwhile, and the
// loop never waits for anybody. The owner loop itself must not put.
type mailbox struct {
	mu     sync.Mutex
	room   sync.Cond // the loop has taken what was there
	queue  []mail
	spare  []mail
	weight int
	closed bool
	ready  chan struct{} // holds one token while there is something to take
}

func newMailbox() *mailbox {
	m := &mailbox{ready: make(chan struct{}, 1)}
	m.room.L = &m.mu
	return m
}

// put adds an event. It reports false once the owner loop has ended.
func (m *mailbox) put(e mail) bool { return m.weigh(1, e) }

// weigh adds an event of a weight.
func (m *mailbox) weigh(weight int, e mail) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.weight >= maxMail && !m.closed {
		m.room.Wait()
	}
	if m.closed {
		return false
	}
	m.queue, m.weight = append(m.queue, e), m.weight+weight
	select {
	case m.ready <- struct{}{}:
	default:
	}
	return true
}

// take returns what is there, in order. The slice is valid until the next take.
func (m *mailbox) take() []mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.spare)
	m.queue, m.spare = m.spare[:0], m.queue
	m.weight = 0
	m.room.Broadcast()
	return m.spare
}

// close lets nothing more in, and returns what was left.
func (m *mailbox) close() []mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.queue
	m.closed, m.queue = true, nil
	m.room.Broadcast()
	return left
}

// Status is what a worker tells about itself, as of the owner loop's last turn.
type Status struct {
	Counts   kv.Counts // pages
	Links    int       // live links; at decode, peers that new attempts can be sent to
	Attempts int       // attempts that have not ended
	Stones   int       // ended attempts that are remembered (H-2)
	Waiting  int       // attempts that wait for pages
}

// status is the last published Status.
type status struct {
	mu sync.Mutex
	s  Status
}

func (s *status) get() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.s
}

func (s *status) set(x Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s = x
}
