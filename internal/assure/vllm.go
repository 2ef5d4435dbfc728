package assure

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// vllmCases are what vLLM has been seen to do: its single server, its NIXL pair and its
// Mooncake pair.
func vllmCases() []Case {
	var (
		plain    = []upstream.Dialect{upstream.VLLM}
		nixl     = []upstream.Dialect{upstream.VLLMNixl}
		mooncake = []upstream.Dialect{upstream.VLLMMooncake}
		pairs    = []upstream.Dialect{upstream.VLLMNixl, upstream.VLLMMooncake}
		some     = []upstream.Dialect{upstream.VLLM, upstream.VLLMNixl}
		all      = []upstream.Dialect{upstream.VLLM, upstream.VLLMNixl, upstream.VLLMMooncake}
	)
	return []Case{
		{Name: "vllm-handed-over", Title: "decode computes the prompt itself, or answers wrongly, although prefill has done its part",
			Rules: []string{"G-3", "G-7", "G-11"}, Dialects: pairs, Run: vllmHandedOver},
		{Name: "vllm-forged-handle", Title: "a request with another's handle is answered from that tenant's prompt",
			Rules: []string{"G-1", "G-11"}, Dialects: nixl, Run: vllmForged},
		{Name: "vllm-stale-handle", Title: "a handle that was used before still gives its owner's prompt away",
			Rules: []string{"G-1", "G-11"}, Dialects: nixl, Run: vllmStale},
		{Name: "vllm-poisoned-cache", Title: "after a forged handle decode's prefix cache answers a plain request from another's prompt",
			Rules: []string{"G-1", "G-7"}, Dialects: nixl, Run: vllmPoisoned},
		{Name: "vllm-forged-transfer", Title: "a request with another's transfer id is answered from that tenant's prompt",
			Rules: []string{"G-1", "G-11"}, Dialects: mooncake, Run: vllmTransfer},
		{Name: "vllm-prompt-list", Title: "the second prompt of a list is answered from the pages of the first",
			Rules: []string{"G-11"}, Dialects: pairs, Run: vllmList},
		{Name: "vllm-refused-prefill", Title: "a prompt that prefill refuses is answered with 200 by decode alone",
			Rules: []string{"G-2", "G-3", "G-11"}, Dialects: nixl, Run: vllmRefused},
		{Name: "vllm-prompt-ids", Title: "a body field replaces the prompt that was read, counted and admitted",
			Rules: []string{"G-1"}, Dialects: some, Withheld: true, Run: vllmPromptIDs},
		{Name: "vllm-foreign-host", Title: "a body field makes the engine call an address of the client's choice",
			Rules: []string{"G-1"}, Dialects: pairs, Run: vllmForeignHost},
		{Name: "vllm-xargs", Title: "a body field reaches the slot of the hand-off and is answered as a fault of the server",
			Rules: []string{"G-1"}, Dialects: some, Run: vllmXargs},
		{Name: "vllm-client-id", Title: "a client chooses the id under which its answer is matched",
			Rules: []string{"G-1", "G-12"}, Dialects: all, Run: vllmClientID},
		{Name: "vllm-fields", Title: "fields that command the engine are taken from a tenant",
			Rules: []string{"G-1"}, Dialects: all, Run: vllmFields},
		{Name: "vllm-paths", Title: "a tenant reaches the engine's own paths: metrics, tokens, administration",
			Rules: []string{"G-1", "G-8"}, Dialects: plain, Run: vllmPaths},
		{Name: "vllm-cached-tokens", Title: "a tenant's prompt is served from what another tenant has sent, and the answer says so",
			Rules: []string{"G-7", "G-8"}, Dialects: some, Run: vllmCached},
		{Name: "vllm-client-salt", Title: "a tenant enters another's cache domain by naming its salt",
			Rules: []string{"G-1", "G-7"}, Dialects: plain, Run: vllmClientSalt},
		{Name: "vllm-expired-lease", Title: "decode fetches after prefill's lease has ended, and answers from another tenant's prompt",
			Rules: []string{"G-11"}, Dialects: nixl, Run: vllmExpired},
		{Name: "vllm-done-after-error", Title: "a stream that broke with the engine ends as if it were complete",
			Rules: []string{"G-5", "H-14"}, Dialects: some, Kills: true, Run: vllmDone},
		{Name: "vllm-killed-prefill", Title: "prefill dies between the legs, and the client gets an answer",
			Rules: []string{"G-3", "G-6"}, Dialects: nixl, Kills: true, Run: vllmKilledPrefill},
		{Name: "vllm-remote-prefill-alone", Title: "a value for the hand-off that a tenant makes up is not refused cleanly",
			Rules: []string{"G-1"}, Dialects: nixl, Kills: true, Withheld: true, Run: vllmAlone},
		{Name: "vllm-longer-than-prefilled", Title: "a prompt and a handle that do not fit together are not refused cleanly",
			Rules: []string{"G-1", "G-11"}, Dialects: nixl, Kills: true, Withheld: true, Run: vllmLonger},
	}
}

