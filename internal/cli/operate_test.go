package cli_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// secret is what no screen, log or record may show.
const secret = "bk-canary-planted-4471"

// engines starts the twin of a pair, and returns its two URLs.
func engines(t *testing.T, args ...string) (prefill, decode string) {
	t.Helper()
	p := startProgram(t, t.TempDir(), append([]string{"twin", "--engine", "sglang-0.5.20"}, args...)...)
	urls := regexp.MustCompile(`prefill +(http://\S+)\ndecode +(http://\S+)\n`)
	await(t, "the twins", func() bool { return urls.MatchString(p.out.String()) })
	m := urls.FindStringSubmatch(p.out.String())
	return m[1], m[2]
}

// front is a bulkhead serve that runs.
type front struct {
	t          *testing.T
	p          *program
	url, admin string
}

// startFront starts serve and waits until it takes requests.
func startFront(t *testing.T, dir string, args ...string) *front {
	t.Helper()
	f := &front{t: t, p: startProgram(t, dir, append([]string{"serve"}, args...)...)}
	urls := regexp.MustCompile(`at (http://\S+)\n +admin +(http://\S+)\n`)
	await(t, "the addresses of serve", func() bool { return urls.MatchString(f.p.out.String()) })
	m := urls.FindStringSubmatch(f.p.out.String())
	f.url, f.admin = m[1], m[2]
	await(t, "serve to be ready", func() bool { return fetch(t, f.admin+"/readyz") == http.StatusOK })
	return f
}

func fetch(t *testing.T, url string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// ask sends a chat and returns the status, the answer and the public id of the request.
func (f *front) ask(key string, more map[string]any) (status int, text, id string) {
	f.t.Helper()
	body := map[string]any{"model": "twin", "max_tokens": 8, "messages": []any{
		map[string]any{"role": "user", "content": "The secret is " + secret + ". The secret is"},
	}}
	for k, v := range more {
		body[k] = v
	}
	data, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, f.url+"/v1/chat/completions", bytes.NewReader(data))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Client-Request-Id", "client-7")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(answer), resp.Header.Get("X-Bulkhead-Request-Id")
}

// command runs a command to its end, and returns its exit code and what it printed.
func command(t *testing.T, dir string, args ...string) (code int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.Command(binary(t), args...)
	c.Dir, c.Stdout, c.Stderr = dir, &stdout, &stderr
	if err := c.Run(); err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// silent holds that a text does not show the secret.
func silent(t *testing.T, where, text string) {
	t.Helper()
	if strings.Contains(text, secret) {
		t.Errorf("the secret is in %s: %s", where, text)
	}
}

// TestFlags: sglang-router's flags serve real requests, with and without a key, and the
// operator's commands tell what happened without its text.
func TestFlags(t *testing.T) {
	prefill, decode := engines(t)
	f := startFront(t, t.TempDir(), "--pd-disaggregation", "--prefill", prefill, "none", "--decode", decode, "--port", "0", "--admin", "127.0.0.1:0", "--policy", "cache_aware")
	for _, key := range []string{"", "whatever"} {
		if status, text, _ := f.ask(key, nil); status != 200 || !strings.Contains(text, secret) {
			t.Errorf("with the key %q: %d %s", key, status, text)
		}
	}
	if status, text, _ := f.ask("", map[string]any{"model": "other"}); status != 404 || !strings.Contains(text, "model_not_found") {
		t.Errorf("%d %s", status, text)
	}
	if status, text, _ := f.ask("", map[string]any{"rid": "x"}); status != 400 || !strings.Contains(text, "reserved_field") {
		t.Errorf("%d %s", status, text)
	}
	_, text, id := f.ask("", nil)
	if code, out, _ := command(t, t.TempDir(), "explain", "chatcmpl-"+strings.TrimPrefix(id, "req-"), "--admin", f.admin); code != 0 || !strings.Contains(out, id) ||
		!strings.Contains(text, "chatcmpl-"+strings.TrimPrefix(id, "req-")) {
		t.Errorf("by the id of the body: %d %s", code, out)
	}
	code, out, _ := command(t, t.TempDir(), "explain", id, "--admin", f.admin)
	for _, want := range []string{id + "   SERVED, HTTP 200\n", "tenant default, client's id client-7, domain ", "legs     agreed", "\n    prefill  " + prefill, "\n    decode   " + decode} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, out)
		}
	}
	silent(t, "explain", out)
	if code, out, said := command(t, t.TempDir(), "explain", "--admin", f.admin, "req-none"); code != 1 || out != "" || !strings.Contains(said, "no such request") {
		t.Errorf("%d %s%s", code, out, said)
	}
	code, out, _ = command(t, t.TempDir(), "posture", "--admin", f.admin)
	if code != 1 || !strings.Contains(out, "twin   G-1 ") || !strings.Contains(out, `UNKNOWN   No known answer is asked for; set models[].probe, such as {prompt: "What`) {
		t.Errorf("exit %d\n%s", code, out)
	}
	_, out, _ = command(t, t.TempDir(), "posture", "--admin", f.admin, "--json")
	var p struct {
		Schema string
		Whole  *bool
	}
	if err := json.Unmarshal([]byte(out), &p); err != nil || p.Schema != "bulkhead.posture/v1" || p.Whole == nil || *p.Whole {
		t.Errorf("%v %s", err, out)
	}
	f.p.signal(syscall.SIGHUP) // there is no file; what runs goes on
	await(t, "the reload", func() bool { return strings.Contains(f.p.err.String(), "reloaded") })
	if status, _, _ := f.ask("", nil); status != 200 {
		t.Errorf("after a reload: %d", status)
	}
	silent(t, "the log", f.p.out.String()+f.p.err.String())
}

