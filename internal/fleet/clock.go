package fleet

import "time"

// Clock is where time comes from. A reading carries the machine's monotonic clock, if
// it has one.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in its own goroutine once d has passed, as time.AfterFunc does.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is what AfterFunc returns; *time.Timer is one.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// SystemClock is the clock of the machine.
type SystemClock struct{}

// Now returns the present.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc calls f once d has passed.
func (SystemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
