package record

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

// TestOdditiesAreExplained: an operator finds every name in the page of the shape.
func TestOdditiesAreExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/schema/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(Oddities(1<<16-1).String(), ", ")
	if len(all) != 9 {
		t.Errorf("%d oddities", len(all))
	}
	for _, name := range all {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page does not tell of %s", name)
		}
	}
}

// TestRingIsSmallUntilUsed: one that remembers nothing takes no memory to speak of.
func TestRingIsSmallUntilUsed(t *testing.T) {
	ring := NewRing(1 << 20)
	if n := len(ring.served.all) + len(ring.refused.all); n != 0 || ring.Size() != 1<<20 {
		t.Errorf("room for %d records, size %d", n, ring.Size())
	}
	ring.Resize(2)
	ring.Add(Entry{Event: Event{ID: "1", Attempts: 1}})
	if _, ok := ring.Get("1"); !ok || len(ring.served.all) != 2 || ring.Size() != 2 {
		t.Errorf("room for %d records, size %d", len(ring.served.all), ring.Size())
	}
}

// TestRing: the oldest go first, whatever the size becomes.
func TestRing(t *testing.T) {
	ring := NewRing(2)
	for i := range 5 {
		ring.Add(Entry{Event: Event{ID: fmt.Sprint(i), Attempts: 1}})
	}
	ring.Resize(3)
	ring.Add(Entry{Event: Event{ID: "5", Attempts: 1}})
	ring.Resize(2)
	for id, want := range map[string]bool{"3": false, "4": true, "5": true} {
		if e, ok := ring.Get(id); ok != want || ok && e.ID != id {
			t.Errorf("%s: %v", id, ok)
		}
	}
	if ring.Size() != 2 || NewRing(0).Size() != defaultRecords {
		t.Error("size")
	}
}

// TestRingUnderRefusals: requests that never reached an engine, of which anybody can send
// any number, push out only each other.
func TestRingUnderRefusals(t *testing.T) {
	ring := NewRing(8)
	ring.Add(Entry{Event: Event{ID: "served", Attempts: 1}})
	for i := range 100 {
		ring.Add(Entry{Event: Event{ID: fmt.Sprint(i)}})
	}
	ring.Resize(9)
	for id, want := range map[string]bool{"served": true, "97": false, "98": true, "99": true} {
		if _, ok := ring.Get(id); ok != want {
			t.Errorf("%s: %v", id, ok)
		}
	}
	for i := range 9 {
		ring.Add(Entry{Event: Event{ID: fmt.Sprint("s", i), Attempts: 1}})
	}
	if _, ok := ring.Get("served"); ok {
		t.Error("the ring has no end")
	}
	if n := len(ring.at); n != 9+2 {
		t.Errorf("%d are found by their ids", n)
	}
}

func TestVerdictNames(t *testing.T) {
	seen := map[string]bool{}
	for v := Undecided; v <= Left+1; v++ {
		if s := v.String(); s == "" || seen[s] {
			t.Errorf("verdict %d has no name of its own: %q", v, s)
		} else {
			seen[s] = true
		}
	}
	for code, want := range map[fault.Code]Verdict{
		fault.MissingKey: Refused, fault.TooLong: Refused, fault.Busy: Refused, fault.NoPairReady: Refused, fault.Overloaded: Refused,
		fault.LegsDisagree: Void, fault.Integrity: Void, fault.UpstreamVoid: Void,
		fault.PeerGone: Failed, fault.EngineFailed: Failed, fault.UpstreamUnreachable: Failed, fault.Internal: Failed, fault.Cancelled: Failed, fault.Deadline: Failed,
	} {
		if got := VerdictOf(fault.New(code)); got != want {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
}

// TestNames: each value has a name of its own, and a set names what is in it.
func TestNames(t *testing.T) {
	for h := NotCounted; h <= ByCounter; h++ {
		if (h.String() == "") != (h == NotCounted) {
			t.Errorf("%d: %q", h, h.String())
		}
	}
	if Reported.String() == Observed.String() || (Observed+1).String() != "unknown" || (ByCounter+1).String() != "unknown" {
		t.Error("sources")
	}
	if s := (SurplusBytes | TooFast).String(); s != "surplus bytes, prefill too fast" || Oddities(0).String() != "" {
		t.Errorf("%q", s)
	}
}

// TestShown: names of a client's own making are not shown.
func TestShown(t *testing.T) {
	const secret = "cnry-7f3a9c51 the prompt"
	got := Shown([]string{"echo", "messages.content.weight", "*", secret, strings.Repeat("x", 65), ""})
	want := []string{"echo", "messages.content.weight", "*", "(a field whose name has 24 bytes)", "(a field whose name has 65 bytes)", ""}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q", got)
	}
	if n := len(Shown(make([]string, 1000))); n != maxShown {
		t.Errorf("%d names", n)
	}
}

// TestShadows: the most frequent come first, and kinds are bounded.
func TestShadows(t *testing.T) {
	s := NewShadows()
	s.Count([]string{"a", "b"}, "t", "m")
	s.Count([]string{"b"}, "t", "m")
	s.Count(nil, "t", "m")
	if got := fmt.Sprint(s.All()); got != "[{b t m 2 false} {a t m 1 false}]" {
		t.Error(got)
	}
	for i := range 2 * maxShadows {
		s.Count([]string{fmt.Sprint(i)}, "t", "m")
	}
	if n := len(s.All()); n != maxOfTenant+1 {
		t.Errorf("%d kinds of one tenant", n)
	}
	s.Count([]string{"b"}, "another", "m")
	if got := fmt.Sprint(s.All()); !strings.Contains(got, "{b another m 1 false}") || !strings.Contains(got, "{(more) t  ") {
		t.Error("one tenant hides what another uses")
	}
	for i := range 2 * maxShadows {
		s.Count([]string{"x"}, fmt.Sprint(i), "m")
	}
	if n := len(s.All()); n != maxShadows+1 {
		t.Errorf("%d kinds", n)
	}
}
