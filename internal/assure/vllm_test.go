package assure

import (
	"slices"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// vllmTry is a case with the fault of a fake that makes it RED, and one that takes its
// control away.
type vllmTry struct {
	name      string
	bad, void vllmFault
	// sound: straight at the engines it is GREEN without the fault.
	sound bool
}

func vllmTries() []vllmTry {
	return []vllmTry{
		{name: "vllm-handed-over", bad: computes, void: unmetered, sound: true},
		{name: "vllm-forged-handle", bad: obeys, void: mute},
		{name: "vllm-stale-handle", bad: obeys, void: mute},
		{name: "vllm-poisoned-cache", bad: obeys | unsalted, void: mute},
		{name: "vllm-forged-transfer", bad: obeys, void: mute},
		{name: "vllm-prompt-list", bad: lists, void: mute, sound: true},
		{name: "vllm-refused-prefill", bad: alone, void: mute, sound: true},
		{name: "vllm-prompt-ids", bad: obeys, void: broken},
		{name: "vllm-foreign-host", bad: obeys, void: mute},
		{name: "vllm-xargs", bad: obeys, void: broken},
		{name: "vllm-client-id", bad: ownIDs, void: broken},
		{name: "vllm-fields", bad: obeys, void: broken},
		{name: "vllm-paths", bad: open, void: broken},
		{name: "vllm-cached-tokens", bad: unsalted, void: shallow},
		{name: "vllm-client-salt", bad: unsalted, void: mute},
		{name: "vllm-expired-lease", bad: lateReads, void: unmetered, sound: true},
		{name: "vllm-done-after-error", bad: doneAfter, void: mute, sound: true},
		{name: "vllm-killed-prefill", bad: silent, void: mute, sound: true},
		{name: "vllm-remote-prefill-alone", bad: obeys, void: mute},
		{name: "vllm-longer-than-prefilled", bad: obeys, void: mute},
	}
}

// TestVLLMCases runs every case at fakes with the fault and through a gateway with the
// fault, through one without, and where the control fails.
func TestVLLMCases(t *testing.T) {
	var named []string
	for _, c := range vllmTries() {
		named = append(named, c.name)
		i := slices.IndexFunc(vllmCases(), func(x Case) bool { return x.Name == c.name })
		if i < 0 {
			t.Errorf("there is no case %s", c.name)
			continue
		}
		for _, d := range vllmCases()[i].Dialects {
			t.Run(c.name+"/"+d.String(), func(t *testing.T) {
				t.Parallel()
				vllmRuns(t, c, d)
			})
		}
	}
	for _, c := range vllmCases() {
		if !slices.Contains(named, c.Name) {
			t.Errorf("%s is not tried", c.Name)
		}
	}
}

func vllmRuns(t *testing.T, c vllmTry, d upstream.Dialect) {
	type run struct {
		has  vllmFault
		way  Way
		want Outcome
	}
	runs := []run{{c.bad, Direct, Red}, {c.bad, Bulkhead, Red}, {0, Bulkhead, Green}, {c.void, Direct, Void}, {c.void, Bulkhead, Void}}
	if c.sound {
		runs = append(runs, run{0, Direct, Green})
	}
	for _, r := range runs {
		f, site := newFakeVLLM(t, d, r.has)
		report, err := Run(t.Context(), site, Options{Only: []string{c.name}, Ways: []Way{r.way}, Kills: true,
			Timeout: 10 * time.Second, patience: 60 * time.Millisecond, Faults: f.hands()})
		if err != nil {
			t.Fatal(err)
		}
		got := report.Results[0]
		if got.Outcome != r.want {
			t.Errorf("%s with faults %b: %s, want %s: %s", r.way, r.has, got.Outcome, r.want, got.Why)
		}
		if got.Outcome != Void && got.Control == "" {
			t.Errorf("%s: %s without a control", r.way, got.Outcome)
		}
	}
}
