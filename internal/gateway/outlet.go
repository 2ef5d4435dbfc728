package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/record"
)

// errLeft says that the client does not take its stream.
var errLeft = errors.New("gateway: the client left")

// overBudget says that what waits to be sent takes more than a byte budget has.
type overBudget struct{ fault *fault.Error }

// Error says so.
func (*overBudget) Error() string { return "gateway: the byte budgets are used up" }

// outlet is the way to the client. Sequences that run at the same time share it: nothing
// leaves before all of them have agreed (G-3).
type outlet struct {
	x  *exchange
	rc *http.ResponseController

	mu sync.Mutex
	// closed counts the sequences that have not agreed yet, of n.
	closed, n int
	// held is what sequences that have agreed wait to send.
	held []byte
	// sent says that the first byte of an answer was sent, left that the client takes no
	// more.
	sent, left bool
	// keep sends the header and comments before the verdict; nil if nothing may leave before
	// it. hushed ends that, and paused stops it for a while. committed is when the header left
	// before the verdict, from the start of the request; 0 if it did not.
	keep           Timer
	hushed, paused bool
	committed      time.Duration
	// deadline is when the last write deadline was set.
	deadline time.Time
	// verdict is what the header says when an answer begins.
	verdict string
}

// prepare closes the outlet for n sequences. What an earlier round held is dropped.
func (o *outlet) prepare(n int, verdict string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.n, o.held, o.verdict = n, n, nil, verdict
}

// begun says whether the client has had the first byte of an answer.
func (o *outlet) begun() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent
}

// gone says whether the client stopped reading.
func (o *outlet) gone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.left
}

// release says that one sequence has agreed, and hands in what it held. With the last
// one everything leaves.
func (o *outlet) release(p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed--
	return o.pass(p)
}

// room is how many bytes of one sequence may be held before the verdict.
func (x *exchange) room() int {
	if n := x.model.Hold.Bytes; n > 0 {
		return n
	}
	return x.g.bounds.Held
}

// write sends a part of a stream of a sequence that has agreed.
func (o *outlet) write(p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pass(p)
}

// pass sends or holds p. The lock is held.
func (o *outlet) pass(p []byte) error {
	if o.closed > 0 {
		if len(o.held)+len(p) > o.n*o.x.room() {
			return errEvent
		}
		if fail := o.x.hold(int64(len(o.held)), int64(len(o.held)+len(p))); fail != nil {
			return &overBudget{fail}
		}
		o.held = append(o.held, p...)
		return nil
	}
	if o.held != nil {
		p = append(o.held, p...)
		o.held = nil
	}
	if len(p) > 0 {
		o.send(p)
	}
	if o.left {
		return errLeft
	}
	return nil
}

// send sends a part of a stream, in front of the first one the headers: from there on
// the status is 200. Where they left earlier the verdict follows as a comment. The lock is
// held.
func (o *outlet) send(p []byte) {
	if o.left {
		return
	}
	o.writeDeadline()
	if !o.sent {
		o.begin("text/event-stream")
		if o.committed > 0 {
			p = append(commentOf(o.verdict), p...)
		}
	}
	o.put(p)
}

// put writes to the client. One that does not take it has left. The lock is held.
func (o *outlet) put(p []byte) {
	_, err := o.x.w.Write(p)
	if err == nil {
		err = o.rc.Flush()
	}
	o.left = err != nil
}

// writeDeadline gives the client its time to take the next write. It stays set behind
// the last one, so that the server's own end of the answer is bounded too. One that is
// nearly as late as it could be is left as it is.
func (o *outlet) writeDeadline() {
	now := o.x.g.clock.Now()
	if now.Sub(o.deadline) < o.x.g.bounds.Write/8 && !o.deadline.IsZero() {
		return
	}
	o.deadline = now
	_ = o.rc.SetWriteDeadline(now.Add(o.x.g.bounds.Write)) // a server without deadlines has none
}

// begin begins an answer, with its headers if they did not leave earlier. The lock is
// held, or nobody else runs.
func (o *outlet) begin(kind string) {
	x := o.x
	o.sent = true
	x.first.Stop()
	if o.committed == 0 {
		x.w.Header().Set(headerCount, x.event.Count.String())
		o.header(kind, o.verdict)
	}
	x.event.Status = http.StatusOK
	x.event.FirstByte = x.g.clock.Now().Sub(x.event.Start)
}

// header sends the headers of an answer. The lock is held, or nobody else runs.
func (o *outlet) header(kind, verdict string) {
	h := o.x.w.Header()
	h.Set("Content-Type", kind)
	h.Set(headerVerdict, verdict)
	o.x.w.WriteHeader(http.StatusOK)
}

// deliver sends a whole answer. Nobody else runs.
func (o *outlet) deliver(body []byte) {
	x := o.x
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	o.writeDeadline()
	o.begin("application/json")
	_, err := x.w.Write(body)
	if err == nil {
		err = o.rc.Flush()
	}
	if err != nil {
		o.left = true
		x.event.Verdict, x.event.Code, x.broken = record.Left, fault.Cancelled, true
		return
	}
	x.event.Verdict = Served
}
