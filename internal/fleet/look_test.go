package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/upstream"
)

func TestReadiness(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prefill bool
		spoil   func(e *engine)
		mend    func(e *engine)
		why     Why
	}{
		{"prefill in another role", true, func(e *engine) { e.say("disaggregation_mode", "decode") }, func(e *engine) { e.say("disaggregation_mode", "prefill") }, Unmatched},
		{"another model", false, func(e *engine) { e.say("served_model_name", "other") }, func(e *engine) { e.say("served_model_name", "m") }, Unmatched},
		{"another page size", true, func(e *engine) { e.say("page_size", 8) }, func(e *engine) { e.say("page_size", 16) }, Unmatched},
		{"another version", false, func(e *engine) { e.say("version", "2") }, func(e *engine) { e.say("version", "1") }, Unmatched},
		{"unknown pool", true, func(e *engine) { e.say("max_total_num_tokens", nil) }, func(e *engine) { e.say("max_total_num_tokens", 672) }, LimitsUnknown},
		{"nonsense", false, func(e *engine) { e.say("max_total_num_tokens", "many") }, func(e *engine) { e.say("max_total_num_tokens", 672) }, Quiet},
		{"says no", false, func(e *engine) { e.do(func() { e.pages["/server_info"] = page{503, map[string]any{}} }) }, nil, Declines},
		{"gone", true, func(e *engine) { e.do(func() { e.down = true }) }, func(e *engine) { e.do(func() { e.down = false }) }, Away},
		{"longer than the bound", true, func(e *engine) {
			e.do(func() { e.pages["/server_info"] = page{200, strings.Repeat(" ", 4<<20+1)} })
		}, nil, Quiet},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				r, p, d := one(t, n)
				if !r.g.Ready() {
					t.Fatal("a sound pair is not ready")
				}
				e, name := d, "a-d"
				if tc.prefill {
					e, name = p, "a-p"
				}
				tc.spoil(e)
				r.refresh()
				s := r.node(name)
				if r.g.Ready() || s.Ready || s.Why != tc.why {
					t.Errorf("ready %v, %v", r.g.Ready(), s.Why)
				}
				if tc.why == Unmatched && s.Misfit == "" {
					t.Error("no word about what does not fit")
				}
				if n, known := r.g.Advertised().Value(); tc.why != LimitsUnknown && (!known || n != 672) {
					t.Errorf("a pair that is away keeps its length: %d, %v", n, known)
				}
				r.fails(exact(10, 10), ErrNoneReady)
				if tc.mend == nil {
					return
				}
				tc.mend(e)
				r.refresh()
				if !r.g.Ready() || !r.node(name).Ready {
					t.Error("not ready again")
				}
				r.take(exact(10, 10)).Release(Answered)
				r.idle()
			})
		})
	}
}

// TestSlowIsNotDead is recipe S1's frozen engine and its slow one: looks that time out
// change nothing until the last answer is too old, and one answer brings it back.
func TestSlowIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, d := one(t, n)
		r.run()
		time.Sleep(3 * time.Second)
		d.do(func() { d.hangs = true })
		time.Sleep(4 * time.Second)
		if !r.g.Ready() {
			t.Fatal("a look that takes long makes it unready")
		}
		time.Sleep(5 * time.Second)
		if r.g.Ready() || r.node("a-d").Why != Stale {
			t.Errorf("frozen for 9 s, and %v", r.node("a-d").Why)
		}
		d.do(func() { d.hangs = false })
		time.Sleep(3 * time.Second)
		if !r.g.Ready() {
			t.Error("not back by one answer")
		}
	})
}

// TestLookOnDemand is an engine that is back before its next look is due.
func TestLookOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, p, d := one(t, n)
		d.do(func() { d.down = true })
		r.refresh()
		time.Sleep(minLookGap)
		r.fails(exact(10, 10), ErrNoneReady)
		d.do(func() { d.down = false })
		looks := p.looks()
		r.fails(exact(10, 10), ErrNoneReady)
		if p.looks() != looks {
			t.Error("looks that requests bring about are not kept apart")
		}
		time.Sleep(minLookGap)
		r.take(exact(10, 10)).Release(Answered)
		// A client that leaves during such a look does not make the engine look dead.
		time.Sleep(time.Minute)
		d.do(func() { d.hangs = true })
		ctx, cancel := context.WithCancel(context.Background())
		g := r.later(ctx, exact(10, 10))
		cancel()
		synctest.Wait()
		if g.got().done {
			t.Error("left while looking")
		}
		d.do(func() { d.hangs = false })
		time.Sleep(5 * time.Second)
		r.take(exact(10, 10)).Release(Answered)
	})
}

