package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// completionsPath is the other endpoint.
const completionsPath = "/v1/completions"

// bodies are a sound body for each endpoint.
func bodies(members string) map[string]string {
	return map[string]string{
		chatPath:        chatBody(members),
		completionsPath: `{"model":"recall","prompt":"hello ` + secret + `"` + members + `}`,
	}
}

// bare is a chunk without usage.
func bare(path, id, text, finish string) string {
	return fmt.Sprintf(`{"id":%q,"object":"chat.completion.chunk","created":1,"model":"served","choices":[%s],"timings":{"cache_n":%d}}`,
		id, choiceJSON(path, "delta", text, finish), 31)
}

// lateDecode is an honest engine that counts at the end of a stream only.
func lateDecode(w http.ResponseWriter, r *http.Request, c call) {
	if !c.stream {
		honestDecode(w, r, c)
		return
	}
	events(w, bare(c.path, c.id, "", ""), bare(c.path, c.id, "The ans", ""), bare(c.path, c.id, "wer", "stop"),
		usageChunk(c.id, promptTokens, 3), "[DONE]")
}

// members are the members of a leg's body.
func (c call) members(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	var v map[string]json.RawMessage
	if err := json.Unmarshal(c.raw, &v); err != nil {
		t.Fatalf("%s: %v", c.raw, err)
	}
	return v
}

// legHeaders are the headers that an engine of the dialect may get, beside those of every
// HTTP request.
func legHeaders(d upstream.Dialect) string {
	switch d {
	case upstream.Bulkhead:
		return "X-Bulkhead-Pass"
	case upstream.VLLM, upstream.VLLMNixl, upstream.VLLMMooncake:
		return "X-Request-Id"
	case upstream.OpenAI:
		return "X-Client-Request-Id"
	}
	return ""
}

// TestEveryDialect is an honest engine of each dialect: the answer comes through, and the
// legs got what is theirs and nothing else.
func TestEveryDialect(t *testing.T) {
	for _, d := range upstream.Dialects() {
		for mode, members := range modes() {
			for path, body := range bodies(members) {
				t.Run(d.String()+"/"+mode+path, func(t *testing.T) {
					r := rigOf(t, d, nil)
					if d.Traits().Counting == upstream.AtEnd {
						r.decode.set(lateDecode)
					}
					req := r.request("POST", path, body)
					req.Header.Set("X-Request-Id", "the-client-s-own")
					a := r.send(req)
					text := wholeText(a.body)
					if mode == "stream" {
						text, _ = streamed(a.body)
					}
					if a.status != 200 || a.err != nil || text != "The answer" {
						t.Fatalf("%d %v\n%s", a.status, a.err, a.body)
					}
					want := agreed
					if d.Traits().Legs == upstream.One {
						want = lone
					}
					if a.header.Get(headerVerdict) != want || a.header.Get(headerCount) != "bytes" || a.header.Get(headerClient) != "the-client-s-own" {
						t.Errorf("headers %v", a.header)
					}
					if strings.Contains(a.body, "timings") || strings.Contains(a.body, "kv_transfer") || strings.Contains(a.body, "bh-") || strings.Contains(a.body, "engine") {
						t.Errorf("an engine's own members came through: %s", a.body)
					}
					e := r.event()
					if e.Verdict != Served || e.Prompt != admit.Known(promptTokens) || e.Completion != admit.Known(3) || e.From != record.Reported || e.Oddities != 0 {
						t.Errorf("event: %+v", e)
					}
					r.checkDialectLegs(mode == "stream")
				})
			}
		}
	}
}

// wholeText is the text of a whole answer.
func wholeText(body string) string {
	var v struct {
		Choices []struct {
			Message struct{ Content string }
			Text    string
		}
	}
	_ = json.Unmarshal([]byte(body), &v)
	text := ""
	for _, c := range v.Choices {
		text += c.Message.Content + c.Text
	}
	return text
}

