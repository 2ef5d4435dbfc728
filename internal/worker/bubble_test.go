package worker

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// bubble is a pair inside a synctest bubble, over the in-process transport. Its
// clock stands while anybody works, so that what passes of it is waiting.
type bubble struct {
	*pair
	handlers map[wire.Role]http.Handler
	stop     func()
}

func newBubble(t *testing.T, setups ...setup) *bubble {
	t.Helper()
	passes, err := wire.NewPasser(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	b := &bubble{pair: &pair{t: t, passes: passes, domain: kv.Domain{1}}, handlers: map[wire.Role]http.Handler{}}
	fabric, model := wire.NewMem(wire.Options{}), llm.Recall()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, role := range []wire.Role{wire.RolePrefill, wire.RoleDecode} {
		c := Config{
			Role: role, Name: role.String(), Model: model, ServedName: "recall", PageTokens: 16, Pages: 64, Passes: passes,
			Transport: fabric, Bootstrap: "boot", Peers: []Peer{{Label: "prefill.test:8998", Addr: "boot"}},
		}
		for _, f := range setups {
			f(&c)
		}
		w, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		s := &side{Worker: w, http: &httptest.Server{}}
		if role == wire.RolePrefill {
			b.prefill = s
		} else {
			b.decode = s
		}
		b.handlers[role] = w.Handler(nil)
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Errorf("%v: %v", role, err)
			}
			if !w.pool.Whole() {
				t.Errorf("%v: the pool is not whole: %+v", role, w.pool.Counts())
			}
		})
		synctest.Wait() // prefill listens before decode dials
	}
	b.stop = func() {
		cancel()
		all.Wait()
	}
	return b
}

// call calls a leg's handler.
func (b *bubble) call(s *side, c legCall) reply {
	rec := httptest.NewRecorder()
	b.handlers[s.cfg.Role].ServeHTTP(rec, b.request(context.Background(), s, c))
	return reply{status: rec.Code, header: rec.Header(), body: rec.Body.String()}
}

// TestNothingWaits serves more requests at once than the pools hold. None of
// them ever waits for a tick: the clock does not move.
func TestNothingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, func(c *Config) { c.Pages, c.Chunk = 12, 64 })
		start := time.Now()
		var all sync.WaitGroup
		for i := range 16 {
			prompt, want := recital(100+i, i)
			c := b.complete(prompt, len(want)) // 8 pages
			all.Go(func() {
				if r := b.call(b.prefill, c.forPrefill()); text(r) != " " {
					t.Errorf("request %d: prefill %d %s", i, r.status, r.body)
				}
			})
			all.Go(func() {
				if r := b.call(b.decode, c); text(r) != want {
					t.Errorf("request %d: decode %d %s", i, r.status, r.body)
				}
			})
		}
		all.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("somebody waited %v", d)
		}
		b.stop()
	})
}

// TestDeadline has a leg whose other one never comes. It ends at its time, not
// before and not after.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		for _, s := range []*side{b.prefill, b.decode} {
			start := time.Now()
			r := b.call(s, b.complete(shipPrompt, 1))
			if d := time.Since(start); d != 120*time.Second || r.status != 504 || code(r) != "deadline" {
				t.Errorf("%v: after %v %d %s", s.cfg.Role, d, r.status, r.body)
			}
		}
		synctest.Wait()
		for _, s := range []*side{b.prefill, b.decode} {
			if st := s.Status(); st.Attempts != 0 || st.Counts.Free != st.Counts.Total {
				t.Errorf("%v: %+v", s.cfg.Role, st)
			}
		}
		b.stop()
	})
}

// TestStopsClean starts and stops workers in every order. The bubble fails the
// test if a goroutine of theirs outlives Run.
func TestStopsClean(t *testing.T) {
	for _, pending := range []int{0, 1, 5} {
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(t)
			var all sync.WaitGroup
			for i := range pending {
				c := b.complete(shipPrompt, 1)
				all.Go(func() {
					if i%2 == 0 {
						refused(t, "prefill", b.call(b.prefill, c.forPrefill()), "peer_gone")
					} else {
						refused(t, "decode", b.call(b.decode, c), "peer_gone")
					}
				})
			}
			synctest.Wait()
			b.stop()
			all.Wait()
		})
	}
}

// TestAddressTaken ends Run with an error if prefill cannot listen.
func TestAddressTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		w, err := New(b.prefill.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Run(context.Background()); err == nil {
			t.Error("two workers listen at one address")
		}
		b.stop()
	})
}

// TestRedial waits longer and longer for a peer that is not there, and at once
// for one that is back.
func TestRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		b := newBubble(t, atDecode(func(c *Config) { c.Peers[0].Addr, c.Events = "nowhere", events }))
		time.Sleep(60 * time.Second)
		n := len(events.of(LinkDown))
		if n < 20 || n > 40 {
			t.Errorf("%d dials in a minute", n)
		}
		if r := b.call(b.decode, b.complete(shipPrompt, 1)); code(r) != "peer_gone" {
			t.Errorf("decode without a peer: %d %s", r.status, r.body)
		}
		b.stop()
	})
}

// slammer is a transport whose listener closes every link at once.
type slammer struct{ wire.Transport }

type slamming struct{ wire.Handler }

func (h slamming) Opened(l wire.Link) {
	h.Handler.Opened(l)
	l.Close(nil)
}

func (s slammer) Listen(addr string, hello wire.Hello, h wire.Handler, landing *kv.Landing) (wire.Listener, error) {
	return s.Transport.Listen(addr, hello, slamming{h}, landing)
}

// TestSlammed has a peer that accepts every link and closes it: it is not dialled
// in a circle.
func TestSlammed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		b := newBubble(t, atPrefill(func(c *Config) { c.Transport = slammer{c.Transport} }), atDecode(func(c *Config) { c.Events = events }))
		time.Sleep(10 * time.Second)
		if n := len(events.of(LinkUp)); n < 10 || n > 250 {
			t.Errorf("%d links in 10 s", n)
		}
		b.stop()
	})
}
