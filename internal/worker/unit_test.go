package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/wire"
)

// TestMailbox fills the mailbox: whoever brings more waits until the loop has
// taken what is there, in order; nothing is lost, and the end lets everybody go.
func TestMailbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMailbox()
		var got []int
		add := func(i int) mail { return func(*Worker) { got = append(got, i) } }
		for i := range maxMail {
			if !m.put(add(i)) {
				t.Fatal("refused")
			}
		}
		var late sync.WaitGroup
		late.Go(func() { m.put(add(maxMail)) })
		synctest.Wait()
		first := len(m.take())
		synctest.Wait()
		late.Wait()
		if first != maxMail {
			t.Errorf("%d mails were let in, want %d", first, maxMail)
		}
		for _, e := range m.take() {
			e(nil)
		}
		if fmt.Sprint(got) != fmt.Sprint([]int{maxMail}) {
			t.Errorf("got %v", got)
		}
		m.weigh(maxMail, add(0)) // one that is heavy
		var ends atomic.Int32
		for range 3 {
			late.Go(func() {
				if !m.put(add(0)) {
					ends.Add(1)
				}
			})
		}
		synctest.Wait()
		if left := m.close(); len(left) != 1 {
			t.Errorf("%d mails were left", len(left))
		}
		late.Wait()
		if ends.Load() != 3 || m.put(add(0)) {
			t.Errorf("after the end %d of 3 were let go", ends.Load())
		}
	})
}

// TestLegBeforeVerdict: output that comes before the verdict is not lost on whoever
// looks in between.
func TestLegBeforeVerdict(t *testing.T) {
	l := newLeg(make(chan struct{}, 1))
	l.put([]byte("x"), 1, "length")
	if n := l.look(); n.verdict != nil || n.text != nil || n.finish != "" {
		t.Errorf("before the verdict: %+v", n)
	}
	l.answer(verdict{Code: handoff.OK})
	if n := l.look(); string(n.text) != "x" || n.finish != "length" {
		t.Errorf("after it: %+v", n)
	}
	l.answer(verdict{Code: handoff.Engine}) // the answer is complete
	if n := l.look(); n.broken != handoff.NoCode || n.verdict.Code != handoff.OK {
		t.Errorf("at last: %+v", n)
	}
}

// TestUsed notes passes until they run out, and no more of them than it may.
func TestUsed(t *testing.T) {
	now := time.Unix(1000, 0)
	p := passes{seen: map[handoff.Attempt]struct{}{}}
	id := func(i int) handoff.Attempt { return handoff.Attempt{byte(i), byte(i >> 8), byte(i >> 16)} }
	if p.use(id(1), now.Add(time.Minute), now) != handoff.NoCode || p.use(id(2), now.Add(2*time.Minute), now) != handoff.NoCode {
		t.Fatal("refused")
	}
	if got := p.use(id(1), now.Add(time.Minute), now.Add(59*time.Second)); got != handoff.Duplicate {
		t.Errorf("a second use: %v", got)
	}
	if got := p.use(id(1), now.Add(time.Hour), now.Add(time.Minute)); got != handoff.NoCode {
		t.Errorf("when it has run out, and cannot be used by anybody: %v", got)
	}
	if len(p.seen) != 2 || len(p.queue) != 2 {
		t.Errorf("%d and %d are kept", len(p.seen), len(p.queue))
	}
	for i := 2; i < maxPasses; i++ {
		p.use(id(i+1), now.Add(time.Hour), now.Add(time.Minute))
	}
	if got := p.use(id(0), now.Add(time.Hour), now.Add(time.Minute)); got != handoff.Busy {
		t.Errorf("over the bound: %v", got)
	}
}

