package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
)

// section is what one part of a peer leaves in docs/interop.md. It stands between two
// marks, so that parts do not overwrite each other.
type section struct {
	peer, part, title string
	began             time.Time
	facts             []string // lines: versions, how it was started
	contract          string   // what was held against what was recorded
	reports           []assure.Report
	notes             []string
	problems          []string
}

// fact adds a line that says what was run.
func (s *section) fact(format string, args ...any) {
	s.facts = append(s.facts, fmt.Sprintf(format, args...))
}

// note adds a line below the tables.
func (s *section) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// fail notes what is not as expected.
func (s *section) fail(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

func (s *section) marks() (begin, end string) {
	name := s.peer + " " + s.part
	return "<!-- begin " + name + " -->", "<!-- end " + name + " -->"
}

// render writes the section with its marks.
func (s *section) render() string {
	var b strings.Builder
	begin, end := s.marks()
	fmt.Fprintf(&b, "%s\n## %s, %s\n\n", begin, s.title, s.part)
	verdict := "All as expected."
	if len(s.problems) > 0 {
		verdict = fmt.Sprintf("**%d not as expected.**", len(s.problems))
	}
	fmt.Fprintf(&b, "Run on %s. %s\n\n", s.began.Format("2006-01-02"), verdict)
	for _, f := range s.facts {
		fmt.Fprintf(&b, "- %s\n", f)
	}
	if s.contract != "" {
		fmt.Fprintf(&b, "- %s\n", s.contract)
	}
	for _, r := range s.reports {
		b.WriteString("\n")
		r.Markdown(&b)
		if n := withheld(r); n > 0 {
			fmt.Fprintf(&b, "\n%d further results are withheld: what they would say is not public yet (SECURITY.md).\n", n)
		}
	}
	if len(s.notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range s.notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	fmt.Fprintf(&b, "%s\n", end)
	return b.String()
}

// pageHead is what a new page begins with.
const pageHead = `# Real engines

Written by ` + "`make interop-...`" + `: each section by the run that it tells of. RED: it leaks, dies or obeys who must not
command it. GREEN: it was tried, the control held, and nothing of that happened. VOID: the control failed. SKIP: it
was not tried. "direct" is straight at the engine, "bulkhead" through ` + "`bulkhead serve`" + ` in front of the same engine.
`

// write puts the section into the page, in place of the one that was there.
func (s *section) write(page string) error {
	old, err := os.ReadFile(page)
	if errors.Is(err, fs.ErrNotExist) {
		old = []byte(pageHead)
	} else if err != nil {
		return fmt.Errorf("interop: write section: %w", err)
	}
	text, err := place(string(old), s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		return fmt.Errorf("interop: write section: %w", err)
	}
	return nil
}

// place returns the page with the section in it.
func place(page string, s *section) (string, error) {
	begin, end := s.marks()
	from, to := strings.Index(page, begin), strings.Index(page, end+"\n")
	switch {
	case from < 0 && to < 0:
		return strings.TrimRight(page, "\n") + "\n\n" + s.render(), nil
	case from < 0 || to < from:
		return "", fmt.Errorf("interop: write section: the marks of %s %s are torn", s.peer, s.part)
	}
	return page[:from] + s.render() + page[to+len(end)+1:], nil
}

// withheld counts the results that are not for a page.
func withheld(r assure.Report) int {
	n := 0
	for _, x := range r.Results {
		if x.Withheld {
			n++
		}
	}
	return n
}
