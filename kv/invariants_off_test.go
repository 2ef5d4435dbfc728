//go:build !invariants

package kv

import "testing"

// In this build a freed page keeps its owner's rows, and nothing but the rules
// stands before them: the other tests run over real remains.
func TestFreedPagesKeepTheirRows(t *testing.T) {
	p := newPool(t, 4)
	s := receive(t, p, tenant('a'), "secret of a", 64, 0, nil)
	first := s.pages[0]
	release(t, p, s)
	if p.page(first)[0] != value("secret of a", 0, 0, 0, 0) {
		t.Error("the page was cleared: tests of reuse show nothing")
	}
}
