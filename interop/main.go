// Command interop drives real engines: it installs a peer, starts it on loopback, holds
// it to what was recorded of it, runs the red-green cases straight at it and through
// `bulkhead serve`, and writes what it saw into docs/interop.md.
//
//	go run ./interop [flags] PEER...
//
// What it promises: every process is started in a group of its own and ended by it, also
// on failure and on an interrupt; nothing listens but on loopback; a peer that cannot be
// had is skipped aloud with the reason, and never counts as a pass. Exit codes: 0 all as
// expected, 1 something was not, 2 wrong usage, 3 a peer is missing. What must not come
// in: logic of the product.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitMissing = 3
)

// errMissing marks a peer that cannot be had or cannot run on this machine.
var errMissing = errors.New("missing")

// peer is one engine, or several builds of one.
type peer struct {
	name  string // of the target, and of its section
	title string
	// together: its parts are light enough to run at the same time.
	together bool
	// parts are what is run one after the other: builds, versions, pairs. Each has a
	// section of its own.
	parts []part
	// alone: it must be run in a network namespace of its own, because something in it
	// listens on every interface. prepare is the install script, which needs the network
	// and is run before.
	alone   bool
	prepare string
}

// part is one build or pair of a peer.
type part struct {
	name string
	// run installs, starts, tries and ends it. It reports into the section. An error that
	// is errMissing skips the part.
	run func(ctx context.Context, d *driver, s *section) error
}

// peers lists what can be driven.
func peers() []peer {
	return []peer{llamaPeer(), vllmPeer(), sglangPeer(), routersPeer(), transferPeer()}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// settings are the flags.
type settings struct {
	root    string // of the checkout
	bin     string // bulkhead
	page    string // where sections go; "" none
	record  bool   // write fixtures anew instead of comparing
	only    []string
	direct  bool        // no gateway
	through bool        // only through the gateway
	pen     *sync.Mutex // who holds it writes the page
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	set := settings{pen: new(sync.Mutex)}
	var only, parts string
	flags := flag.NewFlagSet("interop", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&set.root, "root", ".", "the checkout")
	flags.StringVar(&set.bin, "bin", "bin/bulkhead", "the program to drive, below the checkout unless absolute")
	flags.StringVar(&set.page, "page", "docs/interop.md", "the page that gets the section, below the checkout unless absolute; empty: none")
	flags.BoolVar(&set.record, "record", false, "write the recorded answers anew instead of holding the engine to them")
	flags.BoolVar(&set.direct, "direct", false, "only straight at the engine, without bulkhead; writes no page")
	flags.BoolVar(&set.through, "through", false, "only through bulkhead, not straight at the engine; writes no page")
	flags.StringVar(&only, "cases", "", "the cases to run, separated by commas; writes no page")
	flags.StringVar(&parts, "parts", "", "the parts of the peers to run, separated by commas; empty: all")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if only != "" {
		set.only = strings.Split(only, ",")
	}
	if set.direct || set.through || len(set.only) > 0 {
		set.page = ""
	}
	chosen, err := choose(flags.Args(), parts)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	if set.root, err = filepath.Abs(set.root); err != nil {
		fmt.Fprintln(stderr, "interop: find the checkout:", err)
		return exitUsage
	}
	if !filepath.IsAbs(set.bin) {
		set.bin = filepath.Join(set.root, set.bin)
	}
	if set.page != "" && !filepath.IsAbs(set.page) {
		set.page = filepath.Join(set.root, set.page)
	}
	if _, err := os.Stat(set.bin); err != nil && !set.direct {
		fmt.Fprintf(stderr, "interop: there is no %s: run make build first\n", set.bin)
		return exitUsage
	}
	if i := slices.IndexFunc(chosen, func(p peer) bool { return p.alone }); i >= 0 && !alone() {
		if len(chosen) > 1 {
			fmt.Fprintf(stderr, "interop: %s runs in a network namespace of its own: name no other peer beside it\n", chosen[i].name)
			return exitUsage
		}
		// What it cannot install it says again, and skips aloud, when it is run.
		prepare(ctx, set, chosen[i], stdout, stderr)
		return isolate(ctx, args, stdout, stderr)
	}
	code := exitOK
	for _, p := range chosen {
		if p.together {
			code = worse(code, driveTogether(ctx, set, p, stdout))
			continue
		}
		for _, one := range p.parts {
			code = worse(code, drive(ctx, set, p, one, stdout, stderr))
		}
	}
	return code
}

// driveTogether runs the parts of a peer at the same time. What each says comes when it
// has ended, the parts in their order.
func driveTogether(ctx context.Context, set settings, p peer, stdout io.Writer) int {
	said := make([]bytes.Buffer, len(p.parts))
	codes := make([]int, len(p.parts))
	done := make([]chan struct{}, len(p.parts))
	for i, one := range p.parts {
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			codes[i] = drive(ctx, set, p, one, &said[i], &said[i])
		}()
	}
	code := exitOK
	for i := range p.parts {
		<-done[i]
		_, _ = said[i].WriteTo(stdout)
		code = worse(code, codes[i])
	}
	return code
}

