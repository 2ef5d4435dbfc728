package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// preferFirst makes the second place so light that the first is always tried before it.
func preferFirst(c *gw.Config) {
	spec := &c.Models[0].Engines
	for i := range spec.Pairs {
		if i > 0 {
			spec.Pairs[i].Prefill.Weight, spec.Pairs[i].Decode.Weight = 1e-9, 1e-9
		}
	}
	for i := range spec.Plain {
		if i > 0 {
			spec.Plain[i].Weight = 1e-9
		}
	}
}

// TestNoConnection is recipe R3, row 1: what never reached an engine is tried at another
// one, as a new attempt.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{twins: 2, cold: true, change: preferFirst})
			until(t, func() bool { return ready(s) == len(s.nodes) })
			s.works()
			first, second := s.decode, s.nodes[len(s.nodes)-1]
			goes := s.decode
			if s.prefill != nil {
				goes = s.prefill
			}
			goes.srv.Listener.Close()
			a := s.chat("")
			e := s.event()
			if a.status != http.StatusOK || a.text() != said(0) || e.Attempts != 2 || !strings.HasSuffix(e.Target, "-1") {
				t.Fatalf("%d %s, event %+v", a.status, a.body, e)
			}
			legs := second.got(t)
			if len(legs) != 1 {
				t.Fatalf("the second place got %d completions", len(legs))
			}
			for _, old := range first.got(t) {
				if old.rid() == legs[0].rid() && old.rid() != "" || old.meeting() == legs[0].meeting() {
					t.Error("the second attempt has the identity of the first")
				}
			}
			if s.prefill != nil && k.dialect != upstream.VLLMNixl {
				if p := s.nodes[2].got(t); len(p) != 1 || p[0].meeting() != legs[0].meeting() || p[0].meeting() == "" {
					t.Error("the legs of the second attempt do not meet in one place")
				}
			}
		})
	}
}

// ready is how many engines take requests.
func ready(s *stage) int {
	n := 0
	for _, status := range s.front.Status().Nodes {
		if status.Ready {
			n++
		}
	}
	return n
}

// TestReadThenReset is rows 2 and 5: a body that was read is not sent again, neither by
// the gateway nor by what carries it on a warm connection, whatever the client says.
func TestReadThenReset(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{twins: 2, change: preferFirst})
			until(t, func() bool { return ready(s) == len(s.nodes) })
			for _, header := range []string{"", "Idempotency-Key", "X-Idempotency-Key"} {
				s.works() // the connections are warm
				at := s.decode
				if s.prefill != nil {
					at = s.prefill
				}
				at.arm(t, "reset")
				r := s.request(0, chatPath, body(0, chatPath, ""))
				if header != "" {
					r.Header.Set(header, "once")
				}
				if a := s.send(r); a.status != http.StatusBadGateway || a.code() != "upstream_unreachable" || !strings.Contains(a.body, "again") {
					t.Errorf("%s: %d %s", header, a.status, a.body)
				}
				if e := s.event(); e.Verdict != record.Failed || e.Attempts != 1 {
					t.Errorf("%s: %d attempts, verdict %s", header, e.Attempts, e.Verdict)
				}
				if n := s.counts(at); n != 1 {
					t.Errorf("%s: the engine was sent %d completions", header, n)
				}
				for _, n := range s.nodes {
					for _, one := range n.got(t) {
						if one.Header.Get("Idempotency-Key")+one.Header.Get("X-Idempotency-Key") != "" {
							t.Errorf("%s arrived at %s", header, n.name)
						}
					}
					n.forget()
				}
			}
		})
	}
}

