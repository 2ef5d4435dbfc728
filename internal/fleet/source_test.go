package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// names are the engines that there are, and what keeps them.
func (r *rig) names() string {
	var all []string
	for _, s := range r.f.Status() {
		all = append(all, s.Name+": "+s.Why.String())
	}
	return strings.Join(all, ", ")
}

func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("10.0.0.1:30000", 672)
		second := n.plain("10.0.0.2:30000", 672)
		n.plain("[fd00::3]:30000", 672)
		n.name("engines", "10.0.0.2", "10.0.0.1", "10.0.0.1", "::ffff:10.0.0.2")
		r := n.start(t, Spec{Dialect: upstream.SGLang, SlowStart: -1, Plain: []Source{{DNS: "http://engines:30000", Key: "sk-secret"}}})
		r.run()
		synctest.Wait()
		if got, want := r.names(), "http://10.0.0.1:30000: ready, http://10.0.0.2:30000: ready"; got != want {
			t.Fatalf("%s", got)
		}
		second.do(func() {
			if second.hosts["/v1/models"] != "engines:30000" || second.auth["/v1/models"] != "Bearer sk-secret" {
				t.Errorf("asked as %q with %q", second.hosts, second.auth)
			}
		})
		var held *Target
		for held == nil || held.Plain.URL() != "http://10.0.0.2:30000" {
			if held != nil {
				held.Release(Cancelled)
			}
			held = r.take(exact(10, 10))
		}
		// One goes, one comes: within a resolution and a look.
		n.name("engines", "10.0.0.1", "fd00::3")
		time.Sleep(r.f.bounds.Resolve + r.f.bounds.Refresh + time.Second)
		if got, want := r.names(), "http://10.0.0.1:30000: ready, http://[fd00::3]:30000: ready"; got != want {
			t.Fatalf("%s", got)
		}
		held.Release(Answered) // its request went on
		if count := r.tally(50, exact(10, 10)); count["http://10.0.0.2:30000"] != 0 || len(count) != 2 {
			t.Errorf("%v", count)
		}
		// A name that is not found keeps what it meant, and says so.
		n.name("engines")
		n.mu.Lock()
		delete(n.names, "engines")
		n.mu.Unlock()
		time.Sleep(r.f.bounds.Resolve + time.Second)
		s := r.f.Status()
		if len(s) != 2 || !s[0].Ready || !s[0].SourceFailed {
			t.Errorf("%+v", s)
		}
		n.name("engines", "10.0.0.1")
		time.Sleep(r.f.bounds.Refresh + time.Second)
		if s := r.f.Status(); len(s) != 1 || s[0].SourceFailed {
			t.Errorf("%s", r.names())
		}
		events := fmt.Sprint(r.kinds())
		for _, want := range []string{"http://10.0.0.2:30000 node_removed", "http://[fd00::3]:30000 node_added", "engines:30000 source_failed", "engines:30000 source_recovered"} {
			if !strings.Contains(events, want) {
				t.Errorf("no %q in %s", want, events)
			}
		}
		// Junk for an address, or more than there may be, is no list.
		for _, bad := range [][]string{{"not an address"}, make([]string, 300), {}} {
			for i := range bad {
				if bad[i] == "" {
					bad[i] = fmt.Sprintf("10.1.%d.%d", i/200, i%200+1)
				}
			}
			n.name("engines", append([]string{}, bad...)...)
			time.Sleep(r.f.bounds.Resolve + time.Second)
			if s := r.f.Status(); len(s) != 1 || !s[0].SourceFailed || !s[0].Ready {
				t.Errorf("%v: %s", bad[:min(1, len(bad))], r.names())
			}
		}
		// A fleet that follows has the addresses at once.
		n.name("engines", "10.0.0.1")
		time.Sleep(r.f.bounds.Resolve + time.Second)
		if next := r.next(map[string]Spec{"m": r.g.Spec()}); !next.g.Ready() {
			t.Errorf("after Follow: %s", next.names())
		}
	})
}

// TestUnresolved is a name that nobody knows at the start.
func TestUnresolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("10.0.0.1:80", 672)
		r := n.start(t, Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "later", DNS: "http://later:80"}}})
		if s := r.f.Status(); len(s) != 1 || s[0].Why != Unresolved || !s[0].SourceFailed || r.g.Ready() {
			t.Errorf("%s", r.names())
		}
		r.fails(exact(10, 10), ErrNoneReady)
		n.name("later", "10.0.0.1")
		time.Sleep(minLookGap)
		r.take(exact(10, 10)).Release(Answered)
		if got := r.names(); got != "later/10.0.0.1:80: ready" {
			t.Errorf("%s", got)
		}
	})
}

