package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// TestAdmission is recipe R7, rows 2 to 4, at a window of 1024 and pools of 672. Row 7 and
// 10 are in TestTwoOfFourHundred.
func TestAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, _ := one(t, n)
		for _, prompt := range []int64{1, 670, 671} {
			target := r.take(exact(prompt, 1))
			if target.Prefill.Name() != "a-p" || target.Decode.Name() != "a-d" || target.Plain != nil || target.Name != "a" {
				t.Errorf("%+v", target)
			}
			if host, port := target.Prefill.Bootstrap(); host != "a" || port != 8998 {
				t.Errorf("meets at %s:%d", host, port)
			}
			target.Release(Answered)
		}
		for _, tc := range []struct {
			prompt, output int64
			want           admit.Decision
		}{
			{672, 1, admit.Decision{Outcome: admit.RefuseDecode, Prompt: 672, Output: 0, Limit: 672}},
			{673, 1, admit.Decision{Outcome: admit.RefusePrefill, Prompt: 673, Limit: 672}},
			{1023, 1, admit.Decision{Outcome: admit.RefusePrefill, Prompt: 1023, Limit: 672}},
			{1025, 1, admit.Decision{Outcome: admit.RefuseWindow, Prompt: 1025, Limit: 1024}},
			{600, 100, admit.Decision{Outcome: admit.RefuseDecode, Prompt: 600, Output: 100, Limit: 672}},
			{0, 1, admit.Decision{Outcome: admit.RefuseZero}},
		} {
			tc.want.Exact = true
			if d := r.refused(exact(tc.prompt, tc.output)); d != tc.want {
				t.Errorf("%d + %d: %+v, want %+v", tc.prompt, tc.output, d, tc.want)
			}
			r.take(exact(10, 10)).Release(Answered) // row 10
		}
		band := Ask{Tokens: admit.Request{Low: 100, High: 2000, Output: admit.Known(1), Default: 16}}
		if d := r.refused(band); d.Outcome != admit.NeedCount {
			t.Errorf("%+v", d)
		}
		r.idle()
	})
}

// TestTwoOfFourHundred is recipe R7, row 7: two requests of 400 in a pool of 672 queue,
// and both are served; and row 10: a small one is not held up meanwhile.
func TestTwoOfFourHundred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, _ := one(t, n)
		ask := exact(390, 10)
		first := r.take(ask)
		second := r.later(context.Background(), ask)
		if second.got().done || r.g.Waiting() != 1 {
			t.Fatalf("800 tokens in a pool of 672: %+v", second.got())
		}
		other := exact(5, 5)
		other.Tenant = "other"
		r.take(other).Release(Answered)
		if r.flight("a-d") != 400 || r.flight("a-p") != 390 {
			t.Errorf("%d and %d in flight", r.flight("a-p"), r.flight("a-d"))
		}
		time.Sleep(3 * time.Second)
		first.Release(Answered)
		synctest.Wait()
		if !second.got().done || second.got().t == nil || second.got().t.Queued != 3*time.Second {
			t.Fatalf("%+v", second.got())
		}
		second.got().t.Release(Answered)
		second.got().t.Release(Failed) // once is enough
		r.idle()
	})
}

// TestBestRefusal holds that of several refusals the one with the greatest limit is told,
// and that a request goes where it fits.
func TestBestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 2, 300, nil)
		engines[1].say("max_total_num_tokens", 600)
		engines[1].say("max_req_input_len", 594)
		r.refresh()
		if n, _ := r.g.Advertised().Value(); n != 300 {
			t.Errorf("advertised %d", n)
		}
		for range 5 {
			target := r.take(exact(400, 10))
			if target.Name != "b" {
				t.Errorf("400 tokens went to %s", target.Name)
			}
			target.Release(Answered)
		}
		if d := r.refused(exact(700, 10)); d.Limit != 594 {
			t.Errorf("%+v", d)
		}
		// Where one only needs a count and the other refuses, counting may help.
		if d := r.refused(Ask{Tokens: admit.Request{Low: 310, High: 800, Output: admit.Known(1)}}); d.Outcome != admit.NeedCount {
			t.Errorf("%+v", d)
		}
	})
}

