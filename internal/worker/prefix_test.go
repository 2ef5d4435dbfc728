package worker

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// cachePair is a pair with a prefix cache. written counts the pages that prefill
// wrote.
func cachePair(t *testing.T, setups ...setup) (p *pair, written func() int) {
	var mu sync.Mutex
	pages := 0
	p = newPair(t, append(setups, atDecode(func(c *Config) { c.PrefixCache = 16 }),
		faulty(wire.RolePrefill, &wire.Faults{Page: func(wire.PageWrite) wire.Fault {
			mu.Lock()
			defer mu.Unlock()
			pages++
			return wire.Fault{}
		}}))...)
	last := 0
	return p, func() int {
		mu.Lock()
		defer mu.Unlock()
		n := pages - last
		last = pages
		return n
	}
}

// preamble is 13 pages of 16 tokens, less the BOS: what several prompts share.
func preamble() string {
	return (strings.Repeat("The house rules are long and everybody knows them. ", 5))[:13*16-1]
}

// flushed checks that once the cache is flushed every page is free.
func (p *pair) flushed() {
	p.t.Helper()
	p.eventually("only the cache holds pages", func() bool {
		c := p.decode.Pool()
		return c.Held == 0 && c.Cached == c.Idle && p.decode.Status().Attempts == 0
	})
	p.decode.Flush()
	p.whole()
	on(p.decode, func(w *Worker) {
		if w.pinned != 0 || !w.pool.Whole() {
			p.t.Errorf("%d pages are pinned for nobody, pool %+v", w.pinned, w.pool.Counts())
		}
	})
}

// asks sends one request and returns how many tokens decode held already.
func (p *pair) asks(c legCall, want string) int {
	p.t.Helper()
	pre, dec := p.both(c)
	if v := parseAnswer(dec.body); v.text() != want || text(pre) != want[:min(1, len(want))] {
		p.t.Errorf("prefill %d %s, decode %d %s", pre.status, pre.body, dec.status, dec.body)
	}
	var e Event
	p.eventually("the attempt has ended", func() (ok bool) {
		e, ok = p.decode.events.last(c.attempt)
		return ok
	})
	return e.Cached
}

// TestPrefix sends prompts with a common beginning. Inside one domain prefill
// writes only what decode does not hold, and the answers are the same; another
// domain never hits.
func TestPrefix(t *testing.T) {
	p, written := cachePair(t)
	ask := func(i int) (string, string) {
		lead, want := fmt.Sprintf("Guest %d sleeps in", i), fmt.Sprintf(" room %d.", 100+i)
		return preamble() + lead + want + " " + lead, want
	}
	one, wantOne := ask(1)
	all := (len(one) + 1 + 15) / 16
	two, wantTwo := ask(2)
	for _, c := range []struct {
		what   string
		prompt string
		want   string
		domain byte
		cached int // tokens
	}{
		{"a first prompt", one, wantOne, 1, 0},
		{"the same again", one, wantOne, 1, (len(one) + 1) / 16 * 16},
		{"the same in another domain", one, wantOne, 2, 0},
		{"another with its beginning", two, wantTwo, 1, 13 * 16},
		{"that in the other domain", two, wantTwo, 2, 13 * 16},
		{"that in a third domain", two, wantTwo, 3, 0},
		{"one that differs in its first token", "t" + one[1:], wantOne, 1, 0},
	} {
		written()
		call := p.complete(c.prompt, len(c.want))
		call.domain = kv.Domain{c.domain}
		if got := p.asks(call, c.want); got != c.cached {
			t.Errorf("%s: decode held %d tokens, want %d", c.what, got, c.cached)
		}
		if got := written(); got != all-c.cached/16 {
			t.Errorf("%s: prefill wrote %d pages, want %d", c.what, got, all-c.cached/16)
		}
	}
	p.flushed()
	written()
	if got := p.asks(p.complete(one, len(wantOne)), wantOne); got != 0 {
		t.Errorf("after a flush decode held %d tokens", got)
	}
	p.flushed()
}

// TestPrefixNoDomain: the zero domain shares with nobody, itself included.
func TestPrefixNoDomain(t *testing.T) {
	p, _ := cachePair(t)
	prompt, want := recital(200, 1)
	for range 2 {
		c := p.complete(prompt, len(want))
		c.domain = kv.Domain{}
		if got := p.asks(c, want); got != 0 {
			t.Errorf("decode held %d tokens of no domain", got)
		}
	}
	p.whole()
}

