package world

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

// TestProve is the proof: every scenario is sound with every guard on, every
// guard's removal is found, every edge of the table is taken, and every story
// can be played again.
func TestProve(t *testing.T) {
	if underRace {
		t.Skip("under the race detector TestProveInPart stands in: the whole takes ten times as long there")
	}
	r, err := Prove(context.Background(), Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", r.Text())
	if r.Verdict != Pass {
		t.Errorf("%v: %q", r.Verdict, r.Reasons)
	}
	if len(r.Scenarios) != len(Suite()) || len(r.Dropped) != len(handoff.Each()) || len(r.Unguarded) != len(unguarded) {
		t.Errorf("%d scenarios, %d guards, %d stories without any", len(r.Scenarios), len(r.Dropped), len(r.Unguarded))
	}
	if r.Coverage.Taken != len(handoff.Transitions()) || len(r.Coverage.Missing) != 0 {
		t.Errorf("coverage: %+v", r.Coverage)
	}
	var shortest strings.Builder
	for _, d := range slices.Concat(r.Dropped, r.Unguarded) {
		t.Run("without "+d.Guard, func(t *testing.T) { holdStory(t, d) })
		fmt.Fprintf(&shortest, "%-12s %-3s %2d %-22s %s\n", d.Guard, d.Invariant, d.Length, d.Scenario, d.Broken)
	}
	golden(t, "testdata/shortest.golden", shortest.String())
}

// golden holds a text against a file, or with -rewrite writes the file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s says otherwise (-rewrite shows it in a diff): %s\n%s", file, firstDifference(string(want), got), got)
	}
}

// holdStory plays a counterexample again: it ends in the violation that was
// reported and in no other, and with every guard on it cannot end so.
func holdStory(t *testing.T, d DroppedReport) {
	t.Helper()
	if d.Outcome != Fail {
		t.Fatalf("%v", d.Outcome)
	}
	if _, broken, err := Replay(d.Story); err != nil || broken.Invariant.String() != d.Invariant || broken.String() != d.Broken {
		t.Errorf("played again it ends in %v: %v (%v)\n%s", broken.Invariant, broken, err, d.Story)
	}
	if n := moves(d.Story); n != d.Length {
		t.Errorf("%d moves in the story, %d in the report", n, d.Length)
	}
	var guarded []string
	for _, line := range strings.Split(d.Story, "\n") {
		if strings.HasPrefix(line, "guards ") {
			line = "guards all"
		}
		guarded = append(guarded, line)
	}
	if _, broken, err := Replay(strings.Join(guarded, "\n")); err == nil || broken.Invariant != NoInvariant {
		t.Errorf("with every guard on it still ends in %v: %v\n%s", broken.Invariant, broken, d.Story)
	}
}

// moves counts the moves of a story.
func moves(story string) int {
	n := 0
	for _, line := range strings.Split(story, "\n") {
		word, _, _ := strings.Cut(line, " ")
		switch word {
		case "", "#", "pools", "reads", "torn", "attempt", "ranks", "cached", "publishes", "budget", "guards", "habits", "hold", "expect":
		default:
			n++
		}
	}
	return n
}

// part is a proof that takes a moment.
func part(t testing.TB) Options {
	return Options{
		Scenarios: []Scenario{scenario(t, "two-tenants"), scenario(t, "one-token-stub"), scenario(t, "stops-short")},
		Drop:      []handoff.Guards{handoff.GuardOffer, handoff.GuardExtent, handoff.GuardHeader},
	}
}

// TestProveInPart holds that a proof comes out the same however many work on it,
// and that what is not covered makes it fail.
func TestProveInPart(t *testing.T) {
	o := part(t)
	var texts []string
	for _, workers := range []int{1, 4} {
		o.Workers = workers
		r, err := Prove(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range slices.Concat(r.Dropped, r.Unguarded) {
			holdStory(t, d)
		}
		if r.Verdict != Fail || len(r.Coverage.Missing) == 0 || len(r.Reasons) != 1 || !strings.Contains(r.Reasons[0], "never taken") {
			t.Errorf("%v: %q", r.Verdict, r.Reasons)
		}
		texts = append(texts, r.Text())
	}
	if texts[0] != texts[1] {
		t.Errorf("one worker:\n%s\nfour:\n%s", texts[0], texts[1])
	}
}

// TestProveFails holds that a proof is not a pass when a guard's removal is not
// found, when a scenario cannot be served, or when it was not finished.
func TestProveFails(t *testing.T) {
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	mute := scenario(t, "two-tenants")
	mute.Name, mute.Attempts = "nobody-waits", []Attempt{{Domain: 1, Room: 1, Pages: 1, After: 2}, {Domain: 2, Room: 2, Pages: 1, After: 1}}
	for _, c := range []struct {
		name   string
		ctx    context.Context
		change func(o *Options)
		want   Outcome
		reason string
	}{
		{"not found", context.Background(), func(o *Options) { o.Drop = []handoff.Guards{handoff.GuardEpoch} }, Fail, "without epoch nothing broke"},
		{"not finished", context.Background(), func(o *Options) { o.States = 50 }, Unknown, "two-tenants: memory bound"},
		{"stopped", stopped, func(*Options) {}, Unknown, "without offer the search was not finished"},
		{"nothing served", context.Background(), func(o *Options) { o.Scenarios = []Scenario{mute} }, Fail, "nobody-waits: V8"},
	} {
		o := part(t)
		c.change(&o)
		r, err := Prove(c.ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict != c.want || !strings.Contains(strings.Join(r.Reasons, "; "), c.reason) {
			t.Errorf("%s: %v %q", c.name, r.Verdict, r.Reasons)
		}
	}
	bad := part(t)
	bad.Scenarios[0].DecodePages = 0
	if _, err := Prove(context.Background(), bad); err == nil || !strings.Contains(err.Error(), "two-tenants") {
		t.Errorf("a scenario out of bounds: %v", err)
	}
	if _, err := Prove(context.Background(), Options{Drop: []handoff.Guards{0}}); err == nil {
		t.Error("no guard to drop is taken")
	}
}
