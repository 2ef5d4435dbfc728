package assure

import (
	"slices"
	"testing"
	"time"
)

// llamaFault is a case with the switch that makes a fake engine do it.
type llamaFault struct {
	name string
	bad  faults
	// from is the number of the stream that waits for a strike.
	from int
	// void is a fake at which the case has no control.
	void faults
}

func llamaFaults() []llamaFault {
	broken := faults{broken: true}
	return []llamaFault{
		{"llama-slot-chat", faults{slotTheft: true}, 2, broken},
		{"llama-slot-completions", faults{slotTheft: true}, 2, broken},
		{"llama-slot-responses", faults{slotTheft: true}, 2, broken},
		{"llama-slot-native", faults{slotTheft: true}, 2, broken},
		{"llama-stream-read", faults{streams: true}, 1, broken},
		{"llama-stream-replace", faults{streams: true}, 1, broken},
		{"llama-stream-kill", faults{streams: true}, 1, broken},
		{"llama-cached-tokens", faults{tellsCached: true}, 1, faults{cacheless: true}},
		{"llama-cache-timing", faults{}, 1, faults{cacheless: true}}, /* RED: TestApart */
		{"llama-timings", faults{timings: true}, 1, broken},
		{"llama-verbose", faults{verbose: true}, 1, broken},
		{"llama-fields", faults{fields: true}, 1, broken},
		{"llama-template", faults{template: true}, 1, broken},
		{"llama-paths", faults{paths: true}, 1, broken},
		{"llama-malformed", faults{malformed500: true}, 1, broken},
		{"llama-overlength", faults{takesLong: true}, 1, broken},
		{"llama-usage", faults{oneCounted: true}, 1, broken},
		{"llama-leave", faults{worksOn: true}, 1, faults{idle: true}},
		{"llama-cut", faults{quietCut: true}, 1, broken},
	}
}

// TestLlamaCases runs every case at an engine and through a gateway with the fault,
// through one without, and where the control fails.
func TestLlamaCases(t *testing.T) {
	var named []string
	for _, c := range llamaFaults() {
		named = append(named, c.name)
		t.Run(c.name, func(t *testing.T) {
			for _, try := range []struct {
				has  faults
				way  Way
				want Outcome
			}{{c.bad, Direct, Red}, {c.bad, Bulkhead, Red}, {faults{}, Bulkhead, Green}, {c.void, Direct, Void}, {c.void, Bulkhead, Void}} {
				if c.name == "llama-cache-timing" && try.want == Red {
					continue
				}
				f, site := newFake(t, try.has, c.from)
				got := tried(t, site, c.name, try.way, f)
				if got.Outcome != try.want {
					t.Errorf("%s: %s, want %s: %s", try.way, got.Outcome, try.want, got.Why)
				}
				if got.Outcome != Void && got.Control == "" {
					t.Errorf("%s: %s without a control", try.way, got.Outcome)
				}
				f.strike(func(*live) {}) // let go who still waits
			}
		})
	}
	for _, c := range llamaCases() {
		if !slices.Contains(named, c.Name) {
			t.Errorf("%s is not tried", c.Name)
		}
	}
}

// TestApart: times tell known prompts from fresh ones only by a half and by more than a
// machine's unrest.
func TestApart(t *testing.T) {
	for _, try := range []struct {
		known, fresh time.Duration
		want         bool
	}{
		{13 * time.Millisecond, 94 * time.Millisecond, true},
		{13 * time.Millisecond, 12 * time.Millisecond, false},
		{90 * time.Millisecond, 130 * time.Millisecond, false},
		{90 * time.Millisecond, 136 * time.Millisecond, true},
		{0, 4 * time.Millisecond, false},
		{2 * time.Millisecond, 7 * time.Millisecond, true},
	} {
		if got := apart(try.known, try.fresh); got != try.want {
			t.Errorf("apart(%v, %v) = %v, want %v", try.known, try.fresh, got, try.want)
		}
	}
}
