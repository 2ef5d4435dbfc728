package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	answerTokens = 30 // of an answer in which a secret is looked for
	// A penalty on what was said already makes a small model leave the words that it
	// counts and take up what else it attends to.
	penalty = 1.0
)

// sglangOverlong: other tenants fill decode's pool with secrets; then tenant 0 sends a
// prompt that prefill does not take and decode does.
func sglangOverlong(ctx context.Context, p *Probe) Verdict {
	prefill, decode, ok := p.sglangInfos(ctx)
	switch {
	case !ok:
		return skip("the engines do not tell their limits (GET /server_info)")
	case decode.MaxInput-prefill.MaxInput < 128:
		return skip("prefill takes %d tokens and decode %d: there is no prompt that only one of them takes", prefill.MaxInput, decode.MaxInput)
	}
	filled, why := p.fill(ctx, prefill, decode)
	if why != "" {
		return void("while decode's pool is filled: %s", why)
	}
	control := fmt.Sprintf("%d prompts of other tenants were answered before, which is more than decode's pool of %d tokens", filled, decode.Pool)
	long := p.numeralsOf(ctx, int(prefill.MaxInput)+90)
	// Without admission the request is on its way before anybody knows; then an error of the
	// hand-off is an honest end too, and it comes when decode has spoken.
	limit, within, admitted := patience, soon, p.Site.Facts["admission"] != "off"
	if !admitted {
		quiet := p.Tenant(0).Post(ctx, completionPath, nil, form{path: completionPath}.body(p.numeralsOf(ctx, int(prefill.MaxInput)-60), answerTokens))
		limit = watch(quiet.Took)
		within = limit
	}
	var all []attempt
	for _, f := range forms() {
		all = append(all, p.ask(ctx, f, f.body(long, answerTokens, map[string]any{"frequency_penalty": penalty}), limit))
	}
	left := p.drained(ctx, soon)
	served := p.works(ctx)
	why = fmt.Sprintf("a prompt of over %d tokens, where prefill takes %d: %s", prefill.MaxInput+90, prefill.MaxInput, tell(all))
	switch {
	case some(all, func(t *attempt) bool { return !t.refused(within) }):
		return red(control, "%s", why)
	case admitted && some(all, func(t *attempt) bool { return t.client.Status >= 500 }):
		return red(control, "%s: no fault of the server", why)
	case left != "":
		return red(control, "%s; %v later %s", why, soon, left)
	case served != "":
		return red(control, "%s; afterwards %s", why, served)
	}
	return green(control+"; a plain request afterwards gets 200", "%s; decode's queues are empty within %v", why, soon)
}

// sglangWindow: what a client is told that it may send must be taken, and what is not
// taken must be refused at once and with the number.
func sglangWindow(ctx context.Context, p *Probe) Verdict {
	prefill, decode, ok := p.sglangInfos(ctx)
	if !ok {
		return skip("the engines do not tell their limits (GET /server_info)")
	}
	takes := min(prefill.MaxInput, decode.MaxInput)
	f := form{path: completionPath}
	fits := f.body(p.numeralsOf(ctx, int(takes)-16), 2)
	if a := p.Tenant(0).Post(ctx, f.path, nil, fits); !a.OK() {
		return void("a prompt of %d tokens, where the pair takes %d, gets %s", takes-16, takes, a.brief())
	}
	control := fmt.Sprintf("a prompt of %d tokens gets 200", takes-16)
	a := p.Tenant(0).Get(ctx, "/v1/models", nil)
	var list struct {
		Data []struct {
			Window int64 `json:"max_model_len"`
		} `json:"data"`
	}
	if a.Status != http.StatusOK || json.Unmarshal(a.Body, &list) != nil || len(list.Data) == 0 {
		return void("the list of models gets %s", a.brief())
	}
	for _, m := range list.Data {
		// What the engine keeps for itself is a handful of tokens.
		if m.Window > takes+16 {
			return red(control, "%d tokens are told, and the pair takes %d", m.Window, takes)
		}
	}
	over := p.ask(ctx, f, f.body(p.numeralsOf(ctx, int(takes)+16), 2), patience)
	why := fmt.Sprintf("a prompt of %d tokens: %s", takes+16, over.String())
	if !over.refused(soon) || over.client.Status >= 500 {
		return red(control, "%s", why)
	}
	return green(control, "%s; the list of models tells no more than the pair takes", why)
}

