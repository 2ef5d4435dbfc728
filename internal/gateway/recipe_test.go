package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// TestEndings is recipe R10, part 1: every way in which a stream can end, for an engine
// with one leg, for a pair, and for one that counts at its end. Only the first is an answer.
func TestEndings(t *testing.T) {
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	for _, d := range []upstream.Dialect{upstream.VLLM, upstream.SGLangPD, upstream.VLLMNixl, upstream.LlamaCPP} {
		last := func(c call) string {
			if d.Traits().Counting == upstream.AtEnd {
				return bare(c.path, c.id, "lo", "stop")
			}
			return chunk(c.path, c.id, "lo", "stop", promptTokens, 3)
		}
		usage := func(c call) string { return usageChunk(c.id, promptTokens, 3) }
		for _, tc := range []struct {
			row  string
			do   func(w http.ResponseWriter, c call)
			code string // empty: complete
			odd  record.Oddities
		}{
			{"1 all of it", func(w http.ResponseWriter, c call) { events(w, last(c), usage(c), "[DONE]") }, "", 0},
			{"2 no end mark", func(w http.ResponseWriter, c call) { events(w, last(c), usage(c)) }, "stream_broken", 0},
			{"3 no finish reason", func(w http.ResponseWriter, c call) { events(w, "[DONE]") }, "stream_broken", 0},
			{"4 neither", func(http.ResponseWriter, call) {}, "stream_broken", 0},
			{"5 cut inside a chunk", func(w http.ResponseWriter, c call) {
				_, _ = fmt.Fprint(w, "data: "+last(c)[:20])
				flush(w)
				panic(http.ErrAbortHandler)
			}, "stream_broken", 0},
			{"8 error then end mark", func(w http.ResponseWriter, c call) {
				events(w, `{"error":{"message":"`+foreign+`","type":"InternalServerError","code":500}}`, "[DONE]")
			}, "engine_failed", 0},
			{"10 finish error", func(w http.ResponseWriter, c call) {
				events(w, strings.Replace(last(c), `"stop"`, `"error"`, 1), "[DONE]")
			}, "engine_failed", 0},
			{"11 bytes after the end mark", func(w http.ResponseWriter, c call) {
				events(w, last(c), usage(c), "[DONE]", `{"id":"`+foreign+`"}`)
			}, "", record.SurplusBytes},
			{"usage never comes", func(w http.ResponseWriter, c call) {
				if d.Traits().Counting != upstream.AtEnd {
					events(w, usage(c)) // continuous usage is usage
				}
				events(w, last(c), "[DONE]")
			}, "", map[upstream.Counting]record.Oddities{upstream.AtEnd: record.UsageMissing}[d.Traits().Counting]},
			{"usage comes twice", func(w http.ResponseWriter, c call) { events(w, last(c), usage(c), usage(c), "[DONE]") }, "", record.UsageTwice},
		} {
			t.Run(d.String()+"/"+tc.row, func(t *testing.T) {
				r := rigOf(t, d, nil)
				seen := make(chan struct{})
				r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
					if d.Traits().Counting == upstream.AtEnd {
						events(w, bare(c.path, c.id, "", ""), bare(c.path, c.id, "The", ""))
					} else {
						events(w, chunk(c.path, c.id, "", "", promptTokens, 0), chunk(c.path, c.id, "The", "", promptTokens, 1))
					}
					<-seen
					tc.do(w, c)
				})
				a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"stream":true,"stream_options":{"include_usage":true}`)), "The", seen)
				text, end := streamed(a.body)
				e := r.event()
				rec, _ := r.g.Explain(e.ID)
				if tc.code == "" {
					if a.err != nil || end != "[DONE]" || text != "Thelo" || e.Verdict != Served || e.Oddities != tc.odd || strings.Count(a.body, `"choices":[]`) > 1 {
						t.Errorf("%v %s\n%+v", a.err, a.body, e)
					}
				} else if a.err == nil || strings.Contains(a.body, "[DONE]") || (answer{body: end}).code() != tc.code || e.Verdict != record.Broken || e.From == record.Reported {
					t.Errorf("%v %s\n%+v", a.err, a.body, e)
				}
				if rec.Verdict != e.Verdict || len(rec.Legs) != len(r.legs()) {
					t.Errorf("record: %+v", rec)
				}
			})
		}
	}
}

// TestSurplusClosesTheConnection holds that a connection on which something followed the
// end mark is not used again (G-12); one on which nothing did is.
func TestSurplusClosesTheConnection(t *testing.T) {
	for surplus, want := range map[string]int{"": 1, "data: " + foreign + "\n\n": 2} {
		r := rigOf(t, upstream.VLLM, nil)
		var mu sync.Mutex
		conns := map[string]bool{}
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			mu.Lock()
			conns[req.RemoteAddr] = true
			mu.Unlock()
			honestDecode(w, req, c)
			_, _ = fmt.Fprint(w, surplus)
		})
		for range 2 {
			if a := r.chat(`,"stream":true`); a.status != 200 || a.err != nil {
				t.Errorf("%d %v %s", a.status, a.err, a.body)
			}
			if e := r.event(); (e.Oddities == record.SurplusBytes) != (want == 2) {
				t.Errorf("event: %+v", e)
			}
		}
		if len(conns) != want {
			t.Errorf("surplus %q: %d connections, want %d", surplus, len(conns), want)
		}
	}
}

// TestErrorsBeforeTheFirstByte are recipe R10, rows 9 and 10: a status, never a 200.
func TestErrorsBeforeTheFirstByte(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.VLLM, upstream.SGLang, upstream.LlamaCPP, upstream.OpenAI, upstream.VLLMNixl} {
		for name, do := range map[string]script{
			"error as first event": func(w http.ResponseWriter, _ *http.Request, c call) {
				events(w, `{"error":{"message":"`+foreign+`","code":500}}`, "[DONE]")
			},
			"error behind the role": func(w http.ResponseWriter, _ *http.Request, c call) {
				events(w, bare(c.path, c.id, "", ""), `{"error":{"message":"`+foreign+`","code":500}}`, "[DONE]")
			},
			"finish abort": func(w http.ResponseWriter, _ *http.Request, c call) {
				events(w, bare(c.path, c.id, "", "abort"), "[DONE]")
			},
		} {
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				r := rigOf(t, d, nil)
				r.decode.set(do)
				r.refused(r.chat(`,"stream":true`), 500, "engine_failed")
			})
		}
		t.Run(d.String()+"/whole, finish error, no content", func(t *testing.T) {
			r := rigOf(t, d, nil)
			r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
				if c.stream {
					events(w, strings.Replace(bare(c.path, c.id, foreign, "error"), `"content"`, `"x"`, 1))
					return
				}
				reply(w, 200, strings.Replace(whole(c.path, c.id, foreign, "error", promptTokens, 3), `"content"`, `"x"`, 1))
			})
			a := r.chat("")
			if e := r.refused(a, 500, "engine_failed"); e.Completion != admit.Unknown() && e.From == record.Reported {
				t.Errorf("event: %+v", e)
			}
		})
	}
}

// TestUsage is recipe R9, rows 1 and 4 to 12, where the gateway decides: what is told is
// the engine's, once, or unknown.
func TestUsage(t *testing.T) {
	with := func(usage string) script {
		return edited(honestDecode, `"prompt_tokens":40,"completion_tokens":3,"total_tokens":43`, usage)
	}
	for _, tc := range []struct {
		row        string
		do         script
		completion admit.Tokens
		odd        record.Oddities
		shown      bool
	}{
		{"1 more cached than there is", with(`"prompt_tokens":40,"completion_tokens":3,"total_tokens":43,"prompt_tokens_details":{"cached_tokens":3968}`), admit.Known(3), record.CachedTooMany, true},
		{"1 all cached that there is", with(`"prompt_tokens":40,"completion_tokens":3,"total_tokens":43,"prompt_tokens_details":{"cached_tokens":40}`), admit.Known(3), 0, true},
		{"5 none", edited(honestDecode, `"usage"`, `"x"`), admit.Unknown(), record.UsageMissing, false},
		{"6 zeros", with(`"prompt_tokens":40,"completion_tokens":0,"total_tokens":40`), admit.Known(0), 0, true},
		{"7 decode's count alone", honestDecode, admit.Known(3), 0, true},
		{"10 a wrong sum", with(`"prompt_tokens":40,"completion_tokens":3,"total_tokens":44`), admit.Unknown(), record.UsageWrong, false},
		{"10 more than was asked", with(`"prompt_tokens":40,"completion_tokens":21,"total_tokens":61`), admit.Unknown(), record.UsageWrong, true},
	} {
		t.Run(tc.row, func(t *testing.T) {
			r := rigOf(t, upstream.VLLM, nil)
			r.decode.set(tc.do)
			a := r.chat("")
			e := r.event()
			if a.status != 200 || e.Completion != tc.completion || e.Oddities != tc.odd || strings.Contains(a.body, `"usage"`) != tc.shown {
				t.Errorf("%d %s\n%+v", a.status, a.body, e)
			}
			if strings.Contains(a.body, "cached") {
				t.Errorf("cached tokens came through: %s", a.body)
			}
		})
	}
	for name, usage := range map[string]string{"negative": `"prompt_tokens":40,"completion_tokens":-3`, "no number": `"prompt_tokens":NaN,"completion_tokens":3`} {
		t.Run("10 "+name, func(t *testing.T) {
			r := rigOf(t, upstream.VLLM, nil)
			r.decode.set(with(usage))
			a := r.chat("")
			if e := r.event(); e.From == record.Reported && e.Completion != admit.Unknown() || a.status == 200 && strings.Contains(a.body, "-3") {
				t.Errorf("%d %s\n%+v", a.status, a.body, e)
			}
		})
	}
	t.Run("8 the estimate is far off", func(t *testing.T) {
		r := rigOf(t, upstream.VLLM, nil)
		r.decode.set(with(`"prompt_tokens":599,"completion_tokens":3,"total_tokens":602`))
		r.chat("")
		if e := r.event(); e.Prompt != admit.Known(599) {
			t.Errorf("event: %+v", e)
		}
	})
}

// TestLeavingIsNoSuccess is recipe R9, row 9: a client that leaves after five chunks has
// used what was observed, by the engine's count or else by the pieces.
func TestLeavingIsNoSuccess(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.VLLM, upstream.LlamaCPP} {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			ended := make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				for i := range 5 {
					if d == upstream.VLLM {
						events(w, chunk(c.path, c.id, "x", "", promptTokens, i+1))
					} else {
						events(w, bare(c.path, c.id, "x", ""))
					}
				}
				<-req.Context().Done()
				close(ended)
			})
			resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)))
			if err != nil {
				t.Fatal(err)
			}
			in := eventReader{r: resp.Body, max: 1 << 16}
			for range 5 {
				if _, err := in.next(); err != nil {
					t.Fatal(err)
				}
			}
			closeBody(resp)
			<-ended
			if e := r.event(); e.Verdict != record.Left || e.Completion != admit.Known(5) || e.From != record.Observed {
				t.Errorf("event: %+v", e)
			}
		})
	}
}

// TestIdentity is recipe R3 where the gateway decides; rows 4 to 6 and 8 have tests of their own.
func TestIdentity(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.SGLangPD, upstream.VLLMNixl, upstream.VLLMMooncake} {
		t.Run("1 no connection/"+d.String(), func(t *testing.T) {
			r := newBare(t, d)
			p2, d2 := newScripted(r, "prefill"), newScripted(r, "decode")
			p2.set(honestPrefill)
			d2.set(honestDecode)
			r.start(func(c *Config) {
				second := r.pairOf(p2, d2, "prefill-1")
				second.Prefill.Weight, second.Decode.Weight = 1e-9, 1e-9
				c.Models[0].Engines.Pairs = append(c.Models[0].Engines.Pairs, second)
			})
			r.decode.set(hanging(nil))
			r.prefill.srv.Close()
			if a := r.chat(""); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if e := r.event(); e.Attempts != 2 || e.Target != "pair-prefill-1" {
				t.Errorf("event: %+v", e)
			}
			p, dd := p2.got()[0], d2.got()[0]
			if d == upstream.SGLangPD && (p.room != dd.room || p.room == 0) {
				t.Errorf("rooms %d and %d", p.room, dd.room)
			}
			if first := r.decode.got(); len(first) > 0 && (first[0].rid == dd.rid || first[0].room != 0 && first[0].room == dd.room) {
				t.Error("the second attempt has the ids of the first")
			}
			if d == upstream.VLLMNixl && len(r.decode.got()) != 0 {
				t.Error("decode was called without a handle")
			}
			r.clock.advance(r.lease())
		})
		t.Run("2 read, then reset/"+d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			r.decode.set(hanging(nil))
			r.prefill.set(reset)
			if e := r.refused(r.chat(""), 502, "upstream_unreachable"); e.Attempts != 1 || len(r.prefill.got()) != 1 {
				t.Errorf("%d calls, event %+v", len(r.prefill.got()), e)
			}
			r.clock.advance(r.lease())
		})
		t.Run("3 reset after three chunks/"+d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			seen := make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				events(w, decodeChunks(c.path, c.id)[:3]...)
				<-seen
				reset(w, req, c)
			})
			a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"stream":true`)), " ans", seen)
			if text, _ := streamed(a.body); text != "The ans" || a.err == nil || len(r.decode.got()) != 1 {
				t.Errorf("%s, %v", a.body, a.err)
			}
			if e := r.event(); e.Verdict != record.Broken || e.Attempts != 1 {
				t.Errorf("event: %+v", e)
			}
		})
		t.Run("9 no prefill ready/"+d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			r.prefill.become(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
			r.g.Refresh(t.Context())
			r.refused(r.chat(""), 503, "no_pair_ready")
			if len(r.decode.got()) != 0 {
				t.Error("decode saw the request")
			}
		})
	}
}