// checkDialectLegs holds what each leg of one request got.
func (r *rig) checkDialectLegs(stream bool) {
	t := r.t
	t.Helper()
	seen := map[string]bool{}
	for _, leg := range r.legs() {
		calls := leg.got()
		if len(calls) != 1 {
			t.Fatalf("%s got %d calls", leg.role, len(calls))
		}
		c := calls[0]
		for name := range c.header {
			switch name {
			case "Content-Type", "Content-Length", "User-Agent", legHeaders(r.dialect):
			case "Connection":
				if !r.dialect.Traits().Threaded || c.header.Get(name) != "close" {
					t.Errorf("%s got Connection: %s", leg.role, c.header.Get(name))
				}
			case "Authorization":
				if r.dialect == upstream.Bulkhead || c.header.Get(name) != "Bearer "+engineKey {
					t.Errorf("%s got %s", leg.role, c.header.Get(name))
				}
			default:
				t.Errorf("%s got the header %s", leg.role, name)
			}
		}
		m := c.members(t)
		if !strings.Contains(string(c.raw), secret) || string(m["model"]) != `"served"` {
			t.Errorf("%s got %s", leg.role, c.raw)
		}
		if strings.Contains(fmt.Sprint(c.header), "the-client-s-own") {
			t.Errorf("%s got the client's id", leg.role)
		}
		if r.dialect.Traits().IDs == upstream.Minted && (len(c.rid) != 3+32 || seen[c.rid]) {
			t.Errorf("%s got the id %q", leg.role, c.rid)
		}
		seen[c.rid] = true
		salt, salted := m["cache_salt"]
		if salted != r.dialect.Traits().Salted || salted && len(salt) != 2+32 {
			t.Errorf("%s got the salt %s", leg.role, salt)
		}
		if r.dialect == upstream.LlamaCPP && string(m["cache_prompt"]) != "false" {
			t.Errorf("cache_prompt %s", m["cache_prompt"])
		}
		switch {
		case leg.role == "prefill" && (c.max != 1 || c.stream):
			t.Errorf("prefill leg: %s", c.raw)
		case leg.role != "prefill" && (c.max != 20 || c.stream != (stream || r.dialect == upstream.VLLMNixl)):
			t.Errorf("%s leg: %s", leg.role, c.raw)
		}
	}
}

// TestSalts holds what is equal and what differs between the salts of requests (G-7).
func TestSalts(t *testing.T) {
	saltsOf := func(r *rig) (p, d []string) {
		for i, c := range r.decode.got() {
			d = append(d, string(c.members(t)["cache_salt"]))
			if r.prefill != nil {
				p = append(p, string(r.prefill.got()[i].members(t)["cache_salt"]))
			}
		}
		return p, d
	}
	for _, dialect := range []upstream.Dialect{upstream.SGLangPD, upstream.SGLang, upstream.VLLM, upstream.VLLMNixl, upstream.VLLMMooncake} {
		t.Run(dialect.String(), func(t *testing.T) {
			r := rigOf(t, dialect, func(c *Config) {
				c.Tenants[0].Narrow, c.Tenants[1].Models = "X-Team", []string{"recall"}
			})
			ask := func(key, team string) {
				req := r.request("POST", chatPath, chatBody(`,"stream":true`))
				req.Header.Set("Authorization", "Bearer "+key)
				if team != "" {
					req.Header.Set("X-Team", team)
				}
				if a := r.send(req); a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				r.event()
			}
			ask(r.key, "")
			ask(r.key, "")
			ask(r.key, "red")
			ask(r.key, "red")
			ask(r.key, "blue")
			ask(r.other, "red") // whose team narrows nothing
			ask(r.other, "")
			p, d := saltsOf(r)
			steady := d
			if p != nil {
				steady = p
			}
			if steady[0] != steady[1] || steady[2] != steady[3] || steady[5] != steady[6] {
				t.Errorf("one domain has several salts: %v", steady)
			}
			for i, x := range []int{0, 2, 4, 5} {
				for _, y := range []int{0, 2, 4, 5}[:i] {
					if steady[x] == steady[y] {
						t.Errorf("two domains share the salt of %d and %d", x, y)
					}
				}
			}
			if dialect.Traits().SaltPerAttempt {
				seen := map[string]bool{}
				for i := range d {
					if seen[d[i]] || d[i] == p[i] {
						t.Errorf("decode's salts %v, prefill's %v", d, p)
					}
					seen[d[i]] = true
				}
			} else if p != nil && p[0] != d[0] {
				t.Errorf("legs differ: %s %s", p[0], d[0])
			}
		})
	}
}

