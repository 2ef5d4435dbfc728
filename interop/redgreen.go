package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
)

// caseLimit is how long one case may take on one way. Ten seconds are much; a machine
// with other work may need twenty times as long as an idle one.
const caseLimit = 4 * time.Minute

// expected says which outcome a case is to have on a way, where that is not RED straight
// at the engine or through a router, and GREEN through Bulkhead.
type expected map[string]map[assure.Way]assure.Outcome

// of returns the outcome that is expected.
func (e expected) of(name string, w assure.Way) assure.Outcome {
	if o, ok := e[name][w]; ok {
		return o
	}
	if w == assure.Bulkhead {
		return assure.Green
	}
	return assure.Red
}

// redgreen runs the cases on the site, prints the table, and puts the report and what is
// not as expected into the section. A case that is GREEN straight at an engine where RED
// is expected shows nothing through Bulkhead either, and fails the run.
func (d *driver) redgreen(ctx context.Context, s *section, site assure.Site, o assure.Options, e expected) error {
	o.Only = d.only
	o.Kills = true
	o.Timeout = cmp.Or(o.Timeout, caseLimit)
	if d.direct {
		o.Ways = []assure.Way{assure.Direct}
		site.Gateway = ""
	}
	if d.through {
		o.Ways = []assure.Way{assure.Bulkhead}
	}
	began := time.Now()
	report, err := assure.Run(ctx, site, o)
	if err != nil {
		return fmt.Errorf("interop: run cases: %w", err)
	}
	fmt.Fprintln(d.out)
	report.Print(d.out, assure.Plain)
	fmt.Fprintln(d.out)
	d.say("%d cases on %d ways in %.0f s", len(report.Results), len(report.Ways), time.Since(began).Seconds())
	s.reports = append(s.reports, report)
	for _, r := range report.Results {
		want := e.of(r.Case, r.Way)
		switch {
		case r.Outcome == want:
		case r.Way != assure.Bulkhead && want == assure.Red && r.Outcome == assure.Green:
			s.fail("%s, %s: GREEN where the fault was expected, so GREEN through Bulkhead shows nothing: %s", r.Case, r.Way, r.Why)
		default:
			s.fail("%s, %s: %s, expected %s: %s", r.Case, r.Way, r.Outcome, want, r.Why)
		}
	}
	return nil
}