// TestHandlesSwapped is recipe R3, row 8: two prefill answers that are each other's.
func TestHandlesSwapped(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.SGLangPD, upstream.VLLMNixl, upstream.VLLMMooncake} {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			var mu sync.Mutex
			var first *call
			both := make(chan struct{})
			other := map[string]call{}
			r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
				mu.Lock()
				if first == nil {
					first = &c
					mu.Unlock()
					<-both
				} else {
					other[first.rid], other[c.rid] = c, *first
					mu.Unlock()
					close(both)
				}
				mu.Lock()
				o := other[c.rid]
				mu.Unlock()
				honestPrefill(w, req, o)
			})
			got := make(chan answer, 2)
			for range 2 {
				go func() { got <- r.chat("") }()
			}
			for range 2 {
				if a := <-got; a.status != 502 || a.code() != "upstream_answer_void" {
					t.Errorf("%d %s", a.status, a.body)
				}
				if e := r.event(); e.Verdict != record.Void {
					t.Errorf("event: %+v", e)
				}
			}
			r.clock.advance(r.lease())
		})
	}
}

// TestIDsOfClients is recipe R3, row 4: no id of a client's is one of ours.
func TestIDsOfClients(t *testing.T) {
	r := rigOf(t, upstream.VLLM, nil)
	seen := map[string]bool{}
	for _, id := range []string{"", "None", "null", "shared", "shared", strings.Repeat("l", 300), "not\tprintable"} {
		for range 20 {
			req := r.request("POST", chatPath, chatBody(""))
			req.Header["X-Request-Id"] = []string{id}
			a := r.send(req)
			e := r.event()
			if a.status != 200 || seen[e.RID] || seen[e.ID] || strings.Contains(e.RID, "shared") {
				t.Fatalf("%q: %d, event %+v", id, a.status, e)
			}
			seen[e.RID], seen[e.ID] = true, true
			want := id[:min(len(id), 128)]
			if strings.Contains(id, "\t") {
				want = ""
			}
			if rec, _ := r.g.Explain(e.ID); a.header.Get(headerClient) != want || rec.Client != want {
				t.Errorf("%q came back as %q, kept as %q", id, a.header.Get(headerClient), rec.Client)
			}
		}
	}
	for _, c := range r.decode.got() {
		if !seen[c.rid] || seen[string(c.raw)] {
			t.Error("an engine's id is not one of ours")
		}
	}
}

