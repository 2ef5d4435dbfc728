package worker

import "bulkhead.dev/bulkhead/handoff"

// EventKind is the kind of an event for people and metrics.
type EventKind uint8

const (
	// AttemptEnded: an attempt was answered for the last time.
	AttemptEnded EventKind = iota
	// MessageDropped: a message was of an identity that is not known here (H-2).
	MessageDropped
	// LinkUp, LinkDown: a link to a peer opened, closed.
	LinkUp
	LinkDown
	// PassRefused: a leg came without a valid authorisation (H-16).
	PassRefused
	// TombstonesFull: a connection was closed because it left too many
	// attempts to remember (H-2).
	TombstonesFull
	// QuarantineFull: a connection was closed because it owed too many proofs
	// of quiet (H-9).
	QuarantineFull
	// PageRefused: a peer did not let a page land; its attempt is over there.
	PageRefused
	eventKinds
)

// String names the kind.
func (k EventKind) String() string {
	return [eventKinds]string{
		"attempt_ended", "message_dropped", "link_up", "link_down", "pass_refused", "tombstones_full", "quarantine_full", "page_refused",
	}[k]
}

// Event is something worth counting. It holds no text of a request.
type Event struct {
	Kind    EventKind
	Attempt handoff.Attempt
	Code    handoff.Code // AttemptEnded
	Prompt  int          // AttemptEnded: tokens
	Cached  int          // AttemptEnded at decode: of these, tokens that it held already (H-12)
	Output  int          // AttemptEnded: tokens
	Pages   int          // QuarantineFull: pages that the connection owed
	Peer    string       // LinkUp, LinkDown, TombstonesFull, QuarantineFull: its name
	Reason  string       // LinkDown: one of the transport's reasons
}

// Events takes events. It is called from the owner loop and must not block.
type Events interface {
	Event(Event)
}

type nowhere struct{}

func (nowhere) Event(Event) {}
