package handoff

import (
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

// source turns bytes into choices; when they run out it makes more.
type source struct {
	data []byte
	x    uint64
}

func (s *source) next() byte {
	if len(s.data) > 0 {
		b := s.data[0]
		s.data = s.data[1:]
		return b
	}
	s.x = s.x*6364136223846793005 + 1442695040888963407
	return byte(s.x >> 56)
}

func (s *source) below(n int) int { return int(s.next()) % n }

// anything is an event that is sometimes sensible: two attempts, two
// generations, views that agree or not.
func (s *source) anything() Event {
	id := ID{Attempt: Attempt{byte(1 + s.below(8)/7)}}
	id.Gen = kv.Generation{Epoch: 1, Counter: uint64(s.below(4) / 2)}
	if id.Gen.Counter == 0 {
		id.Gen = kv.Generation{}
	}
	view := View{Tokens: 2, Pages: 2, Input: kv.Hash{byte(s.below(8) / 7)}, Domain: kv.Domain{1}}
	ev := Event{
		On: On(s.below(int(events))), Code: Code(s.below(int(codes) + 1)), N: uint32(s.below(3)), Last: s.below(2) == 0,
		Gen: kv.Generation{Epoch: 1, Counter: 1}, ID: ID{Attempt: Attempt{1}}, View: view, Group: Writers(s.below(4)),
	}
	if ev.On.Message() {
		ev.Msg, ev.Rank = Msg{Kind: Kind(ev.On), Code: ev.Code, ID: id, View: view}, uint8(s.below(8)/7)
	}
	return ev
}

// watch holds what must be true of any machine under any events at all.
type watch struct {
	t        *testing.T
	held     bool // pages, as a driver would book them
	live     bool // decode's write key
	answered int  // answers, and of these
	ok       bool // an OK
	ended    bool
}

func (w *watch) step(role string, ev Event, fx Effects, ended bool) {
	w.t.Helper()
	for _, e := range fx.Slice() {
		switch e.Do {
		case DoFree:
			if !w.held && role == "decode" {
				w.t.Fatalf("%s: freed what it does not hold, on %v", role, ev.On)
			}
			if w.live {
				w.t.Fatalf("%s: freed under a live key, on %v", role, ev.On)
			}
			w.held = false
		case DoCompute:
			w.held = true
		case DoReserve, DoPost, DoRead, DoVerify, DoSeal:
			if w.ended {
				w.t.Fatalf("%s: %v after the end, on %v", role, e.Do, ev.On)
			}
		case DoAnswer:
			w.answered++
			if e.Code == OK {
				w.ok = true
			}
			if e.Code == OK && (role == "decode" && ev.On != OnVerified || role == "prefill" && ev.On != OnAccept) {
				w.t.Fatalf("%s: OK on %v", role, ev.On)
			}
			if e.Code == NoCode || !e.Code.Valid() {
				w.t.Fatalf("%s: answers %v on %v", role, e.Code, ev.On)
			}
		}
	}
	if w.ended && !ended {
		w.t.Fatalf("%s: left the end on %v", role, ev.On)
	}
	w.ended = ended
}

// run drives one machine of each role through events made of data. Answers to
// effects come in any order and at any time, or never, as from a broken driver.
func run(t *testing.T, data []byte, steps int) {
	s := &source{data: data, x: 1}
	for _, b := range data {
		s.x = s.x*31 + uint64(b)
	}
	var d Decode
	var p Prefill
	wd, wp := watch{t: t}, watch{t: t}
	for range steps {
		ev := s.anything()
		d2, fx := d.Step(ev, All)
		if again, fx2 := d.Step(ev, All); again != d2 || fx2 != fx {
			t.Fatal("decode: the same step came out differently")
		}
		if ev.On == OnReserved && fx.Edge != 0 {
			wd.held, wd.live = true, true
		}
		wd.live = wd.live && d2.Live
		if d2.Live && !d2.Held || d2.Held && (d2.Phase < DecodeGranted || d2.Phase == DecodeEnded) {
			t.Fatalf("decode: %+v", d2)
		}
		wd.step("decode", ev, fx, d2.Phase == DecodeEnded)
		d = d2
		if fx.Edge == 0 && fx.N > 1 || fx.Edge > uint8(len(decodeTable)) {
			t.Fatalf("decode: effects %v without an edge", fx.Slice())
		}

		p2, fx := p.Step(ev, All)
		if again, fx2 := p.Step(ev, All); again != p2 || fx2 != fx {
			t.Fatal("prefill: the same step came out differently")
		}
		wp.step("prefill", ev, fx, p2.Phase == PrefillEnded)
		p = p2
	}
}

// TestAnything drives machines through many made-up histories.
func TestAnything(t *testing.T) {
	for i := range 4000 {
		run(t, []byte{byte(i), byte(i >> 8), 3}, 120)
	}
}

// FuzzStep drives machines through histories that the fuzzer makes.
func FuzzStep(f *testing.F) {
	f.Add([]byte("door ask grant"))
	f.Add([]byte{0, 0, 0, 0, 10, 1, 0, 1, 0, 0, 0, 12})
	f.Fuzz(func(t *testing.T, data []byte) { run(t, data, min(len(data)/7+1, 400)) })
}

// TestStepDoesNotAllocate holds the explorer's and the workers' budget.
func TestStepDoesNotAllocate(t *testing.T) {
	s := &source{x: 7}
	var history [64]Event
	for i := range history {
		history[i] = s.anything()
	}
	var d Decode
	var p Prefill
	n := testing.AllocsPerRun(100, func() {
		for i := range history {
			d, _ = d.Step(history[i], All)
			p, _ = p.Step(history[i], All)
		}
		d, p = Decode{}, Prefill{}
	})
	if n != 0 {
		t.Errorf("%v allocations in %d steps", n, 2*len(history))
	}
}
