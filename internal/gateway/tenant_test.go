package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// TestKeysExpire holds that a key ends at its time, and another of the same tenant goes on.
func TestKeysExpire(t *testing.T) {
	r := newBare(t, upstream.Bulkhead)
	second := ""
	r.start(func(c *Config) {
		text, hash, err := account.NewKey(c.Random, c.Pepper)
		if err != nil {
			t.Fatal(err)
		}
		second = text
		c.Tenants[0].Keys[0].Expires = r.clock.Now().Add(time.Hour)
		c.Tenants[0].Keys = append(c.Tenants[0].Keys, Key{Hash: hash})
	})
	r.clock.advance(time.Hour - time.Second)
	r.g.Refresh(t.Context())
	if a := r.chat(""); a.status != 200 {
		t.Errorf("before its end: %d %s", a.status, a.body)
	}
	r.event()
	r.clock.advance(time.Second)
	r.refused(r.chat(""), 401, "expired_api_key")
	r.key = second
	if a := r.chat(""); a.status != 200 {
		t.Errorf("the other key: %d %s", a.status, a.body)
	}
	if e := r.event(); e.Tenant != "tenant-a" {
		t.Errorf("event: %+v", e)
	}
}

// TestRates holds requests and tokens a minute, on the clock that is given, and what
// Retry-After says of them.
func TestRates(t *testing.T) {
	wait := func(r *rig, d time.Duration) {
		r.clock.advance(d)
		r.g.Refresh(t.Context())
	}
	t.Run("requests", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Tenants[0].RequestsPerMinute = 3 })
		for range 3 {
			if a := r.chat(""); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.event()
		}
		a := r.chat("")
		r.refused(a, 429, "request_rate_exceeded")
		if a.header.Get("Retry-After") != "20" || !strings.Contains(a.body, "3 requests") {
			t.Errorf("%v %s", a.header, a.body)
		}
		wait(r, 20*time.Second)
		if a := r.chat(""); a.status != 200 {
			t.Errorf("after the wait: %d %s", a.status, a.body)
		}
		r.event()
		r.refused(r.chat(""), 429, "request_rate_exceeded")
		wait(r, time.Hour)
		for range 3 { // it holds one minute's worth and no more
			r.chat("")
			r.event()
		}
		r.refused(r.chat(""), 429, "request_rate_exceeded")
	})
	t.Run("tokens", func(t *testing.T) {
		// A request is charged its 29 bytes and 20 tokens at least, and then what it used: 43.
		r := newRig(t, func(c *Config) { c.Tenants[0].TokensPerMinute = 120 })
		for range 2 {
			if a := r.chat(""); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.event()
		}
		a := r.chat("")
		r.refused(a, 429, "token_rate_exceeded")
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%v", a.header)
		}
		wait(r, 30*time.Second) // 60 more
		if a := r.chat(""); a.status != 200 {
			t.Errorf("after the wait: %d %s", a.status, a.body)
		}
		r.event()
		// What was refused or failed costs nothing.
		wait(r, time.Hour)
		r.decode.set(refusing(400, ""))
		for range 10 {
			r.refused(r.chat(""), 400, "bad_input")
		}
	})
	t.Run("budget", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Tenants[0].Budget = 100 })
		for range 2 { // 43 each
			if a := r.chat(""); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.event()
		}
		a := r.chat("")
		r.refused(a, 429, "token_budget_used")
		if a.header.Get("Retry-After") != "" {
			t.Error("a budget that never comes back has no Retry-After")
		}
		wait(r, 24*time.Hour)
		r.refused(r.chat(""), 429, "token_budget_used")
		if n := r.g.door.byID["tenant-a"].spent.Held(); n != 86 {
			t.Errorf("%d tokens are used", n)
		}
	})
}

