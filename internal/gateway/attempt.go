package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// failure is why an attempt gave no answer.
type failure struct {
	err *fault.Error
	// retry: the pair went away, so that a new attempt may do better (G-6).
	retry bool
	// echo: the leg only ended because we ended it; the reason lies elsewhere.
	echo bool
	// ended: the worker has nothing left to abort.
	ended bool
}

// fault is the error for the client; nil without a failure.
func (f *failure) fault() *fault.Error {
	if f == nil {
		return nil
	}
	return f.err
}

// said is what the prefill leg answered.
type said struct {
	reply upstream.Reply
	fail  *failure
}

// attempt is one try: two calls under one identity. The handler's goroutine owns it and
// runs the decode leg; one more goroutine runs the prefill leg, and is always waited for.
type attempt struct {
	x    *exchange
	pair *pair
	identity
	// pctx and dctx end the legs.
	pctx, dctx       context.Context
	pcancel, dcancel context.CancelCauseFunc
	prefill          chan said // one value
	heard            *said     // that value, once it was received
	decodeEnded      bool
}

// attempt sends both legs at once and relays decode's answer if they agree. It returns
// nil if the request has ended, in whatever way the exchange tells; a failure means that
// nothing was sent to the client.
func (x *exchange) attempt(p *pair, maxTokens int64) *failure {
	drawn, err := x.g.mint()
	if err != nil {
		return &failure{err: fault.New(fault.Internal)}
	}
	p.busy.Add(1)
	defer p.busy.Add(-1)
	a := &attempt{x: x, pair: p, identity: drawn, prefill: make(chan said, 1)}
	a.pctx, a.pcancel = context.WithCancelCause(x.ctx)
	a.dctx, a.dcancel = context.WithCancelCause(x.ctx)
	x.event.Attempts++
	x.event.Agreement, x.event.Prompt, x.event.Completion = upstream.Open, admit.Unknown(), admit.Unknown()
	x.event.RID, x.event.Attempt, x.event.Pair, x.event.MaxTokens = a.rid, a.attempt, p.Name, maxTokens
	control := upstream.Control{
		RID: a.rid, Host: p.BootstrapHost, Port: p.BootstrapPort, Room: a.room,
		Model: x.model.Served, MaxTokens: maxTokens, Seed: x.ids.seed,
	}
	prefill, decode := x.req.Prefill(control), x.req.Decode(control)
	go func() {
		s := a.runPrefill(prefill)
		if s.fail != nil {
			a.dcancel(errPrefill) // decode is ended at once; left alone it would wait
		}
		a.prefill <- s
	}()
	return a.settle(a.runDecode(decode))
}

// hear waits for the prefill leg. It ends when its context does, so this is bounded.
func (a *attempt) hear() *said {
	if a.heard == nil {
		s := <-a.prefill
		a.heard = &s
	}
	return a.heard
}

// settle ends both legs and finds the one reason why an attempt failed, if it did.
func (a *attempt) settle(d *failure) *failure {
	x := a.x
	if d == nil {
		a.pcancel(errOver)
		a.dcancel(errOver)
		a.hear()
		return nil
	}
	a.dcancel(errOver)
	a.pcancel(errOver)
	p := a.hear().fail
	f := worse(p, d)
	cause := context.Cause(x.ctx)
	switch {
	case x.gone():
		f = &failure{err: fault.New(fault.Cancelled)}
	case errors.Is(cause, ErrShutdown):
		f = &failure{err: fault.New(fault.ShuttingDown)}
	case errors.Is(cause, errFirstByte):
		f = &failure{err: fault.New(fault.Deadline)}
	case errors.Is(cause, errIdle):
		f = &failure{err: fault.New(fault.StreamBroken)}
	case f.echo:
		f = &failure{err: fault.New(fault.Internal)}
	}
	if p != nil && !p.ended {
		a.abort(a.pair.prefill)
	}
	if !d.ended && !a.decodeEnded {
		a.abort(a.pair.decode)
	}
	if !x.sent {
		return f
	}
	x.breakOff(f.err)
	return nil
}

// worse picks the failure to tell: a leg that was ended by us tells nothing; of two that
// failed by themselves a refusal tells more than a breakdown, and prefill's comes first.
func worse(p, d *failure) *failure {
	switch {
	case p == nil || p.echo && !d.echo:
		return d
	case d.echo || p.err.Status < http.StatusInternalServerError:
		return p
	default:
		return d
	}
}

// runPrefill calls the prefill leg and judges its answer by itself.
func (a *attempt) runPrefill(body []byte) said {
	resp, fail := a.post(a.pctx, a.pair.prefill, body)
	if fail != nil {
		return said{fail: fail}
	}
	defer closeBody(resp)
	data, fail := a.readAnswer(a.pctx, resp, maxPrefill)
	if fail != nil {
		return said{fail: fail}
	}
	reply, err := upstream.ParseAnswer(a.x.req.Endpoint, data)
	if err != nil {
		return said{fail: void(fault.UpstreamVoid)}
	}
	if ag := upstream.Prefilled(a.rid, &reply); ag != upstream.Agreed {
		return said{fail: broken(ag, &reply)}
	}
	return said{reply: reply}
}

// Limits of what is small by nature, in bytes.
const (
	maxPrefill = 1 << 20  // a prefill leg's answer: one token
	maxError   = 64 << 10 // a leg's error
)

