package main

import (
	"bufio"
	"context"
	"crypto/rand"
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
	"bulkhead.dev/bulkhead/wire"
)

// serveFlag, first among the arguments, makes this program one server of a
// measurement: what it costs is then its own process's, and no other's.
const serveFlag = "-serve"

// served is what a child is told, as JSON in its second argument.
type served struct {
	Role            string // legs, proxy, floor, gateway
	Looks           looks  // of legs
	Prefill, Decode string // URLs of the legs
	Profile         string // file for a profile of the processor, or empty
}

// greeting is the first line that a child writes.
type greeting struct {
	Addrs []string `json:"addrs"` // where it listens; of legs: prefill's, decode's
	Key   string   `json:"key"`   // of the gateway's one tenant
}

// usage is what a child has used so far; it writes one for every line that it reads.
type usage struct {
	CPU      time.Duration `json:"cpu_ns"`
	PeakRSS  int64         `json:"peak_rss_bytes"`
	RSSKnown bool          `json:"rss_known"`
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
	handlers, key, stop, err := s.handlers()
	if err != nil {
		return err
	}
	defer stop()
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
	hello := greeting{Key: key}
	var serving sync.WaitGroup
	defer serving.Wait()
	for _, h := range handlers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		srv := gateway.Server(h)
		defer func() { _ = srv.Close() }()      // nobody is served any more
		serving.Go(func() { _ = srv.Serve(l) }) // it says that it was closed
		hello.Addrs = append(hello.Addrs, l.Addr().String())
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode(hello); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		u := usage{CPU: processCPU()}
		u.PeakRSS, u.RSSKnown = peakRSS()
		if err := enc.Encode(u); err != nil {
			return err
		}
	}
	return nil
}

// handlers makes what the child serves.
func (s *served) handlers() (all []http.Handler, key string, stop func(), err error) {
	stop = func() {}
	switch s.Role {
	case "legs":
		for _, role := range [...]string{"prefill", "decode"} {
			l, err := newLeg(role, s.Looks)
			if err != nil {
				return nil, "", stop, err
			}
			all = append(all, l)
		}
	case "proxy":
		to, err := url.Parse(s.Decode)
		if err != nil {
			return nil, "", stop, err
		}
		all = append(all, bareProxy(to))
	case "floor":
		all = append(all, &floor{client(), s.Prefill, s.Decode})
	case "gateway":
		g, key, stop, err := newGateway(s.Prefill, s.Decode)
		return []http.Handler{g}, key, stop, err
	default:
		err = fmt.Errorf("bench: no such server: %.20q", s.Role)
	}
	return all, "", stop, err
}

// nobody takes events and keeps nothing.
type nobody struct{}

// Request implements [gateway.Events].
func (nobody) Request(gateway.RequestEvent) {}

// newGateway makes a gateway over a pair of legs, with one tenant, as bulkhead up
// configures it.
func newGateway(prefill, decode string) (*gateway.Gateway, string, func(), error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	passer, err := wire.NewPasser(secret)
	if err != nil {
		return nil, "", func() {}, err
	}
	key, hash, err := gateway.NewKey(rand.Reader, secret)
	if err != nil {
		return nil, "", func() {}, err
	}
	g, err := gateway.New(gateway.Config{
		Tenants: []gateway.Tenant{{ID: "bench", Keys: []gateway.KeyHash{hash}, Models: []string{"recall"}}},
		Models: []gateway.Model{{
			Name: "recall", Sizes: gateway.Sizes{BytesPerToken: 1, PerMessage: 2, PerRequest: 1},
			Pairs: []gateway.Pair{{BootstrapHost: "127.0.0.1", Prefill: gateway.Leg{URL: prefill}, Decode: gateway.Leg{URL: decode}}},
		}},
		Pepper: secret, DomainKey: secret, Passer: passer, Events: nobody{}, Random: rand.Reader, Clock: gateway.SystemClock{},
	})
	if err != nil {
		return nil, "", func() {}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { g.Run(ctx); close(done) }()
	g.Refresh(ctx) // it knows its pair when it begins to listen
	return g, key, func() { cancel(); <-done }, nil
}

// child is such a process, seen from its parent.
type child struct {
	greeting
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
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
	c := &child{cmd: cmd, in: in, out: json.NewDecoder(out)}
	if err := c.out.Decode(&c.greeting); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: start %s: %w", s.Role, err), c.stop())
	}
	return c, nil
}

// used asks a child what it has used.
func (c *child) used() (usage, error) {
	var u usage
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return u, err
	}
	err := c.out.Decode(&u)
	return u, err
}

// stop ends a child and waits for it.
func (c *child) stop() error {
	_ = c.in.Close() // it is what tells the child; a child that is gone needs no telling
	kill := time.AfterFunc(childTime, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	return c.cmd.Wait()
}