// TestNoReplay is recipe R3, row 5: a call that was read is not made again on a warm
// connection, whatever the client's header says.
func TestNoReplay(t *testing.T) {
	r := rigOf(t, upstream.VLLM, nil)
	r.chat("")
	r.event()
	r.decode.set(func(http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) })
	req := r.request("POST", chatPath, chatBody(""))
	req.Header.Set("Idempotency-Key", "k")
	r.refused(r.send(req), 502, "upstream_unreachable")
	if n := len(r.decode.got()); n != 2 {
		t.Errorf("%d calls", n)
	}
}

// TestBoundary is recipe R7 with a window of 1,024 and a pool of 672, for an engine whose
// tokenizer counts.
func TestBoundary(t *testing.T) {
	tokens := 0
	var mu sync.Mutex
	set := func(n int) { mu.Lock(); defer mu.Unlock(); tokens = n }
	newPool := func(t *testing.T, blocks int) *rig {
		r := newBare(t, upstream.VLLM)
		r.decode.blocks = blocks // of 16 tokens, one of which is never used
		r.decode.count = func() (int, string) {
			mu.Lock()
			defer mu.Unlock()
			return 200, fmt.Sprintf(`{"count":%d,"max_model_len":1024}`, tokens)
		}
		r.start(func(c *Config) { c.Models[0].Sizes, c.Models[0].DefaultMaxTokens = Sizes{PerRequest: 2000}, 1 })
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			mu.Lock()
			n := tokens
			mu.Unlock()
			edited(honestDecode, `"prompt_tokens":40,"completion_tokens":3,"total_tokens":43`, fmt.Sprintf(`"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d`, n, n+1))(w, req, c)
		})
		return r
	}
	r := newPool(t, 43) // 42 usable: 672 tokens
	if a := r.send(r.request("GET", "/v1/models", "")); !strings.Contains(a.body, `"max_model_len":672`) {
		t.Errorf("1: %s", a.body)
	}
	for _, tc := range []struct {
		row, n int
		max    string
		status int
		code   string
		number string
	}{
		{2, 671, `,"max_tokens":1`, 200, "", ""},
		{3, 672, "", 400, "prompt_exceeds_pool", "672"},
		{3, 673, "", 400, "prompt_exceeds_pool", "673"},
		{3, 1023, "", 400, "prompt_exceeds_pool", "1023"},
		{4, 1024, "", 400, "context_length_exceeded", "1024"},
		{4, 1025, "", 400, "context_length_exceeded", "1024"},
		{5, 600, `,"max_tokens":100`, 400, "output_exceeds_pool", "672"},
		{5, 600, `,"max_tokens":72`, 200, "", ""},
	} {
		for mode, members := range modes() {
			set(tc.n)
			calls := len(r.decode.got())
			a := r.chat(tc.max + members)
			e := r.event()
			if a.status != tc.status || a.code() != tc.code || !strings.Contains(a.body, tc.number) || e.Count != record.ByEngine {
				t.Errorf("%d, %d tokens, %s: %d %s", tc.row, tc.n, mode, a.status, a.body)
			}
			if tc.status == 200 && a.header.Get(headerCount) != "engine" {
				t.Errorf("count header %q", a.header.Get(headerCount))
			}
			if dispatched := len(r.decode.got()) - calls; dispatched != 0 && tc.status != 200 {
				t.Errorf("%d: %d generations were dispatched", tc.row, dispatched)
			}
			// 10: a short request is served at once after each.
			set(10)
			if a := r.chat(members); a.status != 200 {
				t.Errorf("10: %d %s", a.status, a.body)
			}
			r.event()
		}
	}
	// 6: the pool shrinks while it runs.
	set(520)
	if a := r.chat(""); a.status != 200 {
		t.Errorf("6: %d %s", a.status, a.body)
	}
	r.event()
	r.decode.mu.Lock()
	r.decode.blocks = 32 // 496 tokens
	r.decode.mu.Unlock()
	r.g.Refresh(t.Context())
	if a := r.chat(""); a.status != 400 || !strings.Contains(a.body, "496") {
		t.Errorf("6: %d %s", a.status, a.body)
	}
	r.event()
	// 11: nobody counts.
	r.decode.mu.Lock()
	r.decode.count = nil
	r.decode.mu.Unlock()
	r.refused(r.chat(""), 503, "token_count_unavailable")
}

