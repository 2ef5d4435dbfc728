package handoff

import (
	"bytes"
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

// request is an attempt as both legs see it.
func request() (ID, View) {
	return ID{Attempt: Attempt{1, 2, 3}}, View{
		Tokens: 100, Pages: 2, Input: kv.Hash{9}, Layout: 7, Domain: kv.Domain{4},
	}
}

func gen(n uint64) kv.Generation { return kv.Generation{Epoch: 5, Counter: n} }

// pair is both machines of one attempt, with a perfect channel between them.
type pair struct {
	t      *testing.T
	g      Guards
	d      Decode
	p      Prefill
	toP    []Msg
	toD    []Msg
	does   []string // effects of both, in order, without sends
	scarce bool     // prefill's pool does not answer by itself
}

func (x *pair) decode(ev Event) {
	x.t.Helper()
	var fx Effects
	x.d, fx = x.d.Step(ev, x.g)
	for _, e := range fx.Slice() {
		if e.Do == DoSend {
			x.toP = append(x.toP, x.d.Message(e))
			continue
		}
		x.does = append(x.does, "decode "+say(e))
	}
}

func (x *pair) prefill(ev Event) {
	x.t.Helper()
	var fx Effects
	x.p, fx = x.p.Step(ev, x.g)
	for _, e := range fx.Slice() {
		if e.Do == DoSend {
			x.toD = append(x.toD, x.p.Message(e))
			continue
		}
		if e.Do == DoReserve && !x.scarce {
			defer x.prefill(Event{On: OnReserved}) // the pool has source pages
			continue
		}
		x.does = append(x.does, "prefill "+say(e))
	}
}

func say(e Effect) string {
	s := e.Do.String()
	if e.Do == DoAnswer {
		s += " " + e.Code.String()
	}
	return s
}

// deliver carries messages until none is under way.
func (x *pair) deliver() {
	x.t.Helper()
	for len(x.toP)+len(x.toD) > 0 {
		if len(x.toP) > 0 {
			m := x.toP[0]
			x.toP = x.toP[1:]
			x.prefill(Receive(m))
			continue
		}
		m := x.toD[0]
		x.toD = x.toD[1:]
		x.decode(Receive(m))
	}
}

func (x *pair) want(d DecodePhase, p PrefillPhase, does ...string) {
	x.t.Helper()
	if x.d.Phase != d || x.p.Phase != p {
		x.t.Fatalf("decode %v, prefill %v; want %v, %v", x.d.Phase, x.p.Phase, d, p)
	}
	if len(x.does) != len(does) {
		x.t.Fatalf("did %q, want %q", x.does, does)
	}
	for i := range does {
		if x.does[i] != does[i] {
			x.t.Fatalf("did %q, want %q", x.does, does)
		}
	}
	x.does = nil
}

// TestServed takes an attempt from its doors to its last token, whichever of
// door and ask comes first at prefill.
func TestServed(t *testing.T) {
	id, view := request()
	door := Event{On: OnDoor, ID: id, Room: 42, View: view}
	for _, order := range []string{"door first", "ask first"} {
		t.Run(order, func(t *testing.T) {
			x := &pair{t: t, g: All}
			if order == "door first" {
				x.prefill(door)
				x.decode(door)
			} else {
				x.decode(door)
				x.deliver()
				x.want(DecodeAsked, PrefillAsked)
				x.prefill(door)
			}
			x.deliver()
			x.want(DecodeReserving, PrefillOffered, "prefill compute", "decode reserve")
			x.prefill(Event{On: OnComputed, N: 1})
			x.decode(Event{On: OnReserved, Gen: gen(1)})
			x.deliver()
			x.want(DecodeGranted, PrefillGranted, "prefill post")
			x.prefill(Event{On: OnWritten, N: 1})
			x.prefill(Event{On: OnComputed, N: 1, Last: true, View: view})
			x.want(DecodeGranted, PrefillGranted, "prefill post")
			x.prefill(Event{On: OnWritten, N: 1})
			x.deliver()
			x.want(DecodeSealing, PrefillNoticed, "prefill free", "decode seal")
			x.decode(Event{On: OnSealed})
			x.decode(Event{On: OnVerified})
			x.deliver()
			x.want(DecodeReading, PrefillEnded, "decode verify", "decode answer ok", "decode read", "prefill answer ok")
			x.decode(Event{On: OnFinished})
			x.want(DecodeEnded, PrefillEnded, "decode free")
			if !x.d.Over() || !x.p.Over() || x.d.Result != OK || x.p.Result != OK {
				t.Fatalf("over %v %v, results %v %v", x.d.Over(), x.p.Over(), x.d.Result, x.p.Result)
			}
		})
	}
}

// TestRefused holds that both legs of a refused attempt answer the same, with
// the limit, and that nothing was allocated (H-1).
func TestRefused(t *testing.T) {
	id, view := request()
	door := Event{On: OnDoor, ID: id, View: view}
	refuse := Event{On: OnDoorRefused, ID: id, View: view, Code: TooLong, Limit: 64}
	for _, c := range []struct {
		name   string
		events func(x *pair)
		want   []string
	}{
		{"by prefill, door first", func(x *pair) { x.prefill(refuse); x.decode(door) }, []string{"prefill answer too_long", "decode answer too_long"}},
		{"by prefill, ask first", func(x *pair) { x.decode(door); x.deliver(); x.prefill(refuse) }, []string{"prefill answer too_long", "decode answer too_long"}},
		{"by decode, before prefill's leg", func(x *pair) { x.decode(refuse); x.deliver(); x.prefill(door) }, []string{"decode answer too_long", "prefill answer too_long"}},
		{"by decode, after prefill's leg", func(x *pair) { x.prefill(door); x.decode(refuse) }, []string{"decode answer too_long", "prefill answer too_long"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &pair{t: t, g: All}
			c.events(x)
			x.deliver()
			x.want(DecodeEnded, PrefillEnded, c.want...)
			if x.d.Limit != 64 || x.p.Limit != 64 || !x.d.Over() || !x.p.Over() {
				t.Fatalf("limits %d %d, over %v %v", x.d.Limit, x.p.Limit, x.d.Over(), x.p.Over())
			}
		})
	}
}

// granted brings both machines to the point where pages may be written.
func granted(t *testing.T, g Guards) *pair {
	id, view := request()
	x := &pair{t: t, g: g}
	x.prefill(Event{On: OnDoor, ID: id, View: view})
	x.decode(Event{On: OnDoor, ID: id, View: view})
	x.deliver()
	x.decode(Event{On: OnReserved, Gen: gen(1)})
	x.deliver()
	if x.d.Phase != DecodeGranted || x.p.Phase != PrefillGranted {
		t.Fatalf("decode %v, prefill %v", x.d.Phase, x.p.Phase)
	}
	x.does = nil
	return x
}

// TestNoticeSaysWhatWasDone holds that a notice states what the engine was given
// and how many pages it made, not what the door had promised (H-3).
func TestNoticeSaysWhatWasDone(t *testing.T) {
	_, view := request()
	for _, c := range []struct {
		name string
		last Event
		want Code
	}{
		{"as offered", Event{On: OnComputed, N: 2, Last: true, View: view}, NoCode},
		{"too few pages", Event{On: OnComputed, N: 1, Last: true, View: view}, Disagree},
		{"too many pages", Event{On: OnComputed, N: 3, Last: true, View: view}, Disagree},
		{"another prompt", Event{On: OnComputed, N: 2, Last: true, View: View{Tokens: 100, Pages: 2, Input: kv.Hash{8}}}, Disagree},
		{"fewer tokens", Event{On: OnComputed, N: 2, Last: true, View: View{Tokens: 99, Pages: 2, Input: kv.Hash{9}}}, Disagree},
		{"not said", Event{On: OnComputed, N: 2, Last: true}, Disagree},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := granted(t, All)
			x.prefill(c.last)
			x.prefill(Event{On: OnWritten, N: c.last.N})
			x.deliver()
			if c.want == NoCode {
				x.want(DecodeSealing, PrefillNoticed, "prefill post", "prefill free", "decode seal")
				return
			}
			if x.d.Phase != DecodeRevoking || x.d.Result != c.want || x.p.Result != c.want {
				t.Fatalf("decode %v (%v), prefill %v (%v)", x.d.Phase, x.d.Result, x.p.Phase, x.p.Result)
			}
		})
	}
}

