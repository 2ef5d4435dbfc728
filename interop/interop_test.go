package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/upstream"
)

func testDriver(t *testing.T) (*driver, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	d, err := newDriver(settings{root: t.TempDir()}, "test", &out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.end(); d.forget() })
	return d, &out
}

// TestGroups: the end of the driver is the end of the programs and of their children.
func TestGroups(t *testing.T) {
	d, _ := testDriver(t)
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("there is no /bin/sh to start children with")
	}
	file := filepath.Join(d.dir, "pid")
	p, err := d.start("shell", "/bin/sh", []string{"FILE=" + file}, "-c", `sleep 1000 & echo $! >"$FILE"; trap '' TERM; wait; wait`)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	until(t, func() bool {
		b, _ := os.ReadFile(file)
		child, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return child > 0
	})
	if !p.alive() || !running(child) {
		t.Fatal("control: they do not run")
	}
	p.kill()
	until(t, func() bool { return !running(child) })
	if p.alive() {
		t.Error("the program lives on")
	}
}

// running says whether a process exists and is not a zombie.
func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// until asks until the answer is yes; the test's own deadline bounds it.
func until(t *testing.T, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(20 * time.Second); !yes(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatal("it did not happen")
		}
	}
}

// TestReady: a program that ends before it answers is told of with its last words.
func TestReady(t *testing.T) {
	d, _ := testDriver(t)
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("there is no /bin/sh to start")
	}
	p, err := d.start("shell", "/bin/sh", nil, "-c", "echo no such model; exit 1")
	if err != nil {
		t.Fatal(err)
	}
	err = d.ready(t.Context(), p, "http://127.0.0.1:1/health", time.Minute)
	if err == nil || !strings.Contains(err.Error(), "no such model") {
		t.Errorf("got %v", err)
	}
}

// TestInstall: the facts of a script, and the two ways in which it fails.
func TestInstall(t *testing.T) {
	d, _ := testDriver(t)
	script := func(text string) string {
		if err := os.MkdirAll(filepath.Join(d.root, "interop"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.root, "interop", "x.sh"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return "x.sh"
	}
	facts, err := d.install(t.Context(), script("echo A=b=c; echo D=$1"), "e")
	if err != nil || facts["A"] != "b=c" || facts["D"] != "e" {
		t.Errorf("facts %v, %v", facts, err)
	}
	if _, err = d.install(t.Context(), script("echo no index >&2; exit 3")); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "no index") {
		t.Errorf("a missing part gives %v", err)
	}
	if _, err = d.install(t.Context(), script("exit 1")); err == nil || errors.Is(err, errMissing) {
		t.Errorf("a failure gives %v", err)
	}
}

// TestSkipIsNoPass: a peer that is missing ends the program with a code of its own.
func TestSkipIsNoPass(t *testing.T) {
	for name, try := range map[string]struct {
		run  func(context.Context, *driver, *section) error
		want int
		says string
	}{
		"missing": {func(context.Context, *driver, *section) error { return fmt.Errorf("%w: no AVX-512", errMissing) }, exitMissing, "SKIPPED, which is no pass"},
		"failing": {func(context.Context, *driver, *section) error { return errors.New("it died") }, exitFailed, "it died"},
		"odd":     {func(_ context.Context, _ *driver, s *section) error { s.fail("green"); return nil }, exitFailed, "NOT AS EXPECTED: green"},
		"good":    {func(context.Context, *driver, *section) error { return nil }, exitOK, "all as expected"},
	} {
		var out bytes.Buffer
		got := drive(t.Context(), settings{root: t.TempDir()}, peer{name: "p", title: "t"}, part{name: "v", run: try.run}, &out, &out)
		if got != try.want || !strings.Contains(out.String(), try.says) {
			t.Errorf("%s: code %d, want %d:\n%s", name, got, try.want, out.String())
		}
	}
}

// TestTogether: parts that run at the same time each say and write their own.
func TestTogether(t *testing.T) {
	meet := make(chan struct{})
	named := func(name string, fails bool, meet func()) part {
		return part{name: name, run: func(_ context.Context, d *driver, s *section) error {
			meet() // only who runs at the same time meets
			d.say("I am %s", name)
			if fails {
				s.fail("it is %s", name)
			}
			return nil
		}}
	}
	p := peer{name: "p", title: "t", parts: []part{
		named("one", false, func() { meet <- struct{}{} }), named("two", true, func() { <-meet }),
	}}
	page := filepath.Join(t.TempDir(), "page.md")
	var out bytes.Buffer
	if got := driveTogether(t.Context(), settings{page: page, pen: new(sync.Mutex)}, p, &out); got != exitFailed {
		t.Errorf("code %d", got)
	}
	one, two := strings.Index(out.String(), "I am one"), strings.Index(out.String(), "I am two")
	if one < 0 || two < one || !strings.Contains(out.String(), "NOT AS EXPECTED: it is two") {
		t.Errorf("said:\n%s", out.String())
	}
	text, _ := os.ReadFile(page)
	if !strings.Contains(string(text), "begin p one") || !strings.Contains(string(text), "begin p two") {
		t.Errorf("page:\n%s", text)
	}
}

// TestUsage: wrong arguments start nothing.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"nobody"}, {"-x"}, {"-parts", "none", "llamacpp"}, {"-bin", "/none/such", "llamacpp"}} {
		var out bytes.Buffer
		if got := run(t.Context(), args, &out, &out); got != exitUsage {
			t.Errorf("%v: code %d", args, got)
		}
	}
}