// TestFlagsKey: with --api-key callers need the key, and engines get it.
func TestFlagsKey(t *testing.T) {
	const key = "sk-planted-key-0123"
	prefill, decode := engines(t, "--api-key", key)
	f := startFront(t, t.TempDir(), "--pd-disaggregation", "--prefill", prefill, "--decode", decode, "--port", "0", "--admin", "127.0.0.1:0",
		"--api-key", key, "--served-model-name", "twin")
	for caller, want := range map[string]int{key: 200, "": 401, "sk-planted-key-0124": 401} {
		if status, text, _ := f.ask(caller, nil); status != want {
			t.Errorf("%q: %d %s", caller, status, text)
		}
	}
	if all := f.p.out.String() + f.p.err.String(); strings.Contains(all, "planted-key") {
		t.Errorf("the key is on the screen:\n%s", all)
	}
}

const shadowFile = `
listen: 127.0.0.1:0
admin: {listen: "127.0.0.1:0"}
pepper: file:pepper.key
domain_key: file:domain.key
modes: {allow_list: {mode: shadow, until: 2999-12-31}}
models:
  - name: twin
    engine: sglang-pd
    prefill: [{url: "PREFILL"}]
    decode: [{url: "DECODE"}]
tenants:
  - {id: acme, keys: [{key: file:a.key}], models: [twin]}
`

// TestShadow: what the list would refuse passes, is told with the grant to paste, and the
// file with that grant takes it without shadow. Reserved fields never pass.
func TestShadow(t *testing.T) {
	prefill, decode := engines(t)
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pepper", "domain", "a"} {
		write(name+".key", strings.Repeat("7"+name[:1], 32)[:64])
	}
	write("pepper.key", strings.Repeat("7f", 32))
	write("domain.key", strings.Repeat("5e", 32))
	file := strings.NewReplacer("PREFILL", prefill, "DECODE", decode).Replace(shadowFile)
	write("serve.yaml", file)
	key := strings.Repeat("7a", 32)[:64]
	f := startFront(t, dir, "--config", "serve.yaml")
	if !strings.Contains(f.p.err.String(), "note: modes.allow_list: in shadow until 2999-12-31") {
		t.Errorf("it is not said: %s", f.p.err.String())
	}
	if status, text, _ := f.ask(key, map[string]any{"not_a_field": 1}); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if status, text, _ := f.ask(key, map[string]any{"bootstrap_room": 1}); status != 400 || !strings.Contains(text, "reserved_field") {
		t.Errorf("%d %s", status, text)
	}
	code, out, _ := command(t, dir, "shadow", "report", "--admin", f.admin)
	if code != 0 || !regexp.MustCompile(`not_a_field +acme +twin +1 +no list has it`).MatchString(out) {
		t.Errorf("exit %d\n%s", code, out)
	}
	silent(t, "the report", out)
	if code, out, _ := command(t, dir, "posture", "--admin", f.admin); code != 1 || !strings.Contains(out, "SHADOW until 3000-01-01") {
		t.Errorf("exit %d\n%s", code, out)
	}
	// Enforced again: the same field is refused.
	write("serve.yaml", strings.Replace(file, "modes: {allow_list: {mode: shadow, until: 2999-12-31}}\n", "", 1))
	f.p.signal(syscall.SIGHUP)
	await(t, "the reload", func() bool { return strings.Contains(f.p.err.String(), "reloaded") })
	if status, text, _ := f.ask(key, map[string]any{"not_a_field": 1}); status != 400 || !strings.Contains(text, "unknown_field") {
		t.Errorf("%d %s", status, text)
	}
}

