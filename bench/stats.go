package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// interval is an estimate with its 95 % confidence interval.
type interval struct {
	value, low, high float64
	n                int  // samples
	counted          bool // read off, not estimated
}

// exactly is an interval around what was counted.
func exactly(x float64) interval { return interval{x, x, x, 1, true} }

// resamples is how many bootstrap samples an interval is made from.
const resamples = 4000

// bootstrap estimates the median of samples, with the percentile bootstrap's
// interval. The same samples give the same interval. Of no samples it is NaN.
func bootstrap(samples []float64) interval {
	n := len(samples)
	if n == 0 {
		return interval{value: math.NaN(), low: math.NaN(), high: math.NaN()}
	}
	rng := rand.New(rand.NewPCG(uint64(n), 0x9e3779b97f4a7c15))
	medians, draw := make([]float64, resamples), make([]float64, n)
	for i := range medians {
		for j := range draw {
			draw[j] = samples[rng.IntN(n)]
		}
		medians[i] = median(draw)
	}
	slices.Sort(medians)
	return interval{
		value: median(slices.Clone(samples)), n: n,
		low: medians[resamples*25/1000], high: medians[resamples*975/1000-1],
	}
}

// median sorts its argument.
func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	if m := len(x) / 2; len(x)%2 == 1 {
		return x[m]
	} else {
		return (x[m-1] + x[m]) / 2
	}
}

// quantile is the smallest value that the share q of x does not exceed. It sorts
// its argument.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	i := int(math.Ceil(q*float64(len(x)))) - 1
	return x[min(max(i, 0), len(x)-1)]
}

// A block runs its arms in the order A B C C B A, so that a drift that is linear
// over the block adds the same to each. A and C are the same thing, the guards
// on, and what they differ by is noise: the A/A control.
const (
	armOn = iota
	armOff
	armControl
	arms
)

// palindrome is the order of a block.
var palindrome = [...]int{armOn, armOff, armControl, armControl, armOff, armOn}

// block is what one block measured of one metric: each arm twice.
type block [arms][2]float64

// runBlock runs one block. run runs one arm once and returns its metrics, always
// the same ones, all over 0. The result has a block for each metric.
func runBlock(run func(arm int) ([]float64, error)) ([]block, error) {
	var blocks []block
	var seen [arms]int
	for _, arm := range palindrome {
		metrics, err := run(arm)
		if err != nil {
			return nil, err
		}
		if blocks == nil {
			blocks = make([]block, len(metrics))
		}
		for i, x := range metrics {
			blocks[i][arm][seen[arm]] = x
		}
		seen[arm]++
	}
	return blocks, nil
}

// over is by how many percent arm x is more than arm y, by the mean of logs.
func (b *block) over(x, y int) float64 {
	mean := func(a [2]float64) float64 { return (math.Log(a[0]) + math.Log(a[1])) / 2 }
	return 100 * math.Expm1(mean(b[x])-mean(b[y]))
}

// paired is the difference of on against off, and of on against itself, in percent.
type paired struct{ effect, control interval }

// pairedOf estimates from blocks of times; what is compared is their inverse,
// throughput, if kind is rates.
func pairedOf(blocks []block, kind quantity) paired {
	var effect, control []float64
	for i := range blocks {
		b := &blocks[i]
		if kind == rates {
			effect = append(effect, b.over(armOff, armOn)) // less time is more throughput
			control = append(control, b.over(armControl, armOn))
		} else {
			effect = append(effect, b.over(armOn, armOff))
			control = append(control, b.over(armOn, armControl))
		}
	}
	return paired{bootstrap(effect), bootstrap(control)}
}

// quantity says whether times are compared as they are, or as rates.
type quantity int

const (
	times quantity = iota
	rates
)

// bound is the direction of a budget.
type bound string

const (
	atMost  bound = "at_most"
	atLeast bound = "at_least"
)

// budget is what a figure should keep to. The stretch is what it is hoped for.
type budget struct {
	Bound   bound   `json:"bound"`
	Limit   float64 `json:"limit"`
	Stretch float64 `json:"stretch"`
}

// verdict is the judgement on a figure that has a budget.
type verdict string

const (
	met           verdict = "met"
	notMet        verdict = "not_met"
	notMeasurable verdict = "not_measurable" // the interval lies on both sides of the limit
)

// fewest is how many samples a verdict takes; one that was counted, and not
// estimated, has no interval and takes one.
const fewest = 5

// judge compares an interval with the limit. A control, if there is one, is
// what the same thing differs from itself by: no difference that is not larger
// can be told, so the farther end of its interval is added on both sides.
func (b budget) judge(i interval, control *interval) verdict {
	low, high := i.low, i.high
	if i.n < fewest && !i.counted {
		return notMeasurable
	}
	if control != nil {
		blur := max(math.Abs(control.low), math.Abs(control.high))
		low, high = low-blur, high+blur
	}
	if b.Bound == atLeast {
		low, high = -high, -low
		b.Limit = -b.Limit
	}
	switch {
	case high <= b.Limit:
		return met
	case low > b.Limit:
		return notMet
	}
	return notMeasurable // also with NaN
}