// TestEstimates is what counts as in flight.
func TestEstimates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, _ := one(t, n)
		bounds := Ask{Tokens: admit.Request{Low: 10, High: 400, Output: admit.Known(100), Default: 16}}
		target := r.take(bounds)
		if r.flight("a-p") != 400 || r.flight("a-d") != 500 {
			t.Errorf("without an estimate: %d, %d", r.flight("a-p"), r.flight("a-d"))
		}
		target.Counted(60)
		if r.flight("a-p") != 60 || r.flight("a-d") != 160 {
			t.Errorf("counted: %d, %d", r.flight("a-p"), r.flight("a-d"))
		}
		target.Counted(300)
		if r.flight("a-d") != 160 {
			t.Error("a count raised the estimate")
		}
		target.Prefilled()
		if r.flight("a-p") != 0 || r.flight("a-d") != 160 || r.node("a-p").Requests != 0 {
			t.Errorf("prefilled: %d, %d", r.flight("a-p"), r.flight("a-d"))
		}
		target.Release(Answered)
		r.idle()
		bounds.Estimate = 100
		target = r.take(bounds)
		if r.flight("a-p") != 100 {
			t.Errorf("estimated: %d", r.flight("a-p"))
		}
		target.Release(Answered)
		target.Counted(1)
		target.Prefilled()
		bounds.Estimate = 4000
		target = r.take(bounds)
		if r.flight("a-p") != 400 {
			t.Errorf("estimated beyond the bound: %d", r.flight("a-p"))
		}
		target.Release(Answered)
		r.idle()
	})
}

// TestParallel is a request of several sequences.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, d := one(t, n)
		ask := exact(100, 50)
		ask.Parallel = 4
		target := r.take(ask)
		if target.Parallel != 4 || r.flight("a-d") != 600 || r.node("a-d").Requests != 4 {
			t.Errorf("%d at a time, %d in flight", target.Parallel, r.flight("a-d"))
		}
		target.Counted(90)
		if r.flight("a-d") != 560 {
			t.Errorf("counted: %d", r.flight("a-d"))
		}
		target.Release(Answered)
		// One at a time is all that fits.
		ask = exact(300, 50)
		ask.Parallel = 4
		target = r.take(ask)
		if target.Parallel != 1 || r.flight("a-d") != 350 {
			t.Errorf("%d at a time, %d in flight", target.Parallel, r.flight("a-d"))
		}
		target.Release(Answered)
		d.say("max_running_requests", 2)
		r.refresh()
		ask = exact(10, 10)
		ask.Parallel = 4
		if target = r.take(ask); target.Parallel != 2 {
			t.Errorf("%d at a time in two slots", target.Parallel)
		}
		if waits := r.later(context.Background(), exact(1, 1)); waits.got().done {
			t.Errorf("three in two slots: %+v", waits.got())
		} else {
			target.Release(Answered)
			synctest.Wait()
			waits.got().t.Release(Answered)
		}
		r.idle()
	})
}

func TestOvercommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("a:1", 600)
		r := n.start(t, Spec{Dialect: upstream.SGLang, Overcommit: 2, Plain: []Source{{Name: "a", URL: "http://a:1"}}})
		a, b := r.take(exact(500, 100)), r.take(exact(500, 100))
		if d := r.refused(exact(700, 100)); d.Limit != 600 {
			t.Errorf("more than the pool holds: %+v", d)
		}
		a.Release(Answered)
		b.Release(Answered)
	})
}

func TestQueueBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("a:1", 100)
		r := n.start(t, Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://a:1"}},
			Queue: QueueBounds{PerTenant: 2, Total: 3, Wait: 10 * time.Second}})
		full := r.take(exact(80, 10))
		ask := func(tenant string) Ask {
			a := exact(80, 10)
			a.Tenant = tenant
			return a
		}
		ctx := context.Background()
		first, second := r.later(ctx, ask("x")), r.later(ctx, ask("x"))
		r.fails(ask("x"), ErrTenantQueue)
		r.fails(ask("x"), ErrQueueFull) // it is one, too
		time.Sleep(5 * time.Second)
		third := r.later(ctx, ask("y"))
		if _, _, err := r.g.Acquire(ctx, ask("z")); !errors.Is(err, ErrQueueFull) || errors.Is(err, ErrTenantQueue) {
			t.Errorf("%v", err)
		}
		time.Sleep(5*time.Second + 1)
		synctest.Wait()
		if !first.got().done || !errors.Is(first.got().err, ErrQueueWait) || !errors.Is(second.got().err, ErrQueueWait) || third.got().done {
			t.Fatalf("%+v %+v %+v", first.got(), second.got(), third.got())
		}
		if r.g.Waiting() != 1 {
			t.Errorf("%d wait", r.g.Waiting())
		}
		// One that leaves makes place.
		left, leave := context.WithCancel(ctx)
		fourth := r.later(left, ask("x"))
		leave()
		synctest.Wait()
		if !fourth.got().done || !errors.Is(fourth.got().err, context.Canceled) || r.g.Waiting() != 1 {
			t.Fatalf("%+v, %d wait", fourth.got(), r.g.Waiting())
		}
		full.Release(Answered)
		synctest.Wait()
		if third.got().t == nil {
			t.Fatalf("%+v", third.got())
		}
		third.got().t.Release(Answered)
		if _, _, err := r.g.Acquire(left, ask("x")); !errors.Is(err, context.Canceled) {
			t.Errorf("one that has left already: %v", err)
		}
		r.idle()
	})
}

// TestGivenAndLeft is a request that is given a target at the moment in which its client
// leaves: the target comes back, or the request has it.
func TestGivenAndLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 1, 100, nil)
		left, given := 0, 0
		for i := range 100 {
			full := r.take(exact(80, 10))
			ctx, cancel := context.WithCancel(context.Background())
			waits := r.later(ctx, exact(80, 10))
			if i%2 == 0 {
				cancel()
			}
			full.Release(Answered)
			cancel()
			synctest.Wait()
			switch got := waits.got(); {
			case got.t != nil:
				got.t.Release(Answered)
				given++
			case errors.Is(got.err, context.Canceled):
				left++
			default:
				t.Fatalf("%+v", got)
			}
			r.idle()
		}
		if left == 0 || given == 0 {
			t.Errorf("%d left, %d given: not both happened", left, given)
		}
	})
}

// TestSecondAttemptFirst holds that a second attempt does not wait behind its tenant's
// own requests.
func TestSecondAttemptFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 1, 100, nil)
		first := r.take(exact(80, 10))
		full := exact(80, 10)
		waits := r.later(context.Background(), full)
		again := exact(80, 10)
		again.Not = first
		second := r.later(context.Background(), again)
		first.Release(Unreachable)
		synctest.Wait()
		if second.got().t == nil || waits.got().done {
			t.Fatalf("%+v, %+v", second.got(), waits.got())
		}
		second.got().t.Release(Answered)
		synctest.Wait()
		waits.got().t.Release(Answered)
		r.idle()
	})
}

// TestKeptRoomIsFreed is a request for which room is kept, and that leaves: what fits
// then is served, also of another model at the same engine.
func TestKeptRoomIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("a:1", 100)
		s := Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://a:1"}}}
		r := n.startAll(t, map[string]Spec{"m": s, "other": s})
		other := &rig{t: t, network: n, f: r.f, g: r.f.Model("other")}
		held := r.take(exact(50, 10))
		waits := other.later(context.Background(), exact(40, 10))
		ctx, leave := context.WithCancel(context.Background())
		a := exact(90, 10)
		a.Tenant = "large"
		large := r.later(ctx, a)
		small := exact(5, 5)
		for range 39 {
			r.take(small).Release(Answered)
		}
		if r.g.kept != nil {
			t.Fatal("room is kept too early")
		}
		r.take(small).Release(Answered)
		if r.g.kept == nil {
			t.Fatal("no room is kept")
		}
		held.Counted(30)
		synctest.Wait()
		if waits.got().done {
			t.Fatal("kept room was given away")
		}
		leave()
		synctest.Wait()
		if !errors.Is(large.got().err, context.Canceled) || waits.got().t == nil {
			t.Fatalf("%+v, %+v", large.got(), waits.got())
		}
		waits.got().t.Release(Answered)
		held.Release(Answered)
		r.idle()
	})
}

