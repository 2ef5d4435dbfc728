package gateway

import (
	"context"
	"crypto/rand"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// minLookGap is the least time between two looks that requests bring about.
const minLookGap = 250 * time.Millisecond

// ready asks /readyz.
func (r *rig) ready() bool {
	r.t.Helper()
	return r.send(r.request("GET", "/readyz", "")).status == 200
}

func TestReadiness(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name  string
		leg   func(r *rig) *scripted
		key   string
		value any
	}{
		{"prefill in another role", func(r *rig) *scripted { return r.prefill }, "disaggregation_mode", "decode"},
		{"decode in another role", func(r *rig) *scripted { return r.decode }, "disaggregation_mode", "prefill"},
		{"another model", func(r *rig) *scripted { return r.decode }, "served_model_name", "other"},
		{"another page size", func(r *rig) *scripted { return r.prefill }, "page_size", 16},
		{"another version", func(r *rig) *scripted { return r.prefill }, "version", "2"},
		{"unknown pool", func(r *rig) *scripted { return r.prefill }, "max_total_num_tokens", nil},
		{"nonsense", func(r *rig) *scripted { return r.decode }, "max_total_num_tokens", "many"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			if !r.ready() {
				t.Fatal("a sound pair is not ready")
			}
			leg := tc.leg(r)
			was := leg.info[tc.key]
			leg.say(tc.key, tc.value)
			r.g.Refresh(ctx)
			if r.ready() {
				t.Fatal("ready")
			}
			a := r.chat("")
			e := r.event()
			if a.status != 503 || a.code() != "no_pair_ready" && a.code() != "limits_unknown" || e.Verdict != record.Refused {
				t.Errorf("%d %s", a.status, a.body)
			}
			r.undispatched()
			leg.say(tc.key, was)
			r.g.Refresh(ctx)
			if !r.ready() {
				t.Error("not ready again")
			}
		})
	}
}

// TestReadinessIsCheap holds that whoever has no key, and asks whether the gateway is ready,
// does not make it put its whole state together.
func TestReadinessIsCheap(t *testing.T) {
	cost := func(r *rig) float64 {
		least := math.Inf(1) // what else runs only adds to it
		for range 20 {
			least = min(least, testing.AllocsPerRun(10, func() { r.g.readiness(httptest.NewRecorder(), "req-0") }))
		}
		return least
	}
	two, _, _ := twoPairs(t, nil)
	if one, more := cost(newRig(t, nil)), cost(two); one != more {
		t.Errorf("%v allocations with one pair, %v with two", one, more)
	}
	if n := len(two.g.Status().Nodes); n != 4 {
		t.Errorf("%d nodes", n)
	}
}

