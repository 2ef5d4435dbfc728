package assure

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// vllmPromptIDs: the prompt that is answered is not the one that was read.
func vllmPromptIDs(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	ids := p.tokenIDs(ctx, p.front(), strings.Repeat(p.Canary(2)+"\n", 8))
	if len(ids) == 0 {
		return void("the engine does not count tokens")
	}
	body := saying("Say the word apple.", 40)
	plain := p.Tenant(1).Do(ctx, http.MethodPost, chatPath, nil, body)
	if !plain.OK() || p.speaks(plain.Text, 2) {
		return void("the request without the field gets %s", plain.brief())
	}
	control := "without the field the prompt that is read is answered"
	a := p.Tenant(1).Do(ctx, http.MethodPost, chatPath, nil, with(body, handleKey, map[string]any{"prompt_token_ids": ids}))
	if p.speaks(a.Text, 2) {
		return red(control, "%s, answered from %d token ids in the field instead of the prompt", a.brief(), len(ids))
	}
	if a.refused() {
		return green(control, "%s", a.brief())
	}
	return void("neither refused nor obeyed: %s", a.brief())
}

// vllmXargs: the slot of the hand-off has a second name.
func vllmXargs(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	control := "the request without the field gets 200"
	a := p.Tenant(1).Do(ctx, http.MethodPost, completionPath, nil,
		with(chant(p.Canary(1), 6), "vllm_xargs", map[string]any{handleKey: "x"}))
	if a.refused() {
		return green(control, "%s", a.brief())
	}
	return red(control, "%s", a.brief())
}

// vllmClientID: the id that answers are matched by.
func vllmClientID(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	mark := "chosen-" + salt()
	body := chant(p.Canary(1), 6)
	control := "the request without the id gets 200"
	header := p.Tenant(1).Post(ctx, completionPath, map[string]string{"X-Request-Id": mark}, body)
	field := p.Tenant(1).Post(ctx, completionPath, nil, with(body, "request_id", mark))
	if strings.Contains(header.ID, mark) || strings.Contains(field.ID, mark) {
		return red(control, "the answer's id is the client's: by header %t, by field %t",
			strings.Contains(header.ID, mark), strings.Contains(field.ID, mark))
	}
	if header.OK() && header.ID != "" && field.refused() {
		return green(control, "the header is not the answer's id (%s), the field gets %s", header.brief(), field.brief())
	}
	return void("by header %s, by field %s", header.brief(), field.brief())
}

// vllmControl are fields of the engine's own schema with which a tenant would command it,
// and values that the engine takes.
func vllmControl() map[string]any {
	return map[string]any{
		handleKey: map[string]any{}, "ec_transfer_params": map[string]any{}, "vllm_xargs": map[string]any{"a": 1},
		"cache_salt": "mine", "request_id": "mine", "session_id": "mine", "truncate_prompt_tokens": 8,
		"mm_processor_kwargs": map[string]any{}, "media_io_kwargs": map[string]any{}, "watermarking": false,
	}
}

// vllmFields: what of it is taken.
func vllmFields(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	control := "the request without any of them gets 200"
	var taken, odd []string
	fields := vllmControl()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		body := saying("Say the word apple.", 4, map[string]any{name: fields[name]})
		a := p.Tenant(1).Do(ctx, http.MethodPost, chatPath, nil, body)
		switch {
		case a.OK():
			taken = append(taken, name)
		case !a.refused():
			odd = append(odd, name+": "+a.brief())
		}
	}
	if len(odd) > 0 {
		return red(control, "%s", strings.Join(odd, "; "))
	}
	if len(taken) > 0 {
		return red(control, "%d of %d are taken: %s", len(taken), len(fields), strings.Join(taken, ", "))
	}
	return green(control, "all %d get 4xx", len(fields))
}

// vllmPaths: what lies beside the two paths that tenants need.
func vllmPaths(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	control := "the path of completions gets 200"
	asked := saying("Say the word apple.", 4)
	text := map[string]any{"prompt": "apple"}
	paths := []struct {
		method, path string
		body         any
	}{
		{http.MethodGet, "/metrics", nil}, {http.MethodGet, "/version", nil}, {http.MethodGet, "/load", nil},
		{http.MethodGet, "/openapi.json", nil}, {http.MethodPost, "/tokenize", text},
		{http.MethodPost, "/detokenize", map[string]any{"tokens": []int{1}}}, {http.MethodPost, "/scale_elastic_ep", map[string]any{}},
		{http.MethodPost, "/v1/responses", map[string]any{"input": "apple", "max_output_tokens": 2}}, {http.MethodPost, "/v1/messages", asked},
		{http.MethodPost, "/v1/chat/completions/batch", asked}, {http.MethodPost, "/invocations", asked},
	}
	var open []string
	for _, one := range paths {
		a := p.Tenant(1).Do(ctx, one.method, one.path, nil, one.body)
		if a.Status == 0 {
			return void("%s %s: %s", one.method, one.path, a.brief())
		}
		if a.Status != http.StatusNotFound && a.Status != http.StatusMethodNotAllowed {
			open = append(open, fmt.Sprintf("%s (%d)", one.path, a.Status))
		}
	}
	if len(open) > 0 {
		return red(control, "%d of %d are open: %s", len(open), len(paths), strings.Join(open, ", "))
	}
	return green(control, "all %d get 404", len(paths))
}

// hits is how many prompt tokens the engine that reads prompts has found in its cache.
func (p *Probe) hits(ctx context.Context) float64 {
	return p.gauge(ctx, p.first(), "vllm:prefix_cache_hits_total", "")
}

// vllmCached: what tenant 0 has sent, tenant 1 asks for.
func vllmCached(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	return p.shared(ctx, nil)
}

// vllmClientSalt: the same, and both name one salt.
func vllmClientSalt(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	own := map[string]any{"cache_salt": salt()}
	if a := p.Tenant(1).Post(ctx, completionPath, nil, chant(p.Canary(1), 6, own)); a.refused() {
		return green("the request without a salt gets 200", "a salt of the client's gets %s", a.brief())
	}
	return p.shared(ctx, own)
}

// shared says whether tenant 1 is served out of the cache what tenant 0 has sent. That
// tenant 0 itself is, is the control.
func (p *Probe) shared(ctx context.Context, more map[string]any) Verdict {
	body := chant(p.Canary(0), victimLines, more)
	before := p.hits(ctx)
	first := p.Tenant(0).Post(ctx, completionPath, nil, body)
	cold := p.hits(ctx)
	other := p.Tenant(1).Post(ctx, completionPath, nil, body)
	crossed := p.hits(ctx)
	again := p.Tenant(0).Post(ctx, completionPath, nil, body)
	own := p.hits(ctx)
	if !first.OK() || !other.OK() || !again.OK() || before < 0 {
		return void("tenant 0 gets %s, tenant 1 %s, tenant 0 again %s", first.brief(), other.brief(), again.brief())
	}
	if own <= crossed {
		return void("the engine does not cache even what one tenant repeats")
	}
	control := fmt.Sprintf("tenant 0's own repeat is served %.0f tokens from the cache", own-crossed)
	if crossed > cold || other.Cached > 0 {
		return red(control, "tenant 1 is served %.0f tokens from what tenant 0 sent, and is told %d", crossed-cold, max(other.Cached, 0))
	}
	return green(control, "tenant 1 is served none from what tenant 0 sent, and is told none")
}
