package main

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/twin"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// The scale of recipe R7: an engine tells a window of 1,024 tokens, and its pool serves
// 672 of them.
const (
	scaledWindow = 1024
	scaledPool   = 672
)

// scaled are twins of that scale. vLLM keeps a block for itself; llama.cpp parts its pool
// among two slots. SGLang serves all of its pool, and takes prompts that leave six of it.
func scaled(k kind) plan {
	o := twin.Options{Window: scaledWindow, Pool: scaledPool}
	switch k.dialect {
	case upstream.VLLM, upstream.VLLMNixl, upstream.VLLMMooncake:
		o.Pool = scaledPool + 16
	case upstream.LlamaCPP:
		o.Pool = 2 * scaledPool
	}
	return plan{decode: o, change: func(c *gw.Config) {
		c.Models[0].DefaultMaxTokens = 1
		if k.dialect.Traits().Hosted {
			c.Models[0].Window = scaledWindow
		}
	}}
}

// ofTokens is a request whose prompt has n tokens by the twins' count.
func ofTokens(path string, n, limit int, members string) string {
	const head = 4 // tokens of a message besides its text
	members += `,"max_tokens":` + strconv.Itoa(limit) + "}"
	if path == completionPath {
		return `{"model":"m","prompt":"` + strings.Repeat("four", n) + `"` + members
	}
	return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("four", n-head) + `"}]` + members
}

// boundary is one row of recipe R7.
type boundary struct {
	row           string
	prompt, limit int
	code          string // empty: it is served
	numbers       []int  // that the refusal names
}

func boundaries() []boundary {
	return []boundary{
		{"2", 600, 71, "", nil},
		{"2", 600, 72, "", nil},
		{"3", 600, 73, "output_exceeds_pool", []int{600, 73, scaledPool}},
		{"3", 600, 423, "output_exceeds_pool", []int{600, 423, scaledPool}},
		{"3", 600, 424, "output_exceeds_pool", []int{600, 424, scaledPool}},
		{"3", 673, 1, "prompt_exceeds_pool", []int{673}},
		{"4", 1025, 1, "context_length_exceeded", []int{1025, scaledWindow}},
		{"5", 600, 100, "output_exceeds_pool", []int{600, 100, scaledPool}},
	}
}

// counted are the kinds whose engines count and have a pool.
func counted() []kind {
	return some(func(t upstream.Traits) bool { return t.Tokenizes })
}

// TestBoundaries is recipe R7, rows 1 to 5 and 10, at both endpoints, stream and not.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	for _, k := range counted() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, scaled(k))
			if n := s.front.Status().Models[0].Advertised; n > scaledPool || n < scaledPool-6 {
				t.Errorf("1: %d tokens are advertised", n)
			}
			for _, row := range boundaries() {
				for _, path := range []string{chatPath, completionPath} {
					for _, members := range []string{"", `,"stream":true`} {
						s.boundary(row, path, members)
					}
				}
			}
		})
	}
}

