package world

import (
	"errors"
	"fmt"
	"strings"

	"bulkhead.dev/bulkhead/handoff"
)

// Conduct is what one worker does with its leg of an attempt.
type Conduct uint8

const (
	Serves      Conduct = iota // takes the request as it was sent
	Refuses                    // its door says that the prompt is too long
	SwapsBefore                // prefill: a validator puts a placeholder in the prompt's place before the door looks
	SwapsAfter                 // prefill: the same, but the door has seen the true prompt and has offered
	StopsShort                 // prefill: the engine says "complete" after too few pages of the true prompt
	Careless                   // prefill: swaps before its door, and offers without comparing
	conducts
)

func (c Conduct) String() string {
	return [conducts]string{"serves", "refuses", "swaps-before", "swaps-after", "stops-short", "careless"}[c]
}

// Fault is a kind of trouble. A scenario has a budget of each.
type Fault uint8

const (
	FaultRepeat       Fault = iota // a message is delivered, and will be again
	FaultLose                      // a message is lost
	FaultAgain                     // a write that has landed lands again
	FaultEarly                     // a write completes before it has landed whole
	FaultWrite                     // a write ends in an error; it may land all the same
	FaultCrashDecode               // the decode worker dies and comes back
	FaultCrashPrefill              // the prefill worker dies and comes back
	FaultCut                       // the connection breaks
	FaultCancel                    // a client leaves
	FaultDeadline                  // a leg's time runs out while things still move
	FaultBusy                      // decode finds no room
	FaultEngine                    // prefill's engine fails
	FaultSecond                    // a leg that was answered comes again
	FaultTick                      // an abort is repeated before it was lost
	FaultStray                     // a peer aborts an attempt out of nothing
	faults
)

// String names the fault as scripts do.
func (f Fault) String() string {
	return [faults]string{
		"repeat", "lose", "again", "early", "write-error", "crash-decode", "crash-prefill", "cut", "cancel",
		"deadline", "busy", "engine", "second", "tick", "stray",
	}[f]
}

// Attempt is one request of a scenario, with two legs.
type Attempt struct {
	Domain  uint8 // cache domain: tenant; 1 to 3
	Room    uint8 // where its legs meet; a retry may use its predecessor's; 1 to 7
	Prompt  uint8 // equal numbers are equal tokens; 0 to 2
	Pages   uint8 // of the prompt; 1 to MaxExtent
	Stub    uint8 // pages that prefill computes instead, if it swaps or stops short
	After   uint8 // number, from 1, of the attempt that must have been answered before these legs come; 0: none
	Prefill Conduct
	Decode  Conduct // Serves or Refuses
}

// Scenario is where a World starts, and what the adversary may do to it.
type Scenario struct {
	Name  string
	About string // one sentence

	Attempts     []Attempt
	DecodePages  uint8 // in decode's pool, 1 to MaxPages
	SourcePages  uint8 // in prefill's
	Reads        uint8 // decode steps of an attempt, each of which reads every page; 0 means 1
	Torn         bool  // writes land in halves
	CachedDomain uint8 // decode holds the first page of CachedPrompt for this domain; 0: nothing is cached
	CachedPrompt uint8
	Budget       [faults]uint8
}

// Model is a scenario under a set of guards: what a World moves by.
type Model struct {
	sc     Scenario
	n      int
	guards handoff.Guards
}

// NewModel checks the scenario. Errors name what is out of bounds.
func NewModel(sc Scenario, g handoff.Guards) (*Model, error) {
	if sc.Reads == 0 {
		sc.Reads = 1
	}
	if len(sc.Attempts) < 1 || len(sc.Attempts) > MaxAttempts {
		return nil, fmt.Errorf("world: %d attempts: want 1 to %d", len(sc.Attempts), MaxAttempts)
	}
	if sc.DecodePages < 1 || sc.DecodePages > MaxPages || sc.SourcePages < 1 || sc.SourcePages > MaxPages {
		return nil, fmt.Errorf("world: pools of %d and %d pages: want 1 to %d", sc.DecodePages, sc.SourcePages, MaxPages)
	}
	if sc.CachedDomain > 3 || sc.CachedPrompt >= MaxAttempts {
		return nil, errors.New("world: cached page out of bounds")
	}
	for i, a := range sc.Attempts {
		swaps := a.Prefill > Refuses
		switch {
		case a.Domain < 1 || a.Domain > 3, a.Room < 1 || a.Room > 7, a.Prompt >= MaxAttempts, a.Pages < 1 || a.Pages > MaxExtent,
			a.Prefill >= conducts, a.Decode > Refuses, int(a.After) > len(sc.Attempts), int(a.After) == i+1,
			swaps && (a.Stub < 1 || a.Stub > a.Pages), !swaps && a.Stub != 0, a.Prefill == StopsShort && a.Stub == a.Pages:
			return nil, fmt.Errorf("world: attempt %s out of bounds", attemptName(i))
		case a.Pages > sc.DecodePages || a.Pages > sc.SourcePages:
			return nil, fmt.Errorf("world: attempt %s is larger than a pool", attemptName(i))
		}
	}
	return &Model{sc: sc, n: len(sc.Attempts), guards: g}, nil
}

