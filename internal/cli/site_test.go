package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/wire"
)

const goodSite = `listen: 127.0.0.1:0
pass_key: env:PASS
control_key: env:CONTROL
pepper: env:PEPPER
domain_key: env:DOMAIN
models:
  - name: m
    tokenizer: recall
    pairs:
      - bootstrap: p:8998
        prefill: http://127.0.0.1:1
        decode: http://127.0.0.1:2
tenants:
  - id: t
    models: [m]
    keys:
      - hash: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
      - key: env:KEY
bounds:
  idle: 90s
`

// goodEnv is the environment of goodSite. Every value in it is a secret.
func goodEnv() map[string]string {
	return map[string]string{
		"PASS": strings.Repeat("1a", 32), "CONTROL": "control-planted-77", "PEPPER": strings.Repeat("2b", 32),
		"DOMAIN": strings.Repeat("3c", 32), "KEY": "sk-planted-key-0123", "LINES": "sk-planted-key-4567\n- hash: x",
	}
}

// checked runs config check on a text.
func checked(t *testing.T, env map[string]string, text string) (int, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, err := run(t, env, "config", "check", path)
	return code, out + err
}

// TestSite: each wrong value is refused, with its place and its path, and nothing
// of what should be a secret is in the words.
func TestSite(t *testing.T) {
	if code, said := checked(t, goodEnv(), goodSite); code != exitOK || !strings.Contains(said, "sound: 1 tenant, 1 model, 1 pair") || strings.Contains(said, "note") {
		t.Fatalf("the good one: %d %s", code, said)
	}
	for _, c := range []struct{ from, to, says string }{
		{"listen: 127.0.0.1:0", "listen: 127.0.0.1", "[1:9] listen: want host:port"},
		{"listen: 127.0.0.1:0", "listen: 127.0.0.1:70000", "[1:9] listen: want host:port"},
		{"listen: 127.0.0.1:0", "listen: [a]", "[1:9] listen: want a text"},
		{"listen: 127.0.0.1:0", "listn: 127.0.0.1:0", "[1:1] listn: there is no such setting"},
		{"listen: 127.0.0.1:0", "admin: {listen: no}", "[1:17] admin.listen: want host:port"},
		{"listen: 127.0.0.1:0", "admin: {pprof: 1}", "[1:16] admin.pprof: want true or false"},
		{"listen: 127.0.0.1:0", "tls: {cert: file:x}", "[1:6] tls.key: it is required"},
		{"listen: 127.0.0.1:0", "tls: {cert: env:PASS, key: env:PASS}", "tls: cert and key do not make a pair"},
		{"listen: 127.0.0.1:0", "drain: 0s", "[1:8] drain: want a time above zero"},
		{"listen: 127.0.0.1:0", "drain: 10", "[1:8] drain: want a time above zero"},
		{"listen: 127.0.0.1:0", "worker_ca: env:PASS", "worker_ca: it holds no certificate"},
		{"listen: 127.0.0.1:0", "domain_epoch: -1", "domain_epoch: the number is out of range"},
		{"listen: 127.0.0.1:0", "domain_epoch: 1.5", "[1:15] domain_epoch: no setting takes such a number"},
		{"listen: 127.0.0.1:0", "domain_epoch: 010", "[1:15] domain_epoch: write whole numbers in plain decimal"},
		{"listen: 127.0.0.1:0", "domain_epoch: &a 1", "anchors"},
		{"listen: 127.0.0.1:0", "listen: a:1\nlisten: b:1", "[2:1] "},
		{"listen: 127.0.0.1:0", "listen: 'x", "[1:9] "},
		{"pass_key: env:PASS\n", "", "pass_key: it is required"},
		{"env:PASS", "env:NOT_SET", "[2:11] pass_key: the environment variable is empty"},
		{"env:PASS", "file:does-not-exist", "[2:11] pass_key: open does-not-exist"},
		{"env:PASS", "env:CONTROL", "[2:11] pass_key: want 64 hex digits"},
		{"env:PASS", "control-planted-77", "[2:11] pass_key: a secret is given as"},
		{"env:PASS", "value:control-planted-77", "[2:11] pass_key: a secret is given as"},
		{"env:PASS", "|control-planted-77", "[2:11] "},
		{"env:PASS", "*control-planted-77", "[2:11] pass_key: anchors"},
		{"env:PASS", "control-planted-77: control-planted-77", "[2:11] "},
		{"env:CONTROL", "'file:'", "[3:14] control_key: a secret is given as"},
		{"models:\n", "models: []\nmodel:\n", "model: there is no such setting"},
		{"- name: m", "- served: m", "models[0].name: it is required"},
		{"tokenizer: recall", "window: 5", "[7:5] models[0].tokenizer: want recall or none"},
		{"tokenizer: recall", "tokenizer: engine", "[8:16] models[0].tokenizer: want recall or none"},
		{"tokenizer: recall", "tokenizer: llama", "[8:16] models[0].tokenizer: want engine, recall or none"},
		{"tokenizer: recall", "tokenizer: none\n    window: 0", "[9:13] models[0].window: want a whole number above zero"},
		{"bootstrap: p:8998", "bootstrap: p", "[10:20] models[0].pairs[0].bootstrap: want host:port"},
		{"bootstrap: p:8998", "bootstrap: ':8998'", "models[0].pairs[0].bootstrap: required"},
		{"http://127.0.0.1:1", "127.0.0.1:1", "[11:18] models[0].pairs[0].prefill: want scheme and host"},
		{"        decode: http://127.0.0.1:2\n", "", "models[0].pairs[0].decode: it is required"},
		{"        decode: http://127.0.0.1:2\n", "        decode: http://a\n      - {bootstrap: 'p:8998', prefill: 'http://b', decode: 'http://c'}\n", "models[0].pairs[1].name: it is used twice"},
		{"- id: t", "- domain: t", "tenants[0].id: it is required"},
		{"models: [m]", "models: [m, n]", "[15:17] tenants[0].models[1]: there is no such model"},
		{"models: [m]", "models: m", "[15:13] tenants[0].models: want a list"},
		{"models: [m]", "in_flight: many", "[15:16] tenants[0].in_flight: want a whole number above zero"},
		{"models: [m]", "bytes: 1MB", "[15:12] tenants[0].bytes: want a number of bytes"},
		{"models: [m]", "bytes: 9223372036854775807KiB", "[15:12] tenants[0].bytes: want a number of bytes"},
		{"hash: \"0123", "hash: \"x123", "[17:15] tenants[0].keys[0].hash: parse key hash: want 64 hex"},
		{"- hash: ", "- key: env:KEY\n        hash: ", "[17:9] tenants[0].keys[0]: want either hash or key"},
		{"- key: env:KEY", "- key: env:CONTROL\n      - key: env:CONTROL", "tenants[0].keys[2]: empty or used twice"},
		{"- key: env:KEY", "- key: env:LINES", "[18:14] tenants[0].keys[1].key: it has several lines; of what bulkhead key prints, the first alone"},
		{"- key: env:KEY", "- key: sk-planted-key-0123", "[18:14] tenants[0].keys[1].key: a secret is given as"},
		{"idle: 90s", "idle: 90", "[20:9] bounds.idle: want a time above zero"},
		{"idle: 90s", "retry_percent: 101", "[20:18] bounds.retry_percent: from 0 to 100"},
		{"idle: 90s", "refresh: 8s", "[20:3] bounds.fresh: must be longer than bounds.refresh"},
		{"idle: 90s\n", "idle: 90s\n---\nlisten: x:1\n", "more than one document"},
		{goodSite, "", "it is empty"},
		{goodSite, "- a", "[1:1] want a mapping"},
		{goodSite, "#" + strings.Repeat("a", config.MaxFile), "longer than"},
	} {
		text := strings.Replace(goodSite, c.from, c.to, 1)
		if text == goodSite {
			t.Fatalf("%q is not in the good configuration", c.from)
		}
		code, said := checked(t, goodEnv(), text)
		if code != exitUsage || !strings.Contains(said, c.says) {
			t.Errorf("%q: exit %d, wanted to read %q in %s", c.to, code, c.says, said)
		}
		for name, secret := range goodEnv() {
			if strings.Contains(said, secret) {
				t.Errorf("%q: the secret %s is in %s", c.to, name, said)
			}
		}
	}
}