// TestFresh holds how long a look counts.
func TestFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, _, _ := one(t, n)
		time.Sleep(r.f.bounds.Fresh)
		if !r.g.Ready() {
			t.Error("a look holds for Fresh")
		}
		time.Sleep(time.Nanosecond)
		if r.g.Ready() || r.node("a-p").Why != Stale {
			t.Error("a look holds for ever")
		}
	})
}

// TestLimitFollows is recipe R7, row 6: the pool shrinks while it runs.
func TestLimitFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, p, _ := one(t, n)
		r.take(exact(520, 10)).Release(Answered)
		busy := r.take(exact(300, 10))
		waits := r.later(context.Background(), exact(520, 10))
		if waits.got().done {
			t.Fatalf("830 tokens in a pool of 672: %+v", waits.got())
		}
		p.say("max_total_num_tokens", 500)
		p.say("incarnation", "another life")
		r.refresh()
		synctest.Wait()
		if !waits.got().done || waits.got().t != nil || waits.got().d.Outcome != admit.RefusePrefill || waits.got().d.Limit != 500 {
			t.Errorf("one that waits and fits no more: %+v", waits.got())
		}
		if d := r.refused(exact(520, 10)); d.Outcome != admit.RefusePrefill || d.Limit != 500 || d.Prompt != 520 {
			t.Errorf("%+v", d)
		}
		if n, _ := r.g.Advertised().Value(); n != 500 {
			t.Errorf("advertised %d", n)
		}
		busy.Release(Answered)
		r.idle()
	})
}

// TestIdentity is who answers at an address.
func TestIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, p, _ := one(t, n)
		// A restart is another life, once.
		p.say("incarnation", "second")
		r.refresh()
		if !r.g.Ready() || !strings.Contains(fmt.Sprint(r.kinds()), "a-p reborn") {
			t.Errorf("a restart: %v, %v", r.node("a-p").Why, r.kinds())
		}
		// The first one back: there are two.
		p.say("incarnation", "life of a-p:1")
		r.refresh()
		if r.g.Ready() || r.node("a-p").Why != TwoFaced {
			t.Errorf("two engines behind one address: %v", r.node("a-p").Why)
		}
		for range steadyLooks - 1 {
			if r.g.Ready() {
				t.Fatal("ready too early")
			}
			r.refresh()
		}
		if !r.g.Ready() {
			t.Error("one engine for long, and not ready")
		}
		// After a long life a restart may well give back what was: it is not two.
		p.say("incarnation", "second")
		r.refresh()
		if !r.g.Ready() {
			t.Errorf("a restart after long: %v", r.node("a-p").Why)
		}
	})
}

// TestBalancer is an address behind which connections are spread over two engines.
func TestBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.plain("a:1", 672)
		second := n.plain("hidden:1", 672)
		n.others["a:1"] = []*engine{second}
		r := n.start(t, Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://a:1"}}})
		for range 30 {
			r.refresh()
		}
		if s := r.node("a"); s.Ready || s.Why != TwoFaced {
			t.Errorf("%v", s.Why)
		}
	})
}

// TestTwins are two addresses of one engine.
func TestTwins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 2, 672, nil)
		if !r.node("a").Ready || !r.node("b").Ready {
			t.Fatal("two engines are not ready")
		}
		engines[1].say("startup_time", map[string]any{"at": "life of a:1"})
		r.refresh()
		if s := r.node("b"); !r.node("a").Ready || s.Ready || s.Why != Twin {
			t.Errorf("the same engine twice: %v, %v", r.node("a").Why, s.Why)
		}
		if n := r.take(exact(10, 10)); n.Name != "a" {
			t.Errorf("went to %s", n.Name)
		} else {
			n.Release(Answered)
		}
		// A prefill and a decode engine that are one are none.
		p, d := n.worker("x-p:1", upstream.PrefillRole, 100), n.worker("x-d:1", upstream.DecodeRole, 100)
		x := n.start(t, Spec{Pairs: []PairSpec{pairOf("x")}})
		p.say("incarnation", "one")
		d.say("incarnation", "one")
		x.refresh()
		if x.g.Ready() {
			t.Error("both legs are one engine")
		}
	})
}

