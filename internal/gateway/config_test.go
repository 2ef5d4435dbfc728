package gateway

import (
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/upstream"
	"bulkhead.dev/bulkhead/kv"
)

type nopPasser struct{}

func (nopPasser) Mint(handoff.Attempt, kv.Domain, time.Time, int64, []byte) string { return "" }

func sound() Config {
	return Config{
		Tenants: []Tenant{{ID: "a", Keys: []Key{{Hash: account.KeyHash{1}}}, Models: []string{"m"}}, {ID: "b", Keys: []Key{{Hash: account.KeyHash{2}}}}},
		Models: []Model{{Name: "m", Engines: fleet.Spec{Pairs: []fleet.PairSpec{
			{BootstrapHost: "p", Prefill: fleet.Source{URL: "http://h:1"}, Decode: fleet.Source{URL: "https://h:2"}},
		}}}},
		Pepper: make([]byte, 16), DomainKey: make([]byte, 16), Passer: nopPasser{}, Events: make(eventChan, 8), Random: rand.Reader, Clock: SystemClock{},
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(sound()); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	after := func(d, first time.Duration) func(*Config) {
		return func(c *Config) { c.Models[0].Hold.CommitAfter, c.Bounds.FirstByte = d, first }
	}
	for _, change := range []func(*Config){after(time.Second, 0), after(5*time.Minute-1, 0), after(time.Minute, time.Minute+1)} {
		c := sound()
		if change(&c); c.check() != nil {
			t.Error(c.check())
		}
	}
	for want, change := range map[string]func(*Config){
		"pepper":                                func(c *Config) { c.Pepper = c.Pepper[1:] },
		"domain key":                            func(c *Config) { c.DomainKey = nil },
		"passer":                                func(c *Config) { c.Passer = nil },
		"events":                                func(c *Config) { c.Events = nil },
		"random":                                func(c *Config) { c.Random = nil },
		"clock":                                 func(c *Config) { c.Clock = nil },
		"retry_percent":                         func(c *Config) { c.Bounds.RetryPercent = 101 },
		"records":                               func(c *Config) { c.Records = -1 },
		"models[0].name":                        func(c *Config) { c.Models[0].Name = "" },
		"models[1].name":                        func(c *Config) { c.Models = append(c.Models, c.Models[0]) },
		"models[0].engines":                     func(c *Config) { c.Models[0].Engines.Pairs = nil },
		"models[0].hold.commit_after: at":       after(time.Second-1, 0),
		"models[0].hold.commit_after: at least": after(-time.Second, 0),
		"models[0].hold.commit_after":           after(5*time.Minute, 0),
		"hold.commit_after: at least 1s":        after(10*time.Second, 10*time.Second),
		"models[0].engines: lease":              func(c *Config) { c.Models[0].Dialect = upstream.VLLMNixl },
		"models[0].engines: sglang has one leg": func(c *Config) { c.Models[0].Dialect = upstream.SGLang },
		"models[0]":                             func(c *Config) { c.Models[0].Window = -1 },
		"models[0].probe":                       func(c *Config) { c.Models[0].Probe.Prompt = "What?" },
		"models[0].engines: pairs[0].bootstrap": func(c *Config) { c.Models[0].Engines.Pairs[0].BootstrapHost = "" },
		"models[0].engines: pairs[0].url: want": func(c *Config) { c.Models[0].Engines.Pairs[0].Decode.URL = "http://h:1/path" },
		"models[0].engines: pairs[0].url":       func(c *Config) { c.Models[0].Engines.Pairs[0].Prefill.URL = "h:1" },
		"models[0].engines: pairs[0].url:":      func(c *Config) { c.Models[0].Engines.Pairs[0].Prefill.URL = "http://u:p@h:1" },
		"tenants[0].id":                         func(c *Config) { c.Tenants[0].ID = "" },
		"tenants[0].id:":                        func(c *Config) { c.Tenants[0].ID = probeTenant },
		"tenants[1].id":                         func(c *Config) { c.Tenants[1].ID = "a" },
		"tenants[1].keys[0]":                    func(c *Config) { c.Tenants[1].Keys[0].Hash = account.KeyHash{1} },
		"tenants[0].keys[0]":                    func(c *Config) { c.Tenants[0].Keys[0].Hash = account.KeyHash{} },
		"tenants[0].models[0]":                  func(c *Config) { c.Tenants[0].Models[0] = "n" },
		"tenants[0]: a budget":                  func(c *Config) { c.Tenants[0].Bytes = -1 },
		"tenants[0]: a budget is":               func(c *Config) { c.Tenants[0].TokensPerMinute = -1 },
		"tenants[0].aliases":                    func(c *Config) { c.Tenants[0].Aliases = map[string]Alias{"x": {Model: "n"}} },
		"tenants[0].aliases:":                   func(c *Config) { c.Tenants[0].Aliases = map[string]Alias{"m": {Model: "m"}} },
		"tenants[0].narrow":                     func(c *Config) { c.Tenants[0].Narrow = "X-Bulkhead-Pass" },
		"tenants[0].narrow:":                    func(c *Config) { c.Tenants[0].Narrow = "authorization" },
		"modes: there":                          func(c *Config) { c.Modes = map[Control]Mode{"hold": {}} },
		"modes[admission].until":                func(c *Config) { c.Modes = map[Control]Mode{Admission: {State: Shadow}} },
		"modes[admission].until:":               func(c *Config) { c.Modes = map[Control]Mode{Admission: {State: Off, Until: later}} },
		"modes[admission].mode":                 func(c *Config) { c.Modes = map[Control]Mode{Admission: {State: 9}} },
	} {
		c := sound()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "gateway: configure: ") {
			t.Errorf("%s: %v", want, err)
		}
	}
	c := sound()
	c.Passer, c.Models[0].Dialect = nil, upstream.SGLangPD
	if _, err := New(c); err != nil {
		t.Errorf("only our own workers need a passer: %v", err)
	}
}

