package admin

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

func ptr[T any](v T) *T { return &v }

// noon is when the examples happened.
func noon() time.Time { return time.Date(2026, 12, 1, 12, 0, 0, 221e6, time.UTC) }

func explanation() Explanation {
	return Explanation{
		Schema: ExplainSchema, ID: "bk-5f1c9a7e2b", Client: "cart-42", Tenant: "acme", Model: "smol", Domain: "9d41c0de",
		Path: "/v1/chat/completions", Stream: true, Start: noon(), Verdict: "served", Status: ptr(200), Agreement: "agreed",
		Count: "engine", Prompt: ptr(int64(412)), Completion: ptr(int64(37)), From: "reported", MaxTokens: ptr(int64(256)),
		Sequences: 1, Attempts: 1, Body: 1890, First: ptr(412.0), Total: 1834, Held: 21.5, Target: "p-0/d-1",
		Attempt: "00112233445566778899aabbccddeeff", Lease: &Lease{Of: 30000, Used: 402},
		Legs: []Leg{
			{Role: "prefill", Node: "10.0.0.1:30000", ID: "chatcmpl-8f3c", Status: ptr(200), Prompt: ptr(int64(412)), Completion: ptr(int64(1)), Cached: ptr(int64(256)), First: ptr(380.0), Took: 381},
			{Role: "decode", Node: "10.0.0.2:30000", ID: "chatcmpl-8f3c", Status: ptr(200), Prompt: ptr(int64(412)), Completion: ptr(int64(37)), First: ptr(11.0), Took: 1433},
		},
		Shadowed: []string{"echo", "logit_processor"}, Oddities: "handle dropped",
	}
}

func refusal() Explanation {
	return Explanation{
		Schema: ExplainSchema, ID: "bk-77", Tenant: "acme", Model: "smol", Path: "/v1/completions", Start: noon(),
		Verdict: "refused", Status: ptr(400), Code: "prompt_exceeds_pool", Count: "bytes", Body: 1 << 20, Total: 0.4,
	}
}

func split() Explanation {
	e := explanation()
	e.Verdict, e.Code, e.Status, e.Agreement, e.First, e.Lease, e.Sequences, e.Attempts = "void", "legs_disagree", ptr(502), "prompt counts differ", nil, nil, 2, 2
	e.Legs[1].Sequence, e.Legs[1].Status, e.Legs[1].First = 1, nil, nil
	e.Shadowed, e.Oddities, e.Late = nil, "", true
	return e
}

func committed() Explanation {
	e := split()
	e.Status, e.Committed = ptr(200), ptr(20000.0)
	return e
}

func posture() Posture {
	return Posture{Schema: PostureSchema, Stances: []Stance{
		{Rule: "G-5", Title: "a stream ends by its own end", State: "enforced"},
		{Route: "smol", Rule: "G-1", Title: "fields and paths of the list only", State: "shadow", Until: ptr(noon()), Reason: "modes.allow_list"},
		{Route: "smol", Rule: "G-2", Title: "admission by the engines' limits", State: "unknown", Reason: "decode does not tell its pool"},
		{Route: "smol", Rule: "G-11", Title: "one handle, one sequence, once", State: "not applicable", Reason: "sglang-pd has no handles"},
		{Route: "gpt", Rule: "G-15", Title: "engines, and no router before them", State: "unknown", Reason: "a router answers at 10.0.0.9: sglang-router"},
	}}
}

func shadow() Shadow {
	return Shadow{Schema: ShadowSchema, Since: noon(), Counts: []ShadowCount{
		{Field: "echo", Tenant: "acme", Model: "smol", Count: 312, Grantable: true},
		{Field: "x_internal", Tenant: "acme", Model: "smol", Count: 4},
	}, Grant: "tenants:\n  - id: acme\n    grants: [echo]\n"}
}

