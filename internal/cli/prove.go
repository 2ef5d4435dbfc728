package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"bulkhead.dev/bulkhead/internal/world"
)

// runProve is bulkhead prove: every world of the suite with every guard on,
// then without each guard in turn.
func runProve(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "prove", "explore the hand-off protocol exhaustively; each guard's removal must be found")
	asJSON := f.Bool("json", false, "print one JSON document, schema "+world.Schema)
	brief := f.Bool("brief", false, "leave out the stories")
	replay := f.String("replay", "", "play the story in this file instead, and say what happens")
	workers := f.Int("workers", runtime.NumCPU(), "explorations at a time")
	states := f.Int("states", 0, "states kept by one exploration; 0 means 20 million. Where it is reached the outcome is unknown")
	if err := parse(f, args); err != nil {
		return err
	}
	if *workers < 1 || *states < 0 {
		return usage("--workers and --states must be positive")
	}
	if *replay != "" && *asJSON {
		return usage("--replay prints a story; it has no --json")
	}
	if *replay != "" {
		return replayStory(sys, *replay)
	}
	r, err := world.Prove(ctx, world.Options{Workers: *workers, States: *states, Clock: time.Now})
	if err != nil {
		return err
	}
	switch {
	case *asJSON:
		enc := json.NewEncoder(sys.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	case *brief:
		_, err = io.WriteString(sys.Stdout, r.Text())
	default:
		err = printProof(sys.Stdout, r)
	}
	if err == nil && r.Verdict != world.Pass {
		return errFailed
	}
	return err
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
