package assure

import (
	"errors"
	"testing"
	"time"
)

func TestSGLangRefused(t *testing.T) {
	for name, c := range map[string]struct {
		attempt attempt
		want    bool
	}{
		"an error in time":       {attempt{client: Answer{Status: 400, Took: time.Second}}, true},
		"an error too late":      {attempt{client: Answer{Status: 400, Took: 3 * time.Second}}, false},
		"an error with text":     {attempt{client: Answer{Status: 500, Text: "one"}}, false},
		"an error with a secret": {attempt{client: Answer{Status: 500}, hits: []Hit{{Owner: 1}}}, false},
		"an answer":              {attempt{client: Answer{Status: 200, Done: true}}, false},
		"no answer":              {attempt{client: Answer{Err: errors.New("time was up")}}, false},
	} {
		if got := c.attempt.refused(soon); got != c.want {
			t.Errorf("%s: refused is %v", name, got)
		}
	}
}

func TestSGLangForms(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range forms() {
		body := f.body("a text", 3, map[string]any{"frequency_penalty": 1.0})
		_, chat := body["messages"]
		_, text := body["prompt"]
		if chat == text || chat != (f.path == chatPath) || body["stream"] != f.stream || body["max_tokens"] != 3 || body["frequency_penalty"] != 1.0 {
			t.Errorf("%v asks with %v", f, body)
		}
		seen[f.String()] = true
	}
	if len(seen) != 4 {
		t.Errorf("the forms are %v", seen)
	}
}

// TestSGLangOverrides: the headers carry what the fields carry, and nothing else.
func TestSGLangOverrides(t *testing.T) {
	got := overrides(map[string]any{"bootstrap_room": int64(1 << 62), "prompt": "a text", "rid": "r"})
	want := map[string]string{"x-override-bootstrap-room": "4611686018427387904", "x-override-rid": "r"}
	if len(got) != len(want) {
		t.Errorf("headers are %v", got)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
}