// worse picks the exit code of two parts: what failed is told before what is missing.
func worse(a, b int) int {
	if a == exitFailed || b == exitFailed {
		return exitFailed
	}
	return max(a, b)
}

// prepare runs the install script of a peer.
func prepare(ctx context.Context, set settings, p peer, stdout, stderr io.Writer) {
	d, err := newDriver(set, p.name, stdout)
	if err == nil {
		defer d.forget()
		_, err = d.install(ctx, p.prepare)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
}

// choose finds peers by name, with those of their parts that are wanted.
func choose(names []string, parts string) ([]peer, error) {
	all := peers()
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("interop: name a peer: %s", strings.Join(known, ", "))
	}
	var chosen []peer
	for _, name := range names {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fmt.Errorf("interop: there is no peer %q: %s", name, strings.Join(known, ", "))
		}
		p := all[i]
		if parts != "" {
			wanted := strings.Split(parts, ",")
			p.parts = slices.DeleteFunc(slices.Clone(p.parts), func(one part) bool { return !slices.Contains(wanted, one.name) })
		}
		if len(p.parts) == 0 {
			return nil, fmt.Errorf("interop: %s has no such part", name)
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// drive runs one part from its installation to its section, and ends everything.
func drive(ctx context.Context, set settings, p peer, one part, stdout, stderr io.Writer) int {
	began := time.Now()
	fmt.Fprintf(stdout, "== %s %s: %s\n", p.name, one.name, p.title)
	d, err := newDriver(set, p.name, stdout)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	s := &section{peer: p.name, part: one.name, title: p.title, began: began.UTC()}
	err = one.run(ctx, d, s)
	d.end()
	took := time.Since(began).Seconds()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(stdout, "== %s %s: interrupted after %.0f s\n\n", p.name, one.name, took)
		return exitFailed
	case errors.Is(err, errMissing):
		fmt.Fprintf(stdout, "!! %s %s was SKIPPED, which is no pass: %v\n\n", p.name, one.name, err)
		d.keep = true
		return exitMissing
	case err != nil:
		s.fail("%v", err)
	}
	if set.page != "" {
		set.pen.Lock()
		if err := s.write(set.page); err != nil {
			s.fail("%v", err)
		}
		set.pen.Unlock()
	}
	for _, problem := range s.problems {
		fmt.Fprintf(stdout, "   NOT AS EXPECTED: %s\n", problem)
	}
	if len(s.problems) > 0 {
		fmt.Fprintf(stdout, "== %s %s: FAILED after %.0f s; logs are in %s\n\n", p.name, one.name, took, d.dir)
		return exitFailed
	}
	d.forget()
	fmt.Fprintf(stdout, "== %s %s: all as expected, %.0f s\n\n", p.name, one.name, took)
	return exitOK
}
