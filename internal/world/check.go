package world

import "bulkhead.dev/bulkhead/handoff"

// Check is one named way in which an invariant is held. The explorer, scripts, the
// simulator and the fuzzer hold all of them, in [Model.Apply] and [Model.CheckRest]; what a
// trace of running workers can show of them, [Trace.Check] holds.
type Check struct {
	Name      string // of the way, for ever
	Invariant Invariant
	Sentence  string // what happened, if it breaks
	Trace     bool   // held against traces of running workers, too
}

// Checks returns every check, in the order of the invariants.
func Checks() []Check {
	var all []Check
	for i := V1; i < invariants; i++ {
		for y := whyNone + 1; y < whys; y++ {
			if y.invariant() == i {
				all = append(all, Check{Name: wayNames[y], Invariant: i, Sentence: y.say(), Trace: traceable(y)})
			}
		}
	}
	return all
}

// wayNames name the ways to break an invariant.
var wayNames = [whys]string{
	whyElder: "elder-read", whyForeign: "foreign-read", whyStub: "placeholder-read", whyOther: "wrong-page-read",
	whyLate: "late-landing", whyFree: "landing-in-free", whyStray: "landing-in-foreign", whyOpen: "freed-open", whyKey: "key-unknown",
	whySourceFreed: "source-freed", whySourceRewritten: "source-rewritten", whyReading: "freed-while-read", whyComputing: "freed-while-computed",
	whyEvicted: "evicted-while-held", whyTwice: "answered-twice", whyNobody: "answered-nobody", whyAfter: "given-after-end",
	whyRefused: "given-though-refused", whyDisagree: "given-though-unequal", whyDiffer: "verdicts-differ", whyAttempt: "other-attempt",
	whyClosed: "closed-connection", whyConnection: "other-connection", whyForged: "forged-message", whyAlone: "one-rank-alone",
	whySplit: "ranks-split", whyOutstanding: "quiet-with-writes", whyPosted: "write-after-quiet", whyClock: "freed-on-a-clock",
	whyForever: "no-rest", whyDeaf: "deaf-to-cancel", whyForgotten: "forgotten-early", whyUnended: "unended", whyUnacknowledged: "unacknowledged",
	whyUnanswered: "unanswered", whyPages: "pages-not-free", whyNoCode: "no-verdict", whyUnproved: "ok-before-proof", whyFalse: "ok-taken-back",
	whyAccept: "ok-without-accept", whyDomain: "foreign-domain", whyNotServed: "not-served", whyServed: "served-wrongly",
}

func traceable(y why) bool {
	switch y {
	case whyOpen, whyTwice, whyAfter, whyOutstanding, whyPosted, whyNoCode, whyUnproved, whyAlone:
		return true
	}
	return false
}

// hold holds what a step of a trace can show of the invariants.
func (m *traced) hold(role Role, e Entry) why {
	switch e.Event.On {
	case handoff.OnDoor, handoff.OnDoorRefused:
		m.legs++
	}
	for _, x := range e.Effects.Slice() {
		switch {
		case x.Do == handoff.DoAnswer && x.Code == handoff.NoCode:
			return whyNoCode
		case x.Do == handoff.DoAnswer && x.Code == handoff.OK && (role == Decode && m.decode.Phase != handoff.DecodeReading ||
			role == Prefill && m.prefill.Phase != handoff.PrefillEnded):
			return whyUnproved
		case x.Do == handoff.DoAnswer && m.legs == 0 && !m.served:
			return whyTwice
		case x.Do == handoff.DoAnswer:
			// An OK at decode may be broken off, once and visibly (H-14).
			m.served = x.Code == handoff.OK && role == Decode
			m.legs = max(0, m.legs-1)
		case x.Do == handoff.DoSend && x.Send == handoff.Quiet && role == Prefill:
			if m.quiet = true; m.prefill.Outstanding() > 0 {
				return whyOutstanding
			}
		case x.Do == handoff.DoPost && m.quiet:
			return whyPosted
		case x.Do == handoff.DoFree && role == Decode && m.decode.Live:
			return whyOpen
		case x.Do == handoff.DoSeal && m.decode.Heard|1<<(e.Event.Rank%handoff.MaxWriters) != m.decode.Expect:
			return whyAlone
		case (x.Do == handoff.DoReserve || x.Do == handoff.DoPost) && m.over:
			return whyAfter
		}
	}
	m.over = m.over || role == Decode && m.decode.Phase == handoff.DecodeEnded || role == Prefill && m.prefill.Phase == handoff.PrefillEnded
	return whyNone
}
