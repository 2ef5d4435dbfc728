package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// dispatch sends the request to a target, and once more if the first one went away, or was
// too late for its lease, before the first byte (G-6). One bound on the time to the first
// byte holds for both.
func (x *exchange) dispatch() *fault.Error {
	x.first = x.g.clock.AfterFunc(x.g.bounds.FirstByte, func() { x.cancel(errFirstByte) })
	defer x.first.Stop()
	x.out.commitLater()
	t, decision, fail := x.acquire(nil)
	if fail != nil {
		return fail
	}
	f := x.round(t, decision.MaxTokens)
	if f == nil || !f.retry || x.out.begun() || x.ctx.Err() != nil || !x.tenant.retry.Spend() {
		return x.end(f)
	}
	x.latest.aborts.Wait() // all old legs are ended before a new one begins
	next, decision, fail := x.acquire(t)
	if fail != nil {
		return x.end(f)
	}
	again := x.round(next, decision.MaxTokens)
	if again != nil && again.err.Code == fault.Uncollected {
		again = f // it did not begin: prefill still holds what the first one left there
	}
	return x.end(again)
}

// end tells a failure: as an error if nothing was sent, else by breaking the answer off.
func (x *exchange) end(f *failure) *fault.Error {
	switch {
	case f == nil:
		return nil
	case x.out.begun():
		x.breakOff(f.err)
		return nil
	}
	return f.err
}

// breakOff ends an answer whose first byte was sent: with an error event, and with a
// connection that is cut, never with an end mark (G-5, H-14).
func (x *exchange) breakOff(e *fault.Error) {
	x.broken = true
	if x.out.gone() || x.gone() {
		x.event.Verdict, x.event.Code = record.Left, fault.Cancelled
		return
	}
	x.event.Verdict, x.event.Code = record.Broken, e.Code
	_ = x.out.write(upstream.AppendEvent(nil, e.WithID(x.event.ID).Body())) // that the client left makes no difference any more
}

// round is one try at a request: all its sequences at one target.
type round struct {
	x      *exchange
	target *fleet.Target
	ctx    context.Context
	cancel context.CancelCauseFunc
	// max is the limit of each answer, in tokens.
	max int64
	// split says that each sequence is a call of its own, of several.
	split bool
	// aborts are the aborts under way. They are the round's own: who still waits for those of
	// the first one must not wait for those of the second.
	aborts sync.WaitGroup
}

// round runs all sequences at a target, as many at a time as it allows, and gives it
// back. It returns nil if the request has ended well, or because the client left.
func (x *exchange) round(t *fleet.Target, most int64) *failure {
	r := &round{x: x, target: t, max: most}
	x.latest = r
	n := x.sequences()
	r.split = n > 1
	if r.ctx = x.ctx; r.split { // else nobody but the exchange ends it
		r.ctx, r.cancel = context.WithCancelCause(x.ctx)
		defer r.cancel(errOver)
	}
	x.event.Target, x.event.MaxTokens = t.Name, most
	x.event.Agreement, x.event.Prompt, x.event.Completion, x.event.From = upstream.Open, admit.Unknown(), admit.Unknown(), record.Unreported
	x.event.Lease = record.Lease{}
	x.event.Late = x.model.verdict() == late
	x.out.prepare(n, x.model.verdict())
	all := make([]*attempt, n)
	for i := range all {
		all[i] = &attempt{x: x, round: r, sequence: i}
	}
	x.event.Attempts += n
	f := &failure{outcome: fleet.Cancelled} // what a panic leaves
	through := false
	defer func() {
		if !through {
			r.abandon(all)
		}
		r.release(f)
	}()
	f = r.run(all)
	r.note(all)
	through = true
	if f == nil && r.split {
		f = r.join(all)
	}
	if f == nil && !r.split {
		r.complete()
	}
	return f
}

// abandon ends what a panic left at work, so that nothing of it is held for ever.
func (r *round) abandon(all []*attempt) {
	for _, a := range all {
		a.decode.leave(&failure{})
		if a.prefill == nil {
			a.ahead.leave(&failure{})
		}
		a.ahead.end(errOver) // its own goroutine leaves it
		a.hear()
		a.waiting.end()
	}
	r.x.pending = true // engines may still be told to stop
}

// verdict is what the header says when an answer begins.
func (m *model) verdict() string {
	switch {
	case m.traits.Legs == upstream.One:
		return lone
	case m.traits.Counting == upstream.AtEnd:
		return late
	}
	return agreed
}