// TestAliases are names that one tenant alone has: for another they do not exist.
func TestAliases(t *testing.T) {
	r := newBare(t, upstream.VLLM)
	r.decode.models = []string{"served", "served-adapter-7"}
	r.start(func(c *Config) {
		c.Tenants[0].Aliases = map[string]Alias{"mine": {Model: "recall", Served: "served-adapter-7"}, "plain": {Model: "recall"}}
		c.Tenants[1].Models = []string{"recall"}
	})
	as := func(name string) string { return strings.Replace(chatBody(""), `"recall"`, `"`+name+`"`, 1) }
	for i, tc := range []struct{ name, served string }{{"mine", "served-adapter-7"}, {"plain", "served"}, {"recall", "served"}} {
		a := r.send(r.request("POST", chatPath, as(tc.name)))
		if a.status != 200 || !strings.Contains(a.body, `"model":"`+tc.name+`"`) {
			t.Errorf("%s: %d %s", tc.name, a.status, a.body)
		}
		if e := r.event(); e.Model != "recall" {
			t.Errorf("event: %+v", e)
		}
		if got := string(r.decode.got()[i].members(t)["model"]); got != `"`+tc.served+`"` {
			t.Errorf("%s reached the engine as %s", tc.name, got)
		}
	}
	if a := r.send(r.request("GET", "/v1/models", "")); strings.Count(a.body, `"id"`) != 3 || strings.Contains(a.body, "adapter") {
		t.Errorf("%s", a.body)
	}
	r.key = r.other
	r.refused(r.send(r.request("POST", chatPath, as("mine"))), 404, "model_not_found")
	r.refused(r.send(r.request("POST", chatPath, as("served-adapter-7"))), 404, "model_not_found")
}

// TestPriority: a tenant has a class, and a client may lower it and never raise it.
func TestPriority(t *testing.T) {
	for _, tc := range []struct {
		d      upstream.Dialect
		own    upstream.Count
		client string
		want   string
	}{
		{upstream.VLLM, upstream.Count{}, "", ""},
		{upstream.VLLM, upstream.Count{}, `,"priority":3`, ""},
		{upstream.VLLM, upstream.Count{N: 5, Known: true}, "", "5"},
		{upstream.VLLM, upstream.Count{N: 5, Known: true}, `,"priority":9`, "9"},
		{upstream.VLLM, upstream.Count{N: 5, Known: true}, `,"priority":1`, "5"},
		{upstream.SGLang, upstream.Count{N: 5, Known: true}, `,"priority":9`, "5"},
		{upstream.SGLang, upstream.Count{N: 5, Known: true}, `,"priority":1`, "1"},
		{upstream.LlamaCPP, upstream.Count{N: 5, Known: true}, "", ""},
	} {
		t.Run(fmt.Sprint(tc.d, tc.own, tc.client), func(t *testing.T) {
			r := rigOf(t, tc.d, func(c *Config) { c.Tenants[0].Priority = tc.own })
			a := r.chat(tc.client)
			r.event()
			calls := r.decode.got()
			if a.status != 200 || len(calls) != 1 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if got := string(calls[0].members(t)["priority"]); got != tc.want {
				t.Errorf("priority %q, want %q", got, tc.want)
			}
		})
	}
}

// TestSafetyIdentifier: a hosted API gets a pseudonym of the domain, never the client's.
func TestSafetyIdentifier(t *testing.T) {
	r := rigOf(t, upstream.OpenAI, func(c *Config) { c.Models[0].SafetyID, c.Tenants[0].Narrow = Pseudonym, NarrowSafetyID })
	for _, id := range []string{"ann@example.org", "ann@example.org", "bob@example.org"} {
		if a := r.chat(`,"safety_identifier":"` + id + `"`); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		r.event()
	}
	var got []string
	for _, c := range r.decode.got() {
		if strings.Contains(string(c.raw), "@example") {
			t.Errorf("the client's own came through: %s", c.raw)
		}
		got = append(got, string(c.members(t)["safety_identifier"]))
	}
	if got[0] != got[1] || got[0] == got[2] || len(got[0]) != 2+3+32 {
		t.Errorf("%v", got)
	}
}

