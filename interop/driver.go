package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// driver holds what one part has running.
type driver struct {
	settings
	peer string
	dir  string // scratch: logs and configuration
	out  io.Writer
	http *http.Client

	mu      sync.Mutex
	running []*process
	taken   map[int]bool
	keep    bool
}

func newDriver(set settings, peer string, out io.Writer) (*driver, error) {
	dir, err := os.MkdirTemp("", "bulkhead-interop-"+peer+"-")
	if err != nil {
		return nil, fmt.Errorf("interop: make scratch directory: %w", err)
	}
	return &driver{settings: set, peer: peer, dir: dir, out: out, taken: map[int]bool{},
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}}, nil
}

// say tells what happens next.
func (d *driver) say(format string, args ...any) {
	fmt.Fprintf(d.out, "   "+format+"\n", args...)
}

// port returns a port of loopback that nobody listens at, and that it returns once.
func (d *driver) port() (int, error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("interop: find a free port: %w", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		d.mu.Lock()
		fresh := !d.taken[port]
		d.taken[port] = true
		d.mu.Unlock()
		if fresh {
			return port, nil
		}
	}
	return 0, errors.New("interop: find a free port: none")
}

// process is a program in a process group of its own.
type process struct {
	name  string
	log   string // its output
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when it has been waited for
}

// start starts a program in a process group of its own, with its output in a log file
// and a standard input that ends when we do. env is added to our own environment.
func (d *driver) start(name, program string, env []string, args ...string) (*process, error) {
	log := filepath.Join(d.dir, name+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("interop: start %s: %w", name, err)
	}
	defer f.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Dir = d.dir
	cmd.Stdout, cmd.Stderr = f, f
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("interop: start %s: %w", name, err)
	}
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("interop: start %s: %w", name, err)
	}
	p := &process{name: name, log: log, cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	d.mu.Lock()
	d.running = append(d.running, p)
	d.mu.Unlock()
	return p, nil
}

// alive says whether the program still runs.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process group at once and waits for the program.
func (p *process) kill() {
	killGroup(p.cmd.Process.Pid)
	<-p.done
	p.stdin.Close()
}

// stop asks the program to end, and ends its group when the time is up.
func (p *process) stop(limit time.Duration) {
	askGroup(p.cmd.Process.Pid)
	select {
	case <-p.done:
	case <-time.After(limit):
	}
	p.kill()
}

// tail is the end of the program's output.
func (p *process) tail() string {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n      ")
}

// end ends every process group that still runs, the youngest first.
func (d *driver) end() {
	d.mu.Lock()
	running := d.running
	d.running = nil
	d.mu.Unlock()
	for i := len(running) - 1; i >= 0; i-- {
		running[i].stop(3 * time.Second)
	}
	d.http.CloseIdleConnections()
}

// forget removes the scratch directory.
func (d *driver) forget() {
	if !d.keep {
		_ = os.RemoveAll(d.dir) // what is left is in the directory for temporary files
	}
}

// ready waits until a URL answers 200, the program has died or the time is up.
func (d *driver) ready(ctx context.Context, p *process, url string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if d.status(ctx, url) == http.StatusOK {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("interop: %s ended before it was ready:\n      %s", p.name, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("interop: %s was not ready after %v:\n      %s", p.name, limit, p.tail())
		case <-tick.C:
		}
	}
}

// status is the status of a GET, 0 without an answer.
func (d *driver) status(ctx context.Context, url string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	response, err := d.http.Do(request)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	response.Body.Close()
	return response.StatusCode
}

// install runs the install script of a peer and returns the facts that it prints, one
// NAME=VALUE a line. Its exit code 3 is errMissing.
func (d *driver) install(ctx context.Context, script string, args ...string) (map[string]string, error) {
	began := time.Now()
	cmd := exec.CommandContext(ctx, filepath.Join(d.root, "interop", script), args...)
	var said strings.Builder
	cmd.Stderr = &said
	ownGroup(cmd)
	cmd.Cancel = func() error { killGroup(cmd.Process.Pid); return nil }
	out, err := cmd.Output()
	if err != nil {
		why := strings.TrimSpace(said.String())
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == exitMissing {
			return nil, fmt.Errorf("%w: %s (install: interop/%s %s)", errMissing, why, script, strings.Join(args, " "))
		}
		return nil, fmt.Errorf("interop: install by %s: %w: %s", script, err, why)
	}
	facts := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			facts[name] = value
		}
	}
	d.say("installed in %.1f s", time.Since(began).Seconds())
	return facts, nil
}
