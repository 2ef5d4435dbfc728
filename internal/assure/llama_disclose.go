package assure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	probeTokens = 72 // about, of the prompts that ask the cache
	cacheGap    = 24 // tokens by which a known prompt must differ from a fresh one
	timingPairs = 5
	// timingUnrest is a difference between two answers that means nothing.
	timingUnrest = 5 * time.Millisecond
)

// llamaCached: tenant 1 sends a prompt; tenant 0 sends the same and a fresh one and
// compares what the answers tell.
func llamaCached(ctx context.Context, p *Probe) Verdict {
	if why := p.caches(ctx); why != "" {
		return void("%s", why)
	}
	known, fresh := prose(probeTokens), prose(probeTokens)
	if first := p.Tenant(1).Post(ctx, chatPath, nil, saying(known, 1)); !first.OK() {
		return void("the first tenant's prompt gets %s", first.brief())
	}
	hit := p.Tenant(0).Post(ctx, chatPath, nil, saying(known, 1))
	miss := p.Tenant(0).Post(ctx, chatPath, nil, saying(fresh, 1))
	if !hit.OK() || !miss.OK() {
		return void("the probes get %s and %s", hit.brief(), miss.brief())
	}
	control := "asked twice by one tenant, the engine itself reports cached tokens"
	a, b := hit.told(), miss.told()
	switch {
	case a < 0 && b < 0:
		return green(control, "the answers tell no cached tokens (prompts of %d and %d tokens)", hit.Prompt, miss.Prompt)
	case a-b >= cacheGap:
		return red(control, "%d cached tokens for the other tenant's prompt, %d for a fresh one", a, b)
	}
	return green(control, "%d cached tokens for the other tenant's prompt, %d for a fresh one", a, b)
}

// told is the most cached tokens that an answer admits to, or -1.
func (a *Answer) told() int64 {
	var extra struct {
		Timings *struct {
			Cached *int64 `json:"cache_n"`
		} `json:"timings"`
	}
	most := a.Cached
	if json.Unmarshal(a.Body, &extra) == nil && extra.Timings != nil && extra.Timings.Cached != nil {
		most = max(most, *extra.Timings.Cached)
	}
	return most
}

// caches says why the engine cannot be shown to cache prompts, or "".
func (p *Probe) caches(ctx context.Context) string {
	body := saying(prose(probeTokens), 1)
	body["model"] = p.Site.Served
	var last Answer
	for range 2 {
		last = p.Raw(ctx, "plain", http.MethodPost, chatPath, nil, body)
	}
	if !last.OK() {
		return "straight at the engine, a prompt gets " + last.brief()
	}
	if last.told() < cacheGap {
		return fmt.Sprintf("asked twice, the engine itself reports %d cached tokens: its cache is off", last.told())
	}
	return ""
}

// llamaTiming: as llamaCached, by the clock. A machine's unrest only adds to a time, so the
// fastest of the known and of the fresh prompts are compared; see apart.
func llamaTiming(ctx context.Context, p *Probe) Verdict {
	if why := p.caches(ctx); why != "" {
		return void("%s", why)
	}
	var known, fresh []time.Duration
	for range timingPairs {
		text := prose(probeTokens)
		first := p.Tenant(1).Post(ctx, chatPath, nil, saying(text, 1))
		hit := p.Tenant(0).Post(ctx, chatPath, nil, saying(text, 1))
		miss := p.Tenant(0).Post(ctx, chatPath, nil, saying(prose(probeTokens), 1))
		if !first.OK() || !hit.OK() || !miss.OK() {
			return void("the probes get %s, %s and %s", first.brief(), hit.brief(), miss.brief())
		}
		known, fresh = append(known, hit.Took), append(fresh, miss.Took)
	}
	slices.Sort(known)
	slices.Sort(fresh)
	control := "asked twice by one tenant, the engine itself reports cached tokens"
	seen := fmt.Sprintf("%d pairs: %d to %d ms for the other tenant's prompts, %d to %d ms for fresh ones", timingPairs,
		known[0].Milliseconds(), known[timingPairs-1].Milliseconds(), fresh[0].Milliseconds(), fresh[timingPairs-1].Milliseconds())
	if apart(known[0], fresh[0]) {
		return red(control, "%s", seen)
	}
	return green(control, "%s", seen)
}

// apart says that the fastest of the known and of the fresh tell the two apart: by a half,
// and by more than a machine's unrest.
func apart(known, fresh time.Duration) bool {
	return 2*fresh > 3*known && fresh-known >= timingUnrest
}

// llamaTimings: the engine's own figures are not for tenants.
func llamaTimings(ctx context.Context, p *Probe) Verdict {
	var where []string
	for _, stream := range []bool{false, true} {
		a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 4, map[string]any{"stream": stream}))
		if !a.OK() || a.Text == "" {
			return void("a plain request gets %s", a.brief())
		}
		if bytes.Contains(a.Body, []byte(`"timings"`)) {
			where = append(where, map[bool]string{false: "the whole answer", true: "the stream"}[stream])
		}
	}
	control := "both answers came whole, with text"
	if len(where) > 0 {
		return red(control, "timings are in %s", strings.Join(where, " and in "))
	}
	return green(control, "no timings in the whole answer or in the stream")
}

