package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
	url := regexp.MustCompile(`engine +(http://\S+)\n`)
	await(t, "the twin", func() bool { return url.MatchString(p.out.String()) })
	engine := url.FindStringSubmatch(p.out.String())[1]
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
	url := regexp.MustCompile(`engine +(http://\S+)\n`)
	await(t, "the twin", func() bool { return url.MatchString(p.out.String()) })
	at := url.FindStringSubmatch(p.out.String())[1]
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
