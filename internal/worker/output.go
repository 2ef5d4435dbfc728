package worker

import (
	"bytes"

	"bulkhead.dev/bulkhead/internal/llm"
)

// output is the answer of one attempt as it grows.
type output struct {
	req     *request
	sampler *llm.Sampler
	text    llm.Assembler
	held    []byte    // text that may be the start of a stop string
	last    llm.Token // what the next step is given
	tokens  int
}

// start begins an answer. At decode the first token was sampled by prefill.
func (o *output) start(r *request) error {
	s, err := llm.NewSampler(r.sampling)
	if err != nil {
		return err
	}
	*o = output{req: r, sampler: s}
	return nil
}

func (o *output) sample(logits []float32) (llm.Token, error) { return o.sampler.Next(logits) }

// push adds a token and hands its text to the leg. It reports whether the
// answer is complete.
func (o *output) push(t llm.Token, l *leg) bool {
	var tok llm.Bytes
	o.last = t
	o.tokens++
	finish := ""
	switch {
	case tok.Ends(t):
		finish = "stop"
	case o.tokens >= o.req.maxTokens:
		finish = "length"
	}
	o.held = o.text.Write(o.held, tok.Append(nil, t))
	if finish != "" {
		o.held = o.text.Flush(o.held)
	}
	if at := firstStop(o.held, o.req.stops); at >= 0 {
		o.held, finish = o.held[:at], "stop"
	}
	ready := len(o.held)
	if finish == "" {
		ready -= maybeStop(o.held, o.req.stops)
	}
	l.put(o.held[:ready], o.tokens, finish)
	o.held = append(o.held[:0], o.held[ready:]...)
	return finish != ""
}

// firstStop is where the first stop string begins in text, or -1.
func firstStop(text []byte, stops [][]byte) int {
	at := -1
	for _, s := range stops {
		if i := bytes.Index(text, s); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	return at
}

// maybeStop is how many bytes at the end of text could begin a stop string.
func maybeStop(text []byte, stops [][]byte) int {
	most := 0
	for _, s := range stops {
		for n := min(len(s)-1, len(text)); n > most; n-- {
			if bytes.HasSuffix(text, s[:n]) {
				most = n
			}
		}
	}
	return most
}

// one is prefill's answer: the token that it sampled, as far as its bytes are
// whole text.
func (o *output) one(t llm.Token, l *leg) {
	var tok llm.Bytes
	o.tokens = 1
	l.put(o.text.Write(nil, tok.Append(nil, t)), 1, "length")
}
