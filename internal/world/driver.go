package world

import (
	"fmt"
	"strings"

	"bulkhead.dev/bulkhead/handoff"
)

// This file is the driver of both workers: what they do around the machines.

// decode gives one event to an attempt's machine at decode and carries out the
// effects, in order.
func (x *exec) decode(a int, ev handoff.Event) (acted bool) {
	s := &x.w.dec[a]
	was := s.cell.decode()
	m, fx := was.Step(ev, x.m.guards)
	x.s.edges.take(Decode, fx.Edge)
	s.cell = packDecode(&m)
	x.tell(Decode, a, ev.On, was.Phase, m.Phase, &fx)
	for _, e := range fx.Slice() {
		x.decodeEffect(a, &m, e)
	}
	if x.m.on(handoff.GuardKey) && s.n > 0 && m.Live != s.open {
		x.breaks(whyKey, a)
	}
	s.over = s.over || m.Phase == handoff.DecodeEnded
	return fx.Edge != 0
}

func (x *exec) decodeEffect(a int, m *handoff.Decode, e handoff.Effect) {
	s := &x.w.dec[a]
	switch e.Do {
	case handoff.DoSend:
		l := letterOf(m.Message(e), Prefill, a, s.conn)
		if e.Send == handoff.Grant {
			l.res = s.res
			if !x.m.on(handoff.GuardKey) {
				l.pages = s.pages
			}
		}
		x.send(l)
	case handoff.DoAnswer:
		x.answer(Decode, a, e.Code)
		if e.Code == handoff.OK && m.Phase != handoff.DecodeReading {
			x.breaks(whyUnproved, a)
		}
	case handoff.DoReserve:
		if s.pend = pendReserve; s.over {
			x.breaks(whyAfter, a)
		}
		if c := x.m.sc.Attempts[a].Prefill; c == SwapsBefore || c == Careless {
			x.breaks(whyDisagree, a)
		}
	case handoff.DoWithdraw, handoff.DoStop:
		s.pend = pendNothing
	case handoff.DoSeal:
		s.pend = pendSeal
	case handoff.DoRevoke:
		s.pend = pendRevoke
	case handoff.DoVerify:
		s.pend, s.lease = pendVerify, false
	case handoff.DoRead:
		s.pend, s.lease, s.reads = pendRead, false, x.m.sc.Reads
		x.w.proved |= 1 << a
	case handoff.DoFree:
		x.freeDecode(a)
	}
}

// prefill gives one event to an attempt's machine at prefill. grant is the
// letter of a Grant, whose pages the driver keeps if the machine takes it.
func (x *exec) prefill(a int, ev handoff.Event, grant letter) (acted bool) {
	s := &x.w.pre[a]
	was := s.cell.prefill()
	g := x.m.guards
	if x.m.sc.Attempts[a].Prefill == Careless {
		g = g.Without(handoff.GuardOffer)
	}
	m, fx := was.Step(ev, g)
	x.s.edges.take(Prefill, fx.Edge)
	s.cell = packPrefill(&m)
	x.tell(Prefill, a, ev.On, was.Phase, m.Phase, &fx)
	if ev.On == handoff.OnGrant && fx.Edge != 0 {
		s.dst, s.res = grant.pages, grant.res
	}
	for _, e := range fx.Slice() {
		x.prefillEffect(a, &m, e)
	}
	s.over = s.over || m.Phase == handoff.PrefillEnded
	return fx.Edge != 0
}

func (x *exec) prefillEffect(a int, m *handoff.Prefill, e handoff.Effect) {
	s := &x.w.pre[a]
	switch e.Do {
	case handoff.DoSend:
		if e.Send == handoff.Quiet {
			s.quiet = true
			x.checkQuiet(a)
		}
		x.send(letterOf(m.Message(e), Decode, a, s.conn))
	case handoff.DoAnswer:
		x.answer(Prefill, a, e.Code)
		if e.Code == handoff.OK && x.w.proved>>a&1 == 0 {
			x.breaks(whyAccept, a)
		}
	case handoff.DoReserve:
		if s.work = workQueue; s.over {
			x.breaks(whyAfter, a)
		}
		if s.refused || x.m.sc.Attempts[a].Decode == Refuses {
			x.breaks(whyRefused, a)
		}
	case handoff.DoCompute:
		s.work = workRuns
	case handoff.DoPost:
		x.post(a, m, int(e.N))
	case handoff.DoWithdraw, handoff.DoHalt:
		s.work = workNone
	case handoff.DoFree:
		x.freePrefill(a)
	case handoff.DoCut:
		if s.conn > x.w.broken {
			x.w.broken = s.conn
		}
	}
}

// letterOf addresses a message.
func letterOf(m handoff.Msg, to Role, slot int, conn uint8) letter {
	return letter{
		kind: m.Kind, to: to, slot: uint8(slot), attempt: m.ID.Attempt[0], room: uint8(m.Room), code: m.Code, limit: uint8(m.Limit),
		epoch: uint8(m.ID.Gen.Epoch), counter: uint8(m.ID.Gen.Counter), view: packView(&m.View), conn: conn,
	}
}

