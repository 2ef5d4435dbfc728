package gateway

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

type nopPasser struct{}

func (nopPasser) Mint(handoff.Attempt, kv.Domain, time.Time, int64, []byte) string { return "" }

func sound() Config {
	return Config{
		Tenants: []Tenant{{ID: "a", Keys: []KeyHash{{1}}, Models: []string{"m"}}, {ID: "b", Keys: []KeyHash{{2}}}},
		Models:  []Model{{Name: "m", Pairs: []Pair{{BootstrapHost: "p", Prefill: Leg{URL: "http://h:1"}, Decode: Leg{URL: "https://h:2"}}}}},
		Pepper:  make([]byte, 16), DomainKey: make([]byte, 16), Passer: nopPasser{}, Events: make(eventChan, 8), Random: rand.Reader, Clock: SystemClock{},
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(sound()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"pepper":                   func(c *Config) { c.Pepper = c.Pepper[1:] },
		"domain key":               func(c *Config) { c.DomainKey = nil },
		"passer":                   func(c *Config) { c.Passer = nil },
		"events":                   func(c *Config) { c.Events = nil },
		"random":                   func(c *Config) { c.Random = nil },
		"clock":                    func(c *Config) { c.Clock = nil },
		"retry_percent":            func(c *Config) { c.Bounds.RetryPercent = 101 },
		"models[0].name":           func(c *Config) { c.Models[0].Name = "" },
		"models[1].name":           func(c *Config) { c.Models = append(c.Models, c.Models[0]) },
		"models[0].pairs":          func(c *Config) { c.Models[0].Pairs = nil },
		"models[0]":                func(c *Config) { c.Models[0].Window = -1 },
		"models[0].pairs[0]: boot": func(c *Config) { c.Models[0].Pairs[0].BootstrapHost = "" },
		"models[0].pairs[0]: a":    func(c *Config) { c.Models[0].Pairs[0].Decode.URL = "http://h:1/path" },
		"models[0].pairs[0]":       func(c *Config) { c.Models[0].Pairs[0].Prefill.URL = "h:1" },
		"models[0].pairs[0]:":      func(c *Config) { c.Models[0].Pairs[0].Prefill.URL = "http://u:p@h:1" },
		"tenants[0].id":            func(c *Config) { c.Tenants[0].ID = "" },
		"tenants[1].id":            func(c *Config) { c.Tenants[1].ID = "a" },
		"tenants[1].keys[0]":       func(c *Config) { c.Tenants[1].Keys[0] = KeyHash{1} },
		"tenants[0].keys[0]":       func(c *Config) { c.Tenants[0].Keys[0] = KeyHash{} },
		"tenants[0].models[0]":     func(c *Config) { c.Tenants[0].Models[0] = "n" },
		"tenants[0]: a budget":     func(c *Config) { c.Tenants[0].Bytes = -1 },
	} {
		c := sound()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "gateway: configure: ") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestKeys(t *testing.T) {
	pepper := []byte("0123456789abcdef")
	text, hash, err := NewKey(rand.Reader, pepper)
	if err != nil || !strings.HasPrefix(text, "bk-") || len(text) != 3+32 {
		t.Fatalf("%q, %v", text, err)
	}
	if strings.Contains(hash.String(), text[3:]) || hashKey(pepper, text) != hash || hashKey([]byte("another pepper.."), text) == hash {
		t.Error("the hash is not keyed")
	}
	back, err := ParseKeyHash(hash.String())
	if err != nil || back != hash {
		t.Errorf("%v, %v", back, err)
	}
	for _, bad := range []string{"", "00", strings.Repeat("g", 64), strings.Repeat("0", 66), text} {
		if _, err := ParseKeyHash(bad); err == nil || strings.Contains(err.Error(), "bk-") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if text2, hash2, _ := NewKey(rand.Reader, pepper); text2 == text || hash2 == hash {
		t.Error("two keys are equal")
	}
	if _, _, err := NewKey(bytes.NewReader(make([]byte, 15)), pepper); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("too little randomness: %v", err)
	}
}

func TestDoorFindsEveryKey(t *testing.T) {
	c := sound()
	// Two hashes that begin alike stand in one bucket.
	first := hashKey(c.Pepper, "bk-first")
	near := first
	near[31] ^= 1
	c.Tenants[0].Keys = []KeyHash{near, hashKey(c.Pepper, "bk-other")}
	c.Tenants[1].Keys = []KeyHash{first}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"bk-first": "b", "bk-other": "a"} {
		got, fail := g.door.tenant(http.Header{"Authorization": {"bearer " + key}})
		if fail != nil || got.id != want {
			t.Errorf("%s: %v, %v", key, got, fail)
		}
	}
	if _, fail := g.door.tenant(http.Header{"Authorization": {"Bearer bk-third"}}); fail == nil {
		t.Error("an unknown key was taken")
	}
}

func TestDomains(t *testing.T) {
	key, key2 := []byte("0123456789abcdef"), []byte("0123456789abcdeF")
	base := domain(key, ownDomain, "a", 1)
	if base != domain(key, ownDomain, "a", 1) {
		t.Error("a domain has two names")
	}
	for name, other := range map[string]kv.Domain{
		"another tenant": domain(key, ownDomain, "b", 1), "a named domain of that name": domain(key, namedDomain, "a", 1),
		"another epoch": domain(key, ownDomain, "a", 2), "another key": domain(key2, ownDomain, "a", 1), "empty": domain(key, ownDomain, "", 1),
		"zero": {},
	} {
		if other == base {
			t.Errorf("%s has the same domain", name)
		}
	}
	c := sound()
	c.Tenants = append(c.Tenants, Tenant{ID: "c", Domain: "a"}, Tenant{ID: "d", Domain: "a"}, Tenant{ID: "e", Domain: "z"})
	for i := range c.Tenants {
		c.Tenants[i].Keys = []KeyHash{hashKey(c.Pepper, c.Tenants[i].ID)}
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]kv.Domain{}
	for _, entries := range g.door.byTag {
		for _, e := range entries {
			of[e.tenant.id] = e.tenant.domain
		}
	}
	if of["c"] != of["d"] || of["a"] == of["c"] || of["a"] == of["b"] || of["e"] == of["c"] {
		t.Errorf("domains: %v", of)
	}
}

// TestMint holds what an identity may be, at the ends of the random source too.
func TestMint(t *testing.T) {
	seen := map[identity]bool{}
	for _, fill := range []byte{0, 0xff, 1} {
		c := sound()
		c.Random = &pieces{text: strings.Repeat(string([]byte{fill}), 1000), size: 7}
		g, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		id, err := g.mint()
		if err != nil || id.room < 1 || seen[id] || len(id.rid) != 3+32 {
			t.Errorf("%+v, %v", id, err)
		}
		seen[id] = true
		if drawn, err := g.draw(); err != nil || drawn.seed < 0 {
			t.Errorf("%+v, %v", drawn, err)
		}
	}
	g, err := New(sound())
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[int64]bool{}
	for range 10_000 {
		id, err := g.mint()
		if err != nil || rooms[id.room] {
			t.Fatalf("%+v, %v", id, err)
		}
		rooms[id.room] = true
	}
}

// TestNoRandomness is a source that fails: nothing is served with bits that are not.
func TestNoRandomness(t *testing.T) {
	for _, bytes := range []int{0, 24, 60} {
		c := sound()
		c.Random = strings.NewReader(strings.Repeat("x", bytes))
		g, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		if want := map[bool]int{true: 200, false: 500}[bytes >= 24]; w.Code != want {
			t.Errorf("%d bytes: %d %s", bytes, w.Code, w.Body)
		}
		if bytes == 60 {
			if _, err := g.mint(); err == nil {
				t.Error("an identity was made of too little randomness")
			}
		}
	}
}

func TestServer(t *testing.T) {
	s := Server(http.NotFoundHandler())
	if s.ReadHeaderTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 || s.ErrorLog == nil || s.Protocols.HTTP2() || !s.Protocols.HTTP1() {
		t.Errorf("%+v", s)
	}
}

func TestBudget(t *testing.T) {
	b := newBudget(10)
	if !b.take(10) || b.take(1) || b.held() != 10 {
		t.Error("take")
	}
	b.give(4)
	if b.take(5) || !b.take(4) {
		t.Error("give")
	}
	l := lease{process: newBudget(5), tenant: newBudget(9)}
	if l.take(5) != nil || l.take(1) == nil || l.tenant.held() != 5 || l.process.held() != 5 {
		t.Error("a refusal must take from neither budget")
	}
	l.release()
	l.release()
	if l.tenant.held() != 0 || l.process.held() != 0 {
		t.Error("release")
	}
	r := newRetryBudget(0)
	n := 0
	for r.spend() {
		n++
	}
	r.earn()
	if n != retryBurst || r.spend() {
		t.Errorf("%d retries without a share", n)
	}
}
