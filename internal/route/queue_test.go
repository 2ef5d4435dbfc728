package route

import (
	"errors"
	"fmt"
	"testing"
)

func push(t *testing.T, q *Queue[string], flow string, cost int64, v string) *Item[string] {
	t.Helper()
	i, err := q.Push(flow, cost, v, Back)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// serveAll places whatever is offered, up to most items.
func serveAll(q *Queue[string], most int) []string {
	var got []string
	q.Serve(func(i *Item[string]) Fate {
		if len(got) == most {
			return Waits
		}
		got = append(got, i.Value)
		return Placed
	})
	return got
}

func TestQueueOrder(t *testing.T) {
	q := NewQueue[string](10, 100)
	for _, v := range []string{"a1", "a2", "a3", "a4"} {
		push(t, q, "a", 10, v)
	}
	push(t, q, "b", 10, "b1")
	push(t, q, "b", 30, "b2")
	push(t, q, "b", 10, "b3")
	got := fmt.Sprint(serveAll(q, 100))
	// b's large item costs it three turns.
	if want := "[a1 b1 a2 b2 a3 a4 b3]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if q.Len() != 0 {
		t.Errorf("%d left", q.Len())
	}
}

func TestQueueBounds(t *testing.T) {
	q := NewQueue[string](2, 3)
	push(t, q, "a", 1, "a1")
	second := push(t, q, "a", 1, "a2")
	if _, err := q.Push("a", 1, "a3", Front); !errors.Is(err, ErrFlowFull) {
		t.Errorf("a third of one flow: %v", err)
	}
	push(t, q, "b", 1, "b1")
	if _, err := q.Push("c", 1, "c1", Back); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth of all: %v", err)
	}
	if !q.Waiting(second) || !q.Remove(second) || q.Remove(second) || q.Waiting(second) {
		t.Error("removing once")
	}
	if _, err := q.Push("a", 1, "a0", Front); err != nil {
		t.Error(err)
	}
	if got, want := fmt.Sprint(serveAll(q, 9)), "[b1 a0 a1]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := NewQueue[string](0, 5).Push("a", 1, "", Back); !errors.Is(err, ErrFlowFull) {
		t.Errorf("no place for anybody: %v", err)
	}
}

func TestQueueDrops(t *testing.T) {
	q := NewQueue[string](9, 9)
	push(t, q, "a", 100, "bad")
	push(t, q, "a", 10, "a2")
	push(t, q, "b", 50, "b1")
	var got []string
	q.Serve(func(i *Item[string]) Fate {
		got = append(got, i.Value)
		if i.Value == "bad" {
			return Dropped
		}
		return Placed
	})
	// What was dropped cost its flow nothing.
	if want := "[bad a2 b1]"; fmt.Sprint(got) != want || q.Len() != 0 {
		t.Errorf("got %v, want %s", got, want)
	}
}

// backlog keeps flows full and serves one item at a time; it returns what each flow was
// given. costs gives the next cost of a flow.
func backlog(t *testing.T, flows, rounds int, costs func(flow int) int64, each func(given []int64)) {
	t.Helper()
	q := NewQueue[int](4, 4*flows)
	given := make([]int64, flows)
	fill := func(f int) {
		for {
			if _, err := q.Push(fmt.Sprint(f), costs(f), f, Back); err != nil {
				return
			}
		}
	}
	for f := range flows {
		fill(f)
	}
	for range rounds {
		served := -1
		q.Serve(func(i *Item[int]) Fate {
			if served >= 0 {
				return Waits
			}
			served = i.Value
			given[served] += i.Cost()
			return Placed
		})
		fill(served)
		each(given)
	}
}

// TestQueueIsFair holds the bound: between flows that always wait, what they are given
// never differs by more than the cost of one item of each.
func TestQueueIsFair(t *testing.T) {
	d := dice(5)
	const most = 1000
	for _, flows := range []int{2, 3, 17} {
		largest := make([]int64, flows)
		backlog(t, flows, 5000, func(f int) int64 {
			c := int64(1 + d.upTo(most))
			if f%2 == 1 {
				c = c/100 + 1 // flows of small requests against flows of large ones
			}
			largest[f] = max(largest[f], c)
			return c
		}, func(given []int64) {
			for a := range given {
				for b := range given {
					if diff := given[a] - given[b]; diff > largest[a]+largest[b] {
						t.Fatalf("%d flows: %d against %d", flows, given[a], given[b])
					}
				}
			}
		})
	}
}

// TestQueueOneAtATime is a tenant that has one request at a time against one that has
// many: it gains nothing by that, and loses nothing.
func TestQueueOneAtATime(t *testing.T) {
	q := NewQueue[string](64, 1000)
	given := map[string]int64{}
	for range 64 {
		push(t, q, "many", 10, "many")
	}
	push(t, q, "one", 10, "one")
	for range 1000 {
		served := serveAll(q, 1)[0]
		given[served] += 10
		push(t, q, served, 10, served)
	}
	if d := given["one"] - given["many"]; d < -20 || d > 20 {
		t.Errorf("%v", given)
	}
}

// TestQueueLateComer is a tenant that comes when another has been served for long: it
// gets its share from then on, and nothing for the time before.
func TestQueueLateComer(t *testing.T) {
	q := NewQueue[string](64, 1000)
	for range 100 {
		push(t, q, "early", 10, "early")
		serveAll(q, 1)
	}
	for range 20 {
		push(t, q, "late", 10, "late")
		push(t, q, "early", 10, "early")
	}
	given := map[string]int{}
	for _, v := range serveAll(q, 20) {
		given[v]++
	}
	if given["late"] < 9 || given["late"] > 11 {
		t.Errorf("of twenty: %v", given)
	}
}