// TestCountsAreRepeated: a tokenizer that closes a connection as a count arrives is asked
// once more. An engine that does so with a request is not: it may be at work.
func TestCountsAreRepeated(t *testing.T) {
	r := newBare(t, upstream.VLLM)
	var counts atomic.Int64
	var closes atomic.Pointer[string]
	r.decode.count = func() (int, string) {
		counts.Add(1)
		if *closes.Load() == "count" {
			closes.Store(new(string)) // once
			panic(http.ErrAbortHandler)
		}
		return 200, `{"count":40}`
	}
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		if *closes.Load() == "request" {
			panic(http.ErrAbortHandler)
		}
		honestDecode(w, req, c)
	})
	r.start(func(c *Config) { c.Models[0].Sizes = Sizes{PerRequest: 2000} })
	for _, tc := range []struct {
		closes string
		status int
		counts int64
	}{{"", 200, 1}, {"count", 200, 3}, {"request", 502, 4}} {
		closes.Store(&tc.closes)
		if a := r.chat(""); a.status != tc.status || counts.Load() != tc.counts {
			t.Errorf("closed at a %q: %d after %d counts: %s", tc.closes, a.status, counts.Load(), a.body)
		}
		r.event()
	}
	if n := len(r.decode.got()); n != 3 {
		t.Errorf("%d requests", n)
	}
}

// TestCountsAreCapped: a tenant can have an engine count a few prompts at a time, and none
// that is too long.
func TestCountsAreCapped(t *testing.T) {
	r := newBare(t, upstream.VLLM)
	began, let := make(chan struct{}, 4), make(chan struct{})
	r.decode.count = func() (int, string) {
		began <- struct{}{}
		<-let
		return 200, `{"count":40}`
	}
	r.start(func(c *Config) {
		c.Bounds.Counts, c.Bounds.CountBytes = 1, 4096
		c.Models[0].Sizes = Sizes{PerRequest: 2000}
	})
	got := make(chan answer, 1)
	go func() { got <- r.chat("") }()
	<-began
	a := r.chat("")
	r.refused(a, 429, "too_many_counts")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	close(let)
	if a := <-got; a.status != 200 || a.header.Get(headerCount) != "engine" {
		t.Errorf("%d %s %v", a.status, a.body, a.header)
	}
	if e := r.event(); e.Count != record.ByEngine {
		t.Errorf("event: %+v", e)
	}
	long := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("x", 5000) + `"}]}`
	r.refused(r.send(r.request("POST", chatPath, long)), 503, "token_count_unavailable")
	if n := len(r.decode.counts); n != 1 {
		t.Errorf("%d counts", n)
	}
	// What the tokenizer gets is the client's prompt, and the engine's key.
	if c := r.decode.counts[0]; !strings.Contains(string(c.raw), secret) || c.header.Get("Authorization") != "Bearer "+engineKey || c.header.Get(headerClient) != "" {
		t.Errorf("%v %s", c.header, c.raw)
	}
	for name, count := range map[string]func() (int, string){
		"down":     func() (int, string) { return 500, foreign },
		"nonsense": func() (int, string) { return 200, `{"count":-4}` },
		"nothing":  func() (int, string) { return 200, `{}` },
		"no JSON":  func() (int, string) { return 200, foreign },
	} {
		r.decode.mu.Lock()
		r.decode.count = count
		r.decode.mu.Unlock()
		if e := r.refused(r.chat(""), 503, "token_count_unavailable"); e.Attempts != 0 {
			t.Errorf("%s, event: %+v", name, e)
		}
	}
}

// TestShadow: what the allow-list would refuse passes for now and is counted, with the
// grant to paste; the reserved set never passes (G-10).
func TestShadow(t *testing.T) {
	r := newBare(t, upstream.VLLM)
	r.start(func(c *Config) {
		c.Modes = map[Control]Mode{AllowList: {State: Shadow, Until: r.clock.Now().Add(time.Hour)}}
	})
	for _, members := range []string{`,"echo_of_a_new_version":1`, `,"prompt_logprobs":1`, `,"prompt_logprobs":1`} {
		if a := r.chat(members); a.status != 200 {
			t.Errorf("%s: %d %s", members, a.status, a.body)
		}
		if e := r.event(); len(e.Shadowed) != 1 {
			t.Errorf("event: %+v", e)
		}
	}
	a := r.chat(`,"` + secret + ` the prompt":1`) // a key that is a client's own text
	if e := r.event(); a.status != 200 || strings.Contains(fmt.Sprint(e.Shadowed), secret) {
		t.Errorf("%d, event: %+v", a.status, e)
	}
	r.refused(r.chat(`,"kv_transfer_params":{}`), 400, "reserved_field")
	got := r.g.Shadow()
	if len(got) != 3 || got[0].Field != "prompt_logprobs" || got[0].Count != 2 || got[0].Tenant != "tenant-a" || got[0].Model != "recall" ||
		!got[0].Grantable {
		t.Errorf("%+v", got)
	}
	for _, s := range got {
		if strings.Contains(fmt.Sprintf("%+v", s), secret) || s.Field != "prompt_logprobs" && s.Grantable {
			t.Errorf("%+v", s)
		}
	}
	if s := r.stance("G-1"); s.State != Shadowed || !s.Until.Equal(r.g.modes[AllowList].Until) {
		t.Errorf("%+v", s)
	}
	r.clock.advance(time.Hour)
	r.g.Refresh(t.Context())
	r.refused(r.chat(`,"prompt_logprobs":1`), 400, "field_not_granted")
	if s := r.stance("G-1"); s.State != Enforced {
		t.Errorf("a shadow that has ended: %+v", s)
	}
}

