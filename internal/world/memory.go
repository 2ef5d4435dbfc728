package world

import (
	"fmt"

	"bulkhead.dev/bulkhead/handoff"
)

// This file is memory and fabric: pages, keys, and writes that land by themselves.

// wanted is how many pages decode reserves for an attempt.
func (m *Model) wanted(s *decodeSide) uint8 { return s.cell.view.pages() }

// needed is how many source pages prefill's engine takes for an attempt.
func (m *Model) needed(w *World, side int) uint8 {
	if c := m.conduct(side); c > Refuses && c != Absent {
		return m.sc.Attempts[m.owner(side)].Stub
	}
	return w.pre[side].cell.view.pages()
}

// sourced is how many source pages must be free before a side takes its own. A group of
// ranks takes them for one attempt at a time, and for all of its ranks: ranks that took
// them in different orders would wait for each other until somebody's time is up.
func (m *Model) sourced(w *World, side int) uint8 {
	need := m.needed(w, side)
	if m.ranks == 1 {
		return need
	}
	for other := range m.sides {
		if m.owner(other) != m.owner(side) && m.partial(w, m.owner(other)) {
			return MaxPages + 1
		}
		if other != side && m.owner(other) == m.owner(side) && handoff.PrefillPhase(w.pre[other].cell.phase) < handoff.PrefillOffered {
			need += m.sc.Attempts[m.owner(other)].Pages
		}
	}
	return need
}

// partial reports whether some ranks of an attempt have source pages, and others will ask.
func (m *Model) partial(w *World, a int) bool {
	has, asks := false, false
	for side := m.side(a, 0); side < m.side(a+1, 0); side++ {
		has = has || w.pre[side].n > 0
		asks = asks || handoff.PrefillPhase(w.pre[side].cell.phase) < handoff.PrefillOffered
	}
	return has && asks
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
	for rank := range x.m.ranks {
		if w.pre[x.m.side(a, rank)].refused {
			x.breaks(whyRefused, a)
		}
	}
	x.decode(a, handoff.Event{On: handoff.OnReserved, Gen: generation(s.epoch, s.counter)})
}

