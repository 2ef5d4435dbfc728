package world

import (
	"fmt"

	"bulkhead.dev/bulkhead/handoff"
)

// This file is memory and fabric: pages, keys, and writes that land by themselves.

// wanted is how many pages decode reserves for an attempt.
func (m *Model) wanted(s *decodeSide) uint8 { return s.cell.view.pages() }

// needed is how many source pages prefill's engine takes for an attempt.
func (m *Model) needed(w *World, a int) uint8 {
	if at := &m.sc.Attempts[a]; at.Stub != 0 {
		return at.Stub
	}
	return w.pre[a].cell.view.pages()
}

// reserve takes decode's pages under a fresh generation and key.
func (x *exec) reserve(a int) {
	w, s := x.w, &x.w.dec[a]
	w.counter++
	s.pend, s.res = pendNothing, x.fresh()
	s.epoch, s.counter = w.epoch, w.counter
	s.n = x.m.wanted(s)
	for i := range s.n {
		s.pages[i] = w.free.pop()
	}
	s.open, s.lease = x.m.on(handoff.GuardKey), true
	if w.pre[a].refused {
		x.breaks(whyRefused, a)
	}
	x.decode(a, handoff.Event{On: handoff.OnReserved, Gen: generation(s.epoch, s.counter)})
}

// fresh is the smallest reservation number that nothing refers to.
func (x *exec) fresh() uint8 {
	used := uint16(1)
	w := x.w
	for a := range x.m.n {
		used |= 1<<w.dec[a].res | 1<<w.pre[a].res
	}
	for i := 0; i < maxMessages && w.msgs[i] != 0; i++ {
		used |= 1 << w.msgs[i].unpack().res
	}
	for i := range w.writes {
		used |= 1 << w.writes[i].res
	}
	for n := uint8(1); n < 1<<bitsRes; n++ {
		if used>>n&1 == 0 {
			return n
		}
	}
	w.overflow = true
	return 1<<bitsRes - 1
}

// close takes the write key away: it has taken effect.
func (x *exec) close(a int) {
	s := &x.w.dec[a]
	s.pend, s.open, s.sealed, s.lease = pendNothing, false, true, false
}

// verify compares the digests of all reserved pages; with the extent guard off,
// of those that the notice lists.
func (x *exec) verify(a int) {
	s := &x.w.dec[a]
	s.pend = pendNothing
	n := s.n
	if !x.m.on(handoff.GuardExtent) {
		n = min(n, s.listed)
	}
	on := handoff.OnVerified
	if x.m.on(handoff.GuardExtent) && s.listed != s.n {
		on = handoff.OnMismatch
	}
	first := x.m.sc.Attempts[a].Pages - s.n
	for i := range n {
		want := x.m.value(computed(int(s.author)-1, s.stub, int(first+i)))
		for _, c := range x.w.pool[s.pages[i]] {
			if x.m.value(c) != want {
				on = handoff.OnMismatch
			}
		}
	}
	x.decode(a, handoff.Event{On: on})
}

// read is one decode step: the engine reads every page of the attempt.
func (x *exec) read(a int) {
	s := &x.w.dec[a]
	x.checkRead(a)
	if s.reads--; s.reads == 0 {
		s.pend = pendNothing
		x.decode(a, handoff.Event{On: handoff.OnFinished})
	}
}

// freeDecode ends a reservation.
func (x *exec) freeDecode(a int) {
	s := &x.w.dec[a]
	if s.open {
		x.breaks(whyOpen, a)
	}
	if s.pend == pendRead {
		x.breaks(whyReading, a)
	}
	for i := int(s.n); i > 0; i-- {
		x.w.free.push(s.pages[i-1])
	}
	s.pend, s.res, s.n, s.pages, s.reads = pendNothing, 0, 0, [MaxExtent]uint8{}, 0
	s.epoch, s.counter, s.open, s.sealed, s.lease, s.pin = 0, 0, false, false, false, false
	s.listed, s.author, s.stub = 0, 0, false
}

// take takes all source pages of an attempt.
func (x *exec) take(a int) {
	w, s := x.w, &x.w.pre[a]
	s.work, s.n, s.made = workNone, x.m.needed(w, a), 0
	for i := range s.n {
		s.pages[i] = w.sfree.pop()
	}
	x.prefill(a, handoff.Event{On: handoff.OnReserved}, letter{})
}

