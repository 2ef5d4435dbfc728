package fleet

// Why says what keeps an engine from taking requests. It is a word of ours: what an
// engine answered is never shown.
type Why uint8

const (
	// Unseen: nobody looked yet.
	Unseen Why = iota
	// NodeReady: nothing does.
	NodeReady
	// Away: no connection came about.
	Away
	// Declines: it says itself that it cannot serve.
	Declines
	// Quiet: it gave no answer of an engine.
	Quiet
	// Slow: it gave no answer in time.
	Slow
	// Stale: its last answer is too old.
	Stale
	// Unmatched: it fits none of its partners, or serves another model.
	Unmatched
	// LimitsUnknown: it does not tell a limit that admission needs (G-2).
	LimitsUnknown
	// TwoFaced: different engines answered at its address.
	TwoFaced
	// Twin: another node is the same engine.
	Twin
	// Duplicate: another source has the same address.
	Duplicate
	// Unwell: it did not answer a known question rightly, several times in a row (G-9).
	Unwell
	// Broken: its breaker is open, for its requests keep failing.
	Broken
	// Drains: the operator drains it.
	Drains
	// Surplus: the model has more engines, or combinations of them, than its bounds allow.
	Surplus
	// Unresolved: the name or the file of a source gives no usable list; the last one stays.
	Unresolved
	// Gone: its source does not name it any more.
	Gone
)

// String says it in words.
func (w Why) String() string {
	names := [...]string{"not looked at yet", "ready", "cannot be reached", "says that it cannot serve", "gives no usable answer",
		"gave no answer in time", "last answer is too old", "fits no partner or serves another model", "does not tell its limits",
		"different engines answer at this address", "is the same engine as another node", "has the address of another node",
		"does not answer a known question", "requests keep failing", "is being drained", "is one too many",
		"the source gives no usable list", "its source does not name it any more"}
	if int(w) < len(names) {
		return names[w]
	}
	return "unknown"
}

// EventKind is what happened.
type EventKind uint8

const (
	// NodeUp: an engine takes requests from now on.
	NodeUp EventKind = iota
	// NodeDown: it takes none from now on; Why says the reason.
	NodeDown
	// NodeAdded and NodeRemoved: a source named it, or does not name it any more.
	NodeAdded
	NodeRemoved
	// Reborn: another process answers at its address than before.
	Reborn
	// BreakerOpened and BreakerClosed: its requests kept failing, or one succeeded again.
	BreakerOpened
	BreakerClosed
	// SourceFailed and SourceRecovered: a name or a file gave no usable list, or gives one again.
	SourceFailed
	SourceRecovered
)

// String returns the kind's name, with underscores.
func (k EventKind) String() string {
	names := [...]string{"node_up", "node_down", "node_added", "node_removed", "reborn", "breaker_opened", "breaker_closed",
		"source_failed", "source_recovered"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}