// TestScan reads what encoding/json would have read another way.
func TestScan(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":"\ud83d\ude00"}`: "", `{"a":"\\ud83d"}`: "", `{"a":"\uD83D\uDE00 x"}`: "", `{"a":"{[\"]}"}`: "",
		`{"a":"\ud83d"}`: "lone_surrogate", `{"a":"\ude00"}`: "lone_surrogate", `{"a":"\ud83d\ud83d"}`: "lone_surrogate", `{"a":"\ud83dx"}`: "lone_surrogate",
		`{"\ude00":1}`: "lone_surrogate", `{"a":"\ud83d\u0041"}`: "lone_surrogate",
		strings.Repeat("[", 65): "json_too_deep", `{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`: "",
		`{"a":"` + strings.Repeat("[", 100) + `"}`: "", `"a`: "malformed_json", `{"a":"\`: "malformed_json", `{"a":"\u12`: "malformed_json",
		`{"a":"\ud83d\`: "lone_surrogate", ``: "malformed_json", ` `: "malformed_json",
	} {
		_, f := parse([]byte(text))
		got := ""
		if f != nil {
			got = string(f.Code)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// FuzzParse compares the members that parse finds with encoding/json's.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, ` { "a" : [1, {"b":2}] , "c":"}\"" , "d":-1.5e3,"e":null } `, `{"a":{}}`, `{"":"","\u0061":true}`, `[`, `{"a":"\ud800"}`, `{"a":1}x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, fail := parse(data)
		var want map[string]json.RawMessage
		err := json.Unmarshal(data, &want)
		if fail == nil && (err != nil || len(m) != len(want)) {
			t.Fatalf("%q: %d members, want %d, %v", data, len(m), len(want), err)
		}
		for name, v := range m {
			if !bytes.Equal(v, bytes.TrimSpace(want[name])) {
				t.Fatalf("%q: %q is %q, want %q", data, name, v, want[name])
			}
		}
	})
}

// TestStopStrings cuts every text at every stop string, however the text comes:
// what was given out before is never taken back.
func TestStopStrings(t *testing.T) {
	const s = "aababcabcabcd\u00e9\u20acxyz"
	for _, stops := range [][]string{{"abcd"}, {"abcabcd", "b"}, {"\u20ac"}, {"\u00e9\u20acx", "yz"}, {"none"}, {"aab", "ab"}, {"z"}} {
		want, finish := s, "length"
		for _, x := range stops {
			if i := strings.Index(s, x); i >= 0 && i < len(want) {
				want, finish = s[:i], "stop"
			}
		}
		r := &request{maxTokens: len(s)}
		for _, x := range stops {
			r.stops = append(r.stops, []byte(x))
		}
		o, l, got := output{}, newLeg(make(chan struct{}, 1)), ""
		if err := o.start(r); err != nil {
			t.Fatal(err)
		}
		l.answer(verdict{Code: handoff.OK})
		for i := 0; i < len(s) && !o.push(llm.Token(s[i]), l); i++ {
			got += string(l.look().text)
		}
		n := l.look()
		if got += string(n.text); got != want || n.finish != finish {
			t.Errorf("stops %q: %q %s, want %q %s", stops, got, n.finish, want, finish)
		}
	}
}

// TestDoNotStart has configurations that cannot work.
func TestDoNotStart(t *testing.T) {
	p := newPair(t)
	for name, f := range map[string]setup{
		"no model": func(c *Config) { c.Model = nil }, "no role": func(c *Config) { c.Role = 0 }, "no passes": func(c *Config) { c.Passes = nil },
		"no name to serve": func(c *Config) { c.ServedName = "" }, "no pages": func(c *Config) { c.Pages = 0 }, "a page of 17": func(c *Config) { c.PageTokens = 17 },
		"a guard that is off": func(c *Config) { c.Guards = handoff.All.Without(handoff.GuardSeal) },
		"a window of one":     func(c *Config) { c.Window = 1 }, "a window over the model's": func(c *Config) { c.Window = 1<<20 + 1 },
		"few tombstones": func(c *Config) { c.Tombstones = 2 }, "a body over all bodies": func(c *Config) { c.BodyBytes, c.BodyTotal = 10, 5 },
		"time that runs back": func(c *Config) { c.LegTime = -1 }, "a cache of the whole pool": func(c *Config) { c.PrefixCache = c.Pages },
		"prefill with a cache": func(c *Config) { c.Role, c.PrefixCache = wire.RolePrefill, 1 }, "less than no quarantine": func(c *Config) { c.Quarantine = -1 },
		"no digest that is known":  func(c *Config) { c.Digest = 77 },
		"two peers with one label": func(c *Config) { c.Peers = append(c.Peers, c.Peers[0]) }, "no randomness": func(c *Config) { c.Random = strings.NewReader("x") },
	} {
		c := p.config(wire.RoleDecode)
		f(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), ": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