// TestPrefixEnds has prompts that end where a page does: one token at least is
// left to prefill, whose answer is the first token.
func TestPrefixEnds(t *testing.T) {
	p, written := cachePair(t, func(c *Config) { c.Chunk = 24 })
	for _, tokens := range []int{16, 17, 32, 33, 48} {
		prompt := strings.Repeat("ab", 40)[:tokens-1]
		c := p.complete(prompt, 3)
		want := strings.Repeat("ab", 40)[tokens-1 : tokens+2]
		p.asks(c, want)
		written()
		again := p.complete(prompt, 3)
		if got, most := p.asks(again, want), (tokens-1)/16*16; got != most {
			t.Errorf("%d tokens: decode held %d, want %d", tokens, got, most)
		}
		if got := written(); got != 1 {
			t.Errorf("%d tokens: prefill wrote %d pages, want the last", tokens, got)
		}
		p.flushed()
	}
}

// TestPrefixForged has decode claim to hold something else than it should: other
// tokens, not whole pages, more or fewer pages than the claim leaves. Prefill
// refuses, whichever leg comes first, and both legs say so.
func TestPrefixForged(t *testing.T) {
	for name, forge := range map[string]func(*wire.Message){
		"another hash":          func(m *wire.Message) { m.View.PrefixHash[0] ^= 1 },
		"no hash":               func(m *wire.Message) { m.View.PrefixHash = kv.Hash{} },
		"the input's hash":      func(m *wire.Message) { m.View.PrefixHash = m.View.Input },
		"a page more":           func(m *wire.Message) { m.View.Prefix += 16; m.View.Pages-- },
		"a page less":           func(m *wire.Message) { m.View.Prefix -= 16; m.View.Pages++ },
		"half a page":           func(m *wire.Message) { m.View.Prefix -= 8 },
		"everything":            func(m *wire.Message) { m.View.Prefix = m.View.Tokens; m.View.Pages = 0 },
		"more than the prompt":  func(m *wire.Message) { m.View.Prefix = 1 << 31 },
		"too few pages to come": func(m *wire.Message) { m.View.Pages-- },
	} {
		for _, first := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
			t.Run(fmt.Sprintf("%s, %v first", name, first), func(t *testing.T) {
				t.Parallel()
				n := &naiveRun{}
				p, _ := cachePair(t, alters(wire.RolePrefill, handoff.Ask, forge)(n)...)
				prompt, want := recital(200, 1)
				p.asks(p.complete(prompt, len(want)), want)
				n.armed.Store(true)
				c := p.complete(prompt, len(want))
				var pre, dec *pending
				if first == wire.RolePrefill {
					pre = p.beginPrefill(c)
					p.reaches(p.prefill, c)
					dec = p.beginDecode(c)
				} else {
					dec = p.beginDecode(c)
					p.reaches(p.prefill, c)
					pre = p.beginPrefill(c)
				}
				refused(t, "prefill", <-pre.done, "legs_disagree")
				refused(t, "decode", <-dec.done, "legs_disagree")
				n.armed.Store(false)
				if got := p.asks(p.complete(prompt, len(want)), want); got == 0 {
					t.Error("the control did not hit: the test tests nothing")
				}
				p.flushed()
			})
		}
	}
}

// TestPrefixLie has decode believe itself that it holds a run of this prompt, and
// be wrong: every message of it agrees with the others. Prefill, which has the
// whole prompt, refuses.
func TestPrefixLie(t *testing.T) {
	for _, first := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		n := &naiveRun{}
		lie := func(v *handoff.View) { v.PrefixHash[31] ^= 1 }
		p, _ := cachePair(t, append(alters(wire.RolePrefill, handoff.Ask, func(m *wire.Message) { lie(&m.View) })(n),
			faulty(wire.RoleDecode, &wire.Faults{Message: func(m wire.Message) wire.Fault {
				if n.armed.Load() && m.Kind == handoff.Ask {
					lie(&n.decode.attempts[n.attempt].decode.View)
				}
				return wire.Fault{}
			}}))...)
		n.pair = p
		p.planted = true // the lie changes a machine
		prompt, want := recital(200, 1)
		p.asks(p.complete(prompt, len(want)), want)
		c := p.complete(prompt, len(want))
		n.attempt = c.attempt
		n.armed.Store(true)
		var pre, dec *pending
		if first == wire.RolePrefill {
			pre = p.beginPrefill(c)
			p.reaches(p.prefill, c)
			dec = p.beginDecode(c)
		} else {
			dec = p.beginDecode(c)
			p.reaches(p.prefill, c)
			pre = p.beginPrefill(c)
		}
		refused(t, "prefill", <-pre.done, "legs_disagree")
		refused(t, "decode", <-dec.done, "legs_disagree")
		p.flushed()
	}
}

