package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pd is the smallest line of flags for an engine in two parts.
const pd = "--pd-disaggregation --prefill http://p:1 --decode http://d:2 "

// TestQuickRefuses: what does not go together, or is not taken, is refused by name.
func TestQuickRefuses(t *testing.T) {
	for line, says := range map[string]string{
		"--worker-urls":                                                          "--worker-urls: at least one is needed",
		"--worker-urls http://w:1 -x":                                            `--worker-urls: want a URL`,
		"--port 1 stray":                                                         `unexpected argument "stray"`,
		"--worker-urls w:1":                                                      "--worker-urls: want a URL",
		"--worker-urls http://u:p@w:1":                                           "--worker-urls: want a URL",
		"--worker-urls http://w:1 --port":                                        "--port: a value is missing",
		"--worker-urls http://w:1 --port x":                                      "--port: want a port",
		"--worker-urls http://w:1 --nothing":                                     "--nothing: there is no such flag",
		"--worker-urls http://w:1 --policy a":                                    "--policy: want random",
		"--prefill http://p:1 --decode http://d:1":                               "--prefill and --decode: they need --pd-disaggregation",
		"--pd-disaggregation --decode http://d:1":                                "--pd-disaggregation: at least one --prefill",
		"--pd-disaggregation=yes " + pd[20:]:                                     "--pd-disaggregation: it takes no value",
		pd + "--worker-urls http://w:1":                                          "--worker-urls: with --pd-disaggregation",
		"--pd-disaggregation --prefill http://p:1 0 --decode http://d:1":         "--prefill: the second word is a bootstrap port",
		"--pd-disaggregation --prefill http://p:1 8998 9 --decode http://d:1":    `unexpected argument "9"`,
		"--pd-disaggregation --prefill http://p:1/x?y=1 --decode grpc://d:1":     "--decode: want a URL",
		pd + "--engine vllm":                                                     "--engine vllm: with --pd-disaggregation name an engine in two parts",
		"--worker-urls http://w:1 --engine vllm-nixl":                            "--engine vllm-nixl: with --pd-disaggregation",
		pd + "--engine bulkhead":                                                 "--engine: want one of sglang-pd",
		pd + "--engine vllm-nixl":                                                "--lease: it is needed with --engine vllm-nixl",
		pd + "--engine vllm-nixl --lease soon":                                   "--lease: want a time",
		pd + "--lease 30s":                                                       "--lease: --engine sglang-pd has none",
		"--worker-urls http://w:1 --engine openai":                               "--window: it is needed",
		"--worker-urls http://w:1 --engine openai --window 0":                    "--window: want a number",
		"--worker-urls http://w:1 --api-key short-planted --served-model-name m": "--api-key: want 16 to 128 bytes",
		"--mini-lb " + pd:                                                        "--mini-lb: there is one way to serve",
		"--worker-urls http://w:1 --log-level=debug":                             "--log-level: log lines go to standard error",
	} {
		code, out, said := run(t, nil, append([]string{"serve"}, strings.Fields(line)...)...)
		if code != exitUsage || out != "" || !strings.Contains(said, says) {
			t.Errorf("%s: exit %d, wanted %q in %s%s", line, code, says, out, said)
		}
		if strings.Contains(said, "planted") {
			t.Errorf("%s: the key is in %s", line, said)
		}
	}
}

// TestRouterFlags: every flag of sglang-router is taken, or refused with a sentence of
// its own.
func TestRouterFlags(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "sglang-router-0.3.2.flags"))
	if err != nil {
		t.Fatal(err)
	}
	known, taken := quickFlags(), 0
	all := strings.Fields(string(text))
	for _, name := range all {
		_, ours := known[name]
		if why := refusedFlag(name); ours == (why != "") {
			t.Errorf("%s is taken: %v, and refused: %q", name, ours, why)
		}
		if ours {
			taken++
			continue
		}
		if code, _, said := run(t, nil, "serve", "--worker-urls", "http://127.0.0.1:1", name); code != exitUsage || !strings.Contains(said, name+": ") {
			t.Errorf("%s: %d %s", name, code, said)
		}
	}
	if len(all) < 80 || taken != 9 {
		t.Errorf("of %d flags %d are taken", len(all), taken)
	}
	if refusedFlag("--config") != "" || refusedFlag("") != "" {
		t.Error("a flag that no router has is refused as one")
	}
}

