package world

import (
	"context"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Limits bounds one exploration.
type Limits struct {
	States int       // states kept; 0 means 20 million
	Depth  int       // moves from the start; 0 means no bound
	Only   Invariant // hold this one alone; 0 means all
	Sweep  bool      // go on after a violation, beside it, to take every edge
	Slack  bool      // a World that outgrows a bound ends there, and the rest goes on: for sets of guards that nobody ships
	Memory int64     // bytes, about; 0 means no bound but States
}

// Outcome is what an exploration can say.
type Outcome uint8

const (
	Unknown Outcome = iota // a bound was reached, or it was stopped
	Pass                   // every reachable World was seen, and no invariant broke
	Fail                   // an invariant broke
)

// whyMemory is why an exploration that kept all the states it may is unknown.
const whyMemory = "memory bound"

// String names the outcome.
func (o Outcome) String() string { return [...]string{"unknown", "pass", "fail"}[o] }

// MarshalText is the outcome's name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Exploration is what exploring one model found.
type Exploration struct {
	Outcome  Outcome
	Why      string    // why it is unknown
	States   int       // different Worlds
	Steps    int       // moves taken
	Depth    int       // of the deepest World, in moves
	Rests    int       // Worlds in which nothing happens by itself any more
	Served   int       // of these, Worlds in which every valid attempt was served
	Broken   Violation // the first one; no shorter path breaks anything
	Path     []Move    // that leads there from the start
	Coverage Coverage
}

// A state is known by a 128-bit hash of its encoding. Two different states of
// one hash would hide one of them: for n states the odds are about n*n/2^129,
// 1 in 10^24 for ten million.
type explorer struct {
	m       *Model
	limits  Limits
	seen    table
	parents []uint32 // of each state, by number
	moves   []Move   // that led to it
	fair    []uint32 // where the moves lead that happen by themselves, by state in order
	first   []uint32 // of each expanded state, its first in fair
	now     []World  // the level being expanded; the numbers follow each other
	next    []World
	base    int // number of the first of now
	buf     []byte
	x       Exploration
	at      int // depth of now
}

// Explore takes every choice, breadth first, so that the first violation has a
// shortest path. It allocates only to grow.
func (m *Model) Explore(ctx context.Context, limits Limits) Exploration {
	if limits.States == 0 {
		limits.States = 20_000_000
	}
	e := &explorer{m: m, limits: limits, buf: make([]byte, 0, 512)}
	start := m.Start()
	e.admit(&start, 0, Move{})
	for e.x.Outcome == Unknown && e.x.Why == "" {
		e.base += len(e.now)
		e.now, e.next = e.next, e.now[:0]
		if len(e.now) == 0 {
			e.x.Outcome = Pass
			e.circles()
			break
		}
		e.x.Depth = e.at
		if limits.Depth > 0 && e.at >= limits.Depth {
			e.x.Why = "depth bound"
			break
		}
		e.level(ctx)
		e.at++
		if limits.Memory > 0 && e.x.Why == "" && e.x.Outcome == Unknown && e.bytes() > limits.Memory {
			e.x.Why = whyMemory
		}
	}
	e.x.States = len(e.parents)
	if e.x.Broken.Invariant != NoInvariant && e.x.Outcome == Pass {
		e.x.Outcome = Fail // a sweep went on
	}
	return e.x
}

// level expands every World of one depth.
func (e *explorer) level(ctx context.Context) {
	var room [96]Move
	for i := range e.now {
		if i%4096 == 0 && ctx.Err() != nil {
			e.x.Why = "stopped"
			return
		}
		if i%4096 == 0 && e.limits.Memory > 0 && e.bytes() > e.limits.Memory {
			e.x.Why = whyMemory
			return
		}
		moves, fair := e.m.Moves(&e.now[i], room[:])
		e.first = append(e.first, uint32(len(e.fair)))
		if fair == 0 && !e.rest(i) && !e.limits.Sweep {
			return
		}
		for j, mv := range moves {
			if !e.step(i, mv, j < fair) {
				return
			}
		}
	}
}

// bytes is about what the exploration holds. A slice that must grow is held twice for a
// moment, which is not counted.
func (e *explorer) bytes() int64 {
	n := len(e.seen.slots)*(int(unsafe.Sizeof(key{}))+4) + 4*cap(e.parents) + int(unsafe.Sizeof(Move{}))*cap(e.moves) +
		4*cap(e.fair) + 4*cap(e.first) + (cap(e.now)+cap(e.next))*int(unsafe.Sizeof(World{}))
	return int64(n)
}

// rest checks a World in which nothing happens by itself any more.
func (e *explorer) rest(i int) (sound bool) {
	s := Step{Only: e.limits.Only}
	e.x.Rests++
	if e.m.CheckRest(&e.now[i], &s) {
		e.x.Served++
	}
	if s.Broken.Invariant == NoInvariant {
		return true
	}
	e.fail(s.Broken, e.base+i, Move{})
	return false
}

// step takes one move of World i. It reports whether to go on.
func (e *explorer) step(i int, mv Move, fair bool) bool {
	w, s := e.now[i], Step{Only: e.limits.Only}
	e.m.Apply(&w, mv, &s)
	e.x.Steps++
	e.x.Coverage.Add(s.edges)
	switch {
	case s.Broken.Invariant != NoInvariant:
		e.fail(s.Broken, e.base+i, mv)
		return e.limits.Sweep
	case w.overflow && e.limits.Slack:
		return true
	case w.overflow:
		e.x.Why = "a bound of the World"
		return false
	}
	n, ok := e.admit(&w, e.base+i, mv)
	if !ok {
		e.x.Why = whyMemory
		return false
	}
	if fair {
		e.fair = append(e.fair, n)
	}
	return true
}

// admit numbers a World, and keeps it if it was not seen before. It reports false
// if there is no room for it.
func (e *explorer) admit(w *World, parent int, mv Move) (n uint32, ok bool) {
	e.buf = e.m.encode(w, e.buf[:0])
	h := xxh3.Hash128(e.buf)
	n, found := e.seen.number(key{h.Hi, h.Lo})
	if found {
		return n, true
	}
	if len(e.parents) >= e.limits.States {
		return 0, false
	}
	e.parents = append(e.parents, uint32(parent))
	e.moves = append(e.moves, mv)
	e.next = append(e.next, *w)
	return n, true
}

// fail keeps the first violation and the path to it: to state n, and last.
func (e *explorer) fail(v Violation, n int, last Move) {
	if e.x.Broken.Invariant != NoInvariant {
		return
	}
	e.x.Broken = v
	if !e.limits.Sweep {
		e.x.Outcome = Fail
	}
	if last.Kind != moveNone {
		e.x.Path = append(e.x.Path, last)
	}
	for ; n > 0; n = int(e.parents[n]) {
		e.x.Path = append(e.x.Path, e.moves[n])
	}
	for l, r := 0, len(e.x.Path)-1; l < r; l, r = l+1, r-1 {
		e.x.Path[l], e.x.Path[r] = e.x.Path[r], e.x.Path[l]
	}
}

// circles holds that what happens by itself comes to rest, whatever the order:
// that the fair moves make no circle (V8). States that nothing fair leads to are
// taken away until none is left; where some stay, so does a circle.
func (e *explorer) circles() {
	if e.limits.Sweep || e.limits.Only != NoInvariant && e.limits.Only != V8 {
		return
	}
	n := len(e.parents)
	into, gone := make([]uint32, n), make([]uint32, 0, n)
	for _, to := range e.fair {
		into[to]++
	}
	for i := range n {
		if into[i] == 0 {
			gone = append(gone, uint32(i))
		}
	}
	e.first = append(e.first, uint32(len(e.fair)))
	for i := 0; i < len(gone); i++ {
		for _, to := range e.fair[e.first[gone[i]]:e.first[gone[i]+1]] {
			if into[to]--; into[to] == 0 {
				gone = append(gone, to)
			}
		}
	}
	if len(gone) == n {
		return
	}
	for i := range n {
		if into[i] > 0 {
			e.fail(Violation{Invariant: V8, why: whyForever}, i, Move{})
			return
		}
	}
}

// key is the hash of a state; zero is no state.
type key struct{ hi, lo uint64 }

// table numbers keys from 0, in the order in which they come. The zero value is
// empty.
type table struct {
	slots   []key // open addressing
	numbers []uint32
	n       uint32
}

// number returns the number of k, a new one if k was not found.
func (t *table) number(k key) (n uint32, found bool) {
	if k == (key{}) {
		k.lo = 1
	}
	if 8*int(t.n) >= 5*len(t.slots) {
		t.grow()
	}
	i, found := t.find(k)
	if !found {
		t.slots[i], t.numbers[i] = k, t.n
		t.n++
	}
	return t.numbers[i], found
}

// find returns the slot of k, or the one that it should take.
func (t *table) find(k key) (i uint64, found bool) {
	mask := uint64(len(t.slots) - 1)
	for i = k.lo & mask; ; i = (i + 1) & mask {
		switch t.slots[i] {
		case k:
			return i, true
		case key{}:
			return i, false
		}
	}
}

func (t *table) grow() {
	slots, numbers := t.slots, t.numbers
	size := max(1<<12, 2*len(slots))
	t.slots, t.numbers = make([]key, size), make([]uint32, size)
	for j, k := range slots {
		if k != (key{}) {
			i, _ := t.find(k)
			t.slots[i], t.numbers[i] = k, numbers[j]
		}
	}
}
