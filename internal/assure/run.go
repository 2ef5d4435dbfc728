package assure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Options says how to run. Its zero value runs every case that cannot kill an engine, on
// every way of the site.
type Options struct {
	// Cases to choose from; nil: [Cases].
	Cases []Case
	// Only are the names of the cases to run; empty: all of the dialect.
	Only []string
	// Ways to run on; empty: all that the site has.
	Ways []Way
	// Kills is the consent to run cases that may end an engine.
	Kills bool
	// Timeout of one case on one way; 0: a minute.
	Timeout time.Duration
	// Faults are what the one who runs can do to an engine, by name; see [Probe.Fault].
	Faults map[string]func(context.Context) error
	// Before is told which case begins on which way. May be nil.
	Before func(c Case, w Way)
	// After is told each result as it comes. May be nil.
	After func(Result)

	patience time.Duration // see Probe
}

// Result is one case on one way.
type Result struct {
	Case    string   `json:"case"`
	Title   string   `json:"title"`
	Rules   []string `json:"rules,omitempty"`
	Way     Way      `json:"way"`
	Outcome Outcome  `json:"outcome"`
	Why     string   `json:"why"`
	Control string   `json:"control,omitempty"`
	Millis  int64    `json:"ms"`
	// Withheld: not for a page; see [Case].
	Withheld bool `json:"withheld,omitempty"`
}

// Schema names the shape of [Report] as JSON. See docs/schema/redgreen.md.
const Schema = "bulkhead.redgreen/v1"

// Report is what a run showed.
type Report struct {
	Schema  string    `json:"schema"`
	Dialect string    `json:"dialect"`
	Model   string    `json:"model"`
	Began   time.Time `json:"began"`
	Ways    []Way     `json:"ways"`
	Results []Result  `json:"results"`
}

// Run tries the cases on one site. An error means that nothing was tried. When ctx ends,
// what is left is SKIP.
func Run(ctx context.Context, site Site, o Options) (Report, error) {
	if err := site.check(); err != nil {
		return Report{}, err
	}
	cases, ways, err := o.chosen(&site)
	if err != nil {
		return Report{}, err
	}
	caller, err := newClient(&site)
	if err != nil {
		return Report{}, err
	}
	defer caller.close()
	r := Report{Schema: Schema, Dialect: site.Dialect.String(), Model: site.Model, Began: time.Now().UTC().Truncate(time.Second), Ways: ways}
	secrets := newCage()
	for _, c := range cases {
		for _, w := range ways {
			if len(c.Ways) > 0 && !slices.Contains(c.Ways, w) {
				continue
			}
			if o.Before != nil {
				o.Before(c, w)
			}
			p := &Probe{Way: w, Site: &site, client: caller, cage: secrets, faults: o.Faults, patience: cmp.Or(o.patience, 3*time.Second)}
			result := o.try(ctx, c, p)
			r.Results = append(r.Results, result)
			if o.After != nil {
				o.After(result)
			}
		}
	}
	return r, nil
}

// chosen returns what is to be run, or says which name does not exist.
func (o *Options) chosen(site *Site) ([]Case, []Way, error) {
	all := o.Cases
	if all == nil {
		all = Cases()
	}
	cases := For(all, site.Dialect)
	if len(o.Only) > 0 {
		var some []Case
		for _, name := range o.Only {
			i := slices.IndexFunc(cases, func(c Case) bool { return c.Name == name })
			if i < 0 {
				return nil, nil, fmt.Errorf("assure: choose cases: %s has no case %q", site.Dialect, name)
			}
			some = append(some, cases[i])
		}
		cases = For(some, site.Dialect)
	}
	if len(cases) == 0 {
		return nil, nil, fmt.Errorf("assure: choose cases: there is none for %s", site.Dialect)
	}
	ways := site.Ways()
	if len(o.Ways) > 0 {
		for _, w := range o.Ways {
			if !slices.Contains(ways, w) {
				return nil, nil, fmt.Errorf("assure: choose ways: the site has no address for %q", w)
			}
		}
		ways = slices.Compact(slices.Sorted(slices.Values(o.Ways)))
	}
	return cases, ways, nil
}

// try runs one case on one way within its time.
func (o *Options) try(ctx context.Context, c Case, p *Probe) Result {
	limit := o.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	began := time.Now()
	var v Verdict
	switch {
	case ctx.Err() != nil:
		v = skip("the run was ended before")
	case c.Kills && !o.Kills:
		v = skip("it may end an engine, and nobody agreed to that")
	default:
		inner, cancel := context.WithTimeout(ctx, limit)
		v = c.Run(inner, p)
		ended := inner.Err()
		cancel()
		switch {
		case ctx.Err() != nil:
			v = skip("the run was ended meanwhile")
		case errors.Is(ended, context.DeadlineExceeded) && v.Outcome != Red:
			v = void("it was not over after %v", limit)
		}
	}
	if v.Outcome < Red || v.Outcome > Skip {
		v = void("the case gave no verdict")
	}
	if v.Outcome == Green && v.Control == "" {
		v = void("the case showed no control: %s", v.Why)
	}
	return Result{Case: c.Name, Title: c.Title, Rules: c.Rules, Way: p.Way, Outcome: v.Outcome,
		Why: p.cage.scrub(v.Why), Control: p.cage.scrub(v.Control), Millis: time.Since(began).Milliseconds(), Withheld: c.Withheld}
}

// Count returns how many results of a way have an outcome.
func (r Report) Count(w Way, o Outcome) int {
	n := 0
	for _, x := range r.Results {
		if x.Way == w && x.Outcome == o {
			n++
		}
	}
	return n
}

// Of returns the result of a case on a way.
func (r Report) Of(name string, w Way) (Result, bool) {
	for _, x := range r.Results {
		if x.Case == name && x.Way == w {
			return x, true
		}
	}
	return Result{}, false
}

// Front is the way that clients take: the last of those that were run.
func (r Report) Front() Way {
	if len(r.Ways) == 0 {
		return Direct
	}
	return r.Ways[len(r.Ways)-1]
}

// Pass says that on the way that clients take nothing is RED and nothing is VOID, and
// that at least one case is GREEN.
func (r Report) Pass() bool {
	front := r.Front()
	return r.Count(front, Red) == 0 && r.Count(front, Void) == 0 && r.Count(front, Green) > 0
}
