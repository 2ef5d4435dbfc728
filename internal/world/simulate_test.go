package world

import (
	"context"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

// TestSimulate holds that random paths through random scenarios break nothing with every
// guard on, find what lacks a guard, and come out the same from the same seed.
func TestSimulate(t *testing.T) {
	runs := 40_000
	r := Simulate(context.Background(), SimulateOptions{Seed: 1, Runs: runs, Workers: 2})
	if r.Verdict != Pass || r.Runs != runs || r.Rested < runs*9/10 || r.Served < runs/10 {
		t.Errorf("%s", r.Text())
	}
	for _, g := range []handoff.Guards{
		handoff.GuardOffer, handoff.GuardSeal, handoff.GuardKey, handoff.GuardGeneration, handoff.GuardSourceHold, handoff.GuardTombstone,
		handoff.GuardRetry, handoff.GuardFence, handoff.GuardConnection, handoff.GuardDomain, handoff.GuardHeader, handoff.GuardWriters,
	} {
		o := SimulateOptions{Seed: 1, Runs: 3000, Workers: 2, Guards: handoff.All.Without(g)}
		r := Simulate(context.Background(), o)
		if r.Verdict != Fail {
			t.Errorf("without %v nothing is found: %s", g, r.Text())
			continue
		}
		o.Seed, o.Runs = r.Failed, 1
		alone := Simulate(context.Background(), o)
		if alone.Story != r.Story || alone.Failed != r.Failed || alone.Broken != r.Broken {
			t.Errorf("without %v seed %d alone shows something else:\n%s\n%s", g, r.Failed, alone.Story, r.Story)
		}
		if _, broken, err := Replay(r.Story); err != nil || broken.Invariant.String() != r.Invariant {
			t.Errorf("without %v the story ends in %v: %v", g, broken, err)
		}
	}
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	if r := Simulate(stopped, SimulateOptions{Runs: 10}); r.Verdict != Unknown {
		t.Errorf("stopped: %v", r.Verdict)
	}
}

// chooser turns a fuzzer's bytes into choices; when they run out it takes the first.
type chooser []byte

func (c *chooser) below(n int) int {
	if len(*c) == 0 || n <= 1 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b) % n
}

// schedule takes the path that bytes choose through a scenario that they choose: of the
// suite, or a random one.
func schedule(data []byte, g handoff.Guards) walked {
	c := chooser(data)
	suite := Suite()
	if i := c.below(2 * len(suite)); i < len(suite) {
		m, err := NewModel(suite[i], g)
		if err != nil {
			panic(err)
		}
		return m.walk(c.below)
	}
	seed := dice(c.below(256)<<8 | c.below(256))
	return randomModel(seed.below, g).walk(c.below)
}

// FuzzSchedule lets the fuzzer be the scheduler: no bytes break an invariant. And every
// story that it could tell can be played again.
func FuzzSchedule(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte{15, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29})
	f.Add([]byte("the adversary takes what it likes, and goes on until nothing is left to take"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := schedule(data, handoff.All)
		if r.broken.Invariant != NoInvariant {
			t.Fatalf("%v: %v\n%s", r.broken.Invariant, r.broken, r.m.Story(r.path, r.broken, NoInvariant))
		}
		if story := r.m.Story(r.path, r.broken, NoInvariant); true {
			if _, _, err := Replay(story); err != nil {
				t.Fatalf("its story cannot be played: %v\n%s", err, story)
			}
		}
	})
}

// TestScheduleFinds is the positive control of the fuzz target: without a guard some bytes
// break something.
func TestScheduleFinds(t *testing.T) {
	for _, g := range []handoff.Guards{handoff.GuardKey, handoff.GuardGeneration, handoff.GuardHeader, handoff.GuardConnection} {
		found := false
		for i := 0; i < 20_000 && !found; i++ {
			d, data := dice(i), make([]byte, 100)
			for j := range data {
				data[j] = byte(d.below(256))
			}
			found = schedule(data, handoff.All.Without(g)).broken.Invariant != NoInvariant
		}
		if !found {
			t.Errorf("without %v no bytes break anything", g)
		}
	}
}

// FuzzReplay holds that no script makes the player panic.
func FuzzReplay(f *testing.F) {
	f.Add("pools decode 1 source 1\nattempt a domain 1 room 1 prompt 0 pages 1\nguards all but header\ndoor decode a\nfinish\nexpect rest")
	f.Add("ranks 2\nhabits defer clock\nbudget again 1\nattempt a domain 1 room 1 prompt 0 pages 1 last-rank swaps-after stub 1 after b")
	f.Add("attempt a domain 1 room 1 prompt 0 pages 1 prefill absent handle a decode-pages 2\nworld\npublishes\ncached domain 1 prompt 0")
	f.Fuzz(func(_ *testing.T, script string) {
		if len(script) < 4096 {
			_, _, _ = Replay(script)
		}
	})
}
