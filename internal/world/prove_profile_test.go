package world

import (
	"context"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

// TestProfiles holds that the model finds in each real system what it must find there, that
// one repair closes each fault, and that our guards find nothing in the same worlds.
func TestProfiles(t *testing.T) {
	r, err := ProveProfiles(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", r.Text())
	if r.Verdict != Pass {
		t.Errorf("%v: %q", r.Verdict, r.Reasons)
	}
	found := map[string]int{}
	for _, p := range r.Profiles {
		for _, f := range p.Faults {
			if f.Repaired {
				continue
			}
			found[p.Name]++
			if _, broken, err := Replay(f.Story); err != nil || broken.Invariant.String() != f.Invariant {
				t.Errorf("%s: %s: played again it ends in %v (%v)", p.Name, f.Name, broken.Invariant, err)
			}
			if f.Seen == "" || f.Where == "" {
				t.Errorf("%s: %s: no word on where it was seen", p.Name, f.Name)
			}
		}
	}
	for name, n := range map[string]int{"sglang-0.5.19": 4, "sglang-0.5.22": 2, "sglang-0.5.23": 3, "nixl-lease": 2, "mooncake-unregister": 1} {
		if found[name] != n {
			t.Errorf("%s: %d faults, want %d", name, found[name], n)
		}
	}
	if _, err := ProveProfiles(context.Background(), "nobody"); err == nil || !strings.Contains(err.Error(), "sglang-0.5.19") {
		t.Errorf("an unknown profile: %v", err)
	}
}

// TestProfilesFail holds that a profile which is not what it is said to be is told so.
func TestProfilesFail(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(p *Profile)
	}{
		{"a fault that is not there", "does not find", func(p *Profile) { p.Habits = 0 }},
		{"a repair that closes nothing", "still fail", func(p *Profile) { p.Faults[0].Close = Repair{Add: handoff.GuardRetry} }},
		{"repaired, and still there", "repaired there", func(p *Profile) { p.Faults[0].Repaired = true }},
		{"a world that is out of bounds", "does not find", func(p *Profile) { p.Faults[0].Scenario.DecodePages = 0 }},
	} {
		p := Profiles()[0]
		p.Faults = p.Faults[:1]
		c.change(&p)
		r := p.prove(context.Background())
		if why := r.Faults[0].wrong(); !strings.Contains(why, c.want) {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}

// TestHabits holds that every habit has a name and a sentence, and that a script takes it.
func TestHabits(t *testing.T) {
	seen := map[string]bool{}
	for h := Habits(1); h < habitEnd; h <<= 1 {
		if h.String() == "ours" || h.Sentence() == "" || seen[h.String()] || seen[h.Sentence()] {
			t.Errorf("habit %b: %v: %q", h, h, h.Sentence())
		}
		seen[h.String()], seen[h.Sentence()] = true, true
		p := newPlayer()
		if err := p.play("habits " + h.String()); err != nil || p.sc.Habits != h {
			t.Errorf("%v: %v, %v", h, p.sc.Habits, err)
		}
	}
	if Habits(0).String() != "ours" || habitEnd.Sentence() != "" {
		t.Error("no habit, or one too many, has a name")
	}
}