// boundary asks once for a row, and then for a short answer.
func (s *stage) boundary(row boundary, path, members string) {
	s.t.Helper()
	for _, n := range s.nodes {
		n.forget()
	}
	a := s.send(s.request(0, path, ofTokens(path, row.prompt, row.limit, members)))
	e := s.event()
	dispatched := 0
	for _, n := range s.nodes {
		dispatched += s.counts(n)
	}
	switch {
	case row.code == "":
		if a.status != http.StatusOK || e.Verdict != gw.Served || dispatched != len(s.nodes) {
			s.t.Errorf("%s: %d + %d%s: %d %s", row.row, row.prompt, row.limit, members, a.status, a.body)
		}
	case a.status != http.StatusBadRequest || dispatched != 0 || e.Attempts != 0 || a.header.Get("Content-Type") != "application/json":
		s.t.Errorf("%s: %d + %d%s: %d, %d dispatched: %s", row.row, row.prompt, row.limit, members, a.status, dispatched, a.body)
	case s.kind.dialect == upstream.LlamaCPP:
		// Its window is what a slot holds, so that is what is named.
		if !strings.HasSuffix(row.code, "_pool") && !strings.Contains(a.body, strconv.Itoa(scaledPool)) || !strings.Contains(a.body, strconv.Itoa(row.prompt)) {
			s.t.Errorf("%s: %d + %d%s: %s", row.row, row.prompt, row.limit, members, a.body)
		}
	case a.code() != row.code:
		s.t.Errorf("%s: %d + %d%s: %s", row.row, row.prompt, row.limit, members, a.body)
	default:
		for _, n := range row.numbers {
			if !strings.Contains(a.body, strconv.Itoa(n)) {
				s.t.Errorf("%s: %d + %d%s: no %d in %s", row.row, row.prompt, row.limit, members, n, a.body)
			}
		}
	}
	if a := s.send(s.request(0, path, ofTokens(path, 10, 1, members))); a.status != http.StatusOK {
		s.t.Errorf("10: a short request gets %d %s", a.status, a.body)
	}
	s.event()
}

// TestHostedWindow: of a hosted API nothing is known but the window, and that holds.
func TestHostedWindow(t *testing.T) {
	t.Parallel()
	k := kind{upstream.OpenAI, "openai"}
	s := set(t, k, scaled(k))
	for n, code := range map[int]string{10: "", 1100: "context_length_exceeded"} {
		// Nobody counts for it, so a request in between is refused as not counted (row 11).
		a := s.send(s.request(0, chatPath, ofTokens(chatPath, n, 1, "")))
		if s.event(); a.code() != code && a.code() != "token_count_unavailable" || (a.status == http.StatusOK) != (code == "") {
			t.Errorf("%d tokens: %d %s", n, a.status, a.body)
		}
	}
	for _, stance := range s.front.Posture() {
		if stance.Rule == "G-2" && stance.State != gw.Unproven {
			t.Errorf("posture says of G-2: %s", stance.State)
		}
	}
}

// TestPoolShrinks is row 6: the limit follows the engine within one look.
func TestPoolShrinks(t *testing.T) {
	t.Parallel()
	for _, k := range counted() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, scaled(k))
			ask := func() reply {
				a := s.send(s.request(0, chatPath, ofTokens(chatPath, 520, 1, "")))
				s.event()
				return a
			}
			if a := ask(); a.status != http.StatusOK {
				t.Fatalf("control: %d %s", a.status, a.body)
			}
			s.decode.arm(t, "pool-halved")
			before, limit := s.front.Status().Models[0].Advertised, int64(0)
			s.look(func() bool {
				limit = s.front.Status().Models[0].Advertised
				return limit < before && limit > 0
			})
			s.decode.forget()
			if a := ask(); a.status != http.StatusBadRequest || !strings.Contains(a.body, "520") || limit > scaledPool/2 || s.counts(s.decode) != 0 {
				t.Errorf("%d, the limit is %d: %s", a.status, limit, a.body)
			}
			if k.dialect != upstream.VLLM {
				return // once is enough for what takes many looks
			}
			s.decode.Disarm()
			// To the gateway another engine and then the first one again; until it has been the
			// same for a while it takes nothing.
			s.look(func() bool { return s.front.Status().Ready && s.front.Status().Models[0].Advertised == before })
			if a := ask(); a.status != http.StatusOK {
				t.Errorf("after it has grown again: %d %s", a.status, a.body)
			}
		})
	}
}