func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		for _, at := range []string{"a:1", "b:1", "c:1"} {
			n.plain(at, 672)
		}
		path := filepath.Join(t.TempDir(), "nodes")
		changed := time.Now()
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			changed = changed.Add(time.Second)
			if err := os.Chtimes(path, changed, changed); err != nil {
				t.Fatal(err)
			}
		}
		write("# engines\nhttp://a:1\n\n  http://b:1  \n")
		r := n.start(t, Spec{Dialect: upstream.SGLang, SlowStart: -1, Plain: []Source{{File: path}}})
		if got, want := r.names(), "http://a:1: ready, http://b:1: ready"; got != want {
			t.Fatalf("%s", got)
		}
		write("http://b:1\nhttp://c:1")
		r.refresh()
		if got, want := r.names(), "http://b:1: ready, http://c:1: ready"; got != want {
			t.Fatalf("%s", got)
		}
		for name, bad := range map[string]string{
			"junk": "http://a:1\nnonsense\n", "a path": "http://a:1/v1\n", "a password": "http://user:pw-secret@a:1\n", "empty": "", "comments only": "# none\n",
			"too long": strings.Repeat("# long\n", 1<<18), "too many": many(257), "half a line": "http://a:1\nhttp://",
			"no name": "http://%FF:80\n", "a control character": "http://a%07:80\n", "a space": "http://a%20b:80\n", "no zone": "http://[fe80::1%25%FF]:80\n",
		} {
			write(bad)
			r.refresh()
			if s := r.f.Status(); len(s) != 2 || !s[0].SourceFailed || !s[0].Ready || s[0].Name != "http://b:1" {
				t.Errorf("%s: %s", name, r.names())
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		r.refresh()
		if s := r.f.Status(); len(s) != 2 || !s[0].SourceFailed {
			t.Errorf("gone: %s", r.names())
		}
		write("http://a:1")
		r.refresh()
		if got, want := r.names(), "http://a:1: ready"; got != want || r.f.Status()[0].SourceFailed {
			t.Errorf("%s", got)
		}
		// The same time and length, and other words: found when it is due.
		if err := os.WriteFile(path, []byte("http://c:1"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.f.bounds.Resolve)
		r.refresh()
		if got, want := r.names(), "http://c:1: ready"; got != want {
			t.Errorf("%s", got)
		}
		// One line twice is one engine.
		write("http://a:1\nhttp://a:1\n")
		r.refresh()
		if got := r.names(); got != "http://a:1: ready" || len(r.g.combos) != 1 {
			t.Errorf("%s, %d targets", got, len(r.g.combos))
		}
		if strings.Contains(fmt.Sprint(r.kinds(), r.f.Status()), "pw-secret") {
			t.Error("a password of the file is shown")
		}
	})
}

// many is a file of so many engines.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "http://a:%d\n", i+1)
	}
	return b.String()
}

// TestDuplicates are two sources that name one address.
func TestDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("10.0.0.1:80", 672)
		n.name("engines", "10.0.0.1")
		r := n.start(t, Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://10.0.0.1:80"}, {Name: "b", DNS: "http://engines:80"}}})
		if got, want := r.names(), "a: ready, b/10.0.0.1:80: has the address of another node"; got != want {
			t.Errorf("%s", got)
		}
		held := r.take(exact(400, 10))
		if waits := r.later(context.Background(), exact(400, 10)); waits.got().done {
			t.Errorf("one pool counted twice: %+v", waits.got())
		} else {
			held.Release(Answered)
			synctest.Wait()
			waits.got().t.Release(Answered)
		}
		r.idle()
	})
}

func TestWithName(t *testing.T) {
	if c := withName(nil, "engines"); c.ServerName != "engines" {
		t.Errorf("%q", c.ServerName)
	}
	own := &tls.Config{ServerName: "own"}
	if c := withName(own, "engines"); c.ServerName != "own" || c == own {
		t.Errorf("%q", c.ServerName)
	}
}

