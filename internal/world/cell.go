package world

import (
	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// pageTokens is the page size of every World.
const pageTokens = 16

// tooLong is the limit that a door states.
const tooLong = 16

// cell is a machine, packed. A machine of a World takes its attempt, room, view
// and generation from a small vocabulary; a value outside of it is a fault of
// this package and panics, so that packing never loses anything.
type cell struct {
	phase, result, flags    uint8
	expect, saw, still      uint8
	heard                   uint8 // decode
	limit                   uint8
	attempt, room           uint8 // attempt from 1; 0 is none
	epoch, counter          uint8
	computed, posted, wrote uint8
	view                    viewCode
}

const (
	flagHeld = 1 << iota
	flagOwed
	flagArmed
	flagLive // decode
	flagLast // prefill
)

// viewCode is a handoff.View of the vocabulary; 0 is the zero view.
type viewCode uint16

// viewOf makes a code. tokens, pages and prefix are in pages.
func viewOf(prompt uint8, stub bool, tokens, pages, prefix, domain uint8) viewCode {
	c := viewCode(1) | viewCode(prompt)<<1 | viewCode(tokens)<<4 | viewCode(pages)<<6 | viewCode(prefix)<<8 | viewCode(domain)<<10
	if stub {
		c |= 1 << 3
	}
	return c
}

func (c viewCode) stub() bool   { return c>>3&1 != 0 }
func (c viewCode) pages() uint8 { return uint8(c >> 6 & 3) }

// view is the inverse of pack.
func (c viewCode) view() (v handoff.View) {
	if c == 0 {
		return v
	}
	v.Tokens, v.Pages, v.Prefix = uint32(c>>4&3)*pageTokens, uint32(c>>6&3), uint32(c>>8&3)*pageTokens
	v.Input[0], v.Input[1] = 1+byte(c>>1&3), byte(c>>3&1)
	v.Domain[0], v.Layout = byte(c>>10&3), 1
	if v.Prefix > 0 {
		v.PrefixHash[0] = 1
	}
	return v
}

// packView is the code of a view of the vocabulary.
func packView(v *handoff.View) viewCode {
	if *v == (handoff.View{}) {
		return 0
	}
	c := viewOf(v.Input[0]-1, v.Input[1] == 1, uint8(v.Tokens/pageTokens), uint8(v.Pages), uint8(v.Prefix/pageTokens), v.Domain[0])
	if c.view() != *v {
		panic("world: a view outside the vocabulary")
	}
	return c
}

func attemptID(n uint8) (a handoff.Attempt) {
	a[0] = n
	return a
}

func generation(epoch, counter uint8) kv.Generation {
	return kv.Generation{Epoch: uint64(epoch), Counter: uint64(counter)}
}

func bit(f uint8, on bool) uint8 {
	if on {
		return f
	}
	return 0
}

func (c *cell) decode() handoff.Decode {
	return handoff.Decode{
		Phase: handoff.DecodePhase(c.phase), Result: handoff.Code(c.result),
		Held: c.flags&flagHeld != 0, Owed: c.flags&flagOwed != 0, Armed: c.flags&flagArmed != 0, Live: c.flags&flagLive != 0,
		Expect: handoff.Writers(c.expect), Saw: handoff.Writers(c.saw), Still: handoff.Writers(c.still), Heard: handoff.Writers(c.heard),
		Limit: uint32(c.limit), Room: uint64(c.room), View: c.view.view(),
		ID: handoff.ID{Attempt: attemptID(c.attempt), Gen: generation(c.epoch, c.counter)},
	}
}

func packDecode(m *handoff.Decode) cell {
	return cell{
		phase: uint8(m.Phase), result: uint8(m.Result),
		flags:  bit(flagHeld, m.Held) | bit(flagOwed, m.Owed) | bit(flagArmed, m.Armed) | bit(flagLive, m.Live),
		expect: uint8(m.Expect), saw: uint8(m.Saw), still: uint8(m.Still), heard: uint8(m.Heard),
		limit: uint8(m.Limit), attempt: m.ID.Attempt[0], room: uint8(m.Room), view: packView(&m.View),
		epoch: uint8(m.ID.Gen.Epoch), counter: uint8(m.ID.Gen.Counter),
	}
}

func (c *cell) prefill() handoff.Prefill {
	return handoff.Prefill{
		Phase: handoff.PrefillPhase(c.phase), Result: handoff.Code(c.result),
		Held: c.flags&flagHeld != 0, Owed: c.flags&flagOwed != 0, Armed: c.flags&flagArmed != 0, Last: c.flags&flagLast != 0,
		Expect: handoff.Writers(c.expect), Saw: handoff.Writers(c.saw), Still: handoff.Writers(c.still),
		Computed: uint32(c.computed), Posted: uint32(c.posted), Written: uint32(c.wrote),
		Limit: uint32(c.limit), Room: uint64(c.room), View: c.view.view(),
		ID: handoff.ID{Attempt: attemptID(c.attempt), Gen: generation(c.epoch, c.counter)},
	}
}

func packPrefill(m *handoff.Prefill) cell {
	return cell{
		phase: uint8(m.Phase), result: uint8(m.Result),
		flags:  bit(flagHeld, m.Held) | bit(flagOwed, m.Owed) | bit(flagArmed, m.Armed) | bit(flagLast, m.Last),
		expect: uint8(m.Expect), saw: uint8(m.Saw), still: uint8(m.Still),
		limit: uint8(m.Limit), attempt: m.ID.Attempt[0], room: uint8(m.Room), view: packView(&m.View),
		epoch: uint8(m.ID.Gen.Epoch), counter: uint8(m.ID.Gen.Counter),
		computed: uint8(m.Computed), posted: uint8(m.Posted), wrote: uint8(m.Written),
	}
}

// message is a control message under way, packed so that a bag of them sorts.
// Zero is none.
type message uint64

// letter is a message, unpacked.
type letter struct {
	kind    handoff.Kind
	to      Role
	slot    uint8 // ghost: the attempt whose machine sent it
	rank    uint8 // of the prefill rank that it comes from, or goes to
	attempt uint8 // as the message says, from 1
	room    uint8
	epoch   uint8
	counter uint8
	code    handoff.Code
	limit   uint8
	conn    uint8
	res     uint8            // ghost, Grant
	pages   [MaxExtent]uint8 // Grant; unused with keys
	view    viewCode
}

// Widths of a letter's fields, from the most significant.
const (
	bitsKind    = 4
	bitsTo      = 1
	bitsSlot    = 2
	bitsRank    = 1
	bitsAttempt = 2
	bitsRoom    = 3
	bitsEpoch   = 3
	bitsCounter = 4
	bitsCode    = 4
	bitsLimit   = 1
	bitsConn    = 3
	bitsRes     = 3
	bitsPage    = 2
	bitsView    = 12
)

func (l *letter) pack() message {
	var m message
	put := func(v uint64, bits uint) {
		if v>>bits != 0 {
			panic("world: a message outside the vocabulary")
		}
		m = m<<bits | message(v)
	}
	put(uint64(l.kind), bitsKind)
	put(uint64(l.slot), bitsSlot)
	put(uint64(l.rank), bitsRank)
	put(uint64(l.to), bitsTo)
	put(uint64(l.attempt), bitsAttempt)
	put(uint64(l.room), bitsRoom)
	put(uint64(l.epoch), bitsEpoch)
	put(uint64(l.counter), bitsCounter)
	put(uint64(l.code), bitsCode)
	put(uint64(l.limit/tooLong), bitsLimit)
	put(uint64(l.conn), bitsConn)
	put(uint64(l.res), bitsRes)
	for _, p := range l.pages {
		put(uint64(p), bitsPage)
	}
	put(uint64(l.view), bitsView)
	return m
}

func (m message) unpack() (l letter) {
	take := func(bits uint) uint8 {
		v := uint8(m & (1<<bits - 1))
		m >>= bits
		return v
	}
	l.view = viewCode(m & (1<<bitsView - 1))
	m >>= bitsView
	for i := MaxExtent - 1; i >= 0; i-- {
		l.pages[i] = take(bitsPage)
	}
	l.res = take(bitsRes)
	l.conn = take(bitsConn)
	l.limit = take(bitsLimit) * tooLong
	l.code = handoff.Code(take(bitsCode))
	l.counter = take(bitsCounter)
	l.epoch = take(bitsEpoch)
	l.room = take(bitsRoom)
	l.attempt = take(bitsAttempt)
	l.to = Role(take(bitsTo))
	l.rank = take(bitsRank)
	l.slot = take(bitsSlot)
	l.kind = handoff.Kind(take(bitsKind))
	return l
}

// msg is what the machine sees of a letter.
func (l *letter) msg() handoff.Msg {
	return handoff.Msg{
		Kind: l.kind, Code: l.code, Limit: uint32(l.limit), Room: uint64(l.room), View: l.view.view(),
		ID: handoff.ID{Attempt: attemptID(l.attempt), Gen: generation(l.epoch, l.counter)},
	}
}
