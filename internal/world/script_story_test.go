package world

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
)

// storyStates bounds the exploration of a story's world without its fault. What is larger
// is explored in part: it may be unknown, never broken.
const storyStates = 25_000

// TestStoriesWithoutTheirFault holds that it is the fault that each story tells of: the same
// moves under every guard and with no foreign habit do not end so, and neither does anything
// else in that world.
func TestStoriesWithoutTheirFault(t *testing.T) {
	files, err := filepath.Glob("testdata/stories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := string(raw)
			number, title, ok := strings.Cut(strings.TrimPrefix(text, "# "), ". ")
			if first, rest, _ := strings.Cut(title, "\n"); !ok || !isNumber(number) || !strings.HasSuffix(first, ".") || !strings.HasPrefix(rest, "# ") {
				t.Errorf("its first lines are no title and what happens: %.80q", text)
			}
			faulty, control, ok := strings.Cut(text, "\nworld\n")
			if !ok || !strings.Contains(faulty, "expect broken") || strings.Contains(control, "expect broken") || !strings.Contains(control, "expect rest") {
				t.Fatal("want a world that breaks, and one that comes to rest")
			}
			var kept []string
			for _, line := range strings.Split(faulty, "\n") {
				if !strings.HasPrefix(line, "guards ") && !strings.HasPrefix(line, "habits ") {
					kept = append(kept, line)
				}
			}
			if _, broken, err := Replay(strings.Join(kept, "\n")); err == nil || broken.Invariant != NoInvariant {
				t.Errorf("without its fault it ends in %v: %v (%v)", broken.Invariant, broken, err)
			}
			p := newPlayer()
			for _, line := range kept {
				if words := strings.Fields(line); len(words) > 0 && line[0] != '#' && words[0] != "hold" {
					if done, err := p.setting(words); err != nil || !done {
						break
					}
				}
			}
			if x := model(t, p.sc, handoff.All).Explore(context.Background(), Limits{States: storyStates}); x.Outcome == Fail || x.Outcome == Unknown && x.Why != whyMemory {
				t.Errorf("without its fault: %v %v: %v %v", x.Outcome, x.Why, x.Broken.Invariant, x.Broken)
			}
		})
	}
}

// isNumber reports whether a word is the number of a scenario, a recipe or a rule, or one of
// the three that have a name instead.
func isNumber(word string) bool {
	switch word {
	case "lease", "handle", "chunks":
		return true
	}
	digits := strings.TrimLeft(word, "SRH-")
	return digits != "" && digits != word && strings.Trim(digits, "0123456789") == ""
}

// scope is every scenario of the hand-off that docs/proof.md must speak of.
func scope() (all []string) {
	for _, n := range strings.Fields("1 2 3 4 5 6 8 9 10 11 12 13 14 15 16 17 18 19 20 21 24 25 26 27 28 29 30 31 32 34 35 36 37 38 " +
		"39 41 42 43 44 46 47 49 50 51 52") {
		all = append(all, "S"+n)
	}
	return append(all, "R1", "R2", "R3")
}

// TestProofPage holds that docs/proof.md has a row for every scenario in scope, that each row
// names a story that is there or says why there is none, and that no story is left out.
func TestProofPage(t *testing.T) {
	raw, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("testdata/stories/*.txt")
	told := map[string]bool{}
	for _, f := range files {
		told[strings.TrimSuffix(filepath.Base(f), ".txt")] = false
	}
	rows := map[string]int{}
	for _, line := range strings.Split(string(raw), "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !isNumber(strings.TrimPrefix(cells[0], "| ")) {
			continue
		}
		number, how := strings.TrimPrefix(cells[0], "| "), cells[3]
		rows[number]++
		out, names := strings.HasPrefix(how, "out: "), 0
		for i, word := range strings.Split(how, "`") {
			if _, ok := told[word]; ok && i%2 == 1 && !out {
				told[word] = true
				names++
			}
		}
		if names == 0 && !(out && len(how) > 20) {
			t.Errorf("%s: %q names no story and no reason", number, how)
		}
	}
	for _, n := range scope() {
		if rows[n] == 0 {
			t.Errorf("no row for %s", n)
		}
	}
	for n, ok := range told {
		if !ok {
			t.Errorf("story %s is in no row", n)
		}
	}
}

// TestCoverageOfPages is recipe R1: of three pages any subset has landed when prefill is
// told that all have. Decode serves exactly if the subset is all three.
func TestCoverageOfPages(t *testing.T) {
	for _, guards := range []string{"all", "all but digest"} {
		leaked := 0
		for landed := range 8 {
			script := "pools decode 3 source 3\nattempt a domain 1 room 1 prompt 0 pages 3\nbudget early 3\nhold V1\nguards " + guards +
				"\ndoor decode a\ndoor prefill a\ndeliver ask a\nsource a\ncompute a\ncompute a\ncompute a\ndeliver offer a\nreserve a\ndeliver grant a\n"
			for page, name := range []string{"a.0", "a.1", "a.2"} {
				if landed>>page&1 != 0 {
					script += "land " + name + "\ncomplete " + name + "\n"
				} else {
					script += "early " + name + "\n"
				}
			}
			script += "deliver notice a\nsealed a\n"
			if guards == "all" {
				script += "verify a\n"
			}
			want := "integrity"
			if landed == 7 || guards != "all" {
				script += "read a\n"
				want = "ok"
			}
			_, broken, err := Replay(script + "expect answer decode a " + want)
			switch {
			case broken.Invariant == V1 && landed != 7 && guards != "all":
				leaked++
			case err != nil:
				t.Errorf("guards %s, landed %03b: %v", guards, landed, err)
			}
		}
		if guards != "all" && leaked != 7 {
			t.Errorf("without the digest %d of 7 subsets are read", leaked)
		}
	}
}