// TestQueueCatchesUpByOne is a tenant whose first request found no room for long. When it
// does, the tenant does not take all that it missed at once.
func TestQueueCatchesUpByOne(t *testing.T) {
	q := NewQueue[string](64, 1000)
	for range 20 {
		push(t, q, "large", 100, "large")
	}
	for range 60 {
		push(t, q, "small", 10, "small")
	}
	passed := 0
	q.Serve(func(i *Item[string]) Fate {
		if i.Value == "large" || passed == 40 {
			return Waits
		}
		passed++
		return Placed
	})
	given := map[string]int{}
	for _, v := range serveAll(q, 12) {
		given[v]++
	}
	if given["large"] > 3 || given["large"] < 1 || given["small"] == 0 {
		t.Errorf("of twelve: %v", given)
	}
}

// world is a queue in front of one pool, in random use.
type world struct {
	t       *testing.T
	d       dice
	q       *Queue[*job]
	p       Pool
	running []*job
	kept    *job
	served  int
}

type job struct {
	tokens int64
	item   *Item[*job]
	hold   Hold
	left   int // steps
}

func (w *world) serve() {
	for again := true; again; {
		again = false
		w.q.Serve(func(i *Item[*job]) Fate {
			j := i.Value
			s := Size{j.tokens, 1}
			if fits := w.kept == j && w.p.FitsKept(s) || w.p.Fits(s); !fits {
				return Waits
			}
			if w.kept == j {
				w.p.Unkeep()
				w.kept, again = nil, true
			}
			j.hold = w.p.Take(s)
			j.left = 1 + w.d.upTo(5)
			w.running = append(w.running, j)
			w.served++
			return Placed
		})
	}
	if due := w.q.Due(); due != nil && w.kept == nil {
		w.kept = due.Value
		w.p.Keep(Size{due.Value.tokens, 1})
	}
	if u := w.p.Used(); u.Tokens > w.p.Limit().Tokens {
		w.t.Fatalf("%d tokens in flight", u.Tokens)
	}
}

// step lets time pass by one.
func (w *world) step() {
	before := w.running
	w.running = nil
	for _, j := range before {
		if j.left--; j.left > 0 {
			w.running = append(w.running, j)
			continue
		}
		w.p.Give(j.hold)
		w.serve() // adds to what runs
	}
}

// TestNobodyStarves floods a pool with more small requests of many tenants than it can take while one tenant
// asks for nearly all of it. The large one is served within a bounded time, the small
// ones go on meanwhile, and everything comes to an end with nothing in flight.
func TestNobodyStarves(t *testing.T) {
	w := &world{t: t, d: 9, q: NewQueue[*job](10, 1000)}
	w.p.Resize(Size{672, Unbounded})
	add := func(flow string, tokens int64) *job {
		j := &job{tokens: tokens}
		if i, err := w.q.Push(flow, tokens, j, Back); err == nil {
			j.item = i
			w.serve()
		}
		return j
	}
	small := func() {
		for f := range 8 {
			if w.d.upTo(2) == 0 {
				add(fmt.Sprint(f), int64(20+w.d.upTo(100)))
			}
		}
	}
	for range 20 {
		small()
		w.step()
	}
	for round := range 50 {
		large := add("large", int64(400+w.d.upTo(273)))
		steps := 0
		for w.q.Waiting(large.item) {
			small()
			w.step()
			if steps++; steps > 100 {
				t.Fatalf("round %d: a request of %d tokens waits for ever, overtaken by %d", round, large.tokens, large.item.overtaken)
			}
		}
	}
	for range 100000 {
		if w.q.Len() == 0 && len(w.running) == 0 {
			break
		}
		w.step()
	}
	if w.q.Len() != 0 || w.p.Used() != (Size{}) || w.p.Keeps() {
		t.Errorf("%d wait, %+v in flight", w.q.Len(), w.p.Used())
	}
	if w.served < 1000 {
		t.Errorf("only %d served: nothing was crowded", w.served)
	}
}

// TestSmallOnesPass holds that a large request that has to wait does not hold up small
// ones of others, until they have overtaken it four times over.
func TestSmallOnesPass(t *testing.T) {
	q := NewQueue[string](100, 100)
	large := push(t, q, "large", 100, "large")
	passed := 0
	for q.Due() == nil {
		push(t, q, "small", 10, "small")
		q.Serve(func(i *Item[string]) Fate {
			if i.Value == "large" {
				return Waits
			}
			passed++
			return Placed
		})
		if passed > 1000 {
			t.Fatal("it is overtaken for ever")
		}
	}
	if passed != 40 || q.Due() != large {
		t.Errorf("overtaken by %d small ones", passed)
	}
	// Another that waits longer for its cost comes first.
	q.Remove(large)
	if q.Due() != nil {
		t.Error("one that waits no more is due")
	}
}

// TestPastIsBounded holds that tenants who come once leave nothing behind.
func TestPastIsBounded(t *testing.T) {
	q := NewQueue[string](1, 100)
	most := 0
	for i := range 2 * remembered {
		// The costs fall, so that each stays ahead of the others.
		push(t, q, fmt.Sprint(i), int64(1e6-i), "x")
		serveAll(q, 1)
		if most = max(most, len(q.past)); len(q.past) > remembered || len(q.flows) != 0 {
			t.Fatalf("%d remembered, %d flows", len(q.past), len(q.flows))
		}
	}
	if most < remembered {
		t.Fatalf("%d remembered at most: the bound was not reached", most)
	}
}
