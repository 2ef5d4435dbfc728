package worker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// TestNaive puts a router in front that sends both legs at once and relays
// decode's answer, whatever prefill says. In no way that prefill can fail does
// decode answer with text; afterwards both pools are whole, and the pair serves.
// The control before is the same router, served.
func TestNaive(t *testing.T) {
	for _, c := range naiveCases() {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream %v", c.name, stream), func(t *testing.T) {
				t.Parallel()
				n := &naiveRun{hit: make(chan struct{})}
				n.strike = sync.OnceFunc(func() { close(n.hit) })
				setups := []setup{func(k *Config) { k.Chunk, k.LegTime = 16, time.Minute }}
				if c.setups != nil {
					setups = append(setups, c.setups(n)...)
				}
				n.pair = newPair(t, setups...)
				n.serves()
				prompt, want := recital(200, 7)
				call := n.complete(prompt, len(want)).with(map[string]any{"stream": stream})
				n.attempt = call.attempt
				n.armed.Store(true)
				dec := c.run(n, call)
				n.armed.Store(false)
				if dec.err == nil && (dec.status == 200 || text(dec) != "" || code(dec) != c.code) {
					t.Errorf("decode answered %d %s, want %s", dec.status, dec.body, c.code)
				}
				n.linked()
				n.whole()
				n.serves()
			})
		}
	}
}

// naiveRun is one run of a case. What its setups do to messages and pages they
// do while it is armed.
type naiveRun struct {
	*pair
	attempt handoff.Attempt // of the victim
	armed   atomic.Bool
	hit     chan struct{} // closed when what was to be waited for has happened
	strike  func()
}

type naiveCase struct {
	name   string
	code   string // of decode's answer
	setups func(*naiveRun) []setup
	run    func(*naiveRun, legCall) reply
}

func relay(n *naiveRun, c legCall) reply { return n.naive(c) }

// apart sends two legs that are not those of one request.
func apart(n *naiveRun, pre, dec legCall) reply {
	a, b := n.begin(n.prefill, pre), n.begin(n.decode, dec)
	<-a.done
	return <-b.done
}

// giveUp aborts decode's leg, once decode waits for prefill.
func giveUp(n *naiveRun, dec *pending, c legCall) reply {
	n.reaches(n.prefill, c)
	n.abort(n.decode, c.rid())
	return <-dec.done
}

// kill ends prefill's process, as far as decode can see, when the run's hit
// comes: nothing that it says from then on arrives. Then it starts another.
func kill(n *naiveRun, c legCall) reply {
	pre, dec := n.beginPrefill(c), n.beginDecode(c)
	return n.restart(pre, dec)
}

func (n *naiveRun) restart(pre, dec *pending) reply {
	<-n.hit
	n.prefill.stop()
	<-pre.done
	r := <-dec.done
	n.armed.Store(false)
	n.prefill = n.start(wire.RolePrefill)
	return r
}

// fails is a setup of prefill: from the first message of a kind on, in this run,
// it does something to the messages.
func fails(k handoff.Kind, first, rest wire.Fault) func(*naiveRun) []setup {
	return func(n *naiveRun) []setup {
		seen := false
		return []setup{faulty(wire.RolePrefill, &wire.Faults{Message: func(m wire.Message) wire.Fault {
			switch {
			case !n.armed.Load():
				return wire.Fault{}
			case seen:
				return rest
			case m.Kind != k:
				return wire.Fault{}
			}
			seen = true
			n.strike()
			return first
		}})}
	}
}

// failsPage is a setup of prefill: it does something to page number i of the
// run, from 1, or to every page if i is 0. silent drops every message from then
// on.
func failsPage(i int, f wire.Fault, rest wire.Fault) func(*naiveRun) []setup {
	return func(n *naiveRun) []setup {
		count := 0
		return []setup{faulty(wire.RolePrefill, &wire.Faults{
			Page: func(wire.PageWrite) wire.Fault {
				if !n.armed.Load() {
					return wire.Fault{}
				}
				if count++; i != 0 && count != i {
					return wire.Fault{}
				}
				n.strike()
				return f
			},
			Message: func(wire.Message) wire.Fault {
				select {
				case <-n.hit:
					if n.armed.Load() {
						return rest
					}
				default:
				}
				return wire.Fault{}
			},
		})}
	}
}

// chokes is a fault of the engine: when prefill makes its offer, the last token
// of the prompt becomes one that the model does not have.
func chokes(n *naiveRun) []setup {
	return []setup{faulty(wire.RolePrefill, &wire.Faults{Message: func(m wire.Message) wire.Fault {
		if n.armed.Load() && m.Kind == handoff.Offer {
			n.prefill.mail.put(func(w *Worker) {
				tokens := w.attempts[n.attempt].req.tokens
				tokens[len(tokens)-1] = 1 << 20
			})
		}
		return wire.Fault{}
	}})}
}

// babbles is a fault of the engine: the token that prefill sampled becomes one
// that the model does not have, after the pages were computed and before the
// notice.
func babbles(n *naiveRun) []setup {
	return []setup{faulty(wire.RolePrefill, &wire.Faults{Page: func(wire.PageWrite) wire.Fault {
		if n.armed.Load() {
			n.prefill.mail.put(func(w *Worker) { w.attempts[n.attempt].first = 1 << 20 })
		}
		return wire.Fault{}
	}})}
}

// alters is a setup of one role: it hears other messages than were sent.
func alters(role wire.Role, k handoff.Kind, f func(*wire.Message)) func(*naiveRun) []setup {
	return func(n *naiveRun) []setup {
		return []setup{at(role, func(c *Config) {
			c.Transport = misheard{c.Transport, func(m *wire.Message) {
				if n.armed.Load() && m.Kind == k {
					f(m)
				}
			}}
		})}
	}
}

