package worker

import (
	"slices"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// owner is the state of the owner loop.
type owner struct {
	attempts map[handoff.Attempt]*attempt
	rooms    map[uint64]*attempt // used only with the generation guard off
	rids     map[string]*attempt // live attempts by request id
	armed    map[*attempt]struct{}
	conns    map[wire.Link]*conn
	passes   passes
	waiting  []*attempt // for pages, in order of arrival
	running  []*attempt // in the engine, in order of arrival
	turn     int        // where the next decode batch starts
	writes   map[uint64]*attempt
	writeID  uint64
	strays   []*attempt // ended attempts that no connection knows of
	live     int
	pinned   int // pages of the prefix cache that are pinned and not reserved with
	over     int // ticks in a row that the quarantine was over its budget
	stopping bool
	peers    []*peer
	runner   *llm.Runner
	items    []llm.Item
	numbers  uint64 // of machines so far
	state    []byte // scratch of trace
}

func (o *owner) init(w *Worker) error {
	o.attempts = map[handoff.Attempt]*attempt{}
	o.rooms = map[uint64]*attempt{}
	o.rids = map[string]*attempt{}
	o.armed = map[*attempt]struct{}{}
	o.conns = map[wire.Link]*conn{}
	o.writes = map[uint64]*attempt{}
	o.passes.seen = map[handoff.Attempt]struct{}{}
	for _, p := range w.cfg.Peers {
		o.peers = append(o.peers, &peer{Peer: p, again: make(chan struct{}, 1)})
	}
	r, err := w.cfg.Model.NewRunner(w.cfg.Chunk, w.cfg.Threads)
	o.runner = r
	return err
}

// maxStrays bounds the ended attempts that have no connection to be remembered
// with. Forgetting one lets a late ask wait for a leg that will not come, until
// decode's deadline.
const maxStrays = 4096

// attempt is one attempt at this worker. One of decode and prefill is in use.
// Once it has ended, nothing but its machine is kept.
type attempt struct {
	id      handoff.Attempt
	number  uint64 // of its machine, in traces
	room    uint64
	decode  handoff.Decode
	prefill handoff.Prefill
	conn    *conn // the connection that may speak of it; nil at prefill until decode asks
	seen    bool  // its leg came
	told    bool  // its end was reported
	done    bool  // it waits for nothing any more

	leg *leg // nil until the leg arrives
	req *request
	out output

	// Decode.
	prefix   *kv.Prefix // pinned until the pages are reserved
	res      *kv.Reservation
	sealed   kv.Sealed
	verified kv.Verified
	proved   bool          // sealed, or verified, holds
	notice   *wire.Message // until the pages are read

	// Prefill.
	key     kv.Key // of the grant
	secret  [32]byte
	digests []kv.Digest
	first   llm.Token
	owed    int // pages in quarantine

	seq *kv.Sequence // prefill's source pages; decode's pages once proved
}

// add makes a machine for an attempt that was not known.
func (w *Worker) add(id handoff.Attempt, room uint64) *attempt {
	w.numbers++
	a := &attempt{id: id, room: room, number: w.numbers}
	w.attempts[id] = a
	w.live++
	if !w.cfg.Guards.Has(handoff.GuardGeneration) {
		w.rooms[room] = a
	}
	return a
}

// find returns the machine that a message may act on (H-2).
func (w *Worker) find(m handoff.Msg) *attempt {
	if !w.cfg.Guards.Has(handoff.GuardGeneration) {
		a := w.rooms[m.Room]
		if a != nil && a.told && m.Kind == handoff.Ask {
			return nil // the room is used again: who asks begins anew
		}
		return a
	}
	return w.attempts[m.ID.Attempt]
}

func (w *Worker) forget(a *attempt) {
	if w.attempts[a.id] == a {
		delete(w.attempts, a.id)
	}
	if w.rooms[a.room] == a {
		delete(w.rooms, a.room)
	}
}

// take gives one event to a machine, and whatever its effects answer at once.
func (w *Worker) take(a *attempt, ev handoff.Event, m *wire.Message) {
	follow := []handoff.Event{ev}
	for len(follow) > 0 {
		ev, follow = follow[0], follow[1:]
		var fx handoff.Effects
		if w.cfg.Role == wire.RoleDecode {
			a.decode, fx = a.decode.Step(ev, w.cfg.Guards)
		} else {
			a.prefill, fx = a.prefill.Step(ev, w.cfg.Guards)
		}
		w.trace(a, ev, fx)
		if m != nil && fx.Edge != 0 {
			a.adopt(m)
		}
		m = nil
		for _, e := range fx.Slice() {
			if next := w.effect(a, e); next.On != handoff.NoEvent {
				follow = append(follow, next)
			}
		}
	}
	w.settle(a)
}

// trace tells the tracer, if there is one, of a step.
func (w *Worker) trace(a *attempt, ev handoff.Event, fx handoff.Effects) {
	if w.cfg.Trace == nil {
		return
	}
	if w.cfg.Role == wire.RoleDecode {
		w.state = a.decode.AppendCanonical(w.state[:0])
	} else {
		w.state = a.prefill.AppendCanonical(w.state[:0])
	}
	w.cfg.Trace.Stepped(a.number, ev, fx, w.state)
}

// did tells the tracer, if there is one, that pages are being touched.
func (w *Worker) did(a *attempt, do handoff.Do) {
	if w.cfg.Trace != nil {
		w.cfg.Trace.Did(a.number, do)
	}
}

// adopt keeps what came with a message that moved the machine on. What comes
// with a message to a machine that has ended is not kept.
func (a *attempt) adopt(m *wire.Message) {
	switch {
	case m.Kind == handoff.Grant && (a.prefill.Phase == handoff.PrefillGranted || a.prefill.Phase == handoff.PrefillNoticed):
		a.key = m.Key
	case m.Kind == handoff.Notice && a.decode.Phase != handoff.DecodeEnded:
		a.notice = m
	}
}

// settle books what a step changed. An attempt that has ended keeps nothing but
// its machine, and is over once its peer has acknowledged that.
func (w *Worker) settle(a *attempt) {
	d := &a.decode
	armed, over, ended, result := d.Armed, d.Over(), d.Phase == handoff.DecodeEnded && !d.Held, d.Result
	if w.cfg.Role == wire.RolePrefill {
		p := &a.prefill
		armed, over, ended, result = p.Armed, p.Over(), p.Phase == handoff.PrefillEnded && !p.Held, p.Result
		w.quarantine(a)
	}
	if armed && !over {
		w.armed[a] = struct{}{}
	} else {
		delete(w.armed, a)
	}
	if !ended {
		return
	}
	if !a.told {
		a.told = true
		w.cfg.Events.Event(a.ended(result))
	}
	w.strip(a)
	if !over || a.done {
		return
	}
	a.done = true
	w.live--
	if a.conn == nil {
		w.stray(a)
		return
	}
	a.conn.stones++
	w.retire(a.conn)
}

// ended is the event of an attempt's end.
func (a *attempt) ended(result handoff.Code) Event {
	e := Event{Kind: AttemptEnded, Attempt: a.id, Code: result, Output: a.out.tokens}
	if a.req != nil {
		e.Prompt, e.Cached = a.req.count, int(a.decode.View.Prefix)
	}
	return e
}

// strip leaves of an ended attempt what a tombstone is: no request, no secret,
// no page.
func (w *Worker) strip(a *attempt) {
	w.unpin(a)
	if a.req != nil && w.rids[a.req.rid] == a {
		delete(w.rids, a.req.rid)
	}
	a.leg, a.req, a.out, a.notice = nil, nil, output{}, nil
	a.key, a.secret, a.digests = kv.Key{}, [32]byte{}, nil
}

// stray remembers an ended attempt that no connection knows of.
func (w *Worker) stray(a *attempt) {
	w.strays = append(w.strays, a)
	if len(w.strays) > maxStrays {
		old := w.strays[0]
		w.strays[0] = nil
		w.strays = w.strays[1:]
		if old.conn == nil {
			w.forget(old)
		}
	}
}

// effect carries out one effect. What the pool and the memory answer at once
// comes back as the next event.
func (w *Worker) effect(a *attempt, e handoff.Effect) handoff.Event {
	switch e.Do {
	case handoff.DoSend:
		w.send(a, e)
	case handoff.DoAnswer:
		w.answer(a, e.Code)
	case handoff.DoDrop:
		w.dropped(a.id)
	case handoff.DoCut:
		if a.conn != nil {
			a.conn.link.Close(errWrite)
		}
	case handoff.DoWithdraw, handoff.DoStop, handoff.DoHalt:
		w.leave(a)
	case handoff.DoReserve:
		w.waiting = append(w.waiting, a)
	case handoff.DoCompute:
		w.running = append(w.running, a)
	case handoff.DoFree:
		w.leave(a)
		w.free(a)
	case handoff.DoSeal:
		w.seal(a, e.Do)
		return handoff.Event{On: handoff.OnSealed}
	case handoff.DoRevoke:
		w.seal(a, e.Do)
		return handoff.Event{On: handoff.OnRevoked}
	case handoff.DoVerify:
		return handoff.Event{On: w.verify(a)}
	case handoff.DoRead:
		return w.read(a)
	case handoff.DoPost:
		w.post(a, int(e.N))
	}
	return handoff.Event{}
}

// leave takes an attempt out of every queue.
func (w *Worker) leave(a *attempt) {
	w.waiting = without(w.waiting, a)
	w.running = without(w.running, a)
}

// without returns the list less one attempt, in order.
func without(list []*attempt, a *attempt) []*attempt {
	if i := slices.Index(list, a); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// send sends a message with what its kind carries beside it.
func (w *Worker) send(a *attempt, e handoff.Effect) {
	if a.conn == nil {
		return // the peer is gone, or never came
	}
	var m wire.Message
	if w.cfg.Role == wire.RoleDecode {
		m.Msg = a.decode.Message(e)
		if e.Send == handoff.Grant {
			m.Key = a.res.Key()
		}
	} else {
		m.Msg = a.prefill.Message(e)
		if e.Send == handoff.Notice {
			w.attest(a, &m)
		}
	}
	if a.conn.link.Send(m) != nil {
		a.conn.link.Close(errSend) // the first cause counts; OnPeerGone follows
	}
}

// answer gives the leg its verdict.
func (w *Worker) answer(a *attempt, code handoff.Code) {
	if a.leg == nil {
		return
	}
	v := verdict{Code: code, Limit: int(a.decode.Limit)}
	if w.cfg.Role == wire.RolePrefill {
		v.Limit = int(a.prefill.Limit)
		if code == handoff.OK {
			a.out.one(a.first, a.leg)
		}
	}
	if a.req != nil {
		v.Tokens = a.req.count
	}
	a.leg.answer(v)
}

// broken says that the worker itself broke the pool's rules. Going on would
// risk a foreign page; the process ends, and its peers see it (H-14). Nothing
// that a peer or a client sends may lead here.
func broken(err error) {
	if err != nil {
		panic("worker: own invariant broken: " + err.Error())
	}
}

// free gives back whatever pages the attempt holds.
func (w *Worker) free(a *attempt) {
	w.did(a, handoff.DoFree)
	switch {
	case a.seq != nil:
		broken(w.pool.Release(a.seq))
	case a.proved:
		broken(w.pool.Free(a.res))
	case a.res != nil:
		broken(w.cfg.Unguarded.Free(w.pool, a.res)) // refuses unless a drill gave it
	}
	a.res, a.seq, a.notice = nil, nil, nil
	a.sealed, a.verified, a.proved = kv.Sealed{}, kv.Verified{}, false
}

// tick repeats what is unanswered.
func (w *Worker) tick() {
	for a := range w.armed {
		w.take(a, handoff.Event{On: handoff.OnTick}, nil)
	}
	w.relieve()
}

// step starts what can start, then gives the engine one step. What the step
// freed may let the next one start.
func (w *Worker) step() {
	w.start()
	if len(w.running) == 0 {
		return
	}
	if w.cfg.Role == wire.RoleDecode {
		w.decodeStep()
	} else {
		w.prefillStep()
	}
	w.start()
}

// start gives pages to those that wait, in order, as far as there are any.
func (w *Worker) start() {
	for len(w.waiting) > 0 {
		a := w.waiting[0]
		give := w.allocate
		if w.cfg.Role == wire.RoleDecode {
			give = w.reserve
		}
		ev := give(a)
		if ev.On == handoff.NoEvent {
			return // it waits on, and so do those behind it
		}
		w.waiting = without(w.waiting, a)
		w.take(a, ev, nil)
	}
}

// shutdown answers every leg and frees every page that no peer can touch. The
// rest is freed when the links have closed.
func (w *Worker) shutdown() {
	w.stopping = true
	for _, a := range w.attempts {
		w.take(a, handoff.Event{On: handoff.OnCancel, Code: handoff.PeerGone}, nil)
	}
}

func (w *Worker) publish() {
	links := len(w.conns)
	if w.cfg.Role == wire.RoleDecode {
		links = 0
		for _, p := range w.peers {
			if p.current != nil {
				links++
			}
		}
	}
	w.status.set(Status{
		Counts: w.pool.Counts(), Links: links,
		Attempts: w.live, Stones: len(w.attempts) - w.live, Waiting: len(w.waiting),
	})
}
