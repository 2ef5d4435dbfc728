package world

import "bulkhead.dev/bulkhead/handoff"

// MoveKind is a kind of choice.
type MoveKind uint8

const (
	moveNone MoveKind = iota
	// What happens by itself, sooner or later.
	moveDoor     // a leg arrives: A attempt, B role
	moveDeliver  // B message
	moveReserve  // A
	moveSealed   // A
	moveRevoked  // A
	moveVerify   // A
	moveRead     // A
	moveSource   // A
	moveCompute  // A
	moveLand     // B write
	moveComplete // B write
	moveGone     // B role: its end of a broken connection is closed
	moveConnect  // decode dials again
	// What happens once nothing else can.
	moveDeadline // A, B role; before that it is FaultDeadline
	moveTick     // A, B role; before that it is FaultTick
	// What the adversary pays for.
	moveRepeat     // B message
	moveLose       // B message
	moveAgain      // B write
	moveEarly      // B write
	moveWriteError // B write
	moveCrash      // B role
	moveCut
	moveCancel     // A, B role
	moveBusy       // A
	moveBusySource // A
	moveEngine     // A
	moveSecond     // A, B role
	moveStray      // A, B role that receives
	moveKinds
)

// Move is one choice in one World. A and B are as the kind says.
type Move struct {
	Kind MoveKind
	A, B uint8
}

// Step is what came of a move. The zero value is ready; it is used once a move.
type Step struct {
	Broken Violation // the first invariant that broke
	Only   Invariant // if set, no other invariant counts
	edges  Coverage
	say    func(line string) // what happened, for scripts; nil is silent
}

// exec carries out one move.
type exec struct {
	m *Model
	w *World
	s *Step
}

// Moves returns every enabled move of w, in a fixed order, in the memory of
// room. The first fair of them happen by themselves, sooner or later; the rest is
// the adversary's. With none that is fair the World rests.
func (m *Model) Moves(w *World, room []Move) (moves []Move, fair int) {
	moves = m.course(w, room[:0])
	if len(moves) == 0 {
		moves = m.patience(w, moves)
	}
	return m.trouble(w, moves), len(moves)
}

// course appends what happens by itself.
func (m *Model) course(w *World, moves []Move) []Move {
	for i := range m.n {
		a := uint8(i)
		d, p := &w.dec[i], &w.pre[i]
		if m.present(w, i) {
			if d.leg.is == legAhead {
				moves = append(moves, Move{moveDoor, a, uint8(Decode)})
			}
			if p.leg.is == legAhead {
				moves = append(moves, Move{moveDoor, a, uint8(Prefill)})
			}
		}
		switch d.pend {
		case pendReserve:
			if m.wanted(d) <= w.free.n {
				moves = append(moves, Move{moveReserve, a, 0})
			}
		case pendSeal:
			moves = append(moves, Move{moveSealed, a, 0})
		case pendRevoke:
			moves = append(moves, Move{moveRevoked, a, 0})
		case pendVerify:
			moves = append(moves, Move{moveVerify, a, 0})
		case pendRead:
			moves = append(moves, Move{moveRead, a, 0})
		}
		if p.work == workQueue && m.needed(w, i) <= w.sfree.n {
			moves = append(moves, Move{moveSource, a, 0})
		}
		if p.work == workRuns {
			moves = append(moves, Move{moveCompute, a, 0})
		}
	}
	for i, msg := range w.msgs {
		if msg != 0 && (i == 0 || w.msgs[i-1] != msg) {
			moves = append(moves, Move{moveDeliver, 0, uint8(i)})
		}
	}
	for i := range w.writes {
		wr := &w.writes[i]
		if !wr.used {
			continue
		}
		if wr.landed < 2 {
			moves = append(moves, Move{moveLand, 0, uint8(i)})
		} else if wr.pending(w) {
			moves = append(moves, Move{moveComplete, 0, uint8(i)})
		}
	}
	for r := range w.shut {
		if w.shut[r] < w.broken {
			moves = append(moves, Move{moveGone, 0, uint8(r)})
		}
	}
	if w.shut[Decode] == w.cur {
		moves = append(moves, Move{Kind: moveConnect})
	}
	return moves
}

// patience appends what happens when nothing else can: time runs out.
func (m *Model) patience(w *World, moves []Move) []Move {
	for i := range m.n {
		for r := range uint8(2) {
			if w.leg(Role(r), i).is == legWaiting {
				moves = append(moves, Move{moveDeadline, uint8(i), r})
			}
			if m.ticks(w, Role(r), i) {
				moves = append(moves, Move{moveTick, uint8(i), r})
			}
		}
	}
	return moves
}

