package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// ending is one row of recipe R10, part 1: how an engine's stream ends, and what the
// client gets.
type ending struct {
	row   string
	fault string
	// want is what becomes of it: complete, broken (200, then visibly incomplete), or
	// refused (an error in place of an answer).
	want outcome
	// code is that of the error; text what of the answer may arrive before it.
	code, text string
	odd        record.Oddities
}

// outcome is what becomes of a stream.
type outcome int

const (
	complete outcome = iota
	broken
	refused
)

// begun is what the twins say before a fault in mid-stream.
const begun = "The code"

func endings() []ending {
	all := said(0)
	return []ending{
		{"1 finish reason, usage, end mark", "", complete, "", all, 0},
		{"2 no end mark", "no-done", broken, "stream_broken", all, 0},
		{"3 no finish reason", "no-finish", broken, "stream_broken", all, 0},
		{"4 a clean end and nothing else", "no-end", broken, "stream_broken", all, 0},
		{"5 cut in an event", "cut", broken, "stream_broken", begun, 0},
		{"8 error event, then the end mark", "error-then-done", broken, "engine_failed", begun, 0},
		{"8 finish reason error", "finish-error", broken, "engine_failed", all, 0},
		{"8 finish reason abort", "abort-in-200", broken, "engine_failed", all, 0},
		{"9 an error comes first", "error-first", refused, "engine_failed", "", 0},
		{"11 bytes behind the end mark", "surplus", complete, "", all, record.SurplusBytes},
	}
}

// TestEndings is recipe R10, rows 1 to 9 and 11, in every dialect and at both endpoints.
func TestEndings(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			for _, path := range []string{chatPath, completionPath} {
				for _, row := range endings() {
					if row.fault != "" {
						s.decode.arm(t, row.fault)
					}
					a := s.send(s.request(0, path, body(0, path, `,"stream":true,"stream_options":{"include_usage":true}`)))
					row.hold(t, path, a, s.event())
				}
			}
			s.works()
		})
	}
}

// hold compares what came with the row.
func (row ending) hold(t *testing.T, path string, a reply, e gw.RequestEvent) {
	t.Helper()
	wrong := func(what string) {
		t.Helper()
		t.Errorf("%s, %s: %s: status %d, code %q, verdict %s, %q, error %v:\n%s", row.row, path, what, a.status, a.code(), e.Verdict, e.Oddities, a.err, a.body)
	}
	usage := strings.Contains(a.body, `"total_tokens"`)
	switch row.want {
	case complete:
		if a.status != http.StatusOK || !a.done() || a.err != nil || a.text() != row.text || !usage || e.Verdict != gw.Served {
			wrong("it should be complete")
		}
	case broken:
		if a.status != http.StatusOK || a.done() || a.err == nil || a.text() != row.text || e.Verdict != record.Broken {
			wrong("it should be visibly broken")
		}
	case refused:
		if a.status < 400 || a.done() || a.text() != "" || e.Verdict == gw.Served || a.header.Get("Content-Type") != "application/json" {
			wrong("it should be an error and nothing else")
		}
	}
	if a.code() != row.code || string(e.Code) != row.code {
		wrong("another code")
	}
	if e.Oddities&record.SurplusBytes != row.odd {
		wrong("other oddities")
	}
	if strings.Contains(a.body, "surplus") {
		wrong("what follows the end mark was relayed")
	}
}

// TestWholeAnswers is recipe R10, row 10, and what else can be wrong with an answer in
// one piece: an error with a body of the API's shape, and nothing of the answer.
func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			for _, row := range []struct {
				fault  string
				status int
				code   string
				holds  bool // also where the answer is put together from a stream
			}{
				{"finish-error", 500, "engine_failed", true},
				{"abort-in-200", 500, "engine_failed", true},
				{"no-content", 502, "upstream_answer_void", false},
				{"error-in-200", 500, "engine_failed", true},
				{"broken", 500, "engine_failed", true},
				{"reset", 502, "upstream_unreachable", true},
			} {
				if s.traits.Leased && !row.holds {
					continue
				}
				s.decode.arm(t, row.fault)
				a := s.chat("")
				e := s.event()
				if a.status != row.status || a.code() != row.code || e.Verdict == gw.Served || !strings.Contains(a.body, `"message"`) || strings.Contains(a.body, "choices") {
					t.Errorf("%s: %d %s, verdict %s", row.fault, a.status, a.body, e.Verdict)
				}
			}
			if s.traits.Leased {
				// Decode was asked for a stream: its endings count for the whole, too.
				for _, row := range endings() {
					if row.want != broken {
						continue
					}
					s.decode.arm(t, row.fault)
					if a, e := s.chat(""), s.event(); a.status < 500 || strings.Contains(a.body, "choices") || e.Verdict == gw.Served {
						t.Errorf("%s: %d %s, verdict %s", row.fault, a.status, a.body, e.Verdict)
					}
				}
			}
			s.works()
		})
	}
}

