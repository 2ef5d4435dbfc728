package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// The pair: prefill's pool is smaller than decode's and than the context of 4,096 tokens,
// as in the incident.
const (
	sglangPrefillPool = 512
	sglangDecodePool  = 4096
	sglangStart       = 10 * time.Minute // to come up, on a busy machine
)

// sglangPeer is SGLang in two versions, each as a pair over Mooncake's TCP transport.
func sglangPeer() peer {
	p := peer{name: "sglang", title: "SGLang pair, SmolLM2-135M-Instruct bf16 on the CPU, Mooncake over TCP", alone: true,
		prepare: "sglang/install.sh"}
	for _, version := range []string{"0.5.19", "0.5.20"} {
		one := sglangVersion(version)
		p.parts = append(p.parts, part{name: version, run: one.run})
	}
	return p
}

type sglangVersion string

// sglangPair is a running pair.
type sglangPair struct {
	d               *driver
	version         string
	ports           [3]int // prefill, decode, bootstrap
	prefill, decode *process
	lives           int
}

// run is the part: two processes, a proxy before prefill, the gateway, the cases.
func (v sglangVersion) run(ctx context.Context, d *driver, s *section) error {
	if err := loopback(); err != nil {
		return err
	}
	facts, err := d.install(ctx, "sglang/install.sh")
	if err != nil {
		return err
	}
	pair, err := d.sglangPair(ctx, string(v))
	if err != nil {
		return err
	}
	s.fact("sglang %s of PyPI with mooncake-transfer-engine-non-cuda 0.3.13.post1, in a network namespace of its own", v)
	s.fact("prefill's pool: %d tokens; decode's pool: %d; context: 4096", sglangPrefillPool, sglangDecodePool)
	fixtures := filepath.Join(d.root, "internal/upstream/testdata/sglang", string(v))
	if d.record {
		return d.sglangRecord(ctx, pair, facts["ROOT"], fixtures)
	}
	if s.contract, err = pair.hold(ctx, fixtures); err != nil {
		return err
	}
	proxy, err := tamperWith(pair.url(0))
	if err != nil {
		return err
	}
	defer proxy.end()
	site, options := pair.site(), assure.Options{Timeout: 4 * time.Minute, Faults: pair.faults(proxy)}
	if !d.direct && (len(d.only) == 0 || slices.Contains(d.only, "sglang-overlong")) {
		if err := d.sglangUnadmitted(ctx, s, site, proxy, options); err != nil {
			return err
		}
	}
	var front *gateway
	if !d.direct {
		if front, err = d.sglangFront(ctx, &site, proxy, model{}); err != nil {
			return err
		}
	}
	options.Before = func(c assure.Case, w assure.Way) {
		pair.mend(ctx, d, front)
		d.say("%s, %s ...", c.Name, w)
	}
	if err := d.redgreen(ctx, s, site, options, v.expected()); err != nil {
		return err
	}
	s.note("the pair was started %d times in all", pair.lives)
	return nil
}

// sglangFront starts the gateway with the proxy before prefill; the cases look at
// prefill itself.
func (d *driver) sglangFront(ctx context.Context, site *assure.Site, proxy *tamper, m model) (*gateway, error) {
	through := *site
	through.Prefill = proxy.url
	front, err := d.serve(ctx, &through, m)
	site.Gateway, site.Keys = through.Gateway, through.Keys
	return front, err
}

// sglangUnadmitted tries the over-long prompts through a gateway whose admission is off:
// then it is the agreement of the legs that has to hold.
func (d *driver) sglangUnadmitted(ctx context.Context, s *section, site assure.Site, proxy *tamper, o assure.Options) error {
	front, err := d.sglangFront(ctx, &site, proxy, model{top: []string{"modes: {admission: {mode: off}}"}})
	if err != nil {
		return err
	}
	defer front.stop(5 * time.Second)
	site.Facts = map[string]string{"admission": "off"}
	o.Only, o.Ways = []string{"sglang-overlong"}, []assure.Way{assure.Bulkhead}
	report, err := assure.Run(ctx, site, o)
	if err != nil {
		return fmt.Errorf("interop: run cases: %w", err)
	}
	report.Print(d.out, assure.Plain)
	for _, r := range report.Results {
		s.note("admission off, so that only the agreement of the legs (G-3) is left: %s through Bulkhead is %s: %s", r.Case, r.Outcome, r.Why)
		if r.Outcome != assure.Green {
			s.fail("%s with admission off: %s, expected GREEN: %s", r.Case, r.Outcome, r.Why)
		}
	}
	return nil
}