// TestPrefix holds that a prefix which decode holds is taken into prefill's view,
// in either order, and that nothing else of the ask is.
func TestPrefix(t *testing.T) {
	id, view := request()
	with := view
	with.Pages, with.Prefix, with.PrefixHash = 1, 64, kv.Hash{3}
	for _, c := range []struct {
		name  string
		ask   func(v *View)
		offer bool
	}{
		{"a page of the prompt", func(*View) {}, true},
		{"without a hash", func(v *View) { v.PrefixHash = kv.Hash{} }, false},
		{"the whole prompt", func(v *View) { v.Prefix = v.Tokens }, false},
		{"no page less", func(v *View) { v.Pages = 2 }, false},
		{"another prompt", func(v *View) { v.Input = kv.Hash{8} }, false},
		{"another domain", func(v *View) { v.Domain = kv.Domain{5} }, false},
		{"another layout", func(v *View) { v.Layout = 8 }, false},
		{"another length", func(v *View) { v.Tokens = 101 }, false},
	} {
		asked := with
		c.ask(&asked)
		for _, first := range []On{OnDoor, OnAsk} {
			t.Run(c.name+", first "+first.String(), func(t *testing.T) {
				x := &pair{t: t, g: All}
				door := Event{On: OnDoor, ID: id, View: view}
				if first == OnDoor {
					x.prefill(door)
				}
				x.decode(Event{On: OnDoor, ID: id, View: asked})
				x.deliver()
				if first == OnAsk {
					x.prefill(door)
					x.deliver()
				}
				if offered := x.d.Phase == DecodeReserving && x.p.View == asked; offered != c.offer {
					t.Fatalf("decode %v, prefill %v with %+v", x.d.Phase, x.p.Phase, x.p.View)
				}
				if !c.offer && (x.d.Result != Disagree || x.p.Result != Disagree) {
					t.Fatalf("results %v, %v", x.d.Result, x.p.Result)
				}
			})
		}
	}
}