// TestText holds what is printed to the golden files.
func TestText(t *testing.T) {
	whole := Posture{Whole: true, Stances: posture().Stances[:1]}
	for name, print := range map[string]func(io.Writer) error{
		"explain-served":  explanation().Text,
		"explain-refused": refusal().Text,
		"explain-void":    split().Text,
		"explain-held":    committed().Text,
		"posture":         posture().Text,
		"posture-whole":   whole.Text,
		"shadow":          func(w io.Writer) error { return shadow().Text(w, noon().Add(50*time.Hour)) },
		"shadow-none":     func(w io.Writer) error { return Shadow{Since: noon()}.Text(w, noon().Add(90*time.Second)) },
	} {
		var b bytes.Buffer
		if err := print(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name+".txt")
		if *rewrite {
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s:\n%s", name, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
				t.Errorf("%s: a line ends with blanks", name)
			}
		}
		if n := strings.Count(b.String(), "\n"); n > 24 {
			t.Errorf("%s: %d lines are more than a screen", name, n)
		}
	}
}

// TestPrintable: what an engine or a client wrote cannot act on a terminal.
func TestPrintable(t *testing.T) {
	const evil = "a\x1b[2Jb\nc\u009bd\u202ee"
	e, p, s := explanation(), posture(), shadow()
	e.Client, e.Oddities, e.Legs[0].Node, e.Shadowed = evil, evil, evil, []string{evil}
	p.Stances[1].Reason, p.Stances[1].Route = evil, evil
	s.Counts[0].Field, s.Grant = evil, "x: "+evil
	for name, c := range map[string]struct {
		print func(io.Writer) error
		lines int // as many as without
	}{
		"explain": {e.Text, 13}, "posture": {p.Text, 8}, "shadow": {func(w io.Writer) error { return s.Text(w, noon()) }, 9},
	} {
		var b bytes.Buffer
		if err := c.print(&b); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(b.String(), "\x1b\u009b\u202e") || !strings.Contains(b.String(), "a?[2Jb") {
			t.Errorf("%s: %q", name, b.String())
		}
		if name != "shadow" && strings.Count(b.String(), "\n") != c.lines {
			t.Errorf("%s: a line was added: %q", name, b.String())
		}
	}
}

func answers() Answers {
	return Answers{
		Metrics: http.NotFoundHandler(),
		Ready:   func() Readiness { return Readiness{Schema: ReadySchema} },
		Explain: func(id string) (Explanation, bool) { return explanation(), id == explanation().ID },
		Posture: posture, Shadow: shadow,
	}
}

