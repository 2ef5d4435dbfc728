package handoff

// DecodePhase is where an attempt stands at decode.
type DecodePhase uint8

const (
	// DecodeIdle: nothing is known of the attempt.
	DecodeIdle DecodePhase = iota
	// DecodeAsked: the leg is here and prefill was asked; nothing is reserved (H-1).
	DecodeAsked
	// DecodeReserving: the offer was equal; the pool was asked for pages.
	DecodeReserving
	// DecodeGranted: prefill may write. Pages are Reserved.
	DecodeGranted
	// DecodeSealing: the notice was equal; the write key is being taken away (H-5).
	DecodeSealing
	// DecodeVerifying: nothing lands any more; digests are being compared (H-7).
	DecodeVerifying
	// DecodeReading: proved; the engine reads.
	DecodeReading
	// DecodeRevoking: the attempt failed; its pages wait until the write key is gone (H-9).
	DecodeRevoking
	// DecodeEnded: over. Pages are free. Remembered until the connection closes (H-2, H-10).
	DecodeEnded
	decodePhases
)

// String names the phase.
func (p DecodePhase) String() string {
	return [decodePhases]string{"idle", "asked", "reserving", "granted", "sealing", "verifying", "reading", "revoking", "ended"}[p]
}

// Decode is one attempt at a decode worker. The zero value is idle. It is
// comparable and holds no pages: those live in the pool under ID.Gen.
type Decode struct {
	Phase  DecodePhase
	Result Code // why it ended, or OK once it reads
	Live   bool // a write key is open
	Held   bool // pages are reserved
	Owed   bool // prefill waits for our Quiet
	Armed  bool // we aborted, and wait for acknowledgements
	Expect Writers
	Saw    Writers // writers that said Seen, or ended the attempt themselves
	Still  Writers // writers that said Quiet, or ended the attempt themselves
	Heard  Writers // writers that offered; from the grant on, that said what they wrote
	Limit  uint32  // tokens that would have been taken, with TooLong
	Room   uint64
	ID     ID
	View   View
}

// Over reports whether the machine is a tombstone that waits for nothing.
func (m Decode) Over() bool {
	return m.Phase == DecodeEnded && !m.Held && !m.unacked()
}

func (m *Decode) unacked() bool { return m.Armed && m.Still != m.Expect }

// Message fills in the message of a DoSend effect of this step.
func (m Decode) Message(e Effect) Msg {
	return Msg{Kind: e.Send, Code: e.Code, Limit: m.Limit, Room: m.Room, ID: m.ID, View: m.View}
}

// Step takes one event. An event that means nothing in this phase, or a
// message of another identity, leaves the machine as it was (H-2, H-10).
func (m Decode) Step(ev Event, g Guards) (Decode, Effects) {
	var fx Effects
	if ev.On.Message() && !m.mine(ev, g) {
		fx.add(Effect{Do: DoDrop})
		return m, fx
	}
	if ev.On.Message() && m.Phase != DecodeIdle && m.sender(&ev)&^m.Expect != 0 &&
		(m.Phase != DecodeEnded || ev.On != OnAbort) { // a tombstone answers whoever aborts
		fx.add(Effect{Do: DoDrop}) // of a writer that is not of the group
		return m, fx
	}
	if m.Phase == DecodeEnded && !g.Has(GuardTombstone) && (ev.On == OnDoor || ev.On == OnDoorRefused) {
		m = Decode{}
	}
	if ev.On == OnPeerGone && !g.Has(GuardFence) {
		return m, fx
	}
	for i := range decodeTable {
		r := &decodeTable[i]
		if DecodePhase(r.from) != m.Phase || r.on != ev.On || !m.holds(r.when, &ev, g) {
			continue
		}
		m.apply(r.set, &ev)
		m.Phase = DecodePhase(r.to)
		fx.Edge = uint8(i + 1)
		for _, a := range r.do {
			if a.do == Nothing {
				break
			}
			m.effect(a, &ev, &fx)
		}
		break
	}
	return m, fx
}

// mine reports whether a message is of this attempt and reservation (H-2).
func (m *Decode) mine(ev Event, g Guards) bool {
	if m.Phase == DecodeIdle {
		return ev.On == OnAbort
	}
	if !g.Has(GuardGeneration) {
		return true
	}
	id := ev.Msg.ID
	if id.Attempt != m.ID.Attempt {
		return false
	}
	if ev.On == OnNotice {
		return id.Gen == m.ID.Gen
	}
	return m.ID.meets(id)
}