// llamaVerbose: the field that makes the engine tell all.
func llamaVerbose(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	control := "the same request without the field gets 200"
	a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 2, map[string]any{"verbose": true}))
	var said struct {
		Verbose *struct {
			Prompt string `json:"prompt"`
			Slot   *int   `json:"id_slot"`
		} `json:"__verbose"`
	}
	if json.Unmarshal(a.Body, &said) == nil && said.Verbose != nil {
		return red(control, "the answer holds __verbose with a prompt of %d characters and the slot", len(said.Verbose.Prompt))
	}
	return green(control, "the request with verbose gets %s, and nothing is disclosed", a.brief())
}

// llamaCommands are the body fields that command the engine or make it disclose, with
// values that do no harm.
func llamaCommands() map[string]any {
	return map[string]any{
		"id_slot": -1, "cache_prompt": true, "n_cache_reuse": 0, "n_keep": 0, "n_discard": 0, "lora": []any{},
		"verbose": false, "timings_per_token": true, "return_progress": true, "return_tokens": true,
		"response_fields": []any{}, "n_predict": 1, "n_cmpl": 1, "reasoning_control": false,
	}
}

// llamaFields: each of them is to be refused by its name.
func llamaFields(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	control := "the same request without them gets 200"
	var taken, unnamed []string
	commands := llamaCommands()
	for name, value := range commands {
		a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 1, map[string]any{name: value}))
		switch {
		case a.Status < 400 || a.Status >= 500:
			taken = append(taken, name)
		case !bytes.Contains(a.Body, []byte(name)):
			unnamed = append(unnamed, name)
		}
	}
	slices.Sort(taken)
	slices.Sort(unnamed)
	if len(taken) > 0 {
		return red(control, "%d of %d are taken: %s", len(taken), len(commands), strings.Join(taken, ", "))
	}
	if len(unnamed) > 0 {
		return red(control, "all %d are refused, but these without their name: %s", len(commands), strings.Join(unnamed, ", "))
	}
	return green(control, "all %d are refused by name", len(commands))
}

// llamaTemplate: a variable of the template called messages takes the place of the
// conversation.
func llamaTemplate(ctx context.Context, p *Probe) Verdict {
	long := prose(probeTokens)
	whole := p.Tenant(0).Post(ctx, chatPath, nil, saying(long, 1))
	if !whole.OK() || whole.Prompt < cacheGap {
		return void("the plain request gets %s and counts %d", whole.brief(), whole.Prompt)
	}
	control := fmt.Sprintf("without the variable the prompt has %d tokens", whole.Prompt)
	a := p.Tenant(0).Post(ctx, chatPath, nil, saying(long, 1, map[string]any{
		"chat_template_kwargs": map[string]any{"messages": []map[string]any{{"role": "user", "content": "Hello"}}},
	}))
	if a.OK() && whole.Prompt-a.Prompt >= cacheGap/2 {
		return red(control, "with it the engine computes %d tokens: not the conversation that was sent", a.Prompt)
	}
	return green(control, "the request with the variable gets %s", a.brief())
}

// llamaPaths: everything but the two endpoints is the operator's.
func llamaPaths(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	paths := []struct {
		method, path string
		body         any
	}{
		{http.MethodGet, "/props", nil},
		{http.MethodGet, "/slots", nil},
		{http.MethodPost, "/slots/0?action=save", map[string]any{"filename": "x"}},
		{http.MethodGet, "/lora-adapters", nil},
		{http.MethodPost, "/lora-adapters", []any{}},
		{http.MethodGet, "/metrics", nil},
		{http.MethodPost, "/v1/streams/lookup", map[string]any{"conversation_ids": []string{"none"}}},
		{http.MethodPost, "/v1/chat/completions/control", map[string]any{}},
		{http.MethodPost, "/completion", map[string]any{"prompt": "a", "n_predict": 1}},
		{http.MethodPost, "/v1/messages", map[string]any{"max_tokens": 1, "messages": []map[string]any{{"role": "user", "content": "a"}}}},
		{http.MethodPost, "/infill", map[string]any{}},
		{http.MethodPost, "/tokenize", map[string]any{"content": "a"}},
		{http.MethodPost, "/apply-template", map[string]any{"messages": []any{}}},
		{http.MethodGet, "/v1/../slots", nil},
	}
	var reached []string
	for _, try := range paths {
		a := p.Tenant(0).Do(ctx, try.method, try.path, nil, try.body)
		switch a.Status {
		case 0, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnauthorized, http.StatusForbidden,
			http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			reached = append(reached, fmt.Sprintf("%s %s (%d)", try.method, try.path, a.Status))
		}
	}
	control := "a plain request gets 200"
	if len(reached) > 0 {
		return red(control, "%d of %d are reached: %s", len(reached), len(paths), strings.Join(reached, ", "))
	}
	return green(control, "none of %d is reached", len(paths))
}
