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
	Absent                     // its leg never comes
	conducts
)

func (c Conduct) String() string {
	return [conducts]string{"serves", "refuses", "swaps-before", "swaps-after", "stops-short", "careless", "absent"}[c]
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
	FaultForge                     // a stranger's message: everything right but the generation
	FaultTruncate                  // a message arrives cut off, and its connection breaks
	faults
)

// String names the fault as scripts do.
func (f Fault) String() string {
	return [faults]string{
		"repeat", "lose", "again", "early", "write-error", "crash-decode", "crash-prefill", "cut", "cancel",
		"deadline", "busy", "engine", "second", "tick", "stray", "forge", "truncate",
	}[f]
}

// Attempt is one request of a scenario, with two legs.
type Attempt struct {
	Domain  uint8 // cache domain: tenant; 1 to 3
	Room    uint8 // where its legs meet; a retry may use its predecessor's; 1 to 7
	Prompt  uint8 // equal numbers are equal tokens; 0 to 2
	Pages   uint8 // of the prompt; 1 to MaxExtent
	Stub    uint8 // pages that prefill computes instead, if it swaps or stops short, or refuses with [HabitStub]
	After   uint8 // number, from 1, of the attempt that must have been answered before these legs come; 0: none
	Prefill Conduct
	Decode  Conduct // Serves, Refuses or Absent
	Odd     Conduct // of the last rank of prefill, if it is another; Serves: the same as Prefill

	DecodePages  uint8 // of the prompt that decode's leg brings; 0: both legs bring the same
	DecodePrompt uint8 // which that is, with DecodePages
	Handle       uint8 // number, from 1, of the attempt whose source pages decode's leg names; 0: none; Prefill is Absent
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
	Publishes    bool  // an attempt that was served leaves its first page to the cache, if that is empty
	Ranks        uint8 // writers of every attempt; 0 means 1
	Habits       Habits

	// An attempt may rightly wait for a page until its time is up: another pins the cached page
	// while it waits for prefill, whose pages the first one's prefill holds.
	scarce bool
	Budget [faults]uint8
}

// Model is a scenario under a set of guards: what a World moves by.
type Model struct {
	sc     Scenario
	n      int // attempts
	ranks  int
	sides  int // attempts times ranks
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
	sc.Ranks = max(1, sc.Ranks)
	m := &Model{sc: sc, n: len(sc.Attempts), ranks: int(sc.Ranks), sides: len(sc.Attempts) * int(sc.Ranks), guards: g}
	switch {
	case sc.CachedDomain > 3, sc.CachedDomain > 0 && m.holder(sc.CachedPrompt) < 0:
		return nil, errors.New("world: cached page out of bounds")
	case sc.Ranks > MaxRanks, m.sides > MaxSides, sc.Ranks > 1 && sc.Torn:
		return nil, fmt.Errorf("world: %d ranks: want 1 to %d, of %d writers in all, and writes that are not torn", sc.Ranks, MaxRanks, MaxSides)
	case sc.Habits >= habitEnd, sc.Habits&HabitUnregister != 0 && !sc.Torn:
		return nil, errors.New("world: habits out of bounds")
	}
	for i, a := range sc.Attempts {
		swaps := a.Prefill > Refuses && a.Prefill != Absent || a.Odd > Refuses
		switch {
		case a.Domain < 1 || a.Domain > 3, a.Room < 1 || a.Room > 7, a.Prompt >= MaxAttempts, a.Pages < 1 || a.Pages > MaxExtent,
			a.Prefill >= conducts, a.Decode > Refuses && a.Decode != Absent, a.Odd >= conducts || a.Odd == Absent, a.Odd != 0 && sc.Ranks < 2,
			int(a.After) > len(sc.Attempts), int(a.After) == i+1,
			swaps && (a.Stub < 1 || a.Stub > a.Pages), !swaps && a.Prefill != Refuses && a.Stub != 0, a.Stub > a.Pages,
			a.Prefill == StopsShort && a.Stub == a.Pages, a.DecodePages > MaxExtent, a.DecodePrompt >= MaxAttempts,
			a.DecodePages == 0 && a.DecodePrompt != 0, a.Handle != 0 && (a.Prefill != Absent || int(a.Handle) > len(sc.Attempts)):
			return nil, fmt.Errorf("world: attempt %s out of bounds", attemptName(i))
		case max(a.Pages, a.DecodePages) > sc.DecodePages || a.Pages*sc.Ranks > sc.SourcePages:
			return nil, fmt.Errorf("world: attempt %s is larger than a pool", attemptName(i))
		}
	}
	return m, nil
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
	if m.sc.CachedDomain != 0 {
		w.cache = cached{true, w.free.pop(), m.sc.CachedDomain, m.sc.CachedPrompt}
		c := computed(m.holder(m.sc.CachedPrompt), false, 0)
		w.pool[w.cache.page] = [2]content{c, c}
	}
	return w
}

// on reports whether a guard is on.
func (m *Model) on(g handoff.Guards) bool { return m.guards.Has(g) }

// holder is an attempt whose prefill computes a prompt, -1 if there is none: it
// stands for whoever computed that prompt's cached page.
func (m *Model) holder(prompt uint8) int {
	for a := range m.sc.Attempts {
		if m.sc.Attempts[a].Prompt == prompt {
			return a
		}
	}
	return -1
}

// owner is the attempt that a side of prefill belongs to.
func (m *Model) owner(side int) int { return side / m.ranks }

// side is a rank of prefill for an attempt.
func (m *Model) side(a, rank int) int { return a*m.ranks + rank }