// TestNoSuccessFromOutside holds that neither a peer nor a driver can end an
// attempt as served: what names no failure counts as disagreement (H-14).
func TestNoSuccessFromOutside(t *testing.T) {
	id, view := request()
	for _, code := range []Code{NoCode, OK, codes, 255} {
		asked, _ := Decode{}.Step(Event{On: OnDoor, ID: id, View: view}, All)
		for _, k := range []Kind{Refuse, Abort} {
			m, fx := asked.Step(Receive(Msg{Kind: k, Code: code, ID: id}), All)
			if m.Result != Disagree || fx.List[fx.N-1] != (Effect{Do: DoAnswer, Code: Disagree}) {
				t.Errorf("%v with %v: result %v, effects %v", k, code, m.Result, fx.Slice())
			}
		}
		for _, on := range []On{OnCancel, OnDoorRefused} {
			start := asked
			if on == OnDoorRefused {
				start = Decode{}
			}
			if m, _ := start.Step(Event{On: on, ID: id, View: view, Code: code}, All); m.Result != Disagree {
				t.Errorf("decode: %v with %v: %v", on, code, m.Result)
			}
			waiting, _ := Prefill{}.Step(Event{On: OnDoor, ID: id, View: view}, All)
			if on == OnDoorRefused {
				waiting = Prefill{}
			}
			if m, _ := waiting.Step(Event{On: on, ID: id, View: view, Code: code}, All); m.Result != Disagree {
				t.Errorf("prefill: %v with %v: %v", on, code, m.Result)
			}
		}
	}
}

