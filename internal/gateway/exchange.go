package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// exchange is one request to a completion path, from its headers to its last byte. One
// goroutine owns it: the handler's.
type exchange struct {
	g  *Gateway
	w  http.ResponseWriter
	rc *http.ResponseController
	r  *http.Request
	// ctx ends when the client leaves, or with a cause of ours.
	ctx    context.Context
	cancel context.CancelCauseFunc

	ids    ids
	tenant *tenant
	model  *model
	req    *upstream.Request
	body   []byte
	tokens admit.Request
	lease  lease
	seated bool
	read   bool // the body was read to its end
	// aborts are the aborts under way; the seat is kept until they are through.
	aborts  sync.WaitGroup
	pending bool

	// first ends what takes too long to its first byte.
	first Timer

	event RequestEvent
	// sent says that the first byte of an answer was sent; broken that the answer ends
	// with a cut connection.
	sent, broken bool
}

// ErrShutdown is the cause with which a server's base context is cancelled to cut the
// answers in progress. Their clients are told, and their connections are aborted (H-14).
var ErrShutdown = errors.New("gateway: shutting down")

// Causes with which the gateway ends what it began.
var (
	errFirstByte = errors.New("gateway: no verdict in time")
	errIdle      = errors.New("gateway: no event in time")
	errPrefill   = errors.New("gateway: the prefill leg failed")
	errOver      = errors.New("gateway: the attempt is over")
)

// complete serves a completion.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, e upstream.Endpoint, id string, drawn ids) {
	x := &exchange{
		g: g, w: w, r: r, rc: http.NewResponseController(w), ids: drawn,
		event: RequestEvent{ID: id, Path: e.Path(), Start: g.clock.Now()},
	}
	x.ctx, x.cancel = context.WithCancelCause(r.Context())
	defer x.close()
	x.writeDeadline() // that of an earlier request would stop the server's own 100 Continue
	if fail := x.serve(e); fail != nil {
		x.refuse(fail)
	}
	if x.broken || x.event.Status == 0 {
		// Returning without a word would be a 200.
		panic(http.ErrAbortHandler)
	}
}

// close gives everything back and tells what became of the request.
func (x *exchange) close() {
	x.cancel(errOver)
	if x.lease.tenant != nil {
		x.lease.release()
	}
	if x.seated {
		release := func() {
			x.tenant.seats.give(1)
			x.g.seats.give(1)
		}
		if x.pending {
			x.g.tasks.Go(func() { x.aborts.Wait(); release() })
		} else {
			release()
		}
	}
	if x.event.Verdict == Undecided {
		x.event.Verdict, x.event.Code = Failed, fault.Internal
	}
	x.event.Total = x.g.clock.Now().Sub(x.event.Start)
	x.g.events.Request(x.event)
}

// writeDeadline gives the client its time to take the next write. It stays set behind
// the last one, so that the server's own end of the answer is bounded too.
func (x *exchange) writeDeadline() {
	_ = x.rc.SetWriteDeadline(x.g.clock.Now().Add(x.g.bounds.Write)) // a server without deadlines has none
}

// refuse ends the request with an error in place of an answer.
func (x *exchange) refuse(e *fault.Error) {
	if x.gone() && x.read {
		x.event.Verdict, x.event.Code = Left, fault.Cancelled
		return
	}
	x.event.Verdict, x.event.Code, x.event.Status = verdictOf(e), e.Code, e.Status
	x.w.Header().Set(headerVerdict, x.event.Verdict.String())
	x.writeDeadline()
	writeFault(x.w, e.WithID(x.event.ID))
}

// gone says whether the client has left. Before the body is read it may also mean that
// the body did not come.
func (x *exchange) gone() bool {
	return x.r.Context().Err() != nil && !errors.Is(context.Cause(x.r.Context()), ErrShutdown)
}

// serve takes a request from its headers to its end. It returns the error to answer
// with, or nil if an answer was sent or nobody waits for one.
func (x *exchange) serve(e upstream.Endpoint) *fault.Error {
	t, fail := x.g.door.tenant(x.r.Header)
	if fail != nil {
		return fail
	}
	x.tenant, x.event.Tenant = t, t.id
	if fail := checkHeaders(x.r.Header); fail != nil {
		return fail
	}
	if fail := checkForm(x.r.Header); fail != nil {
		return fail
	}
	if !t.seats.take(1) {
		return fault.New(fault.TooManyRequests, fault.Int(t.seats.limit))
	}
	if !x.g.seats.take(1) {
		t.seats.give(1)
		return fault.New(fault.Overloaded)
	}
	x.seated = true
	t.retry.earn()
	x.lease = lease{process: x.g.bytes, tenant: t.bytes}
	if x.body, fail = x.g.readBody(x.w, x.r, &x.lease); fail != nil {
		return fail
	}
	x.read, x.event.BodyBytes = true, int64(len(x.body))
	if fail := x.scan(e); fail != nil {
		return fail
	}
	return x.dispatch()
}

// scan scans the body and finds what it asks for.
func (x *exchange) scan(e upstream.Endpoint) *fault.Error {
	req, fail := upstream.Scan(e, x.body)
	if fail != nil {
		return fail
	}
	x.req, x.event.Streaming = req, req.Streaming
	if len(req.Dropped) > 0 {
		x.w.Header().Set(headerDropped, strings.Join(req.Dropped, ", "))
	}
	if req.Streaming == upstream.Streamed && !x.r.ProtoAtLeast(1, 1) {
		return fault.New(fault.StreamNeedsHTTP11)
	}
	m := x.tenant.models[req.Model]
	if m == nil {
		return fault.New(fault.ModelNotFound, fault.Field("model"))
	}
	x.model, x.event.Model = m, m.Name
	low, high := m.Sizes.bounds(req.Text, int64(req.Messages))
	x.tokens = admit.Request{Low: low, High: high, Default: m.DefaultMaxTokens}
	if req.Max.Known {
		x.tokens.Output = admit.Known(req.Max.N)
	}
	return nil
}

