// Package record is what is told and remembered of a request: the one event at its end,
// and the record that an operator can ask for. It holds no text of a prompt or an answer.
//
// What must not come in: HTTP, logging, and storage: what is remembered is in memory and
// bounded.
package record

import (
	"strings"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Verdict is the one typed outcome of a request.
type Verdict uint8

const (
	// Undecided is the zero value: the request has not ended. It is in no event.
	Undecided Verdict = iota
	// Served: all legs agreed, and the answer was delivered whole.
	Served
	// Refused: the request was refused, at the gateway or by an engine. No text was sent.
	Refused
	// Void: an answer did not hold (the legs disagreed, or an id, a count, a shape or a
	// lease was wrong). No text was sent.
	Void
	// Failed: an engine or the gateway failed. No text was sent.
	Failed
	// Broken: text was sent, and the answer then ended visibly incomplete.
	Broken
	// Left: the client left, or stopped reading.
	Left
)

// String returns the verdict as the header x-bulkhead-verdict and events show it.
func (v Verdict) String() string {
	names := [...]string{"undecided", "served", "refused", "void", "failed", "broken", "left"}
	if int(v) < len(names) {
		return names[v]
	}
	return "no verdict"
}

// How says how a prompt was counted.
type How uint8

const (
	// NotCounted is the zero value: it did not come to that.
	NotCounted How = iota
	// ByBytes: the bounds that follow from the text's length were enough.
	ByBytes
	// ByEngine: the engine's tokenizer endpoint counted.
	ByEngine
	// ByCounter: the model's own counter did.
	ByCounter
)

// String returns the way as the header x-bulkhead-count shows it.
func (h How) String() string {
	names := [...]string{"", "bytes", "engine", "recall"}
	if int(h) < len(names) {
		return names[h]
	}
	return "unknown"
}

// Source says where a number of answer tokens comes from.
type Source uint8

const (
	// Unreported is the zero value: there is no number.
	Unreported Source = iota
	// Reported: the engine's usage at the end of a complete answer.
	Reported
	// Observed: what had come when the answer ended early.
	Observed
)

// String returns the source's name.
func (s Source) String() string {
	names := [...]string{"unreported", "reported", "observed"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Oddities is a set of things that are not as they should be and do not make an answer
// void. LeaseOver alone is of an attempt that was, and that another may have made good.
type Oddities uint16

const (
	// SurplusBytes: something followed the end mark. The connection was closed.
	SurplusBytes Oddities = 1 << iota
	// UsageMissing: a complete answer came without usage.
	UsageMissing
	// UsageWrong: the usage does not add up, or is more than was asked for.
	UsageWrong
	// UsageTwice: a stream told its usage more than once at its end.
	UsageTwice
	// CachedTooMany: more cached tokens were told than the prompt has.
	CachedTooMany
	// HandleDropped: prefill took over half a lease, and was called once more.
	HandleDropped
	// ExtentUnproved: the layout of a handle is not known, so that its extent could be
	// compared in part only.
	ExtentUnproved
	// TooFast: prefill was faster than its prompt can be computed.
	TooFast
	// LeaseOver: decode's first token did not come within a lease. Its attempt was void.
	LeaseOver
)

// String returns the names of the oddities, parted by commas.
func (o Oddities) String() string {
	names := [...]string{"surplus bytes", "no usage", "wrong usage", "usage twice", "too many cached tokens",
		"handle dropped", "extent unproved", "prefill too fast", "lease over"}
	var all []string
	for i, n := range names {
		if o&(1<<i) != 0 {
			all = append(all, n)
		}
	}
	return strings.Join(all, ", ")
}

// Event says how one request ended. It holds no text of a client or an engine, and
// no key; names in it come from the configuration.
type Event struct {
	// ID is the public id, in the header x-bulkhead-request-id.
	ID string
	// RID and Attempt identify the last attempt towards the engines; empty if there was
	// none. RID is the id of the leg that was relayed. Attempts counts them, over all
	// sequences of the request.
	RID      string
	Attempt  handoff.Attempt
	Attempts int
	// Sequences is how many answers the request asked for.
	Sequences int
	// Tenant, Model and Target are names of the configuration; empty where not known.
	// Target is the node or pair of the last attempt.
	Tenant, Model, Target string
	// Path is one of the completion paths.
	Path string
	// Streaming says how the answer was wanted.
	Streaming upstream.Streaming
	// Verdict is the outcome, Code the error that the client got (empty if none), Status
	// the HTTP status that was sent (0 if none was).
	Verdict Verdict
	Code    fault.Code
	Status  int
	// Agreement is what the comparison of the legs said; Open if it was not reached.
	Agreement upstream.Agreement
	// Prompt and Completion are the tokens that the relayed legs reported, over all
	// sequences; unknown if they did not, or if their numbers do not add up. From says
	// where Completion comes from. A prompt that several sequences share counts once.
	Prompt, Completion admit.Tokens
	From               Source
	// MaxTokens is what each sequence was asked for; 0 if none was.
	MaxTokens int64
	// Count says how the prompt was counted for admission.
	Count How
	// Oddities is what was not as it should be.
	Oddities Oddities
	// Shadowed are the names of fields that passed only because a control is in shadow.
	Shadowed []string
	// BodyBytes is the length of the client's body as far as it was read.
	BodyBytes int64
	// Start is when the request came; FirstByte and Total count from there. FirstByte is
	// 0 if no byte of an answer was sent. Queued is how long the request waited for room.
	Start            time.Time
	FirstByte, Total time.Duration
	Queued           time.Duration
	// Committed is when, from Start, the header of a stream left before its verdict; 0 if it
	// did not. Status is 200 then, whatever became of the request.
	Committed time.Duration
	// Held is how long an answer was kept back after its first piece came from an engine.
	Held time.Duration
	// Lease is what the engine keeps a prefill for, and how much of it had passed when
	// decode's first token came; zero where there is none.
	Lease Lease
	// Late says that the legs' counts were compared at the end only.
	Late bool
	// Probe says that the request was the gateway's own (G-9); what it cost is in Prompt
	// and Completion.
	Probe bool
}

// VerdictOf is the verdict of a request that ended with an error before its first byte.
func VerdictOf(e *fault.Error) Verdict {
	switch {
	case e.Code == fault.UpstreamVoid || e.Code == fault.LegsDisagree || e.Code == fault.Integrity || e.Code == fault.LeaseOver:
		return Void
	case e.Code == fault.Cancelled || e.Status >= 500 && e.Type == fault.Server && !atDoor(e.Code):
		return Failed
	default:
		return Refused
	}
}

// atDoor lists the server errors by which nothing was sent to an engine.
func atDoor(c fault.Code) bool {
	switch c {
	case fault.CountUnavailable, fault.LimitsUnknown, fault.NoPairReady, fault.Overloaded, fault.Busy, fault.QueueTime:
		return true
	}
	return false
}
