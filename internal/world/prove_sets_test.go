package world

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

var sets = flag.Bool("sets", false, "enumerate the minimal sets of guards (minutes)")

// available are the guards without which no wrong page is read: they keep requests from
// hanging, caches apart and answers honest, and let a group of ranks be served at all. They
// are on in every set.
const available = handoff.GuardRetry | handoff.GuardFence | handoff.GuardDomain | handoff.GuardHeader | handoff.GuardWriters

// TestMinimalSets enumerates the minimal sets of guards under which decode reads nothing but
// its own, and holds the list against what was agreed: a change of it is a change of design.
func TestMinimalSets(t *testing.T) {
	if !*sets {
		t.Skip("minutes: make prove-sets")
	}
	r, err := MinimalSets(context.Background(), SetsOptions{Fixed: available, Hold: V1, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d explorations, %d states\n%s", r.Explorations, r.States, r.Text())
	for _, g := range r.Sets {
		holds(t, g)
		for _, one := range handoff.Each() {
			switch {
			case available&one != 0:
			case g&one == 0:
				holds(t, g|one) // what the search takes for granted: more guards are no worse
			default:
				t.Run(fmt.Sprintf("%v without %v", g, one), func(t *testing.T) {
					t.Parallel()
					if breaks(t, Small(), g.Without(one)|available) == "" {
						t.Error("it does without")
					}
				})
			}
		}
	}
	golden(t, "testdata/sets.golden", r.Text())
}

// holds explores every small scenario under a set of guards.
func holds(t *testing.T, g handoff.Guards) {
	t.Run(g.String(), func(t *testing.T) {
		t.Parallel()
		if broken := breaks(t, Small(), g|available); broken != "" {
			t.Errorf("it breaks: %s", broken)
		}
	})
}

// breaks says which scenario breaks V1 under a set of guards; nothing if none does.
func breaks(t *testing.T, scenarios []Scenario, g handoff.Guards) string {
	t.Helper()
	for _, sc := range scenarios {
		x := model(t, sc, g).Explore(context.Background(), Limits{Only: V1, Slack: true, States: 4_000_000})
		if x.Outcome == Fail {
			return sc.Name + ": " + x.Broken.String()
		}
		if x.Outcome == Unknown {
			t.Fatalf("%s: %s", sc.Name, x.Why)
		}
	}
	return ""
}

// TestPairs holds that guards which back each other up are found when they are dropped
// together, and that either of them is enough in the same world.
func TestPairs(t *testing.T) {
	var table strings.Builder
	small := map[string]Scenario{}
	for _, sc := range Small() {
		small[sc.Name] = sc
	}
	for _, c := range []struct {
		name string
		a, b handoff.Guards
		base handoff.Guards // off besides, so that the pair is what is left
	}{
		{"one-page-stub", handoff.GuardOffer, handoff.GuardInput, 0},
		{"stub", handoff.GuardOffer, handoff.GuardExtent, handoff.GuardInput},
		{"source", handoff.GuardDigest, handoff.GuardSourceHold, 0},
		{"source", handoff.GuardDigest, handoff.GuardCompletion, 0},
		{"source-again", handoff.GuardSeal, handoff.GuardSourceHold, 0},
		{"source-again", handoff.GuardSeal, handoff.GuardKey, 0},
		{"restart", handoff.GuardSeal, handoff.GuardEpoch, 0},
		{"both-restart", handoff.GuardDigest, handoff.GuardEpoch, 0},
		{"both-restart", handoff.GuardDigest, handoff.GuardKey, 0},
	} {
		sc := small[c.name]
		for _, one := range []handoff.Guards{c.a, c.b} {
			x := model(t, sc, handoff.All.Without(c.base|one)).Explore(context.Background(), Limits{Only: V1})
			if x.Outcome != Pass {
				t.Errorf("%s: without %v alone: %v %v", c.name, one, x.Outcome, x.Broken)
			}
		}
		x := model(t, sc, handoff.All.Without(c.base|c.a|c.b)).Explore(context.Background(), Limits{Only: V1})
		if x.Outcome != Fail {
			t.Errorf("%s: without %v: %v %s", c.name, c.a|c.b, x.Outcome, x.Why)
			continue
		}
		fmt.Fprintf(&table, "%-24s %-13s %2d %s\n", c.a|c.b, c.name, len(x.Path), x.Broken)
	}
	golden(t, "testdata/pairs.golden", table.String())
}

// TestMinimalSetsOfTwo holds the search itself, where the answer is known: the incident's
// placeholder is refused by each of two guards alone.
func TestMinimalSetsOfTwo(t *testing.T) {
	one := Small()[1:2]
	r, err := MinimalSets(context.Background(), SetsOptions{Scenarios: one, Fixed: available, Hold: V1})
	if err != nil || len(r.Sets) != 2 || r.Sets[0] != handoff.GuardOffer || r.Sets[1] != handoff.GuardInput || len(r.Needs) != 1 {
		t.Errorf("%v %v: %v", r.Sets, r.Needs, err)
	}
	if _, err := MinimalSets(context.Background(), SetsOptions{Scenarios: one, States: 5}); err == nil || !strings.Contains(err.Error(), whyMemory) {
		t.Errorf("not finished: %v", err)
	}
	if got := smallest([]handoff.Guards{3, 1, 6, 7}); len(got) != 2 || got[0] != 1 || got[1] != 6 {
		t.Errorf("smallest: %v", got)
	}
}
