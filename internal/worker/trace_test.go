package worker

import (
	"errors"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/world"
)

// TestTrace plants a bug in the driver, not in the machine: decode frees the pages of an
// attempt that prefill may still write, before anybody asked for it. Nothing wrong is
// read, and the answer is an ordinary refusal; the trace shows it all the same. The
// control is the same run without the bug.
func TestTrace(t *testing.T) {
	for _, bug := range []bool{false, true} {
		p := newPair(t, atPrefill(func(c *Config) { c.Chunk = 16 }))
		p.planted = true
		prompt, want := recital(400, 3)
		c := p.complete(prompt, len(want))
		pre, dec := p.beginPrefill(c), p.beginDecode(c)
		p.reaches(p.decode, c)
		if bug {
			p.eventually("decode has reserved", func() (reserved bool) {
				on(p.decode, func(w *Worker) {
					if a := w.attempts[c.attempt]; a != nil && a.res != nil && !a.proved && a.seq == nil {
						sealed, err := w.pool.Seal(a.res) // else the pool itself would not free it
						broken(err)
						a.sealed, a.proved = sealed, true
						w.free(a)
						a.res, err = w.pool.Reserve(a.req.domain, len(a.req.tokens), a.req.maxTokens, nil) // for the machine to free
						broken(err)
						reserved = true
					}
				})
				return reserved
			})
		}
		pre.leave()
		dec.leave()
		<-pre.done
		<-dec.done
		p.decode.stop()
		_, err := p.decode.trace.Check()
		if bug != (err != nil) || bug && !strings.Contains(err.Error(), "no step had asked for it") {
			t.Errorf("planted %v: %v", bug, err)
		}
	}
}

// TestTraceBites changes a true trace in every way that it must not be changed.
func TestTraceBites(t *testing.T) {
	p := newPair(t)
	p.serves()
	p.whole()
	p.prefill.stop()
	p.decode.stop()
	for _, s := range []*side{p.prefill, p.decode} {
		r, err := s.trace.Check()
		if err != nil || r.Machines != 1 || r.Steps < 5 || r.Touches < 2 {
			t.Fatalf("%+v, %v", r, err)
		}
		touches := 0
		for i, e := range s.trace.Entries {
			x := &world.Trace{Role: s.trace.Role, Guards: s.trace.Guards, Entries: append([]world.Entry(nil), s.trace.Entries...)}
			if e.Did != handoff.Nothing {
				touches++
				x.Entries = append(x.Entries[:i], x.Entries[i+1:]...)
				if _, err := x.Check(); err == nil && e.Did != handoff.DoReserve {
					t.Errorf("entry %d, %s, was left out, and nobody saw it", i, e.Did)
				}
				continue
			}
			x.Entries[i].State++
			if _, err := x.Check(); err == nil {
				t.Errorf("the state of entry %d was changed, and nobody saw it", i)
			}
			x.Entries[i].State--
			x.Entries[i].Effects.N++
			if _, err := x.Check(); err == nil {
				t.Errorf("the effects of entry %d were changed, and nobody saw it", i)
			}
		}
		if touches == 0 {
			t.Error("no touches")
		}
	}
	if _, err := new(world.Trace).Check(); !errors.Is(err, world.ErrNoSteps) {
		t.Errorf("an empty trace: %v", err)
	}
}
