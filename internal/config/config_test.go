package config

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

const good = `pepper: env:PEPPER
domain_key: env:DOMAIN
modes: {allow_list: {mode: shadow, until: 2026-12-31}}
telemetry: {otlp: "http://127.0.0.1:4318/v1/metrics"}
models:
  - name: m
    engine: vllm-nixl
    lease: 30s
    prefill: [{url: "http://10.0.0.1:1", key: env:ENGINE}]
    decode: [{dns: "http://d.svc:2", weight: 2, state: canary, share: 0.5%}]
    grants: [prompt_token_ids]
    urls: [images.example.org]
    hold: {bytes: 64KiB, commit_after: 1s}
  - name: s
    engine: sglang-pd
    prefill: [{url: "http://10.0.0.3:1", bootstrap: "10.0.0.3:8998"}]
    decode: [{file: nodes.txt}]
  - name: h
    engine: openai
    window: 8192
    nodes: [{url: "https://api.example.org/openai"}]
tenants:
  - id: t
    models: [m]
    aliases: {mine: {model: m, served: adapter}}
    requests_per_minute: 600
    priority: -1
    keys:
      - {key: env:KEY, expires: 2027-01-01T00:00:00Z}
`

func at(date string) time.Time {
	t, err := time.Parse(time.RFC3339, date)
	if err != nil {
		panic(err)
	}
	return t
}

func read(text string) (Serve, error) {
	c, _, err := ReadServe(strings.NewReader(text), at("2026-12-31T23:59:59Z"))
	return c, err
}

// TestDefaults are those that depend on nothing else.
func TestDefaults(t *testing.T) {
	c, err := read(good)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:8080" || c.Admin.Listen != "127.0.0.1:8081" || c.Telemetry.Every != Duration(15*time.Second) {
		t.Errorf("%+v", c)
	}
	n := c.Models[0].Prefill[0]
	if c.Models[0].Tokenizer != "engine" || n.State != "active" || n.Weight != 1 || c.Models[2].Tokenizer != "none" {
		t.Errorf("%+v", c.Models)
	}
}