// void is a failure of an answer that was read to its end.
func void(c fault.Code) *failure { return &failure{err: fault.New(c), ended: true} }

// broken is the failure that a judgement stands for.
func broken(ag upstream.Agreement, r *upstream.Reply) *failure {
	switch {
	case r.Failure != nil:
		return &failure{err: r.Failure.ForClient(), retry: r.Failure.Code == fault.PeerGone, ended: true}
	case ag == upstream.LegFailed:
		return void(fault.EngineFailed)
	case ag == upstream.CountsDiffer || ag == upstream.TokensDiffer:
		return void(fault.LegsDisagree)
	default:
		return void(fault.UpstreamVoid)
	}
}

// post calls a leg. Any other status than 200 is a failure.
func (a *attempt) post(ctx context.Context, l *leg, body []byte) (*http.Response, *failure) {
	x := a.x
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.URL+x.req.Endpoint.Path(), bytes.NewReader(body))
	if err != nil {
		return nil, &failure{err: fault.New(fault.Internal), ended: true}
	}
	expiry := x.g.clock.Now().Add(x.g.bounds.PassLife)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Bulkhead-Pass", x.g.passer.Mint(a.attempt, x.tenant.domain, expiry, a.room, body))
	req.Header.Set("User-Agent", "bulkhead")
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return nil, lost(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer closeBody(resp)
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	if err != nil && ctx.Err() != nil {
		return nil, lost(ctx, err)
	}
	e := fault.Parse(resp.StatusCode, data)
	return nil, &failure{err: e.ForClient(), retry: e.Code == fault.PeerGone, ended: err == nil}
}

// lost is the failure of a call that gave no answer. Only a connection that never came
// about makes a retry: after that, a request may have been what ended the worker.
func lost(ctx context.Context, err error) *failure {
	f := &failure{err: fault.New(fault.UpstreamUnreachable), echo: ctx.Err() != nil}
	var op *net.OpError
	if !f.echo && errors.As(err, &op) && op.Op == "dial" {
		f.retry, f.ended = true, true
	}
	return f
}

// readAnswer reads a whole JSON answer of at most limit bytes.
func (a *attempt) readAnswer(ctx context.Context, resp *http.Response, limit int64) ([]byte, *failure) {
	if !hasType(resp, "application/json") {
		return nil, &failure{err: fault.New(fault.UpstreamVoid)}
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, lost(ctx, err)
	}
	if int64(len(data)) > limit {
		return nil, &failure{err: fault.New(fault.UpstreamVoid)}
	}
	return data, nil
}

func hasType(resp *http.Response, want string) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == want
}

// runDecode calls the decode leg and relays its answer.
func (a *attempt) runDecode(body []byte) *failure {
	resp, fail := a.post(a.dctx, a.pair.decode, body)
	if fail != nil {
		return fail
	}
	defer closeBody(resp)
	if a.x.req.Streaming == upstream.Streamed {
		return a.stream(resp)
	}
	return a.whole(resp)
}

// whole relays an answer in one body.
func (a *attempt) whole(resp *http.Response) *failure {
	x := a.x
	data, fail := a.readAnswer(a.dctx, resp, x.g.bounds.Answer)
	if fail != nil {
		return fail
	}
	a.decodeEnded = true
	reply, err := upstream.ParseAnswer(x.req.Endpoint, data)
	if err != nil {
		return void(fault.UpstreamVoid)
	}
	ag := upstream.Sound(a.rid, &reply)
	if ag == upstream.Agreed && (reply.Finish == "" || !reply.HasText) {
		ag = upstream.Unproved
	}
	if ag == upstream.Agreed {
		ag, fail = a.agree(upstream.Decoded{Prompt: reply.Prompt, Text: reply.Text(), Progress: upstream.Ended})
	}
	if fail != nil {
		return fail
	}
	if ag != upstream.Agreed {
		x.event.Agreement = ag
		return broken(ag, &reply)
	}
	x.usage(&reply)
	x.deliver(reply.Rewrite(make([]byte, 0, len(data)+64), x.publicID(), x.model.Name, upstream.KeepUsage))
	return nil
}

// agree waits for prefill and compares it with what decode said so far.
func (a *attempt) agree(d upstream.Decoded) (upstream.Agreement, *failure) {
	p := a.hear()
	if p.fail != nil {
		return upstream.Open, &failure{err: p.fail.err, echo: true}
	}
	ag := upstream.Agree(&p.reply, d, a.x.req.Stops)
	a.x.event.Agreement = ag
	return ag, nil
}

// abort tells a worker to end the attempt, by its exact id. The closed connection tells
// it as well; this reaches it where that is not seen. Once is not always enough, so a
// call that fails is made once more.
func (a *attempt) abort(l *leg) {
	x := a.x
	x.pending = true
	ctx := context.WithoutCancel(x.r.Context())
	rid := a.rid
	x.aborts.Go(func() {
		for range 2 {
			if x.g.tellAbort(ctx, l, rid) {
				return
			}
		}
	})
}

// tellAbort makes one abort call and says whether the worker took it.
func (g *Gateway) tellAbort(ctx context.Context, l *leg, rid string) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer g.clock.AfterFunc(g.bounds.Abort, cancel).Stop()
	body, err := json.Marshal(map[string]string{"rid": rid})
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.URL+"/abort_request", bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+l.ControlKey)
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer closeBody(resp)
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxError)) // only so that the connection can be used again
	return resp.StatusCode == http.StatusOK
}
