package route

import "testing"

func rule() BreakerRule {
	return BreakerRule{Failures: 3, Rate: 0.5, Least: 10, Window: 1000, Open: 100}
}

// call passes a call through a breaker.
func call(b *Breaker, now Time, r Result) BreakerState {
	return b.End(b.Begin(0, now, rule()), r, now, rule())
}

func TestBreakerByFailures(t *testing.T) {
	var b Breaker
	call(&b, 1, Bad)
	call(&b, 2, Bad)
	call(&b, 3, Good)
	call(&b, 4, Bad)
	call(&b, 5, Bad)
	if got := call(&b, 6, Nothing); got != Closed {
		t.Fatalf("two in a row: %v", got)
	}
	if got := call(&b, 7, Bad); got != Open || b.Allows(7, rule()) {
		t.Fatalf("three in a row: %v", got)
	}
	if b.Allows(106, rule()) {
		t.Error("allows while open")
	}
	if !b.Allows(107, rule()) || b.State(107, rule()) != HalfOpen {
		t.Error("does not allow a trial")
	}
	trial := b.Begin(0, 107, rule())
	if b.Allows(107, rule()) {
		t.Error("allows two trials")
	}
	if got := b.End(trial, Bad, 110, rule()); got != Open || b.Allows(209, rule()) || !b.Allows(210, rule()) {
		t.Errorf("a trial that failed: %v", got)
	}
	trial = b.Begin(0, 210, rule())
	if got := b.End(trial, Nothing, 211, rule()); got != HalfOpen || !b.Allows(211, rule()) {
		t.Errorf("a trial that said nothing: %v", got)
	}
	trial = b.Begin(0, 212, rule())
	if got := b.End(trial, Good, 213, rule()); got != Closed || !b.Allows(213, rule()) {
		t.Errorf("a trial that succeeded: %v", got)
	}
	if got := call(&b, 214, Bad); got != Closed {
		t.Errorf("the failures of before count: %v", got)
	}
}

func TestBreakerByRate(t *testing.T) {
	var b Breaker
	// Every second call fails: never three in a row.
	for i := range Time(9) {
		if got := call(&b, i, Bad-Result(i%2)); got != Closed {
			t.Fatalf("after %d calls: %v", i+1, got)
		}
	}
	if got := call(&b, 9, Bad); got != Open {
		t.Errorf("half of ten calls: %v", got)
	}
	// The same calls over a longer time are forgotten.
	b = Breaker{}
	for i := range Time(100) {
		if got := call(&b, i*130, Bad-Result(i%2)); got != Closed {
			t.Fatalf("eight calls in a window, at %d: %v", i*130, got)
		}
	}
	// A third that fails is too few.
	b = Breaker{}
	for i := range Time(300) {
		r := Good
		if i%3 == 0 {
			r = Bad
		}
		if got := call(&b, i, r); got != Closed {
			t.Fatalf("a third, at %d: %v", i, got)
		}
	}
}

// TestBreakerForgetsOldCalls holds that a call which began before the breaker opened
// neither closes it nor opens it again.
func TestBreakerForgetsOldCalls(t *testing.T) {
	var b Breaker
	early := [2]Pass{b.Begin(0, 0, rule()), b.Begin(0, 0, rule())}
	for range 3 {
		call(&b, 1, Bad)
	}
	if got := b.End(early[0], Good, 2, rule()); got != Open {
		t.Errorf("closed by an old call: %v", got)
	}
	b.End(b.Begin(0, 101, rule()), Good, 101, rule())
	if got := b.State(102, rule()); got != Closed {
		t.Fatalf("%v", got)
	}
	for range 2 {
		call(&b, 102, Bad)
	}
	if got := b.End(early[1], Bad, 103, rule()); got != Closed {
		t.Errorf("opened by an old call: %v", got)
	}
	if got := call(&b, 104, Bad); got != Open {
		t.Errorf("not opened by a new one: %v", got)
	}
}