// TestSiteSecrets: a secret that is too weak, or is no key, is refused.
func TestSiteSecrets(t *testing.T) {
	for name, c := range map[string]struct{ value, says string }{
		"CONTROL": {"short", "control_key: want at least 16 bytes"},
		"KEY":     {"sk-short", "tenants[0].keys[1].key: want 16 to 128 bytes"},
		"PEPPER":  {strings.Repeat("2b", 31), "pepper: want 64 hex digits"},
		"DOMAIN":  {"", "domain_key: the environment variable is empty"},
	} {
		env := goodEnv()
		env[name] = c.value
		if code, said := checked(t, env, goodSite); code != exitUsage || !strings.Contains(said, c.says) {
			t.Errorf("%s: exit %d, wanted %q in %s", name, code, c.says, said)
		}
	}
	env := goodEnv()
	delete(env, "PASS")
	delete(env, "KEY")
	if _, said := checked(t, env, goodSite); !strings.Contains(said, "pass_key:") || !strings.Contains(said, "tenants[0].keys[1].key:") {
		t.Errorf("not all that is wrong is told: %s", said)
	}
}

// TestAuthorities: a file of certificates that is not there, or of which one cannot be
// read, is refused with its place.
func TestAuthorities(t *testing.T) {
	ca, err := wire.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good": string(cert), "two": "of us:\n" + string(cert) + "of them:\n" + string(cert), "both": string(key) + string(cert), "key": string(key), "empty": "",
		"cut": string(cert) + string(cert[:200]), "junk": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + string(cert),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, says := range map[string]string{
		"good": "", "two": "", "both": "", "missing": "open " + filepath.Join(dir, "missing"), "key": "it holds no certificate in PEM",
		"empty": "the secret is empty", "cut": "of its 2 certificates in PEM only 1 can be read", "junk": "of its 2 certificates in PEM only 1 can be read",
	} {
		for place, text := range map[string]string{
			"[1:12] worker_ca: ":   "worker_ca: file:" + filepath.Join(dir, name) + "\n" + goodSite,
			"[8:9] models[0].ca: ": strings.Replace(goodSite, "    tokenizer: recall", "    ca: file:"+filepath.Join(dir, name)+"\n    tokenizer: recall", 1),
		} {
			code, said := checked(t, goodEnv(), text)
			if (code == exitOK) != (says == "") || says != "" && !strings.Contains(said, place+says) {
				t.Errorf("%s: exit %d, wanted %q in %s", name, code, place+says, said)
			}
		}
	}
}

