package gateway

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// deadlines is a ResponseWriter that notes its write deadline, and fails without one.
type deadlines struct {
	*httptest.ResponseRecorder
	until   time.Time
	written bool
}

func (d *deadlines) SetReadDeadline(time.Time) error { return nil }

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.until = t
	return nil
}

func (d *deadlines) Write(p []byte) (int, error) {
	d.written = d.written || d.until.IsZero()
	return d.ResponseRecorder.Write(p)
}

// TestEveryAnswerHasADeadline holds that nobody keeps a connection by not taking an answer,
// whatever was asked for and by whom, and that no answer has the deadline of an earlier one
// (G-14).
func TestEveryAnswerHasADeadline(t *testing.T) {
	r := newRig(t, nil)
	for _, ask := range []string{"GET /healthz", "GET /readyz", "GET /v1/models", "GET /nothing", "PUT /v1/models", "POST " + chatPath, "GET " + chatPath} {
		method, path, _ := strings.Cut(ask, " ")
		for _, key := range []string{"", r.key} {
			req := httptest.NewRequest(method, path, strings.NewReader(chatBody("")))
			if key != "" {
				req.Header.Set("Authorization", "Bearer "+key)
			}
			w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			r.g.ServeHTTP(w, req)
			if w.written || !w.until.After(r.clock.Now()) || w.until.Sub(r.clock.Now()) > r.g.bounds.Write {
				t.Errorf("%s: written without a deadline: %v, deadline in %v", ask, w.written, w.until.Sub(r.clock.Now()))
			}
			if strings.HasPrefix(ask, "POST") {
				r.event()
			}
		}
	}
}

// TestOneConnectionATenant holds that where answers bear no id of ours, requests of two
// tenants never share a connection to an engine (G-12).
func TestOneConnectionATenant(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.OpenAI, upstream.LlamaCPP, upstream.VLLM} {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, func(c *Config) { c.Tenants[1].Models = []string{"recall"} })
			over := make(chan string, 8)
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				over <- req.RemoteAddr
				honestDecode(w, req, c)
			})
			ask := func(key string) string {
				t.Helper()
				req := r.request("POST", chatPath, chatBody(""))
				req.Header.Set("Authorization", "Bearer "+key)
				if a := r.send(req); a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				r.event()
				return <-over
			}
			first, other := ask(r.key), ask(r.other)
			if shared := first == other; shared != (d == upstream.VLLM) {
				t.Errorf("two tenants share a connection: %v", shared)
			}
			if kept := first == ask(r.key); kept != (d != upstream.LlamaCPP) {
				t.Errorf("one tenant's is kept: %v", kept)
			}
		})
	}
}

// TestNarrowByHeader holds that a header only ever divides a domain: no value is too long to
// count, and a second one beside the tenant's own cannot take its place (G-7).
func TestNarrowByHeader(t *testing.T) {
	r := rigOf(t, upstream.VLLM, func(c *Config) { c.Tenants[0].Narrow = "x-end-user" })
	salt := func(values ...string) string {
		t.Helper()
		req := r.request("POST", chatPath, chatBody(""))
		req.Header["X-End-User"] = values
		if a := r.send(req); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		r.event()
		calls := r.decode.got()
		return string(calls[len(calls)-1].members(t)["cache_salt"])
	}
	long := strings.Repeat("x", 300)
	seen := map[string]string{}
	for name, values := range map[string][]string{
		"nobody": nil, "ann": {"ann"}, "bob": {"bob"}, "bob after ann": {"ann", "bob"}, "ann after bob": {"bob", "ann"}, "ann twice": {"ann", "ann"},
		"long": {long}, "longer": {long + "x"}, "as long": {long[1:] + "y"}, "with a comma": {"ann,bob"},
	} {
		got := salt(values...)
		if got == "" || got != salt(values...) {
			t.Errorf("%s: no steady salt: %s", name, got)
		}
		if other := seen[got]; other != "" {
			t.Errorf("%s has the salt of %s", name, other)
		}
		seen[got] = name
	}
}

// TestLeavingIsNotFree holds that a client which leaves while engines work for it has not
// used them for nothing, and that one which left before has (G-14).
func TestLeavingIsNotFree(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tenants[0].Budget = 10000 })
	began := make(chan struct{}, 1)
	r.prefill.set(func(_ http.ResponseWriter, req *http.Request, _ call) {
		began <- struct{}{}
		<-req.Context().Done()
	})
	spent := r.g.door.byID["tenant-a"].spent
	if a := r.chat(`,"max_tokens":2000`); a.status != 400 || spent.Held() != 0 {
		t.Fatalf("what does not fit: %d, %d tokens", a.status, spent.Held())
	}
	r.event()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req := r.request("POST", chatPath, chatBody(`,"max_tokens":100`)).WithContext(ctx)
	left := make(chan error, 1)
	go func() {
		resp, err := r.front.Client().Do(req)
		if err == nil {
			closeBody(resp)
		}
		left <- err
	}()
	<-began
	leave()
	if err := <-left; err == nil {
		t.Fatal("it got an answer")
	}
	if e := r.event(); e.Verdict != record.Left || e.Attempts != 1 {
		t.Fatalf("%+v", e)
	}
	if n := spent.Held(); n < 100 || n > 1000 {
		t.Errorf("it cost %d tokens", n)
	}
}

