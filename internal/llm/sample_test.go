package llm

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestSamplingRanges(t *testing.T) {
	nan := math.NaN()
	for _, s := range []Sampling{
		{Temperature: -0.1}, {Temperature: 2.1}, {Temperature: nan}, {Temperature: math.Inf(1)},
		{TopP: -0.1}, {TopP: 1.1}, {TopP: nan}, {TopK: -1},
	} {
		if _, err := NewSampler(s); !errors.Is(err, ErrRange) {
			t.Errorf("%+v: got %v", s, err)
		}
	}
	for _, s := range []Sampling{{}, {Temperature: 2, TopP: 1, TopK: 1 << 40, Seed: math.MaxUint64}} {
		if _, err := NewSampler(s); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestSamplingRefusesBadLogits(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, how := range []Sampling{{}, {Temperature: 1}} {
		for _, logits := range [][]float32{nil, {nan}, {1, 2, nan}, {nan, 3}, {1, inf}, {-inf, 1}} {
			s, _ := NewSampler(how)
			if _, err := s.Next(logits); !errors.Is(err, ErrLogits) {
				t.Errorf("%v: got %v", logits, err)
			}
		}
	}
}

func draws(t *testing.T, how Sampling, logits []float32, n int) []Token {
	t.Helper()
	s, err := NewSampler(how)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Token, n)
	for i := range out {
		if out[i], err = s.Next(logits); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestGreedy(t *testing.T) {
	logits := []float32{-3, 5, 5, 1}
	if got := draws(t, Sampling{Seed: 4}, logits, 3); !slices.Equal(got, []Token{1, 1, 1}) {
		t.Errorf("got %v", got)
	}
	if !slices.Equal(logits, []float32{-3, 5, 5, 1}) {
		t.Error("the logits were changed")
	}
}

// The shares of many draws are those of the softmax, after the cuts.
func TestSampledShares(t *testing.T) {
	logits := []float32{1, 3, 2, 0, -40} // of e^x: 7.4, 20.1 of 32.2, ...
	const n = 20000
	for _, c := range []struct {
		how  Sampling
		want []float64
	}{
		{Sampling{Temperature: 1}, []float64{0.0871, 0.6439, 0.2369, 0.0321, 0}},
		{Sampling{Temperature: 2}, []float64{0.1674, 0.4550, 0.2760, 0.1016, 0}},
		{Sampling{Temperature: 1, TopK: 2}, []float64{0, 0.7311, 0.2689, 0, 0}},
		{Sampling{Temperature: 1, TopP: 0.6}, []float64{0, 1, 0, 0, 0}},
		{Sampling{Temperature: 1, TopP: 0.7}, []float64{0, 0.7311, 0.2689, 0, 0}},
		{Sampling{Temperature: 1, TopP: 0.95, TopK: 3}, []float64{0.0900, 0.6652, 0.2447, 0, 0}},
		{Sampling{Temperature: 0.01}, []float64{0, 1, 0, 0, 0}},
	} {
		c.how.Seed = 11
		count := make([]float64, len(logits))
		for _, tok := range draws(t, c.how, logits, n) {
			count[tok]++
		}
		for i, want := range c.want {
			got := count[i] / n
			if want == 0 && got != 0 || math.Abs(got-want) > 5*math.Sqrt(want/n) {
				t.Errorf("%+v: token %d: share %.4f, want %.4f", c.how, i, got, want)
			}
		}
	}
}

func TestSeedDecides(t *testing.T) {
	logits := make([]float32, 200)
	how := Sampling{Temperature: 1, TopP: 0.99, Seed: 42}
	want := draws(t, how, logits, 50)
	if !slices.Equal(draws(t, how, logits, 50), want) {
		t.Error("one seed gave two answers")
	}
	other := how
	other.Seed++
	if slices.Equal(draws(t, other, logits, 50), want) {
		t.Error("two seeds gave one answer")
	}
	for n := range 5 {
		s, _ := NewSampler(how)
		s.Skip(n)
		if tok, err := s.Next(logits); err != nil || tok != want[n] {
			t.Errorf("after Skip(%d): %d, %v; want %d", n, tok, err, want[n])
		}
	}
}