// TestGrants: a field that needs a grant passes for the tenant or the model that has it.
func TestGrants(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"tenant": func(c *Config) { c.Tenants[0].Grants = []string{"prompt_logprobs"} },
		"model":  func(c *Config) { c.Models[0].Grants = []string{"prompt_logprobs"} },
		"":       nil,
	} {
		r := rigOf(t, upstream.VLLM, change)
		a := r.chat(`,"prompt_logprobs":1`)
		if name == "" {
			r.refused(a, 400, "field_not_granted")
			continue
		}
		r.event()
		if a.status != 200 || !strings.Contains(string(r.decode.got()[0].raw), `"prompt_logprobs":1`) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

// TestAdmissionInShadow: what does not fit is counted and left to the engine.
func TestAdmissionInShadow(t *testing.T) {
	long := `{"model":"recall","max_tokens":700,"messages":[{"role":"user","content":"` + strings.Repeat("x", 2000) + `"}]}`
	r := newBare(t, upstream.VLLM)
	r.start(func(c *Config) {
		c.Modes = map[Control]Mode{Admission: {State: Shadow, Until: r.clock.Now().Add(time.Hour)}}
	})
	r.decode.set(refusing(400, `{"error":{"message":"This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens","type":"BadRequestError","code":400}}`))
	r.refused(r.send(r.request("POST", chatPath, long)), 400, "context_length_exceeded")
	if c := r.decode.got(); len(c) != 1 || c[0].max != 700 {
		t.Fatalf("%d calls", len(c))
	}
	if s := r.g.Shadow(); len(s) != 1 || s[0].Field != string(Admission) {
		t.Errorf("%+v", s)
	}
	r.clock.advance(time.Hour)
	r.g.Refresh(t.Context())
	r.refused(r.send(r.request("POST", chatPath, long)), 400, "context_length_exceeded")
	if len(r.decode.got()) != 1 {
		t.Error("dispatched although the shadow has ended")
	}
}

// TestAdmissionInShadowOnce: a request with a second attempt is one request.
func TestAdmissionInShadowOnce(t *testing.T) {
	long := `{"model":"recall","max_tokens":700,"messages":[{"role":"user","content":"` + strings.Repeat("x", 2000) + `"}]}`
	r := newBare(t, upstream.VLLM)
	second := newScripted(r, "plain")
	second.set(honestDecode)
	r.start(func(c *Config) {
		c.Modes = map[Control]Mode{Admission: {State: Shadow, Until: r.clock.Now().Add(time.Hour)}}
		other := r.source(second, "plain-1")
		other.Weight = 1e-9
		c.Models[0].Engines.Plain = append(c.Models[0].Engines.Plain, other)
	})
	r.decode.srv.Close() // nobody has noticed yet
	if a := r.send(r.request("POST", chatPath, long)); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	e := r.event()
	if s := r.g.Shadow(); e.Attempts != 2 || len(e.Shadowed) != 1 || len(s) != 1 || s[0].Count != 1 {
		t.Errorf("%+v, event %+v", s, e)
	}
}

// stance finds one rule's stance.
func (r *rig) stance(rule string) Stance {
	r.t.Helper()
	for _, s := range r.g.Posture() {
		if s.Rule == rule && s.Route == "recall" {
			return s
		}
	}
	r.t.Fatalf("no stance on %s", rule)
	return Stance{}
}

// TestPosture: each rule has a stance on each route, and what cannot be proved is unknown.
func TestPosture(t *testing.T) {
	for _, tc := range []struct {
		d    upstream.Dialect
		want map[string]StanceState
	}{
		{upstream.Bulkhead, map[string]StanceState{"G-2": Enforced, "G-3": Enforced, "G-7": Enforced, "G-11": Enforced, "G-12": Enforced, "G-9": Unproven, "G-15": Enforced}},
		{upstream.VLLMNixl, map[string]StanceState{"G-3": Enforced, "G-7": Enforced, "G-11": Enforced, "G-12": Enforced}},
		{upstream.VLLM, map[string]StanceState{"G-2": Enforced, "G-3": NotApplicable, "G-11": NotApplicable}},
		{upstream.LlamaCPP, map[string]StanceState{"G-3": NotApplicable, "G-7": Enforced, "G-12": Unproven}},
		{upstream.OpenAI, map[string]StanceState{"G-2": Unproven, "G-7": Unproven, "G-12": Unproven}},
	} {
		r := rigOf(t, tc.d, nil)
		for rule, want := range tc.want {
			if s := r.stance(rule); s.State != want || s.Reason == "" {
				t.Errorf("%v: %+v, want %v", tc.d, s, want)
			}
		}
		if n := len(r.g.Posture()); n != 13 {
			t.Errorf("%d stances", n)
		}
		for _, s := range r.g.Posture() {
			if strings.Contains(fmt.Sprintf("%+v", s), "127.0.0.1") {
				t.Errorf("%+v", s)
			}
		}
	}
	// Engines of which nothing is known, for none was looked at, or not all have answered.
	for _, d := range upstream.Dialects() {
		r := newBare(t, d)
		g, err := New(r.config())
		if err != nil {
			t.Fatal(err)
		}
		if len(r.legs()) > 1 {
			r.prefill.become(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
			g.Refresh(t.Context())
		}
		for _, s := range g.Posture() {
			known := s.State == NotApplicable || s.Rule == "G-7" && d == upstream.Bulkhead
			if (s.Rule == "G-2" || s.Rule == "G-3" || s.Rule == "G-7" || s.Rule == "G-15") && s.State != Unproven && !known {
				t.Errorf("%v: %+v", d, s)
			}
		}
	}
}

// TestRouterIsSeen: a router in place of an engine makes what it hides unknown (G-15).
func TestRouterIsSeen(t *testing.T) {
	r := rigOf(t, upstream.VLLM, nil)
	r.decode.become(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/workers" {
			_, _ = fmt.Fprint(w, `{"workers":[{"url":"http://10.0.0.9:1"}],"total":1}`)
			return
		}
		r.decode.serve(w, req)
	})
	for range 20 { // optional looks come less often
		r.clock.advance(r.g.bounds.Refresh)
		r.g.Refresh(t.Context())
	}
	for _, rule := range []string{"G-7", "G-15"} {
		if s := r.stance(rule); s.State != Unproven {
			t.Errorf("%+v", s)
		}
	}
}

