package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/twin"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// twinPair is a site of two twins with pools of the given sizes.
func twinPair(t *testing.T, name string, prefillPool, decodePool int) assure.Site {
	t.Helper()
	prefill, decode, err := twin.Pair(name, twin.Options{Pool: prefillPool, Model: "smol"}, twin.Options{Pool: decodePool, Model: "smol"})
	if err != nil {
		t.Fatal(err)
	}
	p, d := httptest.NewServer(prefill), httptest.NewServer(decode)
	t.Cleanup(p.Close)
	t.Cleanup(d.Close)
	return assure.Site{Dialect: upstream.SGLangPD, Model: "smol", Served: "smol", Prefill: p.URL, Decode: d.URL, Bootstrap: "127.0.0.1:8998"}
}

// TestSGLangCasesSeeTheTwin: what was seen at the engine is seen at the twin, and where
// the condition is missing nothing is claimed.
func TestSGLangCasesSeeTheTwin(t *testing.T) {
	options := assure.Options{Ways: []assure.Way{assure.Direct}, Only: []string{"sglang-overlong", "sglang-window", "sglang-rid", "sglang-fields"}}
	uneven, err := assure.Run(t.Context(), twinPair(t, "sglang-0.5.19", 512, 4096), options)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range uneven.Results {
		if r.Outcome != assure.Red {
			t.Errorf("pools of 512 and 4096: %s is %s: %s", r.Case, r.Outcome, r.Why)
		}
	}
	options.Only = []string{"sglang-overlong", "sglang-window"}
	even, err := assure.Run(t.Context(), twinPair(t, "sglang-0.5.19", 4096, 4096), options)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]assure.Outcome{"sglang-overlong": assure.Skip, "sglang-window": assure.Green} {
		if r, ok := even.Of(name, assure.Direct); !ok || r.Outcome != want {
			t.Errorf("equal pools: %s is %s, want %s: %s", name, r.Outcome, want, r.Why)
		}
	}
}

// TestTamper: only while it is armed prefill gets another prompt, and nothing else of the
// request is changed.
func TestTamper(t *testing.T) {
	var path, body string
	engine := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		path, body = r.URL.Path, string(b)
	}))
	defer engine.Close()
	proxy, err := tamperWith(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.end()
	post := func(sent string) {
		t.Helper()
		a, err := http.Post(proxy.url+"/v1/completions", "application/json", strings.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
	}
	const sent = `{"bootstrap_room":7,"prompt":"a long prompt"}`
	post(sent)
	if path != "/v1/completions" || body != sent {
		t.Errorf("unarmed, %s got %s", path, body)
	}
	if err := proxy.arm(); err != nil {
		t.Fatal(err)
	}
	if proxy.disarm() == nil {
		t.Error("it says that a prompt was changed, and none came")
	}
	if err := proxy.arm(); err != nil {
		t.Fatal(err)
	}
	post(sent)
	if body != `{"bootstrap_room":7,"prompt":"Hello"}` {
		t.Errorf("armed, it got %s", body)
	}
	post(`not JSON`)
	if body != `not JSON` {
		t.Errorf("armed, what is not JSON became %s", body)
	}
	if err := proxy.disarm(); err != nil {
		t.Error(err)
	}
	if post(sent); body != sent {
		t.Errorf("disarmed, %s came", body)
	}
	struck := make(chan bool, 2)
	strike := func() { struck <- true }
	proxy.strike.Store(&strike)
	post(sent)
	if <-struck; body != sent {
		t.Errorf("with a strike, %s came", body)
	}
	if post(sent); len(struck) != 0 {
		t.Error("it strikes twice")
	}
	if u, err := url.Parse(proxy.url); err != nil || !net.ParseIP(u.Hostname()).IsLoopback() {
		t.Errorf("it listens at %s", proxy.url)
	}
}