// TestSections: sections are put in place of their own and touch no other.
func TestSections(t *testing.T) {
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	a := &section{peer: "a", part: "1", title: "A", began: at, facts: []string{"first"}}
	b := &section{peer: "b", part: "1", title: "B", began: at, facts: []string{"second"}}
	page := filepath.Join(t.TempDir(), "interop.md")
	for _, s := range []*section{a, b} {
		if err := s.write(page); err != nil {
			t.Fatal(err)
		}
	}
	a.facts, a.problems = []string{"third"}, []string{"a problem"}
	if err := a.write(page); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(page)
	got := string(text)
	if strings.Contains(got, "first") || !strings.Contains(got, "third") || !strings.Contains(got, "second") || !strings.Contains(got, "1 not as expected") || strings.Contains(got, "a problem") {
		t.Errorf("page:\n%s", got)
	}
	if strings.Index(got, "third") > strings.Index(got, "second") {
		t.Error("the sections changed places")
	}
	before := got
	if err := a.write(page); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(page); string(after) != before {
		t.Error("the same section once more changes the page")
	}
	if _, err := place("<!-- begin a 1 -->\n", a); err == nil {
		t.Error("torn marks are taken")
	}
}

// TestShapes: what is gone and new is told; other values are no difference.
func TestShapes(t *testing.T) {
	for _, try := range []struct{ name, before, after, want string }{
		{"values", `{"a":1,"b":["x"]}`, `{"a":2,"b":["y","z"]}`, ""},
		{"gone", `{"a":1,"b":1}`, `{"a":1}`, "gone .b: number"},
		{"new", `{"a":{}}`, `{"a":{"c":null}}`, "gone .a: object, new .a.c: null"},
		{"type", `{"a":1}`, `{"a":"1"}`, "gone .a: number, new .a: text"},
		{"events", "data: {\"a\":1}\n\ndata: {\"a\":2}\n\ndata: [DONE]\n\n", "data: {\"a\":1}\n\ndata: [DONE]\n\n", ""},
		{"no end mark", "data: {\"a\":1}\n\ndata: [DONE]\n\n", "data: {\"a\":1}\n\n", "gone event [DONE]"},
		{"metrics", "# TYPE a counter\na 1\n", "# TYPE a counter\na 2\n# TYPE b gauge\n", "new # TYPE b gauge"},
	} {
		if got := compare(shape([]byte(try.before)), shape([]byte(try.after))); got != try.want {
			t.Errorf("%s: %q, want %q", try.name, got, try.want)
		}
	}
}

