package world

import (
	"context"
	"fmt"
	"math/bits"
	"strings"

	"bulkhead.dev/bulkhead/handoff"
)

// ProfilesSchema names the form of a [ProfilesReport] in JSON.
const ProfilesSchema = "bulkhead.profiles/v1"

// Profile is a real system as this World can model it: which of our guards it has, and
// what it does beside them. It models the order of events, not code.
type Profile struct {
	Name   string
	About  string // one sentence
	Guards handoff.Guards
	Habits Habits
	Faults []Expected
}

// Expected is a fault that a profile must have, or must not have any more.
type Expected struct {
	Name     string    // what happens, in few words
	Number   string    // of the scenario in docs/proof.md
	Scenario Scenario  // without the profile's habits
	Hold     Invariant // that breaks
	Repaired bool      // this system is past it: nothing must be found
	// What closes it: guards added, habits dropped. The profile with these alone finds nothing.
	Close Repair
	Seen  string // on the real engine, by whom; or that it is withheld
	Where string // the public report
}

// Repair is a change to a profile.
type Repair struct {
	Add  handoff.Guards
	Drop Habits
}

// String says what is changed.
func (r Repair) String() string {
	var parts []string
	if r.Add != 0 {
		parts = append(parts, "guards "+r.Add.String())
	}
	if r.Drop != 0 {
		parts = append(parts, "no "+strings.ReplaceAll(r.Drop.String(), " ", ", no "))
	}
	return strings.Join(parts, ", ")
}

// What the engines' guards are, in our words: what completed is told after it completed,
// source pages are held until then, a broken connection is noticed, an abort stops what was
// not sent, headers wait. Nothing compares the two legs, nothing is
// revoked, nothing is digested, and a room is the only key.
const (
	sglangGuards = handoff.GuardCompletion | handoff.GuardSourceHold | handoff.GuardFence | handoff.GuardStop |
		handoff.GuardHeader | handoff.GuardWriters
	sglangDeferred = sglangGuards | handoff.GuardQuiet | handoff.GuardTombstone
	nixlGuards     = handoff.All &^ (handoff.GuardExtent | handoff.GuardInput | handoff.GuardSeal | handoff.GuardDigest | handoff.GuardKey)
	unregistering  = handoff.All &^ handoff.GuardDigest
)

// Worlds of the profiles.
func overLong() Scenario {
	return Scenario{Name: "over-long", About: "Prefill's door refuses an over-long prompt; another tenant is served.",
		Attempts: []Attempt{
			{Domain: 1, Room: 1, Pages: 2, Prefill: Refuses, Stub: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1},
		}, DecodePages: 3, SourcePages: 2}
}

func nextTenant(faults ...Fault) Scenario {
	return Scenario{Name: "next-tenant", About: "A client leaves; the next tenant gets the same page.",
		Attempts: []Attempt{
			{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1, After: 1},
		}, DecodePages: 1, SourcePages: 2, Budget: budget(faults...)}
}

func sameRoom() Scenario {
	return Scenario{Name: "same-room", About: "A router retries in the old room; the old attempt's messages are still about.",
		Attempts: []Attempt{
			{Domain: 1, Room: 1, Pages: 1}, {Domain: 1, Room: 1, Pages: 1, After: 1},
		}, DecodePages: 1, SourcePages: 2, Budget: budget(FaultCancel, FaultCancel)}
}

func unequalLegs() Scenario {
	return Scenario{Name: "unequal-legs", About: "The legs bring prompts of different length; another tenant is served.",
		Attempts: []Attempt{
			{Domain: 1, Room: 1, Pages: 1, DecodePages: 2, DecodePrompt: 1}, {Domain: 2, Room: 2, Prompt: 2, Pages: 1},
		}, DecodePages: 3, SourcePages: 2}
}

func stolenRoom() Scenario {
	return Scenario{Name: "stolen-room", About: "A stranger's decode leg comes with the room of a request whose prefill leg waits.",
		Attempts: []Attempt{
			{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 1, Prompt: 1, Pages: 1, Prefill: Absent},
		}, DecodePages: 2, SourcePages: 2}
}

