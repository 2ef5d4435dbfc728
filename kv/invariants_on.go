//go:build invariants

package kv

import "math"

// mangle fills a freed page with a NaN pattern, so that a read of it shows in
// every sum.
func (p *Pool) mangle(pg int32) {
	nan := math.Float32frombits(0x7fc0dead)
	page := p.page(pg)
	for i := range page {
		page[i] = nan
	}
}
