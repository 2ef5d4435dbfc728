package world

import "strings"

// Habits are what a system does beside its guards, and ours does not: switches of
// the driver and of the transport. The zero value is ours.
type Habits uint16

const (
	// HabitStub: prefill answers a prompt that its door refuses with a placeholder
	// of the attempt's stub pages, and goes on.
	HabitStub Habits = 1 << iota
	// HabitDefer: after an abort of its own, decode holds the pages until every
	// writer has said Quiet. It stands in for the write key.
	HabitDefer
	// HabitClock: pages that are held so are freed when a clock says so.
	HabitClock
	// HabitForgets: prefill forgets whom it owes Quiet when writes are under way.
	HabitForgets
	// HabitLease: source pages are freed when their lease has run out, fetched or not.
	HabitLease
	// HabitHandle: decode fetches the source pages that its leg's handle names, and asks
	// nobody.
	HabitHandle
	// HabitUnregister: taking a write key away does not stop a write that has begun to land.
	HabitUnregister
	// HabitEvict: the prefix cache evicts pages that an attempt has pinned.
	HabitEvict

	habitEnd
)

var habitNames = [...]string{"stub", "defer", "clock", "forgets", "lease", "handle", "unregister", "evict"}

// String names the habits as scripts do, with a space between them; none is "ours".
func (h Habits) String() string {
	var names []string
	for i, n := range habitNames {
		if h>>i&1 != 0 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "ours"
	}
	return strings.Join(names, " ")
}

// Sentence says what one habit is.
func (h Habits) Sentence() string {
	for i, s := range [...]string{
		"prefill answers an over-long prompt with a placeholder and goes on",
		"decode holds the pages of an attempt that it aborted until every writer has said Quiet",
		"pages that are held so are freed on a clock",
		"prefill forgets whom it owes Quiet when writes are under way",
		"source pages are freed on a clock, fetched or not",
		"decode fetches the pages that its client's handle names, and asks nobody",
		"taking a write key away does not stop a write that has begun to land",
		"the prefix cache evicts pages that are held",
	} {
		if h == 1<<i {
			return s
		}
	}
	return ""
}

// has reports whether the modelled system has a habit.
func (m *Model) has(h Habits) bool { return m.sc.Habits&h != 0 }
