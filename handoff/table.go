package handoff

// cond names a condition of a row; the machines evaluate it.
type cond uint8

const (
	always cond = iota
	offerOff
	headerOff
	offerEqual
	noticeSeal
	noticeDigest
	noticeEqual
	digestOn
	keyLive
	quietOwed
	abortOpen
	failed
	askEqual
	doorEqual
	grantUnequal
	nothingComputed
	lastEarlyUnheld
	lastEarly
	lastUnheld
	allWritten
	drained
	drainedOwed
	idle
	stopOff
	quietOff
	offerMore
	noticeMore
	conds
)

// String says the condition in words.
func (c cond) String() string {
	return [conds]string{
		"", "offer guard off", "header guard off", "offer equals own view", "notice equals grant, seal on",
		"notice equals grant, digest on", "notice equals grant", "digest on", "write key live", "quiet owed",
		"abort unacknowledged", "ended in failure", "ask equals own view", "leg equals ask", "grant differs from own view", "nothing computed",
		"all computed, completion and source-hold guards off", "all computed, completion guard off",
		"all computed, source-hold guard off", "all written", "last outstanding write", "last outstanding write, quiet owed",
		"nothing outstanding", "stop guard off", "quiet guard off",
		"offer equals own view, other writers to come", "notice equals grant, other writers to come",
	}[c]
}

// set names how a row changes the machine's fields.
type set uint8

const (
	keep set = iota
	setDoor
	setDoorRefused
	setDoorDisagree
	setAsk
	setAsker
	setStranger
	setMessageCode
	setMessageOwed
	setEventCode
	setDisagree
	setIntegrity
	setPeerGone
	setOK
	setReserved
	setSealed
	setSealedOK
	setGrant
	setComputed
	setWritten
	setOwed
	setLearn
	setSaw
	setStill
	setDisarm
	setGone
	setHeard
	setAlone
	setAloneOwed
)

// action is one effect of a row. code, if set, is answered in place of the
// machine's result.
type action struct {
	do   Do
	send Kind
	code Code
	to   uint8
}

func send(k Kind) action { return action{do: DoSend, send: k} }

// reply answers the writer that the event came from, and nobody else.
func reply(k Kind) action { return action{do: DoSend, send: k, to: toSender} }

// rest tells the other writers of the group, if there are any.
func rest(k Kind) action { return action{do: DoSend, send: k, to: toOthers} }

// Whom a message goes to.
const (
	toAll    uint8 = iota // every writer that is expected
	toSender              // the one that spoke
	toOthers              // all but the one that spoke
)

// row is one edge: in phase from, on an event, when the condition holds, change
// the fields, go to phase to, and ask for the actions. The first row that fits
// is taken; an event without a row has no effect.
type row struct {
	from uint8
	on   On
	when cond
	to   uint8
	set  set
	do   [MaxEffects]action
}

func d(from DecodePhase, on On, when cond, to DecodePhase, s set, do ...action) row {
	r := row{from: uint8(from), on: on, when: when, to: uint8(to), set: s}
	copy(r.do[:], do)
	return r
}

func p(from PrefillPhase, on On, when cond, to PrefillPhase, s set, do ...action) row {
	r := row{from: uint8(from), on: on, when: when, to: uint8(to), set: s}
	copy(r.do[:], do)
	return r
}

// Actions without parameters.
var (
	answer   = action{do: DoAnswer}
	reserve  = action{do: DoReserve}
	withdraw = action{do: DoWithdraw}
	seal     = action{do: DoSeal}
	verify   = action{do: DoVerify}
	read     = action{do: DoRead}
	revoke   = action{do: DoRevoke}
	free     = action{do: DoFree}
	stop     = action{do: DoStop}
	compute  = action{do: DoCompute}
	post     = action{do: DoPost}
	halt     = action{do: DoHalt}
	cut      = action{do: DoCut}
	answerOK = action{do: DoAnswer, code: OK}
)

