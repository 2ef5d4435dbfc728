package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/twin"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// reader is the node that reads prompts, and whose prefix cache is asked.
func (s *stage) reader() *node {
	if s.prefill != nil {
		return s.prefill
	}
	return s.decode
}

// salts are those that a node was sent, in order.
func salts(t *testing.T, n *node) []string {
	t.Helper()
	var all []string
	for _, one := range n.got(t) {
		all = append(all, one.text("cache_salt"))
	}
	return all
}

// cacheHits is how many prompt tokens a twin has taken from its cache, by its own metrics.
func (s *stage) cacheHits(n *node) float64 {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, n.srv.URL+"/metrics", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+engineKey)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	for line := range strings.Lines(readAll(resp)) {
		if strings.HasPrefix(line, "sglang:cached_tokens_total{") || strings.HasPrefix(line, "vllm:prefix_cache_hits_total{") {
			var hits float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &hits); err == nil {
				return hits
			}
		}
	}
	s.t.Fatalf("%s does not tell its hits", n.name)
	return 0
}

// shared is a prompt that several tenants send; nothing in it is a secret.
func shared() string {
	return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a prompt that all of them know ", 12) + `"}]}`
}

// joined puts tenants 1 and 2 into one domain.
func joined(c *gw.Config) {
	c.Tenants[1].Domain, c.Tenants[2].Domain = "together", "together"
}

// TestSaltOverTheWire is recipe R5 over the wire, with its paired control: who repeats a
// prompt is served from the cache, whoever else sends it is not, unless the operator has
// joined the two. What was cached is told to nobody.
func TestSaltOverTheWire(t *testing.T) {
	t.Parallel()
	for _, k := range some(func(t upstream.Traits) bool { return t.Salted }) {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{change: joined})
			before := s.cacheHits(s.reader())
			for _, row := range []struct {
				what   string
				tenant int
				hit    bool
			}{
				{"0 for the first time", 0, false}, {"0 again: without a hit there is no cache", 0, true}, {"1, the same prompt", 1, false},
				{"1 again", 1, true}, {"2, which shares the domain of 1", 2, true}, {"0 once more", 0, true},
			} {
				a := s.send(s.request(row.tenant, chatPath, shared()))
				e := s.event()
				after := s.cacheHits(s.reader())
				if a.status != http.StatusOK || e.Verdict != gw.Served || (after > before) != row.hit {
					t.Errorf("%s: %d, %.0f tokens from the cache", row.what, a.status, after-before)
				}
				if strings.Contains(a.body, "cached") {
					t.Errorf("%s: the answer tells of the cache: %s", row.what, a.body)
				}
				before = after
			}
			// Two who do not say who they are get nothing, and nothing is sent for them.
			sentSoFar := s.counts(s.reader())
			for range 2 {
				r := s.request(0, chatPath, shared())
				r.Header.Del("Authorization")
				if a := s.send(r); a.status != http.StatusUnauthorized {
					t.Errorf("without a key: %d", a.status)
				}
				s.event()
			}
			if s.counts(s.reader()) != sentSoFar || s.cacheHits(s.reader()) != before {
				t.Error("something was sent for nobody")
			}
			s.saltsHold(sentSoFar)
		})
	}
}

// saltsHold holds what the twins were sent: equal salts for a domain and no others at
// the node that reads prompts, and at decode a fresh one each time.
func (s *stage) saltsHold(requests int) {
	s.t.Helper()
	of := salts(s.t, s.reader())
	if len(of) != requests || of[0] == "" || of[0] != of[1] || of[0] != of[5] || of[2] != of[3] || of[2] != of[4] || of[0] == of[2] {
		s.t.Errorf("salts of tenants 0 0 1 1 2 0: %q", of)
	}
	if s.prefill == nil {
		return
	}
	seen := map[string]bool{}
	for _, salt := range append(salts(s.t, s.decode), of[0], of[2]) {
		if salt == "" || seen[salt] {
			s.t.Errorf("decode was given the salt %q, which is not fresh", salt)
		}
		seen[salt] = true
	}
}

// TestClientSalts: a salt, or what is like one, is refused in every spelling, and those
// whose own salt is known enter nobody's domain by it.
func TestClientSalts(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			s.send(s.request(1, chatPath, shared()))
			s.event()
			victims := "of-tenant-1"
			if s.traits.Salted {
				victims = salts(t, s.reader())[0]
			}
			for _, n := range s.nodes {
				n.forget()
			}
			for _, member := range []string{`"cache_salt"`, `"cache\u005fsalt"`, `"extra_key"`, `"cache_prompt"`, `"session_id"`} {
				a := s.send(s.request(0, chatPath, strings.TrimSuffix(shared(), "}")+","+member+`:"`+victims+`"}`))
				if e := s.event(); a.status != http.StatusBadRequest || e.Attempts != 0 || a.param() == "" {
					t.Errorf("%s: %d %s", member, a.status, a.body)
				}
			}
			for _, n := range s.nodes {
				if got := s.counts(n); got != 0 {
					t.Errorf("%s was sent %d completions", n.name, got)
				}
			}
		})
	}
}

// TestNoSaltNoCache: llama.cpp has no salt, so nothing is reused, not even a tenant's own;
// straight at the engine the same prompt is.
func TestNoSaltNoCache(t *testing.T) {
	t.Parallel()
	s := set(t, kind{upstream.LlamaCPP, "llamacpp-10434"}, plan{decode: twin.Options{Pool: 8192}})
	cached := func(tenant int) int64 {
		a := s.send(s.request(tenant, chatPath, shared()))
		e := s.event()
		record, _ := s.front.Explain(e.ID)
		n, told := record.Legs[0].Cached.Value()
		if a.status != http.StatusOK || !told {
			t.Fatalf("%d, legs %+v", a.status, record.Legs)
		}
		return n
	}
	for _, tenant := range []int{0, 0, 1, 0} {
		if n := cached(tenant); n != 0 {
			t.Errorf("tenant %d: %d tokens from the cache", tenant, n)
		}
	}
	for _, one := range s.decode.got(t) {
		if string(one.fields["cache_prompt"]) != "false" || one.fields["id_slot"] != nil {
			t.Errorf("cache_prompt is %s", one.fields["cache_prompt"])
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.decode.srv.URL+chatPath, strings.NewReader(shared()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+engineKey)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text := readAll(resp); strings.Contains(text, `"cached_tokens":0`) || !strings.Contains(text, `"cached_tokens":`) {
		t.Errorf("control: straight at the engine nothing is cached: %s", text)
	}
}
