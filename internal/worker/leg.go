package worker

import (
	"sync"

	"bulkhead.dev/bulkhead/handoff"
)

// leg is the owner loop's end of one HTTP request. The loop puts a verdict,
// then output, then an end; the HTTP goroutine takes them. Putting never blocks:
// what can be put is bounded by the request's own max_tokens.
type leg struct {
	mu      sync.Mutex
	verdict *verdict
	text    []byte // output that was not taken yet
	tokens  int    // output tokens so far
	finish  string // "stop" or "length" once the output is complete
	broken  handoff.Code
	ready   chan struct{} // one for all legs of a call
}

// verdict is the one typed outcome of a leg (H-1).
type verdict struct {
	Code   handoff.Code
	Limit  int // with TooLong: tokens that would have been taken
	Tokens int // prompt tokens as this worker counts them
}

func newLeg(ready chan struct{}) *leg { return &leg{ready: ready} }

func (l *leg) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// answer gives the verdict; a later failure breaks the answer visibly (H-14).
func (l *leg) answer(v verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.verdict == nil {
		l.verdict = &v
	} else if v.Code != handoff.OK && l.finish == "" {
		l.broken = v.Code
	}
	l.wake()
}

// put appends output.
func (l *leg) put(text []byte, tokens int, finish string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, text...)
	l.tokens = tokens
	l.finish = finish
	l.wake()
}

// news is what a leg had to tell since it was last looked at.
type news struct {
	verdict *verdict
	text    []byte
	tokens  int
	finish  string
	broken  handoff.Code
}

// look takes the output and returns the rest as it stands. Before the verdict
// there is nothing to see: what prefill's answer holds comes just before it.
func (l *leg) look() news {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.verdict == nil {
		return news{}
	}
	n := news{verdict: l.verdict, text: l.text, tokens: l.tokens, finish: l.finish, broken: l.broken}
	l.text = nil
	return n
}

// outcome is the leg's verdict; nil before there is one.
func (l *leg) outcome() *verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.verdict
}