// TestFairness fills the queue by one tenant; another gets its turns all the same.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 1, 100, nil)
		r.run()
		full := r.take(exact(80, 10))
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 12 {
			tenant := "greedy"
			if i >= 10 {
				tenant = "modest"
			}
			wg.Go(func() {
				a := exact(80, 10)
				a.Tenant = tenant
				target, _, err := r.g.Acquire(context.Background(), a)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, tenant)
				mu.Unlock()
				time.Sleep(time.Second)
				target.Release(Answered)
			})
			synctest.Wait()
		}
		full.Release(Answered)
		wg.Wait()
		if order[1] != "modest" || order[3] != "modest" {
			t.Errorf("%v", order)
		}
		r.idle()
	})
}

// TestLargeIsServed floods an engine with small requests of others while one is waiting
// that needs nearly all of it: it is served within its time, and small ones go on.
func TestLargeIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _ := plains(t, n, 2, 600, nil)
		r.run()
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		served := make([]atomic.Int64, 24)
		for i := range served {
			wg.Go(func() {
				a := exact(80, 20)
				a.Tenant = fmt.Sprint("small", i)
				for ctx.Err() == nil {
					target, _, err := r.g.Acquire(ctx, a)
					if err != nil {
						return
					}
					time.Sleep(time.Duration(100+i) * time.Millisecond)
					target.Release(Answered)
					served[i].Add(1)
				}
			})
		}
		time.Sleep(time.Second)
		for range 5 {
			a := exact(560, 20)
			a.Tenant = "large"
			start := time.Now()
			target, d, err := r.g.Acquire(context.Background(), a)
			if err != nil || target == nil {
				t.Fatalf("%+v, %v", d, err)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("waited for %v", took)
			}
			before := served[0].Load() + served[1].Load() + served[2].Load()
			time.Sleep(time.Second)
			if served[0].Load()+served[1].Load()+served[2].Load() == before {
				t.Error("the small ones stood still")
			}
			target.Release(Answered)
		}
		stop()
		wg.Wait()
		r.idle()
	})
}

// TestRequestsComeAndGo lets many requests of random sizes come, leave early, run out of
// time and fail, at engines that come and go: no more than a pool holds is ever in
// flight, nobody waits for a wake-up that does not come, and at the end nothing is held.
func TestRequestsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		s := Spec{Dialect: upstream.SGLangPD, Queue: QueueBounds{PerTenant: 20, Total: 60, Wait: 2 * time.Second}}
		var engines []*engine
		for i := range 3 {
			engines = append(engines, n.worker(fmt.Sprintf("p%d:1", i), upstream.PrefillRole, 500), n.worker(fmt.Sprintf("d%d:1", i), upstream.DecodeRole, 700))
			s.Prefill = append(s.Prefill, Source{URL: fmt.Sprintf("http://p%d:1", i)})
			s.Decode = append(s.Decode, Source{URL: fmt.Sprintf("http://d%d:1", i)})
		}
		r := n.start(t, s)
		r.run()
		var wg sync.WaitGroup
		var mu sync.Mutex
		outcomes := map[string]int{}
		for i := range 100 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(i)))
				for range 60 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(3000))*time.Millisecond)
					a := exact(1+rnd.Int64N(400), 1+rnd.Int64N(200))
					a.Tenant, a.Session = fmt.Sprint(i%7), rnd.Uint64N(3)
					a.Parallel = 1 + rnd.IntN(3)
					target, _, err := r.g.Acquire(ctx, a)
					name := "served"
					if err != nil {
						name = err.Error()
						time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
					} else {
						if rnd.IntN(2) == 0 {
							target.Counted(a.Tokens.Low)
						}
						time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
						target.Prefilled()
						time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
						if rnd.IntN(50) == 0 {
							target.Release(Failed, target.Decode)
						} else {
							target.Release(Answered)
						}
					}
					cancel()
					mu.Lock()
					outcomes[name]++
					mu.Unlock()
				}
			})
		}
		watched := make(chan struct{})
		stop := make(chan struct{})
		go func() {
			defer close(watched)
			rnd := rand.New(rand.NewPCG(2, 2))
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				for _, s := range r.f.Status() {
					if pool, _ := s.Pool.Value(); s.Tokens > pool || s.Tokens < 0 {
						t.Errorf("%s: %d tokens in a pool of %d", s.Name, s.Tokens, pool)
					}
				}
				for _, e := range engines {
					e.do(func() { e.down = rnd.IntN(60) == 0 || e.down && rnd.IntN(20) > 0 })
				}
			}
		}()
		wg.Wait()
		close(stop)
		<-watched
		t.Logf("%v", outcomes)
		if outcomes["served"] < 500 || len(outcomes) < 3 {
			t.Errorf("too little happened: %v", outcomes)
		}
		r.idle()
	})
}

