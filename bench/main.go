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
	if err := bench(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// settings are what the scenarios are told.
type settings struct {
	scale   float64 // of all counts
	long    int     // requests with a prompt of 8k tokens
	profile string  // folder for profiles, or empty
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
	run        func(context.Context, settings) ([]figure, error)
}

func scenarios() []scenario {
	return []scenario{
		{"guards", "the embedded engine, guards on against off, paired", guards},
		{"latency", "a stream beside hand-offs, guards on against off, paired", latency},
		{"share", "what the checks take of a whole request", share},
		{"transfer", "pages over loopback TCP against a bare Go copy", transfer},
		{"gateway", "small requests through the gateway's PD route", gatewayLoad},
		{"stream", "streams through the gateway's PD route", streamLoad},
		{"large", "a 4 MB prompt through the gateway's PD route", largeLoad},
	}
}

// bench is the program.
func bench(ctx context.Context, args []string, out, errs io.Writer) error {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errs)
	quick := f.Bool("quick", false, "a twentieth of the work: shows that it runs, measures nothing well")
	long := f.Bool("8k", true, "measure the share of a request of 8k tokens too (about half a minute)")
	jsonTo := f.String("json", "", "write the report as JSON to this file")
	outTo := f.String("out", "", "write latest.md and latest.json to this folder")
	profile := f.String("profile", "", "write processor profiles to this folder; what runs is then slower")
	f.Usage = func() {
		fmt.Fprintln(errs, "usage: go run ./bench [flags] [scenario...]")
		for _, s := range scenarios() {
			fmt.Fprintf(errs, "  %-9s %s\n", s.name, s.what)
		}
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(f.Args())
	if err != nil {
		return err
	}
	s := settings{scale: 1, long: fewest, profile: *profile}
	if *quick {
		s.scale, s.long = 0.05, 1
	}
	if !*long {
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
	return r.deliver(out, *jsonTo, *outTo)
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
	if s.profile != "" {
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
	ctx, cancel := context.WithTimeoutCause(ctx, scenarioTime, errScenario)
	defer cancel()
	defer time.AfterFunc(scenarioTime+10*time.Second, func() {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) // it is of use only if it can be written
		os.Exit(exitStuck)
	}).Stop()
	start, others := time.Now(), watchNeighbours()
	figures, err := c.run(ctx, s)
	if errors.Is(context.Cause(ctx), errScenario) {
		err = errors.Join(errScenario, err)
	}
	if err != nil {
		return err
	}
	r.Scenarios = append(r.Scenarios, section{
		Name: c.name, What: c.what, Elapsed: time.Since(start).Milliseconds(), Others: others.share(), Figures: figures,
	})
	return nil
}