// send puts a letter under way. A broken connection carries nothing new.
func (x *exec) send(l letter) {
	if l.conn <= x.w.broken {
		return
	}
	x.w.add(l.pack())
}

// add puts a message into the sorted bag.
func (w *World) add(m message) {
	if w.msgs[maxMessages-1] != 0 {
		w.overflow = true
		return
	}
	for i := range w.msgs {
		if w.msgs[i] == 0 || m < w.msgs[i] {
			copy(w.msgs[i+1:], w.msgs[i:maxMessages-1])
			w.msgs[i] = m
			return
		}
	}
}

func (w *World) remove(i int) {
	copy(w.msgs[i:], w.msgs[i+1:])
	w.msgs[maxMessages-1] = 0
}

// deliver gives a message to the machine that its receiver looks up: by attempt,
// or with the generation guard off by room.
func (x *exec) deliver(l letter) {
	a := int(l.attempt) - 1
	if !x.m.on(handoff.GuardGeneration) {
		a = x.tenant(l.to, l.room, a)
	}
	if a < 0 || a >= x.m.n {
		return
	}
	conn := &x.w.dec[a].conn
	if l.to == Prefill {
		conn = &x.w.pre[a].conn
	}
	if *conn != 0 && *conn != l.conn && x.m.on(handoff.GuardConnection) {
		return // of a connection that does not speak of this attempt
	}
	was := *conn
	if was == 0 {
		*conn = l.conn
	}
	ev := handoff.Receive(l.msg())
	acted := false
	if l.to == Decode {
		acted = x.decode(a, ev)
		x.heed(a, &l, acted)
	} else {
		acted = x.prefill(a, ev, l)
	}
	if !acted && was == 0 {
		*conn = 0
	}
	switch {
	case !acted:
	case int(l.slot) != a:
		x.breaks(whyAttempt, a)
	case l.conn <= x.w.shut[l.to] && (was == 0 || was == l.conn):
		x.breaks(whyClosed, a)
	case was != 0 && was != l.conn:
		x.breaks(whyConnection, a)
	}
}

// heed keeps what came with a notice that decode took.
func (x *exec) heed(a int, l *letter, acted bool) {
	s := &x.w.dec[a]
	if !acted || l.kind != handoff.Notice {
		return
	}
	switch handoff.DecodePhase(s.cell.phase) {
	case handoff.DecodeSealing, handoff.DecodeVerifying, handoff.DecodeReading:
		s.listed, s.author, s.stub = l.view.pages(), l.slot+1, l.view.stub()
	}
}

// tenant is the attempt that a room leads to: the newest that is known there.
func (x *exec) tenant(r Role, room uint8, sender int) int {
	for a := x.m.n - 1; a >= 0; a-- {
		c := &x.w.dec[a].cell
		if r == Prefill {
			c = &x.w.pre[a].cell
		}
		if c.phase != 0 && c.room == room {
			return a
		}
	}
	return sender
}

// door brings a leg to its worker.
func (x *exec) door(a int, r Role) {
	at := &x.m.sc.Attempts[a]
	*x.w.leg(r, a) = leg{is: legWaiting}
	ev := handoff.Event{On: handoff.OnDoor, ID: handoff.ID{Attempt: attemptID(uint8(a + 1))}, Room: uint64(at.Room)}
	refuse := at.Decode == Refuses
	if r == Prefill {
		refuse = at.Prefill == Refuses
	}
	if refuse {
		ev.On, ev.Code, ev.Limit = handoff.OnDoorRefused, handoff.TooLong, tooLong
	}
	if r == Prefill {
		view := x.m.trueView(a, 0)
		if at.Prefill == SwapsBefore || at.Prefill == Careless {
			view = x.m.stubView(a)
		}
		ev.View = view.view()
		s := &x.w.pre[a]
		s.here = true
		if s.refused = refuse; refuse && x.w.dec[a].n > 0 {
			x.breaks(whyRefused, a)
		}
		x.prefill(a, ev, letter{})
		return
	}
	s, prefix := &x.w.dec[a], uint8(0)
	s.here = true
	if x.m.pinned(a) {
		s.pin, prefix = true, 1
	}
	ev.View = x.m.trueView(a, prefix).view()
	if s.conn == 0 && x.w.cur > x.w.shut[Decode] {
		s.conn = x.w.cur
	}
	if s.conn == 0 && !refuse {
		ev.On, ev.Code = handoff.OnDoorRefused, handoff.PeerGone
	}
	x.decode(a, ev)
	if s.conn == 0 {
		x.decode(a, handoff.Event{On: handoff.OnPeerGone}) // there is no peer to wait for
	}
	if handoff.DecodePhase(s.cell.phase) == handoff.DecodeEnded {
		s.pin = false
	}
}

