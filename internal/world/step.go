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
	moveEvict    // the cache gives its page back
	// What happens once nothing else can.
	moveDeadline // A, B role; before that it is FaultDeadline
	moveTick     // A, B role; before that it is FaultTick
	moveClock    // A, B role; a clock frees pages; before that it is FaultDeadline
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
	moveForge      // A, B kind and role that receives
	moveTruncate   // B message
	moveKinds
)

// Move is one choice in one World. A and B are as the kind says; A is an attempt, or
// at prefill a side.
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
		moves = m.courseOfDecode(w, i, moves)
		for side := m.side(i, 0); side < m.side(i+1, 0); side++ {
			p := &w.pre[side]
			if p.leg.is == legAhead && m.sc.Attempts[i].Prefill != Absent && m.present(w, i) {
				moves = append(moves, Move{moveDoor, uint8(side), uint8(Prefill)})
			}
			if p.work == workQueue && m.sourced(w, side) <= w.sfree.n {
				moves = append(moves, Move{moveSource, uint8(side), 0})
			}
			if p.work == workRuns {
				moves = append(moves, Move{moveCompute, uint8(side), 0})
			}
		}
	}
	if m.evicts(w) {
		moves = append(moves, Move{Kind: moveEvict})
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

// courseOfDecode appends what happens by itself at decode.
func (m *Model) courseOfDecode(w *World, i int, moves []Move) []Move {
	a, d := uint8(i), &w.dec[i]
	if d.leg.is == legAhead && m.sc.Attempts[i].Decode != Absent && m.present(w, i) && m.handed(w, i) {
		moves = append(moves, Move{moveDoor, a, uint8(Decode)})
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
	return moves
}

// handed reports whether the handle that a leg brings exists by now.
func (m *Model) handed(w *World, a int) bool {
	if !m.handled(a) {
		return true
	}
	p := &w.pre[m.side(int(m.sc.Attempts[a].Handle)-1, 0)]
	return p.n > 0 && p.made == p.n
}

// evicts reports whether the cache gives its page back: somebody needs room, and
// nobody holds the page.
func (m *Model) evicts(w *World) bool {
	if !w.cache.is || w.pins() > 0 && !m.has(HabitEvict) {
		return false
	}
	for a := range m.n {
		if d := &w.dec[a]; d.pend == pendReserve && m.wanted(d) > w.free.n {
			return true
		}
	}
	return false
}

// patience appends what happens when nothing else can: time runs out.
func (m *Model) patience(w *World, moves []Move) []Move {
	moves = m.clocks(w, moves)
	for r := Decode; r <= Prefill; r++ {
		for i := range m.sidesOf(r) {
			if w.leg(r, i).is == legWaiting {
				moves = append(moves, Move{moveDeadline, uint8(i), uint8(r)})
			}
			if m.ticks(w, r, i) {
				moves = append(moves, Move{moveTick, uint8(i), uint8(r)})
			}
		}
	}
	return moves
}

// clocks appends the clocks that free pages.
func (m *Model) clocks(w *World, moves []Move) []Move {
	if m.sc.Habits&(HabitClock|HabitLease) == 0 {
		return moves
	}
	for a := range m.n {
		if w.dec[a].deferred && m.has(HabitClock) {
			moves = append(moves, Move{moveClock, uint8(a), uint8(Decode)})
		}
	}
	for side := range m.sides {
		p := &w.pre[side]
		if m.has(HabitLease) && p.n > 0 && p.made == p.n && p.cell.posted == p.made {
			moves = append(moves, Move{moveClock, uint8(side), uint8(Prefill)})
		}
	}
	return moves
}

// sidesOf is how many machines a role has.
func (m *Model) sidesOf(r Role) int {
	if r == Prefill {
		return m.sides
	}
	return m.n
}

// ticks reports whether a repeated abort would reach the fabric.
func (m *Model) ticks(w *World, r Role, i int) bool {
	if !m.on(handoff.GuardRetry) {
		return false
	}
	c, conn := &w.pre[i].cell, w.pre[i].conn
	if r == Decode {
		c, conn = &w.dec[i].cell, w.dec[i].conn
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
		if w.left[FaultTruncate] > 0 {
			moves = append(moves, Move{moveTruncate, 0, uint8(i)})
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
	for a := range m.n {
		moves = m.troubleOf(w, Decode, a, moves)
	}
	for side := range m.sides {
		moves = m.troubleOf(w, Prefill, side, moves)
	}
	if w.left[FaultDeadline] > 0 {
		moves = m.clocks(w, moves)
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

// troubleOf appends what the adversary can pay for with one machine.
func (m *Model) troubleOf(w *World, r Role, i int, moves []Move) []Move {
	a, b := uint8(i), uint8(r)
	is, second := w.leg(r, i).is, false
	if w.left[FaultDeadline] > 0 && is == legWaiting {
		moves = append(moves, Move{moveDeadline, a, b})
	}
	if w.left[FaultTick] > 0 && m.ticks(w, r, i) {
		moves = append(moves, Move{moveTick, a, b})
	}
	if w.left[FaultStray] > 0 && w.cur > w.broken {
		moves = append(moves, Move{moveStray, a, b})
	}
	if w.left[FaultForge] > 0 {
		moves = m.forgeries(w, r, i, moves)
	}
	if w.left[FaultCancel] > 0 && (is == legWaiting || is == legServed && r == Decode && w.dec[i].pend == pendRead) {
		moves = append(moves, Move{moveCancel, a, b})
	}
	if r == Decode {
		second = !w.dec[i].here
		if w.left[FaultBusy] > 0 && w.dec[i].pend == pendReserve {
			moves = append(moves, Move{moveBusy, a, 0})
		}
	} else {
		second = !w.pre[i].here
		if w.left[FaultBusy] > 0 && w.pre[i].work == workQueue {
			moves = append(moves, Move{moveBusySource, a, 0})
		}
		if w.left[FaultEngine] > 0 && w.pre[i].work == workRuns {
			moves = append(moves, Move{moveEngine, a, 0})
		}
	}
	// A leg of an attempt that its worker knows is answered by the driver (duplicate) and
	// changes nothing; one that was forgotten with its connection, or died with its worker,
	// starts anew.
	if second && is > legWaiting && w.left[FaultSecond] > 0 {
		moves = append(moves, Move{moveSecond, a, b})
	}
	return moves
}

// forgeries appends the messages that a stranger can make: all is right in them but
// the generation. Before there is one there is nothing to get wrong, and an abort out
// of nothing is FaultStray.
func (m *Model) forgeries(w *World, r Role, i int, moves []Move) []Move {
	if r == Decode && w.dec[i].cell.counter == 0 || r == Prefill && w.pre[i].cell.counter == 0 {
		return moves
	}
	for k := handoff.Ask; k <= handoff.Quiet; k++ {
		toDecode := k == handoff.Offer || k == handoff.Refuse || k == handoff.Notice
		toPrefill := k == handoff.Ask || k == handoff.Grant || k == handoff.Accept
		if r == Decode && !toPrefill || r == Prefill && !toDecode {
			moves = append(moves, Move{moveForge, uint8(i), uint8(k)<<1 | uint8(r)})
		}
	}
	return moves
}

// pending reports whether the write's completion may still be reported.
func (wr *write) pending(w *World) bool { return !wr.done && !wr.failed && wr.conn > w.broken }

// leg is the leg of an attempt at decode, or of a side at prefill.
func (w *World) leg(r Role, i int) *leg {
	if r == Decode {
		return &w.dec[i].leg
	}
	return &w.pre[i].leg
}

// present reports whether the legs of an attempt may come by now.
func (m *Model) present(w *World, a int) bool {
	after := int(m.sc.Attempts[a].After) - 1
	if after < 0 {
		return true
	}
	if m.sc.Attempts[after].Prefill != Absent {
		for side := m.side(after, 0); side < m.side(after+1, 0); side++ {
			if w.pre[side].leg.is <= legWaiting {
				return false
			}
		}
	}
	return w.dec[after].leg.is > legWaiting || m.sc.Attempts[after].Decode == Absent
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
	case moveEvict:
		x.evict()
	case moveClock:
		if !m.still(w) {
			w.left[FaultDeadline]--
		}
		x.clock(a, Role(mv.B))
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
		rank := 0
		if Role(mv.B) == Prefill {
			a, rank = x.m.owner(a), x.m.rank(a)
		}
		x.send(letter{kind: handoff.Abort, to: Role(mv.B), slot: uint8(a), rank: uint8(rank), attempt: uint8(a + 1),
			room: x.m.sc.Attempts[a].Room, code: handoff.Engine, conn: w.cur})
	case moveForge:
		w.left[FaultForge]--
		x.forge(a, Role(mv.B&1), handoff.Kind(mv.B>>1))
	case moveTruncate:
		w.left[FaultTruncate]--
		if conn := w.msgs[mv.B].unpack().conn; conn > w.broken {
			w.broken = conn
		}
		w.remove(int(mv.B))
	case moveEngine:
		w.left[FaultEngine]--
		w.pre[a].work = workNone
		x.prefill(a, handoff.Event{On: handoff.OnFailed, Code: handoff.Engine}, letter{})
	}
}

// still reports whether nothing happens by itself.
func (m *Model) still(w *World) bool {
	var room [96]Move
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
		if w.dec[a].deferred {
			x.drain(a)
		}
	}
	for side := range x.m.sides {
		p := &w.pre[side]
		if ph := handoff.PrefillPhase(p.cell.phase); ph == handoff.PrefillEnded || ph == handoff.PrefillIdle {
			p.res, p.dst, p.granted = 0, [MaxExtent]uint8{}, 0
		}
	}
}
