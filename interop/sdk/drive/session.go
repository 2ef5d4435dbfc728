package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// errMissing marks an engine that cannot be had on this machine.
var errMissing = errors.New("missing")

// sessionLimit is for one session. It takes a minute; a machine with other work may need
// many times as long.
const sessionLimit = 20 * time.Minute

// exitMissing is how an install script says so.
const exitMissing = 3

// engine is what the session is run against, through `bulkhead serve`.
type engine struct {
	name string
	// can lists what the engine is able to: "model" (it is a model and not a script),
	// "tools", "json" (it obeys json_object), "slots" and "cache" (it tells of them). The
	// other steps are left out.
	can string
	// model is the name under which it serves, lines are what its entry in the
	// configuration says besides name and nodes.
	model string
	lines []string
	// window is the longest prompt and answer together, in tokens.
	window int
	// command makes the program and its arguments.
	command func(ctx context.Context, s *session, port int) (program string, env, args []string, err error)
	health  string // the path that answers 200 once it is ready
}

// engines lists what the session can be run against.
func engines() []engine {
	all := []engine{}
	for build, more := range map[string]string{"10434": "", "11549": " json"} {
		all = append(all, engine{
			name: "llamacpp-" + build, can: "model tools slots cache" + more, model: "smol", window: 2048, health: "/health",
			lines: []string{"engine: llamacpp"},
			command: func(ctx context.Context, s *session, port int) (string, []string, []string, error) {
				return s.llama(ctx, build, port)
			},
		})
	}
	for _, t := range []engine{
		{name: "openai", window: 4096, lines: []string{"engine: openai", "window: 4096", "sizes: {bytes_per_token: 4}"}},
		{name: "llamacpp-11549", can: "slots cache", window: 2048, lines: []string{"engine: llamacpp"}},
	} {
		t.command = func(_ context.Context, s *session, port int) (string, []string, []string, error) {
			return s.bin, nil, []string{"twin", "--engine", strings.TrimPrefix(t.name, "twin-"), "--listen", address(port), "--pace", "20ms"}, nil
		}
		t.name, t.model, t.health = "twin-"+t.name, "twin", "/v1/models"
		all = append(all, t)
	}
	return all
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// llama installs a build of llama.cpp and makes the command that starts it. Its model's own
// template knows no tools, so it is given one that does.
func (s *session) llama(ctx context.Context, build string, port int) (program string, env, args []string, err error) {
	folder, err := filepath.Abs("../llamacpp")
	if err != nil {
		return "", nil, nil, err
	}
	template, err := filepath.Abs("session/tools.jinja")
	if err != nil {
		return "", nil, nil, err
	}
	var said bytes.Buffer
	install := exec.CommandContext(ctx, filepath.Join(folder, "install.sh"), build)
	install.Stderr = &said
	out, err := install.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == exitMissing {
		return "", nil, nil, fmt.Errorf("%w: %s", errMissing, strings.TrimSpace(said.String()))
	} else if err != nil {
		return "", nil, nil, fmt.Errorf("install: %w: %s", err, strings.TrimSpace(said.String()))
	}
	facts := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		facts[name] = value
	}
	model := []string{"--model", facts["MODEL"], "--alias", "smol", "--port", strconv.Itoa(port), "--parallel", "2", "--threads", "1"}
	if build == "10434" {
		return facts["SERVER_10434"], nil, append(model, "--host", "127.0.0.1", "--ctx-size", "4096", "--metrics", "--slots", "--no-webui",
			"--chat-template-file", template), nil
	}
	return facts["PYTHON"], []string{"PYTHONPATH=" + facts["SITE_11549"]},
		append([]string{"session/template.py", template, filepath.Join(folder, "serve.py"), "--ctx", "4096"}, model...), nil
}

// session is one run of session.mjs: an engine, the witness, the gateway and the script.
type session struct {
	bin     string
	dir     string // scratch: logs, configuration and keys
	running []*child
}

// child is a program that the session has started.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   string
	done  chan struct{}
	err   error // how it ended; read it once done is closed
}

// throughGateway runs the session with the npm package against one engine.
func throughGateway(ctx context.Context, bin string, e engine) (err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bulkhead-sdk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &session{bin: bin, dir: dir}
	defer func() { err = errors.Join(err, s.stop()) }()

	port, err := freePort()
	if err != nil {
		return err
	}
	program, env, args, err := e.command(ctx, s, port)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.start("engine", program, env, args); err != nil {
		return err
	}
	direct := &url.URL{Scheme: "http", Host: address(port)}
	if err := s.ready(ctx, direct.JoinPath(e.health).String()); err != nil {
		return err
	}
	w, err := newWitness(direct)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	front, keys, err := s.serve(ctx, e, w.url)
	if err != nil {
		return err
	}
	fmt.Printf("== %s through bulkhead serve, ready in %.1f s\n", e.name, time.Since(began).Seconds())
	ctx, cancel := context.WithTimeout(ctx, sessionLimit)
	defer cancel()
	script := exec.CommandContext(ctx, "node", "session.mjs")
	script.Env = append(os.Environ(), "BASE_URL="+front+"/v1", "KEYS="+strings.Join(keys, " "), "WITNESS_URL="+w.url,
		"ENGINE_URL="+direct.String(), "ENGINE_MODEL="+e.model, "ENGINE_CAN="+e.can, "WINDOW="+strconv.Itoa(e.window))
	script.Stdout, script.Stderr = os.Stdout, os.Stderr
	if err := script.Run(); err != nil {
		return fmt.Errorf("session.mjs against %s: %w", e.name, err)
	}
	return nil
}

