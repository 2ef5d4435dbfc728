package handoff

// PrefillPhase is where an attempt stands at prefill.
type PrefillPhase uint8

const (
	// PrefillIdle: nothing is known of the attempt.
	PrefillIdle PrefillPhase = iota
	// PrefillWaiting: the leg is here and would be served; decode has not asked.
	PrefillWaiting
	// PrefillAsked: decode asked; the leg is not here yet.
	PrefillAsked
	// PrefillSourcing: both are here and equal; the pool was asked for source
	// pages. Nothing is offered before they are in hand: an attempt that holds
	// decode's pages never waits for prefill's, so no two can wait for each other.
	PrefillSourcing
	// PrefillOffered: offered, and computing (H-1).
	PrefillOffered
	// PrefillGranted: decode's pages may be written.
	PrefillGranted
	// PrefillNoticed: every write completed, and decode was told (H-7).
	PrefillNoticed
	// PrefillStopping: the attempt is over, writes are outstanding; source pages are held (H-8).
	PrefillStopping
	// PrefillEnded: over. Remembered until the connection closes (H-2, H-10).
	PrefillEnded
	prefillPhases
)

// String names the phase.
func (p PrefillPhase) String() string {
	return [prefillPhases]string{"idle", "waiting", "asked", "sourcing", "offered", "granted", "noticed", "stopping", "ended"}[p]
}

// Prefill is one attempt at a prefill worker. The zero value is idle. It is
// comparable and holds no pages.
type Prefill struct {
	Phase    PrefillPhase
	Result   Code // why it ended
	Held     bool // source pages are held
	Owed     bool // decode waits for our Quiet
	Armed    bool // we aborted, and wait for acknowledgements
	Last     bool // the prompt is computed
	Expect   Writers
	Saw      Writers
	Still    Writers
	Computed uint32 // pages complete in the source
	Posted   uint32 // of these, handed to the transport
	Written  uint32 // of these, completed
	Limit    uint32 // tokens that would have been taken, with TooLong
	Room     uint64
	ID       ID
	View     View
}

// Over reports whether the machine is a tombstone that waits for nothing.
func (m Prefill) Over() bool {
	return m.Phase == PrefillEnded && !m.Held && !m.unacked()
}

// Outstanding is the number of page writes that have not completed.
func (m Prefill) Outstanding() uint32 { return m.Posted - m.Written }

func (m *Prefill) unacked() bool { return m.Armed && m.Still != m.Expect }

// Message fills in the message of a DoSend effect of this step.
func (m Prefill) Message(e Effect) Msg {
	return Msg{Kind: e.Send, Code: e.Code, Limit: m.Limit, Room: m.Room, ID: m.ID, View: m.View}
}

// Step takes one event. See [Decode.Step].
func (m Prefill) Step(ev Event, g Guards) (Prefill, Effects) {
	var fx Effects
	if ev.On.Message() && !m.mine(ev, g) {
		fx.add(Effect{Do: DoDrop})
		return m, fx
	}
	if m.Phase == PrefillEnded && !g.Has(GuardTombstone) && !m.Held &&
		(ev.On == OnDoor || ev.On == OnDoorRefused || ev.On == OnAsk) {
		m = Prefill{}
	}
	if ev.On == OnPeerGone && !g.Has(GuardFence) {
		return m, fx
	}
	for i := range prefillTable {
		r := &prefillTable[i]
		if PrefillPhase(r.from) != m.Phase || r.on != ev.On || !m.holds(r.when, &ev, g) {
			continue
		}
		m.apply(r.set, &ev)
		m.Phase = PrefillPhase(r.to)
		fx.Edge = uint8(i + 1)
		for _, a := range r.do {
			if a.do == Nothing {
				break
			}
			m.effect(a, &fx)
		}
		break
	}
	return m, fx
}

// mine reports whether a message is of this attempt and reservation (H-2).
func (m *Prefill) mine(ev Event, g Guards) bool {
	if m.Phase == PrefillIdle {
		return ev.On == OnAsk || ev.On == OnAbort
	}
	if !g.Has(GuardGeneration) {
		return true
	}
	id, none := ev.Msg.ID, ID{}.Gen
	switch {
	case id.Attempt != m.ID.Attempt, ev.On == OnGrant && id.Gen == none:
		return false
	case ev.On == OnAccept:
		return id.Gen == m.ID.Gen
	}
	return m.ID.meets(id)
}

// effect appends one action of a row.
func (m *Prefill) effect(a action, fx *Effects) {
	e := Effect{Do: a.do, Send: a.send}
	switch a.do {
	case DoCompute:
		m.Held = true
	case DoPost:
		e.N, m.Posted = m.Computed-m.Posted, m.Computed
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
		switch a.send {
		case Abort:
			e.Code, m.Armed = m.Result, true // armed in the step that sends (H-11)
		case Refuse:
			e.Code = m.Result
		case Quiet:
			m.Owed = false
		}
	}
	fx.add(e)
}

