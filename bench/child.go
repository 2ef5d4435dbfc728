package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime/pprof"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/gateway"
)

// serveFlag, first among the arguments, makes this program one server of a
// measurement: what it costs is then its own process's, and no other's.
const serveFlag = "-serve"

// served is what a child is told, as JSON in its second argument.
type served struct {
	Role            string // prefill, decode or plain (a leg), proxy, floor
	Prefill, Decode string // URLs of the legs; a proxy has only decode
	Profile         string // file for a profile of the processor, or empty
}

// greeting is the first line that a child writes.
type greeting struct {
	Addr string `json:"addr"` // where it listens
}

func isChild(args []string) bool { return len(args) == 3 && args[1] == serveFlag }

// childMain runs a child to its end and returns its exit code.
func childMain(arg string) int {
	if err := serveChild(arg, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveChild is the whole life of a child: it ends when its input does.
func serveChild(arg string, in io.Reader, out io.Writer) error {
	var s served
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return err
	}
	h, err := s.handler()
	if err != nil {
		return err
	}
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	srv := gateway.Server(h)
	defer func() { _ = srv.Close() }()      // nobody is served any more
	serving.Go(func() { _ = srv.Serve(l) }) // it says that it was closed
	if err := json.NewEncoder(out).Encode(greeting{l.Addr().String()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// handler makes what the child serves.
func (s *served) handler() (http.Handler, error) {
	switch s.Role {
	case legPrefill, legDecode, legPlain:
		return newLeg(s.Role)
	case "proxy":
		to, err := url.Parse(s.Decode)
		if err != nil {
			return nil, err
		}
		return bareProxy(to), nil
	case "floor":
		return &floor{client(), s.Prefill, s.Decode}, nil
	}
	return nil, fmt.Errorf("bench: no such server: %.20q", s.Role)
}

// child is such a process, seen from its parent.
type child struct {
	greeting
	cmd *exec.Cmd
	in  io.WriteCloser
}

// childTime is how long a child may take to end.
const childTime = 5 * time.Second

// startChild starts this program as a server. ctx kills it.
func startChild(ctx context.Context, s served) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, serveFlag, string(arg))
	cmd.Stderr, cmd.WaitDelay = os.Stderr, childTime
	ownGroup(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in}
	if err := json.NewDecoder(out).Decode(&c.greeting); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: start %s: %w", s.Role, err), c.stop())
	}
	return c, nil
}

// stop ends a child and waits for it.
func (c *child) stop() error {
	_ = c.in.Close() // it is what tells the child; a child that is gone needs no telling
	kill := time.AfterFunc(childTime, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	return c.cmd.Wait()
}