// answer gives a leg its verdict.
func (x *exec) answer(r Role, a int, code handoff.Code) {
	l := x.w.leg(r, a)
	if code == handoff.NoCode {
		x.breaks(whyNoCode, a)
	}
	switch {
	case l.is == legWaiting && code == handoff.OK:
		l.is = legServed
	case l.is == legWaiting:
		l.is = legFailed
	case l.is == legServed && r == Decode && code != handoff.OK:
		l.is = legBroken
		if code == handoff.Integrity || code == handoff.Disagree {
			x.breaks(whyFalse, a)
		}
	case l.is == legAhead:
		x.breaks(whyNobody, a)
	default:
		x.breaks(whyTwice, a)
	}
	l.code = code
}

// gone closes one end of the oldest connection that is open there. Its reader
// and writer have returned when the machines hear of it.
func (x *exec) gone(r Role) {
	w := x.w
	w.shut[r]++
	c := w.shut[r]
	if x.m.on(handoff.GuardConnection) {
		x.dropTo(r, c)
	}
	if r == Prefill {
		x.capture(c)
	}
	for a := range x.m.n {
		conn := &w.dec[a].conn
		if r == Prefill {
			conn = &w.pre[a].conn
		}
		if *conn != c {
			continue
		}
		x.event(a, r, handoff.Event{On: handoff.OnPeerGone})
		*conn = 0
		x.forget(r, a)
	}
}

// dropTo loses what a closed connection still had for one end.
func (x *exec) dropTo(r Role, conn uint8) {
	for i := 0; i < maxMessages && x.w.msgs[i] != 0; {
		if l := x.w.msgs[i].unpack(); l.to == r && l.conn <= conn {
			x.w.remove(i)
		} else {
			i++
		}
	}
}

// forget lets a tombstone go once its connection is closed (H-2).
func (x *exec) forget(r Role, a int) {
	if r == Decode {
		if s := &x.w.dec[a]; s.cell.decode().Over() {
			if s.pend != pendNothing || s.n > 0 {
				x.breaks(whyForgotten, a)
			}
			*s = decodeSide{leg: s.leg}
		}
		return
	}
	if s := &x.w.pre[a]; s.cell.prefill().Over() {
		if s.work != workNone || s.n > 0 {
			x.breaks(whyForgotten, a)
		}
		*s = prefillSide{leg: s.leg}
	}
}

// crash ends one worker and starts it again: its machines are lost, its memory
// keeps what is in it, the fabric keeps what it had sent.
func (x *exec) crash(r Role) {
	w := x.w
	if w.broken < w.cur {
		w.broken = w.cur
	}
	w.shut[r] = w.cur
	if x.m.on(handoff.GuardConnection) {
		x.dropTo(r, w.cur)
	}
	if r == Prefill {
		w.left[FaultCrashPrefill]--
		x.capture(w.cur)
		for a := range x.m.n {
			s := &w.pre[a]
			for i := int(s.n); i > 0; i-- {
				w.sfree.push(s.pages[i-1])
			}
			*s = prefillSide{leg: s.leg.reset(false)}
		}
		return
	}
	w.left[FaultCrashDecode]--
	for a := range x.m.n {
		s := &w.dec[a]
		for i := int(s.n); i > 0; i-- {
			w.free.push(s.pages[i-1])
		}
		*s = decodeSide{leg: s.leg.reset(handoff.DecodePhase(s.cell.phase) == handoff.DecodeReading)}
	}
	w.counter = 0
	if x.m.on(handoff.GuardEpoch) {
		w.epoch++
	}
}

// reset is what a leg looks like once its worker has died.
func (l leg) reset(streaming bool) leg {
	if l.is == legWaiting || l.is == legServed && streaming {
		l.is = legReset
	}
	return l
}

// tell says what a machine did, for scripts.
func (x *exec) tell(r Role, a int, on handoff.On, from, to fmt.Stringer, fx *handoff.Effects) {
	if x.s.say == nil {
		return
	}
	if fx.Edge == 0 {
		x.s.say(fmt.Sprintf("%v %s: %v ignores %v", r, attemptName(a), from, on))
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s: ", r, attemptName(a))
	if from.String() == to.String() {
		fmt.Fprintf(&b, "%v", to)
	} else {
		fmt.Fprintf(&b, "%v -> %v", from, to)
	}
	for i, e := range fx.Slice() {
		b.WriteString([...]string{": ", ", "}[min(i, 1)])
		switch e.Do {
		case handoff.DoSend:
			fmt.Fprintf(&b, "send %v", e.Send)
			if e.Code != handoff.NoCode {
				fmt.Fprintf(&b, " (%v)", e.Code)
			}
		case handoff.DoAnswer:
			fmt.Fprintf(&b, "answer %v", e.Code)
		case handoff.DoPost:
			fmt.Fprintf(&b, "post %d", e.N)
		default:
			fmt.Fprintf(&b, "%v", e.Do)
		}
	}
	x.s.say(b.String())
}
