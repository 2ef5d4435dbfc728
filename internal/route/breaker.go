package route

// BreakerRule says when an engine is left alone.
type BreakerRule struct {
	// Failures in a row open the breaker.
	Failures int
	// So does a share of Rate among at least Least calls within Window.
	Rate   float64
	Least  int
	Window Time
	// Open is how long the engine is left alone before one call tries it.
	Open Time
}

// BreakerState is where a breaker stands.
type BreakerState uint8

const (
	// Closed: calls pass. When they keep failing, Open follows.
	Closed BreakerState = iota
	// Open: no call passes. After a time HalfOpen follows.
	Open
	// HalfOpen: one call at a time passes. What becomes of it decides: Closed or Open.
	HalfOpen
)

// String returns the state's name.
func (s BreakerState) String() string {
	names := [...]string{"closed", "open", "half-open"}
	if int(s) < len(names) {
		return names[s]
	}
	return "no state"
}

// Result is what a call says of its engine.
type Result uint8

const (
	// Nothing: it was ended before it could say anything.
	Nothing Result = iota
	// Good: the engine did what it was asked.
	Good
	// Bad: it did not.
	Bad
)

// parts is into how many parts a breaker's window is divided.
const parts = 10

// Breaker counts failures. The zero value is closed.
//
// One tenant alone must not take an engine from others, be it that its requests are what
// fails: while another used the engine within the window, failures count only if they are
// not all of one tenant. Tenants are numbers here, such as [Hash] makes of their names.
type Breaker struct {
	open   bool
	opened Time
	trial  bool // a call tries the engine
	streak int  // failures in a row
	whose  voices
	// counts are the calls of the last parts of the window, each by its number.
	counts [parts]struct {
		part      Time
		good, bad int
		whose     voices // of the bad ones
	}
	era uint64 // of openings and closings
	// users began calls: the last of all, and the last other one.
	users [2]user
	// loser is whose trial failed last.
	loser user
}

// user is a tenant that did something at a time.
type user struct {
	who   uint64
	at    Time
	known bool
}

// voices is whose failures some are.
type voices struct {
	who         uint64
	some, mixed bool // mixed: of more than one tenant
}

func (v *voices) add(who uint64) {
	v.mixed = v.mixed || v.some && v.who != who
	v.who, v.some = who, true
}

// join adds the voices of others.
func (v *voices) join(o voices) {
	if o.some {
		v.add(o.who)
		v.mixed = v.mixed || o.mixed
	}
}

// used notes who uses the engine.
func (b *Breaker) used(who uint64, now Time) {
	if b.users[0].known && b.users[0].who != who {
		b.users[1] = b.users[0]
	}
	b.users[0] = user{who, now, true}
}

// alone says whether nobody else used the engine within the window.
func (b *Breaker) alone(who uint64, now Time, r BreakerRule) bool {
	for _, u := range b.users {
		if u.known && u.who != who && now-u.at <= r.Window {
			return false
		}
	}
	return true
}

// Pass is one call that a breaker let through.
type Pass struct {
	era   uint64
	trial bool
	who   uint64
}

// State is where the breaker stands.
func (b *Breaker) State(now Time, r BreakerRule) BreakerState {
	switch {
	case !b.open:
		return Closed
	case now-b.opened < r.Open:
		return Open
	default:
		return HalfOpen
	}
}

// Allows says whether a call may pass.
func (b *Breaker) Allows(now Time, r BreakerRule) bool {
	s := b.State(now, r)
	return s == Closed || s == HalfOpen && !b.trial
}

// AllowsTo says whether a call of a tenant may pass. Whose trial failed gives the next turn
// to others, if there are any.
func (b *Breaker) AllowsTo(who uint64, now Time, r BreakerRule) bool {
	lost := b.open && b.loser.known && b.loser.who == who && now-b.opened < 2*r.Open && !b.alone(who, now, r)
	return !lost && b.Allows(now, r)
}

// Begin notes a call of a tenant that passes.
func (b *Breaker) Begin(who uint64, now Time, r BreakerRule) Pass {
	p := Pass{era: b.era, trial: !b.trial && b.State(now, r) == HalfOpen, who: who}
	b.used(who, now)
	if p.trial {
		b.trial = true
	}
	return p
}

// End notes what became of a call, and returns where the breaker stands then. A call
// that began before the breaker's last change says nothing any more.
func (b *Breaker) End(p Pass, result Result, now Time, r BreakerRule) BreakerState {
	switch {
	case p.era != b.era:
	case p.trial:
		b.trial = false
		if result == Good {
			*b = Breaker{era: b.era + 1, users: b.users}
		} else if result == Bad {
			b.trip(now)
			b.loser = user{p.who, now, true}
		}
	case b.open || result == Nothing:
	case b.count(p.who, result, now, r):
		b.trip(now)
	}
	return b.State(now, r)
}

// trip opens the breaker.
func (b *Breaker) trip(now Time) {
	*b = Breaker{open: true, opened: now, era: b.era + 1, users: b.users}
}

// count counts a tenant's result, and says whether the breaker is to open.
func (b *Breaker) count(who uint64, result Result, now Time, r BreakerRule) bool {
	width := max(1, r.Window/parts)
	part := now / width
	c := &b.counts[(part%parts+parts)%parts]
	if c.part != part {
		c.part, c.good, c.bad, c.whose = part, 0, 0, voices{}
	}
	if result == Good {
		b.streak, b.whose = 0, voices{}
		c.good++
		return false
	}
	b.streak++
	b.whose.add(who)
	c.bad++
	c.whose.add(who)
	good, bad, all := 0, 0, voices{}
	for i := range b.counts {
		if c := &b.counts[i]; part-c.part < parts {
			good += c.good
			bad += c.bad
			all.join(c.whose)
		}
	}
	alone := b.alone(who, now, r)
	return b.streak >= r.Failures && (alone || b.whose.mixed) ||
		good+bad >= r.Least && float64(bad) >= r.Rate*float64(good+bad) && (alone || all.mixed)
}