// TestWrong: each wrong value is refused with its place and its path.
func TestWrong(t *testing.T) {
	for _, c := range []struct{ from, to, says string }{
		{"mode: shadow, until: 2026-12-31", "mode: shadow, until: 2026-12-30", "[3:43] modes.allow_list.until: it is in the past"},
		{"mode: shadow, until: 2026-12-31", "mode: shadow, until: 2026-12-31T23:59:59Z", "modes.allow_list.until: it is in the past"},
		{"mode: shadow, until: 2026-12-31", "mode: shadow, until: soon", "modes.allow_list.until: want a date"},
		{"mode: shadow, until: 2026-12-31", "mode: shadow", "modes.allow_list.until: shadow needs an end"},
		{"mode: shadow, until: 2026-12-31", "mode: enforce, until: 2026-12-31", "modes.allow_list.until: only shadow"},
		{"mode: shadow, until: 2026-12-31", "mode: off", "[3:28] modes.allow_list.mode: the list is enforced"},
		{"mode: shadow, until: 2026-12-31", "mode: on", "modes.allow_list.mode: want enforce, shadow or off"},
		{"allow_list: {mode", "reserved: {mode", "modes.reserved: there is no such setting"},
		{"http://127.0.0.1:4318/v1/metrics", "127.0.0.1:4318", "telemetry.otlp: want a URL"},
		{"    lease: 30s\n", "", "models[0].lease: it is required for vllm-nixl"},
		{"    engine: sglang-pd\n", "    engine: sglang-pd\n    lease: 1s\n", "models[1].lease: sglang-pd has no lease"},
		{"    engine: sglang-pd\n", "    engine: sglang-pd\n    hold: {commit_after: 999ms}\n", "[16:26] models[1].hold.commit_after: want at least 1s"},
		{"    engine: sglang-pd\n", "    engine: sglang-pd\n    hold: {commit_after: never}\n", "models[1].hold.commit_after: want a time"},
		{"    engine: sglang-pd\n", "    engine: sglang-pd\n    hold: 64KiB\n", "models[1].hold"},
		{"    engine: sglang-pd\n", "", "[14:5] models[1].engine: it is required: what kind of engine"},
		{"engine: sglang-pd", "engine: sglangpd", "[15:13] models[1].engine: want bulkhead, sglang-pd"},
		{"engine: sglang-pd", "engine: sglang", "models[1].prefill: the engine sglang has nodes"},
		{"engine: sglang-pd", "engine: bulkhead", "models[1].pairs: at least one is required"},
		{"    engine: sglang-pd\n", "    engine: sglang-pd\n    tokenizer: recall\n", "models[1].tokenizer: recall is the tokenizer of our own"},
		{"    window: 8192\n", "", "models[2].window: it is required for openai"},
		{"    window: 8192\n", "    window: 8192\n    tokenizer: engine\n", "models[2].tokenizer: openai has no endpoint"},
		{"    nodes: [{url: \"https://api.example.org/openai\"}]\n", "", "models[2].nodes: at least one is required for the engine openai"},
		{"api.example.org/openai", "api.example.org/openai/", "models[2].nodes[0].url: want scheme and host"},
		{"http://10.0.0.1:1", "http://10.0.0.1:1/v1", "models[0].prefill[0].url: want scheme and host"},
		{"http://10.0.0.1:1", "http://user:pass@10.0.0.1:1", "models[0].prefill[0].url: want scheme and host"},
		{"file: nodes.txt", "file: nodes.txt, url: \"http://x:1\"", "models[1].decode[0]: want one of url, dns and file"},
		{"file: nodes.txt", "weight: 1", "models[1].decode[0]: want one of url, dns and file"},
		{"file: nodes.txt", "file: nodes.txt, bootstrap: \":1\"", "models[1].decode[0].bootstrap: only a prefill node"},
		{"http://d.svc:2", "http://d.svc", "models[0].decode[0].dns: want scheme, name and port"},
		{"bootstrap: \"10.0.0.3:8998\"", "bootstrap: 8998", "models[1].prefill[0].bootstrap: want host:port"},
		{"url: \"http://10.0.0.3:1\", bootstrap", "dns: \"http://p.svc:1\", bootstrap", "models[1].prefill[0].bootstrap: each of several nodes"},
		{"state: canary, share: 0.5%", "state: canary", "models[0].decode[0].share: a canary needs"},
		{"state: canary, share: 0.5%", "share: 0.5%", "models[0].decode[0].share: only a canary"},
		{"share: 0.5%", "share: 101%", "models[0].decode[0].share: want at most 100%"},
		{"share: 0.5%", "share: 0.5", "models[0].decode[0].share: no setting takes such a number"},
		{"share: 0.5%", "share: 0%", "models[0].decode[0].share: want a percentage"},
		{"state: canary", "state: standby", "models[0].decode[0].state: want active, draining"},
		{"weight: 2", "weight: 0", "models[0].decode[0].weight: want a whole number above zero"},
		{"key: env:ENGINE", "key: planted-secret", "models[0].prefill[0].key: a secret is given as env:NAME"},
		{"key: env:ENGINE", "key: \"${ENGINE}\"", "models[0].prefill[0].key: nothing is filled in here"},
		{"key: env:ENGINE", "key: \"env:${planted-secret}\"", "models[0].prefill[0].key: nothing is filled in here"},
		{"http://10.0.0.1:1", "http://${HOST}:1", "models[0].prefill[0].url: nothing is filled in here"},
		{"grants: [prompt_token_ids]", "grants: [temperature]", "models[0].grants[0]: it opens nothing"},
		{"    priority: -1", "    grants: [prompt_token_ids, zzz]", "tenants[0].grants[1]: it opens nothing"},
		{"aliases: {mine: {model: m, ", "aliases: {mine: {", "tenants[0].aliases.mine.model: it is required"},
		{"aliases: {mine: {model: m, ", "aliases: {mine: {x: m, ", "tenants[0].aliases.mine.x: there is no such setting"},
		{"expires: 2027-01-01T00:00:00Z", "expires: 2027-01-41", "tenants[0].keys[0].expires: want a date"},
		{"pepper: env:PEPPER\n", "pepper: env:PEPPER\npass_key: env:X\n", "pass_key: no model has the engine bulkhead"},
		{"pepper: env:PEPPER\n", "", "pepper: it is required, as env:NAME"},
		{"tenants:\n", "tenants: []\nx:\n", "x: there is no such setting"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%q is not in the good one", c.from)
		}
		_, err := read(text)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "configuration: ") {
			t.Errorf("%q: wanted %q, got %v", c.to, c.says, err)
		}
		if err != nil && strings.Contains(err.Error(), "planted-secret") {
			t.Errorf("%q: the secret is in %v", c.to, err)
		}
	}
	if _, err := read(strings.Replace(good, "share: 0.5%", "share: 0.5%, weight: 3", 1)); err == nil || !strings.Contains(err.Error(), "already defined at [10:") {
		t.Errorf("a repeated key: %v", err)
	}
	two := strings.Replace(strings.Replace(good, "    lease: 30s\n", "", 1), "mode: shadow,", "mode: enforce,", 1)
	if _, err := read(two); err == nil || strings.Count(err.Error(), "configuration:") != 2 {
		t.Errorf("not all that is wrong is told: %v", err)
	}
}

