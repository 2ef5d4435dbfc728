package cli_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds the wait for what must come.
const patience = 30 * time.Second

// await looks until done says that it has come.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// screen is what a process wrote.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// program is a bulkhead process.
type program struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err screen
	done     chan error // one value
}

func startProgram(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary(t), args...), done: make(chan error, 1)}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		if p.done != nil {
			p.signal(syscall.SIGTERM)
			p.ends()
		}
		if t.Failed() {
			t.Logf("%v wrote:\n%s%s", args, p.out.String(), p.err.String())
		}
	})
	return p
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ends holds that the process ends by itself, with exit code 0.
func (p *program) ends() {
	p.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Errorf("%v ended with %v", p.cmd.Args, err)
		}
	case <-late.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		p.t.Errorf("%v did not end", p.cmd.Args)
	}
	p.done = nil
}

// hosts is two worker processes and a gateway process, each with a file.
type hosts struct {
	t      *testing.T
	dir    string
	port   map[string]string
	serve  *program
	url    string
	admin  string
	client *http.Client
}

func (h *hosts) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// certificate writes a new certificate for 127.0.0.1 that vouches for itself, and
// returns it.
func (h *hosts) certificate(name string) *x509.Certificate {
	h.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		h.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		h.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	h.write(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	made, err := x509.ParseCertificate(der)
	if err != nil {
		h.t.Fatal(err)
	}
	return made
}

// trust makes the client believe one certificate and no other.
func (h *hosts) trust(c *x509.Certificate) {
	pool := x509.NewCertPool()
	pool.AddCert(c)
	h.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}}}
}

const workerFile = `
pass_key: file:pass.key
control_key: file:control.key
digest: gmac
pages: 512
http_tls: {cert: file:worker.pem, key: file:worker.key}
`

// serveFile is the gateway's file for some tenants.
func (h *hosts) serveFile(tenants string) string {
	return strings.NewReplacer("PREFILL", h.port["prefill-0"], "DECODE", h.port["decode-0"], "BOOT", h.port["boot"]).Replace(`
listen: 127.0.0.1:0
tls: {cert: file:front.pem, key: file:front.key}
admin: {listen: "127.0.0.1:0", pprof: true}
drain: 60s
pass_key: file:pass.key
control_key: file:control.key
pepper: file:pepper.key
domain_key: file:domain.key
worker_ca: file:worker.pem
models:
  - name: recall
    tokenizer: recall
    pairs:
      - {bootstrap: "127.0.0.1:BOOT", prefill: "https://127.0.0.1:PREFILL", decode: "https://127.0.0.1:DECODE"}
tenants:
`) + tenants
}

const (
	tenantA = "  - {id: tenant-a, keys: [{key: file:a.key}], models: [recall]}\n"
	tenantB = "  - {id: tenant-b, keys: [{key: file:b.key}]}\n"
	tenantC = "  - {id: tenant-c, keys: [{key: file:c.key}], models: [recall]}\n"
)

// startHosts starts everything and waits until the gateway is ready.
func startHosts(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{t: t, dir: t.TempDir(), port: map[string]string{"prefill-0": freePort(t), "decode-0": freePort(t), "boot": freePort(t)}}
	for _, name := range []string{"pass", "control", "pepper", "domain", "a", "b", "c"} {
		b := make([]byte, 32)
		_, _ = rand.Read(b) // it never fails
		h.write(name+".key", hex.EncodeToString(b)+"\n")
	}
	h.certificate("worker")
	h.trust(h.certificate("front"))
	certs := exec.Command(binary(t), "certs", "prefill/prefill-0", "decode/decode-0")
	certs.Dir = h.dir
	if out, err := certs.CombinedOutput(); err != nil {
		t.Fatalf("certs: %v\n%s", err, out)
	}
	for name, own := range map[string]string{
		"prefill-0": "role: prefill\nbootstrap: 127.0.0.1:" + h.port["boot"],
		"decode-0":  "role: decode\npeers: [{label: \"127.0.0.1:" + h.port["boot"] + "\"}]",
	} {
		h.write(name+".yaml", fmt.Sprintf("%s\nname: %[2]s\nlisten: 127.0.0.1:%[3]s\ntls: {ca: file:certs/ca.pem, cert: file:certs/%[2]s.pem, key: file:certs/%[2]s.key}%[4]s",
			own, name, h.port[name], workerFile))
		startProgram(t, h.dir, "worker", "--config", name+".yaml")
	}
	h.write("serve.yaml", h.serveFile(tenantA+tenantB))
	h.serve = startProgram(t, h.dir, "serve", "--config", "serve.yaml")
	urls := regexp.MustCompile(`(https://\S+)\n +admin +(http://\S+)\n`)
	await(t, "the addresses of serve", func() bool { return urls.MatchString(h.serve.out.String()) })
	m := urls.FindStringSubmatch(h.serve.out.String())
	h.url, h.admin = m[1], m[2]
	await(t, "the gateway to be ready", func() bool { return h.state().Ready })
	return h
}

