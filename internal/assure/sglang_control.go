package assure

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// sglangCommands are fields with which the engine is commanded, with values that it
// takes and that do no harm.
func sglangCommands(p *Probe) map[string]any {
	mark := p.Fingerprint("command")
	return map[string]any{
		"rid": "chosen-" + mark, "cache_salt": "victim-salt", "extra_key": "victim-key", "priority": "high",
		"routed_dp_rank": 0, "data_parallel_rank": 0, "disagg_prefill_dp_rank": 0,
		"lora_path": "adapter", "session_params": map[string]any{}, "session_id": "s", "return_hidden_states": false,
		"custom_logit_processor": nil, "custom_params": map[string]any{"k": 1}, "images_config": map[string]any{},
		"input_ids": []int{1}, "bootstrap_host": "127.0.0.1",
	}
}

// sglangFields: what commands the engine is refused, and by its name.
func sglangFields(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request without them gets 200"
	var taken, unnamed []string
	commands := sglangCommands(p)
	// priority has a meaning at a gateway, within the tenant's own; null is "not given".
	delete(commands, "priority")
	delete(commands, "custom_logit_processor")
	for name, value := range commands {
		inner, cancel := context.WithTimeout(ctx, patience)
		a := p.Tenant(0).Post(inner, chatPath, nil, saying("Say the word apple.", 1, map[string]any{name: value}))
		cancel()
		switch {
		case a.Status < 400 || a.Status >= 500:
			taken = append(taken, name)
		case !bytes.Contains(a.Body, []byte(name)):
			unnamed = append(unnamed, name)
		}
	}
	slices.Sort(taken)
	slices.Sort(unnamed)
	switch {
	case len(taken) > 0:
		return red(control, "%d of %d are taken: %s", len(taken), len(commands), strings.Join(taken, ", "))
	case len(unnamed) > 0:
		return red(control, "all %d are refused, but these without their name: %s", len(commands), strings.Join(unnamed, ", "))
	}
	return green(control, "all %d are refused by name", len(commands))
}

// sglangHeaders: the engine lets headers override fields of the body.
func sglangHeaders(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request without the header gets 200"
	chosen := "chosen-" + p.Fingerprint(time.Now().String())
	a := p.Tenant(0).Post(ctx, chatPath, map[string]string{"x-override-rid": chosen}, saying("Say the word apple.", 1))
	if a.OK() && a.ID == chosen {
		return red(control, "the answer's id is the one that a header chose")
	}
	bad := p.Tenant(0).Post(ctx, chatPath, map[string]string{"x-override-priority": "x"}, saying("Say the word apple.", 1))
	if bad.Status == http.StatusBadRequest && bytes.Contains(bad.Body, []byte("int()")) {
		return red(control, "the engine reads the header and complains of its value: %s", bad.brief())
	}
	if p.Way != Direct && a.OK() && strings.Contains(string(a.Body), chosen) {
		return red(control, "the answer repeats the id that a header chose")
	}
	return green(control, "with an id chosen by a header: %s; with a value that the engine would refuse: %s", a.brief(), bad.brief())
}

// sglangRid: whoever chooses ids can choose one that is the beginning of others' ids, and
// the engine ends by beginnings.
func sglangRid(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request without an id of its own gets 200"
	chosen := "chosen-" + p.Fingerprint(time.Now().String())
	a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 1, map[string]any{"rid": chosen}))
	switch {
	case a.OK() && a.ID == chosen:
		return red(control, "the request runs under the id that its sender chose")
	case a.Status >= 400 && a.Status < 500:
		return green(control, "an id of its own is refused: %s", a.brief())
	}
	return red(control, "an id of its own gets %s", a.brief())
}

// sglangAbort: tenant 1 streams; tenant 0 asks the engine to end everything.
func sglangAbort(ctx context.Context, p *Probe) Verdict {
	const length = 60
	ask := func() map[string]any {
		return saying(counting(p.Fingerprint(time.Now().String())), length, streamed())
	}
	quiet := p.Tenant(1).Post(ctx, chatPath, nil, ask())
	if !quiet.OK() || !slices.Equal(quiet.Finish, []string{"length"}) {
		return void("undisturbed, the victim's stream gets %s and ends by %q", quiet.brief(), quiet.Finish)
	}
	control := fmt.Sprintf("undisturbed, the victim's stream has %d events and ends by its length", quiet.Events)
	var seen []string
	for _, order := range []struct {
		name string
		body func(id string) map[string]any
	}{
		{"by the id in the answer", func(id string) map[string]any { return map[string]any{"rid": id} }},
		{"all of them", func(string) map[string]any { return map[string]any{"rid": "", "abort_all": true} }},
	} {
		s := p.Tenant(1).Open(ctx, chatPath, nil, ask())
		if !s.Until(victimReads) {
			a := s.Rest()
			return void("the victim's stream did not begin: %s", a.brief())
		}
		body, err := encode(order.body(s.read.answer.ID))
		if err != nil {
			s.Close()
			return void("the id of the victim's answer is no text")
		}
		said := p.Tenant(0).Do(ctx, http.MethodPost, "/abort_request", nil, body)
		victim := s.Rest()
		if !victim.OK() || !slices.Equal(victim.Finish, []string{"length"}) || victim.Events < quiet.Events/2 {
			return red(control, "the order to end %s gets %s; the victim's stream gets %s after %d events and ends by %q",
				order.name, said.brief(), victim.brief(), victim.Events, victim.Finish)
		}
		seen = append(seen, "the order to end "+order.name+" gets "+said.brief())
	}
	return green(control, "%s; the victim's streams are whole", strings.Join(seen, "; "))
}

