package route

import (
	"math"
	"slices"
	"testing"
)

// dice is a repeatable source of numbers.
type dice uint64

func (d *dice) next() uint64 {
	*d += 0x9e3779b97f4a7c15
	return mix(uint64(*d))
}

// upTo returns a number from 0 to n-1.
func (d *dice) upTo(n int) int { return int(d.next() % uint64(n)) }

func even(n int) []Candidate {
	c := make([]Candidate, n)
	for i := range c {
		c[i] = Candidate{ID: Hash(string(rune('a' + i))), Weight: 1}
	}
	return c
}

func TestTwo(t *testing.T) {
	if got := Two(nil, 1, 0, 0); got != -1 {
		t.Errorf("of none: %d", got)
	}
	if got := Two(even(1), 1, math.MaxUint64, math.MaxUint64); got != 0 {
		t.Errorf("of one: %d", got)
	}
	of := []Candidate{{Load: 100, Weight: 1}, {Load: 30, Weight: 1}}
	d := dice(1)
	for range 1000 {
		if got := Two(of, 10, d.next(), d.next()); got != 1 {
			t.Fatalf("the busier of two: %d", got)
		}
	}
	// Four times the weight bears four times the load.
	of = []Candidate{{Load: 100, Weight: 4}, {Load: 30, Weight: 1}}
	if got := Two(of, 10, 0, math.MaxUint64); got != 0 {
		t.Errorf("weights: %d", got)
	}
	// Every candidate is picked, also by the greatest numbers.
	seen := map[int]int{}
	idle := even(5)
	for range 5000 {
		seen[Two(idle, 1, d.next(), d.next())]++
	}
	seen[Two(idle, 1, math.MaxUint64, math.MaxUint64)]++
	for i := range 5 {
		if seen[i] < 500 {
			t.Errorf("candidate %d is picked %d times of 5000", i, seen[i])
		}
	}
}

// TestTwoSpreads simulates arrivals and departures: two choices keep the greatest load
// near the mean, where one choice does not.
func TestTwoSpreads(t *testing.T) {
	worst := func(pick func(of []Candidate, need int64, d *dice) int) float64 {
		const targets, flight = 32, 640
		d := dice(7)
		of := even(targets)
		type call struct {
			at   int
			need int64
		}
		var calls []call
		most := 0.0
		for n := range 8000 {
			if len(calls) == flight {
				i := d.upTo(flight)
				of[calls[i].at].Load -= calls[i].need
				calls[i] = calls[flight-1]
				calls = calls[:flight-1]
			}
			need := int64(1 + d.upTo(1000))
			at := pick(of, need, &d)
			of[at].Load += need
			calls = append(calls, call{at, need})
			if n < 2*flight {
				continue
			}
			sum, high := int64(0), int64(0)
			for _, c := range of {
				sum += c.Load
				high = max(high, c.Load)
			}
			most = max(most, float64(high)*targets/float64(sum))
		}
		return most
	}
	two := worst(func(of []Candidate, need int64, d *dice) int { return Two(of, need, d.next(), d.next()) })
	one := worst(func(of []Candidate, _ int64, d *dice) int { return d.upTo(len(of)) })
	if two > 1.5 {
		t.Errorf("two choices: the busiest has %.2f times the mean", two)
	}
	if one < 1.7 {
		t.Errorf("one choice: the busiest has only %.2f times the mean, so this shows nothing", one)
	}
}

func TestSticky(t *testing.T) {
	of := even(8)
	home := map[uint64]int{}
	count := make([]int, 8)
	for key := uint64(1); key <= 8000; key++ {
		i := Sticky(of, 10, key, 0.5)
		home[key] = i
		count[i]++
	}
	for i, n := range count {
		if n < 800 || n > 1200 {
			t.Errorf("candidate %d has %d of 8000 keys", i, n)
		}
	}
	if got := Sticky(nil, 10, 1, 0.5); got != -1 {
		t.Errorf("of none: %d", got)
	}
	// Only the keys of a candidate that goes move, and its place in the list is nothing.
	less := slices.Delete(slices.Clone(of), 3, 4)
	slices.Reverse(less)
	for key, i := range home {
		if got := less[Sticky(less, 10, key, 0.5)].ID; i != 3 && got != of[i].ID {
			t.Fatalf("key %d moved", key)
		}
	}
	// A weight of a quarter has about a quarter of the keys.
	of[0].Weight = 0.25
	mine := 0
	for key := range home {
		if Sticky(of, 10, key, 0.5) == 0 {
			mine++
		}
	}
	if want := 8000 * 0.25 / 7.25; math.Abs(float64(mine)-want) > want/3 {
		t.Errorf("a weight of a quarter has %d keys, want about %.0f", mine, want)
	}
}

// TestStickyIsCapped sends one key over and over: its home takes some of it, and never
// more than the cap.
func TestStickyIsCapped(t *testing.T) {
	of := even(4)
	home := Sticky(of, 10, 42, 0.5)
	for range 400 {
		i := Sticky(of, 10, 42, 0.5)
		if i < 0 {
			t.Fatal("nobody takes it")
		}
		of[i].Load += 10
		sum := int64(0)
		for _, c := range of {
			sum += c.Load
		}
		for _, c := range of {
			if c.Load > max(30, int64(1.5*float64(sum)/4)) {
				t.Fatalf("loads %+v", of)
			}
		}
	}
	for i, c := range of {
		if c.Load > of[home].Load {
			t.Errorf("candidate %d has more than the home: %+v", i, of)
		}
	}
	if of[home].Load <= 1000 {
		t.Errorf("the home has no more than its share: %+v", of)
	}
}

func TestDraw(t *testing.T) {
	d := dice(3)
	got := map[int]int{}
	for range 100000 {
		got[Draw([]float64{0.05, 0.2}, d.next())]++
	}
	for i, want := range map[int]int{0: 5000, 1: 20000, -1: 75000} {
		if n := got[i]; math.Abs(float64(n-want)) > float64(want)/10 {
			t.Errorf("share %d: %d, want about %d", i, n, want)
		}
	}
	if Draw([]float64{1}, math.MaxUint64) != 0 || Draw([]float64{1}, 0) != 0 {
		t.Error("all of it is not all of it")
	}
	if Draw(nil, 0) != -1 {
		t.Error("a share of nothing")
	}
}

func TestRamp(t *testing.T) {
	for _, c := range []struct {
		now, since, over Time
		want             float64
	}{
		{0, 0, 100, 0.1}, {50, 0, 100, 0.55}, {100, 0, 100, 1}, {1000, 0, 100, 1}, {0, 0, 0, 1}, {0, 0, -1, 1}, {-10, 0, 100, 0.1},
	} {
		if got := Ramp(c.now, c.since, c.over); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("Ramp(%d, %d, %d) = %v, want %v", c.now, c.since, c.over, got, c.want)
		}
	}
}

func TestHash(t *testing.T) {
	// Replicas of several versions must agree, so it never changes.
	if got := Hash("a"); got != 0x2c0bdbf481420f8 {
		t.Errorf("%#x", got)
	}
	if Hash("http://10.0.0.1:30000") == Hash("http://10.0.0.1:30001") {
		t.Error("one hash for two")
	}
}
