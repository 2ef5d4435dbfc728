package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// schema names the form of a report. See docs/schema/bench.md.
const schema = "bulkhead.bench/v1"

// report is the result of one run.
type report struct {
	Schema    string    `json:"schema"`
	Command   string    `json:"command"`
	Started   time.Time `json:"started"`
	Elapsed   int64     `json:"elapsed_ms"`
	Machine   machine   `json:"machine"`
	Scenarios []section `json:"scenarios"`
}

// section is the figures of one scenario.
type section struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Elapsed int64    `json:"elapsed_ms"`
	Others  *float64 `json:"other_processes_percent"` // of all processors, meanwhile
	found
}

func newReport(command string) *report {
	return &report{Schema: schema, Command: command, Started: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), Scenarios: []section{}}
}

func (r *report) finish() { r.Elapsed = time.Since(r.Started).Milliseconds() }

// deliver writes the table to out, and the files that were asked for.
func (r *report) deliver(out io.Writer, jsonTo, folder, docs string) error {
	if err := r.table(out); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if jsonTo != "" {
		if err := os.WriteFile(jsonTo, data, 0o644); err != nil {
			return err
		}
	}
	if docs != "" {
		if err := r.page(docs); err != nil {
			return err
		}
	}
	if folder == "" {
		return nil
	}
	var text strings.Builder
	r.markdown(&text)
	return errors.Join(
		os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, "latest.json"), data, 0o644),
		os.WriteFile(filepath.Join(folder, "latest.md"), []byte(text.String()), 0o644),
	)
}

// where says what the run was made on, in one line.
func (r *report) where() string {
	m := &r.Machine
	s := fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)
	if m.CPU == "" {
		s = fmt.Sprintf("unknown processor, %d cores", m.Cores)
	}
	if m.MemoryBytes != nil {
		s += fmt.Sprintf(", %d GiB", (*m.MemoryBytes+1<<29)>>30)
	}
	s += fmt.Sprintf(", %s/%s, %s", m.OS, m.Arch, m.Go)
	if m.LoadBefore != nil {
		s += fmt.Sprintf(", load before the run %.2f", *m.LoadBefore)
	}
	return s
}

// busy says what else the machine did during a scenario.
func (s *section) busy() string {
	took := fmt.Sprintf("%.0f s", float64(s.Elapsed)/1000)
	switch {
	case s.Others == nil:
		return took + "; what other processes took is not known"
	case *s.Others < quietShare:
		return took + fmt.Sprintf("; other processes took %.1f %% of the machine", *s.Others)
	}
	return took + fmt.Sprintf("; NOT QUIET: other processes took %.1f %% of the machine", *s.Others)
}

// quietShare is what other processes may take, in percent, before a run says so.
const quietShare = 3

// cells are a figure's columns: what, value, interval, control, budget, verdict.
func (f *figure) cells() [6]string {
	number := f.Unit.number
	if f.Control != nil && f.Unit == percent { // a difference
		number = signed(f.Unit)
	}
	c := [6]string{f.What, number(f.Value)}
	if f.Value != nil {
		c[1] += f.Unit.suffix()
	}
	if f.Against != "" {
		c[0] += ", against " + f.Against
	}
	if f.Low != nil && f.High != nil && f.Samples > 1 {
		c[2] = fmt.Sprintf("%s .. %s, n=%d", number(f.Low), number(f.High), f.Samples)
	}
	if f.Control != nil {
		c[3] = number(f.Control.Value)
		if f.Control.Low != nil && f.Control.High != nil {
			c[3] += " (" + number(f.Control.Low) + " .. " + number(f.Control.High) + ")"
		}
	}
	if f.Budget != nil {
		sign := "<= "
		if f.Budget.Bound == atLeast {
			sign = ">= "
		}
		c[4] = sign + trim(f.Budget.Limit) + " (" + trim(f.Budget.Stretch) + ")"
		c[5] = f.Verdict.words()
		if f.Stretch == met {
			c[5] += ", stretch too"
		}
	}
	return c
}

