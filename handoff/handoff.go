// Package handoff is the protocol by which a prefill worker hands the KV of one
// attempt to a decode worker: two pure machines, their messages, and the guards
// that make the hand-off safe.
//
// What it promises: a machine is a comparable value of fixed size, and
// Step(event) returns the next value and the effects that its driver must
// carry out, in order. Nothing else happens. The same Step runs in the workers
// and under the exhaustive explorer.
//
// The idea is to take away, then check, then read. Decode takes the write key
// of its pages away (seal), compares a digest over all pages that it reserved
// (verify), and only then reads. Everything else keeps requests from failing or
// tells early what would fail late. The rules are cited by number (H-1 to
// H-16; docs/design/rules.md).
//
// What must not come in: clocks, randomness, I/O, goroutines, maps, pages,
// prompts. Observations of memory (digest equal, write completed) arrive as
// events. Reasons are this package's own [Code]; what people read is made from
// them elsewhere.
package handoff

import (
	"encoding/hex"

	"bulkhead.dev/bulkhead/kv"
)

// Attempt names one try at serving a request: 128 random bits, minted by the
// gateway. A retry is a new attempt.
type Attempt [16]byte

// String returns the attempt in hex. It is no secret.
func (a Attempt) String() string { return hex.EncodeToString(a[:]) }

// ID is the identity that every message carries (H-2). Gen is zero before
// decode has reserved.
type ID struct {
	Attempt Attempt
	Gen     kv.Generation
}

// meets reports whether the generations of two identities of one attempt are
// equal, or one of them was not given yet (H-2).
func (id ID) meets(other ID) bool {
	none := ID{}.Gen
	return id.Gen == other.Gen || id.Gen == none || other.Gen == none
}

// View is what one leg believes the attempt to be. Both legs compute theirs
// from the request that they were sent; the hand-off goes on only while the
// two are equal (H-1, H-3).
type View struct {
	Tokens     uint32    // tokens of the prompt
	Pages      uint32    // pages that prefill writes: the prompt's without the prefix
	Prefix     uint32    // tokens that decode holds already, whole pages
	PrefixHash kv.Hash   // names them; zero if there are none
	Input      kv.Hash   // hash of the prompt's token ids
	Layout     uint64    // fingerprint of page layout, model and numeric type
	Domain     kv.Domain // cache domain
}

// Kind is the kind of a message.
type Kind uint8

const (
	NoKind Kind = iota
	Ask         // decode to prefill: will you serve this? (H-1)
	Offer       // prefill to decode: I will, and I see it so
	Refuse      // prefill to decode: I will not
	Grant       // decode to prefill: write here (H-3, H-6)
	Notice      // prefill to decode: this is what I wrote, and all of it has completed (H-7)
	Accept      // decode to prefill: verified
	Abort       // either way: this attempt is over (H-11)
	Seen        // either way: first acknowledgement of Abort: it is remembered
	Quiet       // either way: second: nothing of mine touches its pages any more
	kinds
)

// String names the kind.
func (k Kind) String() string {
	return [kinds]string{"none", "ask", "offer", "refuse", "grant", "notice", "accept", "abort", "seen", "quiet"}[k]
}

// Code is why an attempt ended. The numbers go on the wire: append, never
// reorder.
type Code uint8

const (
	NoCode    Code = iota
	OK             // served
	TooLong        // the prompt exceeds what this worker can take; Limit says what
	BadInput       // the request is not valid for this worker
	Disagree       // the two legs do not see the same request (H-1, H-3)
	Integrity      // the pages do not hold what prefill computed (H-7)
	Cancelled      // the client left, or the gateway gave up
	Deadline       // the leg's time ran out
	Engine         // the engine failed
	PeerGone       // the connection to the other worker closed
	Busy           // no room now
	Duplicate      // the attempt was seen before
	NoRoom         // prompt and output together exceed what decode can hold; Limit says what
	codes
)

// String names the code.
func (c Code) String() string {
	if c >= codes {
		return "unknown"
	}
	return [codes]string{"none", "ok", "too_long", "bad_input", "disagree", "integrity", "cancelled", "deadline", "engine", "peer_gone", "busy", "duplicate", "no_room"}[c]
}

// Valid reports whether c is a code of this version.
func (c Code) Valid() bool { return c < codes }

// Msg is one message of the protocol. Secrets and lists that go with it (write
// key, digest key, digests, MAC, first token) are the transport's to carry; the
// machine does not see them.
type Msg struct {
	Kind  Kind
	Code  Code   // Refuse, Abort
	Limit uint32 // Refuse, Abort with TooLong: tokens that would have been taken
	Room  uint64 // where the two legs met; a label, never an identity (H-2)
	ID    ID
	View  View
}

// Writers is a set of writer ranks of a prefill group, a bit each. It is fixed at
// decode's door, before anything is exposed, and is part of the state from the
// start: unknown is not empty (H-11).
type Writers uint16

// OneWriter is the set of a group of one.
const OneWriter Writers = 1

// MaxWriters bounds the ranks of a group.
const MaxWriters = 16

// Group is the set of a group of n ranks; n is 1 to MaxWriters.
func Group(n int) Writers { return Writers(1<<n - 1) }

// On is what can happen to a machine.
type On uint8