// freePort returns a port of loopback at which nobody listens.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// tenants of the configuration; the last may have one request in progress.
const tenants = 3

// serve writes a configuration with fresh keys and starts the gateway with it.
func (s *session) serve(ctx context.Context, e engine, node string) (front string, keys []string, err error) {
	var ports [2]int
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return "", nil, err
		}
	}
	secret := func(name, prefix string, size int) (string, error) {
		b := make([]byte, size)
		rand.Read(b)
		text := prefix + hex.EncodeToString(b)
		return text, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600)
	}
	for _, name := range []string{"pepper", "domain"} {
		if _, err := secret(name, "", 32); err != nil {
			return "", nil, err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "listen: %s\nadmin: {listen: %q}\npepper: file:pepper\ndomain_key: file:domain\n", address(ports[0]), address(ports[1]))
	fmt.Fprintf(&b, "models:\n  - name: small\n    served: %s\n    nodes: [{url: %q}]\n", e.model, node)
	for _, line := range e.lines {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	b.WriteString("tenants:\n")
	for i := range tenants {
		name := "tenant" + strconv.Itoa(i)
		key, err := secret(name, "bk-", 16)
		if err != nil {
			return "", nil, err
		}
		keys = append(keys, key)
		fmt.Fprintf(&b, "  - id: %s\n    keys: [{key: \"file:%s\"}]\n    models: [small]\n", name, name)
	}
	b.WriteString("    in_flight: 1\n")
	if err := os.WriteFile(filepath.Join(s.dir, "serve.yaml"), []byte(b.String()), 0o600); err != nil {
		return "", nil, err
	}
	if err := s.start("gateway", s.bin, nil, []string{"serve", "--config", filepath.Join(s.dir, "serve.yaml")}); err != nil {
		return "", nil, err
	}
	return "http://" + address(ports[0]), keys, s.ready(ctx, "http://"+address(ports[1])+"/readyz")
}

// start starts a program; what it prints goes to a log in the scratch directory.
func (s *session) start(name, program string, env, args []string) error {
	log := filepath.Join(s.dir, name+".log")
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	if name == "gateway" {
		cmd.Dir = s.dir // where the files of its secrets are
	}
	cmd.Stdout, cmd.Stderr = f, f
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c := &child{name: name, cmd: cmd, stdin: stdin, log: log, done: make(chan struct{})}
	go func() { // ends with the program, which stop ends
		c.err = cmd.Wait()
		close(c.done)
	}()
	s.running = append(s.running, c)
	return nil
}

// ready waits until the URL answers 200.
func (s *session) ready(ctx context.Context, where string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	last := s.running[len(s.running)-1]
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
		if err != nil {
			return err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-last.done:
			return fmt.Errorf("%s ended before it was ready:\n%s", last.name, last.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time:\n%s", last.name, last.tail())
		case <-tick.C:
		}
	}
}

// tail is the end of what the program printed.
func (c *child) tail() string {
	b, _ := os.ReadFile(c.log) // no log says nothing
	return string(b[max(0, len(b)-2000):])
}

// stop ends all programs, the youngest first. A gateway that ends badly, or a program that
// must be killed, is an error.
func (s *session) stop() error {
	var problems []error
	for i := len(s.running) - 1; i >= 0; i-- {
		c := s.running[i]
		select {
		case <-c.done:
			problems = append(problems, fmt.Errorf("%s had ended: %v\n%s", c.name, c.err, c.tail()))
			continue
		default:
		}
		_ = c.cmd.Process.Signal(os.Interrupt) // done tells whether it helped
		_ = c.stdin.Close()
		limit := time.NewTimer(stopLimit)
		select {
		case <-c.done:
			if c.name == "gateway" && c.err != nil {
				problems = append(problems, fmt.Errorf("gateway did not end well: %w\n%s", c.err, c.tail()))
			}
		case <-limit.C:
			problems = append(problems, fmt.Errorf("%s did not end and was killed", c.name), c.cmd.Process.Kill())
			<-c.done
		}
		limit.Stop()
	}
	return errors.Join(problems...)
}
