// Command bench measures what Bulkhead costs: each figure against a reference in
// the same run, on the same machine. See bench/README.md.
//
// It promises bounded work that ends by itself and stays on loopback, an interval
// with every estimate, a control where a difference is small, and no verdict where
// the noise allows none.
//
// What must not come in: a timed test, a figure without its reference, a way to
// serve anybody.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if isChild(os.Args) {
		os.Exit(childMain(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	args, inside, err := within(os.Args[1:])
	if err == nil {
		err = bench(ctx, args, inside, os.Stdout, os.Stderr)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// within tells whether this is the inner program, in a network of its own, which it then
// sets up, and returns the arguments that are the user's.
func within(args []string) ([]string, *foreign, error) {
	if len(args) < 2 || args[0] != insideFlag {
		return args, nil, nil
	}
	f := &foreign{}
	if err := json.Unmarshal([]byte(args[1]), f); err != nil {
		return nil, nil, err
	}
	return args[2:], f, loopback()
}

// settings are what the scenarios are told.
type settings struct {
	scale   float64   // of all counts
	long    int       // requests with a prompt of 8k tokens
	profile string    // folder for profiles, or empty
	only    string    // rows of the comparison of gateways, or empty for all
	foreign foreign   // programs that are not this one
	says    io.Writer // progress
}

// count scales a number of repetitions; it is at least 1.
func (s settings) count(n int) int { return max(1, int(float64(n)*s.scale)) }

// repeat calls once up to n times. Once limit has passed it stops, but not before
// there are enough samples for a verdict: a busy machine costs certainty, not time.
func repeat(ctx context.Context, n int, limit time.Duration, once func(i int) error) error {
	start := time.Now()
	for i := range n {
		if i >= fewest && time.Since(start) > limit {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := once(i); err != nil {
			return err
		}
	}
	return nil
}

// scenario is one group of figures.
type scenario struct {
	name, what string
	run        func(context.Context, settings) (found, error)
	limit      time.Duration // on the busiest machine
}

// alone makes a scenario of one that finds figures only.
func alone(run func(context.Context, settings) ([]figure, error)) func(context.Context, settings) (found, error) {
	return func(ctx context.Context, s settings) (found, error) {
		figures, err := run(ctx, s)
		return found{Figures: figures}, err
	}
}

// gatewayName is the scenario that compares programs.
const gatewayName = "gateway"

func scenarios() []scenario {
	return []scenario{
		{"guards", "the embedded engine, guards on against off, paired", alone(guards), scenarioTime},
		{"latency", "a stream beside hand-offs, guards on against off, paired", alone(latency), scenarioTime},
		{"share", "what the checks take of a whole request", alone(share), scenarioTime},
		{"transfer", "pages over loopback TCP against a bare Go copy", alone(transfer), scenarioTime},
		{gatewayName, "the gateway beside nginx, bare Go proxies and other routers, in front of the same two workers", gatewayLoad, gatewayTime},
	}
}

// options are the flags.
type options struct {
	quick, long, routers               bool
	jsonTo, outTo, docs, profile, only string
	bulkhead                           string
}

// read reads the arguments.
func (o *options) read(args []string, errs io.Writer) ([]scenario, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errs)
	f.BoolVar(&o.quick, "quick", false, "a twentieth of the work: shows that it runs, measures nothing well")
	f.BoolVar(&o.long, "8k", true, "measure the share of a request of 8k tokens too (about half a minute)")
	f.StringVar(&o.jsonTo, "json", "", "write the report as JSON to this file")
	f.StringVar(&o.outTo, "out", "", "write latest.md and latest.json to this folder")
	f.StringVar(&o.docs, "docs", "docs", "write benchmarks.md and its chart to this folder, if gateway ran in full; empty: nowhere")
	f.StringVar(&o.profile, "profile", "", "write processor profiles to this folder; what runs is then slower, and -docs is nowhere")
	f.StringVar(&o.only, "rows", "", "only these rows of gateway, such as plain_c1,pd_large; -docs is then nowhere")
	f.StringVar(&o.bulkhead, "bulkhead", "", "the program to measure in gateway (default: built from this tree)")
	f.BoolVar(&o.routers, "routers", true, "compare with other routers in gateway; they are installed once, outside the tree")
	f.Usage = func() {
		fmt.Fprintln(errs, "usage: go run ./bench [flags] [scenario...]")
		for _, s := range scenarios() {
			fmt.Fprintf(errs, "  %-9s %s\n", s.name, s.what)
		}
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.only != "" {
		for _, id := range strings.Split(o.only, ",") {
			if !slices.ContainsFunc(rows(), func(r row) bool { return r.id == id }) {
				return nil, fmt.Errorf("bench: no row %q", id)
			}
		}
	}
	if o.quick || o.profile != "" || o.only != "" {
		o.docs = ""
	}
	return choose(f.Args())
}

// bench is the program. inside is what an outer one has found, or nil.
func bench(ctx context.Context, args []string, inside *foreign, out, errs io.Writer) error {
	var o options
	chosen, err := o.read(args, errs)
	if err != nil {
		return err
	}
	s := settings{scale: 1, long: fewest, profile: o.profile, only: o.only, says: errs}
	compares := slices.ContainsFunc(chosen, func(c scenario) bool { return c.name == gatewayName })
	if !compares {
		o.docs = ""
	}
	if inside != nil {
		s.foreign = *inside
	} else if compares {
		done, err := o.prepare(ctx, args, &s)
		defer func() { _ = os.RemoveAll(s.foreign.Scratch) }() // scratch
		if done || err != nil {
			return err
		}
	}
	if o.quick {
		s.scale, s.long = 0.05, 1
	}
	if !o.long {
		s.long = 0
	}
	if s.profile != "" {
		if s.profile, err = filepath.Abs(s.profile); err != nil {
			return err
		}
		if err := os.MkdirAll(s.profile, 0o755); err != nil {
			return err
		}
	}
	r := newReport(strings.Join(append([]string{"go run ./bench"}, args...), " "))
	for _, c := range chosen {
		fmt.Fprintf(errs, "%s: %s ...\n", c.name, c.what)
		if err := r.run(ctx, c, s); err != nil {
			return fmt.Errorf("bench: %s: %w", c.name, err)
		}
	}
	r.finish()
	return r.deliver(out, o.jsonTo, o.outTo, o.docs)
}

// prepare finds the programs that are compared, and runs this program again in a network
// of its own. If none can be made it is not done: the measurement goes on here, without
// those who need it.
func (o *options) prepare(ctx context.Context, args []string, s *settings) (done bool, err error) {
	which := withRouters
	if !o.routers {
		which = withoutRouters
	}
	if s.foreign.Scratch, err = os.MkdirTemp("", "bulkhead-bench-"); err != nil {
		return false, err
	}
	if s.foreign, err = find(ctx, s.foreign.Scratch, o.bulkhead, which, s.says); err != nil {
		return false, err
	}
	if which == withoutRouters {
		return false, nil
	}
	made, err := isolate(ctx, s.foreign, args)
	if made {
		return true, err
	}
	fmt.Fprintf(s.says, "!! no network namespace can be made (%v): routers that bind every interface are left out\n", err)
	for name := range s.foreign.Programs {
		if name != nameNginx {
			delete(s.foreign.Programs, name)
			s.foreign.Missing[name] = "no network namespace can be made here, and it would bind every interface"
		}
	}
	return false, nil
}

// choose finds scenarios by name; none means all.
func choose(names []string) ([]scenario, error) {
	all := scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []scenario
	for _, n := range names {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == n })
		if i < 0 {
			return nil, fmt.Errorf("bench: no scenario %q", n)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// scenarioTime is how long a scenario may take on the busiest machine. One that
// does not even end when it is told to is a fault, and its goroutines are shown.
const (
	scenarioTime = 3 * time.Minute
	exitStuck    = 3
)

var errScenario = errors.New("bench: the scenario did not end in time")

// run runs a scenario and adds what it found.
func (r *report) run(ctx context.Context, c scenario, s settings) error {
	if s.profile != "" && c.name != gatewayName { // which does its work elsewhere
		f, err := os.Create(filepath.Join(s.profile, c.name+".pprof"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, errScenario)
	defer cancel()
	defer time.AfterFunc(c.limit+10*time.Second, func() {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) // it is of use only if it can be written
		os.Exit(exitStuck)
	}).Stop()
	start, others := time.Now(), watchNeighbours()
	what, err := c.run(ctx, s)
	if errors.Is(context.Cause(ctx), errScenario) {
		err = errors.Join(errScenario, err)
	}
	if err != nil {
		return err
	}
	r.Scenarios = append(r.Scenarios, section{
		Name: c.name, What: c.what, Elapsed: time.Since(start).Milliseconds(), Others: others.share(), found: what,
	})
	return nil
}
