// Package drill shows incidents on demand: the same engine, the same requests
// and the same faults, once with guards off and once with all of them on.
//
// What it promises: workers, transport and engine are the real ones, over real
// TCP; faults come from the transport's fault wrapper and from a stand-in for
// the legacy validator that lives here; every run is deterministic and ends with
// a look at both pools. It is the only place outside of tests and the explorer
// where a guard can be off. What must not come in: a result that was not
// observed.
package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bulkhead.dev/bulkhead/handoff"
)

// Verdict is what one run showed.
type Verdict string

// Verdicts. Control is of the positive control that runs first.
const (
	Leaked  Verdict = "LEAKED"     // the answer holds the other tenant's text
	Refused Verdict = "REFUSED"    // an error, and not a byte of the other tenant
	Served  Verdict = "SERVED"     // the right answer, and not a byte of the other tenant
	Control Verdict = "CONTROL OK" // tenant A was served its own record
	Wrong   Verdict = "WRONG"      // none of these: the drill did not show what it should
)

// Run is one run of a drill.
type Run struct {
	Guards       string  `json:"guards"`        // which guards were off, or all on
	Control      Verdict `json:"control"`       // of tenant A's own request
	Status       int     `json:"status"`        // of tenant B's answer
	Code         string  `json:"code"`          // of its error, if it is one
	Message      string  `json:"message"`       // of its error, if it is one
	PromptTokens int     `json:"prompt_tokens"` // as B's answer says; 0 in an error
	Answer       string  `json:"answer"`        // B's text
	Foreign      string  `json:"foreign"`       // the part of it that is tenant A's
	PoolsWhole   bool    `json:"pools_whole"`   // every page of both pools is free afterwards
	Verdict      Verdict `json:"verdict"`
}

// Result is one drill.
type Result struct {
	Name  string   `json:"name"`
	Title string   `json:"title"`
	Story []string `json:"story"`
	Off   *Run     `json:"guards_off,omitempty"`
	On    *Run     `json:"guards_on,omitempty"`
	Pass  bool     `json:"pass"` // the run without guards leaked, the guarded one did not
}

// Which says which runs to make.
type Which uint8

const (
	Both Which = iota
	Off
	On
)

// ParseWhich reads off, on or both.
func ParseWhich(s string) (Which, error) {
	switch s {
	case "both":
		return Both, nil
	case "off":
		return Off, nil
	case "on":
		return On, nil
	}
	return Both, fmt.Errorf("drill: guards: want off, on or both")
}

// story is one drill.
type story struct {
	name  string
	title string
	lines []string
	off   handoff.Guards // the guards that the run without them lacks
	shape shape
	act   func(ctx context.Context, r *rig) (reply, error)
}

// Names lists the drills in order.
func Names() []string {
	var all []string
	for _, s := range stories() {
		all = append(all, s.name)
	}
	return all
}

// Drill runs the drills that are named, or all, and calls done after each.
func Drill(ctx context.Context, which Which, names []string, done func(Result)) ([]Result, error) {
	var picked []story
	for _, s := range stories() {
		if len(names) == 0 || slices.Contains(names, s.name) {
			picked = append(picked, s)
		}
	}
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("drill: there are only %s", strings.Join(Names(), ", "))
		}
	}
	var all []Result
	for _, s := range picked {
		res, err := s.run(ctx, which)
		if err != nil {
			return all, fmt.Errorf("drill: %s: %w", s.name, err)
		}
		all = append(all, res)
		done(res)
	}
	return all, nil
}

func (s story) run(ctx context.Context, which Which) (Result, error) {
	res := Result{Name: s.name, Title: s.title, Story: s.lines, Pass: true}
	if which != On {
		run, err := s.once(ctx, handoff.All.Without(s.off))
		if err != nil {
			return res, fmt.Errorf("guards off: %w", err)
		}
		res.Off = &run
		res.Pass = res.Pass && run.Verdict == Leaked
	}
	if which != Off {
		run, err := s.once(ctx, handoff.All)
		if err != nil {
			return res, fmt.Errorf("guards on: %w", err)
		}
		res.On = &run
		res.Pass = res.Pass && (run.Verdict == Refused || run.Verdict == Served)
	}
	return res, nil
}

// once is one run: the control, the story, the look at the pools.
func (s story) once(ctx context.Context, g handoff.Guards) (Run, error) {
	r, err := newRig(ctx, g, s.shape)
	if err != nil {
		return Run{}, err
	}
	defer r.stop()
	run := Run{Guards: "all on", Control: Wrong}
	if g != handoff.All {
		run.Guards = handoff.All.Without(g).String() + " off"
	}
	control, err := r.ask(ctx, tenantA, s.shape.a)
	if err != nil {
		return Run{}, err
	}
	if control.status == 200 && strings.HasPrefix(s.shape.wantA, control.text) && strings.Contains(control.text, s.shape.secret) {
		run.Control = Control
	}
	if err := r.rest(ctx); err != nil {
		return Run{}, err
	}
	b, err := s.act(ctx, r)
	if err != nil {
		return Run{}, err
	}
	run.PoolsWhole = r.rest(ctx) == nil
	run.Status, run.Code, run.Message, run.PromptTokens, run.Answer = b.status, b.code, b.message, b.promptTokens, b.text
	run.Foreign = strings.TrimSpace(foreign(b.text, s.shape.a.prompt, s.shape.b.prompt))
	run.Verdict = s.judge(run, b)
	return run, nil
}

// judge decides what a run showed. Nothing is taken for good that was not seen.
func (s story) judge(run Run, b reply) Verdict {
	leaked := strings.Contains(b.body, s.shape.secret) || run.Foreign != ""
	switch {
	case run.Control != Control || !run.PoolsWhole:
		return Wrong
	case leaked && b.status == 200 && run.PromptTokens == s.shape.b.tokens():
		return Leaked
	case leaked:
		return Wrong
	case b.status >= 400:
		return Refused
	case b.status == 200 && b.text == s.shape.wantB:
		return Served
	}
	return Wrong
}

// minForeign is how long a shared piece must be to count as foreign: shorter
// ones occur by chance.
const minForeign = 12

// foreign is the longest piece of an answer that stands in the other tenant's
// prompt and not in the tenant's own, or nothing.
func foreign(answer, theirs, own string) string {
	best := ""
	for i := range answer {
		for j := i + max(minForeign, len(best)+1); j <= len(answer); j++ {
			piece := answer[i:j]
			if !strings.Contains(theirs, piece) {
				break
			}
			if !strings.Contains(own, piece) {
				best = piece
			}
		}
	}
	return best
}
