package route

import (
	"errors"
	"math"
)

// Errors of [Queue.Push].
var (
	// ErrFull: the queue takes no more items.
	ErrFull = errors.New("route: the queue is full")
	// ErrFlowFull: it takes no more of this flow.
	ErrFlowFull = errors.New("route: the flow is full")
)

// Fate is what became of an item that was offered.
type Fate uint8

const (
	// Waits: there is no room for it now.
	Waits Fate = iota
	// Placed: it was taken.
	Placed
	// Dropped: it is not to be offered again, and cost nothing.
	Dropped
)

// Place is where an item enters its flow.
type Place uint8

const (
	// Back: behind the others.
	Back Place = iota
	// Front: before them, for one that was served already and has to be served again.
	Front
)

// Item is something that waits.
type Item[T any] struct {
	// Value is whatever the caller wants.
	Value T
	// cost is in tokens; seq is the order of arrival.
	cost int64
	seq  int64
	// waits says that the item was offered at the head of its flow, and that there was no
	// room. From then on overtaken counts the tokens that others were given.
	waits     bool
	overtaken int64
	flow      *flow[T] // nil once it waits no more
}

// Cost is the item's cost in tokens.
func (i *Item[T]) Cost() int64 { return i.cost }

// flow is the items of one tenant, in their order.
type flow[T any] struct {
	name  string
	items []*Item[T]
	// start is the head's virtual start: what the flow had been given before it.
	start   int64
	offered bool // in this serving, and in vain
}

// Queue is a fair queue: start-time fair queueing over flows. Each flow has a count of
// the tokens that it was given; the flow with the least goes first. While two flows both
// wait and there is room for either, what they are given differs by at most the cost of
// one item of each. Fair shares by rounds would not do here, for what is served is not a
// line on which one item follows the other but room, which a small item may find and a
// large one not.
//
// An item for which there is no room lets those of other flows pass, but not for ever:
// see [Queue.Due].
type Queue[T any] struct {
	perFlow, total int
	flows          []*flow[T]
	size           int
	seq            int64
	now            int64            // virtual time: the greatest start that was placed
	past           map[string]int64 // where flows without items stand, if that is ahead of now
}

// NewQueue makes a queue of at most perFlow items of one flow and total of all.
func NewQueue[T any](perFlow, total int) *Queue[T] {
	return &Queue[T]{perFlow: perFlow, total: total, past: map[string]int64{}}
}

// Len is how many items wait.
func (q *Queue[T]) Len() int { return q.size }

// maxCost bounds what one item counts for, so that sums stay sums.
const maxCost = 1 << 40

// Push adds an item that costs so many tokens to a flow.
func (q *Queue[T]) Push(name string, cost int64, v T, at Place) (*Item[T], error) {
	f := q.flow(name)
	switch {
	case q.size >= q.total: // the flow's own bound is not what is in the way
		return nil, ErrFull
	case f != nil && len(f.items) >= q.perFlow || q.perFlow < 1:
		return nil, ErrFlowFull
	}
	if f == nil {
		f = &flow[T]{name: name, start: max(q.now, q.past[name])}
		delete(q.past, name)
		q.flows = append(q.flows, f)
	}
	q.seq++
	i := &Item[T]{Value: v, cost: min(max(cost, 1), maxCost), seq: q.seq, flow: f}
	if at == Front {
		f.items = append([]*Item[T]{i}, f.items...)
	} else {
		f.items = append(f.items, i)
	}
	q.size++
	return i, nil
}

func (q *Queue[T]) flow(name string) *flow[T] {
	for _, f := range q.flows {
		if f.name == name {
			return f
		}
	}
	return nil
}

// Waiting says whether the item still waits.
func (q *Queue[T]) Waiting(i *Item[T]) bool { return i.flow != nil }

// Remove takes an item out that nobody waits for any more. It returns false if it does
// not wait.
func (q *Queue[T]) Remove(i *Item[T]) bool {
	f := i.flow
	if f == nil {
		return false
	}
	for n, other := range f.items {
		if other == i {
			f.items = append(f.items[:n:n], f.items[n+1:]...)
			break
		}
	}
	q.gone(i)
	return true
}

// gone notes that an item left its flow.
func (q *Queue[T]) gone(i *Item[T]) {
	f := i.flow
	i.flow = nil
	q.size--
	if len(f.items) > 0 {
		return
	}
	for n, other := range q.flows {
		if other == f {
			q.flows = append(q.flows[:n:n], q.flows[n+1:]...)
			break
		}
	}
	if f.start > q.now {
		q.remember(f)
	}
}

// remembered is how many flows without items are remembered at most.
const remembered = 4096

// remember keeps where a flow stands that has no items, so that it gains nothing by
// coming one at a time.
func (q *Queue[T]) remember(f *flow[T]) {
	if len(q.past) >= remembered {
		for name, start := range q.past {
			if start <= q.now {
				delete(q.past, name)
			}
		}
		if len(q.past) >= remembered {
			clear(q.past)
		}
	}
	q.past[f.name] = f.start
}

// Serve offers the heads of the flows in their order until none can be placed. try must
// not change the queue.
func (q *Queue[T]) Serve(try func(*Item[T]) Fate) {
	for _, f := range q.flows {
		f.offered = false
	}
	for {
		f := q.next()
		if f == nil {
			return
		}
		head := f.items[0]
		fate := try(head)
		if fate == Waits {
			head.waits, f.offered = true, true
			continue
		}
		f.items = f.items[1:]
		if fate == Placed {
			q.now = max(q.now, f.start)
			// A flow that could not be served for lack of room catches up by one item, not by
			// all that it missed.
			f.start = max(f.start, q.now-head.cost) + head.cost
			q.overtake(f, head.cost)
		}
		q.gone(head)
	}
}

// next is the flow whose turn it is, of those that were not offered in vain.
func (q *Queue[T]) next() *flow[T] {
	var best *flow[T]
	for _, f := range q.flows {
		if f.offered {
			continue
		}
		if best == nil || f.start < best.start || f.start == best.start && f.items[0].seq < best.items[0].seq {
			best = f
		}
	}
	return best
}

// overtake notes that another flow was given cost tokens.
func (q *Queue[T]) overtake(by *flow[T], cost int64) {
	for _, f := range q.flows {
		if f == by {
			continue
		}
		if head := f.items[0]; head.waits {
			head.overtaken = min(head.overtaken+cost, math.MaxInt64/2)
		}
	}
}

// patience is how many times its own cost an item may be overtaken by.
const patience = 4

// Due returns the item that was overtaken most, for its cost, if that is more than it has
// to bear: room is to be kept for it. It is nil if there is none.
func (q *Queue[T]) Due() *Item[T] {
	var due *Item[T]
	for _, f := range q.flows {
		head := f.items[0]
		if head.overtaken < patience*head.cost {
			continue
		}
		if due == nil || head.overtaken/head.cost > due.overtaken/due.cost {
			due = head
		}
	}
	return due
}