// bounds bounds a prompt's tokens by its bytes (G-2).
func (s Sizes) bounds(bytes, messages int64) (low, high int64) {
	low = 1
	if s.BytesPerToken > 0 {
		low = max(1, (bytes+s.BytesPerToken-1)/s.BytesPerToken)
	}
	return low, max(low, bytes+messages*s.PerMessage+s.PerRequest)
}

// dispatch sends the request to a pair, and once more if the first pair went away before
// the first byte (G-6).
func (x *exchange) dispatch() *fault.Error {
	x.first = x.g.clock.AfterFunc(x.g.bounds.FirstByte, func() { x.cancel(errFirstByte) })
	defer x.first.Stop()
	p, decision, fail := x.choose(nil)
	if fail != nil {
		return fail
	}
	first := x.attempt(p, decision.MaxTokens)
	if first == nil || !first.retry || x.ctx.Err() != nil || !x.tenant.retry.spend() {
		return first.fault()
	}
	x.aborts.Wait() // both old legs are ended before a new one begins
	p, decision, fail = x.choose(p)
	if fail != nil {
		return first.fault()
	}
	return x.attempt(p, decision.MaxTokens).fault()
}

// choose finds the pair for the request: one that admits it, with the fewest attempts in
// progress, and another than not if there is another.
func (x *exchange) choose(not *pair) (*pair, admit.Decision, *fault.Error) {
	p, d := x.pick(not)
	if d.Outcome == admit.Unsettled {
		x.g.lookNow(x.ctx)
		p, d = x.pick(not)
	}
	if d.Outcome == admit.NeedCount {
		if fail := x.count(); fail != nil {
			return nil, d, fail
		}
		p, d = x.pick(not)
	}
	if d.Outcome == admit.Admit {
		return p, d, nil
	}
	return nil, d, x.refusal(d)
}

// pick decides for every pair that is ready, and returns the best: a pair that admits,
// else a decision that is open, else the refusal of the largest pair. With no pair ready
// the decision is Unsettled.
func (x *exchange) pick(not *pair) (best *pair, decision admit.Decision) {
	now := x.g.clock.Now()
	for _, p := range x.model.pairs {
		limits, ok := p.ready(now, x.g.bounds.Fresh)
		if !ok {
			continue
		}
		d := admit.Decide(x.tokens, limits)
		switch {
		case d.Outcome == admit.Admit && decision.Outcome == admit.Admit:
			if best == not || p != not && p.busy.Load() < best.busy.Load() {
				best, decision = p, d
			}
		case d.Outcome == admit.Admit, decision.Outcome == admit.Unsettled:
			best, decision = p, d
		case decision.Outcome == admit.Admit, decision.Outcome == admit.NeedCount:
		case d.Outcome == admit.NeedCount, d.Limit > decision.Limit:
			best, decision = p, d
		}
	}
	return best, decision
}

// count counts the prompt exactly, for the band that the bounds leave open.
func (x *exchange) count() *fault.Error {
	if x.model.Counter == nil {
		return fault.New(fault.CountUnavailable)
	}
	n, err := x.model.Counter.Count(x.ctx, x.req.Endpoint.Path(), x.body)
	if err != nil || n < 0 {
		return fault.New(fault.CountUnavailable)
	}
	x.tokens.Exact = admit.Known(int64(n))
	return nil
}

// refusal names a decision that is not to admit.
func (x *exchange) refusal(d admit.Decision) *fault.Error {
	prompt, limit, output := fault.AtLeast(d.Prompt), fault.Int(d.Limit), fault.Int(d.Output)
	if d.Exact {
		prompt = fault.Int(d.Prompt)
	}
	switch d.Outcome {
	case admit.Unsettled:
		return fault.New(fault.NoPairReady)
	case admit.RefuseZero:
		if x.req.Endpoint == upstream.Completions {
			return fault.New(fault.EmptyPrompt, fault.Field("prompt"))
		}
		return fault.New(fault.EmptyPrompt, fault.Field("messages"))
	case admit.RefuseWindow:
		if d.Output > 0 {
			return fault.New(fault.OutputOverWindow, prompt, output, limit)
		}
		return fault.New(fault.PromptOverWindow, prompt, limit)
	case admit.RefusePrefill:
		return fault.New(fault.PromptOverPool, prompt, limit)
	case admit.RefuseDecode:
		if d.Output > 0 {
			return fault.New(fault.OutputOverPool, prompt, output, limit)
		}
		return fault.New(fault.PromptOverPool, prompt, limit)
	case admit.NeedCount:
		return fault.New(fault.CountUnavailable)
	default:
		return fault.New(fault.LimitsUnknown)
	}
}

// usage notes what decode reported, if it adds up.
func (x *exchange) usage(r *upstream.Reply) {
	if !r.Prompt.Known || !r.Completion.Known {
		return
	}
	x.event.Prompt, x.event.Completion = admit.Known(r.Prompt.N), admit.Known(r.Completion.N)
	if r.Completion.N > x.event.MaxTokens || r.Total.Known && r.Total.N != r.Prompt.N+r.Completion.N {
		x.event.Completion = admit.Unknown()
	}
}

// publicID is the id under which clients know the answer.
func (x *exchange) publicID() string {
	if x.req.Endpoint == upstream.Chat {
		return "chatcmpl-" + x.ids.public
	}
	return "cmpl-" + x.ids.public
}