// TestRecords: what led to an answer is remembered, without a text, as long as there is
// room, and over a change of the configuration.
func TestRecords(t *testing.T) {
	r := rigOf(t, upstream.SGLangPD, func(c *Config) { c.Records = 3 })
	var ids []string
	for range 4 {
		r.chat("")
		ids = append(ids, r.event().ID)
	}
	if _, ok := r.g.Explain(ids[0]); ok {
		t.Error("the ring grows")
	}
	rec, ok := r.g.Explain(ids[3])
	if !ok || len(rec.Legs) != 2 || rec.Verdict != Served || len(rec.Domain) != 12 {
		t.Fatalf("%+v", rec)
	}
	p, d := rec.Legs[0], rec.Legs[1]
	if p.Role != upstream.PrefillRole || d.Role != upstream.DecodeRole || p.Status != 200 || d.Status != 200 || p.ID == d.ID ||
		p.Prompt != admit.Known(promptTokens) || d.Prompt != admit.Known(promptTokens) || d.Completion != admit.Known(3) || p.Node != "prefill-0" {
		t.Errorf("%+v", rec.Legs)
	}
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{secret, r.key, engineKey, control, "127.0.0.1", account.Salt(r.g.domainKey, r.g.door.byID["tenant-a"].domain)} {
		if strings.Contains(string(text)+fmt.Sprintf("%+v", rec), s) {
			t.Errorf("the record tells %q", s)
		}
	}
	if _, ok := r.g.Explain("req-0"); ok {
		t.Error("an unknown id was found")
	}
}