// TestIdentity holds which messages act (H-2): the same attempt, and a
// generation that is equal or not known yet; a notice, an accept and a grant
// only with a known one.
func TestIdentity(t *testing.T) {
	x := granted(t, All)
	x.prefill(Event{On: OnComputed, N: 2, Last: true, View: x.p.View})
	x.prefill(Event{On: OnWritten, N: 2})
	other := x.d.ID
	other.Attempt[0]++
	for _, c := range []struct {
		name string
		id   ID
		acts map[Kind]bool
	}{
		{"equal", x.d.ID, map[Kind]bool{Notice: true, Abort: true, Accept: true}},
		{"no generation yet", ID{Attempt: x.d.ID.Attempt}, map[Kind]bool{Abort: true}},
		{"another generation", ID{Attempt: x.d.ID.Attempt, Gen: gen(2)}, nil},
		{"another boot", ID{Attempt: x.d.ID.Attempt, Gen: kv.Generation{Epoch: 6, Counter: 1}}, nil},
		{"another attempt", other, nil},
	} {
		for _, k := range []Kind{Notice, Abort} {
			_, fx := x.d.Step(Receive(Msg{Kind: k, Code: Engine, ID: c.id, View: x.d.View}), All)
			if acts := fx.Edge != 0; acts != c.acts[k] {
				t.Errorf("decode: %v with %s acts: %v", k, c.name, acts)
			}
		}
		for _, k := range []Kind{Accept, Abort} {
			_, fx := x.p.Step(Receive(Msg{Kind: k, Code: Engine, ID: c.id}), All)
			if acts := fx.Edge != 0; acts != c.acts[k] {
				t.Errorf("prefill: %v with %s acts: %v", k, c.name, acts)
			}
		}
	}
	id, view := request()
	p := &pair{t: t, g: All}
	p.prefill(Event{On: OnDoor, ID: id, View: view})
	p.prefill(Receive(Msg{Kind: Ask, ID: id, View: view}))
	if m, fx := p.p.Step(Receive(Msg{Kind: Grant, ID: id, View: view}), All); fx.Edge != 0 || fx.List[0].Do != DoDrop || m != p.p {
		t.Error("a grant without a generation was taken")
	}
}

// TestTable holds that no row is hidden by an earlier one, that every phase can
// be reached, that the ends absorb, and that no two rows are the same.
func TestTable(t *testing.T) {
	for _, tab := range []struct {
		role  string
		rows  []row
		ended uint8
		n     uint8
	}{
		{"decode", decodeTable[:], uint8(DecodeEnded), uint8(decodePhases)},
		{"prefill", prefillTable[:], uint8(PrefillEnded), uint8(prefillPhases)},
	} {
		if len(tab.rows) > 255 {
			t.Fatalf("%s: %d rows do not fit Effects.Edge", tab.role, len(tab.rows))
		}
		type trigger struct {
			from uint8
			on   On
			when cond
		}
		seen, reached := map[trigger]int{}, map[uint8]bool{0: true}
		for range tab.rows {
			for _, r := range tab.rows {
				if reached[r.from] {
					reached[r.to] = true
				}
			}
		}
		for i, r := range tab.rows {
			for _, when := range []cond{always, r.when} {
				if j, hidden := seen[trigger{r.from, r.on, when}]; hidden {
					t.Errorf("%s row %d is hidden by row %d", tab.role, i+1, j+1)
				}
			}
			seen[trigger{r.from, r.on, r.when}] = i
			if r.from == tab.ended && r.to != tab.ended {
				t.Errorf("%s row %d leaves the end", tab.role, i+1)
			}
			if r.on == NoEvent || r.on >= events || r.when >= conds || r.to >= tab.n {
				t.Errorf("%s row %d is out of bounds", tab.role, i+1)
			}
			done := false
			for _, a := range r.do {
				if done = done || a.do == Nothing; done && a.do != Nothing {
					t.Errorf("%s row %d has a gap in its effects", tab.role, i+1)
				}
				if (a.do == DoSend) != (a.send != NoKind) {
					t.Errorf("%s row %d sends nothing, or without an effect", tab.role, i+1)
				}
			}
		}
		for ph := range tab.n {
			if !reached[ph] {
				t.Errorf("%s: phase %d cannot be reached", tab.role, ph)
			}
		}
	}
	if n := len(Transitions()); n != len(decodeTable)+len(prefillTable) {
		t.Errorf("%d transitions", n)
	}
}