// TestWakeUps holds every way in which room comes about for one that waits.
func TestWakeUps(t *testing.T) {
	for name, wake := range map[string]func(r *rig, p, d *engine, held *Target){
		"release":       func(_ *rig, _, _ *engine, held *Target) { held.Release(Cancelled) },
		"counted":       func(_ *rig, _, _ *engine, held *Target) { held.Counted(10) },
		"a larger pool": func(r *rig, _, d *engine, _ *Target) { d.say("max_total_num_tokens", 1000); r.refresh() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				p, d := n.worker("a-p:1", upstream.PrefillRole, 1000), n.worker("a-d:1", upstream.DecodeRole, 672)
				r := n.start(t, Spec{Pairs: []PairSpec{pairOf("a")}})
				held := r.take(exact(400, 10))
				waits := r.later(context.Background(), exact(400, 10))
				if waits.got().done {
					t.Fatal("does not wait")
				}
				wake(r, p, d, held)
				synctest.Wait()
				if waits.got().t == nil {
					t.Fatalf("still waits: %+v", waits.got())
				}
				waits.got().t.Release(Answered)
				held.Release(Answered)
				r.idle()
			})
		})
	}
	t.Run("prefilled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.worker("a-p:1", upstream.PrefillRole, 500)
			n.worker("a-d:1", upstream.DecodeRole, 1000)
			r := n.start(t, Spec{Pairs: []PairSpec{pairOf("a")}})
			held := r.take(exact(400, 10))
			waits := r.later(context.Background(), exact(400, 10))
			if waits.got().done {
				t.Fatal("does not wait")
			}
			held.Prefilled()
			synctest.Wait()
			if waits.got().t == nil {
				t.Fatalf("still waits: %+v", waits.got())
			}
			waits.got().t.Release(Answered)
			held.Release(Answered)
			r.idle()
		})
	})
	t.Run("an engine more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			r, engines := plains(t, n, 2, 672, nil)
			engines[1].do(func() { engines[1].down = true })
			r.refresh()
			held := r.take(exact(400, 10))
			waits := r.later(context.Background(), exact(400, 10))
			engines[1].do(func() { engines[1].down = false })
			r.refresh()
			synctest.Wait()
			if waits.got().t == nil || waits.got().t.Name != "b" {
				t.Fatalf("%+v", waits.got())
			}
			waits.got().t.Release(Answered)
			held.Release(Answered)
			r.idle()
		})
	})
	// Two models on one engine share what it has.
	t.Run("the other model", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			n.plain("a:1", 672)
			s := Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://a:1"}}}
			r := n.startAll(t, map[string]Spec{"m": s, "other": s})
			held, _, err := r.f.Model("other").Acquire(context.Background(), exact(400, 10))
			if err != nil {
				t.Fatal(err)
			}
			waits := r.later(context.Background(), exact(400, 10))
			if waits.got().done {
				t.Fatalf("%+v", waits.got())
			}
			held.Release(Answered)
			synctest.Wait()
			if waits.got().t == nil {
				t.Fatalf("still waits: %+v", waits.got())
			}
			waits.got().t.Release(Answered)
			r.idle()
		})
	})
}
