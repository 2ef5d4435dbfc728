package gateway

import "bulkhead.dev/bulkhead/internal/record"

// Events takes what happens. A call must not block, and it may come from any goroutine.
type Events interface {
	// Request is called once for each request to a completion path, when it has ended.
	Request(RequestEvent)
}

// What is told and remembered of requests.
type (
	// RequestEvent says how one request ended.
	RequestEvent = record.Event
	// Record is what is remembered of a request.
	Record = record.Entry
	// LegRecord is one call to an engine.
	LegRecord = record.Leg
	// Verdict is the one typed outcome of a request.
	Verdict = record.Verdict
	// ShadowCount is one kind of use that passed only because a control is in shadow.
	ShadowCount = record.ShadowCount
)

// Served is the verdict of an answer that was delivered whole.
const Served = record.Served

// Values of the verdict header when an answer begins. How a stream will end is not known
// then.
const (
	agreed = "agreed" // two legs agree
	late   = "late"   // two legs, and decode's count is compared at the end only
	lone   = "sound"  // one leg, and nothing to compare it with
	// undecided: the header left before the verdict, which follows as a comment.
	undecided = "held"
)
