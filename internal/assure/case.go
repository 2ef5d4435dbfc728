package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// Outcome is what a case showed.
type Outcome uint8

const (
	// Red: it leaks, it dies, or it obeys who must not command it.
	Red Outcome = iota + 1
	// Green: the case was tried, its control held, and nothing of that happened.
	Green
	// Void: the control failed, so nothing was shown either way. Never a pass.
	Void
	// Skip: it was not tried; the reason says what is missing.
	Skip
)

// String returns the word that reports print.
func (o Outcome) String() string {
	switch o {
	case Red:
		return "RED"
	case Green:
		return "GREEN"
	case Void:
		return "VOID"
	case Skip:
		return "SKIP"
	}
	return "NONE"
}

// MarshalText writes the word.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads a word that MarshalText wrote.
func (o *Outcome) UnmarshalText(text []byte) error {
	for _, known := range []Outcome{Red, Green, Void, Skip} {
		if known.String() == string(text) {
			*o = known
			return nil
		}
	}
	return fmt.Errorf("assure: read outcome: no such word")
}

// Way is how the calls of a case travel.
type Way uint8

const (
	// Direct: straight at the engines. For a pair, as a naive client would: both legs, and
	// prefill's answer is not looked at further than the protocol needs.
	Direct Way = iota
	// Router: through somebody's router before the engines.
	Router
	// Bulkhead: through Bulkhead.
	Bulkhead
)

// String returns the name of the way.
func (w Way) String() string {
	switch w {
	case Direct:
		return "direct"
	case Router:
		return "router"
	case Bulkhead:
		return "bulkhead"
	}
	return "no way"
}

// MarshalText writes the name.
func (w Way) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads a name that MarshalText wrote.
func (w *Way) UnmarshalText(text []byte) error {
	for _, known := range []Way{Direct, Router, Bulkhead} {
		if known.String() == string(text) {
			*w = known
			return nil
		}
	}
	return fmt.Errorf("assure: read way: no such name")
}

// Case is one thing that engines have been seen to do to a tenant.
type Case struct {
	// Name identifies the case for ever: dialect family, then what is tried.
	Name string
	// Title says in one line what a RED means.
	Title string
	// Rules are the rules of docs/design/rules.md that keep it green.
	Rules []string
	// Dialects are those that it makes sense for.
	Dialects []upstream.Dialect
	// Ways are those that it can be tried on. None means all.
	Ways []Way
	// Kills: a RED may end an engine. Such cases run last, and only with consent.
	Kills bool
	// Withheld: what a RED would say of an engine is not public yet. It is told to the one
	// who runs it, and is on no page; see SECURITY.md.
	Withheld bool
	// Run tries it.
	Run func(ctx context.Context, p *Probe) Verdict
}

// Verdict is the outcome of one case on one way.
type Verdict struct {
	Outcome Outcome
	// Why says what was seen: statuses, counts and fingerprints. No text of a prompt, an
	// answer or a canary.
	Why string
	// Control says how the run showed that the case was really tried.
	Control string
}

// red, green, void and skip make verdicts. why is a format without text of people.

func red(control, why string, args ...any) Verdict {
	return Verdict{Outcome: Red, Why: fmt.Sprintf(why, args...), Control: control}
}

func green(control, why string, args ...any) Verdict {
	return Verdict{Outcome: Green, Why: fmt.Sprintf(why, args...), Control: control}
}

func void(why string, args ...any) Verdict {
	return Verdict{Outcome: Void, Why: fmt.Sprintf(why, args...)}
}

func skip(why string, args ...any) Verdict {
	return Verdict{Outcome: Skip, Why: fmt.Sprintf(why, args...)}
}

// Cases returns all cases, in the order in which they run.
func Cases() []Case {
	return slices.Concat(llamaCases(), vllmCases(), sglangCases())
}

// For returns those of the cases that a dialect knows, those that may kill an engine
// last.
func For(cases []Case, d upstream.Dialect) []Case {
	var quiet, deadly []Case
	for _, c := range cases {
		switch {
		case !slices.Contains(c.Dialects, d):
		case c.Kills:
			deadly = append(deadly, c)
		default:
			quiet = append(quiet, c)
		}
	}
	return append(quiet, deadly...)
}

// encode makes the body of a request: bytes and strings as they are, anything else as
// JSON.
func encode(body any) ([]byte, error) {
	switch b := body.(type) {
	case nil:
		return nil, nil
	case []byte:
		return b, nil
	case json.RawMessage:
		return b, nil
	case string:
		return []byte(b), nil
	}
	return json.Marshal(body)
}
