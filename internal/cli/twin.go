package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/twin"
)

// twinFlags are the flags of bulkhead twin.
type twinFlags struct {
	engine, version, role, model, key string
	listen, faults                    repeated
	pool                              string
	window                            int
	pace, lease                       time.Duration
	list                              bool
}

// runTwin is bulkhead twin.
func runTwin(ctx context.Context, sys System, args []string) error {
	var o twinFlags
	f := flags(sys, "twin", "run a scripted engine that behaves like a named one\n"+
		"and misbehaves on demand. It is for tests, and remembers what it is sent.\n"+
		"usage: bulkhead twin --engine NAME [flags]\n"+
		"GET /twin/log shows what it was sent, POST /twin/fault?name=NAME arms a fault.")
	f.StringVar(&o.engine, "engine", "", "the `NAME` of the engine, with its version: see --list")
	f.StringVar(&o.version, "version", "", "the version, if it is not in --engine")
	f.StringVar(&o.role, "role", "", "plain, or pair: a prefill and a decode engine (default pair where there is one)")
	f.Var(&o.listen, "listen", "`HOST:PORT`; twice for a pair (default free ports on 127.0.0.1)")
	f.StringVar(&o.model, "model", "twin", "the served name")
	f.StringVar(&o.pool, "pool", "4096", "tokens that the pool holds; two numbers with a comma for prefill and decode")
	f.IntVar(&o.window, "window", 4096, "the context length, in tokens")
	f.DurationVar(&o.pace, "pace", 0, "time between two words of a stream")
	f.DurationVar(&o.lease, "lease", 0, "how long prefill keeps what decode has not fetched (vLLM; default 30s)")
	f.StringVar(&o.key, "api-key", "", "the bearer key that it wants")
	f.Var(&o.faults, "fault", "NAME or NAME:COUNT, at decode or the plain engine, or prefill/NAME; may be repeated")
	f.BoolVar(&o.list, "list", false, "list the engines and the faults, and stop")
	if err := parse(f, args); err != nil {
		return err
	}
	if o.list {
		return listTwins(sys)
	}
	twins, err := o.make()
	if err != nil {
		return err
	}
	return o.serve(ctx, sys, twins)
}

func listTwins(sys System) error {
	var b strings.Builder
	b.WriteString("engines:\n")
	for _, p := range twin.Profiles() {
		kind := "plain"
		if p.Pairs {
			kind = "plain, pair"
		}
		fmt.Fprintf(&b, "  %-16s %-12s %s\n", p.Name, kind, p.Says)
	}
	b.WriteString("\nfaults:\n")
	for _, x := range twin.Faults() {
		fmt.Fprintf(&b, "  %-16s %s\n", x.Name, x.Does)
	}
	_, err := sys.Stdout.Write([]byte(b.String()))
	return err
}

// make makes one twin, or prefill and decode.
func (o *twinFlags) make() ([]*twin.Twin, error) {
	name := o.engine
	if o.version != "" {
		name += "-" + o.version
	}
	all := twin.Profiles()
	i := slices.IndexFunc(all, func(p twin.Profile) bool { return p.Name == name })
	if i < 0 {
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
		}
		return nil, usage("--engine: want one of %s", strings.Join(names, ", "))
	}
	pools, err := o.pools()
	if err != nil {
		return nil, err
	}
	options := twin.Options{Model: o.model, Window: o.window, Pool: pools[0], Pace: o.pace, Lease: o.lease, Key: o.key}
	var twins []*twin.Twin
	switch {
	case o.role == "pair" || o.role == "" && all[i].Pairs:
		second := options
		second.Pool = pools[1]
		p, d, err := twin.Pair(name, options, second)
		if err != nil {
			return nil, usage("--role: %s has no pair", name)
		}
		twins = []*twin.Twin{p, d}
	case o.role == "plain" || o.role == "":
		t, err := twin.New(name, options)
		if err != nil {
			return nil, err
		}
		twins = []*twin.Twin{t}
	default:
		return nil, usage("--role: want plain or pair")
	}
	if len(o.listen) > len(twins) {
		return nil, usage("--listen: there are more addresses than engines")
	}
	return twins, o.arm(twins)
}

func (o *twinFlags) pools() (pools [2]int, err error) {
	first, second, two := strings.Cut(o.pool, ",")
	if !two {
		second = first
	}
	for i, text := range [...]string{first, second} {
		if pools[i], err = strconv.Atoi(text); err != nil || pools[i] <= 0 {
			return pools, usage("--pool: want tokens above zero, such as 512, or 512,4096 for prefill and decode")
		}
	}
	return pools, nil
}

// arm arms the faults that are to happen from the start.
func (o *twinFlags) arm(twins []*twin.Twin) error {
	for _, text := range o.faults {
		at := twins[len(twins)-1]
		if rest, prefill := strings.CutPrefix(text, "prefill/"); prefill {
			text, at = rest, twins[0]
		}
		name, times, counted := strings.Cut(text, ":")
		n := -1 // always
		if counted {
			var err error
			if n, err = strconv.Atoi(times); err != nil || n <= 0 {
				return usage("--fault: want NAME or NAME:COUNT")
			}
		}
		if err := at.Arm(name, n); err != nil {
			return usage("--fault: there is no fault %q; see --list", name)
		}
	}
	return nil
}

// serve runs the twins until ctx ends. Its requests are cut then: it is no engine that
// somebody waits for.
func (o *twinFlags) serve(ctx context.Context, sys System, twins []*twin.Twin) error {
	var all sync.WaitGroup
	defer all.Wait()
	failed := make(chan error, len(twins))
	names := []string{"engine"}
	if len(twins) == 2 {
		names = []string{"prefill", "decode"}
	}
	for i, t := range twins {
		addr := "127.0.0.1:0"
		if i < len(o.listen) {
			addr = o.listen[i]
		}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return usage("--listen: cannot listen on %s: %v", addr, cause(err))
		}
		srv := &http.Server{
			Handler: t, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerMax,
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		}
		defer func() { _ = srv.Close() }() // whoever still waits is cut
		all.Go(func() {
			if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
		fmt.Fprintf(sys.Stdout, "%-8s http://%s\n", names[i], ln.Addr())
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}
