//go:build !invariants

// With the invariants tag a freed page is overwritten, so that nothing of it can
// leak: there the drills without guards have nothing to show.

package drill

import (
	"context"
	"testing"
)

func TestDrills(t *testing.T) {
	for _, s := range stories() {
		t.Run(s.name, func(t *testing.T) {
			res, err := s.run(context.Background(), Both)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("off %+v", *res.Off)
			t.Logf("on  %+v", *res.On)
			if !res.Pass {
				t.Error("the drill did not show what it should")
			}
		})
	}
}