// compute is one page of prefill's engine.
func (x *exec) compute(a int) {
	w, s := x.w, &x.w.pre[a]
	page := s.pages[s.made]
	x.checkSource(page, whySourceRewritten)
	prefix := int(s.cell.view>>8) & 3
	w.source[page] = computed(a, x.m.swaps(a), prefix+int(s.made))
	s.made++
	ev := handoff.Event{On: handoff.OnComputed, N: 1}
	if s.made == s.n {
		s.work = workNone
		ev.Last, ev.View = true, x.m.madeView(a).view()
	}
	x.prefill(a, ev, letter{})
}

// freePrefill gives the source pages back.
func (x *exec) freePrefill(a int) {
	s := &x.w.pre[a]
	if s.work != workNone {
		x.breaks(whyComputing, a)
	}
	for i := int(s.n); i > 0; i-- {
		x.checkSource(s.pages[i-1], whySourceFreed)
		x.w.sfree.push(s.pages[i-1])
	}
	s.work, s.n, s.made, s.pages = workNone, 0, 0, [MaxExtent]uint8{}
}

// post hands n page writes to the fabric.
func (x *exec) post(a int, m *handoff.Prefill, n int) {
	s := &x.w.pre[a]
	if s.over {
		x.breaks(whyAfter, a)
	}
	if s.quiet {
		x.breaks(whyPosted, a)
	}
	for ord := int(m.Posted) - n; ord < int(m.Posted); ord++ {
		i := 0
		for i < maxWrites && x.w.writes[i].used {
			i++
		}
		if i == maxWrites {
			x.w.overflow = true
			return
		}
		wr := write{
			used: true, slot: uint8(a), ord: uint8(ord), src: s.pages[ord], conn: s.conn, res: s.res,
			epoch: uint8(m.ID.Gen.Epoch), counter: uint8(m.ID.Gen.Counter),
		}
		if !x.m.on(handoff.GuardKey) {
			wr.dst = s.dst[ord]
		}
		x.w.writes[i] = wr
	}
}

// capture fixes the payload of every write of the connections up to c: nothing
// reads the source for them any more, and nobody waits for them. They may land
// all the same.
func (x *exec) capture(c uint8) {
	for i := range x.w.writes {
		if wr := &x.w.writes[i]; wr.used && wr.conn <= c {
			x.fix(wr)
		}
	}
}

func (x *exec) fix(wr *write) {
	if !wr.captured {
		wr.captured, wr.payload, wr.src = true, x.w.source[wr.src], 0
	}
	wr.done = true
}

// complete tells prefill that a write has completed: its payload was read.
func (x *exec) complete(wr *write) {
	slot := int(wr.slot)
	x.fix(wr)
	x.prefill(slot, handoff.Event{On: handoff.OnWritten, N: 1}, letter{})
}

// land places a write, or the next half of it, without anybody's help.
func (x *exec) land(wr *write) {
	half := wr.landed
	wr.landed = 2
	if x.m.sc.Torn {
		wr.landed = half + 1
	}
	page, ok := x.target(wr)
	if !ok {
		wr.landed = 2
		x.note("refused: its key opens nothing")
		return
	}
	c := wr.payload
	if !wr.captured {
		c = x.w.source[wr.src]
	}
	x.w.pool[page][half] = c
	if !x.m.sc.Torn {
		x.w.pool[page] = [2]content{c, c}
	}
	if x.s.say != nil {
		x.note(fmt.Sprintf("page %d of decode holds %s", page, contents(x.w.pool[page])))
	}
	x.checkLanding(wr, page)
}

// target is the page in which a write lands. With keys it is the page of the
// reservation that the key opens now; without, the address that was granted,
// unless the page is sealed.
func (x *exec) target(wr *write) (page uint8, ok bool) {
	key := x.m.on(handoff.GuardKey)
	for a := range x.m.n {
		s := &x.w.dec[a]
		if key {
			if s.open && s.epoch == wr.epoch && s.counter == wr.counter && wr.ord < s.n {
				return s.pages[wr.ord], true
			}
			continue
		}
		for _, p := range s.pages[:s.n] {
			if p == wr.dst && s.sealed && x.m.on(handoff.GuardSeal) {
				return 0, false
			}
		}
	}
	return wr.dst, !key
}

func (x *exec) note(line string) {
	if x.s.say != nil {
		x.s.say(line)
	}
}

// contents says what is in the halves of a page.
func contents(halves [2]content) string {
	if halves[0] == halves[1] {
		return halves[0].String()
	}
	return "half " + halves[0].String() + ", half " + halves[1].String()
}

// String names a content in words.
func (c content) String() string {
	switch {
	case c == elder:
		return "an earlier tenant's KV"
	case c.stub():
		return fmt.Sprintf("a placeholder's KV (%s, page %d)", attemptName(c.by()), c.page())
	}
	return fmt.Sprintf("KV of %s, page %d", attemptName(c.by()), c.page())
}
