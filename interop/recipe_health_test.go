package main

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/fleet"
	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/record"
)

// knowing gives the model a question with a known answer.
func knowing(c *gw.Config) {
	c.Models[0].Probe = gw.Probe{Prompt: "What is the code? It is KNOWN-4711.", Want: "KNOWN-4711", Every: time.Minute}
	c.Bounds.FirstByte = firstByte
}

// probed lets one probe happen and returns what became of it. The clock moves until an
// engine is asked, slowly while one is about to be, and once more past the time that an
// answer has, if there is none.
func (s *stage) probed() gw.RequestEvent {
	s.t.Helper()
	asked, from := s.asked(), s.clock.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; s.asked() == asked; n++ {
		if n == 10000 {
			s.t.Fatal("nobody is asked")
		}
		if n%50 == 0 || !s.busy() {
			s.clock.advance(time.Second)
		}
		<-tick.C
	}
	for range 100 {
		select {
		case e := <-s.probes:
			if e.Start.After(from) {
				return e
			}
		case <-tick.C:
		}
	}
	s.clock.advance(firstByte)
	for {
		if e := s.take(s.probes); e.Start.After(from) {
			return e
		}
	}
}

// busy says whether something is under way at an engine.
func (s *stage) busy() bool {
	return slices.ContainsFunc(s.front.Status().Nodes, func(n fleet.NodeStatus) bool { return n.Requests > 0 })
}

// asked is how many completions have come to all nodes.
func (s *stage) asked() int {
	n := 0
	for _, one := range s.nodes {
		one.mu.Lock()
		n += len(one.conns)
		one.mu.Unlock()
	}
	return n
}

// firstByte is how long an answer may take to begin.
const firstByte = 20 * time.Second

// serves says whether some place takes requests, by what the gateway tells of itself.
func (s *stage) serves() bool {
	s.t.Helper()
	resp, err := s.srv.Client().Get(s.srv.URL + "/readyz")
	if err != nil {
		s.t.Fatal(err)
	}
	s.silent("/readyz", readAll(resp))
	resp.Body.Close()
	if ready := s.front.Status().Ready; ready != (resp.StatusCode == http.StatusOK) {
		s.t.Errorf("/readyz says %d, the status %t", resp.StatusCode, ready)
	}
	return resp.StatusCode == http.StatusOK
}

// illness is one row of recipe S1.
type illness struct {
	name string
	// fall makes the twins ill, rise well again. A miss is a probe that fails.
	fall, rise func(s *stage)
	verdict    record.Verdict // of a probe meanwhile
	pairsOnly  bool
}

func illnesses() []illness {
	arm := func(fault string, at func(s *stage) *node) func(s *stage) {
		return func(s *stage) {
			s.t.Helper()
			if err := at(s).Arm(fault, -1); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	decode := func(s *stage) *node { return s.decode }
	prefill := func(s *stage) *node { return s.prefill }
	well := func(s *stage) {
		for _, n := range s.nodes {
			n.Disarm()
		}
	}
	return []illness{
		{"a frozen", arm("frozen", decode), well, record.Failed, false},
		{"b junk", arm("junk", decode), well, record.Served, false},
		{"d the two do not meet", arm("unmet", prefill), well, record.Failed, true},
	}
}

// TestHealth is recipe S1, rows a, b and d: an engine that answers every look and no
// known question takes nothing after three misses, and not before; one right answer
// brings it back.
func TestHealth(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		for _, ill := range illnesses() {
			if ill.pairsOnly && places(k) == 1 {
				continue
			}
			t.Run(k.dialect.String()+"/"+ill.name, func(t *testing.T) {
				t.Parallel()
				s := set(t, k, plan{change: knowing})
				if e := s.probed(); e.Verdict != gw.Served || !s.serves() {
					t.Fatalf("control: a probe gets %s", e.Verdict)
				}
				ill.fall(s)
				for miss := 1; miss <= 3; miss++ {
					e := s.probed()
					if agreeing := ill.verdict == record.Served && places(k) == 2; e.Verdict != ill.verdict && !(agreeing && e.Verdict == record.Void) {
						t.Errorf("miss %d: a probe gets %s", miss, e.Verdict)
					}
					if miss < 3 && !s.serves() {
						t.Errorf("it takes nothing after %d misses", miss)
					}
				}
				until(t, func() bool { return !s.front.Status().Ready })
				if s.serves() {
					t.Error("it is said to be ready")
				}
				before := s.counts(s.decode)
				if a := s.chat(""); a.status != http.StatusServiceUnavailable || a.code() != "no_pair_ready" || s.counts(s.decode) != before {
					t.Errorf("%d %s", a.status, a.body)
				}
				s.event()
				ill.rise(s)
				if e := s.probed(); e.Verdict != gw.Served {
					t.Errorf("well again, a probe gets %s", e.Verdict)
				}
				until(t, func() bool { return s.front.Status().Ready })
				if !s.serves() {
					t.Error("one right answer does not bring it back")
				}
				s.works()
			})
		}
	}
}

// TestSlowIsWell is row c: whoever is right is well, however slow.
func TestSlowIsWell(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{change: func(c *gw.Config) {
				knowing(c)
				c.Bounds.FirstByte = 0 // the default
			}})
			s.decode.become(func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
				serve(&slow{w, s.clock}, r)
			})
			for range 4 {
				e := s.probed()
				if e.Verdict != gw.Served || e.Total < 10*time.Second {
					t.Errorf("a probe gets %s after %v", e.Verdict, e.Total)
				}
			}
			for _, n := range s.front.Status().Nodes {
				if n.Misses != 0 || n.Why == fleet.Unwell {
					t.Errorf("%s has %d misses and is %s", n.Name, n.Misses, n.Why)
				}
			}
			s.decode.become(nil)
			if !s.serves() {
				t.Error("it takes nothing")
			}
		})
	}
}

// slow makes two seconds pass before each event of a stream.
type slow struct {
	http.ResponseWriter
	clock *handClock
}

func (s *slow) Write(b []byte) (int, error) {
	s.clock.advance(2 * time.Second)
	return s.ResponseWriter.Write(b)
}

// Unwrap is for whoever flushes.
func (s *slow) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestTwoFaces: two engines behind one address are found, and take nothing.
func TestTwoFaces(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			s.decode.arm(t, "two-faces")
			s.look(func() bool { return !s.front.Status().Ready })
			before := s.counts(s.decode)
			if a := s.chat(""); a.status != http.StatusServiceUnavailable || s.counts(s.decode) != before {
				t.Errorf("%d %s", a.status, a.body)
			}
			s.event()
		})
	}
}
