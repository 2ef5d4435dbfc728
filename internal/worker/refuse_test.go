package worker

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// refused checks that a leg's answer is an error and nothing else.
func refused(t *testing.T, who string, r reply, want string) {
	t.Helper()
	if r.err != nil || r.status < 400 || code(r) != want || text(r) != "" ||
		r.header.Get("Content-Type") != "application/json" || strings.Contains(r.body, "data:") {
		t.Errorf("%s: %v %d %v %s, want %s", who, r.err, r.status, r.header, r.body, want)
	}
}

// TestRefused has one worker refuse what the other would serve: both legs give
// the same code and the numbers of the one that refused, stream and not.
func TestRefused(t *testing.T) {
	long := strings.Repeat("All work and no play. ", 20) // 441 tokens
	for _, c := range []struct {
		name    string
		setup   setup
		call    func(*pair) legCall
		code    string
		message string // of both
	}{
		{"too long at prefill", atPrefill(func(c *Config) { c.Pages = 8 }), func(p *pair) legCall { return p.complete(long, 1) },
			"too_long", "The prompt has 441 tokens; this worker takes at most 128."},
		{"too long at decode", atDecode(func(c *Config) { c.Pages = 8 }), func(p *pair) legCall { return p.complete(long, 1) },
			"too_long", "The prompt has 441 tokens; this worker takes at most 128."},
		{"over prefill's window", atPrefill(func(c *Config) { c.Window = 200 }), func(p *pair) legCall { return p.complete(long, 1) },
			"too_long", "The prompt has 441 tokens; this worker takes at most 200."},
		{"over every window", func(c *Config) { c.Window = 440 }, func(p *pair) legCall { return p.complete(long, 1) },
			"too_long", "The prompt has 441 tokens; this worker takes at most 440."},
		{"no room for the answer", atDecode(func(c *Config) { c.Pages = 30 }), func(p *pair) legCall { return p.complete(long, 40) },
			"pool_exceeded", "at most 480."},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream %v", c.name, stream), func(t *testing.T) {
				p := newPair(t, c.setup)
				call := c.call(p).with(map[string]any{"stream": stream})
				pre, dec := p.both(call)
				refused(t, "prefill", pre, c.code)
				refused(t, "decode", dec, c.code)
				for _, r := range []reply{pre, dec} {
					if v := parseAnswer(r.body); r.status != 400 || !strings.HasSuffix(v.Error.Message, c.message) || v.Error.ID != call.rid() {
						t.Errorf("%d %s", r.status, r.body)
					}
				}
				p.whole()
				if a, b := p.prefill.events.ended(call.attempt), p.decode.events.ended(call.attempt); a != b || a == handoff.NoCode {
					t.Errorf("prefill ended with %v, decode with %v", a, b)
				}
			})
		}
	}
}

// TestRefusedNumbers: a leg that its peer refused says the peer's limit, and not
// that fewer tokens are more. What decode refuses at its door it does not ask for.
func TestRefusedNumbers(t *testing.T) {
	p := newPair(t, atDecode(func(c *Config) { c.Pages = 4 }), faulty(wire.RoleDecode, &wire.Faults{Message: func(m wire.Message) wire.Fault {
		if m.Kind == handoff.Ask {
			t.Error("decode asked")
		}
		return wire.Fault{}
	}}))
	pre, dec := p.both(p.complete(strings.Repeat("x", 59), 12))
	refused(t, "prefill", pre, "pool_exceeded")
	refused(t, "decode", dec, "pool_exceeded")
	if want := "needs room for 72 tokens; this worker holds at most 64."; !strings.Contains(dec.body, want) {
		t.Errorf("decode: %s", dec.body)
	}
	if want := "needs room for at least 65 tokens; this worker holds at most 64."; !strings.Contains(pre.body, want) {
		t.Errorf("prefill: %s", pre.body)
	}
	p.whole()
}

