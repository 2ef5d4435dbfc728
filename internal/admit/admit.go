// Package admit decides whether a request fits the engines that serve it, before any of them
// is asked. The decision is a pure function of token counts and limits.
//
// It promises that nothing is cut to fit: a request is admitted as it is, refused with
// the two numbers that do not go together, or left open with a reason. A limit that is
// not known is a value of its own and never taken for zero or for infinity.
//
// What must not come in: clocks, HTTP, engines, and how tokens are counted.
package admit

import "math"

// Tokens is a number of tokens, or the knowledge that it is not known. The zero value
// is unknown.
type Tokens struct {
	n     int64
	known bool
}

// Known is n tokens.
func Known(n int64) Tokens { return Tokens{n: n, known: true} }

// Unknown is a number of tokens that is not known.
func Unknown() Tokens { return Tokens{} }

// Value returns the number, and whether it is known. An unknown number is returned as
// zero and must not be used.
func (t Tokens) Value() (n int64, known bool) { return t.n, t.known }

// Min is the smaller of two numbers. It is unknown if either of them is.
func Min(a, b Tokens) Tokens {
	if !a.known || !b.known {
		return Tokens{}
	}
	return Known(min(a.n, b.n))
}

// Basis says which limits must be known before anything is admitted.
type Basis uint8

const (
	// Pools: all four. It is the zero value.
	Pools Basis = iota
	// WindowAlone: the window only, for a hosted model that has no pool to read. Whoever
	// admits on it does not know whether the prompt fits, and must say so (G-2).
	WindowAlone
)

// String returns the basis's name.
func (b Basis) String() string {
	if b == WindowAlone {
		return "window alone"
	}
	return "pools"
}

// Limits says what one pair of workers takes, in tokens; a server without a second leg
// is both of its workers. A pool is a capacity, not what is free at the moment (G-2).
type Limits struct {
	// Window is the advertised context length: prompt and answer together.
	Window Tokens
	// Prefill is the longest prompt that the prefill worker takes.
	Prefill Tokens
	// DecodePrompt is the longest prompt that the decode worker takes.
	DecodePrompt Tokens
	// Decode is what the decode worker's pool holds: prompt and answer together.
	Decode Tokens
	// Basis says which of them must be known. Those that are known hold in any case.
	Basis Basis
}

// Advertised is the number of tokens, prompt and answer together, that the pair serves
// whatever their shares are. It is unknown if any limit is that must be known.
func (l Limits) Advertised() Tokens {
	if l.Basis != WindowAlone {
		return Min(Min(l.Window, l.Prefill), Min(l.DecodePrompt, l.Decode))
	}
	all := l.Window
	for _, t := range [...]Tokens{l.Prefill, l.DecodePrompt, l.Decode} {
		if t.known {
			all = Min(all, t)
		}
	}
	return all
}

// total is what prompt and answer may have together, over the limits that count.
func (l Limits) total() Tokens {
	if l.Basis == WindowAlone && !l.Decode.known {
		return l.Window
	}
	return Min(l.Window, l.Decode)
}

// Request says what is known of a request, in tokens.
type Request struct {
	// Low and High bound the prompt, both inclusive. They come from the length of its
	// text and cost nothing.
	Low, High int64
	// Exact is the prompt's count where it was taken; it takes the place of the bounds.
	Exact Tokens
	// Output is what the client asked for at most; unknown if it asked for nothing.
	Output Tokens
	// Default is the route's answer length for a client that asked for nothing. It must
	// be positive.
	Default int64
}

// Outcome is what became of a request at the door.
type Outcome uint8

const (
	// Unsettled is the zero value and no decision. Nothing may be dispatched on it.
	Unsettled Outcome = iota
	// Admit: the request fits, with Decision.MaxTokens as its answer's limit.
	Admit
	// NeedCount: the bounds leave it open. Count the prompt and decide again.
	NeedCount
	// RefuseZero: the prompt or the answer would have no token.
	RefuseZero
	// RefuseWindow: prompt and answer exceed the advertised window.
	RefuseWindow
	// RefusePrefill: the prompt exceeds what the prefill worker takes.
	RefusePrefill
	// RefuseDecode: the prompt, or prompt and answer, exceed the decode worker.
	RefuseDecode
	// LimitUnknown: a limit is not known, and no known one refuses the request.
	LimitUnknown
)