// fresh is the smallest reservation number that nothing refers to.
func (x *exec) fresh() uint8 {
	used := uint16(1)
	w := x.w
	for a := range x.m.n {
		used |= 1 << w.dec[a].res
	}
	for side := range x.m.sides {
		used |= 1 << w.pre[side].res
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
// of those that the notices list. A rank's notice speaks of what that rank wrote: with
// one rank of whole pages, with two of a half each.
func (x *exec) verify(a int) {
	s := &x.w.dec[a]
	s.pend = pendNothing
	on := handoff.OnVerified
	_, pages := x.m.asked(a)
	first := pages - s.n
	for rank := range x.m.ranks {
		n := s.n
		switch {
		case s.author[rank] == 0:
			on = handoff.OnMismatch // no digest fails closed (H-7)
			continue
		case !x.m.on(handoff.GuardExtent):
			n = min(n, s.listed[rank])
		case s.listed[rank] != s.n:
			on = handoff.OnMismatch
		}
		for i := range n {
			want := x.m.value(computed(int(s.author[rank])-1, s.stub[rank], int(first+i)))
			for half, c := range x.w.pool[s.pages[i]] {
				if (x.m.ranks == 1 || half == rank) && x.m.value(c) != want {
					on = handoff.OnMismatch
				}
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
	kept := x.publish(a)
	for i := s.n; i > kept; i-- {
		x.w.free.push(s.pages[i-1])
	}
	s.pend, s.res, s.n, s.pages, s.reads = pendNothing, 0, 0, [MaxExtent]uint8{}, 0
	s.epoch, s.counter, s.open, s.sealed, s.lease, s.pin, s.prefix, s.deferred = 0, 0, false, false, false, false, 0, false
	s.listed, s.author, s.stub, s.told = [MaxRanks]uint8{}, [MaxRanks]uint8{}, [MaxRanks]bool{}, 0
}

// publish gives the first page of an attempt that was served to the cache, if that is
// empty. It returns how many pages were kept.
func (x *exec) publish(a int) (kept uint8) {
	s, c := &x.w.dec[a], &x.w.cache
	prompt, pages := x.m.asked(a)
	if !x.m.sc.Publishes || c.is || s.leg.is != legServed || s.cell.result != uint8(handoff.OK) || s.n != pages {
		return 0
	}
	*c = cached{true, s.pages[0], x.m.sc.Attempts[a].Domain, prompt}
	return 1
}

// evict gives the cached page back to the pool.
func (x *exec) evict() {
	w := x.w
	for a := range x.m.n {
		if w.dec[a].pin {
			x.breaks(whyEvicted, a)
		}
	}
	w.free.push(w.cache.page)
	w.cache = cached{}
	x.note("the cache gives its page back")
}

// release frees pages that the machine has freed already, and its driver had held.
func (x *exec) release(a int) {
	x.w.dec[a].deferred = false
	x.freeDecode(a)
}

// clock frees pages because time has passed: decode's of an attempt, prefill's of a side.
func (x *exec) clock(i int, r Role) {
	if r == Decode {
		x.breaks(whyClock, i)
		x.release(i)
		return
	}
	s := &x.w.pre[i]
	for j := int(s.n); j > 0; j-- {
		x.checkSource(s.pages[j-1], whySourceFreed)
		x.w.sfree.push(s.pages[j-1])
	}
	s.n, s.made, s.pages = 0, 0, [MaxExtent]uint8{}
	x.note("the lease has run out: its pages are free")
}

// take takes all source pages of a side.
func (x *exec) take(side int) {
	w, s := x.w, &x.w.pre[side]
	s.work, s.n, s.made = workNone, x.m.needed(w, side), 0
	for i := range s.n {
		s.pages[i] = w.sfree.pop()
	}
	x.prefill(side, handoff.Event{On: handoff.OnReserved}, letter{})
}

// compute is one page of prefill's engine.
func (x *exec) compute(side int) {
	w, s := x.w, &x.w.pre[side]
	page := s.pages[s.made]
	x.checkSource(page, whySourceRewritten)
	prefix := int(s.cell.view>>8) & 3
	w.source[page] = computed(x.m.owner(side), x.m.swaps(side), prefix+int(s.made))
	s.made++
	ev := handoff.Event{On: handoff.OnComputed, N: 1}
	if s.made == s.n {
		s.work = workNone
		ev.Last, ev.View = true, x.m.madeView(side).view()
	}
	x.prefill(side, ev, letter{})
}

// freePrefill gives the source pages back.
func (x *exec) freePrefill(side int) {
	s := &x.w.pre[side]
	if s.work != workNone {
		x.breaks(whyComputing, x.m.owner(side))
	}
	for i := int(s.n); i > 0; i-- {
		x.checkSource(s.pages[i-1], whySourceFreed)
		x.w.sfree.push(s.pages[i-1])
	}
	s.work, s.n, s.made, s.pages = workNone, 0, 0, [MaxExtent]uint8{}
}

// post hands n page writes to the fabric.
func (x *exec) post(side int, m *handoff.Prefill, n int) {
	s, a := &x.w.pre[side], x.m.owner(side)
	if s.over {
		x.breaks(whyAfter, a)
	}
	if s.quiet {
		x.breaks(whyPosted, a)
	}
	for ord := int(m.Posted) - n; ord < int(m.Posted); ord++ {
		wr := write{
			used: true, slot: uint8(side), ord: uint8(ord), of: s.granted, src: s.pages[ord], conn: s.conn, res: s.res,
			epoch: uint8(m.ID.Gen.Epoch), counter: uint8(m.ID.Gen.Counter),
		}
		if !x.m.on(handoff.GuardKey) && ord < int(s.granted) {
			wr.dst = s.dst[ord]
		}
		x.w.put(wr)
	}
}

// put puts a write into the fabric.
func (w *World) put(wr write) {
	for i := range w.writes {
		if !w.writes[i].used {
			w.writes[i] = wr
			return
		}
	}
	w.overflow = true
}

// fetch starts the transfer of the pages that decode's handle names: the same copy as a
// write, begun by the reader. What is in the pages when they are read is what comes.
func (x *exec) fetch(a int) {
	s := &x.w.dec[a]
	p := &x.w.pre[x.m.side(int(x.m.sc.Attempts[a].Handle)-1, 0)]
	for ord := range min(s.n, max(p.n, 1)) {
		wr := write{
			used: true, slot: uint8(x.m.side(a, 0)), ord: ord, of: s.n, src: p.pages[ord], conn: s.conn, res: s.res,
			epoch: s.epoch, counter: s.counter,
		}
		if !x.m.on(handoff.GuardKey) {
			wr.dst = s.pages[ord]
		}
		x.w.put(wr)
	}
}

// fetched tells decode that all it fetches is here.
func (x *exec) fetched(a int) {
	for i := range x.w.writes {
		if wr := &x.w.writes[i]; wr.used && !wr.done && x.m.owner(int(wr.slot)) == a {
			return
		}
	}
	m := x.w.dec[a].cell.decode()
	x.decode(a, handoff.Event{On: handoff.OnNotice, Msg: handoff.Msg{Kind: handoff.Notice, Room: m.Room, ID: m.ID, View: m.View}})
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
	if a := x.m.owner(slot); x.m.handled(a) {
		x.fetched(a)
		return
	}
	x.prefill(slot, handoff.Event{On: handoff.OnWritten, N: 1}, letter{})
}

// land places a write, or the next half of it, without anybody's help. Of two ranks,
// each writes a half of its own.
func (x *exec) land(wr *write) {
	half := wr.landed
	wr.landed = 2
	if x.m.sc.Torn {
		wr.landed = half + 1
	}
	page, ok := x.target(wr)
	if x.m.has(HabitUnregister) && half == 1 {
		page, ok = wr.dst, true // it was let in once
	}
	if !ok {
		wr.landed = 2
		x.note("refused: its key opens nothing")
		return
	}
	c := wr.payload
	if !wr.captured {
		c = x.w.source[wr.src]
	}
	switch {
	case x.m.sc.Torn:
		x.w.pool[page][half] = c
	case x.m.ranks > 1:
		x.w.pool[page][x.m.rank(int(wr.slot))] = c
	default:
		x.w.pool[page] = [2]content{c, c}
	}
	if x.m.has(HabitUnregister) {
		wr.dst = page
	}
	if x.s.say != nil {
		x.note(fmt.Sprintf("page %d of decode holds %s", page, contents(x.w.pool[page])))
	}
	x.checkLanding(wr, page)
}

// target is the page in which a write lands. With keys it is the page of the
// reservation that the key opens now; without, the address that was granted,
// unless the page is sealed. A write beyond what was granted lands nowhere.
func (x *exec) target(wr *write) (page uint8, ok bool) {
	key := x.m.on(handoff.GuardKey)
	if !key && wr.ord >= wr.of {
		return 0, false
	}
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