// chant is a completion request whose prompt says a text over and over, so that even a
// small model says it again; lines of about 30 tokens.
func chant(text string, lines int, more ...map[string]any) map[string]any {
	body := map[string]any{"prompt": strings.Repeat(text+"\n", lines), "temperature": 0, "max_tokens": 40}
	for _, m := range more {
		for name, value := range m {
			body[name] = value
		}
	}
	return body
}

// Lines of a chant: a victim's fills five blocks of 128 tokens and more, an attacker's
// nearly as many.
const (
	victimLines   = 26
	attackerLines = 23
)

// speaks says whether a text holds a canary of the owner.
func (p *Probe) speaks(text string, owner int) bool {
	for _, h := range p.ForeignText(text, -1) {
		if h.Owner == owner {
			return true
		}
	}
	return false
}

// secret is a chant whose text the model says again, as the engine alone shows under a
// salt of its own: not each text is said again. nil: there is none.
func (p *Probe) secret(ctx context.Context, owner, lines int) map[string]any {
	for range 6 {
		body := chant(p.Canary(owner), lines)
		a := p.Raw(ctx, p.front(), http.MethodPost, completionPath, nil, with(with(body, "model", p.Site.Served), "cache_salt", salt()))
		if a.OK() && p.speaks(a.Text, owner) {
			return body
		}
	}
	return nil
}

// blockTokens is the size of a block on the CPU; level makes use of it.
const blockTokens = 128

// level puts words before the prompts of bodies until all have the same number of tokens,
// so that the pages of one fit the other: whole blocks and two tokens more. A prefix
// cache, which holds whole blocks, then holds all of a prompt but its end.
func (p *Probe) level(ctx context.Context, bodies ...*map[string]any) {
	want := 0
	for _, b := range bodies {
		text, _ := (*b)["prompt"].(string)
		want = max(want, len(p.tokenIDs(ctx, p.first(), text)))
	}
	const mark = 16 // what lengthen puts before it at least, and some
	want = (want+mark+blockTokens-3)/blockTokens*blockTokens + 2
	for _, b := range bodies {
		text, _ := (*b)["prompt"].(string)
		*b = with(*b, "prompt", p.lengthen(ctx, text, want))
	}
}

// lengthen puts words before a text until it has so many tokens, or nearly. The first is
// one of its own, so that no block of it is known to a cache.
func (p *Probe) lengthen(ctx context.Context, text string, want int) string {
	mark, words := "Run "+salt()[:8]+" ", 0
	for range 8 {
		n := len(p.tokenIDs(ctx, p.first(), mark+strings.Repeat("so ", words)+text))
		if n == want || n == 0 {
			break
		}
		words = max(words+want-n, 0)
	}
	return mark + strings.Repeat("so ", words) + text
}

// ready waits for the front of the way to answer a chant rightly; it says why it does
// not, or "". An engine that a case before has ended is started again, if anybody can.
func (p *Probe) ready(ctx context.Context) string {
	for _, name := range []string{"plain", "prefill", "decode"} {
		if _, named := p.Site.named()[name]; named && !p.healthy(ctx, name) {
			if _, err := p.Fault(ctx, "revive"); err != nil {
				return "an engine is dead and does not come back"
			}
			break
		}
	}
	var a Answer
	if p.wait(ctx, 8*p.patience, func() bool {
		a = p.Tenant(0).Post(ctx, completionPath, nil, chant(p.Canary(0), 6))
		return a.OK() && p.speaks(a.Text, 0)
	}) {
		return ""
	}
	if a.OK() {
		return "the model does not say again what it is told: nothing would show"
	}
	return "a plain request gets " + a.brief()
}

