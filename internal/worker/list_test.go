package worker

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
)

// TestListsAreBounded holds that a list costs no more memory than its longest use allows,
// however long it is in the body (G-14).
func TestListsAreBounded(t *testing.T) {
	for _, tc := range []struct {
		raw    string
		n      int
		listed bool
	}{
		{`"a"`, 1, false}, {`7`, 1, false}, {`[]`, 0, true}, {`["a"]`, 1, true}, {` ["a"]`[1:], 1, true}, {`[1,[2,3],"c"]`, 3, true},
		{"[" + strings.Repeat("1,", maxSequences-1) + "1]", maxSequences, true},
		{"[" + strings.Repeat("1,", 1<<20) + "1]", maxSequences + 1, true},
	} {
		got, listed := list([]byte(tc.raw))
		if len(got) != tc.n || listed != tc.listed {
			t.Errorf("%.20s: %d, %v", tc.raw, len(got), listed)
		}
	}
	long := []byte("[" + strings.Repeat(`"",`, 1<<20) + `""]`)
	if n := testing.AllocsPerRun(1, func() { list(long) }); n > 20*maxSequences {
		t.Errorf("%v allocations", n)
	}
	// Many prompts are refused; as many tokens of one are taken.
	for raw, want := range map[string]bool{string(long): false, "[" + strings.Repeat("1,", 1<<16) + "1]": true} {
		c := &call{form: formText}
		prompts, f := c.promptsOf(members{"prompt": []byte(raw)}, 1)
		if (f == nil) != want {
			t.Errorf("%.10s: %v", raw, f)
		}
		if want && (len(prompts) != 1 || !bytes.Equal(prompts[0], []byte(raw))) {
			t.Errorf("%.10s: %d prompts", raw, len(prompts))
		}
	}
	rooms := make([]string, maxSequences+1)
	for i := range rooms {
		rooms[i] = strconv.Itoa(i + 1)
	}
	if got, _ := list([]byte("[" + strings.Join(rooms, ",") + "]")); len(got) != len(rooms) {
		t.Errorf("%d rooms: one too many must be seen", len(got))
	}
}
