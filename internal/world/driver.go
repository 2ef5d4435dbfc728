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
	if m.Phase == handoff.DecodeEnded {
		s.over, s.pin, s.prefix = true, false, 0
	}
	x.drain(a)
	return fx.Edge != 0
}

// awaited reports whether a writer still owes Quiet to an abort of decode's.
func awaited(m *handoff.Decode) bool { return m.Armed && m.Still != m.Expect }

func (x *exec) decodeEffect(a int, m *handoff.Decode, e handoff.Effect) {
	s := &x.w.dec[a]
	switch e.Do {
	case handoff.DoSend:
		x.sendPrefill(a, m, e)
	case handoff.DoAnswer:
		x.answer(Decode, a, e.Code)
		if e.Code == handoff.OK && m.Phase != handoff.DecodeReading {
			x.breaks(whyUnproved, a)
		}
	case handoff.DoReserve:
		if s.pend = pendReserve; s.over {
			x.breaks(whyAfter, a)
		}
		for rank := range x.m.ranks {
			if c := x.m.conduct(x.m.side(a, rank)); c == SwapsBefore || c == Careless {
				x.breaks(whyDisagree, a)
			}
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
		if x.m.has(HabitDefer) && (awaited(m) || x.w.written(s.res)) {
			s.deferred, s.pend = true, pendNothing
			return
		}
		x.freeDecode(a)
	}
}

// drain frees what was held for an abort, once every writer is quiet.
func (x *exec) drain(a int) {
	s := &x.w.dec[a]
	if !s.deferred || x.w.written(s.res) {
		return
	}
	if m := s.cell.decode(); !awaited(&m) {
		x.release(a)
	}
}

// written reports whether a write into a reservation has not completed.
func (w *World) written(res uint8) bool {
	for i := range w.writes {
		if wr := &w.writes[i]; wr.used && !wr.done && wr.res == res {
			return true
		}
	}
	return false
}

// sendPrefill sends a message to the ranks that it is for.
func (x *exec) sendPrefill(a int, m *handoff.Decode, e handoff.Effect) {
	s := &x.w.dec[a]
	if x.m.handled(a) {
		if e.Send == handoff.Grant {
			x.fetch(a)
		}
		return // nobody is asked, and nobody is told
	}
	for rank := range x.m.ranks {
		if e.To != 0 && e.To>>rank&1 == 0 {
			continue
		}
		l := letterOf(m.Message(e), Prefill, a, s.conn)
		l.rank = uint8(rank)
		if e.Send == handoff.Grant {
			l.res = s.res
			if !x.m.on(handoff.GuardKey) {
				l.pages = s.pages
			}
		}
		x.send(l)
	}
}

// prefill gives one event to the machine of a side at prefill. grant is the
// letter of a Grant, whose pages the driver keeps if the machine takes it.
func (x *exec) prefill(side int, ev handoff.Event, grant letter) (acted bool) {
	s := &x.w.pre[side]
	was := s.cell.prefill()
	g := x.m.guards
	if x.m.conduct(side) == Careless {
		g = g.Without(handoff.GuardOffer)
	}
	m, fx := was.Step(ev, g)
	x.s.edges.take(Prefill, fx.Edge)
	s.cell = packPrefill(&m)
	x.tell(Prefill, side, ev.On, was.Phase, m.Phase, &fx)
	if ev.On == handoff.OnGrant && fx.Edge != 0 {
		s.dst, s.res, s.granted = grant.pages, grant.res, grant.view.pages()
	}
	for _, e := range fx.Slice() {
		if e.Send == handoff.Quiet && was.Phase == handoff.PrefillStopping && x.m.has(HabitForgets) {
			continue
		}
		x.prefillEffect(side, &m, e)
	}
	s.over = s.over || m.Phase == handoff.PrefillEnded
	return fx.Edge != 0
}

func (x *exec) prefillEffect(side int, m *handoff.Prefill, e handoff.Effect) {
	s, a := &x.w.pre[side], x.m.owner(side)
	switch e.Do {
	case handoff.DoSend:
		if e.Send == handoff.Quiet {
			s.quiet = true
			x.checkQuiet(side)
		}
		l := letterOf(m.Message(e), Decode, a, s.conn)
		l.rank = uint8(x.m.rank(side))
		x.send(l)
	case handoff.DoAnswer:
		x.answer(Prefill, side, e.Code)
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
		x.post(side, m, int(e.N))
	case handoff.DoWithdraw, handoff.DoHalt:
		s.work = workNone
	case handoff.DoFree:
		x.freePrefill(side)
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
	i, conn := a, &x.w.dec[a].conn
	if l.to == Prefill {
		i = x.m.side(a, int(l.rank))
		conn = &x.w.pre[i].conn
	}
	if *conn != 0 && *conn != l.conn && x.m.on(handoff.GuardConnection) {
		return // of a connection that does not speak of this attempt
	}
	was := *conn
	if was == 0 {
		*conn = l.conn
	}
	acted := x.receive(i, &l)
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

// receive gives a message to one machine: an attempt's, or a side's.
func (x *exec) receive(i int, l *letter) (acted bool) {
	ev := handoff.Receive(l.msg())
	if l.to == Prefill {
		return x.prefill(i, ev, *l)
	}
	ev.Rank = l.rank
	s := &x.w.dec[i]
	phase := handoff.DecodePhase(s.cell.phase)
	acted = x.decode(i, ev)
	if acted && l.kind == handoff.Notice && phase == handoff.DecodeGranted {
		x.heed(i, l)
	}
	return acted
}

// heed keeps what came with a notice that decode took.
func (x *exec) heed(a int, l *letter) {
	s := &x.w.dec[a]
	switch handoff.DecodePhase(s.cell.phase) {
	case handoff.DecodeGranted, handoff.DecodeSealing, handoff.DecodeVerifying, handoff.DecodeReading:
		s.listed[l.rank], s.author[l.rank], s.stub[l.rank] = l.view.pages(), l.slot+1, l.view.stub()
		s.told |= 1 << l.rank
		if handoff.DecodePhase(s.cell.phase) != handoff.DecodeGranted && int(s.told) != 1<<x.m.ranks-1 {
			x.breaks(whyAlone, a)
		}
	}
}

// forge delivers a message that nobody sent.
func (x *exec) forge(i int, to Role, kind handoff.Kind) {
	a, rank := i, 0
	if to == Prefill {
		a, rank = x.m.owner(i), x.m.rank(i)
	}
	l := letter{
		kind: kind, to: to, slot: uint8(a), rank: uint8(rank), attempt: uint8(a + 1), room: x.m.sc.Attempts[a].Room,
		epoch: 1<<bitsEpoch - 1, counter: 1<<bitsCounter - 1, view: x.m.askedView(a, 0), conn: x.w.dec[a].conn,
	}
	if to == Prefill {
		l.conn = x.w.pre[i].conn
	}
	if kind == handoff.Abort || kind == handoff.Refuse {
		l.code = handoff.Engine
	}
	if l.conn != 0 && x.receive(i, &l) {
		x.breaks(whyForged, a)
	}
}

// tenant is the attempt that a room leads to: the newest that is known there.
func (x *exec) tenant(r Role, room uint8, sender int) int {
	for a := x.m.n - 1; a >= 0; a-- {
		c := &x.w.dec[a].cell
		if r == Prefill {
			c = &x.w.pre[x.m.side(a, 0)].cell
		}
		if c.phase != 0 && c.room == room {
			return a
		}
	}
	return sender
}

// door brings a leg to its worker: of an attempt to decode, of a side to prefill.
func (x *exec) door(i int, r Role) {
	a := i
	if r == Prefill {
		a = x.m.owner(i)
	}
	at := &x.m.sc.Attempts[a]
	*x.w.leg(r, i) = leg{is: legWaiting}
	ev := handoff.Event{On: handoff.OnDoor, ID: handoff.ID{Attempt: attemptID(uint8(a + 1))}, Room: uint64(at.Room)}
	refuse := at.Decode == Refuses
	if r == Prefill {
		refuse = x.m.conduct(i) == Refuses
	}
	if refuse {
		ev.On, ev.Code, ev.Limit = handoff.OnDoorRefused, handoff.TooLong, tooLong
	}
	if r == Prefill {
		x.doorPrefill(i, ev)
		return
	}
	s, prefix := &x.w.dec[a], uint8(0)
	s.here = true
	if x.m.pinned(x.w, a) {
		s.pin, s.prefix, prefix = true, x.w.cache.page, 1
	}
	ev.View, ev.Group = x.m.askedView(a, prefix).view(), handoff.Group(x.m.ranks)
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
	if x.m.handled(a) {
		x.decode(a, handoff.Event{On: handoff.OnOffer, Msg: handoff.Msg{
			Kind: handoff.Offer, Room: ev.Room, ID: ev.ID, View: ev.View,
		}})
	}
}

func (x *exec) doorPrefill(side int, ev handoff.Event) {
	a := x.m.owner(side)
	view := x.m.trueView(a)
	if c := x.m.conduct(side); c == SwapsBefore || c == Careless {
		view = x.m.stubView(a)
	}
	ev.View = view.view()
	s := &x.w.pre[side]
	s.here = true
	if s.refused = ev.On == handoff.OnDoorRefused; s.refused && x.w.dec[a].n > 0 {
		x.breaks(whyRefused, a)
	}
	x.prefill(side, ev, letter{})
}

// answer gives a leg its verdict: of an attempt at decode, of a side at prefill.
func (x *exec) answer(r Role, i int, code handoff.Code) {
	l, a := x.w.leg(r, i), i
	if r == Prefill {
		a = x.m.owner(i)
	}
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
	for i := range x.m.sidesOf(r) {
		conn := &w.dec[min(i, MaxAttempts-1)].conn
		if r == Prefill {
			conn = &w.pre[i].conn
		}
		if *conn != c {
			continue
		}
		x.event(i, r, handoff.Event{On: handoff.OnPeerGone})
		*conn = 0
		x.forget(r, i)
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
		if s := &x.w.dec[a]; s.cell.decode().Over() && !s.deferred {
			if s.pend != pendNothing || s.n > 0 {
				x.breaks(whyForgotten, a)
			}
			*s = decodeSide{leg: s.leg}
		}
		return
	}
	if s := &x.w.pre[a]; s.cell.prefill().Over() {
		if s.work != workNone || s.n > 0 {
			x.breaks(whyForgotten, x.m.owner(a))
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
		for side := range x.m.sides {
			s := &w.pre[side]
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
	if w.cache.is {
		w.free.push(w.cache.page)
		w.cache = cached{}
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
func (x *exec) tell(r Role, i int, on handoff.On, from, to fmt.Stringer, fx *handoff.Effects) {
	if x.s.say == nil {
		return
	}
	name := attemptName(i)
	if r == Prefill {
		name = x.m.sideName(i)
	}
	if fx.Edge == 0 {
		x.s.say(fmt.Sprintf("%v %s: %v ignores %v", r, name, from, on))
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s: ", r, name)
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