// signed prints numbers of u with their sign.
func signed(u unit) func(*float64) string {
	return func(x *float64) string {
		if s := u.number(x); x != nil && *x > 0 {
			return "+" + s
		} else {
			return s
		}
	}
}

func trim(x float64) string { return fmt.Sprintf("%g", x) }

func (v verdict) words() string {
	switch v {
	case met:
		return "met"
	case notMet:
		return "NOT MET"
	case notMeasurable:
		return "not measurable (noise)"
	}
	return ""
}

// heads are the titles of the columns.
func heads() [6]string {
	return [6]string{"figure", "value", "95 % interval", "A/A control", "budget (stretch)", "verdict"}
}

// table prints the report for a terminal.
func (r *report) table(out io.Writer) error {
	fmt.Fprintf(out, "\n%s\n%s\n", r.Command, r.where())
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		fmt.Fprintf(out, "\n%s: %s (%s)\n", s.Name, s.What, s.busy())
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		h := heads()
		fmt.Fprintln(w, strings.Join(h[:], "\t"))
		for j := range s.Figures {
			c := s.Figures[j].cells()
			fmt.Fprintln(w, strings.Join(c[:], "\t"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if err := s.compared(out); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "\n%s\nwhole run: %.0f s\n", r.summary(), float64(r.Elapsed)/1000)
	return err
}

// compared prints the comparison with others for a terminal.
func (s *section) compared(out io.Writer) error {
	for _, r := range byRow(s.Cells) {
		fmt.Fprintf(out, "\n%s: %s, %s, ratio of %s to %s\n", r.id, r.title, r.route, r.judged(), r.against())
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, line := range r.table() {
			fmt.Fprintln(w, strings.Join(line, "\t"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, a := range s.Absent {
		fmt.Fprintf(out, "!! not compared: %s: %s\n", a.Target, a.Why)
	}
	return nil
}

// summary counts the verdicts.
func (r *report) summary() string {
	n := map[verdict]int{}
	for i := range r.Scenarios {
		for _, f := range r.Scenarios[i].Figures {
			n[f.Verdict]++
		}
	}
	return fmt.Sprintf("budgets: %d met, %d not met, %d not measurable (noise)", n[met], n[notMet], n[notMeasurable])
}

// markdown writes the report as a page.
func (r *report) markdown(out io.Writer) {
	fmt.Fprintf(out, "# Latest results\n\nMade by `%s`, %s, in %.0f s. How to read this: [../README.md](../README.md).\n\n",
		r.Command, r.Started.Format("2006-01-02 15:04 MST"), float64(r.Elapsed)/1000)
	fmt.Fprintf(out, "Machine: %s.\n\n%s.\n", r.where(), r.summary())
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		fmt.Fprintf(out, "\n## %s\n\n%s (%s).\n\n", s.Name, upper(s.What), s.busy())
		h := heads()
		fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(h[:], " | "), strings.Repeat("---|", len(h)))
		var notes []string
		for j := range s.Figures {
			f := &s.Figures[j]
			c := f.cells()
			fmt.Fprintf(out, "| %s |\n", strings.Join(c[:], " | "))
			if f.Footnote != "" {
				notes = append(notes, f.What+": "+f.Footnote)
			}
		}
		for _, n := range notes {
			fmt.Fprintf(out, "\n%s\n", upper(n))
		}
		s.markdown(out, "###")
	}
}

// markdown writes the comparison with others, below titles of that depth.
func (s *section) markdown(out io.Writer, depth string) {
	for _, r := range byRow(s.Cells) {
		fmt.Fprintf(out, "\n%s %s, %s\n\nRatio: %s, to %s.\n\n", depth, upper(r.title), routeWords(r.route), measureWords(r.judged()), r.against())
		for i, line := range r.table() {
			fmt.Fprintf(out, "| %s |\n", strings.Join(line, " | "))
			if i == 0 {
				fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(line)))
			}
		}
	}
	for i, a := range s.Absent {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "- **Not compared: %s**: %s\n", a.Target, strings.ReplaceAll(a.Why, "|", "/"))
	}
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
