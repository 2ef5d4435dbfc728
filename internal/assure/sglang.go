package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// sglangCases are what pairs of SGLang are tried with.
func sglangCases() []Case {
	var cases []Case
	for _, c := range []Case{
		{Name: "sglang-overlong", Title: "a prompt that prefill refuses is answered from pages that nobody wrote, or decode waits for minutes",
			Rules: []string{"G-2", "G-3", "G-5"}, Run: sglangOverlong},
		{Name: "sglang-window", Title: "the window that is told is larger than what prefill takes",
			Rules: []string{"G-2"}, Run: sglangWindow},
		{Name: "sglang-legs", Title: "when the legs do not have the same prompt, decode answers from pages that nobody wrote",
			Rules: []string{"G-3"}, Run: sglangLegs},
		{Name: "sglang-room-equal", Title: "a request meets another tenant's hand-off, with a prompt of equal length",
			Rules: []string{"G-1", "G-3", "G-12"}, Withheld: true, Run: theft(0)},
		{Name: "sglang-room-longer", Title: "a request meets another tenant's hand-off, with a longer prompt",
			Rules: []string{"G-1", "G-3", "G-12"}, Withheld: true, Run: theft(40)},
		{Name: "sglang-room-shorter", Title: "a request meets another tenant's hand-off, with a shorter prompt",
			Rules: []string{"G-1", "G-3", "G-12"}, Withheld: true, Run: theft(-12)},
		{Name: "sglang-fields", Title: "fields that command the engine are taken from a tenant",
			Rules: []string{"G-1", "G-7"}, Run: sglangFields},
		{Name: "sglang-headers", Title: "headers that command the engine are taken from a tenant",
			Rules: []string{"G-1", "G-12"}, Run: sglangHeaders},
		{Name: "sglang-rid", Title: "a tenant chooses the id under which the engine runs, logs and ends its request",
			Rules: []string{"G-1", "G-12"}, Run: sglangRid},
		{Name: "sglang-abort", Title: "one tenant ends the answers of all others, and they read as complete",
			Rules: []string{"G-1", "G-5", "G-6"}, Run: sglangAbort},
		{Name: "sglang-paths", Title: "a tenant reaches the engine's own paths: settings, caches, loads, metrics",
			Rules: []string{"G-1", "G-8"}, Run: sglangPaths},
		{Name: "sglang-cache", Title: "the answer tells how much of a prompt somebody else has sent before",
			Rules: []string{"G-7", "G-8"}, Run: sglangCache},
		{Name: "sglang-model", Title: "any name of a model is served, and the answer repeats it",
			Rules: []string{"G-13"}, Run: sglangModel},
		{Name: "sglang-choices", Title: "two answers in one request leave decode waiting, for one room serves one",
			Rules: []string{"G-11"}, Run: sglangChoices},
		{Name: "sglang-errors", Title: "an error tells paths of the machine and repeats what was sent",
			Rules: []string{"G-8"}, Run: sglangErrors},
		{Name: "sglang-room-bad", Title: "a value for the hand-off that a tenant makes up is not refused cleanly",
			Rules: []string{"G-1", "G-3"}, Kills: true, Withheld: true, Run: sglangBadRooms},
		{Name: "sglang-prefill-killed", Title: "a prefill that dies leaves decode's client without a clean end",
			Rules: []string{"G-3", "G-5", "H-14"}, Kills: true, Run: sglangKilled},
	} {
		c.Dialects = []upstream.Dialect{upstream.SGLangPD}
		cases = append(cases, c)
	}
	return cases
}

// soon is how long a refusal may take; patience is how long something that may hang is
// watched where it is not known how long an answer takes.
const (
	soon     = 2 * time.Second
	patience = 8 * time.Second
)

// watch is how long something is watched that may hang, where a quiet answer of the same
// size took a time: on a busy machine an answer is slow and does not hang.
func watch(quiet time.Duration) time.Duration { return patience + 5*quiet }

// form is one way to ask: an endpoint, whole or as a stream.
type form struct {
	path   string
	stream bool
}

func forms() []form {
	return []form{{chatPath, false}, {chatPath, true}, {completionPath, false}, {completionPath, true}}
}

func (f form) String() string {
	name := "chat"
	if f.path == completionPath {
		name = "completions"
	}
	if f.stream {
		name += " stream"
	}
	return name
}

// body asks for n tokens after the text, greedy.
func (f form) body(text string, n int, more ...map[string]any) map[string]any {
	body := saying(text, n, more...)
	if f.path == completionPath {
		delete(body, "messages")
		body["prompt"] = text
	}
	body["stream"] = f.stream
	return body
}

// sglangInfo is what one server of a pair tells of itself.
type sglangInfo struct {
	Pool     int64  `json:"max_total_num_tokens"`
	MaxInput int64  `json:"max_req_input_len"`
	Version  string `json:"version"`
}

// sglangInfos asks both servers. ok false: one of them does not tell.
func (p *Probe) sglangInfos(ctx context.Context) (prefill, decode sglangInfo, ok bool) {
	ok = true
	for name, to := range map[string]*sglangInfo{"prefill": &prefill, "decode": &decode} {
		a := p.Raw(ctx, name, http.MethodGet, "/server_info", nil, nil)
		ok = a.Status == http.StatusOK && json.Unmarshal(a.Body, to) == nil && to.MaxInput > 0 && ok
	}
	return prefill, decode, ok
}