// expected: the pair's own end after prefill's death is clean.
func (v sglangVersion) expected() expected {
	return expected{"sglang-prefill-killed": {assure.Direct: assure.Green}}
}

// sglangPair starts prefill and decode and waits for both.
func (d *driver) sglangPair(ctx context.Context, version string) (*sglangPair, error) {
	p := &sglangPair{d: d, version: version}
	for i := range p.ports {
		port, err := d.port()
		if err != nil {
			return nil, err
		}
		p.ports[i] = port
	}
	return p, p.start(ctx)
}

func (p *sglangPair) url(i int) string { return fmt.Sprintf("http://127.0.0.1:%d", p.ports[i]) }

// start starts both servers at once; most of a start is imports.
func (p *sglangPair) start(ctx context.Context) error {
	began := time.Now()
	p.lives++
	script := filepath.Join(p.d.root, "interop/sglang/start.sh")
	env := []string{fmt.Sprintf("BOOTSTRAP_PORT=%d", p.ports[2])}
	var err error
	name := func(role string) string { return fmt.Sprintf("%s-%d", role, p.lives) }
	if p.prefill, err = p.d.start(name("prefill"), script, env, p.version, "prefill", strconv.Itoa(p.ports[0]), strconv.Itoa(sglangPrefillPool)); err != nil {
		return err
	}
	if p.decode, err = p.d.start(name("decode"), script, env, p.version, "decode", strconv.Itoa(p.ports[1]), strconv.Itoa(sglangDecodePool)); err != nil {
		return err
	}
	for i, one := range []*process{p.prefill, p.decode} {
		if err := p.d.ready(ctx, one, p.url(i)+"/model_info", sglangStart); err != nil {
			return err
		}
	}
	p.d.say("the pair was up after %.0f s", time.Since(began).Seconds())
	return nil
}

// site names the pair for the cases.
func (p *sglangPair) site() assure.Site {
	return assure.Site{Dialect: upstream.SGLangPD, Model: "smol", Served: "smol", Prefill: p.url(0), Decode: p.url(1),
		Bootstrap: fmt.Sprintf("127.0.0.1:%d", p.ports[2])}
}

// faults are what the cases may have done to the pair.
func (p *sglangPair) faults(proxy *tamper) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"cut-prompt": func(context.Context) error { return proxy.arm() },
		// Nobody may believe that a prompt was changed when none was.
		"whole-prompt": func(context.Context) error { return proxy.disarm() },
		"kill-prefill": func(context.Context) error { p.prefill.kill(); return nil },
		"kill-prefill-at-leg": func(context.Context) error {
			kill := func() { p.prefill.kill() }
			proxy.strike.Store(&kill)
			return nil
		},
		"prefill-is-dead": func(context.Context) error {
			if proxy.strike.Swap(nil) != nil {
				return errors.New("interop: kill prefill: no leg came")
			}
			<-p.prefill.done
			return nil
		},
	}
}

// mend starts the pair anew if one of its servers does not answer any more, and waits
// until the gateway knows of it.
func (p *sglangPair) mend(ctx context.Context, d *driver, front *gateway) {
	if p.prefill.alive() && p.decode.alive() && p.answers(ctx) {
		return
	}
	d.say("the pair does not answer any more and is started again")
	p.prefill.kill()
	p.decode.kill()
	if err := p.start(ctx); err != nil {
		d.say("%v", err)
		return
	}
	if front != nil {
		if err := d.ready(ctx, front.process, front.admin+"/readyz", time.Minute); err != nil {
			d.say("%v", err)
		}
	}
}