// TestOneAfterTheOther is row 7: of two requests that do not fit together the second
// waits, and both are served.
func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	for _, k := range counted() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			p := scaled(k)
			alone := p.change
			p.change = func(c *gw.Config) {
				alone(c)
				c.Models[0].Engines.Overcommit = 1
				if k.dialect == upstream.LlamaCPP {
					c.Models[0].Engines.Overcommit = 0.5 // its two slots would hold both
				}
			}
			s := set(t, k, p)
			began, let := make(chan struct{}, 2), make(chan struct{})
			s.reader().become(func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
				began <- struct{}{}
				<-let
				serve(w, r)
			})
			got := make(chan reply, 2)
			for range 2 {
				r := s.request(0, chatPath, ofTokens(chatPath, 400, 10, ""))
				go func() { got <- s.send(r) }()
			}
			<-began
			until(t, func() bool { return s.front.Status().Models[0].Waiting == 1 })
			s.clock.advance(time.Second)
			close(let)
			queued := 0
			for range 2 {
				if a := <-got; a.status != http.StatusOK {
					t.Errorf("%d %s", a.status, a.body)
				}
				if e := s.event(); e.Queued > 0 {
					queued++
				}
			}
			if queued != 1 {
				t.Errorf("%d of two have waited", queued)
			}
		})
	}
}

// TestEngineSaysTooLong is row 8: with admission off the engines refuse by themselves,
// each in its way, SGLang inside a streamed 200. The client gets 4xx, and no number of
// another request.
func TestEngineSaysTooLong(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			p := scaled(k)
			alone := p.change
			p.change = func(c *gw.Config) {
				alone(c)
				c.Modes = map[gw.Control]gw.Mode{gw.Admission: {State: gw.Off}}
				c.Models[0].Sizes = gw.Sizes{BytesPerToken: 4}
			}
			s := set(t, k, p)
			for _, members := range []string{"", `,"stream":true`} {
				a := s.send(s.request(0, chatPath, ofTokens(chatPath, 1100, 1, members)))
				if e := s.event(); a.status != http.StatusBadRequest || e.Attempts == 0 || e.Verdict != record.Refused || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("%s: %d, %d attempts, verdict %s: %s", members, a.status, e.Attempts, e.Verdict, a.body)
				}
				a = s.send(s.request(0, chatPath, ofTokens(chatPath, 10, 1, members)))
				if s.event(); a.status != http.StatusOK {
					t.Errorf("10: %d %s", a.status, a.body)
				}
			}
		})
	}
}

// TestPrefillRefuses is row 8 for a pair whose prefill holds less than its decode, which
// is the incident: with admission off the older SGLang answers from pages that nobody
// wrote, the newer one leaves decode waiting, and through the gateway neither shows.
func TestPrefillRefuses(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"sglang-0.5.19", "sglang-0.5.20"} {
		for _, admission := range []gw.ModeState{gw.Enforce, gw.Off} {
			t.Run(engine+"/"+admission.String(), func(t *testing.T) {
				small := twin.Options{Pool: 128}
				s := set(t, kind{upstream.SGLangPD, engine}, plan{decode: twin.Options{Pool: 512}, prefill: &small, change: func(c *gw.Config) {
					c.Models[0].DefaultMaxTokens = 8
					if admission != gw.Enforce {
						c.Modes = map[gw.Control]gw.Mode{gw.Admission: {State: admission}}
					}
				}})
				for range 12 { // every page of decode holds tenant 1's secret
					text := strings.Repeat("It is "+secretB+". ", 14)
					a := s.send(s.request(1, completionPath, `{"model":"m","prompt":"`+text+`"}`))
					if s.event(); a.status != http.StatusOK || !strings.Contains(a.body, secretB) {
						t.Fatalf("control: %d %s", a.status, a.body)
					}
				}
				for _, path := range []string{chatPath, completionPath} {
					for _, members := range []string{"", `,"stream":true`} {
						a := s.send(s.request(0, path, ofTokens(path, 200, 8, members)))
						e := s.event()
						if a.status < 400 || a.text() != "" || e.Verdict == gw.Served || admission == gw.Enforce && (a.status != http.StatusBadRequest || e.Attempts != 0) {
							t.Errorf("%s%s: %d, verdict %s, %s: %s", path, members, a.status, e.Verdict, e.Agreement, a.body)
						}
					}
				}
				s.works()
			})
		}
	}
}