// decodeTable is decode's whole behaviour.
var decodeTable = [...]row{
	d(DecodeIdle, OnDoor, always, DecodeAsked, setDoor, send(Ask)),
	d(DecodeIdle, OnDoorRefused, always, DecodeEnded, setDoorRefused, send(Abort), answer),
	d(DecodeIdle, OnAbort, always, DecodeEnded, setStranger, reply(Seen), reply(Quiet)),

	d(DecodeAsked, OnOffer, offerOff, DecodeReserving, keep, reserve),
	d(DecodeAsked, OnOffer, offerMore, DecodeAsked, setHeard),
	d(DecodeAsked, OnOffer, offerEqual, DecodeReserving, keep, reserve),
	d(DecodeAsked, OnOffer, always, DecodeEnded, setDisagree, send(Abort), answer),
	d(DecodeAsked, OnRefuse, offerOff, DecodeReserving, keep, reserve),
	d(DecodeAsked, OnRefuse, always, DecodeEnded, setAlone, rest(Abort), answer),
	d(DecodeAsked, OnAbort, always, DecodeEnded, setAlone, reply(Seen), reply(Quiet), rest(Abort), answer),
	d(DecodeAsked, OnCancel, always, DecodeEnded, setEventCode, send(Abort), answer),
	d(DecodeAsked, OnPeerGone, always, DecodeEnded, setPeerGone, answer),

	d(DecodeReserving, OnReserved, headerOff, DecodeGranted, setReserved, send(Grant), answerOK),
	d(DecodeReserving, OnReserved, always, DecodeGranted, setReserved, send(Grant)),
	d(DecodeReserving, OnReserveFailed, always, DecodeEnded, setEventCode, send(Abort), answer),
	d(DecodeReserving, OnAbort, always, DecodeEnded, setAlone, withdraw, reply(Seen), reply(Quiet), rest(Abort), answer),
	d(DecodeReserving, OnCancel, always, DecodeEnded, setEventCode, withdraw, send(Abort), answer),
	d(DecodeReserving, OnPeerGone, always, DecodeEnded, setPeerGone, withdraw, answer),

	d(DecodeGranted, OnNotice, noticeMore, DecodeGranted, setHeard),
	d(DecodeGranted, OnNotice, noticeSeal, DecodeSealing, keep, seal),
	d(DecodeGranted, OnNotice, noticeDigest, DecodeVerifying, keep, verify),
	d(DecodeGranted, OnNotice, noticeEqual, DecodeReading, setOK, send(Accept), answer, read),
	d(DecodeGranted, OnNotice, keyLive, DecodeRevoking, setDisagree, revoke, send(Abort), answer),
	d(DecodeGranted, OnNotice, always, DecodeEnded, setDisagree, free, send(Abort), answer),
	d(DecodeGranted, OnAbort, keyLive, DecodeRevoking, setAloneOwed, revoke, reply(Seen), rest(Abort), answer),
	d(DecodeGranted, OnAbort, always, DecodeEnded, setAlone, free, reply(Seen), reply(Quiet), rest(Abort), answer),
	d(DecodeGranted, OnCancel, keyLive, DecodeRevoking, setEventCode, revoke, send(Abort), answer),
	d(DecodeGranted, OnCancel, always, DecodeEnded, setEventCode, free, send(Abort), answer),
	d(DecodeGranted, OnPeerGone, keyLive, DecodeRevoking, setPeerGone, revoke, answer),
	d(DecodeGranted, OnPeerGone, always, DecodeEnded, setPeerGone, free, answer),

	d(DecodeSealing, OnSealed, digestOn, DecodeVerifying, setSealed, verify),
	d(DecodeSealing, OnSealed, always, DecodeReading, setSealedOK, send(Accept), answer, read),
	d(DecodeSealing, OnAbort, always, DecodeRevoking, setAloneOwed, reply(Seen), rest(Abort), answer),
	d(DecodeSealing, OnCancel, always, DecodeRevoking, setEventCode, send(Abort), answer),
	d(DecodeSealing, OnPeerGone, always, DecodeRevoking, setPeerGone, answer),

	d(DecodeVerifying, OnVerified, always, DecodeReading, setOK, send(Accept), answer, read),
	d(DecodeVerifying, OnMismatch, keyLive, DecodeRevoking, setIntegrity, revoke, send(Abort), answer),
	d(DecodeVerifying, OnMismatch, always, DecodeEnded, setIntegrity, free, send(Abort), answer),
	d(DecodeVerifying, OnAbort, keyLive, DecodeRevoking, setAloneOwed, revoke, reply(Seen), rest(Abort), answer),
	d(DecodeVerifying, OnAbort, always, DecodeEnded, setAlone, free, reply(Seen), reply(Quiet), rest(Abort), answer),
	d(DecodeVerifying, OnCancel, keyLive, DecodeRevoking, setEventCode, revoke, send(Abort), answer),
	d(DecodeVerifying, OnCancel, always, DecodeEnded, setEventCode, free, send(Abort), answer),
	d(DecodeVerifying, OnPeerGone, keyLive, DecodeRevoking, setPeerGone, revoke, answer),
	d(DecodeVerifying, OnPeerGone, always, DecodeEnded, setPeerGone, free, answer),

	d(DecodeReading, OnFinished, keyLive, DecodeRevoking, keep, revoke),
	d(DecodeReading, OnFinished, always, DecodeEnded, keep, free),
	d(DecodeReading, OnCancel, keyLive, DecodeRevoking, setEventCode, stop, revoke, answer),
	d(DecodeReading, OnCancel, always, DecodeEnded, setEventCode, stop, free, answer),
	d(DecodeReading, OnAbort, always, DecodeReading, keep, reply(Seen), reply(Quiet)),

	d(DecodeRevoking, OnSealed, quietOwed, DecodeEnded, setSealed, free, send(Quiet)),
	d(DecodeRevoking, OnSealed, always, DecodeEnded, setSealed, free),
	d(DecodeRevoking, OnRevoked, quietOwed, DecodeEnded, setSealed, free, send(Quiet)),
	d(DecodeRevoking, OnRevoked, always, DecodeEnded, setSealed, free),
	d(DecodeRevoking, OnAbort, always, DecodeRevoking, setOwed, reply(Seen)),
	d(DecodeRevoking, OnSeen, always, DecodeRevoking, setSaw),
	d(DecodeRevoking, OnQuiet, always, DecodeRevoking, setStill),
	d(DecodeRevoking, OnTick, abortOpen, DecodeRevoking, keep, send(Abort)),
	d(DecodeRevoking, OnPeerGone, always, DecodeRevoking, setDisarm),

	d(DecodeEnded, OnAbort, always, DecodeEnded, keep, reply(Seen), reply(Quiet)),
	d(DecodeEnded, OnSeen, always, DecodeEnded, setSaw),
	d(DecodeEnded, OnQuiet, always, DecodeEnded, setStill),
	d(DecodeEnded, OnTick, abortOpen, DecodeEnded, keep, send(Abort)),
	d(DecodeEnded, OnOffer, failed, DecodeEnded, keep, reply(Abort)),
	d(DecodeEnded, OnNotice, failed, DecodeEnded, keep, reply(Abort)),
	d(DecodeEnded, OnDoor, failed, DecodeEnded, keep, answer),
	d(DecodeEnded, OnDoorRefused, failed, DecodeEnded, keep, answer),
	d(DecodeEnded, OnPeerGone, always, DecodeEnded, setDisarm),
}

