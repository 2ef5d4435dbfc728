package gateway

import (
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// minCommit is the shortest time after which a header may leave before the verdict: an
// engine that is not loaded answers within it, with a status that still can tell.
const minCommit = time.Second

// commitLater lets the header of a stream leave before the verdict, if the verdict takes
// longer than the model's hold.commit_after, counted from admission (G-3). The time of a
// count does not count, so that a prompt that is too long has its status (G-2). What leaves
// is status 200 and comments, which are no part of an answer: an engine that goes away may
// still be replaced (G-6), and no answer leaves before its verdict. A whole answer has no
// place for comments and is never committed early.
func (o *outlet) commitLater() {
	x := o.x
	every := x.model.Hold.CommitAfter
	if every == 0 || x.req.Streaming != upstream.Streamed || x.event.Probe {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep = x.g.clock.AfterFunc(every, func() { o.comment(every) })
}

// pause keeps the header from leaving until resume, behind which its time counts anew. If it
// has left, nothing changes.
func (o *outlet) pause() {
	if o.keep == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.committed == 0 {
		o.paused = true
		o.keep.Stop()
	}
}

// resume ends a pause.
func (o *outlet) resume() {
	if o.keep == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paused {
		o.paused = false
		o.keep.Reset(o.x.model.Hold.CommitAfter)
	}
}

// comment sends a comment, the first time behind the header, and sees to the next one.
func (o *outlet) comment(every time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sent || o.hushed || o.paused {
		return
	}
	x := o.x
	o.writeDeadline()
	if o.committed == 0 {
		o.committed = max(1, x.g.clock.Now().Sub(x.event.Start))
		o.header("text/event-stream", undecided)
	}
	o.put(commentOf(undecided))
	if o.left {
		x.cancel(errLeft)
		return
	}
	o.keep.Reset(every)
}

// commentOf is a word as a comment of a stream.
func commentOf(word string) []byte { return []byte(": " + word + "\n\n") }

// hush ends the comments and returns when the header left before the verdict; 0 if it did
// not.
func (o *outlet) hush() time.Duration {
	if o.keep == nil {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hushed = true
	o.keep.Stop()
	return o.committed
}

// refuseLate tells of a refusal behind a header that left before the verdict. The status
// cannot any more, so an error event does, and then the connection is cut (G-5, H-14).
func (x *exchange) refuseLate(e *fault.Error) {
	o := &x.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writeDeadline()
	o.put(upstream.AppendEvent(commentOf(x.event.Verdict.String()), e.WithID(x.event.ID).Body()))
}
