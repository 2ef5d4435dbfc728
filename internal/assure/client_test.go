package assure

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// TestAnswers: what is read of the answers that engines give.
func TestAnswers(t *testing.T) {
	const stream = "text/event-stream"
	for _, try := range []struct {
		name, kind, body string
		abort            bool
		text             string
		finish           string
		prompt           int64
		done, event, ok  bool
	}{
		{name: "chat", body: `{"id":"a","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
			text: "hi", finish: "stop", prompt: 3, done: true, ok: true},
		{name: "tool call", body: `{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`,
			text: "f{}", finish: "tool_calls", prompt: -1, done: true, ok: true},
		{name: "completion", body: `{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`, text: "a\nb", prompt: -1, done: true, ok: true},
		{name: "native", body: `{"content":"said"}`, text: "said", prompt: -1, done: true, ok: true},
		{name: "responses", body: `{"output":[{"text":"said"}],"usage":{"input_tokens":4,"output_tokens":1}}`, text: `[{"text":"said"}]`, prompt: 4, done: true, ok: true},
		{name: "error", body: `{"error":{"code":"c"}}`, prompt: -1, event: true},
		{name: "cut JSON", body: `{"choices":[`, prompt: -1},
		{name: "stream", kind: stream, body: "data: " + chunk("a", "") + "\n\n: ping\n\ndata:" + chunk("b", "stop") + "\r\n\r\ndata: [DONE]\n\n",
			text: "ab", finish: "stop", prompt: -1, done: true, ok: true},
		{name: "stream without end", kind: stream, body: "data: " + chunk("a", "") + "\n\n", text: "a", prompt: -1},
		{name: "cut stream", kind: stream, body: "data: " + chunk("a", "") + "\n\n", abort: true, text: "a", prompt: -1},
		{name: "error, then the end mark", kind: stream, body: "data: {\"error\":{\"code\":\"c\"}}\n\ndata: [DONE]\n\n", prompt: -1, done: true, event: true},
	} {
		t.Run(try.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if try.kind != "" {
					w.Header().Set("Content-Type", try.kind)
				}
				fmt.Fprint(w, try.body)
				if try.abort {
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				}
			}))
			defer s.Close()
			site := Site{Dialect: upstream.LlamaCPP, Model: "m", Served: "m", Plain: s.URL}
			c, err := newClient(&site)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			p := &Probe{Site: &site, client: c, cage: newCage()}
			a := p.Tenant(0).Post(t.Context(), "/v1/chat/completions", nil, map[string]any{})
			finish := ""
			if len(a.Finish) > 0 {
				finish = a.Finish[0]
			}
			if a.Text != try.text || finish != try.finish || a.Prompt != try.prompt || a.Done != try.done || a.ErrorEvent != try.event || a.OK() != try.ok {
				t.Errorf("text %q finish %q prompt %d done %v event %v ok %v", a.Text, finish, a.Prompt, a.Done, a.ErrorEvent, a.OK())
			}
			if (a.Err != nil) != try.abort {
				t.Errorf("error %v", a.Err)
			}
		})
	}
}

// TestCallers: each way has its address, its model's name and its key.
func TestCallers(t *testing.T) {
	type seen struct{ where, model, key string }
	var mu sync.Mutex
	var got []seen
	server := func(where string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body struct{ Model string }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			mu.Lock()
			got = append(got, seen{where, body.Model, r.Header.Get("Authorization")})
			mu.Unlock()
			fmt.Fprint(w, `{}`)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	site := fakeSite(server("engine"), server("gateway"))
	site.Router, site.EngineKey = server("router"), "key-of-engine"
	c, err := newClient(&site)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for _, w := range site.Ways() {
		(&Probe{Way: w, Site: &site, client: c}).Tenant(1).Post(t.Context(), chatPath, nil, map[string]any{})
	}
	(&Probe{Way: Bulkhead, Site: &site, client: c}).Tenant(0).Post(t.Context(), chatPath, nil, map[string]any{"model": "chosen"})
	(&Probe{Way: Bulkhead, Site: &site, client: c}).Raw(t.Context(), "plain", http.MethodPost, chatPath, nil, map[string]any{})
	(&Probe{Way: Direct, Site: &site, client: c}).Raw(t.Context(), "gateway", http.MethodPost, chatPath, nil, map[string]any{})
	want := []seen{{"engine", "served", "Bearer key-of-engine"}, {"router", "served", ""}, {"gateway", "model", "Bearer key-of-tenant-1-1"}, {"gateway", "chosen", "Bearer key-of-tenant-0-0"},
		{"engine", "", "Bearer key-of-engine"}, {"gateway", "", ""}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestAuthorities: each way over https has its own word on who is believed, and an address
// that the site does not name is not called over https either.
func TestAuthorities(t *testing.T) {
	server := func() *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) }))
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are broken off
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	engine, front, stranger := server(), server(), server() // all with the same certificate
	believed := x509.NewCertPool()
	believed.AddCert(engine.Certificate())
	known := &tls.Config{RootCAs: believed}
	strange := &tls.Config{RootCAs: believed, VerifyConnection: func(tls.ConnectionState) error { return ErrStranger }}
	for _, tc := range []struct {
		name, router         string
		engine, gateway      *tls.Config
		direct, behind, past string // errors; empty: an answer
	}{
		{"nobody is known", stranger.URL, nil, nil, "nobody who is trusted", "nobody who is trusted", "nobody who is trusted"},
		{"both are known", stranger.URL, known, known, "", "", "nobody who is trusted"},
		{"the engine is known", stranger.URL, known, nil, "", "nobody who is trusted", "nobody who is trusted"},
		{"the gateway is known", stranger.URL, nil, known, "nobody who is trusted", "", "nobody who is trusted"},
		{"the gateway is another", stranger.URL, known, strange, "", ErrStranger.Error(), "nobody who is trusted"},
		{"the router is the gateway", front.URL, nil, known, "nobody who is trusted", "", ""},
		{"another name", stranger.URL, &tls.Config{RootCAs: believed, ServerName: "elsewhere"}, known, "does not hold for this address", "", "nobody who is trusted"},
	} {
		site := fakeSite(engine.URL, front.URL)
		site.Router, site.EngineTLS, site.GatewayTLS = tc.router, tc.engine, tc.gateway
		c, err := newClient(&site)
		if err != nil {
			t.Fatal(err)
		}
		p := &Probe{Site: &site, client: c}
		for name, says := range map[string]string{"plain": tc.direct, "gateway": tc.behind, "router": tc.past} {
			a := p.Raw(t.Context(), name, http.MethodGet, "/", nil, nil)
			if (a.Status == http.StatusOK) != (says == "") || says != "" && (a.Err == nil || !strings.Contains(a.Err.Error(), says)) {
				t.Errorf("%s: %s: status %d, %v, want %q", tc.name, name, a.Status, a.Err, says)
			}
		}
		if a := c.open(t.Context(), call{method: http.MethodGet, base: server().URL, path: "/"}).Rest(); !errors.Is(a.Err, errElsewhere) {
			t.Errorf("%s: a stranger: %v", tc.name, a.Err)
		}
		c.close()
	}
}

// TestNaive: the legs that a simple router would make of one request.
func TestNaive(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	var prefilled chan struct{} // closed when prefill has its leg
	server := func(where, answer string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			got[where] = string(body)
			mu.Unlock()
			switch where {
			case "prefill":
				close(prefilled)
			case "decode":
				<-prefilled // as decode does, which waits for what prefill writes
			}
			if r.URL.Path == "/query" {
				fmt.Fprint(w, `{"0":{"engine_id":"engine-of-prefill"}}`)
				return
			}
			fmt.Fprint(w, answer)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	said := `{"choices":[{"index":0,"text":"from decode"}]}`
	for _, try := range []struct {
		dialect         upstream.Dialect
		bootstrap       string
		prefills        string
		prefill, decode []string // what the bodies hold
	}{
		{upstream.SGLangPD, "10.0.0.1:8998", `{"finish_reason":"abort"}`,
			[]string{`"bootstrap_host":"10.0.0.1"`, `"bootstrap_port":8998`, `"bootstrap_room":`, `"max_tokens":9`}, []string{`"bootstrap_room":`, `"max_tokens":9`}},
		{upstream.VLLMNixl, "", `{"kv_transfer_params":{"remote_engine_id":"e"}}`,
			[]string{`"max_tokens":1`, `"do_remote_decode":true`, `"stream":false`}, []string{`"remote_engine_id":"e"`, `"max_tokens":9`}},
		{upstream.VLLMNixl, "", `{"kv_transfer_params":null}`,
			[]string{`"max_tokens":1`}, []string{`"max_tokens":9`}},
		{upstream.VLLMMooncake, server("bootstrap", ""), `{}`,
			[]string{`"transfer_id":"xfer-`, `"max_tokens":1`}, []string{`"remote_engine_id":"engine-of-prefill"`, `"transfer_id":"xfer-`, `"max_tokens":9`}},
	} {
		prefilled = make(chan struct{})
		site := Site{Dialect: try.dialect, Model: "m", Served: "m", Bootstrap: try.bootstrap,
			Prefill: server("prefill", try.prefills), Decode: server("decode", said)}
		c, err := newClient(&site)
		if err != nil {
			t.Fatal(err)
		}
		a := (&Probe{Site: &site, client: c}).Tenant(0).Post(t.Context(), completionPath, nil, map[string]any{"prompt": "p", "max_tokens": 9})
		c.close()
		if a.Text != "from decode" {
			t.Errorf("%s: %s, %v", try.dialect, a.brief(), a.Err)
		}
		for where, wants := range map[string][]string{"prefill": try.prefill, "decode": try.decode} {
			for _, want := range wants {
				if !strings.Contains(got[where], want) {
					t.Errorf("%s: %s got %s, without %s", try.dialect, where, got[where], want)
				}
			}
		}
	}
}
