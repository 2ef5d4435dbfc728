package spec

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var runSpin = flag.Bool("spin", false, "check handoff.pml with Spin; takes about two minutes and 1 GB")

// spin builds the model, without a guard if one is named, and searches all its states.
func spin(t *testing.T, off string) (states, violation string) {
	t.Helper()
	model, err := filepath.Abs("handoff.pml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%.2000s", name, err, out)
		}
		return string(out)
	}
	args := []string{"-a"}
	if off != "" {
		args = append(args, "-DOFF_"+off)
	}
	run("spin", append(args, model)...)
	run("gcc", "-O1", "-DSAFETY", "-DCOLLAPSE", "-w", "-o", "pan", "pan.c")
	out := run("./pan", "-m100000", "-w22")
	if strings.Contains(out, "max search depth too small") || strings.Contains(out, "out of memory") {
		t.Fatalf("the search was cut short:\n%.2000s", out)
	}
	find := func(pattern string) string {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(out); m != nil {
			return m[1]
		}
		return ""
	}
	return find(`(\d+) states, stored`), find(`pan:1: (.*) \(at depth`)
}

// TestSpin searches the model with every guard, and without each: each removal is found.
func TestSpin(t *testing.T) {
	if !*runSpin {
		t.Skip("not asked for: go test ./spec -spin, or make spec")
	}
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed, so nothing was searched: apt-get install %s", tool, tool)
		}
	}
	b, err := os.ReadFile("handoff.pml")
	if err != nil {
		t.Fatal(err)
	}
	guards := regexp.MustCompile(`#ifndef OFF_([A-Z]+)`).FindAllStringSubmatch(string(b), -1)
	if len(guards) < 8 {
		t.Fatalf("the model has %d guards", len(guards))
	}
	t.Run("all guards", func(t *testing.T) {
		states, violation := spin(t, "")
		if violation != "" || states == "" {
			t.Fatalf("%s after %s states", violation, states)
		}
		t.Logf("%s states, nothing found", states)
	})
	for _, g := range guards {
		t.Run("without "+strings.ToLower(g[1]), func(t *testing.T) {
			states, violation := spin(t, g[1])
			if violation == "" {
				t.Fatalf("nothing found in %s states", states)
			}
			t.Logf("%s states: %s", states, violation)
		})
	}
}