// TestRefusedOrders refuses in either order of the legs' arrival: the peer's
// verdict waits for the leg that comes late.
func TestRefusedOrders(t *testing.T) {
	long := strings.Repeat("All work and no play. ", 20)
	for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		for _, prefillFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v refuses, prefill first %v", role, prefillFirst), func(t *testing.T) {
				p := newPair(t, at(role, func(c *Config) { c.Pages = 8 }))
				c := p.complete(long, 1)
				var pre, dec *pending
				if prefillFirst {
					pre = p.beginPrefill(c)
					p.reaches(p.prefill, c)
					dec = p.beginDecode(c)
				} else {
					dec = p.beginDecode(c)
					p.reaches(p.prefill, c)
					pre = p.beginPrefill(c)
				}
				refused(t, "prefill", <-pre.done, "too_long")
				refused(t, "decode", <-dec.done, "too_long")
				p.whole()
			})
		}
	}
}

// TestOneBadLeg has one leg that cannot be taken: it is told why, the other that
// the request cannot be taken, and both end with one code.
func TestOneBadLeg(t *testing.T) {
	p := newPair(t)
	for _, edit := range []map[string]any{
		{"temperature": 3}, {"model": "other"}, {"prompt": ""}, {"prompt": []int{9999}}, {"max_tokens": 0},
		{"stop": []string{""}}, {"stream_options": 3}, {"seed": "one"}, {"rid": nil},
	} {
		for _, bad := range []*side{p.prefill, p.decode} {
			c := p.complete(shipPrompt, 12)
			pre, dec := c.forPrefill(), c
			if bad == p.prefill {
				pre = pre.with(edit)
			} else {
				dec = dec.with(edit)
			}
			a, b := p.begin(p.prefill, pre), p.begin(p.decode, dec)
			mine, other := <-a.done, <-b.done
			if bad == p.decode {
				mine, other = other, mine
			}
			refused(t, "the other leg", other, "bad_input")
			if mine.status < 400 || mine.status > 499 || text(mine) != "" || code(mine) == "" {
				t.Errorf("%v: %d %s", edit, mine.status, mine.body)
			}
			p.whole()
			x, y := p.prefill.events.ended(c.attempt), p.decode.events.ended(c.attempt)
			if x != handoff.BadInput || y != handoff.BadInput {
				t.Errorf("%v: prefill ended with %v, decode with %v", edit, x, y)
			}
		}
	}
	p.serves()
}

// TestDisagree has the legs see two requests, in each way that they can differ.
func TestDisagree(t *testing.T) {
	p := newPair(t)
	for name, edit := range map[string]func(*legCall){
		"another prompt of the same length": func(c *legCall) { c.body["prompt"] = strings.ToUpper(shipPrompt) },
		"a longer prompt":                   func(c *legCall) { c.body["prompt"] = shipPrompt + " x" },
		"a shorter prompt":                  func(c *legCall) { c.body["prompt"] = "x" },
		"another domain":                    func(c *legCall) { c.domain = kv.Domain{2} },
		"the last token":                    func(c *legCall) { c.body["prompt"] = shipPrompt[:len(shipPrompt)-1] + "S" },
	} {
		for _, stream := range []bool{false, true} {
			c := p.complete(shipPrompt, 12).with(map[string]any{"stream": stream})
			other := c.forPrefill()
			edit(&other)
			a, b := p.begin(p.prefill, other), p.begin(p.decode, c)
			refused(t, name+": prefill", <-a.done, "legs_disagree")
			refused(t, name+": decode", <-b.done, "legs_disagree")
			p.whole()
		}
	}
	p.serves()
}

// TestOtherDigest has prefill use another algorithm than decode was told to
// accept: a peer chooses none, also where what it says is right.
func TestOtherDigest(t *testing.T) {
	for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		p := newPair(t, at(role, func(c *Config) { c.Digest = digest.GMAC }))
		pre, dec := p.both(p.complete(shipPrompt, 12))
		refused(t, "prefill", pre, "integrity")
		refused(t, "decode", dec, "integrity")
		p.whole()
	}
}
