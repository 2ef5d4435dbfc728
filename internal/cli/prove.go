package cli

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/world"
)

// proveFlags is what bulkhead prove was asked for.
type proveFlags struct {
	json, brief, deep, profiles bool
	replay, profile             string
	scenario, budget            string
	workers, states, simulate   int
	memory                      int64
	seed                        uint64
}

// runProve is bulkhead prove: every world of the suite with every guard on,
// then without each guard in turn.
func runProve(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "prove", "explore the hand-off protocol exhaustively; each guard's removal must be found")
	var p proveFlags
	f.BoolVar(&p.json, "json", false, "print one JSON document; docs/schema/prove.md says which")
	f.BoolVar(&p.brief, "brief", false, "leave out the stories")
	f.StringVar(&p.replay, "replay", "", "play the story in this file instead, and say what happens")
	f.StringVar(&p.profile, "profile", "", "a real system instead of ours: print the shortest story of each of its faults")
	f.BoolVar(&p.profiles, "profiles", false, "the real systems instead of ours: what the model finds, what was seen, what ours refuses")
	f.IntVar(&p.simulate, "simulate", 0, "take this many random paths instead, through random scenarios")
	f.Uint64Var(&p.seed, "seed", 0, "seed of the first random path; 0 draws one. A path that failed fails again with --simulate 1 and its seed")
	f.StringVar(&p.scenario, "scenario", "", "explore only the scenarios of these names (with comma between), every guard on")
	f.StringVar(&p.budget, "budget", "", "give the adversary more in them, as in \"cancel 1 again 2\"")
	f.BoolVar(&p.deep, "deep", false, "explore the larger scenarios as well; not all of them end within 4 GB")
	f.IntVar(&p.workers, "workers", runtime.NumCPU(), "explorations at a time")
	f.IntVar(&p.states, "states", 0, "states kept by one exploration; 0 means 20 million. Where it is reached the outcome is unknown")
	f.Int64Var(&p.memory, "memory-mb", 4000, "memory of the process, about, in MB: where half of it is held by explorations, their outcome is unknown")
	if err := parse(f, args); err != nil {
		return err
	}
	modes := 0
	for _, on := range []bool{p.replay != "", p.profile != "", p.profiles, p.simulate != 0, p.scenario != "" || p.deep} {
		if on {
			modes++
		}
	}
	switch {
	case p.workers < 1 || p.states < 0 || p.simulate < 0 || p.memory < 1:
		return usage("--workers, --states, --simulate and --memory-mb must be positive")
	case modes > 1:
		return usage("--replay, --profile, --profiles, --simulate and --scenario or --deep exclude each other")
	case p.replay != "" && p.json:
		return usage("--replay prints a story; it has no --json")
	case p.budget != "" && p.scenario == "":
		return usage("--budget needs --scenario: the suite's budgets are what its table was made with")
	case p.seed != 0 && p.simulate == 0:
		return usage("--seed needs --simulate")
	}
	switch {
	case p.replay != "":
		return replayStory(sys, p.replay)
	case p.profile != "" || p.profiles:
		return proveProfiles(ctx, sys, p)
	case p.simulate > 0:
		return simulate(ctx, sys, p)
	}
	return prove(ctx, sys, p)
}

// prove explores.
func prove(ctx context.Context, sys System, p proveFlags) error {
	// The explorers count what they hold; the collector and growing tables need as much again
	// for a moment, and the limit makes the collector hurry before they get it.
	bytes := p.memory * 1_000_000
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(bytes * 9 / 10))
	o := world.Options{Workers: p.workers, States: p.states, Memory: bytes / 2, Clock: time.Now, CPU: processorTime}
	if p.deep {
		o.Scenarios = append(world.Suite(), world.Deep()...)
	}
	if p.scenario != "" {
		var err error
		if o.Scenarios, err = pickScenarios(p.scenario, p.budget); err != nil {
			return exit{exitUsage, err}
		}
		o.Drop = []handoff.Guards{}
	}
	r, err := world.Prove(ctx, o)
	if err != nil {
		return err
	}
	switch {
	case p.json:
		err = printJSON(sys.Stdout, r)
	case p.brief:
		_, err = io.WriteString(sys.Stdout, r.Text())
	default:
		err = printProof(sys.Stdout, r)
	}
	if err == nil && r.Verdict != world.Pass {
		return errFailed
	}
	return err
}

// pickScenarios returns scenarios by name, with more for the adversary.
func pickScenarios(names, budget string) ([]world.Scenario, error) {
	all, picked := append(world.Suite(), world.Deep()...), []world.Scenario(nil)
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all, func(sc world.Scenario) bool { return sc.Name == strings.TrimSpace(name) })
		if i < 0 {
			known := make([]string, len(all))
			for j := range all {
				known[j] = all[j].Name
			}
			return nil, fmt.Errorf("no scenario %q; there are %s", name, strings.Join(known, ", "))
		}
		sc := all[i]
		if err := sc.Allow(budget); err != nil {
			return nil, err
		}
		picked = append(picked, sc)
	}
	return picked, nil
}

// proveProfiles shows the real systems.
func proveProfiles(ctx context.Context, sys System, p proveFlags) error {
	var names []string
	if p.profile != "" {
		names = strings.Split(p.profile, ",")
	}
	r, err := world.ProveProfiles(ctx, names...)
	if err != nil {
		return exit{exitUsage, err}
	}
	if p.json {
		err = printJSON(sys.Stdout, r)
	} else {
		if p.profile != "" && !p.brief {
			for _, profile := range r.Profiles {
				for _, f := range profile.Faults {
					if f.Story != "" {
						fmt.Fprintf(sys.Stdout, "# %s: %s (%s)\n%s\n", profile.Name, f.Name, f.Number, f.Story)
					}
				}
			}
		}
		_, err = io.WriteString(sys.Stdout, r.Text())
	}
	if err == nil && r.Verdict != world.Pass {
		return errFailed
	}
	return err
}

// simulate takes random paths.
func simulate(ctx context.Context, sys System, p proveFlags) error {
	if p.seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return err
		}
		p.seed = binary.LittleEndian.Uint64(b[:])
	}
	r := world.Simulate(ctx, world.SimulateOptions{Seed: p.seed, Runs: p.simulate, Workers: p.workers, Clock: time.Now})
	var err error
	if p.json {
		err = printJSON(sys.Stdout, r)
	} else {
		_, err = io.WriteString(sys.Stdout, r.Text())
	}
	if err == nil && r.Verdict != world.Pass {
		return errFailed
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printProof prints the stories, shortest first for each guard, and then the
// tables, so that the verdict is what is read last.
func printProof(w io.Writer, r world.Report) error {
	for _, d := range slices.Concat(r.Dropped, r.Unguarded) {
		if _, err := fmt.Fprintln(w, d.Story); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, r.Text())
	return err
}

// maxStory bounds a story's file, in bytes.
const maxStory = 1 << 20

// replayStory plays a story as bulkhead prove prints it.
func replayStory(sys System, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return exit{exitUsage, err}
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxStory))
	if err != nil {
		return err
	}
	transcript, broken, err := world.Replay(string(text))
	if _, werr := io.WriteString(sys.Stdout, transcript); werr != nil {
		return werr
	}
	if err != nil {
		fmt.Fprintf(sys.Stdout, "%v\n", err)
		return errFailed
	}
	_, err = fmt.Fprintf(sys.Stdout, "played to its end; broken: %v\n", broken)
	return err
}
