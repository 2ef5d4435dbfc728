package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// acquire finds the target for the request: one that admits it and has room (G-2). Where
// the bounds leave it open the prompt is counted first.
func (x *exchange) acquire(not *fleet.Target) (*fleet.Target, admit.Decision, *fault.Error) {
	if x.target != nil {
		return x.probed(not)
	}
	ask := x.ask
	ask.Not = not
	t, d, err := x.model.group.Acquire(x.ctx, ask)
	if err == nil && t == nil && d.Outcome == admit.NeedCount {
		x.out.pause() // a prompt that is too long has its status, however slow the count is
		if fail := x.count(); fail != nil {
			return nil, d, fail
		}
		x.out.resume()
		ask.Tokens = x.ask.Tokens
		t, d, err = x.model.group.Acquire(x.ctx, ask)
	}
	if err == nil && t == nil && x.shadowed(d) {
		ask.Tokens.Exact = admit.Known(1)
		if out, asked := ask.Tokens.Output.Value(); asked {
			// The engine gets what the client asked for, and judges by itself.
			ask.Tokens.Output = admit.Known(1)
			t, d, err = x.model.group.Acquire(x.ctx, ask)
			d.MaxTokens = out
		} else {
			t, d, err = x.model.group.Acquire(x.ctx, ask)
		}
	}
	switch {
	case err != nil:
		return nil, d, x.queueFault(err)
	case t == nil:
		return nil, d, x.refusal(d)
	}
	x.event.Queued += t.Queued
	return t, d, nil
}

// shadowed says whether a refusal is to be let pass, and counts it: a request once, however
// many attempts it has (G-10).
func (x *exchange) shadowed(d admit.Decision) bool {
	switch d.Outcome {
	case admit.RefuseWindow, admit.RefusePrefill, admit.RefuseDecode:
	default:
		return false
	}
	state := x.g.mode(Admission)
	if state == Shadow && !x.overlong {
		x.overlong = true
		x.event.Shadowed = append(x.event.Shadowed, string(Admission))
		x.g.shadows.Count([]string{string(Admission)}, x.tenant.ID, x.model.Name)
	}
	return state != Enforce
}

// queueFault names why no target was to be had.
func (x *exchange) queueFault(err error) *fault.Error {
	switch {
	case errors.Is(err, fleet.ErrNoneReady):
		return fault.New(fault.NoPairReady)
	case errors.Is(err, fleet.ErrTenantQueue):
		return fault.New(fault.QueueFull) // the tenant's part of it is
	case errors.Is(err, fleet.ErrQueueFull):
		return fault.New(fault.Overloaded)
	case errors.Is(err, fleet.ErrQueueWait):
		return fault.New(fault.QueueTime)
	}
	if fail := x.ended(); fail != nil {
		return fail
	}
	return fault.New(fault.Internal)
}

// count counts the prompts exactly, for the band that the bounds leave open. Of several
// the longest counts.
func (x *exchange) count() *fault.Error {
	longest := int64(0)
	for i := range max(1, x.req.Prompts) {
		n, fail := x.countOne(i * max(1, x.req.N))
		if fail != nil {
			return fail
		}
		longest = max(longest, n)
	}
	x.ask.Tokens.Exact = admit.Known(longest)
	return nil
}

// countOne counts the prompt of one sequence.
func (x *exchange) countOne(sequence int) (int64, *fault.Error) {
	if x.model.Counter == nil {
		x.event.Count = record.ByEngine
		return x.countAtEngine(sequence)
	}
	x.event.Count = record.ByCounter
	body := x.body
	if x.req.Prompts > 1 {
		// The body of one leg has one prompt.
		body = x.req.Leg(x.model.Dialect, upstream.DecodeRole, upstream.Control{Sequence: sequence, Model: x.route.served, MaxTokens: 1}).Body
	}
	n, err := x.model.Counter.Count(x.ctx, x.req.Endpoint.Path(), body)
	if err != nil || n < 0 {
		return 0, fault.New(fault.CountUnavailable)
	}
	return int64(n), nil
}

// maxCounted is the longest answer of a tokenizer endpoint, in bytes, that is read.
const maxCounted = 32 << 20

// countAtEngine asks an engine to count. What a tenant can have counted is capped, in
// size and at a time.
func (x *exchange) countAtEngine(sequence int) (int64, *fault.Error) {
	unavailable := fault.New(fault.CountUnavailable)
	if int64(len(x.body)) > x.g.bounds.CountBytes {
		return 0, unavailable
	}
	call, can := x.req.CountCall(x.model.Dialect, x.route.served, sequence)
	if !can {
		return 0, unavailable
	}
	node := x.model.group.Counter()
	if node == nil {
		return 0, fault.New(fault.NoPairReady)
	}
	if !x.tenant.counts.Take(1) {
		return 0, fault.New(fault.TooManyCounts, fault.Int(x.tenant.counts.Limit()))
	}
	defer x.tenant.counts.Give(1)
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	defer x.g.clock.AfterFunc(x.g.bounds.Count, cancel).Stop()
	req, err := node.NewRequest(ctx, http.MethodPost, call.Path, bytes.NewReader(call.Body))
	if err != nil {
		return 0, unavailable
	}
	node.KeepApart(req, x.tenant.ID)
	setHeaders(req, call)
	repeatable(req)
	resp, err := node.RoundTrip(req)
	if err != nil {
		return 0, unavailable
	}
	defer closeBody(resp)
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxCounted))
	if err != nil {
		return 0, unavailable
	}
	n, err := upstream.ReadCount(x.model.Dialect, resp.StatusCode, data)
	if err != nil || n < 0 {
		return 0, unavailable
	}
	return n, nil
}

// repeatable lets net/http send a request again whose connection turns out to be closed:
// sent twice, it does no more than once. No header of it leaves.
func repeatable(req *http.Request) { req.Header["X-Idempotency-Key"] = nil }

// setHeaders gives a call the headers of its dialect, and no others.
func setHeaders(req *http.Request, call upstream.Call) {
	req.Header.Set("Content-Type", "application/json")
	for _, h := range call.Headers {
		req.Header.Set(h.Name, h.Value)
	}
}

// closeBody closes an answer. What is unread makes the transport close the connection.
func closeBody(resp *http.Response) { _ = resp.Body.Close() }

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
