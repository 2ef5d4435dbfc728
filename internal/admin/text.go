package admin

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// page collects lines and writes them at once.
type page struct {
	text strings.Builder
}

func (p *page) line(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = printable(s)
		}
	}
	p.text.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// row is one line of facts behind a word.
func (p *page) row(word string, facts ...string) {
	var all []string
	for _, f := range facts {
		if f != "" {
			all = append(all, printable(f))
		}
	}
	if len(all) > 0 {
		p.line("  %-9s%s", word, strings.Join(all, ", "))
	}
}

// table writes rows below each other, indented.
func (p *page) table(indent string, rows [][]string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i := range r {
			r[i] = printable(r[i])
		}
		fmt.Fprintln(w, indent+strings.Join(r, "\t"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	for line := range strings.Lines(b.String()) {
		p.text.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

func (p *page) writeTo(w io.Writer) error {
	_, err := io.WriteString(w, p.text.String())
	return err
}

// span is a length of time for people.
func span(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 100*time.Second && d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 100*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// num is a number, or a question mark where it is not known.
func num[T int | int64](n *T) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatInt(int64(*n), 10)
}

func many(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.FormatInt(n, 10) + " " + what
}

// Text writes an explanation as one screen.
func (e Explanation) Text(w io.Writer) error {
	p := &page{}
	status := "no status was sent"
	if e.Status != nil {
		status = "HTTP " + num(e.Status)
	}
	head := e.ID + "   " + strings.ToUpper(e.Verdict) + ", " + status
	if e.Code != "" {
		head += ", " + e.Code
	}
	p.line("%s", head)
	whole := span(e.Total) + " in all"
	first := "no byte was sent"
	if e.First != nil {
		first = "first byte after " + span(*e.First)
	}
	early := ""
	if e.Committed != nil {
		early = "header before the verdict after " + span(*e.Committed)
		first = strings.Replace(first, "no byte", "no byte of an answer", 1)
	}
	p.row("when", e.Start.UTC().Format("2006-01-02 15:04:05.000 UTC"), whole, early, first)
	p.row("waited", when(e.Queued > 0, span(e.Queued)+" for a node with room"), when(e.Held > 0, span(e.Held)+" held until the verdict"))
	p.row("who", when(e.Tenant != "", "tenant "+e.Tenant), when(e.Probe, "the gateway's own known-answer question"),
		when(e.Client != "", "client's id "+e.Client), when(e.Domain != "", "domain "+e.Domain))
	p.row("asked", when(e.Model != "", e.Model), e.Path, when(e.Stream, "as a stream"), many(e.Body, "byte"),
		when(e.Sequences > 1, many(int64(e.Sequences), "answer")), when(e.MaxTokens != nil, "at most "+num(e.MaxTokens)+" tokens each"))
	p.row("counted", when(e.Prompt != nil, "prompt "+num(e.Prompt)+" tokens"), when(e.Completion != nil, "answer "+num(e.Completion)+" ("+e.From+")"),
		when(e.Count != "", "judged by "+counted(e.Count)))
	p.row("legs", e.Agreement, when(e.Late, "compared at the end only"), when(e.Attempts > 1, many(int64(e.Attempts), "attempt")),
		when(e.Target != "", "at "+e.Target), when(e.Attempt != "", "attempt "+e.Attempt))
	if len(e.Legs) > 0 {
		p.table("    ", e.legs())
	}
	if l := e.Lease; l != nil && l.Of > 0 {
		p.row("lease", fmt.Sprintf("%s, of which %s (%.0f %%) had passed at decode's first token", span(l.Of), span(l.Used), 100*l.Used/l.Of))
	}
	p.row("odd", e.Oddities)
	p.row("shadow", when(len(e.Shadowed) > 0, "passed only because the list is in shadow: "+strings.Join(e.Shadowed, " ")))
	return p.writeTo(w)
}

func (e Explanation) legs() [][]string {
	rows := [][]string{{"ROLE", "NODE", "STATUS", "PROMPT", "CACHED", "ANSWER", "FIRST", "TOOK", "ID"}}
	numbered := slices.ContainsFunc(e.Legs, func(l Leg) bool { return l.Sequence > 0 })
	for _, l := range e.Legs {
		role, first := l.Role, "?"
		if numbered {
			role += " " + strconv.Itoa(l.Sequence)
		}
		if l.First != nil {
			first = span(*l.First)
		}
		rows = append(rows, []string{role, l.Node, num(l.Status), num(l.Prompt), num(l.Cached), num(l.Completion), first, span(l.Took), l.ID})
	}
	return rows
}

// counted says who counted.
func counted(how string) string {
	switch how {
	case "bytes":
		return "its length"
	case "engine":
		return "the engine's own count"
	}
	return how
}

// when is a text where a condition holds.
func when(holds bool, text string) string {
	if holds {
		return text
	}
	return ""
}

// Text writes the posture as a table.
func (s Posture) Text(w io.Writer) error {
	p := &page{}
	rows := [][]string{{"ROUTE", "RULE", "", "STATE", "WHY"}}
	last := ""
	counts := map[string]int{}
	for _, st := range s.Stances {
		counts[st.State]++
		route := or(st.Route, "(all)")
		if route == last {
			route = ""
		} else {
			last = route
		}
		state := strings.ToUpper(st.State)
		if st.State == "not applicable" {
			state = "-"
		}
		if st.Until != nil {
			state += " until " + st.Until.UTC().Format("2006-01-02 15:04 UTC")
		}
		rows = append(rows, []string{route, st.Rule, st.Title, state, st.Reason})
	}
	p.table("", rows)
	p.line("")
	var sum []string
	for _, state := range []string{"enforced", "shadow", "off", "unknown", "not applicable"} {
		if n := counts[state]; n > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", n, state))
		}
	}
	verdict := "every rule that applies is enforced"
	if !s.Whole {
		verdict = "not every rule is enforced"
	}
	p.line("%s: %s", strings.Join(sum, ", "), verdict)
	return p.writeTo(w)
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// Text writes what enforce would have refused, and the grants that would let it pass.
func (s Shadow) Text(w io.Writer, now time.Time) error {
	p := &page{}
	since := span(float64(now.Sub(s.Since).Milliseconds()))
	if len(s.Counts) == 0 {
		p.line("Nothing has passed in the last %s that enforce would have refused.", since)
		return p.writeTo(w)
	}
	p.line("In the last %s enforce would have refused:", since)
	p.line("")
	rows := [][]string{{"FIELD", "TENANT", "MODEL", "REQUESTS", ""}}
	for _, c := range s.Counts {
		note := ""
		if !c.Grantable {
			note = "no list has it: the client must leave it out"
		}
		rows = append(rows, []string{c.Field, c.Tenant, c.Model, strconv.FormatInt(c.Count, 10), note})
	}
	p.table("  ", rows)
	if s.Grant != "" {
		p.line("")
		p.line("To let pass what can be granted, put this into the configuration:")
		p.line("")
		for line := range strings.Lines(s.Grant) {
			p.line("  %s", strings.TrimRight(line, "\n"))
		}
	}
	return p.writeTo(w)
}

// NodesText writes what a look at the engines found, as a table.
func NodesText(w io.Writer, models []ModelState, nodes []NodeState) error {
	p := &page{}
	rows := [][]string{{"MODEL", "NODE", "ROLE", "FOUND", "WINDOW", "POOL", "PROMPT", "VERSION"}}
	var remarks [][]string
	for _, n := range nodes {
		rows = append(rows, []string{n.Model, n.Node, n.Role, n.Why, num(n.Window), num(n.Pool), num(n.Prompt), or(n.Version, "?")})
		if n.Router != "" {
			remarks = append(remarks, []string{n.Node, "a router answers here in place of an engine: " + n.Router})
		}
		if n.Misfit != "" {
			remarks = append(remarks, []string{n.Node, n.Misfit})
		}
		if n.Hint != "" {
			remarks = append(remarks, []string{n.Node, n.Hint})
		}
		if n.SourceFailed {
			remarks = append(remarks, []string{n.Node, "its source gives no usable list at the moment"})
		}
		for _, f := range n.Findings {
			remarks = append(remarks, []string{n.Node, f})
		}
	}
	p.table("", rows)
	p.line("")
	p.table("  ", remarks)
	if len(remarks) > 0 {
		p.line("")
	}
	for _, m := range models {
		state := "takes no requests as it stands"
		if m.Ready {
			state = "takes requests"
		}
		if m.Advertised != nil {
			state += "; prompt and answer together may have " + num(m.Advertised) + " tokens"
		}
		p.line("%s (%s) %s", m.Model, m.Engine, state)
	}
	return p.writeTo(w)
}
