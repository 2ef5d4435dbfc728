// Package world is the hand-off's proving ground: the two machines of package
// handoff, the memory of both workers, the fabric between them and an adversary,
// in one small value; and the choosers that decide what happens next. The
// explorer takes every choice, a script takes the one that is written down.
//
// What it promises: [Model.Apply] is the only way a [World] changes, it is pure,
// and it holds the invariants V1 to V10 against every step. The machines are the
// ones that the workers run, not a model of them. What is modelled is the driver
// around them (its pages, its connections) and what a one-sided transport may do:
// land late, in halves, twice, after its completion, after its sender's death.
//
// What must not come in: clocks, randomness, I/O, goroutines and maps in the
// core. Choosers (explore, script, prove) may have what they need.
//
// A World is small on purpose: up to three attempts, or two of two ranks
// each, four pages a pool, a few messages and writes at a time. What exceeds a bound ends in an unknown, never
// in a pass.
package world

import "bulkhead.dev/bulkhead/handoff"

// Bounds of one World.
const (
	MaxAttempts = 3  // attempts in a scenario
	MaxPages    = 4  // pages in a pool
	MaxExtent   = 3  // pages of one prompt
	MaxRanks    = 2  // writers of a group
	MaxSides    = 4  // attempts times ranks
	maxMessages = 12 // under way at a time
	maxWrites   = 6  // under way, or still able to land again
)

// Role is one side of the hand-off.
type Role uint8

const (
	Decode  Role = iota // owns the pages that are written, and reads them
	Prefill             // computes, and writes
)

// String names the role.
func (r Role) String() string { return [...]string{"decode", "prefill"}[r] }

// World is the state of everything. It is comparable and of fixed size. Its
// machines are kept packed; see cell.
type World struct {
	dec    [MaxAttempts]decodeSide
	pre    [MaxSides]prefillSide // of each attempt, its ranks
	msgs   [maxMessages]message  // sorted; zero is none and comes last
	writes [maxWrites]write      // slots; not sorted

	pool   [MaxPages][2]content // decode's memory, each page in two halves
	source [MaxPages]content    // prefill's memory
	free   stack                // decode's free pages
	sfree  stack                // prefill's free pages

	cur, broken uint8         // number of the newest connection; those up to broken carry nothing new
	shut        [2]uint8      // connections up to this number are closed at the end of a role
	epoch       uint8         // boots of decode, from 1
	counter     uint8         // generations minted in this boot
	left        [faults]uint8 // what the adversary may still do
	proved      uint8         // ghost: attempts that decode verified, a bit each
	cache       cached
	overflow    bool // a bound of the World was exceeded: the outcome is unknown
}

// decodeSide is one attempt at decode: the machine, and what its driver holds.
type decodeSide struct {
	cell cell
	leg  leg
	conn uint8 // connection that may speak of the attempt; 0 is none
	pend pend  // what the driver was asked for and has not answered
	here bool  // the leg came in this life of the machine

	res            uint8 // ghost: number of the reservation that is held, 0 is none
	epoch, counter uint8 // its generation, which is also its write key
	n              uint8 // pages
	pages          [MaxExtent]uint8
	open           bool            // the write key opens it
	sealed         bool            // the pages were taken from every writer
	lease          bool            // ghost: writes of this reservation may land
	pin            bool            // a cached prefix page is pinned
	prefix         uint8           // which page that is
	listed         [MaxRanks]uint8 // pages that the notice of each rank lists
	author         [MaxRanks]uint8 // attempt, from 1, whose engine the notice speaks of
	stub           [MaxRanks]bool  // the notice's digests are of a placeholder
	told           uint8           // ghost: ranks whose notice was taken
	deferred       bool            // the machine freed the pages; its driver holds them until every writer is quiet
	reads          uint8           // decode steps to go
	over           bool            // ghost: the attempt ended in this life
}

// prefillSide is one attempt at one rank of prefill.
type prefillSide struct {
	cell cell
	leg  leg
	conn uint8
	work work  // what the engine does
	here bool  // the leg came in this life of the machine
	n    uint8 // source pages held
	made uint8 // of these, computed

	pages   [MaxExtent]uint8
	dst     [MaxExtent]uint8 // pages that the grant named; unused with keys
	granted uint8            // how many it was for
	res     uint8            // ghost: reservation that the grant was for
	over    bool             // ghost: the attempt ended in this life
	quiet   bool             // ghost: Quiet was sent
	refused bool             // ghost: the door refused
}

// leg is the HTTP call that one side of an attempt answers.
type leg struct {
	is   legState
	code handoff.Code // of the last answer
}

type legState uint8

const (
	legAhead   legState = iota // not here yet
	legWaiting                 // here, unanswered
	legServed                  // answered OK
	legFailed                  // answered with an error
	legBroken                  // answered OK, then visibly broken off (H-14)
	legReset                   // its worker died
)

// pend is what decode's driver owes its machine. Each is a step of its own, so
// that anything may come in between.
type pend uint8

const (
	pendNothing pend = iota
	pendReserve
	pendSeal
	pendVerify
	pendRead
	pendRevoke
)

// work is what prefill's engine does for an attempt.
type work uint8

const (
	workNone  work = iota
	workQueue      // it waits for source pages
	workRuns       // one page after the other
)

// write is one page write in the fabric. It is posted: its payload is read from
// the source when it lands, until it was captured.
type write struct {
	used           bool
	slot           uint8 // side that posted it
	ord            uint8 // page of the reservation
	of             uint8 // pages of the grant
	src, dst       uint8 // page of the source; page at decode, with keys unused until half of it has landed
	epoch, counter uint8 // the write key
	res            uint8 // ghost: reservation that the grant was for
	conn           uint8
	landed         uint8 // halves
	done           bool  // completed, or nobody waits for its completion any more
	failed         bool  // ended in an error: it never completes, and may land all the same (H-8)
	captured       bool  // payload is fixed
	payload        content
}

// cached is decode's prefix cache, of one page: the first of a prompt. Who holds it is
// counted in the attempts that pin it.
type cached struct {
	is             bool
	page           uint8
	domain, prompt uint8
}

// stack is a free list: last in, first out, so that a freed page comes back at
// once (the hardest order for a late write).
type stack struct {
	n    uint8
	list [MaxPages]uint8
}

func (s *stack) push(p uint8) {
	s.list[s.n] = p
	s.n++
}

func (s *stack) pop() uint8 {
	s.n--
	p := s.list[s.n]
	s.list[s.n] = 0
	return p
}

// content says what is in a cell of memory: by which attempt it was computed,
// from what, and which page of it.
type content uint8

// elder is what is in a page that nobody here has written: KV of an earlier tenant.
const elder content = 0

const stubBit = 1 << 2 // in a content less one

func computed(attempt int, stub bool, page int) content {
	c := attempt<<3 | page
	if stub {
		c |= stubBit
	}
	return content(1 + c)
}

// by returns the attempt that computed the content; it must not be elder.
func (c content) by() int { return int(c-1) >> 3 }

func (c content) stub() bool { return (c-1)&stubBit != 0 }

func (c content) page() int { return int(c-1) & 3 }