// TestTwoThatFitOneAfterTheOther is recipe R7, row 7: two requests of which only one fits
// the pool at a time are both served.
func TestTwoThatFitOneAfterTheOther(t *testing.T) {
	for _, tc := range []struct {
		name   string
		queue  fleet.QueueBounds
		status int
		code   string
	}{
		{"waits", fleet.QueueBounds{}, 200, ""},
		{"waits too long", fleet.QueueBounds{Wait: time.Second}, 503, "queue_timeout"},
		{"tenant's queue full", fleet.QueueBounds{PerTenant: 1}, 429, "queue_full"},
		{"queue full", fleet.QueueBounds{PerTenant: 1, Total: 1}, 503, "overloaded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rigOf(t, upstream.VLLM, func(c *Config) {
				c.Models[0].Engines.Overcommit, c.Models[0].Engines.Queue = 1, tc.queue
				c.Models[0].Sizes = Sizes{BytesPerToken: 1, PerRequest: 8}
			})
			body := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("x", 400) + `"}],"max_tokens":200}`
			began, let := make(chan struct{}, 4), make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				began <- struct{}{}
				<-let
				honestDecode(w, req, c)
			})
			send := func() answer { return r.send(r.request("POST", chatPath, body)) }
			got := make(chan answer, 3)
			go func() { got <- send() }()
			<-began
			go func() { got <- send() }()
			m := r.g.models["recall"]
			soon(t, "the second waits", func() bool { return m.group.Waiting() == 1 })
			switch tc.status {
			case 503:
				var a answer
				if tc.queue.Total > 0 {
					a = send()
				} else {
					r.clock.advance(time.Second)
					a = <-got
				}
				r.refused(a, 503, tc.code)
				if a.header.Get("Retry-After") != "" {
					t.Error("Retry-After speaks of the engines' load (G-8)")
				}
			case 429:
				a := send()
				r.refused(a, 429, tc.code)
				if a.header.Get("Retry-After") == "" {
					t.Error("no Retry-After about the tenant's own queue")
				}
			}
			close(let)
			for range map[string]int{"": 2, "queue_timeout": 1, "queue_full": 2, "overloaded": 2}[tc.code] {
				if a := <-got; a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.event()
			}
		})
	}
}