func lateFetch() Scenario {
	return Scenario{Name: "late-fetch", About: "Decode fetches late; another tenant's prompt needs the same source page.",
		Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1}},
		DecodePages: 2, SourcePages: 1, Budget: budget(FaultDeadline)}
}

func foreignHandle() Scenario {
	return Scenario{Name: "foreign-handle", About: "A stranger's decode leg brings the handle of a request that waits for its own.",
		Attempts: []Attempt{
			{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1, Prefill: Absent, Handle: 1},
		}, DecodePages: 2, SourcePages: 1}
}

func halfLanded() Scenario {
	sc := nextTenant(FaultCancel)
	sc.Name, sc.Torn, sc.Habits = "half-landed", true, 0
	sc.About = "A client leaves when half of a page has landed; the next tenant gets the page."
	return sc
}

// Profiles returns the real systems.
func Profiles() []Profile {
	stub := Expected{Name: "one-token stub", Number: "S1", Scenario: overLong(), Hold: V1, Close: Repair{Drop: HabitStub},
		Seen: "0.5.19: both legs 200, other tenants' text in the answer (4 of 15 tries)", Where: "sglang#36988, sglang#38935"}
	gone := stub
	gone.Repaired, gone.Close, gone.Seen = true, Repair{}, "0.5.20 and later: prefill answers 400"
	return []Profile{
		{Name: "sglang-0.5.19", About: "Decode frees its pages at once when a request is aborted; an over-long prompt becomes a placeholder.",
			Guards: sglangGuards, Habits: HabitStub, Faults: []Expected{
				stub,
				{Name: "verdict unread by the door", Number: "S3", Scenario: overLong(), Hold: V4, Close: Repair{Add: handoff.GuardOffer},
					Seen: "0.5.19: prefill counts 1 token, decode the whole prompt", Where: "sglang#38935"},
				{Name: "late write into the next tenant", Number: "S16", Scenario: nextTenant(FaultCancel), Hold: V1,
					Close: Repair{Add: handoff.GuardKey}, Seen: "reported with a reproduction", Where: "sglang#24527"},
				{Name: "old message in a reused room", Number: "S39", Scenario: sameRoom(), Hold: V5,
					Close: Repair{Add: handoff.GuardGeneration}, Seen: "reported", Where: "kthena#1423"},
			}},
		{Name: "sglang-0.5.22", About: "Decode holds the pages of an aborted request until prefill says that it is quiet, or 30 s have passed.",
			Guards: sglangDeferred, Habits: HabitDefer | HabitClock | HabitForgets, Faults: []Expected{
				gone,
				{Name: "the acknowledgement never comes", Number: "S18", Scenario: nextTenant(FaultCancel), Hold: V7,
					Close: Repair{Drop: HabitForgets}, Seen: "reported", Where: "sglang#38961, sglang#40645"},
				{Name: "the clock frees under a write", Number: "S27", Scenario: nextTenant(FaultCancel, FaultDeadline), Hold: V1,
					Close: Repair{Drop: HabitClock}, Seen: "reported", Where: "sglang#38961"},
			}},
		{Name: "sglang-0.5.23", About: "The same, and the acknowledgement comes. Counts and prompts of the two legs are compared by nobody.",
			Guards: sglangDeferred, Habits: HabitDefer | HabitClock, Faults: []Expected{
				gone,
				{Name: "legs of unequal length", Number: "S6", Scenario: unequalLegs(), Hold: V1,
					Close: Repair{Add: handoff.GuardOffer | handoff.GuardExtent | handoff.GuardGeneration},
					Seen:  "by kind: `sglang-legs` of make interop-sglang tries it", Where: "sglang#38704 proposes to compare counts"},
				{Name: "stolen room", Number: "H-16", Scenario: stolenRoom(), Hold: V1,
					Close: Repair{Add: handoff.GuardGeneration}, Seen: "withheld (SECURITY.md)", Where: "sglang#39400: no authentication between workers"},
				{Name: "the clock frees under a write", Number: "S27", Scenario: nextTenant(FaultCancel, FaultDeadline), Hold: V1,
					Close: Repair{Drop: HabitClock}, Seen: "reported", Where: "sglang#38961"},
			}},
		{Name: "nixl-lease", About: "Pull: decode fetches what a handle names; prefill's pages are freed on a clock.",
			Guards: nixlGuards, Habits: HabitLease | HabitHandle, Faults: []Expected{
				{Name: "expired lease", Number: "lease", Scenario: lateFetch(), Hold: V1, Close: Repair{Drop: HabitLease},
					Seen: "by kind: a fetch after the lease gets what is in the pages then", Where: "vLLM documents the lease, and logs and counts expired requests"},
				{Name: "forged handle", Number: "handle", Scenario: foreignHandle(), Hold: V1, Close: Repair{Drop: HabitHandle},
					Seen: "by kind: `vllm-forged-handle` of make interop-vllm tries it", Where: "none"},
			}},
		{Name: "mooncake-unregister", About: "Unregistering memory returns while a write is landing, and the write goes on.",
			Guards: unregistering, Habits: HabitUnregister, Faults: []Expected{
				{Name: "late write after unregister", Number: "S31", Scenario: halfLanded(), Hold: V1, Close: Repair{Drop: HabitUnregister},
					Seen: "by kind: the call returns, and the write goes on", Where: "of the same kind: Mooncake#4247, Mooncake#2738, NIXL#2067"},
			}},
	}
}