// TestHosted is a model without a pool to read.
func TestHosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e := n.hosted("api:443")
		r := n.start(t, Spec{Dialect: upstream.OpenAI, Window: 1000, Plain: []Source{{Name: "api", URL: "http://api:443/base", Key: "sk-secret"}}})
		if !r.g.Ready() {
			t.Fatalf("%v", r.node("api").Why)
		}
		if e.bearer("/base/v1/models") != "Bearer sk-secret" {
			t.Errorf("asked with %q", e.bearer("/base/v1/models"))
		}
		var held []*Target
		for range 50 { // there is no pool that could be full
			held = append(held, r.take(exact(900, 100)))
		}
		if d := r.refused(exact(901, 100)); d.Outcome != admit.RefuseWindow || d.Limit != 1000 {
			t.Errorf("%+v", d)
		}
		if _, known := r.node("api").Pool.Value(); known || held[0].Limits.Basis != admit.WindowAlone {
			t.Error("shown as if its pool were known")
		}
		for _, h := range held {
			h.Release(Answered)
		}
		r.idle()
		// It is not asked every two seconds.
		looks := e.times("/base/v1/models")
		r.run()
		time.Sleep(5 * time.Minute)
		if asked := e.times("/base/v1/models") - looks; asked < 8 || asked > 12 || !r.g.Ready() {
			t.Errorf("asked %d times in 5 minutes, ready %v", asked, r.g.Ready())
		}
		e.do(func() { e.down = true })
		time.Sleep(time.Minute)
		if r.g.Ready() || r.node("api").Why != Away {
			t.Errorf("gone, and %v", r.node("api").Why)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.hosted("api:443")
		r := n.start(t, Spec{Dialect: upstream.OpenAI, Plain: []Source{{URL: "http://api:443"}}})
		if r.g.Ready() || r.f.Status()[0].Why != LimitsUnknown {
			t.Errorf("without a window: %v", r.f.Status()[0].Why)
		}
	})
}

// TestExtraLooks holds that what an engine need not answer is asked rarely, and again at
// once when it has become another.
func TestExtraLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 1, 672, nil)
		e := engines[0]
		for range extraEvery {
			r.refresh()
		}
		if e.times("/v1/models") != extraEvery+1 || e.times("/workers") != 1 {
			t.Errorf("asked %d and %d times", e.times("/v1/models"), e.times("/workers"))
		}
		e.say("startup_time", map[string]any{"at": "later"})
		r.refresh()
		if e.times("/workers") != 2 {
			t.Errorf("asked %d and %d times", e.times("/v1/models"), e.times("/workers"))
		}
		for range extraEvery + 1 {
			r.refresh()
		}
		if e.times("/workers") != 3 {
			t.Errorf("asked %d and %d times", e.times("/v1/models"), e.times("/workers"))
		}
	})
}

// vllm is an engine of vLLM that tells nothing which it drew at its start.
func (n *network) vllm(address string) *engine {
	e := n.engine()
	e.pages["/v1/models"] = page{200, map[string]any{"data": []any{map[string]any{"id": "m", "max_model_len": 1024}}}}
	e.pages["/metrics"] = page{200, `vllm:cache_config_info{block_size="16",num_gpu_blocks="64",engine="0"} 1.0` + "\n"}
	e.pages["/version"] = page{200, map[string]any{"version": "0.32.0"}}
	return n.put(address, e)
}

