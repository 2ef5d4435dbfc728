package world

import (
	"testing"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// TestChecks holds that every way to break an invariant has a name of its own.
func TestChecks(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if c.Name == "" || seen[c.Name] || c.Sentence == "" {
			t.Errorf("%v: %q: %q", c.Invariant, c.Name, c.Sentence)
		}
		seen[c.Name] = true
	}
	if len(seen) != int(whys)-1 {
		t.Errorf("%d checks of %d ways", len(seen), int(whys)-1)
	}
	for i := V1; i < invariants; i++ {
		found := false
		for _, c := range Checks() {
			found = found || c.Invariant == i
		}
		if !found {
			t.Errorf("%v has no check", i)
		}
	}
}

// recorder drives one machine of each role and records both, as a driver does.
type recorder struct {
	decode, prefill Trace
	d               handoff.Decode
	p               handoff.Prefill
}

func (r *recorder) step(role Role, ev handoff.Event) {
	if role == Decode {
		var fx handoff.Effects
		r.d, fx = r.d.Step(ev, r.decode.Guards)
		r.decode.Stepped(1, ev, fx, r.d.AppendCanonical(nil))
		for _, x := range fx.Slice() {
			switch x.Do {
			case handoff.DoSeal, handoff.DoRevoke, handoff.DoVerify, handoff.DoRead, handoff.DoFree, handoff.DoReserve:
				r.decode.Did(1, x.Do)
			}
		}
		return
	}
	var fx handoff.Effects
	r.p, fx = r.p.Step(ev, r.prefill.Guards)
	r.prefill.Stepped(1, ev, fx, r.p.AppendCanonical(nil))
	for _, x := range fx.Slice() {
		if x.Do == handoff.DoReserve || x.Do == handoff.DoFree {
			r.prefill.Did(1, x.Do)
		}
	}
}

// granted records an attempt up to the grant, with one page posted.
func granted(g handoff.Guards) *recorder {
	r := &recorder{decode: Trace{Role: Decode, Guards: g}, prefill: Trace{Role: Prefill, Guards: g}}
	id := handoff.ID{Attempt: handoff.Attempt{1}}
	v := handoff.View{Tokens: 16, Pages: 1, Input: kv.Hash{1}, Domain: kv.Domain{1}}
	msg := func(k handoff.Kind, id handoff.ID) handoff.Event {
		return handoff.Receive(handoff.Msg{Kind: k, ID: id, View: v})
	}
	r.step(Decode, handoff.Event{On: handoff.OnDoor, ID: id, View: v, Group: handoff.Group(2)})
	r.step(Prefill, handoff.Event{On: handoff.OnDoor, ID: id, View: v})
	r.step(Prefill, msg(handoff.Ask, id))
	r.step(Prefill, handoff.Event{On: handoff.OnReserved})
	r.step(Prefill, handoff.Event{On: handoff.OnComputed, N: 1, Last: true, View: v})
	r.step(Decode, msg(handoff.Offer, id))
	second := msg(handoff.Offer, id)
	second.Rank = 1
	r.step(Decode, second)
	id.Gen = kv.Generation{Epoch: 1, Counter: 1}
	r.step(Decode, handoff.Event{On: handoff.OnReserved, Gen: id.Gen})
	r.step(Prefill, msg(handoff.Grant, id))
	return r
}

// TestTraceInvariants holds that a trace in which a worker breaks an invariant is told by
// the invariant's name, and that the same steps under every guard are sound.
func TestTraceInvariants(t *testing.T) {
	for _, c := range []struct {
		name  string
		off   handoff.Guards
		role  Role
		want  Invariant
		steps func(r *recorder)
	}{
		{"header", handoff.GuardHeader, Decode, V9, func(*recorder) {}},
		{"quiet", handoff.GuardQuiet, Prefill, V7, func(r *recorder) {
			r.step(Prefill, handoff.Receive(handoff.Msg{Kind: handoff.Abort, Code: handoff.Cancelled, ID: r.p.ID}))
		}},
		{"writers", handoff.GuardWriters, Decode, V6, func(r *recorder) {
			r.step(Decode, handoff.Receive(handoff.Msg{Kind: handoff.Notice, ID: r.d.ID, View: r.d.View}))
		}},
		{"tombstone", handoff.GuardTombstone, Prefill, V4, func(r *recorder) {
			id, v := r.p.ID, r.p.View
			r.step(Prefill, handoff.Event{On: handoff.OnWritten, N: 1})
			r.step(Prefill, handoff.Receive(handoff.Msg{Kind: handoff.Abort, Code: handoff.Cancelled, ID: id}))
			r.step(Prefill, handoff.Receive(handoff.Msg{Kind: handoff.Ask, ID: id, View: v}))
			r.step(Prefill, handoff.Event{On: handoff.OnDoor, ID: id, View: v})
		}},
	} {
		for _, g := range []handoff.Guards{handoff.All.Without(c.off), handoff.All} {
			r := granted(g)
			c.steps(r)
			trace := &r.decode
			if c.role == Prefill {
				trace = &r.prefill
			}
			report, err := trace.Check()
			if want := c.want; g == handoff.All && (err != nil || report.Steps == 0) {
				t.Errorf("%s: with every guard: %v", c.name, err)
			} else if g != handoff.All && (err == nil || report.Broken.Invariant != want) {
				t.Errorf("%s: %v (%v), want %v", c.name, report.Broken.Invariant, err, want)
			}
		}
	}
}