// TestNames holds that every value has a name of its own.
func TestNames(t *testing.T) {
	unique := func(what string, names []string) {
		t.Helper()
		seen := map[string]bool{}
		for _, s := range names {
			if s == "" || seen[s] {
				t.Errorf("%s: name %q is empty or taken", what, s)
			}
			seen[s] = true
		}
	}
	var lists [7][]string
	for v := range decodePhases {
		lists[0] = append(lists[0], v.String())
	}
	for v := range prefillPhases {
		lists[1] = append(lists[1], v.String())
	}
	for v := range kinds {
		lists[2] = append(lists[2], v.String())
	}
	for v := range codes {
		lists[3] = append(lists[3], v.String())
	}
	for v := range events {
		lists[4] = append(lists[4], v.String())
	}
	for v := range dos {
		lists[5] = append(lists[5], v.String())
	}
	for v := always + 1; v < conds; v++ {
		lists[6] = append(lists[6], v.String())
	}
	for i, what := range []string{"decode phase", "prefill phase", "kind", "code", "event", "effect", "condition"} {
		unique(what, lists[i])
	}
	if Code(250).String() != "unknown" || Code(250).Valid() || !NoRoom.Valid() {
		t.Error("codes beyond the last")
	}
	for k := range kinds {
		if k != NoKind && On(k).String() != k.String() {
			t.Errorf("event of %v is %v", k, On(k))
		}
	}
}

// TestGuards holds the set of guards and its words.
func TestGuards(t *testing.T) {
	var sum Guards
	seen := map[string]bool{}
	for _, g := range Each() {
		if g == 0 || g&(g-1) != 0 || sum&g != 0 {
			t.Errorf("%v is not one guard", g)
		}
		if s := g.String(); s == "" || seen[s] {
			t.Errorf("name %q is empty or taken", s)
		} else {
			seen[s] = true
		}
		if All.Without(g).Has(g) || !All.Has(g) || All.Without(g)|g != All {
			t.Errorf("without %v", g)
		}
		sum |= g
	}
	if sum != All {
		t.Errorf("the guards are %v", sum)
	}
	for g, want := range map[Guards]string{0: "none", All: "all", GuardSeal: "seal", GuardSeal | GuardDigest: "seal+digest"} {
		if g.String() != want {
			t.Errorf("%d is %q, want %q", g, g.String(), want)
		}
	}
}

// TestCanonical holds that machines that differ in one field differ in their
// encoding, and that all encodings are equally long.
func TestCanonical(t *testing.T) {
	var decodes []Decode
	for _, change := range []func(m *Decode){
		func(m *Decode) {}, func(m *Decode) { m.Phase = 1 }, func(m *Decode) { m.Result = 1 }, func(m *Decode) { m.Live = true },
		func(m *Decode) { m.Held = true }, func(m *Decode) { m.Owed = true }, func(m *Decode) { m.Armed = true },
		func(m *Decode) { m.Expect = 1 }, func(m *Decode) { m.Expect = 1 << 15 }, func(m *Decode) { m.Saw = 1 }, func(m *Decode) { m.Still = 1 },
		func(m *Decode) { m.Limit = 1 }, func(m *Decode) { m.Limit = 1 << 31 }, func(m *Decode) { m.Room = 1 }, func(m *Decode) { m.Room = 1 << 63 },
		func(m *Decode) { m.ID.Attempt[0] = 1 }, func(m *Decode) { m.ID.Attempt[15] = 1 }, func(m *Decode) { m.ID.Gen.Epoch = 1 },
		func(m *Decode) { m.ID.Gen.Counter = 1 }, func(m *Decode) { m.View.Tokens = 1 }, func(m *Decode) { m.View.Pages = 1 },
		func(m *Decode) { m.View.Prefix = 1 }, func(m *Decode) { m.View.PrefixHash[31] = 1 }, func(m *Decode) { m.View.Input[31] = 1 },
		func(m *Decode) { m.View.Layout = 1 }, func(m *Decode) { m.View.Domain[15] = 1 },
	} {
		var m Decode
		change(&m)
		decodes = append(decodes, m)
	}
	var prefills []Prefill
	for _, change := range []func(m *Prefill){
		func(m *Prefill) {}, func(m *Prefill) { m.Phase = 1 }, func(m *Prefill) { m.Result = 1 }, func(m *Prefill) { m.Held = true },
		func(m *Prefill) { m.Owed = true }, func(m *Prefill) { m.Armed = true }, func(m *Prefill) { m.Last = true },
		func(m *Prefill) { m.Expect = 1 }, func(m *Prefill) { m.Saw = 1 }, func(m *Prefill) { m.Still = 1 },
		func(m *Prefill) { m.Computed = 1 }, func(m *Prefill) { m.Posted = 1 }, func(m *Prefill) { m.Written = 1 },
		func(m *Prefill) { m.Limit = 1 }, func(m *Prefill) { m.Room = 1 }, func(m *Prefill) { m.ID.Attempt[7] = 1 },
		func(m *Prefill) { m.ID.Gen.Epoch = 1 }, func(m *Prefill) { m.ID.Gen.Counter = 1 }, func(m *Prefill) { m.View.Tokens = 1 },
		func(m *Prefill) { m.View.Pages = 1 }, func(m *Prefill) { m.View.Prefix = 1 }, func(m *Prefill) { m.View.PrefixHash[0] = 1 },
		func(m *Prefill) { m.View.Input[0] = 1 }, func(m *Prefill) { m.View.Layout = 1 }, func(m *Prefill) { m.View.Domain[0] = 1 },
	} {
		var m Prefill
		change(&m)
		prefills = append(prefills, m)
	}
	distinct(t, decodes, Decode.AppendCanonical)
	distinct(t, prefills, Prefill.AppendCanonical)
}