func naiveCases() []naiveCase {
	drop, pass := wire.Fault{Do: wire.ActDrop}, wire.Fault{}
	over := strings.Repeat("All work and no play. ", 60)
	return []naiveCase{
		{"an over-long prompt", "too_long", func(*naiveRun) []setup { return []setup{atPrefill(func(c *Config) { c.Window = 128 })} }, relay},
		{"longer than every pool", "too_long", nil,
			func(n *naiveRun, c legCall) reply { return n.naive(c.with(map[string]any{"prompt": over})) }},
		{"prefill's leg is bad", "bad_input", nil,
			func(n *naiveRun, c legCall) reply {
				return apart(n, c.forPrefill().with(map[string]any{"top_p": -1}), c)
			}},
		{"prefill's leg has no pass", "cancelled", nil,
			func(n *naiveRun, c legCall) reply {
				stale := c.forPrefill()
				stale.expiry = time.Now().Add(-time.Minute)
				dec := n.beginDecode(c)
				refused(n.t, "prefill", n.leg(context.Background(), n.prefill, stale), "expired_pass")
				return giveUp(n, dec, c)
			}},
		{"prefill's leg is never sent", "cancelled", nil,
			func(n *naiveRun, c legCall) reply { return giveUp(n, n.beginDecode(c), c) }},
		{"another prompt", "legs_disagree", nil,
			func(n *naiveRun, c legCall) reply {
				return apart(n, c.forPrefill().with(map[string]any{"prompt": "x"}), c)
			}},
		{"another domain", "legs_disagree", nil,
			func(n *naiveRun, c legCall) reply {
				other := c.forPrefill()
				other.domain = kv.Domain{9}
				return apart(n, other, c)
			}},
		{"prefill's client leaves", "cancelled", fails(handoff.Notice, drop, pass),
			func(n *naiveRun, c legCall) reply {
				pre, dec := n.beginPrefill(c), n.beginDecode(c)
				<-n.hit
				pre.leave()
				<-pre.done
				return <-dec.done
			}},
		{"the engine fails", "engine_failed", chokes, relay},
		{"the first token is none", "integrity", babbles, relay},
		{"prefill dies before its offer", "peer_gone", fails(handoff.Offer, drop, drop), kill},
		{"prefill dies after its offer", "peer_gone", fails(handoff.Offer, pass, drop), kill},
		{"prefill dies in mid-transfer", "peer_gone", failsPage(3, wire.Fault{Do: wire.ActStall, After: 100}, drop), kill},
		{"prefill dies before its notice", "peer_gone", fails(handoff.Notice, drop, drop), kill},
		{"a page completes and never comes", "integrity", failsPage(2, wire.Fault{Do: wire.ActEarly}, pass), relay},
		{"no page ever comes", "integrity", failsPage(0, wire.Fault{Do: wire.ActEarly}, pass), relay},
		{"a page write fails", "peer_gone", failsPage(2, wire.Fault{Do: wire.ActFail}, pass), relay},
		{"the link is cut in mid-transfer", "peer_gone", failsPage(2, wire.Fault{Do: wire.ActCut}, pass), relay},
		{"pages are refused", "integrity", alters(wire.RolePrefill, handoff.Grant, func(m *wire.Message) { m.Key[0] ^= 1 }), relay},
		{"the grant is for fewer pages", "legs_disagree", alters(wire.RolePrefill, handoff.Grant, func(m *wire.Message) { m.View.Pages-- }), relay},
		{"the ask is for another model", "legs_disagree", alters(wire.RolePrefill, handoff.Ask, func(m *wire.Message) { m.View.Layout++ }), relay},
		{"the offer is for fewer tokens", "legs_disagree", alters(wire.RoleDecode, handoff.Offer, func(m *wire.Message) { m.View.Tokens-- }), relay},
		{"the notice is for one page", "legs_disagree", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.View.Pages = 1 }), relay},
		{"the notice is for another prompt", "legs_disagree", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.View.Input[3] ^= 1 }), relay},
		{"a digest is missing", "integrity", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.Digests = m.Digests[1:] }), relay},
		{"no digest", "integrity", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.Digests, m.Algorithm = nil, 0 }), relay},
		{"another algorithm", "integrity", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.Algorithm = 2 }), relay},
		{"another first token", "integrity", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.First ^= 1 }), relay},
		{"a MAC that is wrong", "integrity", alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.MAC[31] ^= 1 }), relay},
	}
}

// misheard is a transport whose handler hears other messages than were sent.
type misheard struct {
	wire.Transport
	alter func(*wire.Message)
}

type misheardHandler struct {
	wire.Handler
	alter func(*wire.Message)
}

func (h misheardHandler) Receive(l wire.Link, m wire.Message) {
	h.alter(&m)
	h.Handler.Receive(l, m)
}

func (t misheard) Dial(ctx context.Context, addr string, hello wire.Hello, h wire.Handler, landing *kv.Landing) (wire.Link, error) {
	return t.Transport.Dial(ctx, addr, hello, misheardHandler{h, t.alter}, landing)
}

func (t misheard) Listen(addr string, hello wire.Hello, h wire.Handler, landing *kv.Landing) (wire.Listener, error) {
	return t.Transport.Listen(addr, hello, misheardHandler{h, t.alter}, landing)
}

// abort calls /abort_request.
func (p *pair) abort(s *side, rid string) reply {
	p.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.http.URL+"/abort_request", strings.NewReader(fmt.Sprintf(`{"rid":%q}`, rid)))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testControl)
	r := read(p.client.Do(req))
	if r.status != 200 {
		p.t.Fatalf("abort: %d %s", r.status, r.body)
	}
	return r
}