// sglangPaths: everything but the two endpoints is the operator's.
func sglangPaths(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	paths := []struct {
		method, path string
		body         any
	}{
		{http.MethodGet, "/server_info", nil},
		{http.MethodGet, "/get_server_info", nil},
		{http.MethodGet, "/model_info", nil},
		{http.MethodGet, "/v1/loads?include=all", nil},
		{http.MethodGet, "/metrics", nil},
		{http.MethodPost, "/abort_request", map[string]any{"rid": "none"}},
		{http.MethodPost, "/flush_cache", map[string]any{}},
		{http.MethodPost, "/set_internal_state", map[string]any{"server_args": map[string]any{}}},
		{http.MethodPost, "/configure_logging", map[string]any{}},
		{http.MethodPost, "/tokenize", map[string]any{"prompt": "a"}},
		{http.MethodPost, "/v1/tokenize", map[string]any{"prompt": "a"}},
		{http.MethodGet, "/hicache/storage-backend", nil},
		{http.MethodGet, "/openapi.json", nil},
	}
	var open []string
	for _, x := range paths {
		a := p.Tenant(0).Do(ctx, x.method, x.path, nil, x.body)
		if a.Status < 400 {
			open = append(open, strings.TrimSuffix(x.path, "?include=all"))
		}
	}
	const control = "a plain request on the same address gets 200"
	if len(open) > 0 {
		return red(control, "%d of %d are open: %s", len(open), len(paths), strings.Join(open, ", "))
	}
	return green(control, "all %d are refused", len(paths))
}

// cacheTokens is the length of the prompt in sglangCache.
const cacheTokens = 160

// sglangCache: tenant 1 sends a prompt; tenant 0 sends the same one.
func sglangCache(ctx context.Context, p *Probe) Verdict {
	f := form{path: completionPath}
	// Fresh words: nobody has sent them before.
	known := prose(cacheTokens)
	counter := func() float64 { return p.sglangCached(ctx) }
	before := counter()
	first := p.Tenant(1).Post(ctx, f.path, nil, f.body(known, 1))
	if !first.OK() {
		return void("the first prompt gets %s", first.brief())
	}
	fresh := counter()
	again := p.Tenant(1).Post(ctx, f.path, nil, f.body(known, 1))
	same := counter()
	const enough = cacheTokens / 4
	if !again.OK() || same-fresh < enough || fresh-before > enough {
		return void("the engine's own counter does not show a cache: %.0f tokens cached at first, %.0f when the same tenant repeats its prompt (is its cache report on?)",
			fresh-before, same-fresh)
	}
	control := fmt.Sprintf("when the tenant repeats its own prompt, prefill takes %.0f tokens of it from its cache", same-fresh)
	other := p.Tenant(0).Post(ctx, f.path, nil, f.body(known, 1))
	shared := counter() - same
	switch {
	case !other.OK():
		return void("another tenant's same prompt gets %s", other.brief())
	case other.Cached >= enough:
		return red(control, "another tenant's same prompt is told to be cached, %d tokens of it", other.Cached)
	case shared >= enough:
		return red(control, "of another tenant's same prompt prefill takes %.0f tokens from its cache, which shows in the time", shared)
	}
	return green(control, "of another tenant's same prompt prefill takes %.0f tokens from its cache, and the answer tells %d", shared, other.Cached)
}

// sglangCached is prefill's own counter of prompt tokens that came from its cache.
func (p *Probe) sglangCached(ctx context.Context) float64 {
	a := p.Raw(ctx, "prefill", http.MethodGet, "/metrics/", nil, nil)
	var sum float64
	for line := range strings.Lines(string(a.Body)) {
		if !strings.HasPrefix(line, "sglang:cached_tokens_total{") {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err == nil {
			sum += n
		}
	}
	return sum
}

// sglangModel: a name that nobody serves is refused.
func sglangModel(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request with the right name gets 200"
	a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 1, map[string]any{"model": "no-such-model"}))
	if a.Status >= 400 && a.Status < 500 {
		return green(control, "a name that nobody serves gets %s", a.brief())
	}
	return red(control, "a name that nobody serves gets %s", a.brief())
}

// sglangChoices: n = 2.
func sglangChoices(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request for one answer gets 200"
	inner, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	a := p.Tenant(0).Post(inner, chatPath, nil, saying("Say the word apple.", 4, map[string]any{"n": 2}))
	switch {
	case a.OK() && len(a.Finish) == 2 && a.Finish[0] != "" && a.Finish[1] != "":
		return green(control, "two answers get 200, %d tokens in all", a.Completion)
	case a.Status >= 400 && a.Status < 500:
		return green(control, "two answers are refused: %s", a.brief())
	}
	return red(control, "two answers get %s after %.1f s", a.brief(), a.Took.Seconds())
}

// sglangErrors: a wrong value must not come back, and no path of the machine with it.
func sglangErrors(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	secret := p.Canary(0)
	a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 1, map[string]any{"temperature": secret}))
	const control = "the same request with a right value gets 200"
	var told []string
	const nobody = -1 // so that the sender's own secret counts
	if len(p.cage.find(string(a.Body), nobody)) > 0 {
		told = append(told, "what was sent")
	}
	if bytes.Contains(a.Body, []byte(".py")) {
		told = append(told, "a path of the machine")
	}
	switch {
	case a.Status < 400 || a.Status >= 500:
		return red(control, "a wrong value gets %s", a.brief())
	case len(told) > 0:
		return red(control, "a wrong value gets %s, and the answer tells %s", a.brief(), strings.Join(told, " and "))
	}
	return green(control, "a wrong value gets %s, which tells neither", a.brief())
}