func distinct[M comparable](t *testing.T, machines []M, encode func(M, []byte) []byte) {
	t.Helper()
	for i, a := range machines {
		for j, b := range machines {
			x, y := encode(a, nil), encode(b, []byte("kept"))[4:]
			if (a == b) != bytes.Equal(x, y) || len(x) != len(y) || (i != j) != (a != b) {
				t.Errorf("machines %d and %d: encodings of %d and %d bytes, equal: %v", i, j, len(x), len(y), bytes.Equal(x, y))
			}
		}
	}
}

// TestSourcing holds that nothing is offered before prefill has its source
// pages, and how the wait for them can end.
func TestSourcing(t *testing.T) {
	id, view := request()
	start := func(t *testing.T) *pair {
		x := &pair{t: t, g: All, scarce: true}
		x.prefill(Event{On: OnDoor, ID: id, View: view})
		x.decode(Event{On: OnDoor, ID: id, View: view})
		x.deliver()
		x.want(DecodeAsked, PrefillSourcing, "prefill reserve")
		return x
	}
	t.Run("pages come", func(t *testing.T) {
		x := start(t)
		x.prefill(Event{On: OnReserved})
		x.deliver()
		x.want(DecodeReserving, PrefillOffered, "prefill compute", "decode reserve")
	})
	t.Run("none ever", func(t *testing.T) {
		x := start(t)
		x.prefill(Event{On: OnReserveFailed, Code: TooLong, Limit: 64})
		x.deliver()
		x.want(DecodeEnded, PrefillEnded, "prefill answer too_long", "decode answer too_long")
	})
	t.Run("prefill's client leaves", func(t *testing.T) {
		x := start(t)
		x.prefill(Event{On: OnCancel, Code: Cancelled})
		x.deliver()
		x.want(DecodeEnded, PrefillEnded, "prefill withdraw", "prefill answer cancelled", "decode answer cancelled")
	})
	t.Run("decode's client leaves", func(t *testing.T) {
		x := start(t)
		x.decode(Event{On: OnCancel, Code: Cancelled})
		x.deliver()
		x.want(DecodeEnded, PrefillEnded, "decode answer cancelled", "prefill withdraw", "prefill answer cancelled")
		if !x.d.Over() || !x.p.Over() {
			t.Errorf("over: %v, %v", x.d.Over(), x.p.Over())
		}
	})
	t.Run("decode is gone", func(t *testing.T) {
		x := start(t)
		x.prefill(Event{On: OnPeerGone})
		x.want(DecodeAsked, PrefillEnded, "prefill withdraw", "prefill answer peer_gone")
	})
}
