package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// TestEngine holds that both arms answer rightly, that time is booked where it was
// spent, and that the arms differ: a page that arrives wrong is refused in one and
// read in the other.
func TestEngine(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	text, want := recitation(300, 16, 1)
	prompt := llm.Bytes{}.Text(text)
	if len(prompt) != 300 || len(want) != 16 {
		t.Fatalf("a prompt of %d tokens and %d to recite", len(prompt), len(want))
	}
	byTCP, end := tcpMover()
	defer end()
	spoil := func(e *engine, s *kv.Sequence, r *kv.Reservation) error {
		segments, rows := s.Segments(0)
		wrong := bytes.Clone(segments[0])
		wrong[len(wrong)/2] ^= 1
		if _, err := e.decode.pool.Landing().Land(r.Key(), 0, rows, &onWire{[][]byte{wrong}}); err != nil {
			return err
		}
		for i := 1; i < r.Pages(); i++ {
			segments, rows := s.Segments(i)
			if _, err := e.decode.pool.Landing().Land(r.Key(), i, rows, &onWire{segments}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, alg := range []digest.Algorithm{digest.XXH3, digest.GMAC} {
		for name, move := range map[string]mover{"memory": copyPages, "tcp": byTCP, "spoilt": spoil} {
			if name == "tcp" && alg != digest.XXH3 {
				continue // a mover has one engine
			}
			e, err := newEngine(400, alg, move)
			if err != nil {
				t.Fatal(err)
			}
			l, answer, err := e.serve(prompt, 16, guarded)
			switch {
			case name == "spoilt" && !errors.Is(err, kv.ErrDigest):
				t.Errorf("%v: a spoilt page: %v", alg, err)
			case name != "spoilt" && (err != nil || !recites(answer, want)):
				t.Errorf("%v, %s: %v", alg, name, err)
			}
			if name == "spoilt" {
				if e, err = newEngine(400, alg, move); err != nil {
					t.Fatal(err)
				}
				if _, _, err := e.serve(prompt, 16, unguarded); err != nil {
					t.Errorf("%v: a spoilt page with the guards off: %v", alg, err)
				}
				continue
			}
			for p, x := range l {
				if x.wall <= 0 {
					t.Errorf("%v, %s: part %d took no time", alg, name, p)
				}
			}
			if _, answer, err = e.serve(prompt, 16, unguarded); err != nil || !recites(answer, want) {
				t.Errorf("%v, %s, guards off: %v", alg, name, err)
			}
			if !e.prefill.pool.Whole() || !e.decode.pool.Whole() {
				t.Errorf("%v, %s: the pools are not whole at rest", alg, name)
			}
		}
	}
	if recites([]llm.Token{'a', 'b'}, []byte("ac")) || recites([]llm.Token{'a'}, []byte("ab")) {
		t.Error("a wrong answer recites")
	}
}

// TestWays holds that every way moves the bytes that it is asked to move.
func TestWays(t *testing.T) {
	m, err := newStore()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ways() {
		if w.streams == 1 && !w.bare {
			continue // they differ in nothing but a number
		}
		c, err := m.carrier(w)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.carry(movePages); err != nil {
			t.Errorf("%s: %v", w.what, err)
		}
		c.close()
		if !m.target.Whole() {
			t.Errorf("%s: the target is not whole at rest", w.what)
		}
		if w.bare {
			if n := len(m.to) / 2; !bytes.Equal(m.to[:n], m.from[:n]) {
				t.Errorf("%s: other bytes arrived", w.what)
			}
			clear(m.to)
		}
	}
	j, err := newJoint(1, wire.PlainData, moveLayout(), m.target.Landing(), 2*movePages)
	if err != nil {
		t.Fatal(err)
	}
	j.Link.Close(nil)
	broken := &handOffs{way: way{alg: digest.XXH3, streams: 1}, store: m, joint: j}
	if err := broken.carry(movePages); err == nil {
		t.Error("pages arrived over a link that was closed")
	}
	broken.close()
}

// TestSite holds that each target answers each kind of request in full: what is
// compared is the same work.
func TestSite(t *testing.T) {
	for _, l := range []looks{looksAtHead, looksAtAll} {
		x, err := newSite(t.Context(), settings{}, "test", l, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for to := range targets {
			for name, c := range map[string]struct {
				target target
				events int
			}{"small": {x.target[to].small, 0}, "stream": {x.target[to].stream, streamEvents}, "large": {x.target[to].large, 0}} {
				call, err := c.target.dial()
				if err != nil {
					t.Fatal(err)
				}
				if err := call.call(); err != nil {
					t.Fatalf("%s, %s: %v", targetName(to), name, err)
				}
				_ = call.conn.Close()
				checkAnswer(t, targetName(to)+", "+name, call.body, c.events)
			}
			if x.server[to] == nil {
				continue
			}
			u, err := x.server[to].used()
			if err != nil {
				t.Fatal(err)
			}
			if runtime.GOOS == "linux" && (u.CPU <= 0 || !u.RSSKnown || u.PeakRSS < 1<<20) {
				t.Errorf("%s used %+v", targetName(to), u)
			}
		}
		got, err := x.measure(t.Context(), 2, kind{2, 10, endsJSON, small(whole)})
		if err != nil || len(got[toGateway]) != 2 || got[toDirect][0].p50 <= 0 {
			t.Errorf("measure: %+v, %v", got, err)
		}
		if err := x.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	if c, err := startChild(t.Context(), served{Role: "nobody"}); err == nil {
		_ = c.stop()
		t.Error("a server of no kind started")
	}
}

func checkAnswer(t *testing.T, name string, body []byte, events int) {
	t.Helper()
	if events > 0 {
		if n := bytes.Count(body, []byte("data: ")); n != events || !bytes.HasSuffix(body, []byte(endsStream)) {
			t.Errorf("%s: %d events, ending in %q", name, n, body[max(0, len(body)-40):])
		}
		return
	}
	var v struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(body, &v); err != nil || len(v.Choices) != 1 || v.Choices[0].Message.Content != answerText || v.Usage.Prompt != 17 {
		t.Errorf("%s: %v, %.200s", name, err, body)
	}
}

// TestWorkers holds the control of the latency comparison, and that a stream of
// each arm has its length.
func TestWorkers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := guardsCount(ctx); err != nil {
		t.Fatal(err)
	}
	pairs, stop, err := startPairs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for arm, p := range pairs {
		got, err := p.gaps(ctx, 40)
		if err != nil || len(got) != 2 || got[0] < got[1] || got[1] < 0 {
			t.Errorf("arm %d: %v, %v", arm, got, err)
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := pairs[armOn].gaps(ended, 40); err == nil {
		t.Error("a stream without a client went well")
	}
}

// TestCheck holds that a stream which is not the one asked for is noticed.
func TestCheck(t *testing.T) {
	w := &workers{recited: []byte("abc")}
	event := func(text, finish string) string {
		return `data: {"choices":[{"text":"` + text + `","finish_reason":` + finish + "}]}\n\n"
	}
	for name, c := range map[string]struct {
		stream string
		want   error
	}{
		"right":         {event("ab", "null") + event("cd", `"length"`) + "data: [DONE]\n\n", nil},
		"other text":    {event("ax", "null") + event("cd", `"length"`), errAnswer},
		"stopped early": {event("abcd", `"stop"`), errShort},
		"cut":           {event("abcd", "null"), errShort},
		"failed":        {event("ab", "null") + "data: {\"error\":{}}\n\n", errShape},
	} {
		if err := w.check([]byte(c.stream)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