// TestForeignIDOfEveryDialect is an answer under another id, in each way in which it can
// come: no byte of it may come through (G-12).
func TestForeignIDOfEveryDialect(t *testing.T) {
	for _, d := range upstream.Dialects() {
		if d.Traits().IDs == upstream.Steady {
			continue
		}
		for mode, members := range modes() {
			t.Run(d.String()+"/"+mode, func(t *testing.T) {
				for _, id := range []string{"chatcmpl-bh-00000000000000000000000000000000", otherID, "", "chatcmpl-"} {
					r := rigOf(t, d, nil)
					r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
						c.id = id
						leaking(w, req, c)
					})
					if e := r.refused(r.chat(members), 502, "upstream_answer_void"); e.Agreement != upstream.Foreign {
						t.Errorf("%q, event: %+v", id, e)
					}
				}
			})
		}
	}
}

// TestSteadyIDs is an engine with ids of its own: one answer keeps its id.
func TestSteadyIDs(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.LlamaCPP, upstream.OpenAI} {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			seen := make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				events(w, bare(c.path, c.id, "The", ""))
				<-seen
				events(w, bare(c.path, "chatcmpl-of-somebody-else", foreign, ""))
			})
			a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"stream":true`)), "The", seen)
			if _, last := streamed(a.body); (answer{body: last}).code() != "upstream_answer_void" || a.err == nil {
				t.Errorf("%s, %v", a.body, a.err)
			}
			if e := r.event(); e.Verdict != record.Broken || e.Agreement != upstream.Foreign {
				t.Errorf("event: %+v", e)
			}
		})
	}
}

// TestEnginesErrors is what engines of each family say when they refuse: a code of ours,
// never their words.
func TestEnginesErrors(t *testing.T) {
	for _, tc := range []struct {
		d      upstream.Dialect
		name   string
		do     script
		status int
		code   string
	}{
		{upstream.LlamaCPP, "malformed is a 500", refusing(500, `{"error":{"code":500,"message":"[json.exception.parse_error.101] `+foreign+`","type":"server_error"}}`), 400, "bad_input"},
		{upstream.LlamaCPP, "over-long", refusing(400, `{"error":{"code":400,"message":"`+foreign+`","type":"exceed_context_size_error","n_prompt_tokens":9031,"n_ctx":2048}}`), 400, "context_length_exceeded"},
		{upstream.VLLM, "over-long", refusing(400, `{"error":{"message":"This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens `+foreign+`","type":"BadRequestError","param":"input_tokens","code":400}}`), 400, "context_length_exceeded"},
		{upstream.VLLM, "echoed value", refusing(400, `{"error":{"message":"1 validation error: {'input': '`+foreign+`'}","type":"Bad Request","param":"x","code":400}}`), 400, "bad_input"},
		{upstream.SGLang, "500", refusing(500, foreign), 500, "engine_failed"},
		{upstream.OpenAI, "429 with a header", func(w http.ResponseWriter, r *http.Request, c call) {
			w.Header().Set("Retry-After", "17")
			reply(w, 429, `{"error":{"message":"`+foreign+`"}}`)
		}, 503, "busy"},
		{upstream.OpenAI, "our key is wrong", refusing(401, `{"error":{"message":"`+foreign+`"}}`), 502, "upstream_refused"},
	} {
		for mode, members := range modes() {
			t.Run(tc.d.String()+"/"+tc.name+"/"+mode, func(t *testing.T) {
				r := rigOf(t, tc.d, nil)
				r.decode.set(tc.do)
				a := r.chat(members)
				r.refused(a, tc.status, tc.code)
				if a.header.Get("Retry-After") != "" {
					t.Error("an engine's Retry-After came through (G-8)")
				}
			})
		}
	}
}

// inTurn is a rig of the dialect that calls prefill first.
func inTurn(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	return rigOf(t, upstream.VLLMNixl, change)
}

// TestHandles is every way in which a handle can be wrong: decode is never called (G-11).
func TestHandles(t *testing.T) {
	with := func(h string) script {
		return func(w http.ResponseWriter, _ *http.Request, c call) {
			body := strings.TrimSuffix(whole(c.path, c.id, "The", "length", promptTokens, 1), "}")
			reply(w, 200, body+`,"kv_transfer_params":`+strings.ReplaceAll(h, "HANDLE", handle(c, promptTokens, 3))+`}`)
		}
	}
	edit := func(from, to string) script {
		return func(w http.ResponseWriter, r *http.Request, c call) { edited(honestPrefill, from, to)(w, r, c) }
	}
	for _, tc := range []struct {
		name string
		do   script
		code string
	}{
		{"none", func(w http.ResponseWriter, _ *http.Request, c call) {
			reply(w, 200, whole(c.path, c.id, "The", "length", promptTokens, 1))
		}, "upstream_answer_void"},
		{"null", with("null"), "upstream_answer_void"},
		{"empty", with("{}"), "upstream_answer_void"},
		{"a list", with("[HANDLE]"), "upstream_answer_void"},
		{"to be pushed", edit(`"transfer_mode":"pull"`, `"transfer_mode":"push"`), "upstream_answer_void"},
		{"of a decode", edit(`"do_remote_prefill":true`, `"do_remote_prefill":false`), "upstream_answer_void"},
		{"of another length", edit(`"remote_num_tokens":40`, `"remote_num_tokens":41`), "legs_disagree"},
		{"a block less", edit(`[[1,2,3]]`, `[[1,2]]`), "legs_disagree"},
		{"a block more", edit(`[[1,2,3]]`, `[[1,2,3,4]]`), "legs_disagree"},
		{"no block", edit(`[[1,2,3]]`, `[[]]`), "upstream_answer_void"},
		{"a member more", edit(`"tp_size":1`, `"tp_size":1,"prompt_token_ids":[1]`), "upstream_answer_void"},
		{"of another request of the same length", func(w http.ResponseWriter, _ *http.Request, c call) {
			other := c
			other.id = "chatcmpl-" + otherID
			body := strings.TrimSuffix(whole(c.path, c.id, "The", "length", promptTokens, 1), "}")
			reply(w, 200, body+`,"kv_transfer_params":`+handle(other, promptTokens, 3)+`}`)
		}, "upstream_answer_void"},
		{"of no request", func(w http.ResponseWriter, _ *http.Request, c call) {
			h := strings.Replace(handle(c, promptTokens, 3), `"remote_request_id":"`+c.id+`-1a2b3c4d",`, "", 1)
			body := strings.TrimSuffix(whole(c.path, c.id, "The", "length", promptTokens, 1), "}")
			reply(w, 200, body+`,"kv_transfer_params":`+h+`}`)
		}, "upstream_answer_void"},
		{"refused", refusing(400, `{"error":{"message":"`+foreign+`","code":400}}`), "bad_input"},
		{"another id", func(w http.ResponseWriter, r *http.Request, c call) {
			c.id = "chatcmpl-" + otherID
			honestPrefill(w, r, c)
		}, "upstream_answer_void"},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := inTurn(t, nil)
				r.prefill.set(tc.do)
				a := r.chat(members)
				if e := r.event(); a.code() != tc.code || e.Verdict == Served || e.Verdict == record.Broken {
					t.Errorf("%d %s, event %+v", a.status, a.body, e)
				}
				if n := len(r.decode.got()); n != 0 {
					t.Errorf("decode was called %d times", n)
				}
			})
		}
	}
}

// TestHandleReachesDecode holds that decode gets the handle as prefill gave it, and that
// prefill is asked for it and for nothing else.
func TestHandleReachesDecode(t *testing.T) {
	r := inTurn(t, nil)
	if a := r.chat(""); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	e := r.event()
	p, d := r.prefill.got()[0], r.decode.got()[0]
	if got, want := string(d.members(t)["kv_transfer_params"]), handle(p, promptTokens, 3); got != want {
		t.Errorf("decode got %s, prefill gave %s", got, want)
	}
	if got := string(p.members(t)["kv_transfer_params"]); got != `{"do_remote_decode":true,"do_remote_prefill":false}` {
		t.Errorf("prefill got %s", got)
	}
	if e.Lease.Of != 30*time.Second || e.Lease.Used <= 0 || e.Lease.Used > time.Second {
		t.Errorf("lease %+v", e.Lease)
	}
}

// TestMooncake holds that both legs meet under an id of ours.
func TestMooncake(t *testing.T) {
	r := rigOf(t, upstream.VLLMMooncake, nil)
	ids := map[string]bool{}
	for range 3 {
		if a := r.chat(""); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		r.event()
	}
	for i := range 3 {
		var p, d struct {
			Transfer string `json:"transfer_id"`
			Decode   bool   `json:"do_remote_decode"`
			Prefill  bool   `json:"do_remote_prefill"`
			Addr     string `json:"remote_bootstrap_addr"`
			Engine   string `json:"remote_engine_id"`
		}
		_ = json.Unmarshal(r.prefill.got()[i].members(t)["kv_transfer_params"], &p)
		_ = json.Unmarshal(r.decode.got()[i].members(t)["kv_transfer_params"], &d)
		if p.Transfer != d.Transfer || len(p.Transfer) != 3+32 || ids[p.Transfer] {
			t.Errorf("transfer ids %q and %q", p.Transfer, d.Transfer)
		}
		if !p.Decode || p.Prefill || d.Decode || !d.Prefill || d.Addr != r.prefill.srv.URL || d.Engine != "engine-of-prefill-0" || p.Engine != "" {
			t.Errorf("%+v %+v", p, d)
		}
		ids[p.Transfer] = true
	}
}

// slowly is a script that first lets the test's clock pass.
func (r *rig) slowly(d time.Duration, do script) script {
	return func(w http.ResponseWriter, req *http.Request, c call) {
		r.clock.advance(d)
		do(w, req, c)
	}
}

// TestLease holds the rules of a handle's time (G-11): a slow prefill is made good by a
// second one, and decode's first token must come in time.
func TestLease(t *testing.T) {
	for mode, members := range modes() {
		t.Run("half a lease is enough/"+mode, func(t *testing.T) {
			r := inTurn(t, nil)
			r.prefill.set(r.slowly(15*time.Second, honestPrefill))
			if a := r.chat(members); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if e := r.event(); e.Oddities != 0 || len(r.prefill.got()) != 1 {
				t.Errorf("event: %+v", e)
			}
		})
		t.Run("over half is dropped/"+mode, func(t *testing.T) {
			r := inTurn(t, nil)
			r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
				if c.first == 0 {
					r.clock.advance(16 * time.Second)
				}
				honestPrefill(w, req, c)
			})
			if a := r.chat(members); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			e := r.event()
			p, d := r.prefill.got(), r.decode.got()
			if e.Oddities != record.HandleDropped || len(p) != 2 || len(d) != 1 || e.Attempts != 1 {
				t.Fatalf("event: %+v", e)
			}
			if got := string(d[0].members(t)["kv_transfer_params"]); got != handle(p[1], promptTokens, 3) {
				t.Errorf("decode got %s", got)
			}
			if p[0].rid == p[1].rid || string(p[0].members(t)["cache_salt"]) != string(p[1].members(t)["cache_salt"]) {
				t.Error("the second call must have another id and the same salt")
			}
			rec, ok := r.g.Explain(e.ID)
			if !ok || len(rec.Legs) != 3 {
				t.Errorf("record: %+v", rec)
			}
		})
		t.Run("twice over half is void/"+mode, func(t *testing.T) {
			r := inTurn(t, nil)
			r.prefill.set(r.slowly(16*time.Second, honestPrefill))
			if e := r.refused(r.chat(members), 502, "lease_over"); e.Verdict != record.Void || e.Attempts != 1 {
				t.Errorf("event: %+v", e)
			}
			if len(r.prefill.got()) != 2 || len(r.decode.got()) != 0 {
				t.Errorf("%d prefill and %d decode calls", len(r.prefill.got()), len(r.decode.got()))
			}
		})
		t.Run("first token too late/"+mode, func(t *testing.T) {
			r := inTurn(t, nil)
			r.prefill.set(r.slowly(10*time.Second, honestPrefill))
			ended := make(chan struct{}, 2)
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				events(w, chunk(c.path, c.id, "", "", promptTokens, 0)) // its role is no token
				r.clock.advance(20 * time.Second)
				<-req.Context().Done()
				ended <- struct{}{}
			})
			e := r.refused(r.chat(members), 502, "lease_over")
			if e.Verdict != record.Void || e.Attempts != 2 || e.Oddities != record.LeaseOver || len(r.decode.got()) != 2 {
				t.Errorf("event: %+v", e)
			}
			for range r.decode.got() {
				<-ended
			}
		})
		t.Run("first token in time, the rest later/"+mode, func(t *testing.T) {
			r := inTurn(t, func(c *Config) { c.Bounds.Idle, c.Bounds.FirstByte = time.Hour, time.Hour })
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				d := decodeChunks(c.path, c.id)
				events(w, d[:2]...)
				for range 1000 { // until the first token was seen
					if r.g.door.byID["tenant-a"].uncollected.Held() == 0 {
						break
					}
					<-time.NewTimer(time.Millisecond).C
				}
				for range 5 {
					r.clock.advance(20 * time.Second)
					events(w, d[0])
				}
				events(w, append(d[2:], usageChunk(c.id, promptTokens, 3), "[DONE]")...)
			})
			a := r.chat(members)
			text := wholeText(a.body)
			if mode == "stream" {
				text, _ = streamed(a.body)
			}
			if a.status != 200 || text != "The answer" {
				t.Errorf("%d %s", a.status, a.body)
			}
			r.event()
		})
	}
}

// TestUncollected holds the budget of prompts that prefill keeps for decode (G-14): it
// comes back with decode's first token, or else when the lease is over.
func TestUncollected(t *testing.T) {
	r := inTurn(t, func(c *Config) { c.Tenants[0].Uncollected = 45 })
	held := func() int64 { return r.g.door.byID["tenant-a"].uncollected.Held() }
	if a := r.chat(""); a.status != 200 || held() != 0 {
		t.Fatalf("%d %s, %d held", a.status, a.body, held())
	}
	r.event()
	// Decode dies before it fetched anything: prefill still holds the prompt.
	r.decode.set(func(http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) })
	r.refused(r.chat(""), 502, "upstream_unreachable")
	if held() == 0 {
		t.Error("nothing is held although decode never came")
	}
	r.decode.set(honestDecode)
	calls := len(r.prefill.got())
	a := r.chat("")
	r.refused(a, 429, "uncollected_prefill")
	if a.header.Get("Retry-After") != "1" || len(r.prefill.got()) != calls {
		t.Errorf("%v, %d calls", a.header, len(r.prefill.got())-calls)
	}
	r.clock.advance(30 * time.Second)
	soon(t, "the budget comes back", func() bool { return held() == 0 })
	r.g.Refresh(t.Context())
	if a := r.chat(""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.event()
	// A refusal holds nothing.
	r.prefill.set(refusing(400, ""))
	r.refused(r.chat(""), 400, "bad_input")
	if held() != 0 {
		t.Errorf("%d are held for a refused prompt", held())
	}
}

// TestLongPromptIsCollected holds that what counts of a prompt is its tokens and not its
// bytes, and that one of more than the whole budget has its turn once nothing else is held.
func TestLongPromptIsCollected(t *testing.T) {
	long := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("hello ", 40) + `"}]` // 240 bytes, or 60 tokens
	for _, tc := range []struct {
		name    string
		limit   int64
		members string
		held    int64 // by another prompt
		status  int
	}{
		{"more bytes than the budget has tokens", 100, "", 0, 200},
		{"beside another", 100, "", 40, 200},
		{"too much with another", 100, "", 41, 429},
		{"more tokens than the budget", 30, "", 0, 200},
		{"more than the budget, and something is held", 30, "", 1, 429},
		{"two that do not fit together", 100, `,"n":2,"temperature":1`, 0, 200},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := inTurn(t, func(c *Config) {
					c.Tenants[0].Uncollected, c.Models[0].Sizes.BytesPerToken = tc.limit, 8
				})
				budget := r.g.door.byID["tenant-a"].uncollected
				budget.Take(tc.held)
				a := r.send(r.request("POST", chatPath, long+tc.members+members+"}"))
				if r.event(); a.status != tc.status || budget.Held() != tc.held {
					t.Errorf("%d %s, %d are held", a.status, a.body, budget.Held())
				}
			})
		}
	}
}

