package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// chartFile is the chart of the page, below its folder.
const chartFile = "img/gateway.svg"

// page writes the comparison of gateways as benchmarks.md with its chart.
func (r *report) page(folder string) error {
	i := slices.IndexFunc(r.Scenarios, func(s section) bool { return s.Name == gatewayName })
	if i < 0 {
		return nil
	}
	s := &r.Scenarios[i]
	chart := filepath.Join(folder, filepath.FromSlash(chartFile))
	return errors.Join(
		os.MkdirAll(filepath.Dir(chart), 0o755),
		os.WriteFile(chart, []byte(drawing(s)), 0o644),
		os.WriteFile(filepath.Join(folder, "benchmarks.md"), []byte(r.pageText(s)), 0o644),
	)
}

// pageText is the page.
func (r *report) pageText(s *section) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# The gateway beside others

<!-- Written by go run ./bench gateway. Do not edit: run it. -->

What stands between a client and its engines costs time. Here %[1]s, a bare Go proxy and routers of other projects stand in
front of the same two scripted workers, in one run on one machine. The workers parse each request, as an engine must, and
answer at once: in front of an engine that computes for a second, none of these differences could be seen.
%[1]s does more than the others on the way: it holds every field against a list, the length against what the workers can
take, and every id against the one it gave; on the PD route nothing leaves before both workers have told the same count.

Made by `+"`%[2]s`"+` on %[3]s, in %.0[4]f s. Machine: %[5]s. The run: %[6]s.

![%[7]s](%[8]s)

## Budgets

Ratios are to the reference of the same round. A budget is met if the whole 95 %% interval keeps to it, after the A/A control
(the worker asked directly, beside the worker asked directly) has been added on both sides. In parentheses: what is hoped for.

`, nameOurs, r.Command, r.Started.Format("2006-01-02 15:04 MST"), float64(r.Elapsed)/1000, r.where(), s.busy(), "Ratios of each row", chartFile)
	h := heads()
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(h[:], " | "), strings.Repeat("---|", len(h)))
	for i := range s.Figures {
		c := s.Figures[i].cells()
		fmt.Fprintf(&b, "| %s |\n", strings.Join(c[:], " | "))
	}
	b.WriteString(`
## Everybody

Each row has fresh processes; in each round everybody has a turn, in another order. A turn is a window of 0.3 s. Values are the
median over the windows, in parentheses the least and the largest. Processor time is that of all processes of a contender,
read from outside. Peak RSS is added up over them, at the end of the row. *two bare Go proxies* reads a request, adds an id,
sends it to both workers and passes decode's answer on: the least that such a route can do in Go.
`)
	s.markdown(&b, "###")
	b.WriteString("\nHow to run and read this: [bench/README.md](../bench/README.md). What the hand-off and its checks cost: " +
		"[bench/results/latest.md](../bench/results/latest.md).\n")
	return b.String()
}