// rank is a side's number in its group.
func (m *Model) rank(side int) int { return side % m.ranks }

// conduct is what a side of prefill does with its leg.
func (m *Model) conduct(side int) Conduct {
	at := &m.sc.Attempts[m.owner(side)]
	switch {
	case at.Odd != Serves && m.rank(side) == m.ranks-1:
		return at.Odd
	case at.Prefill == Refuses && at.Stub != 0 && m.has(HabitStub):
		return SwapsBefore
	}
	return at.Prefill
}

// asked is the prompt that decode's leg brings.
func (m *Model) asked(a int) (prompt, pages uint8) {
	at := &m.sc.Attempts[a]
	if at.DecodePages == 0 {
		return at.Prompt, at.Pages
	}
	return at.DecodePrompt, at.DecodePages
}

// handled reports whether decode fetches what the leg's handle names.
func (m *Model) handled(a int) bool { return m.sc.Attempts[a].Handle != 0 && m.has(HabitHandle) }

// pinned reports whether decode's cache has a prefix for an attempt. With the
// domain guard off it is looked up by tokens alone (H-12).
func (m *Model) pinned(w *World, a int) bool {
	prompt, pages := m.asked(a)
	return w.cache.is && w.cache.prompt == prompt && pages > 1 &&
		(w.cache.domain == m.sc.Attempts[a].Domain || !m.on(handoff.GuardDomain))
}

// pins counts the attempts that hold the cached page.
func (w *World) pins() (n int) {
	for a := range w.dec {
		if w.dec[a].pin {
			n++
		}
	}
	return n
}

// trueView is an attempt as prefill's leg was sent.
func (m *Model) trueView(a int) viewCode {
	at := &m.sc.Attempts[a]
	return viewOf(at.Prompt, false, at.Pages, at.Pages, 0, at.Domain)
}

// askedView is an attempt as decode's leg was sent, with prefix pages at hand.
func (m *Model) askedView(a int, prefix uint8) viewCode {
	prompt, pages := m.asked(a)
	return viewOf(prompt, false, pages, pages-prefix, prefix, m.sc.Attempts[a].Domain)
}

// stubView is an attempt whose prompt a validator has replaced.
func (m *Model) stubView(a int) viewCode {
	at := &m.sc.Attempts[a]
	return viewOf(0, true, at.Stub, at.Stub, 0, at.Domain)
}

// madeView is what prefill's engine was really given.
func (m *Model) madeView(side int) viewCode {
	if m.swaps(side) {
		return m.stubView(m.owner(side))
	}
	return m.trueView(m.owner(side))
}

// swaps reports whether prefill's engine computes a placeholder.
func (m *Model) swaps(side int) bool {
	c := m.conduct(side)
	return c == SwapsBefore || c == SwapsAfter || c == Careless
}

// valid reports whether an attempt should be served if nothing goes wrong.
func (m *Model) valid(a int) bool {
	at := &m.sc.Attempts[a]
	prompt, pages := m.asked(a)
	return at.Prefill == Serves && at.Decode == Serves && at.Odd == Serves && prompt == at.Prompt && pages == at.Pages
}

// wantedValue is what decode must read in a page of an attempt's prompt.
func (m *Model) wantedValue(a, page int) int {
	prompt, _ := m.asked(a)
	return int(prompt)<<4 | page
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
		b.WriteString(a.text(i))
	}
	if sc.Ranks > 1 {
		fmt.Fprintf(&b, "ranks %d\n", sc.Ranks)
	}
	if sc.CachedDomain != 0 {
		fmt.Fprintf(&b, "cached domain %d prompt %d\n", sc.CachedDomain, sc.CachedPrompt)
	}
	if sc.Publishes {
		b.WriteString("publishes\n")
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
	if sc.Habits != 0 {
		fmt.Fprintf(&b, "habits %v\n", sc.Habits)
	}
	return b.String()
}

// text is the attempt's line in the script language.
func (a *Attempt) text(i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "attempt %s domain %d room %d prompt %d pages %d", attemptName(i), a.Domain, a.Room, a.Prompt, a.Pages)
	if a.Prefill != Serves {
		fmt.Fprintf(&b, " prefill %v", a.Prefill)
	}
	if a.Odd != Serves {
		fmt.Fprintf(&b, " last-rank %v", a.Odd)
	}
	if a.Stub != 0 {
		fmt.Fprintf(&b, " stub %d", a.Stub)
	}
	if a.Decode != Serves {
		fmt.Fprintf(&b, " decode %v", a.Decode)
	}
	if a.DecodePages != 0 {
		fmt.Fprintf(&b, " decode-prompt %d decode-pages %d", a.DecodePrompt, a.DecodePages)
	}
	if a.Handle != 0 {
		fmt.Fprintf(&b, " handle %s", attemptName(int(a.Handle)-1))
	}
	if a.After != 0 {
		fmt.Fprintf(&b, " after %s", attemptName(int(a.After)-1))
	}
	b.WriteByte('\n')
	return b.String()
}

// Allow gives the adversary more: text is a budget as scripts write it, as in "cancel 1
// again 2". An error names what is unknown.
func (sc *Scenario) Allow(text string) error {
	p := player{}
	f := fields{words: strings.Fields(text)}
	for f.more() {
		p.setBudget(&f)
	}
	for i, n := range p.sc.Budget {
		sc.Budget[i] += n
	}
	if f.err != nil {
		return fmt.Errorf("world: budget: %w", f.err)
	}
	return nil
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
