package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/fleet"
)

// leg is one call to an engine, which can be ended while it runs: once, for one reason.
//
// Where engines end a request by its id, they are told to before the call is hung up, and
// again until the call is over (G-6). One that sees first that its caller has gone may
// forget the request, work on it to its end, and not know it any more when it is told; and
// a word that overtakes its request finds nothing yet.
type leg struct {
	round *round
	node  *fleet.Node
	id    string
	// ctx is that of the HTTP call.
	ctx    context.Context
	hangUp context.CancelFunc
	unbind func() bool // from the end of the round

	mu    sync.Mutex
	cause error // why it is ended; nil until it is
	// runs says that the engine may be at work; left that nobody reads the call any more.
	runs, left bool
	quiet      chan struct{}  // while the engine is told to stop; closed when the call is over
	answer     *http.Response // whose body is read, and closed at the end
}

// leg makes a call possible. It ends with the round, unless it was left before.
func (r *round) leg(n *fleet.Node, id string) *leg {
	l := &leg{round: r, node: n, id: id}
	l.ctx, l.hangUp = context.WithCancel(context.WithoutCancel(r.ctx))
	l.unbind = context.AfterFunc(r.ctx, func() { l.end(context.Cause(r.ctx)) })
	return l
}

// begin says that the engine is called now; false if the leg was ended before.
func (l *leg) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = l.cause == nil
	return l.runs
}

// reads says whose body is read from now on.
func (l *leg) reads(answer *http.Response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

// over says that the answer came to its end, so that nothing is left to stop.
func (l *leg) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = false
}

// why is the reason for which it was ended; nil if it was not, or if there is no leg.
func (l *leg) why() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// stopping says whether the engine is being told to stop.
func (l *leg) stopping() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.quiet != nil
}

// end ends the call.
func (l *leg) end(cause error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop(cause)
}

// stop is end with the lock held.
func (l *leg) stop(cause error) {
	if l.cause != nil {
		return
	}
	l.cause = cause
	if !l.runs || !l.round.x.model.traits.Aborts {
		l.hangUp()
		return
	}
	l.quiet = make(chan struct{})
	l.round.aborts.Go(l.abort)
}

// leave says that the call is over, or that nobody reads it any more, and how it went; once
// is enough. A call that had been ended before failed for that reason only.
func (l *leg) leave(f *failure) {
	if l == nil {
		return
	}
	l.unbind()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left {
		return
	}
	l.left = true
	if f != nil && l.cause != nil {
		*f = failure{err: f.err, echo: true, ended: f.ended, outcome: fleet.Cancelled}
	}
	if f == nil || f.ended {
		l.runs = false
	}
	l.stop(errOver)
	switch {
	case l.quiet != nil && l.runs && l.answer != nil:
		// That the rest of the answer comes to its end shows that the engine has stopped.
		l.round.aborts.Go(func() {
			_, _ = io.Copy(io.Discard, io.LimitReader(l.answer.Body, maxRest)) // how it ends does not matter
			closeBody(l.answer)
			close(l.quiet)
		})
		return
	case l.quiet != nil:
		close(l.quiet)
	}
	if l.answer != nil {
		closeBody(l.answer)
	}
}

const (
	// maxRest is how much of an answer that is void is read for its end, in bytes.
	maxRest = 1 << 20
	// firstAgain is the time after which an engine is told once more; it doubles each time.
	firstAgain = 50 * time.Millisecond
)

// abort tells the engine to end the call, by its exact id, until it is over or the time for
// that is, and then hangs up. A word that does not arrive is sent once more.
func (l *leg) abort() {
	g := l.round.x.g
	defer l.hangUp()
	defer g.clock.AfterFunc(g.bounds.Abort, l.hangUp).Stop()
	again := make(chan struct{}, 1)
	for wait := firstAgain; ; wait *= 2 {
		for tries := 2; !l.tell(); {
			if tries--; tries == 0 {
				return
			}
		}
		timer := g.clock.AfterFunc(wait, func() { again <- struct{}{} })
		select {
		case <-again:
			continue
		case <-l.quiet:
		case <-l.ctx.Done():
		}
		timer.Stop()
		return
	}
}

// tell makes one abort call and says whether the engine took it.
func (l *leg) tell() bool {
	body, err := json.Marshal(map[string]string{"rid": l.id})
	if err != nil {
		return false
	}
	req, err := l.node.NewControl(l.ctx, http.MethodPost, "/abort_request", bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	repeatable(req)
	resp, err := l.node.RoundTrip(req)
	if err != nil {
		return false
	}
	defer closeBody(resp)
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxError)) // only so that the connection can be used again
	return resp.StatusCode == http.StatusOK
}