// TestSchemaRefuses: what the reader refuses by its shape, the schema refuses, and what
// the reader takes, the schema takes.
func TestSchemaRefuses(t *testing.T) {
	v := schemaOf(t)
	if bad := v.validate(t, good, false); bad != nil {
		t.Errorf("the good one: %v", bad)
	}
	for _, c := range []struct{ from, to string }{
		{"pepper: env:PEPPER\n", ""},
		{"pepper: env:PEPPER\n", "pepper: 7f7f\n"},
		{"pepper: env:PEPPER\n", "pepper: env:PEPPER\npeper: env:X\n"},
		{"mode: shadow", "mode: on"},
		{"until: 2026-12-31", "until: soon"},
		{"engine: sglang-pd", "engine: sglang"},
		{"engine: sglang-pd", "engine: sgl"},
		{"engine: sglang-pd", "served: x"},
		{"    lease: 30s\n", ""},
		{"    lease: 30s\n", "    lease: 30\n"},
		{"    window: 8192\n", ""},
		{"    window: 8192\n", "    window: 0\n"},
		{"share: 0.5%", "share: 5"},
		{"file: nodes.txt", "file: [a]"},
		{"{model: m, ", "{"},
		{"http://10.0.0.1:1", "10.0.0.1:1"},
		{"grants: [prompt_token_ids]", "grants: prompt_token_ids"},
		{"requests_per_minute: 600", "requests_per_minute: many"},
	} {
		text := strings.Replace(good, c.from, c.to, 1)
		if text == good {
			t.Fatalf("%q is not in the good one", c.from)
		}
		if _, err := read(text); err == nil {
			t.Errorf("%q: the reader takes it", c.to)
		}
		if bad := v.validate(t, text, false); bad == nil {
			t.Errorf("%q: the schema takes it", c.to)
		}
	}
}

// TestEngines: the words of engine are the dialects.
func TestEngines(t *testing.T) {
	f, _ := reflect.TypeFor[Model]().FieldByName("Engine")
	var names []string
	for _, d := range upstream.Dialects() {
		names = append(names, d.String())
	}
	if got := f.Tag.Get("oneof"); got != strings.Join(names, ",") {
		t.Errorf("%s, want %v", got, names)
	}
}

// TestUnits: what is written is read as the same.
func TestUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Hour: "1h", 90 * time.Minute: "1h30m", time.Minute: "1m", 90 * time.Second: "1m30s", 10 * time.Second: "10s",
		250 * time.Millisecond: "250ms", time.Hour + time.Second: "1h0m1s", 10 * time.Minute: "10m", 20 * time.Hour: "20h",
	} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%v is written %s", d, got)
		}
	}
	for z, want := range map[Size]any{1: int64(1), 1024: "1KiB", 1025: int64(1025), 8 << 20: "8MiB", 8188 << 10: "8188KiB", 3 << 30: "3GiB", 1 << 40: "1024GiB"} {
		if got, err := z.MarshalYAML(); err != nil || got != want {
			t.Errorf("%d is written %v, %v", int64(z), got, err)
		}
	}
	for p, want := range map[Percent]any{5: "5%", 0.5: "0.5%", 150: "150%"} {
		if got, err := p.MarshalYAML(); err != nil || got != want {
			t.Errorf("%v is written %v, %v", float64(p), got, err)
		}
	}
	for m, want := range map[Moment]string{
		"2026-12-31": "2027-01-01T00:00:00Z", "2026-12-31T12:00:00+02:00": "2026-12-31T10:00:00Z",
	} {
		if got, err := m.Time(); err != nil || !got.Equal(at(want)) {
			t.Errorf("%s is %v, %v", m, got, err)
		}
	}
	if got, err := Moment("").Time(); err != nil || !got.IsZero() {
		t.Errorf("no moment is %v, %v", got, err)
	}
}

