package world

import "bulkhead.dev/bulkhead/handoff"

// Invariant is one of the statements that hold after every step.
type Invariant uint8

// The numbers are the design's.
const (
	NoInvariant Invariant = iota
	V1
	V2
	V3
	V4
	V5
	V6
	V7
	V8
	V9
	V10
	Rest   // named: it has no number
	Served // the positive control: without it, a World that does nothing would pass
	invariants
)

// Invariants returns all, in order.
func Invariants() []Invariant {
	var all []Invariant
	for i := V1; i < invariants; i++ {
		all = append(all, i)
	}
	return all
}

// String is the invariant's number.
func (i Invariant) String() string {
	return [invariants]string{"none", "V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "V10", "rest", "served"}[i]
}

// Sentence states the invariant.
func (i Invariant) Sentence() string {
	return [invariants]string{
		"",
		"a cell is read only if it holds what this attempt's own prompt computes to, or it is a cached prefix of the same domain",
		"no write lands after its lease: from the grant until the pages are sealed, revoked, checked or read",
		"no page is freed or rewritten while somebody may still read it: a source page by a write, a proved page by decode",
		"one verdict a leg, decided once; an attempt that a door refused, or that is over, is given nothing",
		"a message acts only on the attempt and the connection that it was meant for",
		"all ranks of a group take the same step: decode goes on only on the word of each, and they end alike",
		"quiet means quiet: whoever said so has no write outstanding, posts none and opens no page; nothing is freed on a clock",
		"waiting ends: at rest every attempt is over, answered and acknowledged",
		"honest status: no OK before its proof, and none that turns out to be false",
		"no cell of one cache domain is read in another",
		"at rest every page of both pools is free, or cached and held by nobody",
		"without a fault, every valid attempt is served and every other one refused on both legs with one code",
	}[i]
}

// Violation is a broken invariant.
type Violation struct {
	Invariant Invariant
	Attempt   uint8 // from 1; 0: no attempt in particular
	why       why
}

// String says what happened, without the invariant's number.
func (v Violation) String() string {
	if v.Invariant == NoInvariant {
		return "nothing"
	}
	s := v.why.say()
	if v.Attempt != 0 {
		s = attemptName(int(v.Attempt)-1) + ": " + s
	}
	return s
}

// why is one way to break an invariant.
type why uint8

const (
	whyNone why = iota
	whyElder
	whyForeign
	whyStub
	whyOther
	whyLate
	whyFree
	whyStray
	whyOpen
	whyKey
	whySourceFreed
	whySourceRewritten
	whyReading
	whyComputing
	whyTwice
	whyNobody
	whyAfter
	whyRefused
	whyDisagree
	whyDiffer
	whyAttempt
	whyClosed
	whyConnection
	whyOutstanding
	whyPosted
	whyForever
	whyDeaf
	whyForgotten
	whyUnended
	whyUnacknowledged
	whyUnanswered
	whyPages
	whyNoCode
	whyUnproved
	whyFalse
	whyAccept
	whyDomain
	whyAlone
	whySplit
	whyForged
	whyClock
	whyEvicted
	whyNotServed
	whyServed
	whys
)

// ways says which invariant each way breaks, and how.
var ways = [whys]struct {
	invariant Invariant
	say       string
}{
	whyElder:           {V1, "decode read KV of an earlier tenant"},
	whyForeign:         {V1, "decode read KV of another attempt"},
	whyStub:            {V1, "decode read KV of a placeholder"},
	whyOther:           {V1, "decode read one of its own pages in another's place"},
	whyLate:            {V2, "a write landed in pages that are being checked or read"},
	whyFree:            {V2, "a write landed in a page that is free"},
	whyStray:           {V2, "a write landed in a page of another reservation"},
	whyOpen:            {V2, "pages were freed while their write key was live"},
	whyKey:             {V2, "the machine is wrong about the write key"},
	whySourceFreed:     {V3, "source pages were freed while a write may still read them"},
	whySourceRewritten: {V3, "a source page was rewritten while a write may still read it"},
	whyReading:         {V3, "pages were freed while decode's engine reads them"},
	whyComputing:       {V3, "source pages were freed while prefill's engine computes into them"},
	whyTwice:           {V4, "a leg was answered twice"},
	whyNobody:          {V4, "an answer for a leg that never came"},
	whyAfter:           {V4, "the attempt is over, and was given pages or posted writes"},
	whyRefused:         {V4, "a door refused the attempt, and it has pages"},
	whyDisagree:        {V4, "the legs do not see the same request, and it has pages"},
	whyDiffer:          {V4, "the two legs of a refused attempt gave different codes"},
	whyAttempt:         {V5, "a message of another attempt was acted on"},
	whyClosed:          {V5, "a message of a closed connection was acted on"},
	whyConnection:      {V5, "a message of another connection was acted on"},
	whyOutstanding:     {V7, "Quiet was sent with a write outstanding"},
	whyPosted:          {V7, "a write was posted after Quiet"},
	whyForever:         {V8, "things go round in a circle and never come to rest"},
	whyDeaf:            {V8, "a leg was cancelled and goes on"},
	whyForgotten:       {V8, "an attempt was forgotten with work to do or pages held"},
	whyUnended:         {V8, "at rest the attempt is not over"},
	whyUnacknowledged:  {V8, "at rest an abort is not acknowledged"},
	whyUnanswered:      {V8, "at rest a leg has no answer"},
	whyPages:           {Rest, "at rest pages are not free"},
	whyNoCode:          {V9, "an answer without a verdict"},
	whyUnproved:        {V9, "an OK left before the pages were proved"},
	whyFalse:           {V9, "an OK was taken back for a failed proof"},
	whyAccept:          {V9, "prefill answered OK for what decode had not accepted"},
	whyAlone:           {V6, "decode went on, and a rank of the group had not said what it wrote"},
	whySplit:           {V6, "the ranks of a group ended differently, and nothing had gone wrong"},
	whyForged:          {V5, "a forged message was acted on"},
	whyClock:           {V7, "pages were freed on a clock, and a writer had not said that it is quiet"},
	whyEvicted:         {V3, "a cached page was evicted while an attempt holds it"},
	whyDomain:          {V10, "a page of another domain was read as a prefix"},
	whyNotServed:       {Served, "a valid attempt was not served, and nothing had gone wrong"},
	whyServed:          {Served, "an attempt that a worker refused or could not compute was served"},
}

func (y why) invariant() Invariant { return ways[y].invariant }

func (y why) say() string { return ways[y].say }

// breaks records a violation; the first of a step counts.
func (x *exec) breaks(y why, attempt int) {
	if only := x.s.Only; x.s.Broken.Invariant == NoInvariant && (only == NoInvariant || only == y.invariant()) {
		x.s.Broken = Violation{Invariant: y.invariant(), Attempt: uint8(attempt + 1), why: y}
	}
}

// checkRead holds V1 and V10 against one decode step of an attempt. What counts
// is the bytes, as it does for the digest: a retry may find its predecessor's KV
// of the very same prompt in its pages, and read it.
func (x *exec) checkRead(a int) {
	s, at := &x.w.dec[a], &x.m.sc.Attempts[a]
	if s.pin {
		if x.w.cache.is && x.w.cache.domain != at.Domain {
			x.breaks(whyDomain, a)
		}
		x.checkPage(a, s.prefix, 0)
	}
	_, pages := x.m.asked(a)
	first := pages - s.n // pages of the prefix
	for i := range s.n {
		x.checkPage(a, s.pages[i], int(first+i))
	}
}

// checkPage holds V1 against one page that decode reads.
func (x *exec) checkPage(a int, page uint8, ord int) {
	want := x.m.wantedValue(a, ord)
	for _, c := range x.w.pool[page] {
		switch {
		case x.m.value(c) == want:
		case c == elder:
			x.breaks(whyElder, a)
		case c.stub():
			x.breaks(whyStub, a)
		case c.by() != a:
			x.breaks(whyForeign, a)
		default:
			x.breaks(whyOther, a)
		}
	}
}

// checkLanding holds V2 against a write that has just placed bytes in a page.
func (x *exec) checkLanding(wr *write, page uint8) {
	for a := range x.m.n {
		s := &x.w.dec[a]
		for _, p := range s.pages[:s.n] {
			switch {
			case p != page:
			case s.res != wr.res:
				x.breaks(whyStray, x.m.owner(int(wr.slot)))
				return
			case !s.lease:
				x.breaks(whyLate, x.m.owner(int(wr.slot)))
				return
			default:
				return
			}
		}
	}
	x.breaks(whyFree, x.m.owner(int(wr.slot)))
}

// checkSource holds V3: nobody may still read the source page.
func (x *exec) checkSource(page uint8, y why) {
	for i := range x.w.writes {
		wr := &x.w.writes[i]
		if wr.used && !wr.captured && wr.src == page {
			x.breaks(y, x.m.owner(int(wr.slot)))
		}
	}
}

// checkQuiet holds V7 when prefill says Quiet.
func (x *exec) checkQuiet(side int) {
	for i := range x.w.writes {
		wr := &x.w.writes[i]
		if wr.used && !wr.done && int(wr.slot) == side {
			x.breaks(whyOutstanding, x.m.owner(side))
		}
	}
}

// CheckRest holds what must be true when nothing can happen any more: V8, that every
// page is free, and without a spent fault also V4's one code, V6's one end and the
// positive control. It reports whether every valid attempt was served.
func (m *Model) CheckRest(w *World, s *Step) (served bool) {
	x := exec{m: m, w: w, s: s}
	calm := w.left == m.sc.Budget
	served = true
	for a := range m.n {
		d := &w.dec[a]
		if dm := d.cell.decode(); dm.Phase != handoff.DecodeIdle {
			x.ended(a, dm.Phase == handoff.DecodeEnded, dm.Over())
		}
		if d.leg.is <= legWaiting && m.sc.Attempts[a].Decode != Absent {
			x.breaks(whyUnanswered, a)
		}
		both := d.leg.is == legServed
		for side := m.side(a, 0); side < m.side(a+1, 0); side++ {
			both = x.restOfSide(side, calm) && both
		}
		if m.valid(a) {
			served = served && both
			if calm && !both && !m.sc.scarce {
				x.breaks(whyNotServed, a)
			}
		} else if d.leg.is == legServed {
			x.breaks(whyServed, a)
		}
	}
	cached := uint8(0)
	if w.cache.is {
		cached = 1
	}
	if w.free.n+cached != m.sc.DecodePages || w.sfree.n != m.sc.SourcePages || w.pins() > 0 {
		x.breaks(whyPages, -1)
	}
	return served
}

// restOfSide holds what must be true of one side of prefill at rest, and reports
// whether its leg was served.
func (x *exec) restOfSide(side int, calm bool) (served bool) {
	p, a := &x.w.pre[side], x.m.owner(side)
	if pm := p.cell.prefill(); pm.Phase != handoff.PrefillIdle {
		x.ended(a, pm.Phase == handoff.PrefillEnded, pm.Over())
	}
	absent := x.m.sc.Attempts[a].Prefill == Absent
	if p.leg.is <= legWaiting && !absent {
		x.breaks(whyUnanswered, a)
	}
	served = p.leg.is == legServed
	if calm && served != (x.w.pre[x.m.side(a, 0)].leg.is == legServed) {
		x.breaks(whySplit, a)
	}
	if !x.m.valid(a) {
		if served {
			x.breaks(whyServed, a)
		}
		d := x.w.dec[a].leg
		if calm && !absent && x.m.sc.Attempts[a].Decode != Absent && d.code != p.leg.code {
			x.breaks(whyDiffer, a)
		}
	}
	return served
}

// ended holds that a machine is over at rest and waits for nothing.
func (x *exec) ended(a int, is, over bool) {
	switch {
	case !is:
		x.breaks(whyUnended, a)
	case !over:
		x.breaks(whyUnacknowledged, a)
	}
}
