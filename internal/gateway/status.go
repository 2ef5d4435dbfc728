package gateway

import (
	"errors"
	"net"
	"slices"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
)

// Why says what the last look at a pair found. It is a word of ours: what a worker
// answered may be another request's text, and is never shown.
type Why uint8

const (
	// Unseen: nobody looked yet.
	Unseen Why = iota
	// Fits: both workers answered, and they fit together.
	Fits
	// PrefillAway and DecodeAway: no connection to that worker came about.
	PrefillAway
	DecodeAway
	// PrefillDeclines and DecodeDeclines: that worker says that it cannot serve; for decode,
	// mostly because it has no link to prefill.
	PrefillDeclines
	DecodeDeclines
	// PrefillSilent and DecodeSilent: that worker gave no answer in time, or not one of a worker.
	PrefillSilent
	DecodeSilent
	// Unmatched: the two are of different roles, models, page sizes or versions than they must be.
	Unmatched
)

// String says it in words.
func (w Why) String() string {
	names := [...]string{"not looked at yet", "fits", "prefill cannot be reached", "decode cannot be reached",
		"prefill says that it cannot serve", "decode says that it cannot serve", "prefill gives no usable answer",
		"decode gives no usable answer", "the workers do not fit together or to the model"}
	if int(w) < len(names) {
		return names[w]
	}
	return "unknown"
}

// found names what kept prefill, or else decode, from answering a look.
func found(errs [2]error) Why {
	for i, err := range errs {
		var op *net.OpError
		switch {
		case err == nil:
		case errors.Is(err, errStatus):
			return [...]Why{PrefillDeclines, DecodeDeclines}[i]
		case errors.As(err, &op) && op.Op == "dial":
			return [...]Why{PrefillAway, DecodeAway}[i]
		default:
			return [...]Why{PrefillSilent, DecodeSilent}[i]
		}
	}
	return Fits
}

// Status is what a gateway knows of itself and its workers, for its operator. It holds
// names of the configuration and numbers, and nothing that a client or a worker wrote.
type Status struct {
	// Ready says that some pair can serve.
	Ready bool
	// InFlight counts requests in progress, those of earlier configurations included.
	InFlight int64
	// Pairs are in the order of models by name, then of the configuration.
	Pairs []PairStatus
}

// PairStatus is one pair in a [Status].
type PairStatus struct {
	Model, Pair string
	// Ready says that the pair takes requests.
	Ready bool
	// Why is what the last look found; Seen is when, zero if there was none.
	Why  Why
	Seen time.Time
	// Busy counts attempts in progress, under the present configuration only.
	Busy int64
	// Limits are those of the last look that found a fitting pair.
	Limits admit.Limits
}

// Status returns what the gateway knows now. It asks no worker.
func (g *Gateway) Status() Status {
	now := g.clock.Now()
	s := Status{InFlight: g.seats.held()}
	for _, m := range g.models {
		for _, p := range m.pairs {
			limits, ok := p.ready(now, g.bounds.Fresh)
			_, known := limits.Advertised().Value()
			p.mu.Lock()
			ps := PairStatus{
				Model: m.Name, Pair: p.Name, Ready: ok && known,
				Why: p.why, Seen: p.seen, Busy: p.busy.Load(), Limits: limits,
			}
			p.mu.Unlock()
			s.Ready = s.Ready || ps.Ready
			s.Pairs = append(s.Pairs, ps)
		}
	}
	slices.SortStableFunc(s.Pairs, func(a, b PairStatus) int {
		switch {
		case a.Model < b.Model:
			return -1
		case a.Model > b.Model:
			return 1
		}
		return 0
	})
	return s
}