func TestStaleIsNotReady(t *testing.T) {
	r := newRig(t, nil)
	r.clock.advance(r.g.bounds.Fresh)
	if !r.ready() {
		t.Error("a look holds for Fresh")
	}
	r.clock.advance(time.Nanosecond)
	if r.ready() {
		t.Error("a look holds for ever")
	}
	// A request that finds no pair looks again at once.
	if a := r.chat(""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.event()
}

// TestDeadWorkerComesBack is a worker that is gone, and back before the next look is due.
func TestDeadWorkerComesBack(t *testing.T) {
	r := newRig(t, nil)
	r.decode.become(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	r.g.Refresh(context.Background())
	if r.ready() {
		t.Error("ready without decode")
	}
	r.clock.advance(minLookGap)
	r.refused(r.chat(""), 503, "no_pair_ready")
	a := r.send(r.request("GET", "/v1/models", ""))
	if !strings.Contains(a.body, `"max_model_len":600`) {
		t.Errorf("a pair that is away keeps its last length: %s", a.body)
	}
	r.decode.become(nil)
	looks := r.prefill.looked()
	r.refused(r.chat(""), 503, "no_pair_ready")
	if r.prefill.looked() != looks {
		t.Error("looks are not kept apart")
	}
	r.clock.advance(minLookGap)
	if a := r.chat(""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.event()
}

// TestHungWorker is a worker that takes a look's connection and never answers.
func TestHungWorker(t *testing.T) {
	r := newRig(t, nil)
	began := make(chan struct{}, 1)
	r.decode.become(func(_ http.ResponseWriter, req *http.Request) {
		began <- struct{}{}
		<-req.Context().Done()
	})
	done := make(chan struct{})
	go func() { r.g.Refresh(context.Background()); close(done) }()
	<-began
	r.clock.advance(r.g.bounds.Probe)
	<-done
	if !r.ready() {
		t.Error("slow is not dead")
	}
	r.clock.advance(r.g.bounds.Fresh)
	if r.ready() {
		t.Error("ready")
	}
}

// TestLimitFollows is a pool that shrinks while it runs.
func TestLimitFollows(t *testing.T) {
	r := newRig(t, nil)
	body := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("x", 520) + `"}]}`
	if a := r.send(r.request("POST", chatPath, body)); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	r.event()
	r.prefill.say("max_total_num_tokens", 500)
	r.prefill.say("incarnation", "prefill-2")
	r.g.Refresh(context.Background())
	a := r.send(r.request("POST", chatPath, body))
	r.refused(a, 400, "prompt_exceeds_pool")
	if !strings.Contains(a.body, "500") {
		t.Errorf("%s", a.body)
	}
	if a := r.send(r.request("GET", "/v1/models", "")); !strings.Contains(a.body, `"max_model_len":500`) {
		t.Errorf("%s", a.body)
	}
	r.prefill.say("context_length", 300)
	r.g.Refresh(context.Background())
	if a := r.send(r.request("GET", "/v1/models", "")); !strings.Contains(a.body, `"max_model_len":300`) {
		t.Errorf("%s", a.body)
	}
}

// twoPairs is a rig whose model has a second pair.
func twoPairs(t *testing.T, change func(*Config)) (r *rig, p2, d2 *scripted) {
	r = newBare(t, upstream.Bulkhead)
	p2, d2 = newScripted(r, "prefill"), newScripted(r, "decode")
	p2.set(honestPrefill)
	d2.set(honestDecode)
	r.start(func(c *Config) {
		m := &c.Models[0]
		m.Engines.Pairs = append(m.Engines.Pairs, r.pairOf(p2, d2, "prefill-1"))
		if change != nil {
			change(c)
		}
	})
	return r, p2, d2
}

func TestPairs(t *testing.T) {
	r, p2, d2 := twoPairs(t, nil)
	// The advertised length is the least of both; a prompt that only one takes goes there.
	p2.say("max_req_input_len", 100)
	r.g.Refresh(context.Background())
	if a := r.send(r.request("GET", "/v1/models", "")); !strings.Contains(a.body, `"max_model_len":100`) {
		t.Errorf("%s", a.body)
	}
	r.prefill.say("max_req_input_len", 90)
	p2.say("max_req_input_len", 600)
	r.g.Refresh(context.Background())
	body := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("x", 200) + `"}]}`
	if a := r.send(r.request("POST", chatPath, body)); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if e := r.event(); e.Target != "pair-prefill-1" || len(d2.got()) != 1 {
		t.Errorf("event: %+v", e)
	}
	// Too long for both: the numbers are those of the larger.
	long := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("x", 700) + `"}]}`
	if a := r.send(r.request("POST", chatPath, long)); !strings.Contains(a.body, "600") {
		t.Errorf("%s", a.body)
	}
	r.event()
	// Two requests at once go to two pairs.
	r.prefill.say("max_req_input_len", 600)
	r.g.Refresh(context.Background())
	began, let := make(chan struct{}, 2), make(chan struct{})
	wait := func(w http.ResponseWriter, req *http.Request, c call) {
		began <- struct{}{}
		<-let
		honestPrefill(w, req, c)
	}
	r.prefill.set(wait)
	p2.set(wait)
	done := make(chan answer, 2)
	go func() { done <- r.chat("") }()
	<-began
	go func() { done <- r.chat("") }()
	<-began
	close(let)
	pairs := map[string]bool{}
	for range 2 {
		if a := <-done; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		pairs[r.event().Target] = true
	}
	if len(pairs) != 2 {
		t.Errorf("both went to %v", pairs)
	}
}

// peerGone is what a worker says when its peer is away.
func peerGone(w http.ResponseWriter, r *http.Request, c call) {
	refusing(502, string(fault.New(fault.PeerGone).Body()))(w, r, c)
}

// reset is a worker that dies with its connection open.
func reset(w http.ResponseWriter, _ *http.Request, _ call) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestRetry(t *testing.T) {
	for mode, members := range modes() {
		t.Run("the same pair/"+mode, func(t *testing.T) {
			r := newRig(t, nil)
			began := make(chan struct{}, 1)
			r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
				if c.first == 0 {
					hanging(began)(w, req, c)
					return
				}
				if len(r.prefill.aborts) != 1 {
					t.Error("the new attempt began before the old one was ended")
				}
				honestPrefill(w, req, c)
			})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				if c.first == 0 {
					<-began
					peerGone(w, req, c)
					return
				}
				honestDecode(w, req, c)
			})
			if a := r.chat(members); a.status != 200 || !strings.Contains(a.body, "wer") {
				t.Fatalf("%d %s", a.status, a.body)
			}
			e := r.event()
			p, d := r.prefill.got(), r.decode.got()
			if e.Attempts != 2 || e.Verdict != Served || e.RID != d[1].rid || r.prefill.aborted(t) != p[0].rid {
				t.Errorf("event: %+v", e)
			}
			if p[0].room == p[1].room || p[0].rid == p[1].rid || p[0].pass.Attempt == p[1].pass.Attempt || p[1].room != d[1].room {
				t.Error("a retry is not a new attempt")
			}
		})
		t.Run("another pair/"+mode, func(t *testing.T) {
			r, p2, d2 := twoPairs(t, func(c *Config) {
				// All but nothing goes to the second pair as long as there is the first.
				c.Models[0].Engines.Pairs[1].Prefill.Weight, c.Models[0].Engines.Pairs[1].Decode.Weight = 1e-9, 1e-9
			})
			// The first pair's decode worker is dead, and nobody has noticed yet.
			r.prefill.set(hanging(nil))
			r.decode.srv.Close()
			if a := r.chat(members); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if e := r.event(); e.Attempts != 2 || e.Target != "pair-prefill-1" {
				t.Errorf("event: %+v", e)
			}
			if len(p2.got()) != 1 || len(d2.got()) != 1 {
				t.Errorf("%d and %d calls", len(p2.got()), len(d2.got()))
			}
		})
		t.Run("once only/"+mode, func(t *testing.T) {
			r := newRig(t, nil)
			r.decode.set(peerGone)
			if e := r.refused(r.chat(members), 502, "peer_gone"); e.Attempts != 2 || e.Verdict != record.Failed {
				t.Errorf("event: %+v", e)
			}
			if n := len(r.decode.got()); n != 2 {
				t.Errorf("%d calls", n)
			}
		})
		t.Run("not for a reset/"+mode, func(t *testing.T) {
			for name, hangUp := range map[string]script{"end": func(http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) }, "reset": reset} {
				r := newRig(t, nil)
				r.decode.set(hangUp)
				if e := r.refused(r.chat(members), 502, "upstream_unreachable"); e.Attempts != 1 {
					t.Errorf("%s, event: %+v", name, e)
				}
				if n := len(r.decode.got()); n != 1 {
					t.Errorf("%s: decode was called %d times", name, n)
				}
			}
		})
	}
}