// Start is the World in which nothing has happened: every page is free and
// holds KV of an earlier tenant.
func (m *Model) Start() World {
	w := World{cur: 1, epoch: 1, left: m.sc.Budget}
	for p := m.sc.DecodePages; p > 0; p-- {
		w.free.push(p - 1)
	}
	for p := m.sc.SourcePages; p > 0; p-- {
		w.sfree.push(p - 1)
	}
	return w
}

// on reports whether a guard is on.
func (m *Model) on(g handoff.Guards) bool { return m.guards.Has(g) }

// pinned reports whether decode's cache has a prefix for an attempt. With the
// domain guard off it is looked up by tokens alone (H-12).
func (m *Model) pinned(a int) bool {
	at := &m.sc.Attempts[a]
	return m.sc.CachedDomain != 0 && m.sc.CachedPrompt == at.Prompt && at.Pages > 1 &&
		(m.sc.CachedDomain == at.Domain || !m.on(handoff.GuardDomain))
}

// trueView is an attempt as it was sent, seen by a worker that holds prefix
// pages of it already.
func (m *Model) trueView(a int, prefix uint8) viewCode {
	at := &m.sc.Attempts[a]
	return viewOf(at.Prompt, false, at.Pages, at.Pages-prefix, prefix, at.Domain)
}

// stubView is an attempt whose prompt a validator has replaced.
func (m *Model) stubView(a int) viewCode {
	at := &m.sc.Attempts[a]
	return viewOf(0, true, at.Stub, at.Stub, 0, at.Domain)
}

// madeView is what prefill's engine was really given.
func (m *Model) madeView(a int) viewCode {
	if m.swaps(a) {
		return m.stubView(a)
	}
	return m.trueView(a, 0)
}

// swaps reports whether prefill's engine computes a placeholder.
func (m *Model) swaps(a int) bool {
	c := m.sc.Attempts[a].Prefill
	return c == SwapsBefore || c == SwapsAfter || c == Careless
}

// valid reports whether an attempt should be served if nothing goes wrong.
func (m *Model) valid(a int) bool {
	return m.sc.Attempts[a].Prefill == Serves && m.sc.Attempts[a].Decode == Serves
}

// value is what a digest sees of a content: equal tokens give equal bytes,
// whoever computed them.
func (m *Model) value(c content) int {
	switch {
	case c == elder:
		return -1
	case c.stub():
		return 1<<8 | c.page()
	}
	return int(m.sc.Attempts[c.by()].Prompt)<<4 | c.page()
}

func attemptName(a int) string { return string(rune('a' + a)) }

// Text is the scenario in the script language, without its moves.
func (m *Model) Text() string {
	var b strings.Builder
	sc := &m.sc
	if sc.About != "" {
		fmt.Fprintf(&b, "# %s\n", sc.About)
	}
	fmt.Fprintf(&b, "pools decode %d source %d\nreads %d\n", sc.DecodePages, sc.SourcePages, sc.Reads)
	if sc.Torn {
		b.WriteString("torn\n")
	}
	for i, a := range sc.Attempts {
		fmt.Fprintf(&b, "attempt %s domain %d room %d prompt %d pages %d", attemptName(i), a.Domain, a.Room, a.Prompt, a.Pages)
		if a.Prefill != Serves {
			fmt.Fprintf(&b, " prefill %v", a.Prefill)
		}
		if a.Stub != 0 {
			fmt.Fprintf(&b, " %d", a.Stub)
		}
		if a.Decode != Serves {
			fmt.Fprintf(&b, " decode %v", a.Decode)
		}
		if a.After != 0 {
			fmt.Fprintf(&b, " after %s", attemptName(int(a.After)-1))
		}
		b.WriteByte('\n')
	}
	if sc.CachedDomain != 0 {
		fmt.Fprintf(&b, "cached domain %d prompt %d\n", sc.CachedDomain, sc.CachedPrompt)
	}
	if sc.Budget != ([faults]uint8{}) {
		b.WriteString("budget")
		for f, n := range sc.Budget {
			if n > 0 {
				fmt.Fprintf(&b, " %v %d", Fault(f), n)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "guards %s\n", guardsText(m.guards))
	return b.String()
}

// guardsText is a set of guards as scripts write it: all, none, "all but x",
// "x y".
func guardsText(g handoff.Guards) string {
	switch off := handoff.All &^ g; {
	case g == handoff.All || g == 0:
		return g.String()
	case off&(off-1) == 0:
		return "all but " + off.String()
	}
	return strings.ReplaceAll(g.String(), "+", " ")
}
