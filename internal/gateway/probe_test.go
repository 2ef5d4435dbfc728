package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// probing is a rig that asks a known question every minute.
func probing(t *testing.T, d upstream.Dialect) *rig {
	t.Helper()
	return rigOf(t, d, func(c *Config) {
		c.Models[0].Probe = Probe{Prompt: "What is the answer?", Want: "answer", Every: time.Minute}
	})
}

// probe asks the target that is due.
func (r *rig) probe() (fleet.Health, RequestEvent) {
	r.t.Helper()
	r.clock.advance(time.Minute)
	r.g.Refresh(r.t.Context())
	m := r.g.models["recall"]
	target := m.group.Probe(time.Minute)
	if target == nil {
		r.t.Fatal("no probe is due")
	}
	h := r.g.ask(r.t.Context(), m, target)
	r.g.fleet.SetHealth(target, h)
	r.g.tasks.Wait() // the engine is asked again only when it has ended this one
	return h, r.event()
}

// TestKnownAnswer is recipe S1: an engine that is frozen or answers junk is not ready
// after three misses, one that is slow and right is, and one success brings it back (G-9).
func TestKnownAnswer(t *testing.T) {
	for _, d := range []upstream.Dialect{upstream.VLLM, upstream.SGLangPD, upstream.LlamaCPP, upstream.VLLMNixl} {
		honest := honestDecode
		if d.Traits().Counting == upstream.AtEnd {
			honest = lateDecode
		}
		junk := edited(honest, "wer", "junk")
		for name, tc := range map[string]struct {
			do   script
			want fleet.Health
		}{
			"junk":      {junk, fleet.Wrong},
			"declines":  {refusing(500, ""), fleet.Silent},
			"hangs up":  {reset, fleet.Silent},
			"foreign":   {func(w http.ResponseWriter, req *http.Request, c call) { leakingAs(9, w, req, c) }, fleet.Wrong},
			"empty 200": {refusing(200, ""), fleet.Wrong},
		} {
			if name == "foreign" && d.Traits().Legs == upstream.One {
				continue // there is nothing that contradicts it
			}
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				r := probing(t, d)
				r.decode.set(honest)
				if h, e := r.probe(); h != fleet.Right || e.Tenant != probeTenant || !e.Probe || e.Prompt != admit.Known(promptTokens) {
					t.Fatalf("%v, event %+v", h, e)
				}
				r.decode.set(tc.do)
				for i := range 3 {
					if !r.ready() {
						t.Errorf("not ready after %d misses", i)
					}
					if h, _ := r.probe(); h != tc.want {
						t.Errorf("%v, want %v", h, tc.want)
					}
				}
				if r.ready() {
					t.Error("ready after three misses")
				}
				r.refused(r.chat(""), 503, "no_pair_ready")
				r.decode.set(honest)
				if h, _ := r.probe(); h != fleet.Right || !r.ready() {
					t.Errorf("%v, ready %v after a success", h, r.ready())
				}
				r.clock.advance(r.lease())
			})
		}
	}
	t.Run("slow and right", func(t *testing.T) {
		r := probing(t, upstream.VLLM)
		r.g.bounds.FirstByte = time.Hour
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			for _, part := range decodeChunks(c.path, c.id) {
				r.clock.advance(50 * time.Second)
				events(w, part)
			}
			events(w, "[DONE]")
		})
		r.g.bounds.Idle = 10 * time.Minute
		if h, e := r.probe(); h != fleet.Right || e.Total < 2*time.Minute {
			t.Errorf("%v, event %+v", h, e)
		}
	})
	t.Run("frozen", func(t *testing.T) {
		r := probing(t, upstream.VLLM)
		began := make(chan struct{}, 1)
		r.decode.set(hanging(began))
		go func() {
			<-began
			r.clock.advance(r.g.bounds.FirstByte)
		}()
		if h, e := r.probe(); h != fleet.Silent || e.Verdict == Served {
			t.Errorf("%v, event %+v", h, e)
		}
	})
}

