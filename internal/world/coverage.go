package world

import (
	"math/bits"

	"bulkhead.dev/bulkhead/handoff"
)

// Coverage is the set of edges of the transition table that were taken.
type Coverage [2][2]uint64

func (c *Coverage) take(r Role, edge uint8) {
	c[r][edge>>6] |= 1 << (edge & 63)
}

// Add takes the union.
func (c *Coverage) Add(o Coverage) {
	for r := range c {
		for i := range c[r] {
			c[r][i] |= o[r][i]
		}
	}
}

// Has reports whether a transition was taken.
func (c *Coverage) Has(t handoff.Transition) bool {
	r := Decode
	if t.Role == Prefill.String() {
		r = Prefill
	}
	return c[r][t.Edge>>6]>>(t.Edge&63)&1 != 0
}

// Taken is the number of edges; edge 0 stands for none.
func (c *Coverage) Taken() int {
	n := 0
	for r := range c {
		n += bits.OnesCount64(c[r][0]&^1) + bits.OnesCount64(c[r][1])
	}
	return n
}