// TestPrefixAtTheEnd leaves the cache full: Run gives its pages back.
func TestPrefixAtTheEnd(t *testing.T) {
	p, _ := cachePair(t)
	prompt, want := recital(200, 1)
	p.asks(p.complete(prompt, len(want)), want)
	p.eventually("the cache holds pages", func() bool { return p.decode.Pool().Idle > 0 })
	p.decode.stop()
}

// TestPrefixVerified publishes nothing of an attempt that was not verified.
func TestPrefixVerified(t *testing.T) {
	n := &naiveRun{}
	p, _ := cachePair(t, alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.Digests[3][0] ^= 1 })(n)...)
	n.armed.Store(true)
	prompt, want := recital(200, 1)
	_, dec := p.both(p.complete(prompt, len(want)))
	refused(t, "decode", dec, "integrity")
	p.whole() // without a flush
	n.armed.Store(false)
	if got := p.asks(p.complete(prompt, len(want)), want); got != 0 {
		t.Errorf("decode held %d tokens", got)
	}
	p.flushed()
}

// TestPrefixPressure has more requests at once than the pool holds, all with
// pinned runs: the pins never keep the first in the queue from its pages, and the
// cache gives way.
func TestPrefixPressure(t *testing.T) {
	p, _ := cachePair(t, func(c *Config) { c.Pages, c.Chunk, c.Window = 40, 64, 640 })
	if got := p.decode.limit(); got != 24*16 {
		t.Fatalf("decode takes %d tokens, want what is left beside the pins", got)
	}
	var all sync.WaitGroup
	for i := range 48 {
		all.Go(func() {
			lead, want := fmt.Sprintf("Guest %d sleeps in", i%7), fmt.Sprintf(" room %d.", 100+i%7)
			prompt := preamble() + lead + want + strings.Repeat(".", i) + lead
			c := p.complete(prompt, len(want))
			c.domain = kv.Domain{byte(i % 3)}
			pre, dec := p.both(c)
			if text(dec) != want {
				t.Errorf("request %d: prefill %d %s, decode %d %s", i, pre.status, pre.body, dec.status, dec.body)
			}
		})
	}
	all.Wait()
	p.flushed()
}

// TestPrefixLeft has requests end that hold pins and have no pages yet.
func TestPrefixLeft(t *testing.T) {
	p, _ := cachePair(t)
	prompt, want := recital(200, 1)
	p.asks(p.complete(prompt, len(want)), want)
	for _, end := range []func(legCall, *pending){
		func(_ legCall, d *pending) { d.leave() },
		func(c legCall, _ *pending) { p.abort(p.decode, c.rid()) },
		func(c legCall, _ *pending) { p.leg(t.Context(), p.prefill, c.with(map[string]any{"prompt": "x"})) },
		func(legCall, *pending) { on(p.decode, func(w *Worker) { w.peers[0].current.link.Close(nil) }) },
	} {
		c := p.complete(prompt, len(want))
		d := p.beginDecode(c)
		p.reaches(p.prefill, c)
		on(p.decode, func(w *Worker) {
			if w.pinned == 0 {
				t.Error("nothing is pinned: the test tests nothing")
			}
		})
		end(c, d)
		<-d.done
		p.linked()
	}
	p.flushed()
}

// TestHolds is the check by itself.
func TestHolds(t *testing.T) {
	tokens := llm.Bytes{}.Text(strings.Repeat("z", 40))
	r := &request{tokens: tokens, hashes: chain(tokens, 16)}
	view := func(prefix, pages int, h kv.Hash) handoff.View {
		return handoff.View{Prefix: uint32(prefix), Pages: uint32(pages), PrefixHash: h}
	}
	for v, want := range map[handoff.View]bool{
		view(0, 9, kv.Hash{}): true, view(16, 2, r.hashes[0]): true, view(32, 1, r.hashes[1]): true,
		view(16, 2, r.hashes[1]): false, view(16, 1, r.hashes[0]): false, view(17, 2, r.hashes[0]): false,
		view(48, 0, r.hashes[2]): false, view(1, 3, r.hashes[0]): false, view(-16, 1, r.hashes[1]): false,
	} {
		if got := r.holds(v, 16); got != want {
			t.Errorf("%+v: %v", v, got)
		}
	}
}
