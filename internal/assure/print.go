package assure

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Style is how a report looks.
type Style uint8

const (
	// Plain writes text only.
	Plain Style = iota
	// Colored adds the colours of a terminal.
	Colored
)

const (
	lineWidth = 118 // characters of a line for people
	indent    = "      "
)

// paint puts a word into the colour of its outcome, padded to a width.
func (s Style) paint(o Outcome, word string, width int) string {
	padded := word + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(word)))
	if s == Plain {
		return padded
	}
	code := map[Outcome]string{Red: "1;31", Green: "32", Void: "1;35", Skip: "33"}[o]
	return "\x1b[" + code + "m" + padded + "\x1b[0m"
}

// dim makes what is less important fainter.
func (s Style) dim(text string) string {
	if s == Plain || text == "" {
		return text
	}
	return "\x1b[2m" + text + "\x1b[0m"
}

// Print writes the report for people: a table of all cases, what was seen below it,
// and the sums.
func (r Report) Print(w io.Writer, s Style) {
	fmt.Fprintf(w, "red-green: %s, model %s, %s\n\n", r.Dialect, r.Model, r.Began.Format("2006-01-02 15:04 UTC"))
	names := r.names()
	widest := len("case")
	for _, n := range names {
		widest = max(widest, utf8.RuneCountInString(n))
	}
	fmt.Fprintf(w, "  %-*s", widest+2, "case")
	for _, way := range r.Ways {
		fmt.Fprintf(w, "  %-9s", way)
	}
	fmt.Fprintf(w, "  %s\n", "what a RED means")
	for _, name := range names {
		fmt.Fprintf(w, "  %-*s", widest+2, name)
		title := ""
		for _, way := range r.Ways {
			x, ok := r.Of(name, way)
			if !ok {
				fmt.Fprintf(w, "  %-9s", "-")
				continue
			}
			title = x.Title
			fmt.Fprintf(w, "  %s", s.paint(x.Outcome, x.Outcome.String(), 9))
		}
		fmt.Fprintf(w, "  %s\n", s.dim(title))
	}
	fmt.Fprintln(w)
	for _, name := range names {
		r.explain(w, s, name)
	}
	r.sums(w, s)
}

// names returns the cases in the order in which they ran.
func (r Report) names() []string {
	var names []string
	seen := map[string]bool{}
	for _, x := range r.Results {
		if !seen[x.Case] {
			seen[x.Case] = true
			names = append(names, x.Case)
		}
	}
	return names
}

// explain writes what was seen of one case.
func (r Report) explain(w io.Writer, s Style, name string) {
	first := true
	for _, way := range r.Ways {
		x, ok := r.Of(name, way)
		if !ok {
			continue
		}
		if first {
			rules := ""
			if len(x.Rules) > 0 {
				rules = "  (" + strings.Join(x.Rules, ", ") + ")"
			}
			fmt.Fprintf(w, "  %s%s\n", name, s.dim(rules))
			first = false
		}
		head := fmt.Sprintf("    %-9s %s ", way, s.paint(x.Outcome, x.Outcome.String(), 5))
		took := fmt.Sprintf(" (%.1fs)", float64(x.Millis)/1000)
		wrapped(w, head, indent+strings.Repeat(" ", 14), x.Why+s.dim(took))
		if x.Control != "" {
			wrapped(w, indent+strings.Repeat(" ", 14)+"control: ", indent+strings.Repeat(" ", 14), x.Control)
		}
	}
}

// wrapped writes text behind a head, the lines that follow behind an indent.
func wrapped(w io.Writer, head, under, text string) {
	line, used := head, len(under)
	for i, word := range strings.Fields(text) {
		width := utf8.RuneCountInString(word)
		if i > 0 && used+1+width > lineWidth {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line, used = under, len(under)
		} else if i > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+width
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// sums writes one line for each way.
func (r Report) sums(w io.Writer, s Style) {
	fmt.Fprintln(w)
	for _, way := range r.Ways {
		fmt.Fprintf(w, "  %-9s", way)
		for _, o := range []Outcome{Red, Green, Void, Skip} {
			n := r.Count(way, o)
			text := fmt.Sprintf("%d %s", n, o)
			if n > 0 {
				text = s.paint(o, text, 0)
			}
			fmt.Fprintf(w, "  %s", text)
		}
		fmt.Fprintln(w)
	}
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Markdown writes the table of the report, for a page. Withheld cases are left out.
func (r Report) Markdown(w io.Writer) {
	fmt.Fprint(w, "| case | what a RED means |")
	for _, way := range r.Ways {
		fmt.Fprintf(w, " %s |", way)
	}
	fmt.Fprint(w, "\n|---|---|"+strings.Repeat("---|", len(r.Ways))+"\n")
	for _, name := range r.names() {
		if r.withheld(name) {
			continue
		}
		cells, title := "", ""
		for _, way := range r.Ways {
			x, ok := r.Of(name, way)
			cell := "-"
			if ok {
				title, cell = x.Title, x.Outcome.String()
			}
			if cell == Red.String() {
				cell = "**" + cell + "**"
			}
			cells += " " + cell + " |"
		}
		fmt.Fprintf(w, "| `%s` | %s |%s\n", name, title, cells)
	}
}

// withheld says whether a case is not for a page.
func (r Report) withheld(name string) bool {
	for _, x := range r.Results {
		if x.Case == name {
			return x.Withheld
		}
	}
	return false
}
