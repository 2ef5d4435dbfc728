package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/drill"
)

// run runs the program in this process, and returns its exit code and output.
func run(t *testing.T, env map[string]string, args ...string) (int, string, string) {
	t.Helper()
	var out, err bytes.Buffer
	code := Main(args, System{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err,
		Getenv:  func(k string) string { return env[k] },
		Signals: context.WithCancel,
		Reloads: func() <-chan os.Signal { return nil },
		NoDumps: func() error { return nil },
	})
	return code, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string // on either output
	}{
		{nil, exitOK, "Usage: bulkhead COMMAND"},
		{[]string{"help"}, exitOK, "drill"},
		{[]string{"version"}, exitOK, Version},
		{[]string{"nothing"}, exitUsage, `"nothing"`},
		{[]string{"up", "--nothing"}, exitUsage, "nothing"},
		{[]string{"up", "surplus"}, exitUsage, `"surplus"`},
		{[]string{"worker"}, exitUsage, "--config"},
		{[]string{"worker", "--config", "does-not-exist.yaml"}, exitUsage, "does-not-exist.yaml"},
		{[]string{"drill", "october"}, exitUsage, "september"},
		{[]string{"drill", "--guards", "half"}, exitUsage, "off, on or both"},
		{[]string{"prove", "--workers", "0"}, exitUsage, "--workers"},
		{[]string{"certs"}, exitUsage, "prefill/"},
		{[]string{"certs", "--dir", t.TempDir(), "gateway/x"}, exitUsage, "gateway/x"},
	} {
		code, out, err := run(t, nil, c.args...)
		if code != c.code || !strings.Contains(out+err, c.says) {
			t.Errorf("%v: exit %d, want %d; wanted to read %q in:\n%s%s", c.args, code, c.code, c.says, out, err)
		}
	}
}

const goodConfig = `role: decode
name: decode-0
listen: 127.0.0.1:0
peers: [{label: "p:8998"}]
pass_key: env:PASS
tls: {ca: env:CA, cert: env:CERT, key: env:KEY}
`

// TestSecretsStaySecret: no error about a secret holds it.
func TestSecretsStaySecret(t *testing.T) {
	const planted = "planted-secret-8c1f"
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"PASS": planted, "CA": planted, "CERT": planted, "KEY": planted}
	for _, text := range []string{
		goodConfig, // the pass key is no hex, the certificates are no PEM
		strings.Replace(goodConfig, "env:PASS", planted, 1),
		strings.Replace(goodConfig, "env:PASS", "value:"+planted, 1),
		strings.Replace(goodConfig, "env:PASS", "env:EMPTY", 1),
	} {
		write(text)
		code, out, err := run(t, env, "worker", "--config", path)
		if code != exitUsage {
			t.Errorf("exit %d: %s", code, err)
		}
		if strings.Contains(out+err, planted) {
			t.Errorf("the secret is in %s%s", out, err)
		}
	}
}

func TestCerts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if code, _, err := run(t, nil, "certs", "--dir", dir, "prefill/p-0"); code != exitOK {
		t.Fatal(err)
	}
	if code, _, err := run(t, nil, "certs", "--dir", dir, "decode/d-0"); code != exitOK { // same authority
		t.Fatal(err)
	}
	if code, _, err := run(t, nil, "certs", "--dir", dir, "prefill/p-0"); code == exitOK {
		t.Errorf("an existing certificate was overwritten: %s", err)
	}
	for _, name := range []string{"ca.key", "p-0.key", "d-0.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}

// TestDrillJSON holds the form of the document.
func TestDrillJSON(t *testing.T) {
	code, out, err := run(t, nil, "drill", "--json", "--guards", "on", "one-page")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, err)
	}
	var r drill.Report
	dec := json.NewDecoder(strings.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.Schema != "bulkhead.drill/v1" || !r.Pass || len(r.Drills) != 1 || r.Drills[0].Off != nil || r.Drills[0].On == nil {
		t.Errorf("%s", out)
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(out), &keys); err != nil {
		t.Fatal(err)
	}
	on := keys["drills"].([]any)[0].(map[string]any)["guards_on"].(map[string]any)
	for _, k := range []string{"guards", "control", "status", "code", "message", "prompt_tokens", "answer", "foreign", "pools_whole", "verdict"} {
		if _, ok := on[k]; !ok {
			t.Errorf("no %q in %v", k, on)
		}
	}
}