func TestDoorFindsEveryKey(t *testing.T) {
	c := sound()
	// Two hashes that begin alike stand in one bucket.
	first := account.Hash(c.Pepper, "bk-first")
	near := first
	near[31] ^= 1
	c.Tenants[0].Keys = []Key{{Hash: near}, {Hash: account.Hash(c.Pepper, "bk-other")}}
	c.Tenants[1].Keys = []Key{{Hash: first}}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"bk-first": "b", "bk-other": "a"} {
		got, fail := g.door.tenant(http.Header{"Authorization": {"bearer " + key}}, time.Now())
		if fail != nil || got.ID != want {
			t.Errorf("%s: %v, %v", key, got, fail)
		}
	}
	if _, fail := g.door.tenant(http.Header{"Authorization": {"Bearer bk-third"}}, time.Now()); fail == nil {
		t.Error("an unknown key was taken")
	}
}

// TestDomainsOfTenants: tenants with one named domain share it, and no others.
func TestDomainsOfTenants(t *testing.T) {
	c := sound()
	c.Tenants = append(c.Tenants, Tenant{ID: "c", Domain: "a"}, Tenant{ID: "d", Domain: "a"}, Tenant{ID: "e", Domain: "z"})
	for i := range c.Tenants {
		c.Tenants[i].Keys = []Key{{Hash: account.Hash(c.Pepper, c.Tenants[i].ID)}}
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]kv.Domain{}
	for id, t := range g.door.byID {
		of[id] = t.domain
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
		if err != nil || id.room < 1 || seen[id] || len(id.transfer) != 3+32 {
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
	const start = 16 // for the fleet
	for _, bytes := range []int{0, 24, 60} {
		c := sound()
		c.Random = strings.NewReader(strings.Repeat("x", start+bytes))
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

func TestByteLease(t *testing.T) {
	l := lease{process: account.NewBudget(5), tenant: account.NewBudget(9)}
	if l.take(5) != nil || l.take(1) == nil || l.tenant.Held() != 5 || l.process.Held() != 5 {
		t.Error("a refusal must take from neither budget")
	}
	l.release()
	l.release()
	if l.tenant.Held() != 0 || l.process.Held() != 0 {
		t.Error("release")
	}
}
