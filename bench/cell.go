package main

import (
	"cmp"
	"slices"
)

// found is what a scenario found.
type found struct {
	Figures []figure `json:"figures"`
	// Cells are the comparison with others, one for each row, contender and measure.
	Cells []cell `json:"cells,omitempty"`
	// Absent are those who could not be compared.
	Absent []absence `json:"absent,omitempty"`
}

// absence says who could not be compared, and why.
type absence struct {
	Target string `json:"target"`
	Why    string `json:"why"`
}

// cell is one measure of one contender in one row. See docs/schema/bench.md.
type cell struct {
	Row     string   `json:"row"`
	Title   string   `json:"title"`
	Route   route    `json:"route"`
	Target  string   `json:"target"`
	Measure string   `json:"measure"`
	Unit    unit     `json:"unit"`
	Min     *float64 `json:"min"`
	Median  *float64 `json:"median"`
	Max     *float64 `json:"max"`
	Windows int      `json:"windows"`
	Against string   `json:"against,omitempty"`
	Ratio   *float64 `json:"ratio,omitempty"`
	Low     *float64 `json:"ratio_low,omitempty"`
	High    *float64 `json:"ratio_high,omitempty"`
}

// newCell makes a cell of the windows of a contender.
func newCell(r *row, target, measure string, u unit, values []float64) cell {
	c := cell{Row: r.id, Title: r.title, Route: r.route, Target: target, Measure: measure, Unit: u, Windows: len(values)}
	if len(values) > 0 {
		c.Median = finite(median(values)) // and now they are sorted
		c.Min, c.Max = finite(values[0]), finite(values[len(values)-1])
	}
	return c
}

// over says what the cell is of the same measure of another contender.
func (c cell) over(what string, i interval) cell {
	if c.Ratio = finite(i.value); c.Ratio != nil {
		c.Against, c.Low, c.High = what, finite(i.low), finite(i.high)
	}
	return c
}

// spread prints a cell: the median, and from where to where the windows went.
func (c *cell) spread() string {
	if c == nil || c.Median == nil {
		return ""
	}
	s := c.Unit.number(c.Median)
	if c.Windows > 1 {
		s += " (" + c.Unit.number(c.Min) + " .. " + c.Unit.number(c.Max) + ")"
	}
	return s
}

// times prints what a cell is of the reference.
func (c *cell) times() string {
	if c == nil || c.Ratio == nil {
		return ""
	}
	return ratio.number(c.Ratio)
}

// leaveOut notes who could not be compared; the first reason is kept.
func (f *found) leaveOut(target, why string) {
	if !slices.ContainsFunc(f.Absent, func(a absence) bool { return a.Target == target }) {
		f.Absent = append(f.Absent, absence{target, why})
		slices.SortFunc(f.Absent, func(a, b absence) int { return cmp.Compare(a.Target, b.Target) })
	}
}

// cellRow is the cells of one row, contender by contender.
type cellRow struct {
	id, title string
	route     route
	targets   []string
	cells     map[string]map[string]*cell // by target, then measure
}

// byRow groups cells, in their order.
func byRow(cells []cell) []*cellRow {
	var all []*cellRow
	for i := range cells {
		c := &cells[i]
		at := slices.IndexFunc(all, func(r *cellRow) bool { return r.id == c.Row })
		if at < 0 {
			at = len(all)
			all = append(all, &cellRow{id: c.Row, title: c.Title, route: c.Route, cells: map[string]map[string]*cell{}})
		}
		r := all[at]
		if r.cells[c.Target] == nil {
			r.cells[c.Target] = map[string]*cell{}
			r.targets = append(r.targets, c.Target)
		}
		r.cells[c.Target][c.Measure] = c
	}
	return all
}

// has says whether anybody has that measure.
func (r *cellRow) has(measure string) bool {
	return slices.ContainsFunc(r.targets, func(t string) bool { return r.cells[t][measure] != nil })
}

// table is the row as lines of text, its head first.
func (r *cellRow) table() [][]string {
	shows := []struct {
		measure, head string
	}{{"p50", "p50"}, {"rate", "requests/s"}, {"cpu", "cpu a request"}, {"rss", "peak RSS"}}
	judged := r.judged()
	head := []string{"", "ratio"}
	for _, s := range shows {
		if r.has(s.measure) {
			head = append(head, s.head+", "+r.unit(s.measure))
		}
	}
	lines := [][]string{head}
	for _, t := range r.targets {
		line := []string{t, r.cells[t][judged].times()}
		for _, s := range shows {
			if r.has(s.measure) {
				line = append(line, r.cells[t][s.measure].spread())
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// unit is what a measure is in.
func (r *cellRow) unit(measure string) string {
	for _, t := range r.targets {
		if c := r.cells[t][measure]; c != nil {
			switch c.Unit {
			case microseconds:
				return "us"
			case perSecond:
				return "median"
			case megabytes:
				return "MB"
			}
			return string(c.Unit)
		}
	}
	return ""
}

// judged is the measure of the ratio that the row is about.
func (r *cellRow) judged() string {
	for _, x := range rows() {
		if x.id == r.id {
			return string(x.judged)
		}
	}
	return string(byP50)
}

// against is what the row's ratios are to.
func (r *cellRow) against() string {
	for _, t := range r.targets {
		if c := r.cells[t][r.judged()]; c != nil && c.Against != "" {
			return c.Against
		}
	}
	return ""
}