// state is what the admin listener tells.
func (h *hosts) state() (s struct {
	Ready, Draining        bool
	Configuration, Earlier int
	InFlight               int `json:"in_flight"`
	Nodes                  []struct{ Why string }
}) {
	h.t.Helper()
	if _, body := h.get("/readyz"); json.Unmarshal([]byte(body), &s) != nil {
		h.t.Fatalf("readyz: %s", body)
	}
	return s
}

func (h *hosts) get(path string) (int, string) {
	h.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(h.admin + path)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// key is a tenant's key.
func (h *hosts) key(name string) string {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, name+".key"))
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (h *hosts) post(key, path string, body map[string]any) *http.Response {
	h.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, h.url+path, bytes.NewReader(data))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp
}

// chats holds that a chat with a key is answered with a status and a text.
func (h *hosts) chats(key string, status int, text string) {
	h.t.Helper()
	resp := h.post(key, "/v1/chat/completions", map[string]any{"model": "recall", "max_tokens": 12, "temperature": 0, "messages": []any{
		map[string]any{"role": "user", "content": "The harbour master is Odile. The harbour master is"},
	}})
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status || !strings.Contains(string(body), text) {
		h.t.Errorf("want %d with %q, got %d %s, %v", status, text, resp.StatusCode, body, err)
	}
}

// stream starts a stream that lasts, and returns it after its first bytes.
func (h *hosts) stream(key string) *http.Response {
	h.t.Helper()
	resp := h.post(key, "/v1/completions", map[string]any{
		"model": "recall", "prompt": strings.Repeat("All hands to the pumps, and mind the lower hatch. ", 8),
		"max_tokens": 3000, "stream": true, "temperature": 0,
	})
	if _, err := io.ReadFull(resp.Body, make([]byte, 64)); err != nil || resp.StatusCode != 200 {
		h.t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	return resp
}

// whole holds that the rest of a stream comes to its honest end.
func (h *hosts) whole(resp *http.Response) {
	h.t.Helper()
	defer resp.Body.Close()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") || !strings.Contains(string(rest), `"finish_reason":"length"`) {
		h.t.Errorf("the stream broke: %v, ...%s", err, rest[max(0, len(rest)-200):])
	}
}

// reload replaces the gateway's file and waits for what comes of it.
func (h *hosts) reload(file string, done func() bool) {
	h.t.Helper()
	h.write("serve.yaml", file)
	h.serve.signal(syscall.SIGHUP)
	await(h.t, "the reload", done)
}

// refuses holds that a file is refused with a text, and changes nothing.
func (h *hosts) refuses(file, says string) {
	h.t.Helper()
	was, seen := h.state().Configuration, len(h.serve.err.String())
	h.reload(file, func() bool { return strings.Contains(h.serve.err.String()[seen:], "reload refused") })
	if got := h.serve.err.String()[seen:]; !strings.Contains(got, says) {
		h.t.Errorf("wanted to read %q in %s", says, got)
	}
	if h.state().Configuration != was {
		h.t.Error("a refused file was taken over")
	}
}

