package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead.dev/bulkhead/internal/config"
)

// documentEnd ends the configuration on a child's standard input. The input
// stays open as long as the parent lives.
const documentEnd = "...\n"

// Backoff of a child that ends.
const (
	restartFirst = 200 * time.Millisecond
	restartMost  = 5 * time.Second
	restartCalm  = 10 * time.Second // a life that resets the backoff
	stopTime     = 10 * time.Second // between asking a child to stop and killing it
)

// child is a worker process of bulkhead up.
type child struct {
	name   string
	config []byte
	stderr *lineWriter // what the supervisor says
	output io.Writer   // what the child says
	listen *os.File    // of its HTTP side; passed on to every life of it
	pid    atomic.Int64
}

// firstPassed is the number under which a child finds the file that was passed
// on to it.
const firstPassed = 3

// newChild makes a child that serves HTTP on ln, which stays open, with nobody
// to answer, while the child is dead.
func newChild(c config.Worker, ln net.Listener, stderr *lineWriter, verbose bool) (*child, error) {
	file, err := handOver(ln)
	if err != nil {
		return nil, fmt.Errorf("cli: listener of %s: %w", c.Name, err)
	}
	if file != nil {
		c.Listen = inherited
	}
	data, err := config.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("cli: configuration of %s: %w", c.Name, err)
	}
	ch := &child{listen: file, name: c.Name, config: append(data, documentEnd...), stderr: stderr, output: io.Discard}
	if verbose {
		ch.output = stderr
	}
	return ch, nil
}

// supervise keeps the child running until ctx ends, then stops it and waits.
func (c *child) supervise(ctx context.Context) {
	wait := restartFirst
	for ctx.Err() == nil {
		start := time.Now()
		err := c.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > restartCalm {
			wait = restartFirst
		}
		c.stderr.line("worker %s ended (%v); starting it again in %v", c.name, err, wait)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		wait = min(2*wait, restartMost)
	}
}

// run is one life of the child. Its standard input carries the configuration,
// and its end tells the child to stop: also when the parent dies without a word.
func (c *child) run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "worker", "--config", "-")
	cmd.Stdout, cmd.Stderr = c.output, c.output
	if c.listen != nil {
		cmd.ExtraFiles = []*os.File{c.listen}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.pid.Store(int64(cmd.Process.Pid))
	done := make(chan error, 1)
	go func() {
		_, err := in.Write(c.config)
		if err != nil {
			_ = cmd.Process.Kill() // it cannot work without its configuration
		}
		done <- cmd.Wait()
	}()
	select {
	case err := <-done:
		_ = in.Close()
		if err == nil {
			return errors.New("exit status 0")
		}
		return err
	case <-ctx.Done():
	}
	_ = in.Close()
	kill := time.AfterFunc(stopTime, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	return <-done
}

// fromParentInput reads a configuration that a parent sends, and returns a
// context that ends when the parent closes the pipe.
func fromParentInput(ctx context.Context, r io.Reader) (context.Context, context.CancelFunc, io.Reader, error) {
	br := bufio.NewReader(io.LimitReader(r, 2*config.MaxFile))
	var doc strings.Builder
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return nil, nil, nil, fmt.Errorf("cli: configuration from the parent: %w", err)
		}
		if line == documentEnd {
			break
		}
		doc.WriteString(line)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the pipe; the process does not outlive it by more than its shutdown
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx, cancel, strings.NewReader(doc.String()), nil
}

// lineWriter writes whole lines of several processes to one writer.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (l *lineWriter) line(format string, args ...any) {
	_, _ = fmt.Fprintf(l, format+"\n", args...)
}