// TestNotes: what is open or readable is said, and only that.
func TestNotes(t *testing.T) {
	for _, c := range []struct{ from, to, says string }{
		{"listen: 127.0.0.1:0", "listen: 0.0.0.0:1", "note: listen: 0.0.0.0:1 is open to your network"},
		{"listen: 127.0.0.1:0", "listen: ':1'", "travel readable"},
		{"listen: 127.0.0.1:0", "admin: {listen: '10.0.0.1:1'}", "asks for no key"},
		{"http://127.0.0.1:2", "http://10.0.0.1:2", "models[0].pairs[0].decode: prompts and answers travel readable to http://10.0.0.1:2"},
		{"listen: 127.0.0.1:0", "listen: '[::1]:0'", ""},
		{"listen: 127.0.0.1:0", "listen: localhost:0", ""},
		{"http://127.0.0.1:2", "https://10.0.0.1:2", ""},
		{"http://127.0.0.1:2", "'http://[::1]:2'", ""},
		{"listen: 127.0.0.1:0", "admin: {listen: off}", ""},
	} {
		code, said := checked(t, goodEnv(), strings.Replace(goodSite, c.from, c.to, 1))
		if code != exitOK || !strings.Contains(said, c.says) || (c.says == "") == strings.Contains(said, "note:") {
			t.Errorf("%s: exit %d: %s", c.to, code, said)
		}
	}
}