// effect appends one action of a row.
func (m *Decode) effect(a action, ev *Event, fx *Effects) {
	e := Effect{Do: a.do, Send: a.send}
	switch a.do {
	case DoFree:
		if !m.Held {
			return
		}
		m.Held = false
	case DoAnswer:
		e.Code = m.Result
		if a.code != NoCode {
			e.Code = a.code
		}
	case DoSend:
		if e.To = m.to(a, ev); e.To == 0 {
			return
		}
		switch a.send {
		case Abort:
			e.Code, m.Armed = m.Result, true // armed in the step that sends (H-11)
		case Quiet:
			m.Owed = false
		}
		if e.To == m.Expect {
			e.To = 0
		}
	}
	fx.add(e)
}

// to is the set of writers that a message goes to.
func (m *Decode) to(a action, ev *Event) Writers {
	switch {
	case a.to == toSender:
		return m.sender(ev)
	case a.to == toOthers:
		return m.Expect &^ m.sender(ev)
	case ev.On == OnTick:
		return m.Expect &^ m.Still
	}
	return m.Expect
}

// sender is the writer that a message came from.
func (m *Decode) sender(ev *Event) Writers { return 1 << (ev.Rank % MaxWriters) }

func (m *Decode) holds(c cond, ev *Event, g Guards) bool {
	switch c {
	case always:
		return true
	case offerOff:
		return !g.Has(GuardOffer)
	case headerOff:
		return !g.Has(GuardHeader)
	case offerMore:
		return g.Has(GuardWriters) && m.Heard|m.sender(ev) != m.Expect &&
			(!g.Has(GuardOffer) || m.View.agrees(ev.Msg.View, GuardExtent|GuardInput|g&GuardDomain))
	case noticeMore:
		return g.Has(GuardWriters) && m.Heard|m.sender(ev) != m.Expect && m.notice(ev, g)
	case offerEqual:
		return m.View.agrees(ev.Msg.View, GuardExtent|GuardInput|g&GuardDomain)
	case noticeSeal:
		return m.notice(ev, g) && g.Has(GuardSeal)
	case noticeDigest:
		return m.notice(ev, g) && g.Has(GuardDigest)
	case noticeEqual:
		return m.notice(ev, g)
	case digestOn:
		return g.Has(GuardDigest)
	case keyLive:
		return m.Live && g.Has(GuardKey)
	case quietOwed:
		return m.Owed
	case abortOpen:
		return m.unacked() && g.Has(GuardRetry)
	case failed:
		return m.Result != OK
	}
	return false
}

// notice reports whether the notice covers exactly what was granted (H-3).
func (m *Decode) notice(ev *Event, g Guards) bool {
	return m.View.agrees(ev.Msg.View, g&(GuardExtent|GuardInput|GuardDomain))
}

func (m *Decode) apply(s set, ev *Event) {
	switch s {
	case setDoor:
		m.ID, m.Room, m.View, m.Expect = ev.ID, ev.Room, ev.View, max(ev.Group, OneWriter)
	case setDoorRefused:
		m.ID, m.Room, m.View, m.Expect = ev.ID, ev.Room, ev.View, max(ev.Group, OneWriter)
		m.Result, m.Limit = failure(ev.Code), ev.Limit
	case setStranger:
		m.ID, m.Room, m.View, m.Expect = ev.Msg.ID, ev.Msg.Room, ev.Msg.View, m.sender(ev)
		m.Result, m.Limit = failure(ev.Msg.Code), ev.Msg.Limit
	case setAlone: // one writer ended it, and needs no abort from us; the others will be told
		m.Result, m.Limit = failure(ev.Msg.Code), ev.Msg.Limit
		m.Saw, m.Still = m.Saw|m.sender(ev), m.Still|m.sender(ev)
	case setAloneOwed:
		m.Result, m.Limit, m.Owed = failure(ev.Msg.Code), ev.Msg.Limit, true
		m.Saw, m.Still = m.Saw|m.sender(ev), m.Still|m.sender(ev)
	case setHeard:
		m.Heard |= m.sender(ev)
	case setEventCode:
		m.Result, m.Limit = failure(ev.Code), ev.Limit
	case setDisagree:
		m.Result = Disagree
	case setIntegrity:
		m.Result = Integrity
	case setPeerGone:
		m.Result = PeerGone
	case setOK:
		m.Result = OK
	case setReserved:
		m.ID.Gen, m.Held, m.Live, m.Heard = ev.Gen, true, true, 0
	case setSealed:
		m.Live = false
	case setSealedOK:
		m.Live, m.Result = false, OK
	case setOwed:
		m.Owed = true
	case setSaw:
		m.Saw |= m.sender(ev)
	case setStill:
		m.Saw |= m.sender(ev)
		m.Still |= m.sender(ev)
	case setDisarm:
		m.Armed, m.Owed = false, false
	}
}