// TestWritten: a file that was written from a configuration is read as the same.
func TestWritten(t *testing.T) {
	c, err := read(good)
	if err != nil {
		t.Fatal(err)
	}
	data, err := Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"share: 0.5%", "until: \"2026-12-31\"", "key: env:ENGINE", "priority: -1", "every: 15s", "commit_after: 1s", "bytes: 64KiB"} {
		if !strings.Contains(string(data), want) && !strings.Contains(string(data), strings.ReplaceAll(want, `"`, "")) {
			t.Errorf("no %s in\n%s", want, data)
		}
	}
}

const goodWorker = `role: decode
name: decode-0
listen: 127.0.0.1:0
peers: [{label: "p:8998"}]
pass_key: env:PASS
tls: {ca: env:CA, cert: env:CERT, key: env:KEY}
`

// readWorker reads a worker's configuration and checks it.
func readWorker(r io.Reader) (Worker, error) {
	c, err := DecodeWorker(r)
	if err != nil {
		return c, err
	}
	return c, c.Check()
}

func TestWorkerConfig(t *testing.T) {
	if c, err := readWorker(strings.NewReader(goodWorker)); err != nil {
		t.Fatalf("the good one: %v", err)
	} else if c.Peers[0].Addr != "p:8998" || c.PageSize != 64 || c.Digest != "xxh3" {
		t.Errorf("defaults: %+v", c)
	}
	if _, err := readWorker(strings.NewReader(strings.Replace(goodWorker, "pass_key: env:PASS", "open_dialect: true", 1))); err != nil {
		t.Errorf("an open one needs no pass key: %v", err)
	}
	for _, c := range []struct{ from, to, says string }{
		{"role: decode", "role: both", "role"},
		{"name: decode-0", "nome: decode-0", "[2:1]"},
		{"name: decode-0", "name: []", "2"},
		{"listen: 127.0.0.1:0\n", "", "listen"},
		{"peers: [{label: \"p:8998\"}]\n", "", "peers"},
		{"pass_key: env:PASS\n", "", "pass_key"},
		{"pass_key: env:PASS\n", "open_dialect: no\n", "open_dialect"},
		{"ca: env:CA, ", "", "tls"},
		{"role: decode", "role: prefill", "bootstrap"},
		{"role: decode", "role: decode\nrole: decode", "2"},
	} {
		text := strings.Replace(goodWorker, c.from, c.to, 1)
		if text == goodWorker {
			t.Fatalf("%q is not in the good configuration", c.from)
		}
		if _, err := readWorker(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, wanted %q", c.to, err, c.says)
		}
	}
}

// FuzzRead: whatever the text, no panic, and every error is one of wrong configuration.
func FuzzRead(f *testing.F) {
	f.Add(good)
	f.Add(Example())
	f.Add("listen: [\n")
	f.Add("models: [{pairs: [~]}]\ntenants: [~]")
	f.Add("modes: ~\ntelemetry: ~\nmodels: [{nodes: [~], aliases: {a: ~}}]")
	f.Add("? a\n: b")
	f.Fuzz(func(t *testing.T, text string) {
		for _, err := range []error{second(read(text)), second(readWorker(strings.NewReader(text)))} {
			for _, e := range unjoin(err) {
				if !strings.HasPrefix(e.Error(), "configuration: ") {
					t.Errorf("%T %v", e, e)
				}
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func unjoin(err error) []error {
	var many interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &many):
		return many.Unwrap()
	}
	return []error{err}
}