// TestCutAfterWords is row 3: what came stays, once, and no second answer follows.
func TestCutAfterWords(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{twins: 2, change: preferFirst})
			until(t, func() bool { return ready(s) == len(s.nodes) })
			s.works()
			s.decode.arm(t, "cut")
			a := s.chat(`,"stream":true`)
			if a.text() != begun || a.err == nil || a.done() {
				t.Errorf("%v: %s", a.err, a.body)
			}
			if e := s.event(); e.Verdict != record.Broken || e.Attempts != 1 {
				t.Errorf("%d attempts, verdict %s", e.Attempts, e.Verdict)
			}
			if s.counts(s.decode) != 1 || s.counts(s.nodes[len(s.nodes)-1]) != 0 {
				t.Error("it was dispatched again")
			}
		})
	}
}

// TestIDsAreOurs is row 4: whatever a client calls its request, in a header or in the
// field that the API has for it, no engine hears of it, and no two requests share an id.
func TestIDsAreOurs(t *testing.T) {
	t.Parallel()
	const each = 30
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			public, internal := map[string]bool{}, map[string]bool{}
			for _, id := range []string{"", "None", "null", "shared-by-all", strings.Repeat("long", 8<<10)} {
				var all sync.WaitGroup
				for i := range each {
					r := s.request(0, chatPath, body(0, chatPath, `,"user":`+strconv.Quote(id)))
					switch {
					case id == "" && i%2 == 0: // missing
					default:
						r.Header["X-Request-Id"] = []string{id}
					}
					all.Go(func() {
						if a := s.send(r); a.status != http.StatusOK || len(a.header.Get("X-Client-Request-Id")) > 128 {
							t.Errorf("%.20q: %d", id, a.status)
						}
					})
				}
				all.Wait()
				for range each {
					e := s.event()
					if public[e.ID] || internal[e.RID] {
						t.Error("an id came twice")
					}
					public[e.ID], internal[e.RID] = true, true
				}
				for _, n := range s.nodes {
					arrived := map[string]bool{}
					for _, one := range n.got(t) {
						mine := one.rid() + one.Header.Get("X-Client-Request-Id")
						switch {
						case k.dialect == upstream.LlamaCPP: // it is told none
						case arrived[mine] || !strings.HasPrefix(mine, "bh-"):
							t.Errorf("%s got the id %q", n.name, mine)
						}
						arrived[mine] = true
						if whole := fmt.Sprint(one.Header) + string(one.Body); id != "" && id != "null" && strings.Contains(whole, id[:4]) {
							t.Errorf("%.20q arrived at %s", id, n.name)
						}
					}
					if got := s.counts(n); got != each {
						t.Errorf("%s got %d completions of %d", n.name, got, each)
					}
					n.forget()
				}
			}
			if len(public) != 5*each || len(internal) != 5*each {
				t.Errorf("%d public ids and %d internal ones for %d requests", len(public), len(internal), 5*each)
			}
		})
	}
}

// TestSequencesApart is row 6: three prompts, and n = 3, are three hand-offs.
func TestSequencesApart(t *testing.T) {
	t.Parallel()
	for _, k := range pairs() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			for name, body := range map[string]string{
				"prompts": `{"model":"m","prompt":["It is one-1111.","It is two-2222.","It is six-6666."]}`,
				"n":       `{"model":"m","prompt":"It is one-1111.","n":3,"temperature":0.5}`,
			} {
				a := s.send(s.request(0, completionPath, body))
				if e := s.event(); a.status != http.StatusOK || e.Verdict != gw.Served || e.Attempts != 3 {
					t.Fatalf("%s: %d %s", name, a.status, a.body)
				}
				if name == "prompts" {
					for i, c := range a.parts()[0].Choices {
						if want := []string{"one-1111", "two-2222", "six-6666"}[i]; !strings.Contains(c.Text, want) {
							t.Errorf("prompt %d is answered with %q", i, c.Text)
						}
					}
				}
				for _, n := range s.nodes {
					rooms, ids := map[string]bool{}, map[string]bool{}
					for _, one := range n.got(t) {
						rooms[one.meeting()], ids[one.rid()] = true, true
						if strings.HasPrefix(strings.TrimSpace(string(one.fields["prompt"])), "[") {
							t.Errorf("%s: %s got a list", name, n.name)
						}
					}
					if handedOut := n == s.prefill && k.dialect == upstream.VLLMNixl; len(ids) != 3 || len(rooms) != 3 && !handedOut {
						t.Errorf("%s: %s saw %d ids and %d meeting places", name, n.name, len(ids), len(rooms))
					}
					n.forget()
				}
			}
		})
	}
}