// sglangLoad is what a server says of its queues, and how many requests it runs.
type sglangLoad struct {
	Running        int64 `json:"num_running_reqs"`
	Disaggregation struct {
		Bootstrap int64 `json:"prefill_bootstrap_queue_reqs"`
		Inflight  int64 `json:"prefill_inflight_queue_reqs"`
		Prealloc  int64 `json:"decode_prealloc_queue_reqs"`
		Transfer  int64 `json:"decode_transfer_queue_reqs"`
	} `json:"disaggregation"`
}

func (p *Probe) sglangLoad(ctx context.Context, name string) (sglangLoad, bool) {
	a := p.Raw(ctx, name, http.MethodGet, "/v1/loads?include=all", nil, nil)
	var said struct {
		Loads []sglangLoad `json:"loads"`
	}
	if a.Status != http.StatusOK || json.Unmarshal(a.Body, &said) != nil || len(said.Loads) == 0 {
		return sglangLoad{}, false
	}
	return said.Loads[0], true
}

// drained waits until neither server holds a request, and says what is left, or "".
func (p *Probe) drained(ctx context.Context, limit time.Duration) string {
	var left string
	p.wait(ctx, limit, func() bool {
		prefill, one := p.sglangLoad(ctx, "prefill")
		decode, two := p.sglangLoad(ctx, "decode")
		d, q := decode.Disaggregation, prefill.Disaggregation
		left = ""
		switch {
		case !one || !two:
			left = "the queues are not told"
		case d.Transfer+d.Prealloc+decode.Running > 0:
			left = fmt.Sprintf("decode holds %d requests", d.Transfer+d.Prealloc+decode.Running)
		case q.Bootstrap+q.Inflight > 0:
			left = fmt.Sprintf("prefill holds %d requests", q.Bootstrap+q.Inflight)
		}
		return left == ""
	})
	return left
}

// tokens asks prefill how many tokens a prompt of the completions endpoint has; 0: it
// does not tell.
func (p *Probe) tokens(ctx context.Context, text string) int {
	a := p.Raw(ctx, "prefill", http.MethodPost, "/tokenize", nil, map[string]any{"model": p.Site.Served, "prompt": text})
	var said struct {
		Count int `json:"count"`
	}
	if a.Status != http.StatusOK || json.Unmarshal(a.Body, &said) != nil {
		return 0
	}
	return said.Count
}

// numerals is a text of at least n tokens in which nothing is secret.
func numerals(n int) string {
	words := strings.Fields("one two three four five six seven eight nine ten")
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[i%len(words)])
	}
	return b.String()
}

// owners names tenants in prompts.
func owners() []string {
	return strings.Fields("Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Sigma")
}

// others is how many tenants there are besides tenant 0.
func (p *Probe) others() int {
	if p.Way == Bulkhead {
		return len(p.Site.Keys) - 1
	}
	return len(owners())
}

// fill lets other tenants send their secrets until decode's pool has been used once
// over, so that every page of it holds one. It says what went wrong, or "", and how many
// prompts it took.
func (p *Probe) fill(ctx context.Context, prefill, decode sglangInfo) (n int, why string) {
	names := owners()
	var held int64
	for n = 0; held <= decode.Pool && n < 3*len(names); n++ {
		owner := 1 + n%p.others()
		line := fmt.Sprintf("The vault code of %s is %s. ", names[n%len(names)], p.Canary(owner))
		each := p.tokens(ctx, line)
		if each == 0 {
			return n, "prefill does not count tokens"
		}
		times := max(1, int(prefill.MaxInput-24)/(each+1))
		a := p.Tenant(owner).Post(ctx, completionPath, nil, form{path: completionPath}.body(strings.Repeat(line, times), 8))
		if !a.OK() || a.Prompt <= 0 {
			return n, "a prompt with a secret gets " + a.brief()
		}
		held += a.Prompt + 8
	}
	return n, ""
}

// attempt is one try of one form: what the client got, and what prefill said where the
// case can see it.
type attempt struct {
	form    form
	client  Answer
	prefill *Answer
	hits    []Hit
}

// verdict of the attempt as text.
func (t *attempt) String() string {
	text := fmt.Sprintf("%v: %s after %.1f s", t.form, t.client.brief(), t.client.Took.Seconds())
	if t.client.OK() && t.client.Prompt > 0 {
		text += fmt.Sprintf(", %d tokens of prompt", t.client.Prompt)
		if t.prefill != nil {
			text += fmt.Sprintf(" where prefill says %d", t.prefill.Prompt)
		}
	}
	if len(t.hits) > 0 {
		text += ", and it holds " + t.hits[0].String()
	}
	return text
}

// refused says that the client got an error in time, and no text at all.
func (t *attempt) refused(within time.Duration) bool {
	a := &t.client
	return a.Status >= 400 && a.Text == "" && a.Took <= within && len(t.hits) == 0
}

// tell joins attempts.
func tell(all []attempt) string {
	parts := make([]string, len(all))
	for i := range all {
		parts[i] = all[i].String()
	}
	return strings.Join(parts, "; ")
}

// ask sends one request as tenant 0, and leaves when the limit is over.
func (p *Probe) ask(ctx context.Context, f form, body map[string]any, limit time.Duration) attempt {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := attempt{form: f}
	if p.Way == Direct {
		prefill, decode := p.twoLegs(ctx, f.path, body)
		t.client, t.prefill = decode, &prefill
	} else {
		t.client = p.Tenant(0).Post(ctx, f.path, nil, body)
	}
	t.hits = p.Foreign(t.client, 0)
	return t
}

// any says whether one of them is.
func some(all []attempt, is func(*attempt) bool) bool {
	return slices.ContainsFunc(all, func(t attempt) bool { return is(&t) })
}
