package llm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sentinels of sampling.
var (
	// ErrRange says that a sampling value is out of its range; the text names it.
	ErrRange = errors.New("llm: sampling value out of range")
	// ErrLogits says that logits are not numbers. The answer that they belong to
	// must fail: what was read was not KV of this model.
	ErrLogits = errors.New("llm: logits are not finite")
)

// Sampling says how tokens are chosen. The zero value is greedy.
type Sampling struct {
	Temperature float64 // 0 to 2; 0 is greedy: the largest logit, the lowest id of equals
	TopP        float64 // over 0 to 1: the smallest set of this probability; 0 means 1
	TopK        int     // the k likeliest; 0 means all
	Seed        uint64  // of the choices; without effect if greedy
}

// Check refuses values out of range.
//
// Errors: [ErrRange].
func (s Sampling) Check() error {
	switch {
	case !(s.Temperature >= 0 && s.Temperature <= 2):
		return fmt.Errorf("%w: temperature: want 0 to 2", ErrRange)
	case !(s.TopP >= 0 && s.TopP <= 1):
		return fmt.Errorf("%w: top_p: want over 0, up to 1", ErrRange)
	case s.TopK < 0:
		return fmt.Errorf("%w: top_k: want 0 or more", ErrRange)
	}
	return nil
}

// Sampler chooses the tokens of one answer.
//
// Token number n of an answer depends on the sampling values, n and its logits
// alone. So prefill chooses the first token with a new sampler, and decode goes on
// with another one after Skip(1).
type Sampler struct {
	how   Sampling
	state rand.PCG
	ranks []rank // scratch
}

type rank struct {
	token Token
	p     float64 // logit, then weight
}

// NewSampler makes a sampler for a new answer.
//
// Errors: [ErrRange].
func NewSampler(s Sampling) (*Sampler, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if s.TopP == 0 {
		s.TopP = 1
	}
	p := &Sampler{how: s}
	p.state.Seed(s.Seed, 0x62756c6b68656164) // any constant
	return p, nil
}

// Skip goes on as if n tokens had been chosen.
func (s *Sampler) Skip(n int) {
	for range n {
		s.state.Uint64()
	}
}

// Next chooses a token. logits has one value per token of the vocabulary and is
// left as it is.
//
// Errors: [ErrLogits].
func (s *Sampler) Next(logits []float32) (Token, error) {
	best, err := largest(logits)
	if err != nil || s.how.Temperature == 0 {
		return best, err
	}
	total := s.weigh(logits, float64(logits[best]))
	// One draw a token: Skip counts on it.
	u := float64(s.state.Uint64()>>11) / (1 << 53) * total
	for _, r := range s.ranks {
		if u -= r.p; u < 0 {
			return r.token, nil
		}
	}
	return s.ranks[0].token, nil // rounding left a rest
}

// largest is the greedy choice.
func largest(logits []float32) (Token, error) {
	best, top := -1, float32(math.Inf(-1))
	for i, x := range logits {
		if x-x != 0 { // NaN and Inf
			return 0, ErrLogits
		}
		if x > top {
			best, top = i, x
		}
	}
	if best < 0 {
		return 0, ErrLogits
	}
	return Token(best), nil
}

// weigh ranks the candidates, cuts them to top_k and then to top_p, and returns
// the sum of their weights.
func (s *Sampler) weigh(logits []float32, top float64) float64 {
	s.ranks = s.ranks[:0]
	for i, x := range logits {
		s.ranks = append(s.ranks, rank{Token(i), math.Exp((float64(x) - top) / s.how.Temperature)})
	}
	slices.SortFunc(s.ranks, func(a, b rank) int {
		if c := cmp.Compare(b.p, a.p); c != 0 {
			return c
		}
		return cmp.Compare(a.token, b.token)
	})
	if k := s.how.TopK; k > 0 && k < len(s.ranks) {
		s.ranks = s.ranks[:k]
	}
	total := 0.0
	for _, r := range s.ranks {
		total += r.p
	}
	if s.how.TopP == 1 {
		return total
	}
	kept := 0.0
	for i, r := range s.ranks {
		if kept += r.p; kept >= s.how.TopP*total {
			s.ranks = s.ranks[:i+1]
			break
		}
	}
	return kept
}