// TestStrangersAreNotRemembered holds that whoever has no key cannot push out what is
// remembered of others, however often it asks.
func TestStrangersAreNotRemembered(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Records = 4 })
	r.chat("")
	served := r.event()
	for range 16 {
		req := r.request("POST", chatPath, chatBody(""))
		req.Header.Set("Authorization", "Bearer nobody")
		a := r.send(req)
		r.refused(a, 401, "invalid_api_key")
		if _, found := r.g.Explain(a.header.Get(headerID)); found {
			t.Fatal("a stranger is remembered")
		}
	}
	for range 16 {
		r.chat(`,"zzz":1`)
		refused := r.event()
		if _, found := r.g.Explain(refused.ID); !found {
			t.Fatal("the last refusal is not remembered")
		}
	}
	if _, found := r.g.Explain(served.ID); !found {
		t.Error("refusals pushed out an answer")
	}
}

// TestOneTenantsFailures holds that requests of one tenant that an engine cannot serve, as
// many as it likes, do not take the engine from another.
func TestOneTenantsFailures(t *testing.T) {
	const poison = "poison"
	r := rigOf(t, upstream.VLLM, func(c *Config) {
		c.Tenants[1].Models = []string{"recall"}
		c.Models[0].Engines.Breaker = fleet.Breaker{}
	})
	var failing bool
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		if failing || bytes.Contains(c.raw, []byte(poison)) {
			reply(w, 500, `{"error":{"message":"Internal server error","code":500}}`)
			return
		}
		honestDecode(w, req, c)
	})
	ask := func(key, stop string) int {
		req := r.request("POST", chatPath, chatBody(`,"stop":"`+stop+`"`))
		req.Header.Set("Authorization", "Bearer "+key)
		a := r.send(req)
		r.event()
		return a.status
	}
	if got := ask(r.other, "x"); got != 200 {
		t.Fatal(got)
	}
	for range 40 {
		if got := ask(r.key, poison); got != 500 {
			t.Fatalf("the engine was taken away: %d", got)
		}
	}
	if got := ask(r.other, "x"); got != 200 {
		t.Errorf("the other tenant gets %d", got)
	}
	// An engine that fails for everybody is left alone.
	failing = true
	for range 5 {
		ask(r.key, "x")
		ask(r.other, "x")
	}
	if got := ask(r.other, "x"); got != 503 {
		t.Errorf("an engine that fails for all: %d", got)
	}
}

// TestAnswersCount holds that answers which are held whole count in the byte budgets, in
// whatever way they are held, and leave them at their end (G-14).
func TestAnswersCount(t *testing.T) {
	text := strings.Repeat("word ", 8<<10)
	for _, tc := range []struct {
		name    string
		d       upstream.Dialect
		members string
		do      script
	}{
		{"whole", upstream.VLLM, ``, func(w http.ResponseWriter, _ *http.Request, c call) {
			reply(w, 200, whole(c.path, c.id, text, "stop", promptTokens, 3))
		}},
		{"whole, of unknown length", upstream.VLLM, ``, func(w http.ResponseWriter, _ *http.Request, c call) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write([]byte(whole(c.path, c.id, text, "stop", promptTokens, 3)))
		}},
		{"put together", upstream.VLLMNixl, ``, func(w http.ResponseWriter, _ *http.Request, c call) {
			events(w, chunk(c.path, c.id, "The", "", promptTokens, 1), chunk(c.path, c.id, text, "stop", promptTokens, 3), upstream.Done)
		}},
	} {
		for _, limit := range []int64{1 << 20, 40 << 10} {
			t.Run(fmt.Sprint(tc.name, " within ", limit), func(t *testing.T) {
				r := rigOf(t, tc.d, func(c *Config) { c.Tenants[0].Bytes = limit })
				r.decode.set(tc.do)
				a := r.chat(tc.members)
				e := r.event()
				if limit > 1<<19 {
					if a.status != 200 || !strings.Contains(a.body, text) {
						t.Errorf("%d %.200s", a.status, a.body)
					}
				} else if a.status != 429 || a.code() != "tenant_bytes_exceeded" || e.Verdict != record.Refused {
					t.Errorf("%d %.200s, event %+v", a.status, a.body, e)
				}
				if n := r.g.door.byID["tenant-a"].bytes.Held(); n != 0 {
					t.Errorf("%d bytes are held afterwards", n)
				}
			})
		}
	}
}

// TestDroppedHandleCounts holds that a handle which was dropped unread counts until its own
// lease is over, beside the one that was asked for in its place (G-11, G-14).
func TestDroppedHandleCounts(t *testing.T) {
	for limit, want := range map[int64]int{45: 429, 128: 200} { // of one prompt, of two
		r := inTurn(t, func(c *Config) { c.Tenants[0].Uncollected = limit })
		slow := true
		r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
			if slow {
				slow = false
				r.clock.advance(16 * time.Second)
			}
			honestPrefill(w, req, c)
		})
		if a := r.chat(""); a.status != want {
			t.Errorf("limit %d: %d %s", limit, a.status, a.body)
		}
		held := r.g.door.byID["tenant-a"].uncollected
		if e := r.event(); e.Oddities&record.HandleDropped == 0 || held.Held() == 0 {
			t.Errorf("limit %d: %d tokens are held, event %+v", limit, held.Held(), e)
		}
		r.clock.advance(30 * time.Second)
		if n := held.Held(); n != 0 {
			t.Errorf("limit %d: %d tokens are held after the lease", limit, n)
		}
	}
}
