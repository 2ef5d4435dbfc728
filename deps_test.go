// Package bulkhead_test holds the shape of the house as policy: which packages
// there are, how high each one stands, what a pure package may see, and the
// rules of style that a machine can check. Test files are held to the same
// rules. A new package costs one line in house; whatever is on no list fails.
package bulkhead_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A layer is a height. A package imports only what stands lower; packages of
// one height do not know each other.
type layer int

const (
	leaf     layer = iota // fault: imports nothing of ours
	ground                // kv
	protocol              // handoff
	carriage              // wire, ledger
	suites                // contract suites over the carriage
	parts                 // pure parts and engines
	stands                // what stands between the parts and the rooms: the engines as HTTP servers
	rooms                 // what runs
	shows                 // what runs the rooms together to show something
	wiring                // configuration and subcommands
	doors                 // programs, measurements, the root
)

// A room is one package of the house.
type room struct {
	layer layer
	// public packages import the standard library and each other only.
	public bool
	// pure packages import what is on the pure list, more, and pure packages.
	pure bool
	more []string
	// choosers are the files of a pure package that may see the clock, the
	// processor count and files, because they choose and the core does not.
	choosers []string
	// tests may import these besides.
	tests []string
	// suite packages are imported by test files only.
	suite bool
}

// house lists every package, by its path below the module.
func house() map[string]room {
	return map[string]room{
		"kv":      {layer: ground, public: true, pure: true, more: []string{"io", "sync", "sync/atomic", "unsafe"}},
		"handoff": {layer: protocol, public: true, pure: true},

		"wire":          {layer: carriage, public: true},
		"wire/wiretest": {layer: suites, public: true, suite: true},

		"internal/fault": {layer: leaf},

		"internal/admit":    {layer: parts, pure: true},
		"internal/upstream": {layer: parts, pure: true, more: []string{"encoding/json"}, tests: []string{"os", "path/filepath", "flag"}},
		"internal/world": {layer: parts, pure: true, choosers: []string{"script*.go", "explore*.go", "simulate*.go", "prove*.go"},
			tests: []string{"context", "os", "path/filepath", "flag", "time"}},
		"internal/route":   {layer: parts, pure: true},
		"internal/digest":  {layer: parts},
		"internal/llm":     {layer: parts},
		"internal/account": {layer: parts},

		"internal/fleet":  {layer: stands},
		"internal/record": {layer: stands},
		"internal/config": {layer: stands},

		"internal/worker":    {layer: rooms},
		"internal/assure":    {layer: rooms},
		"internal/twin":      {layer: rooms},
		"internal/gateway":   {layer: rooms},
		"internal/drill":     {layer: shows},
		"internal/admin":     {layer: shows},
		"internal/telemetry": {layer: rooms},

		"internal/cli": {layer: wiring},

		"cmd/bulkhead": {layer: doors},
		"bench":        {layer: doors},
		"interop":      {layer: doors},
		"spec":         {layer: doors},
		".":            {layer: doors},
	}
}

// pureImports lists what a pure package may import: code that computes and
// cannot observe a clock, randomness, the machine or another goroutine.
// Package maps is not here: its order is random.
func pureImports() []string {
	return []string{
		"bytes", "cmp", "container/heap", "crypto/hmac", "crypto/sha256", "crypto/subtle", "encoding/binary",
		"encoding/hex", "errors", "fmt", "hash", "iter", "math", "math/bits", "slices", "sort", "strconv", "strings",
		"unicode", "unicode/utf16", "unicode/utf8",
	}
}

// testImports lists what the tests of a pure package may import besides.
func testImports() []string {
	return []string{"testing", "testing/fstest", "testing/iotest", "testing/quick", "testing/synctest"}
}

// A grant opens a module that is not ours to some packages.
type grant struct {
	module string
	to     []string
	tests  bool // for their test files only
}

