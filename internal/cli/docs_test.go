package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"bulkhead.dev/bulkhead/internal/config"
)

// page is docs/config.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// settings lists the paths of a configuration's settings, lists as [].
func settings(t reflect.Type, prefix string) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return settings(t.Elem(), prefix)
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Struct {
			return []string{prefix + "[]"}
		}
		return append([]string{prefix + "[]"}, settings(t.Elem(), prefix+"[]")...)
	case reflect.Map:
		return append([]string{prefix}, settings(t.Elem(), prefix+".NAME")...)
	case reflect.Struct:
	default:
		return []string{prefix}
	}
	var all []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		path := strings.TrimPrefix(prefix+"."+name, ".")
		switch { // these have a part of their own in the page
		case t.Field(i).Type == reflect.TypeFor[*config.Mode]():
			path = "modes.CONTROL"
		case t.Field(i).Type == reflect.TypeFor[[]config.Node]():
			path = "models[].nodes"
		}
		for _, one := range settings(t.Field(i).Type, path) {
			if !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

// rows are the settings that a part of the page documents, with their defaults.
func rows(t *testing.T, part string) map[string]string {
	t.Helper()
	all := map[string]string{}
	name := regexp.MustCompile("`([^`]+)`")
	for _, line := range strings.Split(part, "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(cells[0], -1) {
			if _, twice := all[m[1]]; twice {
				t.Errorf("%s is documented twice", m[1])
			}
			all[m[1]] = cells[2]
		}
	}
	return all
}

// docsSite writes only what has no default, and of each list and mapping one.
const docsSite = `pepper: env:A
domain_key: env:B
telemetry: {otlp: "http://c"}
models:
  - name: m
    engine: vllm
    nodes: [{url: "http://n"}]
    probe: {prompt: a, want: b}
tenants: [{id: t, keys: [{key: env:K}]}]
`

// written is a text of serve as bulkhead config print shows it.
func written(t *testing.T, text string) config.Serve {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := readServe(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDocs: every setting is documented, nothing else is, and a default that is
// shown as a value is the one that holds.
func TestDocs(t *testing.T) {
	text := page(t)
	serve, worker, ok := strings.Cut(text, "\n## A worker\n")
	if !ok {
		t.Fatal("the page has no part about workers")
	}
	site := written(t, docsSite)
	for _, c := range []struct {
		of    any
		part  string
		least int // defaults that can be compared
	}{
		{site, serve, 50},
		{config.NewWorker(), worker, 6},
	} {
		documented := rows(t, c.part)
		values, compared := flat(t, c.of), 0
		for _, path := range settings(reflect.TypeOf(c.of), "") {
			shown, ok := documented[path]
			delete(documented, path)
			if !ok {
				t.Errorf("%T: %s is not documented", c.of, path)
				continue
			}
			if value, quoted := strings.CutPrefix(shown, "`"); quoted {
				compared++
				if got := fmt.Sprint(values[path]); got != strings.TrimSuffix(value, "`") {
					t.Errorf("%T: the default of %s is %s, the page says %s", c.of, path, got, shown)
				}
			}
		}
		for path := range documented {
			t.Errorf("%T: there is no setting %s", c.of, path)
		}
		if compared < c.least {
			t.Errorf("%T: only %d defaults were compared", c.of, compared)
		}
	}
}

// flat is a configuration as paths and values, of each list its first element.
func flat(t *testing.T, c any) map[string]any {
	t.Helper()
	data, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	var walk func(path string, node any)
	walk = func(path string, node any) {
		switch n := node.(type) {
		case map[string]any:
			for k, v := range n {
				walk(strings.TrimPrefix(path+"."+k, "."), v)
			}
		case []any:
			if len(n) > 0 {
				walk(path+"[]", n[0])
			}
		default:
			all[path] = n
		}
	}
	walk("", tree)
	return all
}