// TestProbesRun: they are asked while the gateway runs, each target once in its time, and
// end with it.
func TestProbesRun(t *testing.T) {
	r := probing(t, upstream.VLLM)
	f := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { r.g.Run(ctx); close(f) }()
	if e := r.event(); !e.Probe || e.Verdict != Served || e.Completion != admit.Known(3) {
		t.Errorf("event: %+v", e)
	}
	select {
	case e := <-r.events:
		t.Errorf("asked again at once: %+v", e)
	default:
	}
	cancel()
	<-f
	for _, c := range r.decode.got() {
		if !strings.Contains(string(c.raw), "What is the answer?") || c.members(t)["cache_salt"] == nil {
			t.Errorf("%s", c.raw)
		}
	}
}

// passing lets time go by until a probe ends, for so long at most.
func (r *rig) passing(most time.Duration) (RequestEvent, bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range int(most / time.Second) {
		r.clock.advance(time.Second)
		select {
		case e := <-r.events:
			return e, true
		case <-tick.C:
		}
	}
	return RequestEvent{}, false
}

// TestProbesBesideHung: an engine that hangs is asked one question at a time, has missed
// it when the next one is due, and keeps no other from being asked.
func TestProbesBesideHung(t *testing.T) {
	r := newBare(t, upstream.VLLM)
	hung := newScripted(r, "plain")
	began := make(chan struct{}, 16)
	hung.set(hanging(began))
	r.start(func(c *Config) {
		c.Models[0].Probe = Probe{Prompt: "What is the answer?", Want: "answer", Every: 10 * time.Second}
		c.Models[0].Engines.Plain = append(c.Models[0].Engines.Plain, r.source(hung, "hung"))
		c.Bounds.Fresh = time.Hour
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.g.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	<-began
	start := r.clock.Now()
	for i := range 3 {
		if e := r.event(); e.Target != "plain-0" || e.Verdict != Served {
			t.Errorf("%+v", e)
		}
		if n := len(hung.got()); n != 1 {
			t.Errorf("the one that hangs has %d questions", n)
		}
		if i == 2 {
			break
		}
		e, ok := r.passing(15 * time.Second)
		if !ok {
			t.Fatal("nobody else is asked")
		}
		r.events <- e
	}
	for {
		e, ok := r.passing(time.Minute)
		if !ok {
			t.Fatal("what hangs has missed nothing in its time")
		}
		if e.Target == "hung" {
			if took := r.clock.Now().Sub(start); e.Verdict == Served || took > r.g.bounds.Idle+10*time.Second {
				t.Errorf("after %v: %+v", took, e)
			}
			break
		}
	}
}

// TestProbeIsBounded: an engine that answers a question without end is wrong, and what it
// says is not kept.
func TestProbeIsBounded(t *testing.T) {
	r := probing(t, upstream.VLLM)
	r.decode.set(edited(honestDecode, "wer", "wer"+strings.Repeat("x", 256<<10)))
	if h, _ := r.probe(); h != fleet.Wrong {
		t.Errorf("%v", h)
	}
	r.decode.set(edited(honestDecode, "wer", "wer"+strings.Repeat("x", 64<<10)))
	if h, _ := r.probe(); h != fleet.Right {
		t.Errorf("control: %v", h)
	}
}

// TestProbesEndWithTheirConfiguration: what is asked when a later one takes over is given
// up, and nothing else is asked.
func TestProbesEndWithTheirConfiguration(t *testing.T) {
	r := probing(t, upstream.VLLM)
	began := make(chan struct{}, 16)
	r.decode.set(hanging(began))
	ended := make(chan struct{})
	go func() { r.g.probe(t.Context(), r.g.models["recall"]); close(ended) }()
	<-began
	next, err := New(r.config())
	if err != nil {
		t.Fatal(err)
	}
	next.fleet.Follow(r.g.fleet)
	next.fleet.Lead()
	<-ended
	if e := r.event(); e.Verdict == Served {
		t.Errorf("%+v", e)
	}
	next.fleet.Leave()
}
