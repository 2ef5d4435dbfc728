package cli

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
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
	case reflect.Struct:
	default:
		return []string{prefix}
	}
	var all []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		all = append(all, settings(t.Field(i).Type, strings.TrimPrefix(prefix+"."+name, "."))...)
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

// TestDocs: every setting is documented, nothing else is, and a default that is
// shown as a value is the one that holds.
func TestDocs(t *testing.T) {
	text := page(t)
	serve, worker, ok := strings.Cut(text, "\n## A worker\n")
	if !ok {
		t.Fatal("the page has no part about workers")
	}
	site, _, err := decodeServe(strings.NewReader(goodSite))
	if err != nil {
		t.Fatal(err)
	}
	site.Bounds = BoundsConfig{}.withDefaults()
	site.Listen = "127.0.0.1:8080" // goodSite takes a free port
	for _, c := range []struct {
		of    any
		part  string
		least int // defaults that can be compared
	}{
		{site, serve, 25},
		{WorkerConfig{Model: "recall", Pages: 256, PageSize: 64, Digest: "xxh3", Streams: 2}, worker, 6},
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

// TestDocsExample: the files of the page are taken as they stand.
func TestDocsExample(t *testing.T) {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n# (\\S+)\n(.*?)```").FindAllStringSubmatch(page(t), -1) {
		var err error
		if m[1] == "serve.yaml" {
			_, _, err = decodeServe(strings.NewReader(m[2]))
		} else {
			_, err = decodeWorker(strings.NewReader(m[2]))
		}
		if err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
		found[m[1]] = true
	}
	if len(found) != 3 {
		t.Errorf("the page has the files %v", found)
	}
}