func outside() []grant {
	return []grant{
		{module: "github.com/zeebo/xxh3", to: []string{"internal/digest", "internal/world", "bench"}},
		{module: "github.com/goccy/go-yaml", to: []string{"internal/cli", "internal/config"}},
		{module: "golang.org/x/sys", to: []string{"internal/cli"}},
		{module: "github.com/prometheus/client_golang", to: []string{"internal/telemetry"}},
		{module: "github.com/prometheus/client_model", to: []string{"internal/telemetry"}},
		{module: "go.opentelemetry.io/proto/slim/otlp", to: []string{"internal/telemetry"}},
		{module: "google.golang.org/protobuf", to: []string{"internal/telemetry"}},
	}
}

// An exception is one import that breaks a rule above, and why it may. One
// that nothing needs any more fails as stale.
type exception struct {
	in    string
	tests bool
	path  string
	why   string
}

func exceptions() []exception {
	return []exception{
		{in: "wire", tests: true, path: module + "/wire/wiretest", why: "the suite runs over the transports of wire"},
	}
}

// A fence keeps names of one package, or with no names the import of it, to
// some packages. T{} is the making of a T by literal, conversion, new or a zero
// variable; .M is a method; P* is every name in which a capital follows P, save
// inside the arguments of a method Has, which only asks.
type fence struct {
	path  string
	names []string
	open  []string
	tests bool // test files may, everywhere
	why   string
}

func fences() []fence {
	return []fence{
		{path: module + "/kv", names: []string{"Unguarded", "NewUnguarded"}, open: []string{"internal/worker", "internal/drill", "bench"},
			why: "only a drill reads pages that nobody proved; a worker only passes the value on"},
		{path: module + "/handoff", names: []string{"Guards{}", ".Without", "Guard*", "Each"}, open: []string{"internal/drill", "internal/world", "bench"}, tests: true,
			why: "guards are all on in production"},
		{path: "os", names: []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv"}, open: []string{"internal/cli"}, tests: true,
			why: "the environment is read in cli"},
		{path: "net/http", names: []string{"DefaultClient", "DefaultTransport", "DefaultServeMux", "Get", "Head", "Post", "PostForm",
			"Handle", "HandleFunc", "ListenAndServe", "ListenAndServeTLS"}, tests: true, why: "no global client or mux"},
		{path: "log/slog", open: []string{"internal/telemetry", "internal/cli"}, tests: true,
			why: "core packages emit events; telemetry logs"},
		{path: "log", open: []string{"internal/telemetry", "internal/cli", "internal/worker", "internal/gateway"}, tests: true,
			why: "core packages emit events; a server needs a *log.Logger to be silenced"},
	}
}

// variables lists package-level variables that no rule below allows, and why
// they may stay.
func variables() map[string]string {
	return map[string]string{}
}

const (
	module       = "bulkhead.dev/bulkhead"
	maxFunction  = 100 // lines, composite literals not counted
	maxFile      = 800 // lines, composite literals at package level not counted
	fewestOfOurs = 2   // packages that an inspection of the real tree must see
)

// TestHouse holds the tree to the policy.
func TestHouse(t *testing.T) {
	problems, packages, err := inspect(".", ourPolicy())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	if packages < fewestOfOurs {
		t.Fatalf("inspected %d packages: the walk is broken", packages)
	}
}