// ticks reports whether a repeated abort would reach the fabric.
func (m *Model) ticks(w *World, r Role, a int) bool {
	if !m.on(handoff.GuardRetry) {
		return false
	}
	c, conn := &w.dec[a].cell, w.dec[a].conn
	if r == Prefill {
		c, conn = &w.pre[a].cell, w.pre[a].conn
	}
	return c.flags&flagArmed != 0 && c.still != c.expect && conn > w.broken
}

// trouble appends what the adversary can pay for.
func (m *Model) trouble(w *World, moves []Move) []Move {
	for i, msg := range w.msgs {
		if msg == 0 || i > 0 && w.msgs[i-1] == msg {
			continue
		}
		if w.left[FaultRepeat] > 0 {
			moves = append(moves, Move{moveRepeat, 0, uint8(i)})
		}
		if w.left[FaultLose] > 0 {
			moves = append(moves, Move{moveLose, 0, uint8(i)})
		}
	}
	for i := range w.writes {
		wr := &w.writes[i]
		switch {
		case !wr.used:
		case wr.landed == 2 && wr.done && w.left[FaultAgain] > 0:
			moves = append(moves, Move{moveAgain, 0, uint8(i)})
		case wr.landed < 2 && wr.pending(w) && w.left[FaultEarly] > 0:
			moves = append(moves, Move{moveEarly, 0, uint8(i)})
		}
		if wr.used && wr.pending(w) && w.left[FaultWrite] > 0 {
			moves = append(moves, Move{moveWriteError, 0, uint8(i)})
		}
	}
	for i := range m.n {
		moves = m.troubleOf(w, i, moves)
	}
	if w.left[FaultCrashDecode] > 0 {
		moves = append(moves, Move{moveCrash, 0, uint8(Decode)})
	}
	if w.left[FaultCrashPrefill] > 0 {
		moves = append(moves, Move{moveCrash, 0, uint8(Prefill)})
	}
	if w.left[FaultCut] > 0 && w.cur > w.broken {
		moves = append(moves, Move{Kind: moveCut})
	}
	return moves
}

// troubleOf appends what the adversary can pay for with one attempt.
func (m *Model) troubleOf(w *World, i int, moves []Move) []Move {
	a := uint8(i)
	for r := range uint8(2) {
		is := w.leg(Role(r), i).is
		if w.left[FaultDeadline] > 0 && is == legWaiting {
			moves = append(moves, Move{moveDeadline, a, r})
		}
		if w.left[FaultTick] > 0 && m.ticks(w, Role(r), i) {
			moves = append(moves, Move{moveTick, a, r})
		}
		if w.left[FaultStray] > 0 && w.cur > w.broken {
			moves = append(moves, Move{moveStray, a, r})
		}
		if w.left[FaultCancel] > 0 && (is == legWaiting || is == legServed && Role(r) == Decode && w.dec[i].pend == pendRead) {
			moves = append(moves, Move{moveCancel, a, r})
		}
	}
	moves = m.seconds(w, i, moves)
	if w.left[FaultBusy] > 0 && w.dec[i].pend == pendReserve {
		moves = append(moves, Move{moveBusy, a, 0})
	}
	if w.left[FaultBusy] > 0 && w.pre[i].work == workQueue {
		moves = append(moves, Move{moveBusySource, a, 0})
	}
	if w.left[FaultEngine] > 0 && w.pre[i].work == workRuns {
		moves = append(moves, Move{moveEngine, a, 0})
	}
	return moves
}

// seconds appends the legs that may come again. A leg of an attempt that its
// worker knows is answered by the driver (duplicate) and changes nothing; one
// that was forgotten with its connection, or died with its worker, starts anew.
func (m *Model) seconds(w *World, a int, moves []Move) []Move {
	if w.left[FaultSecond] == 0 {
		return moves
	}
	if d := &w.dec[a]; d.leg.is > legWaiting && !d.here {
		moves = append(moves, Move{moveSecond, uint8(a), uint8(Decode)})
	}
	if p := &w.pre[a]; p.leg.is > legWaiting && !p.here {
		moves = append(moves, Move{moveSecond, uint8(a), uint8(Prefill)})
	}
	return moves
}

// pending reports whether the write's completion may still be reported.
func (wr *write) pending(w *World) bool { return !wr.done && !wr.failed && wr.conn > w.broken }

func (w *World) leg(r Role, a int) *leg {
	if r == Decode {
		return &w.dec[a].leg
	}
	return &w.pre[a].leg
}

// present reports whether the legs of an attempt may come by now.
func (m *Model) present(w *World, a int) bool {
	after := int(m.sc.Attempts[a].After) - 1
	return after < 0 || w.dec[after].leg.is > legWaiting && w.pre[after].leg.is > legWaiting
}