// ProfilesReport is what the profiles showed.
type ProfilesReport struct {
	Schema   string          `json:"schema"`
	Verdict  Outcome         `json:"verdict"`
	Reasons  []string        `json:"reasons"` // why it is not a pass
	Profiles []ProfileReport `json:"profiles"`
}

// ProfileReport is one profile.
type ProfileReport struct {
	Name   string        `json:"name"`
	About  string        `json:"about"`
	Guards string        `json:"guards"`
	Habits string        `json:"habits"`
	Faults []FaultReport `json:"faults"`
}

// FaultReport is one fault of a profile.
type FaultReport struct {
	Name      string  `json:"name"`
	Number    string  `json:"number"`
	Scenario  string  `json:"scenario"`
	Found     bool    `json:"found"`     // by the model
	Repaired  bool    `json:"repaired"`  // it must not be found
	Invariant string  `json:"invariant"` // that breaks
	Broken    string  `json:"broken,omitempty"`
	Length    int     `json:"length"`  // moves of the shortest story
	Closed    Outcome `json:"closed"`  // the profile with the one repair, same invariant
	Close     string  `json:"close"`   // the repair
	Refused   Outcome `json:"refused"` // our guards in the same scenario, every invariant
	Seen      string  `json:"seen"`
	Where     string  `json:"where"`
	Story     string  `json:"story,omitempty"`
	States    int     `json:"states"`
}

