package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestBootstrap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var x []float64
	for range 400 {
		x = append(x, 10+rng.NormFloat64())
	}
	i := bootstrap(x)
	if i.n != 400 || i.low > i.value || i.value > i.high || i.low > 10 || i.high < 10 {
		t.Errorf("%+v does not hold 10", i)
	}
	if width := i.high - i.low; width < 0.1 || width > 0.5 { // the median's error is 1.25/20
		t.Errorf("%+v is %g wide", i, width)
	}
	if again := bootstrap(x); again != i {
		t.Errorf("the same samples gave %+v and %+v", i, again)
	}
	if few := bootstrap(x[:8]); few.high-few.low <= i.high-i.low {
		t.Errorf("8 samples are as good as 400: %+v", few)
	}
	if none := bootstrap(nil); !math.IsNaN(none.value) || none.n != 0 {
		t.Errorf("of nothing: %+v", none)
	}
}

func TestMedianAndQuantile(t *testing.T) {
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three: %g", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of four: %g", got)
	}
	var x []float64
	for i := range 200 {
		x = append(x, float64(200-i))
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := quantile(x, q); got != want {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
}

// TestPaired plants an effect under a drift that is many times as large, and finds
// it; and finds none where none is.
func TestPaired(t *testing.T) {
	const effect = 0.4 // percent
	rng := rand.New(rand.NewPCG(2, 2))
	blocks := make([]block, 0, 300)
	for range 300 {
		drift, slope := 100.0, math.Exp(0.05*rng.NormFloat64())
		b, err := runBlock(func(arm int) ([]float64, error) {
			drift *= slope
			x := drift * (1 + 0.001*rng.NormFloat64())
			if arm != armOff {
				x *= 1 + effect/100
			}
			return []float64{x}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b[0])
	}
	for kind, sign := range map[quantity]float64{times: 1, rates: -1} {
		p := pairedOf(blocks, kind)
		if p.effect.low*p.effect.high <= 0 || math.Abs(p.effect.value-sign*effect) > 0.05 {
			t.Errorf("effect %+v, want %g", p.effect, sign*effect)
		}
		if math.Abs(p.control.value) > 0.05 {
			t.Errorf("control %+v, want 0", p.control)
		}
	}
}

func TestJudge(t *testing.T) {
	at := func(value, low, high float64) interval { return interval{value: value, low: low, high: high, n: 10} }
	most, least := budget{Bound: atMost, Limit: 1.3}, budget{Bound: atLeast, Limit: -0.5}
	nan := math.NaN()
	for _, c := range []struct {
		name    string
		b       budget
		i       interval
		control *interval
		want    verdict
	}{
		{"below", most, at(1.1, 1.0, 1.2), nil, met},
		{"at the limit", most, at(1.2, 1.1, 1.3), nil, met},
		{"across", most, at(1.2, 1.1, 1.4), nil, notMeasurable},
		{"above", most, at(1.5, 1.4, 1.6), nil, notMet},
		{"unknown", most, at(nan, nan, nan), nil, notMeasurable},
		{"few", most, interval{value: 1.1, low: 1.1, high: 1.1, n: fewest - 1}, nil, notMeasurable},
		{"counted", most, exactly(1.1), nil, met},
		{"counted above", most, exactly(1.4), nil, notMet},
		{"less loss", least, at(-0.2, -0.4, 0), nil, met},
		{"more loss", least, at(-0.9, -1, -0.7), nil, notMet},
		{"loss across", least, at(-0.5, -0.6, -0.4), nil, notMeasurable},
		{"a control that moves", least, at(-0.2, -0.4, 0), &interval{low: -0.05, high: 0.2}, notMeasurable},
		{"a control that moves the other way", least, at(-0.9, -1, -0.7), &interval{low: -0.3, high: -0.1}, notMeasurable},
		{"a control that stands", least, at(-0.2, -0.4, 0), &interval{low: -0.1, high: 0.05}, met},
		{"a loss that stands out", least, at(-0.9, -1, -0.7), &interval{low: -0.1, high: 0.1}, notMet},
		{"a gain in the noise", most, at(-4, -9, -0.5), &interval{low: -8, high: 6}, notMeasurable},
	} {
		if got := c.b.judge(c.i, c.control); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
