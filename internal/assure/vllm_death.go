package assure

import (
	"context"
	"net/http"
)

// vllmDone: the engine's worker dies in mid-stream.
func vllmDone(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	s := p.Tenant(0).Open(ctx, chatPath, nil, saying("Tell me a long story.", 2000, streamed()))
	if !s.Until(20) {
		s.Close()
		return void("the stream ended before it could be cut, with status %d", s.Status())
	}
	if ok, err := p.Fault(ctx, "kill-worker"); !ok || err != nil {
		s.Close()
		return skip("nobody can end the engine's worker")
	}
	a := s.Rest()
	control := "the stream ran until the worker was ended"
	for _, f := range a.Finish {
		if f != "" {
			return void("the answer had ended before the worker did")
		}
	}
	if a.Done {
		return red(control, "%s: an error event %t, and then [DONE]", a.brief(), a.ErrorEvent)
	}
	if a.ErrorEvent || a.Err != nil {
		return green(control, "%s", a.brief())
	}
	return red(control, "%s: it just ends", a.brief())
}

// vllmKilledPrefill: prefill dies when its part is done and decode's not begun.
func vllmKilledPrefill(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	if ok, err := p.Fault(ctx, "hold-decode"); !ok || err != nil {
		return skip("nobody can hold the decode leg back")
	}
	answered := make(chan Answer, 1)
	go func() { answered <- p.Tenant(0).Post(ctx, completionPath, nil, chant(p.Canary(0), victimLines)) }()
	if _, err := p.Fault(ctx, "decode-held"); err != nil {
		return void("the decode leg did not come: %v", (<-answered).Err)
	}
	ok, err := p.Fault(ctx, "kill-prefill")
	_, _ = p.Fault(ctx, "release-decode")
	a := <-answered
	if !ok || err != nil {
		return skip("nobody can end prefill")
	}
	control := "prefill had handed over, and is dead"
	if p.healthy(ctx, "prefill") {
		return void("prefill lives")
	}
	if !p.healthy(ctx, "decode") {
		return red(control, "%s, and decode is dead too", a.brief())
	}
	if a.Status >= 500 && a.Text == "" {
		return green(control, "%s, decode lives", a.brief())
	}
	return red(control, "%s", a.brief())
}

// vllmAlone: the flag of the hand-off and nothing else.
func vllmAlone(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	return p.deadly(ctx, with(chant(p.Canary(1), 6), handleKey, map[string]any{"do_remote_prefill": true}), "the flag alone")
}

// vllmLonger: a prompt that needs more blocks than its handle has.
func vllmLonger(ctx context.Context, p *Probe) Verdict {
	t, why := p.takeHandle(ctx)
	if why != "" {
		return void("%s", why)
	}
	held := len(p.tokenIDs(ctx, "prefill", t.victim["prompt"].(string)))
	long := chant(p.Canary(1), victimLines)
	long = with(long, "prompt", p.lengthen(ctx, long["prompt"].(string), held+2*blockTokens))
	return p.deadly(ctx, with(long, handleKey, t.handle), "two blocks longer than the handle")
}

// deadly sends one request of tenant 1 and looks whether decode lives on, and whether
// tenant 0 still gets answers.
func (p *Probe) deadly(ctx context.Context, body map[string]any, what string) Verdict {
	control := "decode was alive and answered before"
	a := p.Tenant(1).Do(ctx, http.MethodPost, completionPath, nil, body)
	if p.dies(ctx, "decode") {
		return red(control, "%s: %s, and decode is dead", what, a.brief())
	}
	if !a.refused() {
		return void("%s: %s, and decode lives", what, a.brief())
	}
	after := p.Tenant(0).Post(ctx, completionPath, nil, chant(p.Canary(0), 6))
	if !after.OK() || !p.speaks(after.Text, 0) {
		return red(control, "%s: %s, and tenant 0 gets %s", what, a.brief(), after.brief())
	}
	return green(control, "%s: %s, and tenant 0 is answered", what, a.brief())
}