// ProveProfiles holds that each profile has the faults that it must have, that one repair
// closes each, and that our guards find nothing in the same scenarios. names picks
// profiles; none means all. An error is a name that is unknown.
func ProveProfiles(ctx context.Context, names ...string) (ProfilesReport, error) {
	r := ProfilesReport{Schema: ProfilesSchema, Verdict: Pass, Reasons: []string{}}
	for _, p := range Profiles() {
		if len(names) == 0 || contains(names, p.Name) {
			r.Profiles = append(r.Profiles, p.prove(ctx))
		}
	}
	if len(names) > 0 && len(r.Profiles) != len(names) {
		return r, fmt.Errorf("world: no profile %s; there are %s", strings.Join(names, ", "), strings.Join(profileNames(), ", "))
	}
	for _, p := range r.Profiles {
		for _, f := range p.Faults {
			if why := f.wrong(); why != "" {
				r.Verdict = Fail
				r.Reasons = append(r.Reasons, p.Name+": "+f.Name+": "+why)
			}
		}
	}
	return r, nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func profileNames() (names []string) {
	for _, p := range Profiles() {
		names = append(names, p.Name)
	}
	return names
}

func (p *Profile) prove(ctx context.Context) ProfileReport {
	r := ProfileReport{Name: p.Name, About: p.About, Guards: guardsWords(p.Guards), Habits: p.Habits.String()}
	for _, f := range p.Faults {
		r.Faults = append(r.Faults, p.expect(ctx, f))
	}
	return r
}

// guardsWords names the guards that a system has, or the ones that it lacks if they are fewer.
func guardsWords(g handoff.Guards) string {
	if lacks := handoff.All &^ g; bits.OnesCount32(uint32(lacks)) < bits.OnesCount32(uint32(g)) {
		return "all but " + strings.ReplaceAll(lacks.String(), "+", ", ")
	}
	return strings.ReplaceAll(g.String(), "+", ", ")
}

// expect explores one fault: the profile, the profile with the repair, and ours.
func (p *Profile) expect(ctx context.Context, f Expected) FaultReport {
	r := FaultReport{
		Name: f.Name, Number: f.Number, Scenario: f.Scenario.Name, Repaired: f.Repaired, Invariant: f.Hold.String(),
		Close: f.Close.String(), Seen: f.Seen, Where: f.Where,
	}
	explore := func(g handoff.Guards, h Habits, only Invariant) (*Model, Exploration) {
		sc := f.Scenario
		sc.Habits = h
		m, err := NewModel(sc, g)
		if err != nil {
			return nil, Exploration{Why: err.Error()}
		}
		x := m.Explore(ctx, Limits{States: profileStates, Only: only})
		r.States += x.States
		return m, x
	}
	m, x := explore(p.Guards, p.Habits, f.Hold)
	if r.Found = x.Outcome == Fail; r.Found {
		r.Broken, r.Length = x.Broken.String(), len(x.Path)
		r.Story = m.shortStory(x.Path, x.Broken, f.Hold)
	}
	r.Closed = Pass
	if !f.Repaired {
		_, closed := explore(p.Guards|f.Close.Add, p.Habits&^f.Close.Drop, f.Hold)
		r.Closed = closed.Outcome
	}
	_, ours := explore(handoff.All, 0, NoInvariant)
	r.Refused = ours.Outcome
	return r
}

// profileStates bounds one exploration of a profile.
const profileStates = 2_000_000

// wrong says what is not as it must be; nothing if all is.
func (f *FaultReport) wrong() string {
	switch {
	case f.Repaired && f.Found:
		return "it is repaired there, and the model still finds it"
	case !f.Repaired && !f.Found:
		return "the model does not find it"
	case f.Closed != Pass:
		return "with " + f.Close + " it is still " + f.Closed.String()
	case f.Refused != Pass:
		return "under our guards the outcome is " + f.Refused.String()
	}
	return ""
}

// Text prints the table.
func (r ProfilesReport) Text() string {
	var b strings.Builder
	for _, p := range r.Profiles {
		fmt.Fprintf(&b, "%s: %s\n  guards: %s; habits: %s\n", p.Name, p.About, p.Guards, p.Habits)
		for _, f := range p.Faults {
			found := fmt.Sprintf("found: %s, %d moves", f.Invariant, f.Length)
			if !f.Found {
				found = "not found (" + f.Invariant + ")"
			}
			ours := "refused"
			if f.Refused != Pass {
				ours = f.Refused.String()
			}
			fmt.Fprintf(&b, "  %-32s %-7s model: %-22s ours: %s\n", f.Name, f.Number, found, ours)
			fmt.Fprintf(&b, "      seen:   %s\n      public: %s\n", f.Seen, f.Where)
			if f.Close != "" {
				fmt.Fprintf(&b, "      closed by: %s\n", f.Close)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "profiles: %v\n", r.Verdict)
	for _, why := range r.Reasons {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	return b.String()
}
