package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// late is a decode leg whose first tokens come when the lease of an attempt is over: of the
// first attempts, so many, as a timer sees it or as the token's own time does.
func (r *rig) late(attempts int64, stopped bool) script {
	return func(w http.ResponseWriter, req *http.Request, c call) {
		switch {
		case c.first >= attempts:
			honestDecode(w, req, c)
		case stopped: // the timer has not run yet
			r.clock.mu.Lock()
			r.clock.now = r.clock.now.Add(r.lease() + 1)
			r.clock.mu.Unlock()
			leaking(w, req, c)
		default:
			r.clock.advance(r.lease())
			<-req.Context().Done()
		}
	}
}

// TestLeaseOverOnce is a decode leg that is too late for its lease, once: one new attempt
// with all that is its own answers (G-6, G-11), and nothing of the first one is seen.
func TestLeaseOverOnce(t *testing.T) {
	for mode, members := range modes() {
		for name, stopped := range map[string]bool{"no token": false, "a late token": true} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				r := inTurn(t, nil)
				r.decode.set(r.late(1, stopped))
				a := r.chat(members)
				text := wholeText(a.body)
				if mode == "stream" {
					text, _ = streamed(a.body)
				}
				if a.status != 200 || a.err != nil || text != "The answer" || a.header.Get(headerVerdict) != agreed {
					t.Fatalf("%d %s", a.status, a.body)
				}
				e := r.event()
				if e.Attempts != 2 || e.Verdict != Served || e.Oddities != record.LeaseOver || e.Lease.Used > time.Second {
					t.Errorf("event: %+v", e)
				}
				p, d := r.prefill.got(), r.decode.got()
				if len(p) != 2 || len(d) != 2 {
					t.Fatalf("%d prefill and %d decode calls", len(p), len(d))
				}
				if p[0].rid == p[1].rid || d[0].rid == d[1].rid || e.RID != d[1].rid {
					t.Error("the second attempt has an id of the first")
				}
				salt := func(c call) string { return string(c.members(t)["cache_salt"]) }
				if salt(p[0]) != salt(p[1]) || salt(d[0]) == salt(d[1]) || salt(d[1]) == salt(p[1]) {
					t.Errorf("salts %s %s and %s %s", salt(p[0]), salt(p[1]), salt(d[0]), salt(d[1]))
				}
				if got := string(d[1].members(t)["kv_transfer_params"]); got != handle(p[1], promptTokens, 3) {
					t.Errorf("decode got %s", got)
				}
				if n := r.g.door.byID["tenant-a"].uncollected.Held(); n != 0 {
					t.Errorf("%d tokens are held", n)
				}
				if rec, _ := r.g.Explain(e.ID); len(rec.Legs) != 4 {
					t.Errorf("record: %+v", rec)
				}
			})
		}
	}
}

// TestLeaseOverAnotherPair holds that the new attempt goes elsewhere, where there is such.
func TestLeaseOverAnotherPair(t *testing.T) {
	r := newBare(t, upstream.VLLMNixl)
	p2, d2 := newScripted(r, "prefill"), newScripted(r, "decode")
	p2.set(honestPrefill)
	d2.set(honestDecode)
	r.start(func(c *Config) {
		second := r.pairOf(p2, d2, "prefill-1")
		second.Prefill.Weight, second.Decode.Weight = 1e-9, 1e-9
		c.Models[0].Engines.Pairs = append(c.Models[0].Engines.Pairs, second)
	})
	r.decode.set(r.late(2, false))
	if a := r.chat(""); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if e := r.event(); e.Attempts != 2 || e.Target != "pair-prefill-1" || len(d2.got()) != 1 {
		t.Errorf("event: %+v", e)
	}
}

// TestLeaseOverRefused is everything that forbids a new attempt, or ends it: the client
// gets the error of what came first.
func TestLeaseOverRefused(t *testing.T) {
	for _, tc := range []struct {
		name           string
		change         func(*Config)
		spent          bool // the tenant's retries are
		status         int
		code           string
		prefill, calls int // of prefill and decode
		held           bool
	}{
		{"no retry left", nil, true, 502, "lease_over", 1, 1, true},
		{"the time to the first byte is one", func(c *Config) { c.Bounds.FirstByte = 45 * time.Second }, false, 504, "deadline", 2, 2, false},
		// Of the first attempt's prompt prefill lets go a lease after its answer, which came
		// when 10 s of the lease were over.
		{"room for one prompt", func(c *Config) { c.Tenants[0].Uncollected = 45 }, false, 502, "lease_over", 1, 1, true},
		{"room for two", func(c *Config) { c.Tenants[0].Uncollected = 128 }, false, 502, "lease_over", 2, 2, false},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := inTurn(t, tc.change)
				tenant := r.g.door.byID["tenant-a"]
				for tc.spent && tenant.retry.Spend() {
				}
				r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
					if c.first == 0 {
						r.clock.advance(10 * time.Second)
					}
					honestPrefill(w, req, c)
				})
				r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
					if c.first == 0 {
						r.clock.advance(20 * time.Second)
					} else {
						r.clock.advance(r.lease())
					}
					<-req.Context().Done()
				})
				e := r.refused(r.chat(members), tc.status, tc.code)
				if len(r.prefill.got()) != tc.prefill || len(r.decode.got()) != tc.calls || e.Oddities != record.LeaseOver {
					t.Errorf("%d prefill and %d decode calls, event %+v", len(r.prefill.got()), len(r.decode.got()), e)
				}
				// The leg that moved the clock may still be running what became due.
				soon(t, "what is held", func() bool { return (tenant.uncollected.Held() > 0) == tc.held })
				r.clock.advance(r.lease())
				soon(t, "nothing is held", func() bool { return tenant.uncollected.Held() == 0 })
			})
		}
	}
}

// TestLeaseOverOfOne is one sequence of several that is too late: all of them are tried
// again, and nothing of the first round is in the answer.
func TestLeaseOverOfOne(t *testing.T) {
	for mode, members := range modes() {
		t.Run(mode, func(t *testing.T) {
			r := inTurn(t, func(c *Config) { c.Bounds.Sequences = 1 })
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				if c.first == 1 {
					r.clock.advance(r.lease())
					<-req.Context().Done()
					return
				}
				honestDecode(w, req, c)
			})
			a := r.chat(`,"n":2` + members)
			e := r.event()
			if a.status != 200 || a.err != nil || e.Attempts != 4 || e.Verdict != Served || len(r.decode.got()) != 4 {
				t.Fatalf("%d %s, event %+v", a.status, a.body, e)
			}
			text := wholeText(a.body)
			if mode == "stream" {
				text, _ = streamed(a.body)
			}
			if strings.Count(text, "The") != 2 || strings.Count(text, "wer") != 2 {
				t.Errorf("%s", a.body)
			}
		})
	}
}
