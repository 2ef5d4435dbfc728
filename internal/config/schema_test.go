package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"bulkhead.dev/bulkhead/internal/upstream"
)

var rewrite = flag.Bool("rewrite", false, "write the schema from the structs")

// node is one schema.
type node = map[string]any

// writer makes the schema of a struct from its types, tags and comments.
type writer struct {
	t    *testing.T
	docs map[string]string // Type and Type.Field to the comment
	defs node
}

// comments reads the comments of the package's types.
func comments(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	docs := map[string]string{}
	text := func(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
	for _, d := range parsed.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		docs[spec.Name.Name] = text(gen.Doc)
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				docs[spec.Name.Name+"."+f.Names[0].Name] = text(f.Doc)
			}
		}
	}
	return docs
}

func (w *writer) of(t reflect.Type) node {
	pattern := func(p string) node { return node{"type": "string", "pattern": p} }
	switch t {
	case reflect.TypeFor[Address]():
		return pattern(`^(off|\S*:[0-9]{1,5})$`)
	case reflect.TypeFor[URL]():
		return pattern(`^https?://\S+$`)
	case reflect.TypeFor[Duration]():
		return pattern(`^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`)
	case reflect.TypeFor[Size]():
		return node{"anyOf": []any{node{"type": "integer", "minimum": 1}, pattern(`^\+?[0-9]+(KiB|MiB|GiB)?$`)}}
	case reflect.TypeFor[Percent]():
		return pattern(`^[0-9.]+%$`)
	case reflect.TypeFor[Moment]():
		return pattern(`^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt].+)?$`)
	case reflect.TypeFor[Secret]():
		return pattern(`^(env|file):.+$`)
	case reflect.TypeFor[Number]():
		return node{"type": "integer", "minimum": 1}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return w.of(t.Elem())
	case reflect.Slice:
		return node{"type": "array", "items": w.of(t.Elem())}
	case reflect.Map:
		return node{"type": "object", "additionalProperties": w.of(t.Elem())}
	case reflect.String:
		return node{"type": "string"}
	case reflect.Bool:
		return node{"type": "boolean"}
	case reflect.Uint64:
		return node{"type": "integer", "minimum": 0}
	case reflect.Int64:
		return node{"type": "integer"}
	case reflect.Struct:
		w.define(t)
		return node{"$ref": "#/$defs/" + t.Name()}
	}
	w.t.Fatalf("no schema for %v", t)
	return nil
}

// define adds a struct to the definitions.
func (w *writer) define(t reflect.Type) {
	if _, done := w.defs[t.Name()]; done {
		return
	}
	w.defs[t.Name()] = nil // it is on its way
	w.defs[t.Name()] = w.object(t)
}

func (w *writer) object(t reflect.Type) node {
	properties, needed := node{}, []any{}
	for i := range t.NumField() {
		f := t.Field(i)
		s := w.of(f.Type)
		about := w.docs[t.Name()+"."+f.Name]
		if about == "" {
			w.t.Errorf("%s.%s has no comment", t.Name(), f.Name)
		}
		s["description"] = name(f) + strings.TrimPrefix(about, f.Name)
		if list := f.Tag.Get("oneof"); list != "" {
			words := []any{}
			for word := range strings.SplitSeq(list, ",") {
				words = append(words, word)
			}
			s["enum"] = words
		}
		if f.Tag.Get("need") != "" {
			needed = append(needed, name(f))
			if f.Type.Kind() == reflect.Slice {
				s["minItems"] = 1
			}
		}
		properties[name(f)] = s
	}
	o := node{"type": "object", "additionalProperties": false, "properties": properties, "description": w.docs[t.Name()]}
	if len(needed) > 0 {
		o["required"] = needed
	}
	if t == reflect.TypeFor[Model]() {
		o["allOf"] = engines()
	}
	return o
}

// engines says of each engine which nodes and settings it needs.
func engines() []any {
	all := []any{}
	for _, d := range upstream.Dialects() {
		t := d.Traits()
		need := []any{"nodes"}
		switch {
		case d == upstream.Bulkhead:
			need = []any{"pairs", "tokenizer"}
		case t.Legs != upstream.One:
			need = []any{"prefill", "decode"}
		}
		if t.Leased {
			need = append(need, "lease")
		}
		if t.Hosted {
			need = append(need, "window")
		}
		when := node{"properties": node{"engine": node{"const": d.String()}}}
		if d != upstream.Bulkhead { // which is the default
			when["required"] = []any{"engine"}
		}
		all = append(all, node{"if": when, "then": node{"required": need}})
	}
	return all
}

