//go:build invariants

package kv

import (
	"math"
	"testing"
)

// A freed page holds nothing of its owner: every value is the pattern.
func TestFreedPagesAreFilled(t *testing.T) {
	p := newPool(t, 4)
	s := receive(t, p, tenant('a'), "secret of a", 37, 11, nil)
	release(t, p, s)
	for _, pg := range s.pages {
		for at, x := range p.page(pg) {
			if math.Float32bits(x) != 0x7fc0dead {
				t.Fatalf("page %d, value %d: %x", pg, at, math.Float32bits(x))
			}
		}
	}
	for at, x := range p.page(p.free[0]) { // never used: not touched
		if x != 0 {
			t.Fatalf("value %d: %v", at, x)
		}
	}
}
