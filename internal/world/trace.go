package world

import (
	"errors"
	"fmt"

	"bulkhead.dev/bulkhead/handoff"
)

// Entry is one thing that a driver told: a step of a machine, or with Did what it did to
// pages.
type Entry struct {
	Machine uint64
	Event   handoff.Event
	Effects handoff.Effects
	State   uint64 // hash of the state after the step
	Did     handoff.Do
}

// Trace is what one driver told, in order. It is a handoff.Tracer, for one goroutine.
type Trace struct {
	Role    Role
	Guards  handoff.Guards
	Entries []Entry
}

// Stepped implements handoff.Tracer.
func (t *Trace) Stepped(machine uint64, e handoff.Event, fx handoff.Effects, state []byte) {
	t.Entries = append(t.Entries, Entry{Machine: machine, Event: e, Effects: fx, State: stateHash(state)})
}

// Did implements handoff.Tracer.
func (t *Trace) Did(machine uint64, do handoff.Do) {
	t.Entries = append(t.Entries, Entry{Machine: machine, Did: do})
}

var _ handoff.Tracer = (*Trace)(nil)

// ErrNoSteps says that a trace holds no step, so that it proves nothing.
var ErrNoSteps = errors.New("world: check trace: no steps")

// TraceReport says what a trace held.
type TraceReport struct {
	Machines, Steps, Touches int
	Coverage                 Coverage
	Broken                   Violation // the invariant that a step broke, if the error is that
}

// Check holds a trace against the machine: every step must be the step that the machine
// takes in that state, with the same effects; pages must be touched exactly when an effect
// asked for it; and no step may break an invariant ([Checks]). The error says which entry is wrong, from 0. A trace without a step is
// ErrNoSteps.
func (t *Trace) Check() (TraceReport, error) {
	machines := map[uint64]*traced{}
	r := TraceReport{}
	for i, e := range t.Entries {
		m := machines[e.Machine]
		if m == nil {
			m = &traced{}
			machines[e.Machine] = m
		}
		if e.Did != handoff.Nothing {
			r.Touches++
			if m.asked[e.Did] == 0 {
				return r, fmt.Errorf("world: check trace: entry %d: machine %d: the driver did %s, and no step had asked for it", i, e.Machine, e.Did)
			}
			m.asked[e.Did]--
			continue
		}
		r.Steps++
		if err := m.step(t, e); err != nil {
			return r, fmt.Errorf("world: check trace: entry %d: machine %d: %w", i, e.Machine, err)
		}
		if y := m.hold(t.Role, e); y != whyNone {
			r.Broken = Violation{Invariant: y.invariant(), why: y}
			return r, fmt.Errorf("world: check trace: entry %d: machine %d: %v: %s", i, e.Machine, y.invariant(), y.say())
		}
		if e.Effects.Edge != 0 {
			r.Coverage.take(t.Role, e.Effects.Edge)
		}
	}
	r.Machines = len(machines)
	if r.Steps == 0 {
		return r, ErrNoSteps
	}
	for n, m := range machines {
		for do, left := range m.asked {
			if left != 0 && handoff.Do(do) != handoff.DoReserve { // what waits for pages may wait at the end
				return r, fmt.Errorf("world: check trace: machine %d: a step asked to %s, and the driver did not", n, handoff.Do(do))
			}
		}
	}
	return r, nil
}

// traced is one machine as a trace tells it.
type traced struct {
	decode  handoff.Decode
	prefill handoff.Prefill
	asked   [32]int // by handoff.Do: touches that steps asked for and the driver has not done

	legs                int  // legs that came and were not answered
	served, quiet, over bool // an OK left at decode; Quiet was said; the attempt ended
}

var (
	errState   = errors.New("the state is another than the machine's")
	errEffects = errors.New("the effects are others than the machine's")
)

func (m *traced) step(t *Trace, e Entry) error {
	var fx handoff.Effects
	var state []byte
	if t.Role == Decode {
		m.decode, fx = m.decode.Step(e.Event, t.Guards)
		state = m.decode.AppendCanonical(nil)
	} else {
		m.prefill, fx = m.prefill.Step(e.Event, t.Guards)
		state = m.prefill.AppendCanonical(nil)
	}
	switch {
	case fx != e.Effects:
		return errEffects
	case stateHash(state) != e.State:
		return errState
	}
	for _, x := range fx.Slice() {
		switch x.Do {
		case handoff.DoReserve, handoff.DoSeal, handoff.DoRevoke, handoff.DoVerify, handoff.DoRead, handoff.DoFree:
			m.asked[x.Do]++
		case handoff.DoWithdraw:
			m.asked[handoff.DoReserve] = 0
		}
	}
	return nil
}

// stateHash is FNV-1a.
func stateHash(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}