// conn makes a stream of a tenant and returns the connection on which the engine was asked.
func (s *stage) conn(tenant int) string {
	s.t.Helper()
	a := s.send(s.request(tenant, chatPath, body(tenant, chatPath, `,"stream":true`)))
	if e := s.event(); a.status != http.StatusOK || e.Verdict != gw.Served {
		s.t.Fatalf("%d %s", a.status, a.body)
	}
	s.decode.mu.Lock()
	defer s.decode.mu.Unlock()
	return s.decode.conns[len(s.decode.conns)-1]
}

// TestSurplusConnection is the second half of row 11: the connection on which too much
// came serves nobody else. Where answers bear no id of ours no two tenants have one
// connection, whatever came on it.
func TestSurplusConnection(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			if !s.traits.Threaded { // else none is kept at all
				last := ""
				until(t, func() bool { // the control: connections are kept
					before := last
					last = s.conn(0)
					return last == before
				})
			}
			s.decode.arm(t, "surplus")
			odd := s.conn(0)
			for range 5 {
				if s.conn(0) == odd {
					t.Fatal("the connection is used again")
				}
			}
			if s.traits.IDs == upstream.Steady && s.conn(0) == s.conn(1) {
				t.Error("two tenants have one connection")
			}
		})
	}
}

// TestSilence is row 12: comments are no progress.
func TestSilence(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			s.decode.arm(t, "silence")
			waited := false
			a := s.sendSeen(s.request(0, chatPath, body(0, chatPath, `,"stream":true`)), func(body string) {
				if strings.Contains(body, " code") && !waited {
					waited = true
					go s.clock.advance(time.Minute)
				}
			})
			e := s.event()
			if !waited || a.status != http.StatusOK || a.err == nil || a.done() || a.code() != "stream_broken" || a.text() != begun || e.Verdict != record.Broken {
				t.Errorf("%d, verdict %s, %v:\n%s", a.status, e.Verdict, a.err, a.body)
			}
		})
	}
}

// TestUnfinishedChoice is row 13: of two answers one has no end.
func TestUnfinishedChoice(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			const two = `,"n":2,"temperature":0.5`
			for _, members := range []string{"", `,"stream":true`} {
				a := s.chat(two + members)
				if e := s.event(); a.status != http.StatusOK || e.Verdict != gw.Served || strings.Count(a.text(), secretA) != 2 {
					t.Fatalf("control: %d %s", a.status, a.body)
				}
			}
			fault := "unfinished"
			if s.traits.Lists == upstream.Split {
				fault = "no-finish" // each answer is a call of its own
			}
			s.decode.arm(t, fault)
			a := s.chat(two + `,"stream":true`)
			if e := s.event(); a.done() || e.Verdict == gw.Served || a.status == http.StatusOK && a.err == nil || a.code() != "stream_broken" {
				t.Errorf("stream: %d, verdict %s, %v:\n%s", a.status, e.Verdict, a.err, a.body)
			}
			if s.traits.Lists == upstream.Native {
				s.decode.arm(t, fault)
				if a, e := s.chat(two), s.event(); a.status < 500 || strings.Contains(a.body, "choices") || e.Verdict == gw.Served {
					t.Errorf("whole: %d, verdict %s: %s", a.status, e.Verdict, a.body)
				}
			}
		})
	}
}

// TestNothingBeforeTheVerdict: decode has said everything and ended well; prefill's
// answer comes after that and does not hold. Nothing of decode's has left by then, or
// the status could not be an error any more.
func TestNothingBeforeTheVerdict(t *testing.T) {
	t.Parallel()
	for _, k := range pairs() {
		if k.dialect.Traits().Legs != upstream.Together {
			continue
		}
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			for _, row := range []struct {
				fault  string
				status int
			}{{"", 200}, {"foreign-id", 502}, {"count-off", 502}, {"abort-in-200", 500}, {"error-in-200", 500}, {"broken", 500}} {
				for _, members := range []string{"", `,"stream":true`} {
					if row.fault != "" {
						s.prefill.arm(t, row.fault)
					}
					decoded := make(chan struct{})
					s.decode.become(func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
						serve(w, r)
						close(decoded)
					})
					s.prefill.become(func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
						later := httptest.NewRecorder()
						serve(later, r)
						<-decoded
						for name, values := range later.Header() {
							w.Header()[name] = slices.Clone(values)
						}
						w.WriteHeader(later.Code)
						_, _ = w.Write(later.Body.Bytes()) // the gateway may have heard enough
					})
					a := s.chat(members)
					e := s.event()
					if a.status != row.status || (a.text() == said(0)) != (row.fault == "") || (e.Verdict == gw.Served) != (row.fault == "") {
						t.Errorf("%q%s: %d, verdict %s: %s", row.fault, members, a.status, e.Verdict, a.body)
					}
				}
			}
		})
	}
}
