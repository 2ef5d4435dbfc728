// Package route decides which engine takes the next request, and whose request that is:
// power of two choices, affinity, canaries, slow start, breakers, pools of tokens, and a
// fair queue.
//
// It promises that what a pool has given out never exceeds its limit, that tenants who
// wait are served in proportion, and that nobody who waits is overtaken for ever.
//
// The package is pure: the time and random numbers are arguments, and nothing here is
// safe for concurrent use. What must not come in: connections, clocks, goroutines, and
// what a request says.
package route

import (
	"math"
	"math/bits"
)

// Time is nanoseconds since any fixed moment, and also a number of nanoseconds.
type Time int64

// Candidate is one target that could take a request, as the choice sees it.
type Candidate struct {
	// ID tells it from the others, and stays the same; [Hash] makes one of a name.
	ID uint64
	// Load is the estimated tokens in flight.
	Load int64
	// Weight is its part of the load, above 0.
	Weight float64
}

// busy is how busy the candidate would be with the request.
func (c Candidate) busy(need int64) float64 {
	return (float64(c.Load) + float64(need)) / c.Weight
}

// Two returns the better of two candidates that the random numbers pick: the one that
// would be less busy with need tokens more, for its weight. Two choices are nearly as
// good as the best, and several gateways that choose at the same time do not all choose
// the same. It returns -1 if there is no candidate.
func Two(of []Candidate, need int64, first, second uint64) int {
	switch len(of) {
	case 0:
		return -1
	case 1:
		return 0
	}
	n := uint64(len(of))
	i, _ := bits.Mul64(first, n)
	j, _ := bits.Mul64(second, n-1)
	if j >= i {
		j++
	}
	if of[j].busy(need) < of[i].busy(need) {
		i = j
	}
	return int(i)
}

// Sticky returns the candidate that key prefers, by rendezvous: adding or taking away a
// candidate moves only the keys that prefer it. One that is busier than the mean by more
// than slack, a share of it, is passed over for the next that key prefers; all are not.
// Twice what the request needs is free in any case, so that an idle fleet keeps to its
// preferences. It returns -1 if there is no candidate.
func Sticky(of []Candidate, need int64, key uint64, slack float64) int {
	load, weight := 0.0, 0.0
	for _, c := range of {
		load += float64(c.Load)
		weight += c.Weight
	}
	bound := (1 + slack) * (load + float64(need)) / weight
	best, top := -1, math.Inf(-1)
	for i, c := range of {
		if c.busy(need) > max(bound, 3*float64(need)/c.Weight) {
			continue
		}
		// The share of a candidate among the keys is as its weight.
		u := (float64(mix(key^mix(c.ID))>>11) + 0.5) / (1 << 53)
		if score := -c.Weight / math.Log(u); score > top {
			best, top = i, score
		}
	}
	return best
}

// mix spreads the bits of a number over all of them.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Hash makes a number of a name, equal on all replicas.
func Hash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return mix(h)
}

// Draw returns which of several shares of the whole, in their order, a draw falls into,
// or -1 for the rest. A draw is a number in all its 64 bits.
func Draw(shares []float64, draw uint64) int {
	u := float64(draw>>11) / (1 << 53)
	for i, s := range shares {
		if u < s {
			return i
		}
		u -= s
	}
	return -1
}

// rampFloor is the share of its weight with which a target begins.
const rampFloor = 0.1

// Ramp is the share of its weight that a target has which came back at since, if it is
// to have all of it after over: it grows evenly from a tenth to 1.
func Ramp(now, since, over Time) float64 {
	if over <= 0 || now-since >= over {
		return 1
	}
	return rampFloor + (1-rampFloor)*max(0, float64(now-since)/float64(over))
}