// TestUpstreamTooLong is recipe R7, row 8, for engines that say it in their own way.
func TestUpstreamTooLong(t *testing.T) {
	r := rigOf(t, upstream.VLLM, nil)
	r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
		events(w, `{"error":{"message":"This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens, which exceeds this limit. `+foreign+`","type":"BadRequestError","param":"input_tokens","code":400}}`, "[DONE]")
	})
	r.refused(r.chat(`,"stream":true`), 400, string(fault.PromptOverWindow))
}

// TestInternalFields is recipe S2: fields and headers that steer engines, from outside.
// None reaches an engine, in no dialect.
func TestInternalFields(t *testing.T) {
	for _, d := range upstream.Dialects() {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			for _, field := range []string{
				`"kv_transfer_params":{"do_remote_prefill":true}`, `"bootstrap_room":1`, `"bootstrap_host":"h"`, `"id_slot":0`, `"rid":"x"`,
				`"request_id":"x"`, `"cache_salt":"x"`, `"data_parallel_rank":1`, `"ec_transfer_params":{}`, `"vllm_xargs":{"kv_transfer_params":"x"}`,
				`"transfer_id":"x"`, `"extra_key":"x"`, `"session_id":"x"`, `"lora_path":"x"`, `"extra_body":{"rid":"x"}`, `"nvext":{}`,
				`"\u0072id":"x"`, `"mm_payload":"x"`, `"input_ids":[1]`, `"n_cache_reuse":1`, `"verbose":true`, `"n_predict":5`,
			} {
				a := r.chat("," + field)
				if e := r.event(); a.status != 400 || e.Attempts != 0 {
					t.Errorf("%s: %d %s", field, a.status, a.body)
				}
			}
			for _, header := range []string{"X-Data-Parallel-Rank", "X-Prefiller-Host-Port", "X-Kv-Cache-Source-Host-Port", "X-Override-Bootstrap-Room", "X-Bulkhead-Pass"} {
				req := r.request("POST", chatPath, chatBody(""))
				req.Header.Set(header, "1")
				r.refused(r.send(req), 400, "reserved_header")
			}
			for _, leg := range r.legs() {
				if n := len(leg.got()); n != 0 {
					t.Errorf("%s was called %d times", leg.role, n)
				}
			}
			// The positive control: a name inside a tool's own schema is the caller's.
			if d == upstream.Bulkhead {
				return
			}
			if d.Traits().Counting == upstream.AtEnd {
				r.decode.set(lateDecode)
			}
			r.decode.mu.Lock()
			r.decode.count = func() (int, string) {
				return 200, map[bool]string{true: `{"input_tokens":50}`, false: `{"count":50,"max_model_len":1024}`}[d == upstream.LlamaCPP]
			}
			r.decode.mu.Unlock()
			if r.prefill != nil {
				r.prefill.mu.Lock()
				r.prefill.count = r.decode.count
				r.prefill.mu.Unlock()
			}
			a := r.chat(`,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"priority":{"type":"string"},"rid":{"type":"string"}}}}}]`)
			if a.status != 200 {
				t.Errorf("a tool with a parameter priority: %d %s", a.status, a.body)
			}
			r.event()
		})
	}
}

// TestPictures holds that what no tokenizer counts is admitted by its text, and judged by
// the engines: a picture is not a reason to turn a request away.
func TestPictures(t *testing.T) {
	body := `{"model":"recall","messages":[{"role":"user","content":[{"type":"text","text":"hello ` + secret + `"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}`
	for _, d := range []upstream.Dialect{upstream.SGLang, upstream.SGLangPD, upstream.VLLM, upstream.LlamaCPP, upstream.OpenAI} {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, nil)
			if d.Traits().Counting == upstream.AtEnd {
				r.decode.set(lateDecode)
			}
			if a := r.send(r.request("POST", chatPath, body)); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
			r.event()
		})
	}
	r := rigOf(t, upstream.Bulkhead, nil)
	r.refused(r.send(r.request("POST", chatPath, body)), 400, string(fault.UnsupportedContent))
}