// TestQuickPrinted: the flags as a file are a sound file, and say the same.
func TestQuickPrinted(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"pepper", "domain", "api"} {
		if err := os.WriteFile(name+".key", []byte(strings.Repeat("7f", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string][]string{
		"--pd-disaggregation --prefill http://p:1/ 9000 --prefill http://q:1 none --decode http://d:2 --decode=http://e:2 --model-path m --host 0.0.0.0 --port 8100 --policy round_robin": {
			"listen: 0.0.0.0:8100\n", "engine: sglang-pd\n", "url: http://p:1\n", "bootstrap: :9000\n", "url: http://q:1\n", "url: http://e:2\n", "mode: \"off\"\n",
		},
		"--worker-urls http://a:1 http://b:1 --served-model-name m --model-path x --api-key " + strings.Repeat("k", 16) + " --admin off": {
			"listen: 127.0.0.1:30000\n", "engine: sglang\n", "name: m\n", "url: http://b:1\n", "key: file:api.key\n", "listen: \"off\"\n",
		},
		pd + "--engine vllm-nixl --lease 30s --served-model-name m": {"engine: vllm-nixl\n", "lease: 30s\n"},
		pd + "--engine vllm-mooncake --served-model-name m":         {"engine: vllm-mooncake\n"},
		"--worker-urls https://api.example.org/v1x --engine openai --window 8192 --served-model-name m": {
			"engine: openai\n", "window: 8192\n", "tokenizer: none\n",
		},
	} {
		code, out, said := run(t, nil, append([]string{"serve", "--print-config"}, strings.Fields(line)...)...)
		if code != exitOK {
			t.Errorf("%s: %d %s", line, code, said)
			continue
		}
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(out, `"`, ""), strings.ReplaceAll(w, `"`, "")) {
				t.Errorf("%s: no %q in\n%s", line, w, out)
			}
		}
		if strings.Contains(out, "kkkk") {
			t.Errorf("the key is in\n%s", out)
		}
		if err := os.WriteFile("serve.yaml", []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, said := run(t, nil, "config", "check", "serve.yaml"); code != exitOK {
			t.Errorf("%s: as a file: %s", line, said)
		}
	}
}

// TestQuickSite: the flags make the gateway that a file would, and say who the callers
// are.
func TestQuickSite(t *testing.T) {
	for _, key := range []string{"", "sk-planted-key-0123"} {
		line := pd + "--served-model-name m"
		if key != "" {
			line += " --api-key " + key
		}
		q, err := parseQuick(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		s, err := q.site(q.config("m"), [3]string{strings.Repeat("1a", 32), strings.Repeat("2b", 32), strings.Repeat("3c", 32)}, noEvents{})
		if err != nil {
			t.Fatal(err)
		}
		e := s.gateway.Models[0].Engines
		if e.Prefill[0].Key != key || e.Decode[0].Key != key || (s.open == "") != (key != "") || len(s.gateway.Tenants) != 1 {
			t.Errorf("%q: %+v %q", key, e, s.open)
		}
		all := strings.Join(s.notes, "\n")
		if !strings.Contains(all, `all callers are one tenant, "default": whoever reaches 127.0.0.1:30000`) || strings.Contains(all, "planted") ||
			strings.Contains(all, "has the key of --api-key") != (key != "") {
			t.Errorf("%q: %s", key, all)
		}
	}
}

// TestIsQuick: a file is a file, whatever else is said.
func TestIsQuick(t *testing.T) {
	for line, want := range map[string]bool{
		"--config x": false, "--config=x --port 1": false, "-config x": false, "-h": false, "": false, "--nothing": false,
		"--worker-urls http://w": true, "--decode=http://d": true, "--mini-lb": true, "--port=1": true,
	} {
		if got := isQuick(strings.Fields(line)); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
	if code, _, said := run(t, nil, "serve", "--config", "x", "--port", "1"); code != exitUsage || !strings.Contains(said, "port") {
		t.Errorf("%d %s", code, said)
	}
}