// pause waits, and says whether the time was up rather than the context.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// healthy asks an engine whether it lives.
func (p *Probe) healthy(ctx context.Context, name string) bool {
	inner, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a := p.Raw(inner, name, http.MethodGet, "/health", nil, nil)
	return a.Status == http.StatusOK
}

// dies waits a little for an engine to die. An engine that is dying still answers for a
// moment, and one that has died may take a moment to say so.
func (p *Probe) dies(ctx context.Context, name string) bool {
	return p.wait(ctx, p.patience, func() bool { return !p.healthy(ctx, name) })
}

// front is the engine that answers clients.
func (p *Probe) front() string {
	if p.Site.Plain != "" {
		return "plain"
	}
	return "decode"
}

// first is the engine that reads prompts.
func (p *Probe) first() string {
	if p.Site.Plain != "" {
		return "plain"
	}
	return "prefill"
}

// gauge is the sum of a metric of an engine over all of its label sets that hold a text;
// -1 if it cannot be had.
func (p *Probe) gauge(ctx context.Context, engine, metric, label string) float64 {
	a := p.Raw(ctx, engine, http.MethodGet, "/metrics", nil, nil)
	if a.Status != http.StatusOK {
		return -1
	}
	sum, found := 0.0, false
	lines := bufio.NewScanner(bytes.NewReader(a.Body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		name, rest, _ := strings.Cut(line, "{")
		if name != metric || !strings.Contains(rest, label) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			continue
		}
		sum, found = sum+value, true
	}
	if !found {
		return -1
	}
	return sum
}

// handed is how many prompt tokens decode has taken over, and how many it has computed.
func (p *Probe) handed(ctx context.Context) (taken, computed float64) {
	const metric = "vllm:prompt_tokens_by_source_total"
	return p.gauge(ctx, "decode", metric, `source="external_kv_transfer"`), p.gauge(ctx, "decode", metric, `source="local_compute"`)
}

// handle is what prefill hands out for a prompt, as to any client who asks.
func (p *Probe) handle(ctx context.Context, body map[string]any, more ...map[string]any) (json.RawMessage, error) {
	m := map[string]any{"model": p.Site.Served, handleKey: map[string]any{"do_remote_decode": true, "do_remote_prefill": false}}
	for name, value := range body {
		m[name] = value
	}
	for _, one := range more {
		for name, value := range one {
			m[name] = value
		}
	}
	m["max_tokens"] = 1
	a := p.Raw(ctx, "prefill", http.MethodPost, completionPath, nil, m)
	var said struct {
		Handle json.RawMessage `json:"kv_transfer_params"`
	}
	if !a.OK() || json.Unmarshal(a.Body, &said) != nil || len(said.Handle) == 0 || string(said.Handle) == "null" {
		return nil, fmt.Errorf("prefill hands out nothing: %s", a.brief())
	}
	return said.Handle, nil
}

// with is a body with one field more, or another value of one.
func with(body map[string]any, name string, value any) map[string]any {
	m := map[string]any{}
	for n, v := range body {
		m[n] = v
	}
	m[name] = value
	return m
}

// refused says that an answer is a 4xx without any text.
func (a *Answer) refused() bool { return a.Status >= 400 && a.Status < 500 && a.Text == "" }

// tokens asks an engine for the token ids of a text.
func (p *Probe) tokenIDs(ctx context.Context, engine, text string) []int {
	a := p.Raw(ctx, engine, http.MethodPost, "/tokenize", nil, map[string]any{"model": p.Site.Served, "prompt": text})
	var said struct {
		Tokens []int `json:"tokens"`
	}
	if json.Unmarshal(a.Body, &said) != nil {
		return nil
	}
	return said.Tokens
}