// TestLateAnswer is row 7: what the first attempt's decode says when the second is under
// way reaches nobody.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	for _, k := range pairs() {
		if k.dialect.Traits().Legs != upstream.Together {
			continue // decode is not called before prefill has answered
		}
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{twins: 2, cold: true, change: preferFirst})
			until(t, func() bool { return ready(s) == len(s.nodes) })
			s.works()
			called, later, said2 := make(chan struct{}), make(chan struct{}), make(chan struct{})
			s.decode.become(func(w http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
				close(called)
				<-later
				defer close(said2)
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"id":"x","choices":[{"index":0,"message":{"content":%q},"finish_reason":"stop"}]}`, secretB)
			})
			// Prefill goes once decode is called: a listener that takes connections no more.
			s.prefill.srv.Listener.Close()
			s.nodes[3].become(func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
				select {
				case <-called: // the first attempt's decode leg may have been ended before it began
					close(later)
					<-said2
				default:
				}
				serve(w, r)
			})
			a := s.chat("")
			e := s.event()
			if a.status != http.StatusOK || a.text() != said(0) || e.Attempts != 2 || strings.Contains(a.body, secretB) {
				t.Errorf("%d %s, %d attempts", a.status, a.body, e.Attempts)
			}
			select {
			case <-later:
			default:
				close(later)
			}
			rec, _ := s.front.Explain(e.ID)
			var old, fresh int
			for _, leg := range rec.Legs {
				switch {
				case strings.HasSuffix(leg.Node, "-0"):
					old++
				case strings.HasSuffix(leg.Node, "-1"):
					fresh++
				}
			}
			if old == 0 || fresh != 2 {
				t.Errorf("the record has %d legs of the first attempt and %d of the second", old, fresh)
			}
		})
	}
}

// TestAnswersSwapped is row 8: two answers of one engine that are each other's, by
// whichever leg. Neither client gets the other's.
func TestAnswersSwapped(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		for i := range places(k) {
			t.Run(k.dialect.String()+"/"+strconv.Itoa(i), func(t *testing.T) {
				s := set(t, k, plan{})
				n := s.nodes[i]
				for _, members := range []string{"", `,"stream":true`} {
					s.works()
					if err := n.Arm("swapped", 2); err != nil {
						t.Fatal(err)
					}
					var got [2]reply
					var both sync.WaitGroup
					for tenant := range 2 {
						r := s.request(tenant, chatPath, body(tenant, chatPath, members))
						both.Go(func() {
							if s.traits.IDs == upstream.Minted {
								got[tenant] = s.send(r)
							} else {
								got[tenant] = s.unchecked(r)
							}
						})
					}
					both.Wait()
					for tenant, a := range got {
						e := s.event()
						if s.traits.IDs == upstream.Steady {
							// The engine chooses its ids, so the fault cannot be seen. That it was there
							// is the control of all the others; what can be known is said by posture.
							if a.status != http.StatusOK || !strings.Contains(a.body, secretOf(1-tenant)) {
								t.Errorf("control: %d %s", a.status, a.body)
							}
							continue
						}
						if a.status != http.StatusBadGateway || a.code() != "upstream_answer_void" || e.Verdict != record.Void || e.Agreement != upstream.Foreign && n != s.prefill {
							t.Errorf("%s%s: %d %s, verdict %s, %s", n.name, members, a.status, a.body, e.Verdict, e.Agreement)
						}
					}
				}
				for _, stance := range s.front.Posture() {
					if want := s.traits.IDs == upstream.Minted; stance.Rule == "G-12" && (stance.State == gw.Enforced) != want {
						t.Errorf("posture says of G-12: %s", stance.State)
					}
				}
			})
		}
	}
}

// places is how many twins one place of a kind has.
func places(k kind) int {
	if k.dialect.Traits().Legs == upstream.One {
		return 1
	}
	return 2
}

// unchecked sends a request of which the answer may hold the secret of another tenant.
func (s *stage) unchecked(r *http.Request) reply {
	s.t.Helper()
	resp, err := s.srv.Client().Do(r)
	if err != nil {
		s.t.Errorf("no answer: %v", err)
		return reply{}
	}
	defer resp.Body.Close()
	var b strings.Builder
	_, err = fmt.Fprint(&b, readAll(resp))
	return reply{status: resp.StatusCode, header: resp.Header, body: b.String(), err: err}
}

// TestNoPrefill is row 9: with no prefill that takes requests decode is sent nothing.
func TestNoPrefill(t *testing.T) {
	t.Parallel()
	for _, k := range pairs() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			s.prefill.arm(t, "crash")
			s.chat("")
			s.event()
			s.look(func() bool { return ready(s) < 2 })
			s.decode.forget()
			if a := s.chat(""); a.status != http.StatusServiceUnavailable || a.code() != "no_pair_ready" {
				t.Errorf("%d %s", a.status, a.body)
			}
			if e := s.event(); e.Attempts != 0 || s.counts(s.decode) != 0 {
				t.Errorf("%d attempts; decode got %d completions", e.Attempts, s.counts(s.decode))
			}
			s.prefill.Revive()
			s.look(func() bool { return ready(s) == 2 })
			s.works()
		})
	}
}

// look lets the gateway look at its engines, one look after the other, until what is
// waited for shows.
func (s *stage) look(yes func() bool) {
	s.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 100 {
		s.clock.advance(2 * time.Second) // the next look is due
		for range 20 {
			if yes() {
				return
			}
			<-tick.C
		}
	}
	s.t.Fatal("it did not happen")
}

// TestSuffixedID is row 10: what prefill calls a request is what decode is told.
func TestSuffixedID(t *testing.T) {
	t.Parallel()
	for _, k := range pairs() {
		if k.dialect != upstream.VLLMNixl {
			continue
		}
		s := set(t, k, plan{})
		s.works()
		s.chat("")
		s.event()
		var handle struct {
			Request string `json:"remote_request_id"`
		}
		p, d := s.prefill.got(t)[0], s.decode.got(t)[0]
		if err := json.Unmarshal(d.fields["kv_transfer_params"], &handle); err != nil {
			t.Fatal(err)
		}
		// The twin puts eight digits behind the id that it was given, as the engine does.
		if given := "chatcmpl-" + p.Header.Get("X-Request-Id"); !strings.HasPrefix(handle.Request, given+"-") || len(handle.Request) != len(given)+9 {
			t.Errorf("prefill was given %q, decode was told %q", given, handle.Request)
		}
	}
}

// TestHandles: a handle of an earlier request, one that is too short and none at all are
// no handles.
func TestHandles(t *testing.T) {
	t.Parallel()
	for _, k := range pairs() {
		if k.dialect != upstream.VLLMNixl {
			continue
		}
		s := set(t, k, plan{})
		for fault, code := range map[string]string{"no-handle": "upstream_answer_void", "old-handle": "upstream_answer_void", "short-handle": "legs_disagree"} {
			for _, members := range []string{"", `,"stream":true`} {
				s.works()
				// The handle before is of another tenant's prompt, which is just as long.
				if s.send(s.request(1, chatPath, body(1, chatPath, ""))); s.event().Verdict != gw.Served {
					t.Fatal("control: tenant 1 is not served")
				}
				s.decode.forget()
				s.prefill.arm(t, fault)
				a := s.chat(members)
				if e := s.event(); a.status != http.StatusBadGateway || a.code() != code || e.Verdict != record.Void || s.counts(s.decode) != 0 {
					t.Errorf("%s: %d %s, verdict %s; decode got %d completions", fault, a.status, a.body, e.Verdict, s.counts(s.decode))
				}
			}
		}
	}
}
