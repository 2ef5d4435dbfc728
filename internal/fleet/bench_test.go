package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// BenchmarkAcquire is what a request pays for its target, by the number of targets.
func BenchmarkAcquire(b *testing.B) {
	for _, side := range []int{1, 8, 64} {
		s := Spec{Dialect: upstream.SGLangPD, Served: "m"}
		for i := range side {
			s.Prefill = append(s.Prefill, Source{URL: fmt.Sprintf("http://p%d:1", i)})
			s.Decode = append(s.Decode, Source{URL: fmt.Sprintf("http://d%d:1", i)})
		}
		f, err := New(Config{Models: map[string]Spec{"m": s}, Clock: SystemClock{}, Random: strings.NewReader(strings.Repeat("x", 16))})
		if err != nil {
			b.Fatal(err)
		}
		g := f.Model("m")
		known := func(n int64) upstream.Count { return upstream.Count{N: n, Known: true} }
		for i, n := range g.nodes {
			n.note(upstream.Info{Role: n.role, Models: []string{"m"}, Version: "1", Incarnation: fmt.Sprint(i),
				Window: known(8192), Pool: known(100000), MaxInput: known(99994), PageSize: known(64)}, nil, g.clock.Now().Add(1<<40))
		}
		g.acquaint()
		b.Run(fmt.Sprintf("targets=%d", side*side), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t, d, err := g.Acquire(context.Background(), exact(500, 100))
				if t == nil || err != nil {
					b.Fatal(d, err)
				}
				t.Release(Answered)
			}
		})
	}
}