// TestRetryWaitsForTheEnd holds that a new attempt does not begin while the old one is
// still being ended.
func TestRetryWaitsForTheEnd(t *testing.T) {
	r := newRig(t, nil)
	began, aborting, let := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	r.prefill.become(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/abort_request" {
			aborting <- struct{}{}
			<-let
		}
		r.prefill.serve(w, req)
	})
	r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
		if c.first == 0 {
			hanging(began)(w, req, c)
			return
		}
		honestPrefill(w, req, c)
	})
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		if c.first == 0 {
			<-began
			peerGone(w, req, c)
			return
		}
		honestDecode(w, req, c)
	})
	got := make(chan answer, 1)
	go func() { got <- r.chat("") }()
	<-aborting
	for range 50 { // time in which an eager retry would have come
		r.send(r.request("GET", "/healthz", ""))
	}
	if n := len(r.decode.got()); n != 1 {
		t.Errorf("decode was called %d times before the old attempt was ended", n)
	}
	close(let)
	if a := <-got; a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.event()
}

func TestNoRetry(t *testing.T) {
	t.Run("after the first byte", func(t *testing.T) {
		r := newRig(t, nil)
		seen := make(chan struct{})
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			events(w, decodeChunks(chatPath, c.id)[:2]...)
			<-seen
			events(w, string(fault.New(fault.PeerGone).Body()))
		})
		a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"stream":true`)), "The", seen)
		if _, last := streamed(a.body); (answer{body: last}).code() != "peer_gone" || a.err == nil {
			t.Errorf("%s", a.body)
		}
		if e := r.event(); e.Attempts != 1 || e.Verdict != record.Broken {
			t.Errorf("event: %+v", e)
		}
	})
	t.Run("beyond the budget", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Bounds.RetryPercent = 50 })
		r.decode.set(peerGone)
		// The burst of ten and the half that each request earns last for 19 requests; from
		// then on every second one is tried again.
		retried := 0
		for range 40 {
			r.chat("")
			retried += r.event().Attempts - 1
		}
		if retried != 29 {
			t.Errorf("%d retries of 40 requests", retried)
		}
	})
}

// TestRun holds that Run looks at once, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Config{
			Pepper: make([]byte, 16), DomainKey: make([]byte, 16), Events: make(eventChan, 1), Random: rand.Reader, Clock: SystemClock{},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { g.Run(ctx); close(done) }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("ended by itself")
		default:
		}
		cancel()
		<-done
	})
}
