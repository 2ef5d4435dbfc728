package worker

import (
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/wire"
)

// Bounds of passes. A pass is good for one leg, so that it must be remembered
// until it runs out; one that lives for longer than we would remember is none.
const (
	maxPassLife = time.Hour
	maxPasses   = 1 << 18
)

// passes are the attempts of passes that were used and have not run out. A
// tombstone goes with its connection (H-2); this does not, or a replayed leg
// would be served again after every reconnect (H-16).
type passes struct {
	seen  map[handoff.Attempt]struct{}
	queue []usedPass // in order of use
}

type usedPass struct {
	attempt handoff.Attempt
	expiry  time.Time
}

// use notes the pass of an attempt. It returns NoCode, Duplicate if the pass was
// used before, or Busy if no more can be remembered.
func (p *passes) use(id handoff.Attempt, expiry, now time.Time) handoff.Code {
	for len(p.queue) > 0 && !now.Before(p.queue[0].expiry) {
		delete(p.seen, p.queue[0].attempt)
		p.queue = p.queue[1:]
	}
	if _, used := p.seen[id]; used {
		return handoff.Duplicate
	}
	if len(p.queue) >= maxPasses {
		return handoff.Busy
	}
	p.seen[id] = struct{}{}
	p.queue = append(p.queue, usedPass{id, expiry})
	return handoff.NoCode
}

// door gives a leg to the machine of its attempt (H-1).
func (w *Worker) door(req *request, leg *leg) {
	w.meet(req)
	if code := w.fresh(req); code != handoff.NoCode {
		leg.answer(verdict{Code: code})
		return
	}
	a := w.attempts[req.attempt]
	if a == nil {
		a = w.add(req.attempt, uint64(req.room))
	}
	a.leg, a.req, a.seen = leg, req, true
	if req.rid != "" {
		w.rids[req.rid] = a
	}
	ev := handoff.Event{
		On: handoff.OnDoor, ID: handoff.ID{Attempt: req.attempt}, Room: uint64(req.room),
		View: w.view(req, req.hashes), Code: req.code, Limit: uint32(req.limit),
	}
	if w.cfg.Role == wire.RoleDecode {
		w.decodeDoor(a, &ev)
	} else if a.prefill.Phase == handoff.PrefillAsked && ev.Code == handoff.NoCode && !req.holds(a.prefill.View, w.layout.PageTokens) {
		ev.Code = handoff.Disagree // decode holds a run that is not of this prompt (H-3)
	}
	if ev.Code != handoff.NoCode {
		ev.On = handoff.OnDoorRefused
	}
	w.take(a, ev, nil)
	if w.cfg.Role == wire.RoleDecode && a.conn == nil {
		w.take(a, handoff.Event{On: handoff.OnPeerGone}, nil) // there is no peer to wait for
	}
}

// fresh reports whether the leg may be given to a machine at all.
func (w *Worker) fresh(req *request) handoff.Code {
	if w.stopping {
		return handoff.PeerGone
	}
	a := w.attempts[req.attempt]
	if a != nil && a.seen || req.rid != "" && w.rids[req.rid] != nil {
		return handoff.Duplicate
	}
	return w.passes.use(req.attempt, req.expiry, w.cfg.Now())
}

// decodeDoor finds the connection on which prefill is asked, and what decode
// holds of the prompt already.
func (w *Worker) decodeDoor(a *attempt, ev *handoff.Event) {
	if a.conn == nil {
		if p := w.peer(a.req.peer); p != nil && p.current != nil {
			w.bind(a, p.current)
		} else if ev.Code == handoff.NoCode {
			ev.Code = handoff.PeerGone
		}
	}
	if ev.Code == handoff.NoCode && a.decode.Phase == handoff.DecodeIdle {
		ev.View = w.pin(a, ev.View)
	}
}

// cancel ends the leg's attempt, if it is still the leg's.
func (w *Worker) cancel(req *request, leg *leg, code handoff.Code) {
	if a := w.attempts[req.attempt]; a != nil && a.leg == leg {
		w.take(a, handoff.Event{On: handoff.OnCancel, Code: code}, nil)
	}
}

// abort ends the live attempt of a request id.
func (w *Worker) abort(rid string) {
	if a := w.rids[rid]; a != nil {
		w.take(a, handoff.Event{On: handoff.OnCancel, Code: handoff.Cancelled}, nil)
	}
}