// TestHold: an engine that answers as recorded is held so, a changed one is told of, and
// recording makes the two equal again.
func TestHold(t *testing.T) {
	d, _ := testDriver(t)
	status, answer, long := http.StatusOK, `{"text":"x"}`, 0
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		long = int(r.ContentLength)
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer engine.Close()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("cases.json", `[{"name":"chat","method":"POST","path":"/c","request":{"prompt":"@repeat 1000 ab "},"status":200,"body":"chat.json"}]`)
	write("chat.json", `{"text":"y"}`)
	hold := func() (int, []string) {
		t.Helper()
		sent, differs, err := d.hold(t.Context(), contract{dir: dir, base: engine.URL})
		if err != nil {
			t.Fatal(err)
		}
		return sent, differs
	}
	if sent, differs := hold(); sent != 1 || len(differs) != 0 || long < 3000 {
		t.Fatalf("control: %d sent, %v, %d bytes", sent, differs, long)
	}
	answer = `{"text":"x","more":1}`
	if _, differs := hold(); len(differs) != 1 || !strings.Contains(differs[0], "new .more: number") {
		t.Errorf("a new member gives %v", differs)
	}
	status = http.StatusTeapot
	if _, differs := hold(); len(differs) != 1 || !strings.Contains(differs[0], "status 418, recorded 200") {
		t.Errorf("another status gives %v", differs)
	}
	d.record = true
	hold()
	d.record = false
	if _, differs := hold(); len(differs) != 0 {
		t.Errorf("after recording: %v", differs)
	}
	write("cases.json", `[]`)
	if _, _, err := d.hold(t.Context(), contract{dir: dir, base: engine.URL}); err == nil {
		t.Error("a contract without cases passes")
	}
}

// TestConfigure: the generated file names the engines of one leg and of a pair, and no
// key is in it.
func TestConfigure(t *testing.T) {
	d, _ := testDriver(t)
	for _, try := range []struct {
		site assure.Site
		want []string
	}{
		{assure.Site{Dialect: upstream.LlamaCPP, Model: "small", Served: "smol", Plain: "http://127.0.0.1:5"},
			[]string{"engine: llamacpp", `served: "smol"`, `nodes: [{url: "http://127.0.0.1:5"}]`, "  - id: tenant3", "lease: 5s"}},
		{assure.Site{Dialect: upstream.SGLangPD, Model: "small", Served: "smol", Prefill: "http://127.0.0.1:5", Decode: "http://127.0.0.1:6", Bootstrap: "127.0.0.1:7"},
			[]string{"engine: sglang-pd", `prefill: [{url: "http://127.0.0.1:5", bootstrap: "127.0.0.1:7"}]`, `decode: [{url: "http://127.0.0.1:6"}]`}},
	} {
		path, keys, err := d.configure(&try.site, model{extra: []string{"lease: 5s"}}, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range try.want {
			if !strings.Contains(string(text), want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if len(keys) != tenants || keys[0] == keys[1] || strings.Contains(string(text), keys[0]) {
			t.Error("the keys are not what they should be")
		}
		if key, err := os.ReadFile(filepath.Join(d.dir, "tenant0.key")); err != nil || strings.TrimSpace(string(key)) != keys[0] {
			t.Errorf("the key's file: %v", err)
		}
	}
}

// TestExpected: what a case is to be where nothing else is said.
func TestExpected(t *testing.T) {
	e := expected{"x": {assure.Direct: assure.Green}}
	for _, try := range []struct {
		name string
		way  assure.Way
		want assure.Outcome
	}{{"x", assure.Direct, assure.Green}, {"x", assure.Bulkhead, assure.Green}, {"y", assure.Direct, assure.Red}, {"y", assure.Router, assure.Red}, {"y", assure.Bulkhead, assure.Green}} {
		if got := e.of(try.name, try.way); got != try.want {
			t.Errorf("%s, %s: %s", try.name, try.way, got)
		}
	}
}