// run runs the attempts, and returns the failure that tells most.
func (r *round) run(all []*attempt) *failure {
	if len(all) == 1 {
		return all[0].run()
	}
	fails := make([]*failure, len(all))
	var next atomic.Int64
	var crew sync.WaitGroup
	var panicked atomic.Value
	for range max(1, min(r.target.Parallel, r.x.abreast(), len(all))) {
		crew.Go(func() {
			defer func() {
				if p := recover(); p != nil { // it is the handler's, and must not end the others' requests
					panicked.Store(fmt.Sprint(p))
					r.cancel(errSibling)
				}
			}()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(all) {
					return
				}
				if r.ctx.Err() != nil {
					fails[i] = r.unrun()
					return
				}
				if fails[i] = all[i].run(); fails[i] != nil {
					r.cancel(errSibling) // one that fails, fails all (G-11)
				}
			}
		})
	}
	crew.Wait()
	if p := panicked.Load(); p != nil {
		panic(p)
	}
	return told(fails)
}

// unrun is the failure of a sequence that was not begun, for the round was over.
func (r *round) unrun() *failure {
	if f := r.x.overtaken(); f != nil {
		return f
	}
	return &failure{err: fault.New(fault.Internal), echo: true} // another sequence failed
}

// told picks the failure of several to tell: one that only came because another did tells
// nothing.
func told(fails []*failure) *failure {
	var one *failure
	for _, f := range fails {
		if f != nil && (one == nil || one.echo && !f.echo) {
			one = f
		}
	}
	return one
}

// note puts together what the attempts saw.
func (r *round) note(all []*attempt) {
	x := r.x
	prompt, completion, from := admit.Known(0), admit.Known(0), record.Unreported
	for i, a := range all {
		x.pending = x.pending || a.ahead.stopping() || a.decode.stopping()
		x.record.Legs = append(x.record.Legs, a.legs...)
		x.event.Held = max(x.event.Held, a.held)
		if a.lease.Of > 0 && a.lease.Used >= x.event.Lease.Used {
			x.event.Lease = a.lease
		}
		x.event.Oddities |= a.odd
		if a.id != "" {
			x.event.RID, x.event.Attempt = a.id, a.attempt
		}
		if a.agreement != upstream.Open && (x.event.Agreement == upstream.Open || x.event.Agreement == upstream.Agreed) {
			x.event.Agreement = a.agreement
		}
		if i%max(1, x.req.N) == 0 || !r.split {
			prompt = plus(prompt, a.prompt)
		}
		completion, from = plus(completion, a.completion), max(from, a.from)
	}
	x.event.Prompt, x.event.Completion, x.event.From = prompt, completion, from
	if _, known := completion.Value(); !known {
		x.event.From = record.Unreported
	}
}

// plus adds two numbers of tokens; unknown if either is.
func plus(a, b admit.Tokens) admit.Tokens {
	n, known := a.Value()
	m, too := b.Value()
	if !known || !too {
		return admit.Unknown()
	}
	return admit.Known(n + m)
}

// complete ends a request with one call.
func (r *round) complete() {
	x := r.x
	if x.req.Streaming == upstream.Streamed && x.event.Verdict == record.Undecided {
		x.event.Verdict = Served
	}
	if x.out.gone() {
		x.event.Verdict, x.event.Code = record.Left, fault.Cancelled
	}
}

// join ends a request whose sequences were calls of their own: their answers become one.
func (r *round) join(all []*attempt) *failure {
	x := r.x
	p := x.public()
	p.Prompts = x.req.Prompts
	if x.req.Streaming == upstream.Whole {
		p.Usage = upstream.KeepUsage
		replies := make([]upstream.Reply, len(all))
		for i, a := range all {
			replies[i] = *a.answer
		}
		x.out.deliver(upstream.Merge(nil, x.req.Endpoint, replies, p))
		return nil
	}
	var tail []byte
	prompt, told := x.event.Prompt.Value()
	completion, counted := x.event.Completion.Value()
	if x.req.UsageChunk && told && counted {
		p.Created = all[0].created
		tail = upstream.AppendEvent(tail, upstream.AppendUsage(nil, x.req.Endpoint, p, prompt, completion))
	}
	tail = upstream.AppendEvent(tail, []byte(upstream.Done))
	if err := x.out.write(tail); err != nil {
		return &failure{err: fault.New(fault.Cancelled), outcome: fleet.Cancelled}
	}
	x.event.Verdict = Served
	return nil
}

// release gives the target back once nothing runs there any more.
func (r *round) release(f *failure) {
	outcome, blame := fleet.Answered, []*fleet.Node(nil)
	if f != nil {
		outcome = f.outcome
		if f.node != nil {
			blame = []*fleet.Node{f.node}
		}
	}
	x := r.x
	if !x.pending {
		r.target.Release(outcome, blame...)
		return
	}
	x.g.tasks.Go(func() {
		r.aborts.Wait()
		r.target.Release(outcome, blame...)
	})
}

// outcomeOf is what a failure says about the engines.
func outcomeOf(e *fault.Error) fleet.Outcome {
	switch {
	case e.Code == fault.Cancelled || e.Code == fault.ShuttingDown:
		return fleet.Cancelled
	case record.VerdictOf(e) == record.Void:
		return fleet.Void
	case e.Status < 500 || e.Code == fault.Busy:
		return fleet.Refused
	}
	return fleet.Failed
}
