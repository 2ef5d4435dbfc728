package cli_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

const redgreenFile = `
listen: 127.0.0.1:PORT
admin: {listen: "127.0.0.1:0"}
pepper: file:pepper.key
domain_key: file:domain.key
telemetry: {otlp: "COLLECTOR", every: 1s}
models:
  - name: m
    served: twin
    engine: llamacpp
    nodes: [{url: "ENGINE"}]
tenants:
  - {id: a, keys: [{key: file:a.key}], models: [m]}
  - {id: b, keys: [{key: file:b.key}], models: [m]}
`

// TestRedgreen: the command tries the cases at the addresses of the file and nowhere
// else, and its exit code says what the way of the clients showed.
func TestRedgreen(t *testing.T) {
	var exports atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 && r.URL.Path == "/v1/metrics" {
			exports.Add(1)
		}
	}))
	defer collector.Close()
	dir := t.TempDir()
	for name, text := range map[string]string{"pepper": "7f", "domain": "5e", "a": "a1", "b": "b2"} {
		if err := os.WriteFile(filepath.Join(dir, name+".key"), []byte(strings.Repeat(text, 32)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := startProgram(t, dir, "twin", "--engine", "llamacpp", "--version", "10434")
	urls := regexp.MustCompile(`engine +(http://\S+)\n`)
	await(t, "the twin", func() bool { return urls.MatchString(p.out.String()) })
	engine := urls.FindStringSubmatch(p.out.String())[1]
	file := strings.NewReplacer("PORT", freePort(t), "ENGINE", engine, "COLLECTOR", collector.URL+"/v1/metrics").Replace(redgreenFile)
	if err := os.WriteFile(filepath.Join(dir, "serve.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	startFront(t, dir, "--config", "serve.yaml")
	await(t, "an export", func() bool { return exports.Load() > 0 })

	args := []string{"redgreen", "--config", "serve.yaml", "--key", "file:a.key", "--key", "file:b.key", "--json", "llama-malformed", "llama-timings"}
	code, out, said := command(t, dir, args...)
	var r struct {
		Schema  string
		Results []struct{ Case, Way, Outcome string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Schema != "bulkhead.redgreen/v1" {
		t.Fatalf("exit %d: %v\n%s%s", code, err, out, said)
	}
	for _, x := range r.Results {
		if x.Way != "bulkhead" || x.Outcome != "GREEN" {
			t.Errorf("%+v", x)
		}
	}
	if code != 0 || len(r.Results) != 2 {
		t.Errorf("exit %d\n%s", code, out)
	}
	// Straight at the engine both are red, which is no fault of the way of the clients.
	code, out, _ = command(t, dir, append(args[:len(args)-3], "llama-malformed", "llama-timings", "--engines-direct")...)
	if code != 0 || !regexp.MustCompile(`llama-timings +RED +GREEN`).MatchString(out) || strings.Contains(out, strings.Repeat("a1", 32)) {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// TestRedgreenTLS: an engine is called with the authority that the file names for it, and
// the gateway must show the certificate of the file; who is not known is not talked to.
func TestRedgreenTLS(t *testing.T) {
	dir := t.TempDir()
	h := &hosts{t: t, dir: dir}
	for name, text := range map[string]string{"pepper": "7f", "domain": "5e", "a": "a1", "b": "b2"} {
		h.write(name+".key", strings.Repeat(text, 32))
	}
	const engineKey = "engine-key-0123456789"
	h.write("engine.key", engineKey)
	p := startProgram(t, dir, "twin", "--engine", "llamacpp", "--version", "10434", "--api-key", engineKey)
	plain := regexp.MustCompile(`engine +(http://\S+)\n`)
	await(t, "the twin", func() bool { return plain.MatchString(p.out.String()) })
	at, err := url.Parse(plain.FindStringSubmatch(p.out.String())[1])
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(at)
	proxy.FlushInterval = -1
	var called atomic.Int64
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called.Add(1)
		// Else a twin that answers before the proxy saw the body's end is cut off.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	}))
	engine.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are broken off
	engine.StartTLS()
	defer engine.Close()
	h.write("engine.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: engine.Certificate().Raw})))
	h.certificate("front")
	h.certificate("other")

	port := freePort(t)
	file := func(tls, ca string) string {
		return "tls: {cert: file:" + tls + ".pem, key: file:" + tls + ".key}\n" +
			strings.NewReplacer("PORT", port, "ENGINE", engine.URL, "telemetry: {otlp: \"COLLECTOR\", every: 1s}\n", ca, "url:", "key: file:engine.key, url:").Replace(redgreenFile)
	}
	const vouched = "worker_ca: file:engine.pem\n"
	h.write("serve.yaml", file("front", vouched))
	h.write("no-ca.yaml", file("front", ""))
	h.write("wrong-ca.yaml", file("front", "worker_ca: file:other.pem\n"))
	h.write("own-ca.yaml", strings.Replace(file("front", "worker_ca: file:other.pem\n"), "    nodes:", "    ca: file:engine.pem\n    nodes:", 1))
	h.write("no-key.yaml", strings.Replace(file("front", vouched), "key: file:engine.key, ", "", 1))
	h.write("other-front.yaml", file("other", vouched))
	serve := startProgram(t, dir, "serve", "--config", "serve.yaml")
	admin := regexp.MustCompile(`admin +(http://\S+)\n`)
	await(t, "the addresses of serve", func() bool { return admin.MatchString(serve.out.String()) })
	await(t, "serve to be ready", func() bool {
		return fetch(t, admin.FindStringSubmatch(serve.out.String())[1]+"/readyz") == http.StatusOK
	})
	for _, tc := range []struct {
		file           string
		code           int
		direct, behind string
		says           string
	}{
		{"serve.yaml", 0, "RED", "GREEN", ""},
		{"own-ca.yaml", 0, "RED", "GREEN", ""},
		{"no-ca.yaml", 0, "VOID", "GREEN", "nobody who is trusted vouches for its certificate"},
		{"wrong-ca.yaml", 0, "VOID", "GREEN", "nobody who is trusted vouches for its certificate"},
		{"no-key.yaml", 0, "VOID", "GREEN", "401"},
		{"other-front.yaml", 3, "RED", "VOID", "the gateway shows another certificate than the configuration names"},
	} {
		before := called.Load()
		code, out, said := command(t, dir, "redgreen", "--config", tc.file, "--key", "file:a.key", "--key", "file:b.key", "--engines-direct", "llama-timings")
		if code != tc.code || !regexp.MustCompile(`llama-timings +`+tc.direct+` +`+tc.behind).MatchString(out) || !strings.Contains(out, tc.says) || strings.Contains(out+said, engineKey) {
			t.Errorf("%s: exit %d\n%s%s", tc.file, code, out, said)
		}
		if called.Load() == before && tc.direct == "RED" {
			t.Errorf("%s: nothing came to the engine", tc.file)
		}
	}
	h.write("engine.pem", "no PEM")
	if code, _, said := command(t, dir, "redgreen", "--config", "serve.yaml", "--key", "file:a.key", "--key", "file:b.key"); code != 2 || !strings.Contains(said, "worker_ca: it holds no certificate in PEM") {
		t.Errorf("exit %d: %s", code, said)
	}
}

// TestRedgreenRefuses: nothing is called that the file does not name.
func TestRedgreenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := strings.NewReplacer("PORT", "1", "ENGINE", "http://127.0.0.1:1", "COLLECTOR", "http://127.0.0.1:1").Replace(redgreenFile)
	for name, text := range map[string]string{
		"serve.yaml": file, "open.yaml": strings.Replace(file, "127.0.0.1:1\n", "127.0.0.1:0\n", 1),
		"dns.yaml": strings.Replace(file, "url:", "dns:", 1), "a.key": "a", "b.key": "b",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keys := []string{"--key", "file:a.key", "--key", "file:b.key"}
	for says, args := range map[string][]string{
		"--config is required":             nil,
		"--key is required twice":          {"--config", "serve.yaml", "--key", "file:a.key"},
		"a secret is given as env:NAME":    {"--config", "serve.yaml", "--key", "planted", "--key", "planted"},
		"--model: want one":                {"--config", "serve.yaml", "--model", "other"},
		"--node: want the name or the url": append([]string{"--config", "serve.yaml", "--node", "http://169.254.169.254"}, keys...),
		"those by dns or file cannot":      append([]string{"--config", "dns.yaml"}, keys...),
		"listen: with port 0":              append([]string{"--config", "open.yaml"}, keys...),
		`has no case "september"`:          append([]string{"--config", "serve.yaml", "september"}, keys...),
		"--fact: want NAME=VALUE":          append([]string{"--config", "serve.yaml", "--fact", "x"}, keys...),
		"there is no flag --u":             {"--config", "serve.yaml", "-u"},
	} {
		code, out, said := command(t, dir, append([]string{"redgreen"}, args...)...)
		if code != 2 || out != "" || !strings.Contains(said, says) || strings.Contains(said, "planted") {
			t.Errorf("%v: exit %d, wanted %q in %s%s", args, code, says, out, said)
		}
	}
	if code, out, _ := command(t, dir, "redgreen", "--list"); code != 0 || !strings.Contains(out, "llama-slot-chat") || !strings.Contains(out, "needs --kills") {
		t.Errorf("%d %s", code, out)
	}
}

// TestTwinFlags: what cannot be is refused by name, and a fault that was armed happens.
func TestTwinFlags(t *testing.T) {
	dir := t.TempDir()
	for says, args := range map[string][]string{
		"--engine: want one of sglang-0.5.19": {"--engine", "sglang"},
		"--role: llamacpp-10434 has no pair":  {"--engine", "llamacpp-10434", "--role", "pair"},
		"--role: want plain or pair":          {"--engine", "openai", "--role", "both"},
		"--pool: want tokens":                 {"--engine", "openai", "--pool", "512,x"},
		"--listen: there are more":            {"--engine", "openai", "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"},
		"--listen: cannot listen on":          {"--engine", "openai", "--listen", "192.0.2.1:1"},
		`--fault: there is no fault "x"`:      {"--engine", "openai", "--fault", "x"},
		"--fault: want NAME or NAME:COUNT":    {"--engine", "openai", "--fault", "busy:0"},
	} {
		if code, _, said := command(t, dir, append([]string{"twin"}, args...)...); code != 2 || !strings.Contains(said, says) {
			t.Errorf("%v: exit %d, wanted %q in %s", args, code, says, said)
		}
	}
	if code, out, _ := command(t, dir, "twin", "--list"); code != 0 || !strings.Contains(out, "sglang-0.5.19") || !strings.Contains(out, "error-in-200") {
		t.Errorf("%d %s", code, out)
	}
	p := startProgram(t, dir, "twin", "--engine", "openai", "--fault", "busy:1")
	urls := regexp.MustCompile(`engine +(http://\S+)\n`)
	await(t, "the twin", func() bool { return urls.MatchString(p.out.String()) })
	at := urls.FindStringSubmatch(p.out.String())[1]
	for i, want := range []int{503, 200} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Post(at+"/v1/completions", "application/json", strings.NewReader(`{"model":"twin","prompt":"hello","max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("request %d: %d", i, resp.StatusCode)
		}
	}
}

// TestModelExport: the file is one of GGUF, and an existing one stays as it is.
func TestModelExport(t *testing.T) {
	dir := t.TempDir()
	if code, out, said := command(t, dir, "model", "export", "--gguf", "recall.gguf"); code != 0 || !strings.Contains(out, "recall.gguf") {
		t.Fatalf("%d %s%s", code, out, said)
	}
	before, err := os.ReadFile(filepath.Join(dir, "recall.gguf"))
	if err != nil || !strings.HasPrefix(string(before), "GGUF") {
		t.Errorf("%v, begins with %.4q", err, before)
	}
	if code, _, _ := command(t, dir, "model", "export", "--gguf", "recall.gguf"); code != 2 {
		t.Errorf("it was overwritten: exit %d", code)
	}
	if code, _, said := command(t, dir, "model"); code != 2 || !strings.Contains(said, "export --gguf FILE") {
		t.Errorf("%d %s", code, said)
	}
}