// TestOptionalLookFails: what an engine need not answer may fail and changes nothing; what
// it answers otherwise does.
func TestOptionalLookFails(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(e *engine)
		ready bool
	}{
		"an error":        {func(e *engine) { e.pages["/version"] = page{503, "no"} }, true},
		"too many":        {func(e *engine) { e.pages["/version"] = page{429, "no"} }, true},
		"no answer":       {func(e *engine) { e.stuck = "/version" }, true},
		"longer":          {func(e *engine) { e.pages["/version"] = page{200, strings.Repeat(" ", 4<<20+1)} }, true},
		"another version": {func(e *engine) { e.pages["/version"] = page{200, map[string]any{"version": "0.33.0"}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				n.vllm("d:1")
				e := n.vllm("p:1")
				good := e.pages["/version"]
				r := n.start(t, Spec{Dialect: upstream.VLLMNixl, Lease: time.Minute,
					Prefill: []Source{{Name: "p", URL: "http://p:1"}}, Decode: []Source{{Name: "d", URL: "http://d:1"}}})
				if !r.g.Ready() {
					t.Fatalf("%v %v", r.node("p").Why, r.node("p").Misfit)
				}
				r.run()
				e.do(func() { tc.spoil(e) })
				changed := false
				for range 3 * extraEvery {
					time.Sleep(r.f.bounds.Refresh)
					changed = changed || !r.g.Ready()
				}
				asked := e.times("/version")
				e.do(func() { e.pages["/version"], e.stuck = good, "" })
				time.Sleep(3 * r.f.bounds.Refresh)
				s := r.node("p")
				if changed == tc.ready || tc.ready && (!r.g.Ready() || s.Info.Version != "0.32.0") {
					t.Errorf("ready all the time: %t; at the end %t, %v %v, version %q", !changed, r.g.Ready(), s.Why, s.Misfit, s.Info.Version)
				}
				if tc.ready && (asked < extraEvery || strings.Contains(fmt.Sprint(r.kinds()), "reborn")) {
					t.Errorf("asked %d times, and %v", asked, r.kinds())
				}
			})
		})
	}
}

// TestLateVersion: an engine whose first answers lack what it need not answer is not kept
// from its partner, and is asked again at once.
func TestLateVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.vllm("d:1")
		e := n.vllm("p:1")
		good := e.pages["/version"]
		e.pages["/version"] = page{503, "no"}
		r := n.start(t, Spec{Dialect: upstream.VLLMNixl, Lease: time.Minute,
			Prefill: []Source{{Name: "p", URL: "http://p:1"}}, Decode: []Source{{Name: "d", URL: "http://d:1"}}})
		if !r.g.Ready() {
			t.Errorf("%v %v", r.node("p").Why, r.node("p").Misfit)
		}
		e.do(func() { e.pages["/version"] = good })
		r.refresh()
		if s := r.node("p"); !r.g.Ready() || s.Info.Version != "0.32.0" {
			t.Errorf("%v %v, version %q", s.Why, s.Misfit, s.Info.Version)
		}
	})
}

// TestHostedFlaps: the list of models of a hosted API is no face: it may change and fail.
func TestHostedFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e := n.hosted("api:443")
		list := func(names ...string) page {
			var data []any
			for _, name := range names {
				data = append(data, map[string]any{"id": name})
			}
			return page{200, map[string]any{"data": data}}
		}
		e.pages["/v1/models"] = list("m", "a")
		r := n.start(t, Spec{Dialect: upstream.OpenAI, Window: 1000, Plain: []Source{{Name: "api", URL: "http://api:443"}}})
		for i, p := range []page{list("m"), {429, "slow down"}, list("m", "a"), {503, "no"}, list("m"), list("m", "a")} {
			e.do(func() { e.pages["/v1/models"] = p })
			time.Sleep(rarely * r.f.bounds.Refresh)
			r.refresh()
			if s := r.node("api"); !r.g.Ready() || len(s.Info.Models) == 0 {
				t.Errorf("%d: %v %v, models %v", i, s.Why, s.Misfit, s.Info.Models)
			}
		}
		e.do(func() { e.pages["/v1/models"] = list("a") })
		time.Sleep(rarely * r.f.bounds.Refresh)
		if r.refresh(); r.g.Ready() || r.node("api").Why != Unmatched {
			t.Errorf("without the model: %v", r.node("api").Why)
		}
	})
}

// TestOldNames holds that a look which stands in place of another is asked when that is
// not answered.
func TestOldNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		e := n.plain("a:1", 672)
		e.pages["/get_server_info"] = e.pages["/server_info"]
		delete(e.pages, "/server_info")
		r := n.start(t, Spec{Dialect: upstream.SGLang, Plain: []Source{{Name: "a", URL: "http://a:1"}}})
		if s := r.node("a"); !s.Ready {
			t.Errorf("%v", s.Why)
		}
	})
}

