package wire

import (
	"testing"
)

// TestPostKeepsOrder puts many pages through the queue while it is taken from,
// and counts what is outstanding.
func TestPostKeepsOrder(t *testing.T) {
	const pages = 10_000
	p := &post{limit: pages}
	p.changed.L = &p.mu
	s := &stream{}
	next := uint64(0)
	take := func() {
		t.Helper()
		it, seq, ok := p.take(s)
		if !ok || it.ID != next || seq != next+1 {
			t.Fatalf("took %d as %d, want %d", it.ID, seq, next)
		}
		next++
		p.returned(s, seq)
		done, err := p.complete(s, ack{seq: seq, count: 1}, nil)
		if err != nil || len(done) != 1 || done[0].id != it.ID {
			t.Fatalf("completed %v, %v", done, err)
		}
	}
	longest := 0
	for id := range uint64(pages) {
		if err := p.add(item{PageWrite: PageWrite{ID: id}}); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, cap(p.queue))
		if id >= 3000 { // the queue stays 3000 long, and moves
			take()
		}
	}
	if longest > 10_000 {
		t.Errorf("the queue has grown to %d for 3000 pages", longest)
	}
	for next < pages {
		take()
	}
	if p.open != 0 {
		t.Errorf("%d outstanding", p.open)
	}
	for range pages {
		if err := p.add(item{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.add(item{}); ReasonOf(err) != ReasonOverflow {
		t.Errorf("over the limit: %v", err)
	}
}