// TestAsk: what the handler serves is what the client gets.
func TestAsk(t *testing.T) {
	srv := httptest.NewServer(Handler(answers()))
	defer srv.Close()
	c := Client{URL: srv.URL + "/"}
	e, raw, err := c.Explain(t.Context(), explanation().ID)
	if err != nil || e.Legs[1].Prompt == nil || *e.Legs[1].Prompt != 412 || e.Legs[1].Cached != nil || !bytes.Contains(raw, []byte(`"schema": "bulkhead.explain/v1"`)) {
		t.Errorf("%v %+v %s", err, e, raw)
	}
	if !bytes.Contains(raw, []byte(`"cached_tokens": null`)) {
		t.Errorf("what is not known is not null: %s", raw)
	}
	if _, _, err := c.Explain(t.Context(), "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, _, err := c.Explain(t.Context(), "../posture"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a path in an id: %v", err)
	}
	if p, _, err := c.Posture(t.Context()); err != nil || p.Whole || len(p.Stances) != 5 {
		t.Errorf("%v %+v", err, p)
	}
	if s, _, err := c.Shadow(t.Context()); err != nil || len(s.Counts) != 2 {
		t.Errorf("%v %+v", err, s)
	}
	resp, err := srv.Client().Get(srv.URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// TestStranger: what is no admin listener is told so, and never taken for one.
func TestStranger(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"another shape": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"schema":"bulkhead.posture/v2"}`)
		},
		"another type": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"schema":"bulkhead.posture/v1","stances":{}}`)
		},
		"not found": http.NotFound,
		"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"a broken end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{}`)
		},
		"an error of it": func(w http.ResponseWriter, _ *http.Request) { write(w, 500, posture()) },
	} {
		srv := httptest.NewServer(answer)
		if _, _, err := (Client{URL: srv.URL}).Posture(t.Context()); err == nil || !strings.Contains(err.Error(), srv.URL) {
			t.Errorf("%s: %v", name, err)
		}
		srv.Close()
	}
	for _, url := range []string{"127.0.0.1:8081", "ftp://x", "http://", "http://127.0.0.1:1"} {
		if _, _, err := (Client{URL: url}).Posture(t.Context()); err == nil {
			t.Errorf("%s: no error", url)
		}
	}
}

// TestNoProfiles: profiles are served only if they are asked for.
func TestNoProfiles(t *testing.T) {
	for _, on := range []bool{false, true} {
		a := answers()
		a.Profiles = on
		req, err := http.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, pattern := routes(a).Handler(req)
		if on != (pattern != "") {
			t.Errorf("profiles %v: %q", on, pattern)
		}
	}
}

// members lists the members of a JSON shape, arrays as [].
func members(t reflect.Type, prefix string) []string {
	switch {
	case t.Kind() == reflect.Pointer:
		return members(t.Elem(), prefix)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return append([]string{prefix + "[]"}, members(t.Elem(), prefix+"[]")...)
	case t.Kind() == reflect.Slice:
		return []string{prefix + "[]"}
	case t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]():
		return []string{prefix}
	}
	var all []string
	if prefix != "" && !strings.HasSuffix(prefix, "[]") {
		all = append(all, prefix)
	}
	for i := range t.NumField() {
		all = append(all, members(t.Field(i).Type, strings.TrimPrefix(prefix+"."+t.Field(i).Tag.Get("json"), "."))...)
	}
	return all
}

// TestPages: each shape's page has every member, and no other.
func TestPages(t *testing.T) {
	for page, shape := range map[string]any{"ready": Readiness{}, "explain": Explanation{}, "posture": Posture{}, "shadow": Shadow{}} {
		text, err := os.ReadFile("../../docs/schema/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		documented := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, " | ")
			if !strings.HasPrefix(line, "| `") || len(cells) < 3 {
				continue
			}
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
				documented[m[1]] = true
			}
		}
		all := members(reflect.TypeOf(shape), "")
		for _, m := range all {
			if !documented[m] {
				t.Errorf("%s: %s is not documented", page, m)
			}
			delete(documented, m)
		}
		for m := range documented {
			t.Errorf("%s: there is no %s", page, m)
		}
		if len(all) < 8 {
			t.Errorf("%s: only %v", page, all)
		}
	}
}

// TestRules: every rule of the gateway that has a stance has a title, and grants are YAML
// whatever a tenant is called.
func TestRules(t *testing.T) {
	for _, rule := range []string{"G-1", "G-2", "G-3", "G-5", "G-6", "G-7", "G-8", "G-9", "G-11", "G-12", "G-13", "G-14", "G-15"} {
		if Title(rule) == "" {
			t.Errorf("%s has no title", rule)
		}
	}
	if Title("G-99") != "" {
		t.Error("a rule that is none has a title")
	}
	want := "tenants:\n  - id: \"1: x\\n\"\n    grants: [echo]\n  - id: acme\n    grants: [a, b]\n  - id: \"no\"\n    grants: [c]\n"
	if got := Grants(map[string][]string{"acme": {"b", "a"}, "1: x\n": {"echo"}, "no": {"c"}}); got != want {
		t.Errorf("%s", got)
	}
	if Grants(nil) != "" {
		t.Error("nothing is granted, and there is YAML")
	}
}