// TestReloadWaits: with streams under eight earlier configurations a reload waits, says so,
// and is made by itself once one of them has ended, with the file as it is then.
func TestReloadWaits(t *testing.T) {
	dir := t.TempDir()
	h := &hosts{t: t, dir: dir}
	for name, text := range map[string]string{"pepper": "7f", "domain": "5e", "a": "a1", "b": "b2", "c": "c3"} {
		h.write(name+".key", strings.Repeat(text, 32))
	}
	p := startProgram(t, dir, "twin", "--engine", "openai", "--fault", "silence:8")
	engine := regexp.MustCompile(`engine +(http://\S+)\n`)
	await(t, "the twin", func() bool { return engine.MatchString(p.out.String()) })
	file := strings.NewReplacer("PORT", "0", "ENGINE", engine.FindStringSubmatch(p.out.String())[1], "telemetry: {otlp: \"COLLECTOR\", every: 1s}\n", "", "engine: llamacpp", "engine: openai\n    window: 4096").Replace(redgreenFile)
	h.write("serve.yaml", file)
	f := startFront(t, dir, "--config", "serve.yaml")
	ready := func() (s struct {
		Configuration, Earlier int
		Waits                  bool `json:"reload_waits"`
	}) {
		resp, err := http.Get(f.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	ask := func(key string) *http.Response {
		req, err := http.NewRequest(http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,"max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.Repeat(key, 32))
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var streams []*http.Response
	for i := range 8 {
		resp := ask("a1")
		defer resp.Body.Close()
		if _, err := resp.Body.Read(make([]byte, 16)); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d, %v", resp.StatusCode, err)
		}
		streams = append(streams, resp)
		f.p.signal(syscall.SIGHUP)
		await(t, "the reload", func() bool { return ready().Configuration == i+2 })
	}
	h.write("serve.yaml", strings.Replace(file, "file:b.key", "file:c.key", 1))
	f.p.signal(syscall.SIGHUP)
	await(t, "the reload to wait", func() bool { return ready().Waits })
	await(t, "the line", func() bool {
		return strings.Contains(f.p.err.String(), "reload waits, the configuration in force stays: requests of 8 earlier ones")
	})
	if s := ready(); s.Configuration != 9 || s.Earlier != 8 {
		t.Errorf("%+v", s)
	}
	keys := func(b, c int) {
		t.Helper()
		for key, want := range map[string]int{"a1": http.StatusOK, "b2": b, "c3": c} {
			resp := ask(key)
			if _ = resp.Body.Close(); resp.StatusCode != want {
				t.Errorf("key %s: %d, want %d", key, resp.StatusCode, want)
			}
		}
	}
	keys(http.StatusOK, http.StatusUnauthorized)
	_ = streams[3].Body.Close()
	await(t, "the reload by itself", func() bool { s := ready(); return s.Configuration == 10 && !s.Waits })
	keys(http.StatusUnauthorized, http.StatusOK)
}

// TestLive: a look at the engines tells limits and findings, and what to look at where a
// model takes no requests; then the exit code is 1.
func TestLive(t *testing.T) {
	prefill, _ := engines(t, "--pool", "512,4096")
	dir := t.TempDir()
	for name, text := range map[string]string{"pepper.key": strings.Repeat("7f", 32), "domain.key": strings.Repeat("5e", 32), "a.key": strings.Repeat("7a", 32)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := strings.NewReplacer("PREFILL", prefill, "DECODE", "http://127.0.0.1:1").Replace(shadowFile)
	if err := os.WriteFile(filepath.Join(dir, "serve.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, said := command(t, dir, "config", "check", "--live", "serve.yaml")
	for _, want := range []string{"serve.yaml is sound", prefill + "  prefill ", "4096    512   506     0.5.20", "has no partner that answers", "cannot be reached", "is the engine up",
		"the pool is smaller than the window", "takes no requests as it stands\n"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s%s", code, want, out, said)
		}
	}
	if code, out, _ := command(t, dir, "config", "check", "serve.yaml"); code != 0 || strings.Contains(out, "reached") {
		t.Errorf("without --live the network is asked: %s", out)
	}
}