// sglangLegs: something between the gateway and prefill gives prefill another prompt.
// Prefill is content; decode has room for more than was written.
func sglangLegs(ctx context.Context, p *Probe) Verdict {
	prefill, decode, ok := p.sglangInfos(ctx)
	if !ok {
		return skip("the engines do not tell their limits (GET /server_info)")
	}
	if _, ok := p.faults["cut-prompt"]; !ok {
		return skip("nobody is there to change what prefill gets")
	}
	filled, why := p.fill(ctx, prefill, decode)
	if why != "" {
		return void("while decode's pool is filled: %s", why)
	}
	long := p.numeralsOf(ctx, int(prefill.MaxInput)-60)
	penalized := map[string]any{"frequency_penalty": penalty}
	whole := form{path: completionPath}
	quiet := p.Tenant(0).Post(ctx, whole.path, nil, whole.body(long, answerTokens, penalized))
	if hits := p.Foreign(quiet, 0); !quiet.OK() || len(hits) > 0 {
		return void("the same request with equal legs gets %s", quiet.brief())
	}
	control := fmt.Sprintf("%d prompts of other tenants were answered before; with equal legs the request gets 200 and counts %d", filled, quiet.Prompt)
	limit := watch(quiet.Took)
	var all []attempt
	for _, f := range forms() {
		t, err := p.askTampered(ctx, f, f.body(long, answerTokens, penalized), limit)
		if err != nil {
			return void("%v: prefill's prompt was not changed", f)
		}
		all = append(all, t)
	}
	left, served := p.drained(ctx, soon), p.works(ctx)
	why = fmt.Sprintf("prefill gets a few words of %d tokens: %s", quiet.Prompt, tell(all))
	switch {
	case some(all, func(t *attempt) bool { return len(t.hits) > 0 || !t.refused(limit) }):
		return red(control, "%s", why)
	case left != "":
		return red(control, "%s; %v later %s", why, soon, left)
	case served != "":
		return red(control, "%s; afterwards %s", why, served)
	}
	return green(control+"; a plain request afterwards gets 200", "%s", why)
}

// askTampered is [Probe.ask] while prefill gets another prompt. An error means that it
// did not get one.
func (p *Probe) askTampered(ctx context.Context, f form, body map[string]any, limit time.Duration) (attempt, error) {
	if p.Way != Direct {
		if _, err := p.Fault(ctx, "cut-prompt"); err != nil {
			return attempt{}, err
		}
		t := p.ask(ctx, f, body, limit)
		_, err := p.Fault(ctx, "whole-prompt")
		return t, err
	}
	// Straight at the engines nothing stands before prefill; the naive client does itself
	// what the fault does.
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	meet := room()
	inner, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan Answer, 1)
	short := f.body("Hello", answerTokens)
	go func() { done <- p.Raw(inner, "prefill", http.MethodPost, f.path, nil, p.inRoom(short, meet)) }()
	t := attempt{form: f, client: p.Raw(ctx, "decode", http.MethodPost, f.path, nil, p.inRoom(body, meet))}
	stop()
	prefill := <-done
	t.prefill = &prefill
	t.hits = p.Foreign(t.client, 0)
	return t, nil
}

// sglangKilled: prefill dies under a request.
func sglangKilled(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	prefill, _, ok := p.sglangInfos(ctx)
	if !ok {
		return skip("the engines do not tell their limits (GET /server_info)")
	}
	// Before the gateway prefill is killed when its leg has come; straight at the engines,
	// where nothing stands before it, as soon as the request is on its way.
	kill := "kill-prefill-at-leg"
	if p.Way == Direct {
		kill = "kill-prefill"
	}
	if _, ok := p.faults[kill]; !ok {
		return skip("nobody is there to kill prefill")
	}
	const limit = 15 * time.Second
	var all []attempt
	bad := false
	for i, f := range []form{{chatPath, false}, {chatPath, true}} {
		inner, cancel := context.WithTimeout(ctx, limit+5*time.Second)
		var err error
		if i == 0 && p.Way != Direct {
			_, err = p.Fault(ctx, kill)
		}
		answers := make(chan Answer, 1)
		text := strings.Repeat(numerals(40)+" "+p.Fingerprint(fmt.Sprint(i, time.Now()))+" ", int(prefill.MaxInput)/80)
		go func() { answers <- p.Tenant(0).Post(inner, f.path, nil, f.body(text, 4)) }()
		if i == 0 && p.Way == Direct {
			_, err = p.Fault(ctx, kill)
		}
		t := attempt{form: f, client: <-answers}
		cancel()
		if i == 0 && p.Way != Direct && err == nil {
			_, err = p.Fault(ctx, "prefill-is-dead")
		}
		if err != nil {
			return void("prefill was not killed under the request, which gets %s", t.client.brief())
		}
		all = append(all, t)
		bad = bad || t.client.OK() || t.client.Text != "" || t.client.Took > limit ||
			t.client.Status < 500 && !t.client.ErrorEvent
	}
	control := "a plain request gets 200 before prefill is killed under one of its legs"
	why := fmt.Sprintf("a request under which prefill dies, and one after it: %s", tell(all))
	if bad {
		return red(control, "%s", why)
	}
	return green(control, "%s", why)
}