// prefillTable is prefill's whole behaviour.
var prefillTable = [...]row{
	p(PrefillIdle, OnDoor, always, PrefillWaiting, setDoor),
	p(PrefillIdle, OnDoorRefused, always, PrefillEnded, setDoorRefused, answer),
	p(PrefillIdle, OnAsk, always, PrefillAsked, setAsker),
	p(PrefillIdle, OnAbort, always, PrefillEnded, setStranger, send(Seen), send(Quiet)),

	p(PrefillWaiting, OnAsk, askEqual, PrefillSourcing, setAsk, reserve),
	p(PrefillWaiting, OnAsk, always, PrefillEnded, setDisagree, send(Refuse), answer),
	p(PrefillWaiting, OnAbort, always, PrefillEnded, setMessageCode, send(Seen), send(Quiet), answer),
	p(PrefillWaiting, OnCancel, always, PrefillEnded, setEventCode, answer),

	p(PrefillAsked, OnDoor, doorEqual, PrefillSourcing, setDoor, reserve),
	p(PrefillAsked, OnDoor, always, PrefillEnded, setDoorDisagree, send(Refuse), answer),
	p(PrefillAsked, OnDoorRefused, always, PrefillEnded, setDoorRefused, send(Refuse), answer),
	p(PrefillAsked, OnAbort, always, PrefillEnded, setMessageCode, send(Seen), send(Quiet)),
	p(PrefillAsked, OnPeerGone, always, PrefillEnded, setPeerGone),

	p(PrefillSourcing, OnReserved, always, PrefillOffered, keep, send(Offer), compute),
	p(PrefillSourcing, OnReserveFailed, always, PrefillEnded, setEventCode, send(Refuse), answer),
	p(PrefillSourcing, OnAbort, always, PrefillEnded, setMessageCode, withdraw, send(Seen), send(Quiet), answer),
	p(PrefillSourcing, OnCancel, always, PrefillEnded, setEventCode, withdraw, send(Refuse), answer),
	p(PrefillSourcing, OnPeerGone, always, PrefillEnded, setPeerGone, withdraw, answer),

	p(PrefillOffered, OnComputed, always, PrefillOffered, setComputed),
	p(PrefillOffered, OnGrant, grantUnequal, PrefillEnded, setDisagree, halt, free, send(Abort), answer),
	p(PrefillOffered, OnGrant, nothingComputed, PrefillGranted, setGrant),
	p(PrefillOffered, OnGrant, lastEarlyUnheld, PrefillNoticed, setGrant, post, send(Notice), free),
	p(PrefillOffered, OnGrant, lastEarly, PrefillNoticed, setGrant, post, send(Notice)),
	p(PrefillOffered, OnGrant, lastUnheld, PrefillGranted, setGrant, post, free),
	p(PrefillOffered, OnGrant, always, PrefillGranted, setGrant, post),
	p(PrefillOffered, OnFailed, always, PrefillEnded, setEventCode, halt, free, send(Abort), answer),
	p(PrefillOffered, OnCancel, always, PrefillEnded, setEventCode, halt, free, send(Abort), answer),
	p(PrefillOffered, OnAbort, always, PrefillEnded, setMessageCode, halt, free, send(Seen), send(Quiet), answer),
	p(PrefillOffered, OnPeerGone, always, PrefillEnded, setPeerGone, halt, free, answer),

	p(PrefillGranted, OnComputed, lastEarlyUnheld, PrefillNoticed, setComputed, post, send(Notice), free),
	p(PrefillGranted, OnComputed, lastEarly, PrefillNoticed, setComputed, post, send(Notice)),
	p(PrefillGranted, OnComputed, lastUnheld, PrefillGranted, setComputed, post, free),
	p(PrefillGranted, OnComputed, always, PrefillGranted, setComputed, post),
	p(PrefillGranted, OnWritten, allWritten, PrefillNoticed, setWritten, send(Notice), free),
	p(PrefillGranted, OnWritten, always, PrefillGranted, setWritten),
	p(PrefillGranted, OnWriteFailed, always, PrefillStopping, setPeerGone, halt, cut, answer),
	p(PrefillGranted, OnFailed, idle, PrefillEnded, setEventCode, halt, free, send(Abort), answer),
	p(PrefillGranted, OnFailed, always, PrefillStopping, setEventCode, halt, send(Abort), answer),
	p(PrefillGranted, OnCancel, idle, PrefillEnded, setEventCode, halt, free, send(Abort), answer),
	p(PrefillGranted, OnCancel, always, PrefillStopping, setEventCode, halt, send(Abort), answer),
	p(PrefillGranted, OnAbort, stopOff, PrefillGranted, setLearn, send(Seen), send(Quiet)),
	p(PrefillGranted, OnAbort, idle, PrefillEnded, setMessageCode, halt, free, send(Seen), send(Quiet), answer),
	p(PrefillGranted, OnAbort, quietOff, PrefillStopping, setMessageCode, halt, send(Seen), send(Quiet), answer),
	p(PrefillGranted, OnAbort, always, PrefillStopping, setMessageOwed, halt, send(Seen), answer),
	p(PrefillGranted, OnPeerGone, always, PrefillEnded, setGone, halt, free, answer),

	p(PrefillNoticed, OnAccept, always, PrefillEnded, setOK, answer),
	p(PrefillNoticed, OnWritten, drained, PrefillNoticed, setWritten, free),
	p(PrefillNoticed, OnWritten, always, PrefillNoticed, setWritten),
	p(PrefillNoticed, OnWriteFailed, always, PrefillStopping, setPeerGone, cut, answer),
	p(PrefillNoticed, OnAbort, idle, PrefillEnded, setMessageCode, free, send(Seen), send(Quiet), answer),
	p(PrefillNoticed, OnAbort, always, PrefillStopping, setMessageOwed, send(Seen), answer),
	p(PrefillNoticed, OnCancel, idle, PrefillEnded, setEventCode, free, send(Abort), answer),
	p(PrefillNoticed, OnCancel, always, PrefillStopping, setEventCode, send(Abort), answer),
	p(PrefillNoticed, OnPeerGone, always, PrefillEnded, setGone, free, answer),

	p(PrefillStopping, OnWritten, drainedOwed, PrefillEnded, setWritten, free, send(Quiet)),
	p(PrefillStopping, OnWritten, drained, PrefillEnded, setWritten, free),
	p(PrefillStopping, OnWritten, always, PrefillStopping, setWritten),
	p(PrefillStopping, OnWriteFailed, always, PrefillStopping, keep, cut),
	p(PrefillStopping, OnAbort, always, PrefillStopping, setOwed, send(Seen)),
	p(PrefillStopping, OnSeen, always, PrefillStopping, setSaw),
	p(PrefillStopping, OnQuiet, always, PrefillStopping, setStill),
	p(PrefillStopping, OnTick, abortOpen, PrefillStopping, keep, send(Abort)),
	p(PrefillStopping, OnPeerGone, always, PrefillEnded, setDisarm, free),

	p(PrefillEnded, OnAsk, failed, PrefillEnded, keep, send(Refuse)),
	p(PrefillEnded, OnGrant, failed, PrefillEnded, keep, send(Abort)),
	p(PrefillEnded, OnDoor, failed, PrefillEnded, keep, answer),
	p(PrefillEnded, OnDoorRefused, failed, PrefillEnded, keep, answer),
	p(PrefillEnded, OnAbort, always, PrefillEnded, setLearn, send(Seen), send(Quiet)),
	p(PrefillEnded, OnWritten, drained, PrefillEnded, setWritten, free),
	p(PrefillEnded, OnWritten, always, PrefillEnded, setWritten),
	p(PrefillEnded, OnSeen, always, PrefillEnded, setSaw),
	p(PrefillEnded, OnQuiet, always, PrefillEnded, setStill),
	p(PrefillEnded, OnTick, abortOpen, PrefillEnded, keep, send(Abort)),
	p(PrefillEnded, OnPeerGone, always, PrefillEnded, setDisarm, free),
}

// Transition is one edge of a machine, for documents and coverage.
type Transition struct {
	Role string // "prefill" or "decode"
	Edge int    // as in Effects.Edge
	From string
	On   On
	When string
	To   string
	Do   []string
}

// Transitions returns every edge of both machines, in order.
func Transitions() []Transition {
	var all []Transition
	for i, r := range decodeTable {
		all = append(all, r.describe("decode", i, DecodePhase(r.from).String(), DecodePhase(r.to).String()))
	}
	for i, r := range prefillTable {
		all = append(all, r.describe("prefill", i, PrefillPhase(r.from).String(), PrefillPhase(r.to).String()))
	}
	return all
}

func (r row) describe(role string, i int, from, to string) Transition {
	t := Transition{Role: role, Edge: i + 1, From: from, On: r.on, When: r.when.String(), To: to}
	for _, a := range r.do {
		switch {
		case a.do == Nothing:
		case a.do == DoSend:
			t.Do = append(t.Do, "send "+a.send.String()+[...]string{"", " to the writer", " to the other writers"}[a.to])
		default:
			t.Do = append(t.Do, a.do.String())
		}
	}
	return t
}
