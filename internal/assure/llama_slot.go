package assure

import (
	"context"
	"fmt"
	"strings"
)

// llamaRoute is a path of the engine.
type llamaRoute struct {
	name, path string
	// body asks for n tokens after the text.
	body func(text string, n int) map[string]any
}

// llamaRoutes returns the routes on which id_slot is tried.
func llamaRoutes() []llamaRoute {
	plain := func(key, limit string) func(string, int) map[string]any {
		return func(text string, n int) map[string]any {
			return map[string]any{key: text, limit: n, "temperature": 0}
		}
	}
	return []llamaRoute{
		{"chat", chatPath, func(text string, n int) map[string]any { return saying(text, n) }},
		{"completions", completionPath, plain("prompt", "max_tokens")},
		{"responses", "/v1/responses", plain("input", "max_output_tokens")},
		{"native", "/completion", plain("prompt", "n_predict")},
	}
}

const (
	victimTokens = 40 // of the victim's answer
	victimReads  = 12 // bytes of it before the thief strikes
	slotTries    = 2
)

// llamaSlot: tenant 1 streams; tenant 0 sends a prompt with the number of tenant 1's
// slot. The answer of tenant 1 must be what it is undisturbed.
func llamaSlot(ctx context.Context, p *Probe, route llamaRoute) Verdict {
	victim := func() map[string]any { return saying(counting(p.Fingerprint("victim")), victimTokens, streamed()) }
	quiet := p.Tenant(1).Post(ctx, chatPath, nil, victim())
	if !quiet.OK() || len(quiet.Text) <= victimReads {
		return void("the victim's stream gets %s", quiet.brief())
	}
	if hits := p.Foreign(quiet, 1); len(hits) > 0 {
		return void("the undisturbed answer holds %s", hits[0])
	}
	control := fmt.Sprintf("undisturbed, the victim's stream has %d characters and none of the thief's", len(quiet.Text))
	var last slotRound
	for range slotTries {
		last = p.steal(ctx, route, victim(), true)
		if last.answer.Status == 0 || last.void != "" {
			return void("%s", last.void+last.answer.brief())
		}
		if len(last.hits) > 0 {
			return red(control, "the victim's answer holds %s; the thief's requests got %s", last.hits[0], last.statuses())
		}
		if last.refused() {
			break
		}
	}
	if !last.answer.OK() {
		return red(control, "the victim's answer was cut: %s; the thief's requests got %s", last.answer.brief(), last.statuses())
	}
	if last.answer.Text == quiet.Text {
		return green(control, "the victim's answer is what it is undisturbed; the thief's requests got %s", last.statuses())
	}
	// It differs. That may be arithmetic: other batches, other roundings.
	harmless := p.steal(ctx, route, victim(), false)
	if harmless.answer.Text != quiet.Text {
		return void("the victim's answer also differs when the thief names no slot")
	}
	return red(control, "the victim's answer differs from what it is undisturbed; the thief's requests got %s", last.statuses())
}

// slotRound is one try.
type slotRound struct {
	answer Answer   // the victim's
	thief  []Answer // the thief's
	hits   []Hit
	void   string
}

func (r *slotRound) statuses() string {
	var all []string
	for _, a := range r.thief {
		all = append(all, a.brief())
	}
	return strings.Join(all, "; ")
}

// refused says that no request of the thief was taken.
func (r *slotRound) refused() bool {
	for _, a := range r.thief {
		if a.Status < 400 {
			return false
		}
	}
	return true
}

// steal lets the victim stream and the thief strike: at the busy slots if the engine
// tells them, else at the first four.
func (p *Probe) steal(ctx context.Context, route llamaRoute, victim map[string]any, named bool) slotRound {
	thief, prompt := p.Tenant(0), chanting(p.Canary(0))
	// Once before: the engine knows the thief's prompt.
	thief.Post(ctx, route.path, nil, route.body(prompt, 1))
	s := p.Tenant(1).Open(ctx, chatPath, nil, victim)
	if !s.Until(victimReads) {
		return slotRound{void: "the victim's stream did not begin: ", answer: s.Rest()}
	}
	var targets []int
	if all, ok := p.slots(ctx); ok {
		for _, one := range all {
			if one.Busy {
				targets = append(targets, one.ID)
			}
		}
	} else {
		targets = []int{0, 1, 2, 3}
	}
	if len(targets) == 0 {
		return slotRound{void: "no slot was busy while the victim's stream ran: ", answer: s.Rest()}
	}
	answers := make(chan Answer, len(targets))
	for _, target := range targets {
		body := route.body(prompt, 2)
		if named {
			body["id_slot"] = target
		}
		go func() { answers <- thief.Post(ctx, route.path, nil, body) }()
	}
	r := slotRound{answer: s.Rest()}
	for range targets {
		r.thief = append(r.thief, <-answers)
	}
	r.hits = p.Foreign(r.answer, 1)
	return r
}