// TestBootstrap is Mooncake's second address.
func TestBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		metrics := page{200, `vllm:cache_config_info{block_size="16",num_gpu_blocks="64",engine="0"} 1.0` + "\n"}
		for _, at := range []string{"p:1", "d:1"} {
			e := n.worker(at, "", 0)
			delete(e.pages, "/server_info")
			e.pages["/metrics"] = metrics
			e.pages["/version"] = page{200, map[string]any{"version": "0.32.0"}}
		}
		boot := n.hosted("p:9000")
		boot.pages["/query"] = page{200, map[string]any{"0": map[string]any{"engine_id": "engine-7"}}}
		r := n.start(t, Spec{Dialect: upstream.VLLMMooncake,
			Prefill: []Source{{Name: "p", URL: "http://p:1", Key: "sk-secret", BootstrapPort: 9000}}, Decode: []Source{{Name: "d", URL: "http://d:1"}}})
		if !r.g.Ready() {
			t.Fatalf("%v %v, %v %v", r.node("p").Why, r.node("p").Misfit, r.node("d").Why, r.node("d").Misfit)
		}
		target := r.take(exact(100, 10))
		defer target.Release(Answered)
		if host, port := target.Prefill.Bootstrap(); host != "p" || port != 9000 || target.Prefill.EngineID() != "engine-7" {
			t.Errorf("%s:%d %q", host, port, target.Prefill.EngineID())
		}
		if boot.bearer("/query") != "" {
			t.Error("the engine's key went to its bootstrap address")
		}
		if limit, _ := target.Limits.Decode.Value(); limit != 63*16 {
			t.Errorf("a pool of %d", limit)
		}
	})
}

// TestRun holds that Run looks at its interval, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, p, _ := one(t, n)
		looks := p.looks()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { r.f.Run(ctx); close(done) }()
		time.Sleep(3*r.f.bounds.Refresh + time.Millisecond)
		if got := p.looks() - looks; got != 4 {
			t.Errorf("looked %d times", got)
		}
		cancel()
		<-done
	})
}

// TestDeadKeepNobodyWaiting: engines that take connections and say nothing, as many as
// there may be, do not make those behind them look old.
func TestDeadKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		dead := n.engine()
		dead.hangs = true
		s := Spec{Dialect: upstream.SGLang, SlowStart: -1}
		for i := range 255 {
			at := fmt.Sprintf("dead%d:1", i)
			n.put(at, dead)
			s.Plain = append(s.Plain, Source{Name: at, URL: "http://" + at})
		}
		n.plain("a:1", 672)
		s.Plain = append(s.Plain, Source{Name: "a", URL: "http://a:1"})
		r := n.start(t, s)
		r.run()
		for at := range 30 {
			if !r.g.Ready() || r.node("a").Why != NodeReady {
				t.Fatalf("after %d s: %v", at, r.node("a").Why)
			}
			time.Sleep(time.Second)
		}
		if why := r.node("dead0:1").Why; why != Slow {
			t.Errorf("control: the dead are %v", why)
		}
	})
}

// TestCounter: whoever is asked to count a prompt serves the model.
func TestCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r, engines := plains(t, n, 3, 672, func(i int, s *Source) {
			if i == 2 {
				s.State = Private
			}
		})
		if c := r.g.Counter(); c == nil || c.Name() != "a" {
			t.Fatalf("%v", c)
		}
		for i, want := range []string{"b", ""} {
			e := engines[i]
			e.say("served_model_name", "other")
			e.do(func() {
				e.pages["/v1/models"] = page{200, map[string]any{"data": []any{map[string]any{"id": "other"}}}}
			})
			r.refresh()
			got := ""
			if c := r.g.Counter(); c != nil {
				got = c.Name()
			}
			if got != want {
				t.Errorf("%q is asked, want %q", got, want)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		r := cross(t, n, 1, 1, nil)
		if c := r.g.Counter(); c == nil || c.Name() != "p0" {
			t.Errorf("of a pair %v is asked", c)
		}
	})
}