// TestHouseBites builds small trees and holds them to the real policy: the
// sound one passes, and each breach planted in it is the one problem found.
func TestHouseBites(t *testing.T) {
	sound := map[string]string{
		"kv/kv.go": "// Package kv is a stand-in.\npackage kv\n\nimport \"errors\"\n\n" +
			"var ErrFull = errors.New(\"kv: full\")\n\nvar names = [...]string{\"a\"}\n\nfunc Name() string { return names[0] }\n",
		"handoff/handoff.go":        "// Package handoff is a stand-in.\npackage handoff\n\nimport _ \"" + module + "/kv\"\n",
		"internal/fault/fault.go":   "// Package fault is a stand-in.\npackage fault\n",
		"internal/drill/drill.go":   "// Package drill is a stand-in.\npackage drill\n\nimport \"" + module + "/kv\"\n\nvar _ = kv.NewUnguarded\n",
		"internal/worker/worker.go": "// Package worker is a stand-in.\npackage worker\n",
		"cmd/bulkhead/main.go":      "// Command bulkhead is a stand-in.\npackage main\n\nfunc main() {}\n",
		"kv/testdata/broken.go":     "not Go",
		"interop/sdk/go.mod":        "module elsewhere\n",
		"interop/sdk/main.go":       "package main\n\nfunc init() {}\n",
	}
	problems, packages, err := inspect(tree(t, sound, "", ""), ourPolicy())
	if err != nil || len(problems) != 0 || packages != 6 {
		t.Fatalf("sound tree: %d packages, %q, %v", packages, problems, err)
	}
	for _, b := range breaches() {
		t.Run(b.name, func(t *testing.T) {
			problems, _, err := inspect(tree(t, sound, b.file, b.text), ourPolicy())
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) != 1 || !strings.HasPrefix(problems[0], b.file+":") || !strings.Contains(problems[0], b.want) {
				t.Fatalf("got %q, want one problem in %s with %q", problems, b.file, b.want)
			}
		})
	}
}

// TestHouseAllows holds what looks like a breach and is none.
func TestHouseAllows(t *testing.T) {
	const code, test = "internal/worker/x.go", "internal/worker/x_test.go"
	for _, c := range []struct{ name, file, text string }{
		{"a sleep in a bubble", test, "import (\n\"testing\"\n\"testing/synctest\"\n\"time\"\n)\n\n" +
			"func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }\n"},
		{"a flag of a test", test, "import \"flag\"\n\nvar rewrite = flag.Bool(\"rewrite\", false, \"\")\n"},
		{"a long table", code, "func f() []int {\nreturn []int{" + strings.Repeat("\n1,", maxFunction) + "\n}\n}\n"},
		{"a long file that is a table", code, "var table = [...]int{" + strings.Repeat("\n1,", maxFile) + "\n}\n"},
		{"a generated file", code, "//generated\n" + strings.Repeat("\nconst _ = 1", maxFile) + "\n"},
		{"a local that shadows a variable", code, "var names = [...]int{1}\n\nfunc f() { names := []int{}; names[0] = 1; _ = names }\n"},
		{"an array of an imported length", code, "import \"" + module + "/kv\"\n\nvar zero [kv.N]byte\n"},
		{"a struct that shares nothing", code, "type row struct{ a [2]int }\n\nvar one = row{}\n\nfunc f() int { r := &one; return r.a[0] }\n"},
		{"a struct with an error", code, "type exit struct {\ncode int\nerr error\n}\n\nvar one = exit{}\n"},
		{"an array by name", code, "type table [4]int\n\nvar zero table\n"},
		{"asking for a guard", code, "import \"" + module + "/handoff\"\n\nfunc f(g handoff.Guards) bool { return g.Has(handoff.GuardSeal) }\n"},
		{"an interface guard", code, "type T struct{}\n\nvar _ error = (*T)(nil)\n"},
		{"an embedded file", code, "import _ \"embed\"\n\n//go:embed page.html\nvar page string\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sound := map[string]string{"internal/worker/doc.go": "// Package worker is a stand-in.\npackage worker\n"}
			text := "package worker\n\n" + c.text
			if strings.HasPrefix(c.text, "//generated") {
				text = "// Code generated by a stand-in; DO NOT EDIT.\n\n" + text
			}
			problems, _, err := inspect(tree(t, sound, c.file, text), ourPolicy())
			if err != nil || len(problems) != 0 {
				t.Fatalf("got %q, %v; want nothing", problems, err)
			}
		})
	}
}

