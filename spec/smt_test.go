package spec

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// smt is the specification and the names in it.
type smt struct {
	text                   string
	guards, steps, clauses []string
}

func readSMT(t *testing.T) smt {
	t.Helper()
	b, err := os.ReadFile("handoff.smt2")
	if err != nil {
		t.Fatal(err)
	}
	s := smt{text: string(b)}
	names := func(pattern string) []string {
		var all []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(s.text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	s.guards = names(`(?m)^\(declare-const g-([a-z-]+) Bool\)`)
	s.steps = names(`(?m)^\(define-fun t-([a-z-]+) \(\) Bool`)
	s.clauses = names(`(?m)^\(define-fun inv-([a-z-]+) \(\) Bool`)
	if post := names(`(?m)^\(define-fun post-([a-z-]+) \(\) Bool`); !slices.Equal(s.clauses, post) {
		t.Fatalf("clauses before and after a step differ: %v, %v", s.clauses, post)
	}
	if len(s.guards) < 10 || len(s.steps) < 10 || len(s.clauses) < 10 {
		t.Fatalf("read %d guards, %d steps, %d clauses", len(s.guards), len(s.steps), len(s.clauses))
	}
	return s
}

// obligation is one question to a solver.
type obligation struct {
	name    string
	asserts string
}

// with asserts every guard but those that are off.
func (s smt) with(off ...string) string {
	var b strings.Builder
	for _, g := range s.guards {
		if slices.Contains(off, g) {
			fmt.Fprintf(&b, "(assert (not g-%s))", g)
		} else {
			fmt.Fprintf(&b, "(assert g-%s)", g)
		}
	}
	return b.String()
}

func (s smt) invariant() string {
	var b strings.Builder
	for _, c := range s.clauses {
		b.WriteString("(assert inv-" + c + ")")
	}
	return b.String()
}

// keeps lists what must be unsatisfiable: a step that breaks a clause.
func (s smt) keeps(off ...string) []obligation {
	var all []obligation
	for _, t := range s.steps {
		for _, c := range s.clauses {
			all = append(all, obligation{t + " keeps " + c, s.with(off...) + s.invariant() + "(assert t-" + t + ")(assert (not post-" + c + "))"})
		}
	}
	return all
}

// ask runs a solver over all obligations in one process and returns its answers by name.
// A solver that is missing skips the test, loudly.
func (s smt) ask(t *testing.T, solver []string, all []obligation) map[string]string {
	t.Helper()
	if _, err := exec.LookPath(solver[0]); err != nil {
		t.Skipf("%s is not installed, so nothing was proved: apt-get install %s", solver[0], solver[0])
	}
	var script strings.Builder
	script.WriteString(s.text)
	for _, o := range all {
		script.WriteString("(push 1)" + o.asserts + "(check-sat)(pop 1)\n")
	}
	cmd := exec.Command(solver[0], solver[1:]...)
	cmd.Stdin = strings.NewReader(script.String())
	out, err := cmd.CombinedOutput()
	lines := strings.Fields(string(out))
	if len(lines) != len(all) {
		t.Fatalf("%s gave %d answers to %d questions: %v\n%.2000s", solver[0], len(lines), len(all), err, out)
	}
	answers := map[string]string{}
	for i, o := range all {
		answers[o.name] = lines[i]
	}
	return answers
}

func z3() []string { return []string{"z3", "-in", "-t:20000"} }
func cvc5() []string {
	return []string{"cvc5", "--incremental", "--lang=smt2", "--tlimit-per=20000", "-"}
}

// TestInductive proves that the first state satisfies the invariant, that every step keeps
// it, and that it implies what we want. Both solvers must agree.
func TestInductive(t *testing.T) {
	s := readSMT(t)
	all := s.keeps()
	for _, c := range s.clauses {
		all = append(all, obligation{"init has " + c, s.with() + "(assert init)(assert (not inv-" + c + "))"})
	}
	all = append(all, obligation{"safe", s.with() + s.invariant() + "(assert (not safe))"})
	for name, solver := range map[string][]string{"z3": z3(), "cvc5": cvc5()} {
		t.Run(name, func(t *testing.T) {
			answers := s.ask(t, solver, all)
			for _, o := range all {
				if answers[o.name] != "unsat" {
					t.Errorf("%s: %s", o.name, answers[o.name])
				}
			}
			t.Logf("%d obligations of %d steps and %d clauses", len(all), len(s.steps), len(s.clauses))
		})
	}
}

// TestPossible shows that the proof is not about nothing: every step can happen, and a
// state with a reader of own pages exists.
func TestPossible(t *testing.T) {
	s := readSMT(t)
	var all []obligation
	for _, step := range s.steps {
		off := []string{}
		if step == "reuse-source" {
			off = append(off, "source-hold") // the guard forbids the step
		}
		all = append(all, obligation{step, s.with(off...) + s.invariant() + "(assert t-" + step + ")"})
	}
	all = append(all, obligation{"a reader", s.with() + s.invariant() + "(assert (exists ((p Page) (g Gen)) (and (reads g) (owns p g) (answered g))))"})
	for name, answer := range s.ask(t, z3(), all) {
		if answer != "sat" {
			t.Errorf("%s: %s", name, answer)
		}
	}
}

// TestDropOne switches off one guard at a time: the clause that it is there for is lost,
// at the steps that it binds, and nothing else is.
func TestDropOne(t *testing.T) {
	s := readSMT(t)
	want := map[string][]string{
		"offer":       {"offer keeps offers-equal", "reserve keeps admitted"},
		"extent":      {"verify keeps proved"},
		"input":       {"verify keeps input"},
		"seal":        {"verify keeps sealed-first"},
		"digest":      {"verify keeps proved"},
		"key":         {"land keeps no-stray", "free keeps open-is-owned"},
		"generation":  {"notice keeps complete"},
		"epoch":       {"restart keeps known"},
		"completion":  {"notice keeps complete"},
		"source-hold": {"reuse-source keeps source"},
		"domain":      {"borrow keeps domain"},
		"header":      {"answer keeps header"},
	}
	for _, g := range s.guards {
		t.Run(g, func(t *testing.T) {
			all := s.keeps(g)
			answers := s.ask(t, z3(), all)
			var lost []string
			for _, o := range all {
				switch answers[o.name] {
				case "sat":
					lost = append(lost, o.name)
				case "unsat":
				default:
					t.Errorf("%s: %s", o.name, answers[o.name])
				}
			}
			slices.Sort(lost)
			expected := slices.Clone(want[g])
			slices.Sort(expected)
			if len(expected) == 0 || !slices.Equal(lost, expected) {
				t.Errorf("lost %q, want %q", lost, expected)
			}
		})
	}
}