// answers says whether the pair answers a request of two legs.
func (p *sglangPair) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	answer, err := p.ask(ctx, map[string]any{"model": "smol", "prompt": "Hello", "max_tokens": 1, "temperature": 0})
	return err == nil && answer != ""
}

// ask sends both legs of a completion in a room of their own and returns decode's text.
func (p *sglangPair) ask(ctx context.Context, body map[string]any) (string, error) {
	body = maps.Clone(body)
	maps.Copy(body, map[string]any{"bootstrap_host": "127.0.0.1", "bootstrap_port": p.ports[2], "bootstrap_room": time.Now().UnixNano()})
	data, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("interop: ask the pair: %w", err)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = p.send(inner, http.MethodPost, p.url(0)+"/v1/completions", data) // decode's answer tells
	}()
	said, err := p.send(ctx, http.MethodPost, p.url(1)+"/v1/completions", data)
	cancel()
	<-done
	if err != nil {
		return "", err
	}
	return textOf(said)
}

// textOf is the text of the one choice of a completion.
func textOf(said map[string]any) (string, error) {
	choices, _ := said["choices"].([]any)
	if len(choices) == 1 {
		if choice, ok := choices[0].(map[string]any); ok {
			if text, ok := choice["text"].(string); ok {
				return text, nil
			}
		}
	}
	return "", errors.New("interop: ask the pair: no text came")
}

// hold compares what the engines tell and say with what was recorded of this version.
func (p *sglangPair) hold(ctx context.Context, fixtures string) (string, error) {
	var differs []string
	for i, role := range []string{"prefill", "decode"} {
		now, err := p.send(ctx, http.MethodGet, p.url(i)+"/server_info", nil)
		if err != nil {
			return "", err
		}
		then, err := recordedObject(filepath.Join(fixtures, "server_info-"+role+".json"))
		if err != nil {
			return "", err
		}
		for _, name := range []string{"version", "max_total_num_tokens", "max_req_input_len", "page_size", "disaggregation_mode", "disaggregation_transfer_backend"} {
			if fmt.Sprint(now[name]) != fmt.Sprint(then[name]) {
				differs = append(differs, role+"'s "+name)
			}
		}
	}
	then, err := recordedObject(filepath.Join(fixtures, "completions.json"))
	if err != nil {
		return "", err
	}
	want, err := textOf(then)
	if err != nil {
		return "", err
	}
	got, err := p.ask(ctx, map[string]any{"model": "smol", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0})
	if err != nil {
		return "", err
	}
	if got != want {
		differs = append(differs, "the text of a greedy answer")
	}
	if len(differs) > 0 {
		return "", fmt.Errorf("interop: not as recorded in %s: %v", fixtures, differs)
	}
	return "limits, version and a greedy answer are as recorded", nil
}

// send sends one request and reads an object.
func (p *sglangPair) send(ctx context.Context, method, url string, body []byte) (map[string]any, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("interop: ask the pair: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: p.d.http.Transport}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("interop: ask the pair: %w", err)
	}
	defer response.Body.Close()
	var said map[string]any
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil {
		return nil, fmt.Errorf("interop: ask the pair: %w", err)
	}
	return said, nil
}

func recordedObject(file string) (map[string]any, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("interop: read what was recorded: %w", err)
	}
	var said map[string]any
	if err := json.Unmarshal(data, &said); err != nil {
		return nil, fmt.Errorf("interop: read what was recorded: %w", err)
	}
	return said, nil
}

// sglangRecord writes the recorded answers anew.
func (d *driver) sglangRecord(ctx context.Context, p *sglangPair, root, fixtures string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "venv/bin/python"), filepath.Join(d.root, "interop/sglang/record.py"),
		p.url(0), p.url(1), strconv.Itoa(p.ports[2]), fixtures)
	cmd.Stdout, cmd.Stderr = d.out, d.out
	ownGroup(cmd)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("interop: record: %w", err)
	}
	return nil
}