// TestHouseExceptions holds that an exception opens what it says, for tests
// only if it says so, and fails once nothing needs it.
func TestHouseExceptions(t *testing.T) {
	const comment = "// Package kv is a stand-in.\npackage kv\n"
	p := ourPolicy()
	p.exceptions = []exception{{in: "kv", tests: true, path: "os", why: "a plant"}}
	p.variables = map[string]string{"kv.cache": "a plant"}
	for _, c := range []struct {
		name, file, text string
		want             []string
	}{
		{"needed", "kv/x_test.go", "package kv\n\nimport _ \"os\"\n\nvar cache map[int]int\n", nil},
		{"not needed", "kv/x_test.go", "package kv\n", []string{"stale", "stale"}},
		{"needed outside tests", "kv/x.go", "package kv\n\nimport _ \"os\"\n\nvar cache map[int]int\n", []string{"stale", "not on the pure list"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			problems, _, err := inspect(tree(t, map[string]string{"kv/kv.go": comment}, c.file, c.text), p)
			if err != nil || len(problems) != len(c.want) {
				t.Fatalf("got %q, %v; want %q", problems, err, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(problems[i], want) {
					t.Errorf("got %q, want %q", problems[i], want)
				}
			}
		})
	}
}

// tree writes files, and one more with name and text, below a new folder.
func tree(t *testing.T, files map[string]string, name, text string) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(name, text)
	}
	if name != "" {
		write(name, text)
	}
	return root
}

type breach struct{ name, file, text, want string }