func TestSpecCheck(t *testing.T) {
	node := func(url string) []Source { return []Source{{URL: url}} }
	good := Spec{Dialect: upstream.SGLang, Served: "m", Plain: node("http://a:1")}
	two := Spec{Dialect: upstream.SGLangPD, Served: "m", Prefill: node("http://a:1"), Decode: node("http://b:1")}
	for _, s := range []Spec{good, two,
		{Dialect: upstream.Bulkhead, Served: "m", Pairs: []PairSpec{pairOf("a"), pairOf("b")}},
		{Dialect: upstream.OpenAI, Served: "m", Plain: node("https://api.example.org/openai")},
		{Dialect: upstream.VLLMNixl, Served: "m", Lease: time.Second, Prefill: node("http://a:1"), Decode: node("http://b:1")},
		{Dialect: upstream.SGLang, Served: "m", Plain: node("http://[::1]:80")},
		{Dialect: upstream.SGLang, Served: "m", Plain: node("http://[fe80::1%25eth0]:80")},
		{Dialect: upstream.SGLang, Served: "m", Plain: node("http://gpu_1-a.b\u00fccher.example:80")},
		{Dialect: upstream.SGLang, Served: "m", Plain: []Source{{DNS: "http://name:80", State: Canary, Share: 1}}},
	} {
		if err := s.Check(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	change := func(s Spec, f func(s *Spec)) Spec {
		s = s.WithDefaults()
		f(&s)
		return s
	}
	source := func(src Source) Spec { return Spec{Dialect: upstream.SGLang, Served: "m", Plain: []Source{src}} }
	for want, s := range map[string]Spec{
		"served: ":             change(good, func(s *Spec) { s.Served = "" }),
		"window, ":             change(good, func(s *Spec) { s.Window = -1 }),
		"window, lease":        change(good, func(s *Spec) { s.Overcommit = -1 }),
		"breaker: ":            change(good, func(s *Spec) { s.Breaker.Rate = 2 }),
		"lease: required":      change(two, func(s *Spec) { s.Dialect = upstream.VLLMNixl }),
		"sglang has one leg":   change(two, func(s *Spec) { s.Dialect = upstream.SGLang }),
		"sglang-pd has two":    change(good, func(s *Spec) { s.Dialect = upstream.SGLangPD }),
		"either pairs, or":     change(two, func(s *Spec) { s.Pairs = []PairSpec{pairOf("x")} }),
		"either pairs":         {Dialect: upstream.SGLangPD, Served: "m"},
		"prefill and decode: ": change(two, func(s *Spec) { s.Decode = nil }),
		"decode[0].url, dns, file: the address is used twice": change(two, func(s *Spec) { s.Decode = s.Prefill }),
		"nodes[0].url, dns, file: exactly one":                source(Source{URL: "http://a:1", DNS: "http://b:1"}),
		"nodes[0].url, dns, file: exactly":                    source(Source{}),
		"nodes[0].url: want":                                  source(Source{URL: "http://a:1/v1"}),
		"nodes[0].url: want scheme":                           source(Source{URL: "http://u:pw-secret@a:1"}),
		"nodes[0].url: want scheme and":                       source(Source{URL: "ftp://a:1"}),
		"nodes[0].url: want scheme and host":                  source(Source{URL: "http://a:99999"}),
		"nodes[0].dns: ":                                      source(Source{DNS: "http://name"}),
		"nodes[0].bootstrap: ":                                source(Source{URL: "http://a:1", BootstrapPort: 70000}),
		"nodes[0].state: ":                                    source(Source{URL: "http://a:1", State: 9}),
		"nodes[0].share: ":                                    source(Source{URL: "http://a:1", State: Canary}),
		"nodes[0].share: above":                               source(Source{URL: "http://a:1", Share: 0.1}),
		"nodes[0].weight: ":                                   source(Source{URL: "http://a:1", Weight: -1}),
		"nodes[0].key: ":                                      source(Source{URL: "http://a:1", Key: "sk-\nsecret"}),
		"pairs[0].bootstrap: ":                                {Served: "m", Pairs: []PairSpec{{Prefill: Source{URL: "http://a:1"}, Decode: Source{URL: "http://b:1"}}}},
		"pairs[0]: both":                                      {Served: "m", Pairs: []PairSpec{{BootstrapHost: "h", Prefill: Source{DNS: "http://a:1"}, Decode: Source{URL: "http://b:1"}}}},
		"nodes: the shares": {Dialect: upstream.SGLang, Served: "m",
			Plain: []Source{{URL: "http://a:1", State: Canary, Share: 0.6}, {URL: "http://b:1", State: Canary, Share: 0.6}}},
	} {
		err := s.Check()
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("a secret in %v", err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{Clock: SystemClock{}, Random: strings.NewReader(strings.Repeat("x", 64)), Models: map[string]Spec{"m": {Dialect: upstream.SGLang, Served: "m", Plain: []Source{{URL: "http://a:1"}}}}}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *Config){
		"clock and random":     func(c *Config) { c.Clock = nil },
		"clock":                func(c *Config) { c.Random = nil },
		"random: unexpected":   func(c *Config) { c.Random = strings.NewReader("x") },
		"models[m]: served":    func(c *Config) { c.Models = map[string]Spec{"m": {}} },
		"models[m]: more than": func(c *Config) { c.Bounds.Nodes = 1; c.Models = map[string]Spec{"m": twoNodes()} },
	} {
		c := good
		c.Random = strings.NewReader(strings.Repeat("x", 64))
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	// Combinations have a bound of their own.
	c := good
	c.Random = strings.NewReader(strings.Repeat("x", 64))
	c.Bounds.Targets = 1
	c.Models = map[string]Spec{"m": {Dialect: upstream.SGLangPD, Served: "m",
		Prefill: []Source{{URL: "http://a:1"}, {URL: "http://b:1"}}, Decode: []Source{{URL: "http://c:1"}}}}
	if _, err := New(c); err == nil {
		t.Error("two combinations where one may be")
	}
}

func twoNodes() Spec {
	return Spec{Dialect: upstream.SGLang, Served: "m", Plain: []Source{{URL: "http://a:1"}, {URL: "http://b:1"}}}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	add := func(s string) {
		t.Helper()
		if s == "" || seen[s] {
			t.Errorf("%q is used twice", s)
		}
		seen[s] = true
	}
	for s := Active; s <= Canary; s++ {
		add(s.String())
		if got, err := ParseState(s.String()); err != nil || got != s {
			t.Errorf("%v: %v", s, err)
		}
	}
	if s, err := ParseState(""); err != nil || s != Active {
		t.Errorf("empty: %v, %v", s, err)
	}
	if _, err := ParseState("sleeping"); err == nil {
		t.Error("a state that there is not")
	}
	for w := Unseen; w <= Gone+1; w++ {
		add(w.String())
	}
	for k := NodeUp; k <= SourceRecovered+1; k++ {
		if k.String() == "unknown" {
			break
		}
		add(k.String())
	}
	for o := Cancelled; o <= Void+1; o++ {
		add(o.String())
	}
	for h := Right; h <= Silent+1; h++ {
		add(h.String())
	}
}

// TestSecrets plants keys, and looks for them wherever an operator or a log could see
// them, whatever goes wrong.
func TestSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e := n.plain("a:1", 672)
		r := n.start(t, Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://a:1", Key: "sk-engine-secret", ControlKey: "sk-control-secret"}}})
		node := r.g.Nodes()[0]
		for want, make := range map[string]func() (string, error){
			"Bearer sk-engine-secret": func() (string, error) {
				req, err := node.NewRequest(context.Background(), "POST", "/v1/chat/completions", nil)
				return req.Header.Get("Authorization") + "|" + req.URL.String() + "|" + req.Header.Get("User-Agent"), err
			},
			"Bearer sk-control-secret": func() (string, error) {
				req, err := node.NewControl(context.Background(), "POST", "/abort_request", nil)
				return req.Header.Get("Authorization"), err
			},
		} {
			if got, err := make(); err != nil || !strings.HasPrefix(got, want) {
				t.Errorf("%q, %v", got, err)
			}
		}
		resp, err := func() (any, error) {
			req, err := node.NewRequest(context.Background(), "GET", "/v1/models", nil)
			if err != nil {
				return nil, err
			}
			resp, err := node.RoundTrip(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			return resp, err
		}()
		if err != nil || resp == nil || e.bearer("/v1/models") != "Bearer sk-engine-secret" {
			t.Errorf("%v, %v, %q", resp, err, e.bearer("/v1/models"))
		}
		e.do(func() { e.down = true })
		r.refresh()
		_, _, err = r.g.Acquire(context.Background(), exact(10, 10))
		_, bad := node.NewRequest(context.Background(), "a method", "/x", nil)
		shown := fmt.Sprintf("%+v %v %+v %v %v %+v", r.f.Status(), r.kinds(), r.g.Targets(), err, bad, errors.Join(err, bad))
		if strings.Contains(shown, "secret") {
			t.Errorf("a key is shown: %s", shown)
		}
		if !strings.Contains(shown, "http://a:1") {
			t.Error("nothing is shown, so this shows nothing")
		}
	})
}