// soon waits until something holds.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range int(patience / time.Millisecond) {
		if holds() {
			return
		}
		<-tick.C
	}
	t.Fatalf("%s: it did not come about", what)
}

// TestCallsFailBeforeAndAfter is each call of each dialect failing before it took effect
// and after: nothing is answered, nothing is held, and only what never began is tried
// again.
func TestCallsFailBeforeAndAfter(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) }
	half := func(honest script) script {
		return func(w http.ResponseWriter, r *http.Request, c call) {
			rec := &recorder{header: http.Header{}}
			honest(rec, r, c)
			w.Header().Set("Content-Type", rec.header.Get("Content-Type"))
			w.Header().Set("Content-Length", fmt.Sprint(rec.body.Len()))
			_, _ = fmt.Fprint(w, rec.body.String()[:rec.body.Len()/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	for _, d := range upstream.Dialects() {
		for mode, members := range modes() {
			t.Run(d.String()+"/"+mode, func(t *testing.T) {
				r := rigOf(t, d, nil)
				var gone []string
				for _, leg := range r.legs() {
					honest := honestDecode
					if leg.role == "prefill" {
						honest = honestPrefill
					}
					for name, do := range map[string]script{"before": abort, "after": half(honest)} {
						leg.set(do)
						a := r.chat(members)
						e := r.event()
						if a.status == 200 && e.Verdict != record.Broken || e.Verdict == Served || e.Attempts != 1 {
							t.Errorf("%s, %s: %d %s, %+v", leg.role, name, a.status, a.body, e)
						}
					}
					leg.set(honest)
					gone = append(gone, leg.role)
				}
				if d.Traits().Counting == upstream.AtEnd {
					r.decode.set(lateDecode)
				}
				r.clock.advance(r.lease())
				r.g.Refresh(t.Context())
				if a := r.chat(members); a.status != 200 {
					t.Errorf("after %v failed: %d %s", gone, a.status, a.body)
				}
				r.event()
				r.clock.advance(r.lease())
				// Without a connection nothing began, and it is tried once more.
				r = rigOf(t, d, nil)
				r.decode.srv.Close()
				a := r.chat(members)
				if e := r.event(); a.status != 502 || e.Code != fault.UpstreamUnreachable || e.Attempts != 2 {
					t.Errorf("no connection: %d %s, %+v", a.status, a.body, e)
				}
				r.clock.advance(r.lease())
			})
		}
	}
}
