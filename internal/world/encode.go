package world

import (
	"encoding/binary"
	"slices"

	"bulkhead.dev/bulkhead/handoff"
)

// naming renames pages. No page is special: what counts is who holds which, and
// in which order the free ones will be taken. So pages are numbered in the order
// free list, then attempts; Worlds that differ in names alone become equal.
type naming struct {
	pool, source [MaxPages]uint8
}

func (m *Model) name(w *World) (n naming) {
	var at, sat uint8
	for i := range w.free.n {
		n.pool[w.free.list[i]] = at
		at++
	}
	for i := range w.sfree.n {
		n.source[w.sfree.list[i]] = sat
		sat++
	}
	if w.cache.is {
		n.pool[w.cache.page] = at
		at++
	}
	for a := range m.n {
		d := &w.dec[a]
		for i := range d.n {
			n.pool[d.pages[i]] = at
			at++
		}
	}
	for side := range m.sides {
		p := &w.pre[side]
		for i := range p.n {
			n.source[p.pages[i]] = sat
			sat++
		}
	}
	return n
}

// encode appends the one encoding of w and of every World that differs from it
// only in the names of pages, slots of writes, and what is in source pages that nothing
// was computed into.
func (m *Model) encode(w *World, b []byte) []byte {
	n := m.name(w)
	for a := range m.n {
		b = w.dec[a].encode(b, n.pool[w.dec[a].prefix])
	}
	for side := range m.sides {
		b = w.pre[side].encode(b, m.destinations(w, &n, side))
	}
	b = m.encodeMessages(w, &n, b)
	b = m.encodeWrites(w, &n, b)
	var pool [MaxPages][2]content
	var source [MaxPages]content
	for p := range m.sc.DecodePages {
		pool[n.pool[p]] = w.pool[p]
	}
	if m.on(handoff.GuardSourceHold) && m.sc.Habits&(HabitLease|HabitHandle) == 0 {
		for side := range m.sides { // what is in a page that was not computed into is seen by nobody
			s := &w.pre[side]
			for _, p := range s.pages[:s.made] {
				source[n.source[p]] = w.source[p]
			}
		}
	} else {
		for p := range m.sc.SourcePages {
			source[n.source[p]] = w.source[p]
		}
	}
	for p := range m.sc.DecodePages {
		b = append(b, byte(pool[p][0]), byte(pool[p][1]))
	}
	for p := range m.sc.SourcePages {
		b = append(b, byte(source[p]))
	}
	b = append(b, bit(1, w.cache.is)|w.cache.domain<<1|w.cache.prompt<<3)
	b = append(b, w.free.n, w.sfree.n, w.cur, w.broken, w.shut[0], w.shut[1], w.epoch, w.counter, w.proved)
	return append(b, w.left[:]...)
}

// destinations are the pages that a grant named. With keys it names none.
func (m *Model) destinations(w *World, n *naming, side int) (dst [MaxExtent]uint8) {
	if s := &w.pre[side]; s.res != 0 && !m.on(handoff.GuardKey) {
		for i, p := range s.dst[:s.granted] {
			dst[i] = n.pool[p]
		}
	}
	return dst
}

func (c *cell) encode(b []byte) []byte {
	return append(b, c.phase, c.result, c.flags, c.expect, c.saw, c.still, c.heard, c.limit, c.attempt, c.room, c.epoch, c.counter,
		c.computed, c.posted, c.wrote, byte(c.view), byte(c.view>>8))
}

func (s *decodeSide) encode(b []byte, prefix uint8) []byte {
	b = s.cell.encode(b)
	return append(b, byte(s.leg.is), byte(s.leg.code), s.conn, byte(s.pend), s.res, s.epoch, s.counter, s.n,
		s.listed[0], s.author[0], s.listed[1], s.author[1], s.told, s.reads,
		bit(1, s.open)|bit(2, s.sealed)|bit(4, s.lease)|bit(8, s.pin)|bit(16, s.stub[0])|bit(32, s.over)|bit(64, s.here)|bit(128, s.stub[1]),
		bit(1, s.deferred)|bit(2, s.pin)*(1+prefix))
}

func (s *prefillSide) encode(b []byte, dst [MaxExtent]uint8) []byte {
	b = s.cell.encode(b)
	return append(b, byte(s.leg.is), byte(s.leg.code), s.conn, byte(s.work), s.n, s.made, s.res, s.granted,
		dst[0], dst[1], dst[2], bit(1, s.over)|bit(2, s.quiet)|bit(4, s.refused)|bit(8, s.here))
}

// encodeMessages appends the bag. Without keys a grant names pages.
func (m *Model) encodeMessages(w *World, n *naming, b []byte) []byte {
	msgs := w.msgs
	if !m.on(handoff.GuardKey) {
		count := 0
		for ; count < maxMessages && msgs[count] != 0; count++ {
			l := msgs[count].unpack()
			if l.kind != handoff.Grant {
				continue
			}
			pages := l.pages
			l.pages = [MaxExtent]uint8{}
			for i := range l.view.pages() {
				l.pages[i] = n.pool[pages[i]]
			}
			msgs[count] = l.pack()
		}
		slices.Sort(msgs[:count])
	}
	for _, msg := range msgs {
		b = binary.LittleEndian.AppendUint64(b, uint64(msg))
	}
	return b
}

// encodeWrites appends the writes, sorted.
func (m *Model) encodeWrites(w *World, n *naming, b []byte) []byte {
	var all [maxWrites]uint64
	for i := range w.writes {
		wr := &w.writes[i]
		if !wr.used {
			continue
		}
		src, dst := uint8(0), uint8(0)
		if !wr.captured {
			src = n.source[wr.src]
		}
		if !m.on(handoff.GuardKey) && wr.ord < wr.of || m.has(HabitUnregister) && wr.landed == 1 {
			dst = n.pool[wr.dst]
		}
		v := uint64(1)
		for _, f := range [...]uint8{wr.slot, wr.ord, wr.of, src, dst, wr.epoch, wr.counter, wr.res, wr.conn, wr.landed} {
			v = v<<4 | uint64(f)
		}
		v = v<<3 | uint64(bit(1, wr.done)|bit(2, wr.captured)|bit(4, wr.failed))
		all[i] = v<<8 | uint64(wr.payload)
	}
	for i := 1; i < len(all); i++ { // few, mostly none
		for j := i; j > 0 && all[j] < all[j-1]; j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
	for _, v := range all {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}