func generate(t *testing.T) []byte {
	t.Helper()
	w := &writer{t: t, docs: comments(t, "serve.go"), defs: node{}}
	root := w.object(reflect.TypeFor[Serve]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "bulkhead serve"
	root["$defs"] = w.defs
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const published = "../../docs/schema/serve.schema.json"

// TestSchema: the schema that is published is that of the structs.
func TestSchema(t *testing.T) {
	want := generate(t)
	for _, path := range []string{"serve.schema.json", published} {
		if *rewrite {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not that of the structs: go test ./internal/config -run TestSchema -rewrite", path)
		}
	}
}

// schemaOf reads the published schema.
func schemaOf(t *testing.T) *validator {
	t.Helper()
	text, err := os.ReadFile(published)
	if err != nil {
		t.Fatal(err)
	}
	v := &validator{}
	if err := json.Unmarshal(text, &v.root); err != nil {
		t.Fatal(err)
	}
	return v
}

// validator holds a document to a schema, as far as ours goes.
type validator struct{ root node }

func (v *validator) check(s node, path string, doc any) []string {
	var bad []string
	say := func(format string, args ...any) { bad = append(bad, path+": "+fmt.Sprintf(format, args...)) }
	for key, rule := range s {
		switch key {
		case "$ref":
			name := strings.TrimPrefix(rule.(string), "#/$defs/")
			bad = append(bad, v.check(v.root["$defs"].(node)[name].(node), path, doc)...)
		case "type":
			if !isA(rule.(string), doc) {
				say("is no %v", rule)
				return bad
			}
		case "pattern":
			if text, ok := doc.(string); ok && !regexp.MustCompile(rule.(string)).MatchString(text) {
				say("does not match")
			}
		case "minimum":
			if n, ok := number(doc); ok && n < rule.(float64) {
				say("is below %v", rule)
			}
		case "minItems":
			if list, ok := doc.([]any); ok && float64(len(list)) < rule.(float64) {
				say("has fewer than %v", rule)
			}
		case "enum":
			if !slices.Contains(rule.([]any), doc) {
				say("is none of %v", rule)
			}
		case "const":
			if doc != rule {
				say("is not %v", rule)
			}
		case "anyOf":
			if !slices.ContainsFunc(rule.([]any), func(s any) bool { return len(v.check(s.(node), path, doc)) == 0 }) {
				say("is neither")
			}
		case "allOf":
			for _, c := range rule.([]any) {
				if c := c.(node); len(v.check(c["if"].(node), path, doc)) == 0 {
					bad = append(bad, v.check(c["then"].(node), path, doc)...)
				}
			}
		case "required", "properties", "additionalProperties", "items":
			bad = append(bad, v.inside(s, key, path, doc)...)
		case "description", "title", "$schema", "$defs":
		default:
			say("the validator does not know %s", key)
		}
	}
	return bad
}

// inside checks what is in an object or a list.
func (v *validator) inside(s node, key, path string, doc any) []string {
	var bad []string
	object, _ := doc.(node)
	list, _ := doc.([]any)
	properties, _ := s["properties"].(node)
	switch key {
	case "required":
		for _, k := range s[key].([]any) {
			if _, there := object[k.(string)]; !there && object != nil {
				bad = append(bad, fmt.Sprintf("%s.%v: is missing", path, k))
			}
		}
	case "properties":
		for k, sub := range properties {
			if value, there := object[k]; there {
				bad = append(bad, v.check(sub.(node), path+"."+k, value)...)
			}
		}
	case "additionalProperties":
		for k, value := range object {
			if _, there := properties[k]; there {
				continue
			}
			if sub, ok := s[key].(node); ok {
				bad = append(bad, v.check(sub, path+"."+k, value)...)
			} else {
				bad = append(bad, path+"."+k+": is unknown")
			}
		}
	case "items":
		for i, value := range list {
			bad = append(bad, v.check(s[key].(node), fmt.Sprintf("%s[%d]", path, i), value)...)
		}
	}
	return bad
}

func number(doc any) (float64, bool) {
	switch n := doc.(type) {
	case uint64:
		return float64(n), true
	case int64:
		return float64(n), true
	}
	return 0, false
}

func isA(kind string, doc any) bool {
	switch kind {
	case "integer":
		_, ok := number(doc)
		return ok
	case "string":
		_, ok := doc.(string)
		return ok
	case "boolean":
		_, ok := doc.(bool)
		return ok
	case "array":
		_, ok := doc.([]any)
		return ok
	case "object":
		_, ok := doc.(node)
		return ok
	}
	return false
}

// validate holds a text to the schema. Of a part, what is required may be missing at
// its top.
func (v *validator) validate(t *testing.T, text string, part bool) []string {
	t.Helper()
	var doc any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return []string{"it is not YAML"}
	}
	s := v.root
	if part {
		s = node{}
		for k, rule := range v.root {
			if k != "required" {
				s[k] = rule
			}
		}
	}
	return v.check(s, "", doc)
}

// TestSchemaTakes: the example and every YAML of the documentation are right by the
// schema. A block names its file in its first line: serve..., a worker's, or "part of
// serve.yaml".
func TestSchemaTakes(t *testing.T) {
	v := schemaOf(t)
	if bad := v.validate(t, Example(), false); bad != nil {
		t.Errorf("the example: %v", bad)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../README.md")
	seen := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			first, _, _ := strings.Cut(m[1], "\n")
			switch {
			case strings.HasPrefix(first, "# serve"), strings.HasPrefix(first, "# part of serve"):
				seen++
				if bad := v.validate(t, m[1], strings.HasPrefix(first, "# part")); bad != nil {
					t.Errorf("%s: %s: %v", page, first, bad)
				}
			case first == "# prefill.yaml", first == "# decode.yaml":
				if _, err := readWorker(strings.NewReader(m[1])); err != nil {
					t.Errorf("%s: %s: %v", page, first, err)
				}
			default:
				t.Errorf("%s: a block of YAML does not say whose it is: %s", page, first)
			}
		}
	}
	if seen < 2 {
		t.Errorf("only %d files of serve are in the documentation", seen)
	}
}