// TestExchangeKeepsWhatIsKnown: records, shadow counts, rates and budgets go on under a
// new configuration.
func TestExchangeKeepsWhatIsKnown(t *testing.T) {
	r, f, c := fronted(t)
	c.Tenants[0].RequestsPerMinute, c.Tenants[0].Budget = 2, 1000
	if err := f.Exchange(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	r.chat("")
	id := r.event().ID
	c.Records = 7
	if err := f.Exchange(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if rec, ok := f.Explain(id); !ok || rec.Verdict != Served {
		t.Errorf("%+v, %v", rec, ok)
	}
	r.chat("")
	r.event()
	r.refused(r.chat(""), 429, "request_rate_exceeded")
	if n := f.current.gateway.door.byID["tenant-a"].spent.Held(); n != 86 {
		t.Errorf("%d tokens are used", n)
	}
	if len(f.Posture()) == 0 || f.Shadow() != nil {
		t.Errorf("%v %v", f.Posture(), f.Shadow())
	}
}

// TestAffinity: requests of one session, or with one long beginning, prefer one engine;
// those of another domain are not told by it.
func TestAffinity(t *testing.T) {
	r := newBare(t, upstream.VLLM)
	second := newScripted(r, "plain")
	second.set(honestDecode)
	r.start(func(c *Config) {
		c.Models[0].Engines.Plain = append(c.Models[0].Engines.Plain, r.source(second, "plain-1"))
		c.Tenants[1].Models = []string{"recall"}
	})
	targets := func(key string, n int, change func(i int, req *http.Request) string) map[string]int {
		seen := map[string]int{}
		for i := range n {
			req := r.request("POST", chatPath, "")
			body := change(i, req)
			req = r.request("POST", chatPath, body)
			if s := change(i, req); s != body {
				t.Fatal("the change differs")
			}
			req.Header.Set("Authorization", "Bearer "+key)
			if a := r.send(req); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			seen[r.event().Target]++
		}
		return seen
	}
	session := func(_ int, req *http.Request) string {
		req.Header.Set("X-Session-Affinity", "conversation-7")
		return chatBody("")
	}
	if got := targets(r.key, 20, session); len(got) != 1 {
		t.Errorf("one session went to %v", got)
	}
	if got := targets(r.key, 40, func(int, *http.Request) string { return chatBody("") }); len(got) != 2 {
		t.Errorf("no affinity went to %v", got)
	}
	prefix := func(int, *http.Request) string {
		return `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("a long beginning ", 80) + `"}]}`
	}
	r.g.models["recall"].Sizes = Sizes{BytesPerToken: 100, PerRequest: 1}
	r.g.models["recall"].Counter = counterOf(400)
	if got := targets(r.key, 20, prefix); len(got) != 1 {
		t.Errorf("one beginning went to %v", got)
	}
}

// counterOf is a Counter that always says the same.
type counterOf int

func (c counterOf) Count(context.Context, string, []byte) (int, error) { return int(c), nil }

// TestFasterThanPhysics: a prefill that cannot have been computed is noted, and no more.
func TestFasterThanPhysics(t *testing.T) {
	for took, want := range map[time.Duration]record.Oddities{time.Millisecond: record.TooFast, time.Second: 0} {
		r := rigOf(t, upstream.SGLangPD, nil)
		r.prefill.set(r.slowly(took, func(w http.ResponseWriter, _ *http.Request, c call) {
			reply(w, 200, whole(c.path, c.id, "The", "length", 5000, 1))
		}))
		r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
			reply(w, 200, whole(c.path, c.id, "The answer", "stop", 5000, 3))
		})
		if a := r.chat(""); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		if e := r.event(); e.Oddities != want {
			t.Errorf("%v: %v, want %v", took, e.Oddities, want)
		}
	}
}
