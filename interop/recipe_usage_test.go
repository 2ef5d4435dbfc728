package main

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/admit"
	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// words is how many tokens the twins' answer to a secret has.
const words = 5

// tally is one row of recipe R9: what an engine counts, and what is made of it.
type tally struct {
	row   string
	fault string
	// what is kept of the prompt and the answer, whether the engine tells it early or late.
	prompt, completion admit.Tokens
	// odd is what is noted, of an answer in one piece as of a stream.
	odd record.Oddities
	// pairs is the error where two legs that count so do not agree, void the one of an
	// answer that is not taken from anybody.
	pairs, void string
}

// TestTallies is recipe R9, rows 1 to 8 and 10: usage that cannot be is not passed on as
// if it could, and what was told is kept.
func TestTallies(t *testing.T) {
	t.Parallel()
	// The prompt of [body] by the twins' own count.
	prompt := admit.Known(int64((16 + len("Remember "+secretA+" and say it.") + 3) / 4))
	none := admit.Unknown()
	const unproved = "upstream_answer_void"
	rows := []tally{
		{"7 both legs have counted", "", prompt, admit.Known(words), 0, "", ""},
		{"1 more cached than there is", "cached-over", prompt, admit.Known(words), record.CachedTooMany, "", ""},
		{"2 all of a cold prompt cached", "cached-all", prompt, admit.Known(words), 0, "", ""},
		{"4 told twice", "usage-twice", prompt, admit.Known(words), record.UsageTwice, "", ""},
		{"5 never told", "usage-missing", none, none, record.UsageMissing, unproved, ""},
		{"6 nothing at all", "usage-zero", admit.Known(0), admit.Known(0), 0, "legs_disagree", ""},
		{"10 a total that does not add up", "usage-off", none, none, record.UsageWrong, unproved, ""},
		{"10 negative", "usage-negative", none, none, record.UsageWrong, unproved, unproved},
		{"10 more than was asked for", "usage-over", prompt, none, record.UsageWrong, "", ""},
	}
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			for _, row := range rows {
				if s.traits.Hosted && row.fault == "usage-off" {
					continue // a total of a hosted API may hold what is shown nowhere
				}
				for _, members := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`, `,"stream":true`} {
					s.tally(row, members)
				}
			}
		})
	}
}

// tally asks once for a row.
func (s *stage) tally(row tally, members string) {
	s.t.Helper()
	if row.fault != "" {
		s.decode.arm(s.t, row.fault)
	}
	a := s.chat(`,"max_tokens":8` + members)
	e := s.event()
	wrong := func(what string) {
		s.t.Helper()
		s.t.Errorf("%s%s: %s: %d, verdict %s, prompt %v, completion %v, %q:\n%s", row.row, members, what, a.status, e.Verdict, e.Prompt, e.Completion, e.Oddities, a.body)
	}
	code := row.void
	if s.prefill != nil {
		code = row.pairs
	}
	if code != "" {
		late := a.status == http.StatusOK && a.err != nil && !a.done() && e.Verdict == record.Broken // where counts come at the end
		if a.code() != code || !late && (a.status != http.StatusBadGateway || e.Verdict != record.Void || a.text() != "") {
			wrong("it should not hold")
		}
		return
	}
	if a.status != http.StatusOK || e.Verdict != gw.Served || a.text() != said(0) {
		wrong("it should be served")
		return
	}
	if e.Prompt != row.prompt || e.Completion != row.completion {
		wrong("other numbers are kept")
	}
	odd := row.odd
	if members == "" && odd == record.UsageTwice {
		odd = 0 // an answer in one piece cannot, and one that is put together counts once
	}
	if e.Oddities != odd {
		wrong("other oddities")
	}
	if strings.Contains(a.body, "cached") || strings.Contains(a.body, ":-1") {
		wrong("the client is told what is nobody's business")
	}
	told := 0
	for _, p := range a.parts() {
		if p.Usage != nil {
			told++
			if n, known := row.completion.Value(); known && p.Usage.Completion != n {
				wrong("the client is told another number")
			}
		}
	}
	if told > 1 {
		wrong("usage is told more than once")
	}
}

// TestPrefillTallies is row 1 for the leg that the client does not see: what prefill tells
// of its cache may be all of the prompt but one token, and not more than all of it.
func TestPrefillTallies(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		if k.dialect.Traits().Legs == upstream.One {
			continue
		}
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			for _, row := range []struct {
				fault string
				odd   record.Oddities
				told  bool
			}{{"cached-all", 0, true}, {"cached-over", record.CachedTooMany, false}} {
				s.prefill.arm(t, row.fault)
				a := s.chat("")
				e := s.event()
				if a.status != http.StatusOK || e.Verdict != gw.Served || e.Oddities != row.odd {
					t.Errorf("%s: %d, verdict %s, %q", row.fault, a.status, e.Verdict, e.Oddities)
				}
				rec, _ := s.front.Explain(e.ID)
				if _, told := rec.Legs[0].Cached.Value(); rec.Legs[0].Role != upstream.PrefillRole || told != row.told {
					t.Errorf("%s: the leg has %+v", row.fault, rec.Legs[0])
				}
			}
		})
	}
}

// TestNotANumber is row 10 for a body that is no JSON at all.
func TestNotANumber(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			for _, members := range []string{"", `,"stream":true`} {
				s.works()
				s.decode.arm(t, "usage-nan")
				a := s.chat(members)
				e := s.event()
				if a.done() || strings.Contains(a.body, "NaN") || e.Verdict == gw.Served || a.status == http.StatusOK && a.err == nil {
					t.Errorf("%s: %d, verdict %s: %s", members, a.status, e.Verdict, a.body)
				}
			}
		})
	}
}

// TestLegsKeepWhatTheyTold is row 7 and the raw half of row 10: the record has the
// numbers of each leg as they were told, prefill's one token beside decode's.
func TestLegsKeepWhatTheyTold(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			s.decode.arm(t, "usage-over")
			s.chat(`,"max_tokens":8`)
			rec, _ := s.front.Explain(s.event().ID)
			var last gw.LegRecord
			for _, leg := range rec.Legs {
				if leg.Role == upstream.PrefillRole {
					if n, told := leg.Completion.Value(); !told || n != 1 {
						t.Errorf("prefill's leg has %v", leg.Completion)
					}
					continue
				}
				last = leg
			}
			p, _ := last.Prompt.Value()
			c, _ := last.Completion.Value()
			if total, told := last.Total.Value(); !told || total != p+c || c != words+8 {
				t.Errorf("decode's leg has %v + %v = %v", last.Prompt, last.Completion, last.Total)
			}
		})
	}
}

// TestLeftEarly is row 9: who leaves after some pieces has used those, and was not served.
func TestLeftEarly(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{})
			s.works()
			s.decode.arm(t, "silence") // two words, and then nothing
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := s.request(0, chatPath, body(0, chatPath, `,"stream":true`)).WithContext(ctx)
			resp, err := s.srv.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var got []byte
			for buf := make([]byte, 512); !bytes.Contains(got, []byte(" code")); {
				n, err := resp.Body.Read(buf)
				if got = append(got, buf[:n]...); err != nil {
					t.Fatalf("%v after %s", err, got)
				}
			}
			leave()
			e := s.event()
			if e.Verdict != record.Left || e.Completion != admit.Known(2) || e.From != record.Observed {
				t.Errorf("verdict %s, completion %v, %s", e.Verdict, e.Completion, e.From)
			}
			s.works()
		})
	}
}

// TestNothingForAFailure is row 11: an answer that ends with the reason error is no
// success, and costs its tenant nothing.
func TestNothingForAFailure(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.dialect.String(), func(t *testing.T) {
			s := set(t, k, plan{change: func(c *gw.Config) { c.Tenants[0].Budget = 200 }})
			for range 20 {
				s.decode.arm(t, "finish-error")
				if a, e := s.chat(`,"max_tokens":8`), s.event(); a.status != http.StatusInternalServerError || e.Verdict == gw.Served {
					t.Fatalf("%d %s", a.status, a.body)
				}
			}
			// The control: what is served is paid for.
			paid := 0
			for ; paid < 20; paid++ {
				a := s.chat(`,"max_tokens":8`)
				s.event()
				if a.status == http.StatusTooManyRequests && a.code() == "token_budget_used" {
					break
				}
				if a.status != http.StatusOK {
					t.Fatalf("%d %s", a.status, a.body)
				}
			}
			if paid < 5 || paid > 10 {
				t.Errorf("a budget of 200 tokens paid for %d answers", paid)
			}
		})
	}
}
