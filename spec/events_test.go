package spec

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

// TestEvents holds that every event of the code has a row, and that the names in the rows
// are in the specifications.
func TestEvents(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	table, smt, pml := read("events.md"), read("handoff.smt2"), read("handoff.pml")
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), "|")
		if len(cells) >= 3 && !strings.HasPrefix(line, "|-") {
			rows[strings.TrimSpace(cells[0])] = cells[1:]
		}
	}
	events := 0
	for on := handoff.OnAsk; on <= handoff.OnPeerGone; on++ {
		events++
		cells, ok := rows[on.String()]
		if !ok {
			t.Errorf("the event %s has no row", on)
			continue
		}
		for i, text := range []string{smt, pml} {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[i], -1) {
				if !strings.Contains(text, m[1]) {
					t.Errorf("%s: %q is in neither step nor process of its specification", on, m[1])
				}
			}
		}
	}
	if events < 20 || len(rows) < events {
		t.Fatalf("%d events, %d rows", events, len(rows))
	}
	for _, m := range regexp.MustCompile(`(?m)^\(define-fun (t-[a-z-]+) `).FindAllStringSubmatch(smt, -1) {
		if !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("the step %s is not in the table", m[1])
		}
	}
}
