package gateway

import (
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Events takes what happens. A call must not block, and it may come from any goroutine.
type Events interface {
	// Request is called once for each request to a completion path, when it has ended.
	Request(RequestEvent)
}

// Verdict is the one typed outcome of a request.
type Verdict uint8

const (
	// Undecided is the zero value: the request has not ended. It is in no event.
	Undecided Verdict = iota
	// Served: both legs agreed, and the answer was delivered whole.
	Served
	// Refused: the request was refused, at the gateway or by a worker. No text was sent.
	Refused
	// Void: an answer did not hold (the legs disagreed, or an id, a count or a shape was
	// wrong). No text was sent.
	Void
	// Failed: a worker or the gateway failed. No text was sent.
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

// agreed is the header's value when a stream begins: the legs agree, and how it will end
// is not known yet.
const agreed = "agreed"

// RequestEvent says how one request ended. It holds no text of a client or a worker, and
// no key; names in it come from the configuration.
type RequestEvent struct {
	// ID is the public id, in the header x-bulkhead-request-id.
	ID string
	// RID and Attempt identify the last attempt towards the workers; empty if there was
	// none. Attempts counts them.
	RID      string
	Attempt  handoff.Attempt
	Attempts int
	// Tenant, Model and Pair are names of the configuration; empty where not known.
	Tenant, Model, Pair string
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
	// Prompt and Completion are the tokens that decode reported; unknown if it did not,
	// or if its numbers do not add up.
	Prompt, Completion admit.Tokens
	// MaxTokens is what decode was asked for; 0 if it was not asked.
	MaxTokens int64
	// BodyBytes is the length of the client's body as far as it was read.
	BodyBytes int64
	// Start is when the request came; FirstByte and Total count from there. FirstByte is
	// 0 if no byte of an answer was sent.
	Start            time.Time
	FirstByte, Total time.Duration
}

// verdictOf is the verdict of a request that ended with an error before its first byte.
func verdictOf(e *fault.Error) Verdict {
	switch {
	case e.Code == fault.UpstreamVoid || e.Code == fault.LegsDisagree || e.Code == fault.Integrity:
		return Void
	case e.Code == fault.Cancelled || e.Status >= 500 && e.Type == fault.Server && !atDoor(e.Code):
		return Failed
	default:
		return Refused
	}
}

// atDoor lists the server errors by which nothing was sent to a worker.
func atDoor(c fault.Code) bool {
	switch c {
	case fault.CountUnavailable, fault.LimitsUnknown, fault.NoPairReady, fault.Overloaded, fault.Busy:
		return true
	}
	return false
}
