package world

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories in testdata do now into them; read the diff")

// TestStories plays every story in testdata. A story is blocks: commands, a line
// of dashes, and what they must print, up to an empty line.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	more, err2 := filepath.Glob("testdata/stories/*.txt")
	files = append(files, more...)
	if err != nil || err2 != nil || len(more) < 40 {
		t.Fatalf("%d stories: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tell(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("it goes differently now (-rewrite shows it in a diff):\n%s", firstDifference(string(text), got))
			}
		})
	}
}

// tell plays a story and returns it with what its commands print now. What a
// story expects is an error if it is not so, whatever it says was printed.
func tell(story string) (string, error) {
	var out strings.Builder
	p := newPlayer()
	expected := false // the lines are a block's old output
	for n, line := range strings.Split(strings.TrimSuffix(story, "\n"), "\n") {
		command, _, _ := strings.Cut(line, "#")
		switch command = strings.TrimSpace(command); {
		case line == dashes:
			expected = true
			fmt.Fprintf(&out, "%s\n%s", line, p.out)
			p.out = p.out[:0]
		case strings.TrimSpace(line) == "":
			expected = false
			out.WriteString("\n")
		case expected:
		default:
			out.WriteString(line + "\n")
			if command == "" {
				continue
			}
			if err := p.play(command); err != nil {
				return "", fmt.Errorf("line %d: %s: %w", n+1, command, err)
			}
		}
	}
	return out.String(), p.end()
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d\n- %s\n+ %s", i+1, x[i], y[i])
		}
	}
	return "one is longer"
}

// TestScriptRefuses holds that a script that cannot be played says which line,
// and that no violation goes unnoticed.
func TestScriptRefuses(t *testing.T) {
	const start = "pools decode 1 source 1\nattempt a domain 1 room 1 prompt 0 pages 1\n"
	const leak = "pools decode 1 source 1\nattempt a domain 1 room 1 prompt 0 pages 1\nguards all but header\n" +
		"door decode a\ndoor prefill a\ndeliver ask a\nsource a\ndeliver offer a\nreserve a\n"
	for _, c := range []struct{ name, script, want string }{
		{"a move that is not enabled", start + "land a.0", "line 3: land a.0: not possible here"},
		{"a move of nobody", start + "door decode b", "not possible here"},
		{"a setting too late", start + "door decode a\ntorn", "not possible here"},
		{"an unknown guard", start + "guards all but hope", "unknown guard hope"},
		{"an unknown fault", start + "budget hope 1", "unknown fault hope"},
		{"an unknown word", "pools decode 1 source 1 sink 1", "unknown word sink"},
		{"a number that is none", "pools decode x source 1", "want a number"},
		{"a missing word", "pools decode 1", "a word is missing"},
		{"attempts out of order", "attempt b domain 1 room 1 prompt 0 pages 1", "in order"},
		{"an attempt out of bounds", "pools decode 1 source 1\nattempt a domain 1 room 1 prompt 0 pages 2\ndoor decode a", "larger than a pool"},
		{"an unknown conduct", start[:len(start)-1] + " prefill hopes\ndoor decode a", "out of bounds"},
		{"an unknown expectation", start + "door decode a\nexpect luck", "unknown expectation"},
		{"an expectation that is not met", start + "door decode a\nexpect served a", "decode waiting"},
		{"an answer that is not given", start + "door decode a\nexpect answer decode a ok", "it is waiting"},
		{"a break that did not happen", start + "finish\nexpect broken V1", "broken: none"},
		{"the wrong break", leak + "expect broken V1", "broken: V9"},
		{"rest too early", start + "door decode a\nexpect rest", "things still happen"},
		{"what is possible", start + "expect impossible door decode a", "it is possible"},
		{"a break that nobody expects", leak, "V9 broke"},
		{"a break that a move follows", leak + "deliver grant a", "V9 broke"},
		{"a break before a new world", leak + "world", "V9 broke"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Replay(c.script)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for _, good := range []string{start + "finish\nexpect served a\nexpect rest\nexpect sound", leak + "expect broken V9"} {
		if _, _, err := Replay(good); err != nil {
			t.Errorf("a good script: %v", err)
		}
	}
}