func breaches() []breach {
	imports := func(pkg, path string) string { return "package " + pkg + "\n\nimport _ \"" + path + "\"\n" }
	body := func(pkg, path, code string) string {
		return "package " + pkg + "\n\nimport \"" + path + "\"\n\n" + code + "\n"
	}
	ours := module + "/"
	return []breach{
		{"an unlisted package", "internal/util/util.go", "// Package util is a stand-in.\npackage util\n", "not in the table"},
		{"an unlisted import", "internal/worker/x.go", imports("worker", ours+"internal/helpers"), "not in the table"},
		{"an upward import", "kv/x.go", imports("kv", ours+"handoff"), "upward"},
		{"an upward import in a test file", "kv/x_test.go", imports("kv", ours+"handoff"), "upward"},
		{"an upward import in an external test", "handoff/x_test.go", imports("handoff_test", ours+"internal/worker"), "upward"},
		{"an upward import behind a build tag", "kv/x.go", "//go:build never\n\n" + imports("kv", ours+"handoff"), "upward"},
		{"a sibling", "internal/worker/x.go", imports("worker", ours+"internal/gateway"), "sibling"},
		{"a sibling in a test file", "internal/worker/x_test.go", imports("worker_test", ours+"internal/gateway"), "sibling"},
		{"a leaf that imports", "internal/fault/x.go", imports("fault", ours+"kv"), "upward"},
		{"a public package that sees an internal one", "handoff/x.go", imports("handoff", ours+"internal/fault"), "not public"},
		{"a public package with a library", "kv/x.go", imports("kv", "github.com/zeebo/xxh3"), "not granted"},
		{"a library in the wrong room", "internal/worker/x.go", imports("worker", "github.com/prometheus/client_golang/prometheus"), "not granted"},
		{"a suite outside tests", "internal/worker/x.go", imports("worker", ours+"wire/wiretest"), "outside a test"},
		{"an impure import", "handoff/x.go", imports("handoff", "time"), "not on the pure list"},
		{"an impure import in a test file", "handoff/x_test.go", imports("handoff", "os"), "not on the pure list"},
		{"what one pure package may and another may not", "handoff/x.go", imports("handoff", "sync"), "not on the pure list"},
		{"an impure package behind a pure one", "internal/admit/x.go", "// Package admit is a stand-in.\n" + imports("admit", ours+"wire"), "not pure"},
		{"an impure core of the world", "internal/world/world.go", "// Package world is a stand-in.\n" + imports("world", "math/rand/v2"), "not on the pure list"},
		{"an impure test beside a chooser", "internal/world/explore_test.go", "// Package world is a stand-in.\npackage world\n\nimport _ \"math/rand/v2\"\n", "not on the pure list"},
		{"cgo", "internal/worker/x.go", imports("worker", "C"), "cgo"},
		{"a dot import", "internal/worker/x.go", "package worker\n\nimport . \"fmt\"\n\nfunc f() { Println() }\n", "dot import"},
		{"a core package that logs", "internal/drill/x.go", imports("drill", "log/slog"), "events"},
		{"the environment", "internal/worker/x.go", body("worker", "os", "func f() string { return os.Getenv(\"X\") }"), "environment"},
		{"a global client", "internal/worker/x.go", body("worker", "net/http", "func f() { _ = http.DefaultClient }"), "global client"},
		{"unguarded reads", "cmd/bulkhead/x.go", body("main", ours+"kv", "func f(u *kv.Unguarded) {}"), "only a drill"},
		{"unguarded reads under another name", "cmd/bulkhead/x_test.go", "package main\n\nimport k \"" + ours + "kv\"\n\nvar _ = k.NewUnguarded\n", "only a drill"},
		{"guards made", "internal/worker/x.go", body("worker", ours+"handoff", "func f() any { return handoff.Guards(0) }"), "all on"},
		{"guards as a literal", "internal/worker/x.go", body("worker", ours+"handoff", "func f() any { return handoff.Guards{} }"), "all on"},
		{"guards left at zero", "internal/worker/x.go", body("worker", ours+"handoff", "func f() { var g handoff.Guards; _ = g }"), "all on"},
		{"a guard taken away", "internal/worker/x.go", body("worker", ours+"handoff", "func f() any { return handoff.All.Without(1) }"), "all on"},
		{"a guard alone", "internal/worker/x.go", body("worker", ours+"handoff", "func f() any { return handoff.GuardSeal }"), "all on"},
		{"init", "internal/worker/x.go", "package worker\n\nfunc init() {}\n", "func init"},
		{"a mutable variable", "internal/worker/x.go", "package worker\n\nvar count int\n", "package variable count"},
		{"a map", "internal/worker/x_test.go", "package worker\n\nvar m = map[string]int{}\n", "package variable m"},
		{"a table that is written", "kv/x.go", "package kv\n\nfunc f() { names[0] = \"b\" }\n", "writes the package variable behind names"},
		{"a table that is written through a view", "kv/x.go", "package kv\n\nfunc f() { r := &names[0]; *r = \"b\" }\n", "writes the package variable behind r"},
		{"a table whose address is given away", "kv/x.go", "package kv\n\nfunc f(p **string) { *p = &names[0] }\n", "writes the package variable behind names"},
		{"a table that is counted in", "kv/x.go", "package kv\n\nvar n [2]int\n\nfunc f() { n[1]++ }\n", "writes the package variable behind n"},
		{"a table that a loop writes", "kv/x.go", "package kv\n\nvar n [2]int\n\nfunc f(s []int) {\nfor n[0] = range s {\n}\n}\n", "writes the package variable behind n"},
		{"a struct that shares", "kv/x.go", "package kv\n\nvar s = struct{ p []int }{}\n", "package variable s"},
		{"an error that is replaced", "kv/x_test.go", "package kv\n\nfunc f() { ErrFull = nil }\n", "writes the package variable behind ErrFull"},
		{"a sleep", "internal/worker/x_test.go", body("worker", "time", "func f() { time.Sleep(1) }"), "real sleep"},
		{"a sleep in other words", "internal/worker/x_test.go", body("worker", "time", "func f() { <-time.After(1) }"), "real sleep"},
		{"a long function", "internal/worker/x.go", "package worker\n\nfunc f() {" + strings.Repeat("\nf()", maxFunction) + "\n}\n", "function f has"},
		{"code hidden in a table", "internal/worker/x.go", "package worker\n\nfunc f() {\n_ = []func(){func() {" + strings.Repeat("\nf()", maxFunction) + "\n}}\n}\n", "function f has"},
		{"a long file", "internal/worker/x.go", "package worker\n" + strings.Repeat("\nconst _ = 1", maxFile), "file has"},
		{"no package comment", "internal/gateway/x.go", "package gateway\n", "no package comment"},
		{"a package comment about something else", "internal/gateway/x.go", "// This is a package.\npackage gateway\n", "does not begin"},
	}
}
