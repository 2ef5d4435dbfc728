package handoff

import "testing"

// group drives decode's machine alone, with the words of a group of two ranks.
type group struct {
	t *testing.T
	g Guards
	d Decode
}

// hear gives decode a message of a rank and returns what it does.
func (x *group) hear(k Kind, rank uint8, code Code) []Effect {
	x.t.Helper()
	m := Msg{Kind: k, Code: code, ID: x.d.ID, View: x.d.View}
	return x.take(Event{On: On(k), Msg: m, Rank: rank})
}

func (x *group) take(ev Event) []Effect {
	x.t.Helper()
	var fx Effects
	x.d, fx = x.d.Step(ev, x.g)
	return fx.Slice()
}

// grouped is a group of two whose attempt has come to a phase.
func grouped(t *testing.T, g Guards, to DecodePhase) *group {
	t.Helper()
	id, view := request()
	x := &group{t: t, g: g}
	x.take(Event{On: OnDoor, ID: id, View: view, Group: Group(2)})
	if to >= DecodeReserving {
		x.hear(Offer, 0, NoCode)
		x.hear(Offer, 1, NoCode)
	}
	if to >= DecodeGranted {
		x.take(Event{On: OnReserved, Gen: gen(1)})
	}
	if x.d.Phase != to {
		t.Fatalf("%v, want %v", x.d.Phase, to)
	}
	return x
}

// TestGroupWaits holds that decode goes on only on the word of every rank (H-11), and that
// a rank that says a thing twice does not count for two.
func TestGroupWaits(t *testing.T) {
	x := grouped(t, All, DecodeAsked)
	for range 2 {
		if fx := x.hear(Offer, 1, NoCode); x.d.Phase != DecodeAsked || len(fx) != 0 {
			t.Fatalf("one offer of two: %v %v", x.d.Phase, fx)
		}
	}
	if fx := x.hear(Offer, 0, NoCode); x.d.Phase != DecodeReserving || len(fx) != 1 || fx[0].Do != DoReserve {
		t.Fatalf("both: %v %v", x.d.Phase, fx)
	}
	x.take(Event{On: OnReserved, Gen: gen(1)})
	for range 2 {
		if fx := x.hear(Notice, 0, NoCode); x.d.Phase != DecodeGranted || len(fx) != 0 {
			t.Fatalf("one notice of two: %v %v", x.d.Phase, fx)
		}
	}
	if fx := x.hear(Notice, 1, NoCode); x.d.Phase != DecodeSealing || len(fx) != 1 || fx[0].Do != DoSeal {
		t.Fatalf("both: %v %v", x.d.Phase, fx)
	}
	x = grouped(t, All.Without(GuardWriters), DecodeReserving) // the second offer finds it reserving
	x.take(Event{On: OnReserved, Gen: gen(1)})
	if x.hear(Notice, 0, NoCode); x.d.Phase != DecodeSealing {
		t.Errorf("without the guard one notice must do: %v", x.d.Phase)
	}
}

// TestGroupEnds holds that what one rank ends, the others are told, and that only they are
// waited for.
func TestGroupEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		from DecodePhase
		kind Kind
		to   DecodePhase
	}{
		{"refused", DecodeAsked, Refuse, DecodeEnded},
		{"aborted while asked", DecodeAsked, Abort, DecodeEnded},
		{"aborted while reserving", DecodeReserving, Abort, DecodeEnded},
		{"aborted while granted", DecodeGranted, Abort, DecodeRevoking},
	} {
		x := grouped(t, All, c.from)
		told, answered := Writers(0), false
		for _, e := range x.hear(c.kind, 1, Engine) {
			switch {
			case e.Do == DoSend && e.Send == Abort:
				told = e.To
			case e.Do == DoSend && e.To != 2:
				t.Errorf("%s: %v goes to %b, not to the rank that spoke", c.name, e.Send, e.To)
			case e.Do == DoAnswer:
				answered = e.Code == Engine
			}
		}
		if x.d.Phase != c.to || told != 1 || !answered || !x.d.Armed || x.d.Still != 2 {
			t.Errorf("%s: %v, aborts to %b, answered %v: %+v", c.name, x.d.Phase, told, answered, x.d)
		}
		x.take(Event{On: OnRevoked})
		if x.d.Over() {
			t.Errorf("%s: over before the other rank is quiet", c.name)
		}
		if fx := x.take(Event{On: OnTick}); len(fx) != 1 || fx[0].Send != Abort || fx[0].To != 1 {
			t.Errorf("%s: repeated as %v, want an abort to the first rank alone", c.name, fx)
		}
		if x.hear(Quiet, 0, NoCode); !x.d.Over() {
			t.Errorf("%s: every rank is quiet, and it is not over: %+v", c.name, x.d)
		}
	}
}

// TestGroupIsFixed holds that a writer which was not expected at the door moves nothing, and
// that a tombstone answers whoever aborts.
func TestGroupIsFixed(t *testing.T) {
	x := grouped(t, All, DecodeGranted)
	was := x.d
	for _, k := range []Kind{Offer, Refuse, Notice, Abort, Seen, Quiet} {
		fx := x.hear(k, 2, Engine)
		if x.d != was || len(fx) != 1 || fx[0].Do != DoDrop {
			t.Errorf("%v of a third rank: %v %+v", k, fx, x.d)
		}
	}
	if fx := x.hear(Abort, 1, Engine); x.d == was || len(fx) == 0 { // the control
		t.Error("an abort of the second rank moves nothing")
	}
	id, _ := request()
	late := &group{t: t, g: All}
	for rank := range uint8(2) {
		fx := late.take(Event{On: OnAbort, Msg: Msg{Kind: Abort, Code: Engine, ID: id}, Rank: rank})
		if len(fx) != 2 || fx[0].Send != Seen || fx[1].Send != Quiet {
			t.Errorf("a tombstone answers rank %d with %v", rank, fx)
		}
	}
	if Group(1) != OneWriter || Group(MaxWriters) != ^Writers(0) {
		t.Error("groups have the wrong ranks")
	}
}