const (
	NoEvent On = iota
	// Messages from the peer, in the order of Kind.
	OnAsk
	OnOffer
	OnRefuse
	OnGrant
	OnNotice
	OnAccept
	OnAbort
	OnSeen
	OnQuiet
	// The leg's request arrived and this worker would serve it / will not. A second
	// leg of an attempt that has one is the driver's to refuse, with Duplicate.
	OnDoor
	OnDoorRefused
	// Answers of the pool, of decode's and of prefill's own.
	OnReserved
	OnReserveFailed
	// Decode: answers of memory and of the engine.
	OnSealed
	OnVerified
	OnMismatch
	OnRevoked
	OnFinished // the engine has read the pages for the last time
	// Prefill: progress of the engine and of the transport.
	OnComputed    // N more pages are complete
	OnFailed      // the engine failed on this attempt
	OnWritten     // N more page writes have completed
	OnWriteFailed // a write ended in an error; that is not completion (H-8)
	// Both.
	OnCancel   // the leg's client left, or its time ran out; Code says which
	OnTick     // time to repeat what is unanswered
	OnPeerGone // the connection is closed at our end and its reader and writer have returned
	events
)

// String names the event.
func (o On) String() string {
	return [events]string{
		"none", "ask", "offer", "refuse", "grant", "notice", "accept", "abort", "seen", "quiet",
		"door", "door-refused", "reserved", "reserve-failed", "sealed", "verified", "mismatch", "revoked", "finished",
		"computed", "failed", "written", "write-failed", "cancel", "tick", "peer-gone",
	}[o]
}

// Message reports whether the event is the arrival of a message.
func (o On) Message() bool { return o >= OnAsk && o <= OnQuiet }

// Event is one thing that happened. Fields beside On are read only where the
// comment names them.
type Event struct {
	On    On
	Msg   Msg           // messages
	ID    ID            // OnDoor, OnDoorRefused: the attempt
	Room  uint64        // OnDoor, OnDoorRefused
	View  View          // OnDoor, OnDoorRefused; OnComputed with Last: what the engine was really given
	Code  Code          // OnDoorRefused, OnReserveFailed, OnFailed, OnCancel
	Limit uint32        // OnDoorRefused with TooLong: tokens
	Gen   kv.Generation // OnReserved at decode
	N     uint32        // OnComputed, OnWritten: pages; at least 1
	Rank  uint8         // messages to decode: the writer that its connection belongs to; below MaxWriters
	Group Writers       // decode, OnDoor, OnDoorRefused: the ranks that will write; 0 means OneWriter
	Last  bool          // OnComputed: the prompt is complete, and View.Tokens and View.Input say which
}

// failure is the code of an attempt that failed. Neither a peer nor a driver can
// make a success of it: what names no failure counts as disagreement (H-14).
func failure(c Code) Code {
	if c == NoCode || c == OK || !c.Valid() {
		return Disagree
	}
	return c
}

// Receive is the event of a message's arrival.
func Receive(m Msg) Event { return Event{On: On(m.Kind), Msg: m} }

// Do is the kind of an effect.
type Do uint8

const (
	Nothing    Do = iota
	DoSend        // send a message of kind Send with Code: see Decode.Message, Prefill.Message
	DoAnswer      // answer the leg's client with Code; OK lets the answer's header leave
	DoReserve     // decode: reserve View.Pages and room for output; reply OnReserved or OnReserveFailed
	DoWithdraw    // decode: forget a DoReserve that was not answered yet
	DoSeal        // decode: revoke the write key for reading; reply OnSealed
	DoVerify      // decode: compare the digests; reply OnVerified or OnMismatch
	DoRead        // decode: let the engine read; reply OnFinished
	DoRevoke      // decode: revoke the write key for freeing; reply OnRevoked
	DoFree        // decode: free the reservation; prefill: free the source pages
	DoStop        // decode: take the attempt out of the engine, its pages are about to be freed
	DoCompute     // prefill: compute into own pages; reply OnComputed ... or OnFailed
	DoPost        // prefill: write N more pages; reply OnWritten ... or OnWriteFailed
	DoHalt        // prefill: compute no further
	DoCut         // close the peer's connection at our end; OnPeerGone follows
	DoDrop        // the message was of another identity: count it
	dos
)

// String names the effect.
func (d Do) String() string {
	return [dos]string{
		"nothing", "send", "answer", "reserve", "withdraw", "seal", "verify", "read", "revoke", "free", "stop",
		"compute", "post", "halt", "cut", "drop",
	}[d]
}

// Effect is one thing that the driver must do.
type Effect struct {
	Do   Do
	Send Kind    // DoSend
	Code Code    // DoSend of Refuse or Abort; DoAnswer
	N    uint32  // DoPost: pages
	To   Writers // DoSend at decode: the writers that it goes to; 0 means all that are expected
}

// MaxEffects bounds the effects of one step.
const MaxEffects = 6

// Effects are what one step asks for, in order. Edge is the row of the
// transition table that was taken, from 1; 0 if the event had no effect in this
// state.
type Effects struct {
	N    uint8
	Edge uint8
	List [MaxEffects]Effect
}

// Slice returns the effects in order.
func (e *Effects) Slice() []Effect { return e.List[:e.N] }

func (e *Effects) add(x Effect) {
	e.List[e.N] = x
	e.N++
}