// TestServe is certificates, two workers and a gateway as processes of their own,
// everything over TLS and pages under GMAC.
func TestServe(t *testing.T) {
	h := startHosts(t)
	h.chats(h.key("a"), 200, `" Odile.`)
	h.chats(h.key("b"), 404, "model_not_found")
	h.chats(h.key("c"), 401, "invalid_api_key")

	// Another file while a stream is on its way: a goes, c comes, and the
	// certificate is another. The stream ends whole.
	resp := h.stream(h.key("a"))
	before := h.client
	h.trust(h.certificate("front"))
	h.reload(h.serveFile(tenantB+tenantC), func() bool { return h.state().Configuration == 2 })
	if s := h.state(); s.Earlier != 1 || s.InFlight != 1 {
		t.Errorf("no stream was in progress: %+v", s)
	}
	h.chats(h.key("c"), 200, `" Odile.`)
	h.chats(h.key("a"), 401, "invalid_api_key")
	if resp, err := before.Get(h.url + "/healthz"); err == nil {
		_ = resp.Body.Close()
		t.Error("the old certificate is still shown")
	}
	h.whole(resp)
	await(t, "the end of the earlier configuration", func() bool { return h.state().Earlier == 0 })

	// Files that are not taken over.
	h.refuses(h.serveFile("  - {id: tenant-a, keys: [{key: file:a.key}], models: [recal]}\n"), "[17:56] tenants[0].models[0]: there is no such model")
	h.refuses(h.serveFile(tenantA)+"tenant: []\n", "tenant: there is no such setting")
	h.refuses(h.serveFile("  - {id: tenant-a, keys: [{key: file:gone.key}]}\n"), "tenants[0].keys[0].key")
	h.refuses(strings.Replace(h.serveFile(tenantA), "listen: 127.0.0.1:0", "listen: 127.0.0.1:1", 1), "listen: it changes only")
	h.chats(h.key("c"), 200, `" Odile.`)

	h.watched()
	h.drains()
}

// watched holds what the operator sees.
func (h *hosts) watched() {
	h.t.Helper()
	for path, want := range map[string]string{
		"/metrics":                       `bulkhead_requests_total{path="/v1/chat/completions",role="gateway",status="404",verdict="refused"} 1`,
		"/readyz":                        `"why": "ready"`,
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/heap?debug=1":      "heap profile", // an undumpable process still sees itself
	} {
		if status, body := h.get(path); status != 200 || !strings.Contains(body, want) {
			h.t.Errorf("%s: %d, wanted %s in %.2000s", path, status, want, body)
		}
	}
	if _, body := h.get("/metrics"); !strings.Contains(body, `bulkhead_events_total{kind="reload_refused",role="gateway"} 4`) ||
		!strings.Contains(body, `bulkhead_log_lines_lost_total{role="gateway"} 0`) ||
		!strings.Contains(body, `kind="reloaded",role="gateway"} 1`) || !strings.Contains(body, `bulkhead_model_ready{model="recall"} 1`) {
		h.t.Errorf("reloads and pairs are not counted: %.4000s", body)
	}
	for _, name := range []string{"pass", "control", "pepper", "domain", "a", "b", "c"} {
		if all := h.serve.out.String() + h.serve.err.String(); strings.Contains(all, h.key(name)) {
			h.t.Errorf("the key %s is on the screen", name)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.serve.cmd.Process.Pid))
	if err == nil && !regexp.MustCompile(`Max core file size +0 +0 `).Match(limits) { // elsewhere than on Linux there is none
		h.t.Errorf("it may write a core:\n%s", limits)
	}
}

// drains holds that a termination lets a stream in progress end, and takes nothing new.
func (h *hosts) drains() {
	h.t.Helper()
	resp := h.stream(h.key("c"))
	h.serve.signal(syscall.SIGTERM)
	await(h.t, "the drain", func() bool { return h.state().Draining })
	if s := h.state(); s.Ready || s.InFlight != 1 {
		h.t.Errorf("while it drains: %+v", s)
	}
	await(h.t, "the listener to close", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "https://"))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	h.whole(resp)
	h.serve.ends()
}