// TestPrint: what is printed is the whole configuration with references in place of
// secrets, and printing that again changes nothing.
func TestPrint(t *testing.T) {
	dir := t.TempDir()
	show := func(text string) string {
		path := filepath.Join(dir, "serve.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, err := run(t, nil, "config", "print", path) // without the secrets
		if code != exitOK {
			t.Fatalf("exit %d: %s", code, err)
		}
		return out
	}
	once := show(goodSite)
	if twice := show(once); twice != once {
		t.Errorf("printed again it is another:\n%s\n%s", once, twice)
	}
	for _, want := range []string{"pass_key: env:PASS\n", "key: env:KEY\n", "idle: 1m30s\n", "body: 8188KiB\n", "in_flight: 64\n", "served: m\n", "name: p:8998\n", "drain: 25s\n"} {
		if !strings.Contains(once, want) {
			t.Errorf("no %q in\n%s", want, once)
		}
	}
	if code, said := checked(t, goodEnv(), once); code != exitOK {
		t.Errorf("what was printed is not sound: %s", said)
	}
	code, out, err := run(t, nil, "config", "print", "does-not-exist")
	if code != exitUsage || out != "" || err == "" {
		t.Errorf("%d %s %s", code, out, err)
	}
}

// TestInit: the example lacks nothing but its secrets, what it comments out is the
// default, and it overwrites nothing.
func TestInit(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if code, _, err := run(t, nil, "config", "init", "serve.yaml"); code != exitOK {
		t.Fatal(err)
	}
	if code, _, _ := run(t, nil, "config", "init", "serve.yaml"); code != exitUsage {
		t.Error("an existing file was overwritten")
	}
	code, _, said := run(t, nil, "config", "check", "serve.yaml")
	lines := strings.Split(strings.TrimSpace(said), "\n")
	for _, line := range lines {
		if !strings.Contains(line, "no such file or directory") {
			t.Errorf("wrong besides secrets: %s", line)
		}
	}
	if code != exitUsage || len(lines) != 3 {
		t.Errorf("exit %d, %d secrets are missing: %s", code, len(lines), said)
	}
	for _, name := range []string{"pepper", "domain", "tenant"} {
		if err := os.WriteFile(name+".key", []byte(strings.Repeat("7f", 32)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, said := run(t, nil, "config", "check", "serve.yaml"); code != exitOK {
		t.Errorf("with its secrets: %s", said)
	}
	_, before, _ := run(t, nil, "config", "print", "serve.yaml")
	if !strings.Contains(before, "want: Paris") { // else posture would show G-9 as unknown
		t.Errorf("the example asks for no known answer:\n%s", before)
	}
	text, err := os.ReadFile("serve.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Everything that is commented out and has a default, written out.
	open := regexp.MustCompile(`(?m)^( *)#( *(?:listen|admin|pprof|drain|domain_epoch|records|served|weight|state|default_max_tokens|max_schema|max_sequences|in_flight|bytes|bounds|body):)`).ReplaceAllString(string(text), "$1$2")
	if err := os.WriteFile("open.yaml", []byte(open), 0o600); err != nil {
		t.Fatal(err)
	}
	_, after, said := run(t, nil, "config", "print", "open.yaml")
	if before == "" || before != after || strings.Count(open, "#") > strings.Count(string(text), "#")-14 {
		t.Errorf("a comment does not show the default: %s\n%s\n%s", said, before, after)
	}
	if _, out, _ := run(t, nil, "config", "init"); out != string(text) {
		t.Error("without a file it is not printed")
	}
}

// TestKey: the key that is printed opens with the line that is printed.
func TestKey(t *testing.T) {
	env := goodEnv()
	code, out, said := run(t, env, "key", "--pepper", "env:PEPPER")
	m := regexp.MustCompile(`^(bk-[0-9a-f]{32})\n(- hash: "[0-9a-f]{64}")\n$`).FindStringSubmatch(out)
	if code != exitOK || m == nil {
		t.Fatalf("%d %q %s", code, out, said)
	}
	line := strings.Replace(goodSite, "- key: env:KEY", m[2], 1)
	if code, said := checked(t, env, line); code != exitOK {
		t.Errorf("the line to paste: %s", said)
	}
	// The same key by reference has the same hash, so the two clash.
	env["KEY"] = m[1]
	both := strings.Replace(goodSite, "- key: env:KEY", m[2]+"\n      - key: env:KEY", 1)
	if code, said := checked(t, env, both); code != exitUsage || !strings.Contains(said, "tenants[0].keys[2]: empty or used twice") {
		t.Errorf("the hash is of another key: %s", said)
	}
	if _, again, _ := run(t, env, "key", "--pepper", "env:PEPPER"); again == out {
		t.Error("two keys are equal")
	}
	if code, out, said := run(t, env, "key", "--pepper", "env:PEPPER", "--expires", "2999-01-31"); code != exitOK || !strings.HasSuffix(out, "\n  expires: 2999-01-31\n") {
		t.Errorf("%d %s %s", code, out, said)
	}
	for _, args := range [][]string{{"key"}, {"key", "--pepper", "env:PEPPER", "--expires", "2020-01-31"}, {"key", "--pepper", env["PEPPER"]}, {"key", "--pepper", "env:CONTROL"}} {
		if code, out, said := run(t, env, args...); code != exitUsage || out != "" || strings.Contains(said, env["PEPPER"]) || strings.Contains(said, env["CONTROL"]) {
			t.Errorf("%v: %d %s %s", args, code, out, said)
		}
	}
}

func TestServeUsage(t *testing.T) {
	if code, _, said := run(t, nil, "serve"); code != exitUsage || !strings.Contains(said, "--config") {
		t.Errorf("%d %s", code, said)
	}
	if code, _, said := run(t, nil, "serve", "--config", "does-not-exist"); code != exitUsage || !strings.Contains(said, "does-not-exist") {
		t.Errorf("%d %s", code, said)
	}
	if _, err := os.Stat("does-not-exist"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, args := range [][]string{{"config"}, {"config", "check"}, {"config", "print"}, {"config", "show", "x"}, {"config", "init", "a", "b"}} {
		if code, _, said := run(t, nil, args...); code != exitUsage || !strings.Contains(said, "check FILE") {
			t.Errorf("%v: %d %s", args, code, said)
		}
	}
}