// String returns the outcome's name.
func (o Outcome) String() string {
	names := [...]string{"unsettled", "admit", "need count", "refuse: zero tokens", "refuse: window", "refuse: prefill", "refuse: decode", "limit unknown"}
	if int(o) < len(names) {
		return names[o]
	}
	return "no outcome"
}

// Decision is an outcome and the numbers that belong to it.
type Decision struct {
	Outcome Outcome
	// MaxTokens is the answer's limit to send to the workers; set on Admit only.
	MaxTokens int64
	// Prompt is the prompt's count on which a refusal rests: exact if Exact is set,
	// else the lower bound, which is enough to refuse.
	Prompt int64
	Exact  bool
	// Output is the number of answer tokens on which a refusal rests; 0 if the prompt
	// alone is refused.
	Output int64
	// Limit is the limit that refuses.
	Limit int64
	// Basis is that of the limits on which the request was admitted.
	Basis Basis
}

// Decide judges r against the limits of one pair. It decides on the bounds where they
// decide, and asks for the exact count only in between (G-2). A request without Output
// gets the smaller of Default and what its prompt leaves.
func Decide(r Request, l Limits) Decision {
	if n, known := r.Exact.Value(); known {
		d := decide(n, r, l)
		d.Exact = true
		return d
	}
	if r.Low > r.High {
		return Decision{Outcome: NeedCount}
	}
	low := decide(r.Low, r, l)
	if low.Outcome != Admit && low.Outcome != LimitUnknown && low.Outcome != RefuseZero {
		// More prompt can only be worse: the lower bound is enough to refuse.
		return low
	}
	high := decide(r.High, r, l)
	if low.Outcome == high.Outcome && low.MaxTokens == high.MaxTokens {
		return low
	}
	return Decision{Outcome: NeedCount}
}

// decide judges a prompt of exactly n tokens. Known limits refuse before unknown ones
// are looked at, so that a certain refusal is not delayed by a missing number.
func decide(n int64, r Request, l Limits) Decision {
	want, asked := r.Output.Value()
	if n <= 0 || asked && want <= 0 {
		return Decision{Outcome: RefuseZero, Prompt: n}
	}
	// The prompt alone; an answer has at least one token, so it must leave one.
	for _, c := range [...]struct {
		limit   Tokens
		least   int64
		outcome Outcome
	}{
		{l.Window, 1, RefuseWindow},
		{l.Prefill, 0, RefusePrefill},
		{l.DecodePrompt, 0, RefuseDecode},
		{l.Decode, 1, RefuseDecode},
	} {
		if limit, known := c.limit.Value(); known && sum(n, c.least) > limit {
			return Decision{Outcome: c.outcome, Prompt: n, Limit: limit}
		}
	}
	if asked {
		if limit, known := l.Window.Value(); known && sum(n, want) > limit {
			return Decision{Outcome: RefuseWindow, Prompt: n, Output: want, Limit: limit}
		}
		if limit, known := l.Decode.Value(); known && sum(n, want) > limit {
			return Decision{Outcome: RefuseDecode, Prompt: n, Output: want, Limit: limit}
		}
	}
	if _, known := l.Advertised().Value(); !known {
		return Decision{Outcome: LimitUnknown, Prompt: n}
	}
	if !asked {
		total, _ := l.total().Value()
		want = min(r.Default, total-n)
		if want <= 0 {
			return Decision{Outcome: RefuseZero, Prompt: n}
		}
	}
	return Decision{Outcome: Admit, Prompt: n, MaxTokens: want, Basis: l.Basis}
}

// sum adds without wrapping round: an absurd number stays absurd.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