// Apply carries out an enabled move.
func (m *Model) Apply(w *World, mv Move, s *Step) {
	x := exec{m: m, w: w, s: s}
	a := int(mv.A)
	switch mv.Kind {
	case moveDoor:
		x.door(a, Role(mv.B))
	case moveDeliver:
		msg := w.msgs[mv.B]
		w.remove(int(mv.B))
		x.deliver(msg.unpack())
	case moveReserve:
		x.reserve(a)
	case moveSealed:
		x.close(a)
		x.decode(a, handoff.Event{On: handoff.OnSealed})
	case moveRevoked:
		x.close(a)
		x.decode(a, handoff.Event{On: handoff.OnRevoked})
	case moveVerify:
		x.verify(a)
	case moveRead:
		x.read(a)
	case moveSource:
		x.take(a)
	case moveCompute:
		x.compute(a)
	case moveLand:
		x.land(&w.writes[mv.B])
	case moveComplete:
		x.complete(&w.writes[mv.B])
	case moveGone:
		x.gone(Role(mv.B))
	case moveConnect:
		w.cur++
	case moveDeadline:
		if !m.still(w) {
			w.left[FaultDeadline]--
		}
		x.cancel(a, Role(mv.B), handoff.Deadline)
	case moveTick:
		if !m.still(w) {
			w.left[FaultTick]--
		}
		x.event(a, Role(mv.B), handoff.Event{On: handoff.OnTick})
	default:
		x.suffer(mv)
	}
	x.settle()
}

// suffer carries out a move of the adversary.
func (x *exec) suffer(mv Move) {
	w, a := x.w, int(mv.A)
	switch mv.Kind {
	case moveRepeat:
		w.left[FaultRepeat]--
		x.deliver(w.msgs[mv.B].unpack())
	case moveLose:
		w.left[FaultLose]--
		w.remove(int(mv.B))
	case moveAgain:
		w.left[FaultAgain]--
		w.writes[mv.B].landed = 0
	case moveEarly:
		w.left[FaultEarly]--
		x.complete(&w.writes[mv.B])
	case moveWriteError:
		w.left[FaultWrite]--
		w.writes[mv.B].failed = true
		x.prefill(int(w.writes[mv.B].slot), handoff.Event{On: handoff.OnWriteFailed}, letter{})
	case moveCrash:
		x.crash(Role(mv.B))
	case moveCut:
		w.left[FaultCut]--
		w.broken = w.cur
	case moveCancel:
		w.left[FaultCancel]--
		x.cancel(a, Role(mv.B), handoff.Cancelled)
	case moveBusy:
		w.left[FaultBusy]--
		w.dec[a].pend = pendNothing
		x.decode(a, handoff.Event{On: handoff.OnReserveFailed, Code: handoff.Busy})
	case moveBusySource:
		w.left[FaultBusy]--
		w.pre[a].work = workNone
		x.prefill(a, handoff.Event{On: handoff.OnReserveFailed, Code: handoff.Busy}, letter{})
	case moveSecond:
		w.left[FaultSecond]--
		x.door(a, Role(mv.B))
	case moveStray:
		w.left[FaultStray]--
		x.send(letter{kind: handoff.Abort, to: Role(mv.B), slot: mv.A, attempt: mv.A + 1, room: x.m.sc.Attempts[a].Room,
			code: handoff.Engine, conn: w.cur})
	case moveEngine:
		w.left[FaultEngine]--
		w.pre[a].work = workNone
		x.prefill(a, handoff.Event{On: handoff.OnFailed, Code: handoff.Engine}, letter{})
	}
}

// still reports whether nothing happens by itself.
func (m *Model) still(w *World) bool {
	var room [64]Move
	return len(m.course(w, room[:0])) == 0
}

func (x *exec) event(a int, r Role, ev handoff.Event) {
	if r == Decode {
		x.decode(a, ev)
	} else {
		x.prefill(a, ev, letter{})
	}
}

// cancel ends a leg from outside, or from its engine: it must be over at once.
func (x *exec) cancel(a int, r Role, code handoff.Code) {
	x.event(a, r, handoff.Event{On: handoff.OnCancel, Code: code})
	if is := x.w.leg(r, a).is; is == legWaiting || is == legServed {
		x.breaks(whyDeaf, a)
	}
}

// settle clears what cannot matter any more, so that equal futures are equal
// states.
func (x *exec) settle() {
	w := x.w
	for i := range w.writes {
		if wr := &w.writes[i]; wr.used && wr.done && wr.landed == 2 && w.left[FaultAgain] == 0 {
			*wr = write{}
		}
	}
	for a := range x.m.n {
		p := &w.pre[a]
		if ph := handoff.PrefillPhase(p.cell.phase); ph == handoff.PrefillEnded || ph == handoff.PrefillIdle {
			p.res, p.dst = 0, [MaxExtent]uint8{}
		}
	}
}
