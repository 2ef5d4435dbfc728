package drill

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Schema names the shape of [Report] as JSON. See docs/schema/drill.md.
const Schema = "bulkhead.drill/v1"

// Report is what a whole drill session showed.
type Report struct {
	Schema string   `json:"schema"`
	Pass   bool     `json:"pass"`
	Drills []Result `json:"drills"`
}

// NewReport sums up results. No drill is no pass.
func NewReport(all []Result) Report {
	r := Report{Schema: Schema, Pass: len(all) > 0, Drills: all}
	for _, d := range all {
		r.Pass = r.Pass && d.Pass
	}
	return r
}

// Print writes one drill for people.
func Print(w io.Writer, d Result) {
	fmt.Fprintf(w, "%s: %s\n", strings.ToUpper(d.Name), d.Title)
	for _, l := range d.Story {
		fmt.Fprintf(w, "    %s\n", l)
	}
	for _, run := range []*Run{d.Off, d.On} {
		if run != nil {
			run.print(w)
		}
	}
	fmt.Fprintln(w)
}

func (r *Run) print(w io.Writer) {
	fmt.Fprintf(w, "\n  guards: %s\n", r.Guards)
	line(w, "tenant A asks for its own text", "", r.Control)
	answer := "HTTP " + strconv.Itoa(r.Status)
	if r.Code != "" {
		answer += " " + r.Code
	} else {
		answer += ", prompt_tokens " + strconv.Itoa(r.PromptTokens)
	}
	line(w, "tenant B is answered", answer, r.Verdict)
	switch {
	case r.Message != "":
		fmt.Fprintf(w, "    it reads        %s\n", r.Message)
	default:
		fmt.Fprintf(w, "    it reads        %s\n", strconv.Quote(r.Answer))
	}
	if r.Foreign != "" {
		fmt.Fprintf(w, "    tenant A's text %s\n", strconv.Quote(r.Foreign))
	}
	if !r.PoolsWhole {
		fmt.Fprintf(w, "    pages were lost: a pool is not whole\n")
	}
}

// line is a label, what was seen, and a verdict in a column.
func line(w io.Writer, label, seen string, v Verdict) {
	fmt.Fprintf(w, "    %-31s %-38s %s\n", label, seen, v)
}

// Summary is the last line for people.
func (r Report) Summary() string {
	leaked, held, off, on := 0, 0, 0, 0
	for _, d := range r.Drills {
		if d.Off != nil {
			off++
			if d.Off.Verdict == Leaked {
				leaked++
			}
		}
		if d.On != nil {
			on++
			if d.On.Verdict == Refused || d.On.Verdict == Served {
				held++
			}
		}
	}
	var parts []string
	if off > 0 {
		parts = append(parts, fmt.Sprintf("guards off: %d of %d leaked, as they must", leaked, off))
	}
	if on > 0 {
		parts = append(parts, fmt.Sprintf("guards on: %d of %d refused or right", held, on))
	}
	return strings.Join(parts, "; ")
}
