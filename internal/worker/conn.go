package worker

import (
	"errors"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// Causes of a link that this worker closes.
var (
	errTombstones = errors.New("worker: too many attempts to remember")
	errQuarantine = errors.New("worker: too many pages wait for proof of quiet")
	errRetired    = errors.New("worker: connection retired")
	errWrite      = errors.New("worker: a page write failed")
	errSend       = errors.New("worker: a message could not be sent")
	errStopping   = errors.New("worker: stopping")
)

// conn is one link and the attempts that may speak over it.
type conn struct {
	link     wire.Link
	peer     *peer // decode's side
	attempts map[*attempt]struct{}
	stones   int  // of these, ended
	owed     int  // source pages in quarantine on its account (H-9)
	retired  bool // it has a successor, or decode dials one; closed when nothing is live on it
	closing  bool // we closed it over a budget
}

func (c *conn) name() string { return c.link.Peer().Name }

// opened takes a new link in. At decode it is the one that new attempts use.
func (w *Worker) opened(l wire.Link, p *peer) {
	c := &conn{link: l, peer: p, attempts: map[*attempt]struct{}{}}
	w.conns[l] = c
	w.cfg.Events.Event(Event{Kind: LinkUp, Peer: c.name()})
	if p == nil {
		return
	}
	old := p.current
	p.current = c
	if old != nil {
		old.retired = true
		w.retire(old)
	}
}

// bind makes an attempt one that only this connection may speak of.
func (w *Worker) bind(a *attempt, c *conn) {
	a.conn = c
	c.attempts[a] = struct{}{}
	if a.done {
		c.stones++
	}
	w.remember(c)
}

// remember bounds what a connection makes us remember (H-2). Decode gets a
// successor in time, so that no request fails of it.
func (w *Worker) remember(c *conn) {
	switch {
	case len(c.attempts) >= w.cfg.Tombstones:
		w.tearDown(c, TombstonesFull, errTombstones)
	case c.peer != nil && !c.retired && len(c.attempts) >= w.cfg.Tombstones/2:
		c.retired = true
		c.peer.redial()
	}
}

// tearDown closes a connection over a budget: the proof that it acts on nothing
// any more is its end.
func (w *Worker) tearDown(c *conn, kind EventKind, cause error) {
	if c.closing {
		return
	}
	c.closing = true
	w.cfg.Events.Event(Event{Kind: kind, Peer: c.name(), Pages: c.owed})
	c.link.Close(cause)
}

// retire closes a connection that has a successor and only remembers.
func (w *Worker) retire(c *conn) {
	if c.retired && c.peer.current != c && c.stones == len(c.attempts) {
		c.link.Close(errRetired)
	}
}

// closed tells every attempt of a link that its peer is gone (H-8, H-9). A
// machine that reads goes on: its pages are its own.
func (w *Worker) closed(l wire.Link, err error) {
	c := w.conns[l]
	if c == nil {
		return
	}
	delete(w.conns, l)
	w.cfg.Events.Event(Event{Kind: LinkDown, Peer: c.name(), Reason: wire.ReasonOf(err).String()})
	if c.peer != nil && c.peer.current == c {
		c.peer.current = nil
	}
	for id, a := range w.writes {
		if a.conn == c {
			delete(w.writes, id) // their writer has returned (H-8)
		}
	}
	for a := range c.attempts {
		w.take(a, handoff.Event{On: handoff.OnPeerGone}, nil)
		a.conn = nil
		if a.done {
			w.forget(a)
		}
	}
}

// receive gives a message to its machine (H-2).
func (w *Worker) receive(l wire.Link, m wire.Message) {
	c := w.conns[l]
	if c == nil {
		return // closed is the end
	}
	a := w.find(m.Msg)
	if a == nil {
		opens := m.Kind == handoff.Abort || m.Kind == handoff.Ask && w.cfg.Role == wire.RolePrefill
		if !opens {
			w.dropped(m.ID.Attempt)
			return
		}
		a = w.add(m.ID.Attempt, m.Room)
	}
	if a.conn == nil {
		w.bind(a, c)
	}
	if a.conn != c && w.cfg.Guards.Has(handoff.GuardConnection) {
		w.dropped(m.ID.Attempt)
		return
	}
	if m.Kind == handoff.Ask {
		w.checkPrefix(a, m.View)
	}
	w.take(a, handoff.Receive(m.Msg), &m)
}

func (w *Worker) dropped(id handoff.Attempt) {
	w.cfg.Events.Event(Event{Kind: MessageDropped, Attempt: id})
}

// quarantine accounts source pages that may not be freed yet: their attempt is
// over, and writes that read them have not completed (H-8, H-9).
func (w *Worker) quarantine(a *attempt) {
	n := 0
	if a.prefill.Phase == handoff.PrefillStopping && a.seq != nil && a.conn != nil {
		n = a.seq.Cap() / w.layout.PageTokens
	}
	if n == a.owed {
		return
	}
	w.pool.Quiet(a.owed)
	_ = w.pool.Quarantine(n) // over the budget or not is looked at every tick
	if a.conn != nil {
		a.conn.owed += n - a.owed
	}
	a.owed = n
}

// overTicks is for how many ticks in a row the quarantine may be over its budget.
// A peer that is well needs a moment for what is under way, and to cut it off at
// once would let one client's abort end everybody's requests.
const overTicks = 4

// relieve tears down the connection that owes most, once the quarantine has been
// over its budget for a while (H-9).
func (w *Worker) relieve() {
	if !errors.Is(w.pool.Quarantine(0), kv.ErrQuarantine) {
		w.over = 0
		return
	}
	if w.over++; w.over < overTicks {
		return
	}
	var most *conn
	for _, c := range w.conns {
		if most == nil || c.owed > most.owed {
			most = c
		}
	}
	if most != nil {
		w.tearDown(most, QuarantineFull, errQuarantine)
	}
}