func (m *Prefill) holds(c cond, ev *Event, g Guards) bool {
	switch c {
	case always:
		return true
	case askEqual:
		return !g.Has(GuardOffer) || equal(m.View.beside(ev.Msg.View), ev.Msg.View, g)
	case doorEqual:
		return !g.Has(GuardOffer) || equal(ev.View.beside(m.View), m.View, g)
	case grantUnequal:
		return g.Has(GuardOffer) && !equal(m.View, ev.Msg.View, g)
	case nothingComputed:
		return m.Computed == 0
	case lastEarlyUnheld:
		return m.last(ev) && g&(GuardCompletion|GuardSourceHold) == 0
	case lastEarly:
		return m.last(ev) && !g.Has(GuardCompletion)
	case lastUnheld:
		return m.last(ev) && !g.Has(GuardSourceHold)
	case allWritten:
		return m.Last && m.Posted == m.Computed && m.Written+ev.N == m.Computed
	case drained:
		return m.Written+ev.N == m.Posted
	case drainedOwed:
		return m.Written+ev.N == m.Posted && m.Owed
	case idle:
		return m.Written == m.Posted
	case stopOff:
		return !g.Has(GuardStop)
	case quietOff:
		return !g.Has(GuardQuiet)
	case abortOpen:
		return m.unacked() && g.Has(GuardRetry)
	case failed:
		return m.Result != OK
	}
	return false
}

func equal(mine, peer View, g Guards) bool {
	return mine.agrees(peer, GuardExtent|GuardInput|g&GuardDomain)
}

// last reports whether the whole prompt is computed once the event is taken.
func (m *Prefill) last(ev *Event) bool { return m.Last || ev.Last }

func (m *Prefill) apply(s set, ev *Event) {
	switch s {
	case setDoor:
		m.ID.Attempt, m.Room, m.View, m.Expect = ev.ID.Attempt, ev.Room, ev.View.beside(m.View), OneWriter
	case setDoorRefused:
		m.ID.Attempt, m.Room, m.View, m.Expect = ev.ID.Attempt, ev.Room, ev.View, OneWriter
		m.Result, m.Limit = failure(ev.Code), ev.Limit
	case setDoorDisagree:
		m.View, m.Result = ev.View, Disagree
	case setAsk:
		m.View = m.View.beside(ev.Msg.View)
	case setAsker:
		m.ID, m.Room, m.View, m.Expect = ev.Msg.ID, ev.Msg.Room, ev.Msg.View, OneWriter
	case setStranger:
		m.ID, m.Room, m.View, m.Expect = ev.Msg.ID, ev.Msg.Room, ev.Msg.View, OneWriter
		m.Result, m.Limit = failure(ev.Msg.Code), ev.Msg.Limit
	case setMessageCode:
		m.learn(ev)
		m.Result, m.Limit = failure(ev.Msg.Code), ev.Msg.Limit
	case setMessageOwed:
		m.learn(ev)
		m.Result, m.Limit, m.Owed = failure(ev.Msg.Code), ev.Msg.Limit, true
	case setEventCode:
		m.Result, m.Limit = failure(ev.Code), ev.Limit
	case setDisagree:
		m.Result = Disagree
	case setPeerGone:
		m.Result = PeerGone
	case setOK:
		m.Result = OK
	case setGrant:
		m.ID.Gen = ev.Msg.ID.Gen
	case setComputed:
		m.Computed += ev.N
		if ev.Last { // from here on the view says what was done, not what was promised (H-3)
			m.Last = true
			m.View.Tokens, m.View.Input, m.View.Pages = ev.View.Tokens, ev.View.Input, m.Computed
		}
	case setWritten:
		m.Written += ev.N
	case setOwed:
		m.learn(ev)
		m.Owed = true
	case setLearn:
		m.learn(ev)
	case setSaw:
		m.Saw |= OneWriter
	case setStill:
		m.Saw |= OneWriter
		m.Still |= OneWriter
	case setDisarm:
		m.Armed, m.Owed, m.Written = false, false, m.Posted
	case setGone:
		m.Result, m.Armed, m.Owed, m.Written = PeerGone, false, false, m.Posted
	}
}

// learn takes the generation from an abort that overtook the grant, so that the
// acknowledgement names it.
func (m *Prefill) learn(ev *Event) {
	if m.ID.Gen == (ID{}).Gen {
		m.ID.Gen = ev.Msg.ID.Gen
	}
}