func TestBreakerNames(t *testing.T) {
	seen := map[string]bool{}
	for s := Closed; s <= HalfOpen+1; s++ {
		if seen[s.String()] {
			t.Errorf("%v is used twice", s)
		}
		seen[s.String()] = true
	}
}

// TestBreakerHearsMoreThanOne holds that one tenant whose requests fail does not take an
// engine from others, that it still counts for itself where it is alone, and that an engine
// which fails for everybody is left alone.
func TestBreakerHearsMoreThanOne(t *testing.T) {
	const one, two = 1, 2
	as := func(b *Breaker, who uint64, now Time, r Result) BreakerState {
		return b.End(b.Begin(who, now, rule()), r, now, rule())
	}
	times := func(n int, f func(i Time) BreakerState) (last BreakerState) {
		for i := range n {
			last = f(Time(i))
		}
		return last
	}
	for _, tc := range []struct {
		name string
		do   func(b *Breaker) BreakerState
		want BreakerState
	}{
		{"alone, in a row", func(b *Breaker) BreakerState {
			return times(3, func(i Time) BreakerState { return as(b, one, i, Bad) })
		}, Open},
		{"one of two, in a row", func(b *Breaker) BreakerState {
			as(b, two, 0, Good)
			return times(50, func(i Time) BreakerState { return as(b, one, i, Bad) })
		}, Closed},
		{"one of two, while the other's call is in progress", func(b *Breaker) BreakerState {
			b.Begin(two, 0, rule())
			return times(50, func(i Time) BreakerState { return as(b, one, i, Bad) })
		}, Closed},
		{"one of two, by its share", func(b *Breaker) BreakerState {
			return times(50, func(i Time) BreakerState {
				as(b, two, i, Good)
				as(b, one, i, Bad)
				return as(b, one, i, Bad)
			})
		}, Closed},
		{"both, in a row", func(b *Breaker) BreakerState {
			as(b, one, 0, Bad)
			as(b, one, 1, Bad)
			return as(b, two, 2, Bad)
		}, Open},
		{"both, by their share", func(b *Breaker) BreakerState {
			return times(20, func(i Time) BreakerState {
				as(b, one, i, Good)
				as(b, one, i, Bad)
				as(b, two, i, Good)
				return as(b, two, i, Bad)
			})
		}, Open},
		{"the other was long ago", func(b *Breaker) BreakerState {
			as(b, two, 0, Good)
			return times(3, func(i Time) BreakerState { return as(b, one, 1001+i, Bad) })
		}, Open},
	} {
		var b Breaker
		if got := tc.do(&b); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestBreakerTrialGoesRound holds that whose trial failed gives the next turn to others, and
// that nobody waits for ever.
func TestBreakerTrialGoesRound(t *testing.T) {
	const one, two = 1, 2
	b := Breaker{}
	for i := range Time(4) {
		b.End(b.Begin(uint64(one+i%2), i, rule()), Bad, i, rule())
	}
	if b.State(110, rule()) != HalfOpen || !b.AllowsTo(one, 110, rule()) {
		t.Fatal(b.State(110, rule()))
	}
	b.End(b.Begin(one, 110, rule()), Bad, 110, rule())
	if b.AllowsTo(one, 215, rule()) || !b.AllowsTo(two, 215, rule()) {
		t.Error("the same one again")
	}
	if !b.AllowsTo(one, 310, rule()) {
		t.Error("it may never try again")
	}
	if got := b.End(b.Begin(two, 215, rule()), Good, 216, rule()); got != Closed || !b.AllowsTo(one, 216, rule()) {
		t.Errorf("%v", got)
	}
	alone := Breaker{}
	for i := range Time(3) {
		alone.End(alone.Begin(one, i, rule()), Bad, i, rule())
	}
	alone.End(alone.Begin(one, 110, rule()), Bad, 110, rule())
	if !alone.AllowsTo(one, 211, rule()) {
		t.Error("alone, and it waits for others")
	}
}
