package config

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// MaxFile bounds a configuration file, in bytes.
const MaxFile = 1 << 20

// Document is a configuration file as it was written, for errors that say where.
type Document struct{ file *ast.File }

// Decode reads one YAML document into a struct. Unknown and repeated keys are
// refused, and so is what a reader would take for something else: a second
// document, anchors, aliases, merges and tags, numbers with a fraction, and
// whole numbers that are not plainly decimal, and ${NAME}. Errors name line, column and
// path, and never a value.
func Decode(r io.Reader, into any) (*Document, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: read: %w", err)
	}
	if len(data) > MaxFile {
		return nil, errorf("longer than %d bytes", MaxFile)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, (&Document{}).yamlError(err)
	}
	d := &Document{file}
	switch {
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, errorf("it is empty")
	case len(file.Docs) > 1:
		return nil, errorf("it has more than one document")
	}
	p := &plain{}
	ast.Walk(p, file.Docs[0].Body)
	if p.fault != "" {
		return nil, d.at(p.node, "%s", p.fault)
	}
	if err := yaml.NodeToValue(file.Docs[0].Body, into, yaml.Strict()); err != nil {
		return nil, d.yamlError(err)
	}
	return d, nil
}

// plain finds the first node that is not plain YAML.
type plain struct {
	node  ast.Node
	fault string
}

// Visit implements ast.Visitor.
func (p *plain) Visit(n ast.Node) ast.Visitor {
	if p.fault != "" {
		return nil
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		p.node, p.fault = n, "anchors, aliases, merges and tags are not used here"
	case *ast.StringNode:
		if strings.Contains(n.Value, "${") {
			p.node, p.fault = n, "nothing is filled in here: a secret is named as env:NAME or file:PATH, everything else is written out"
		}
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		p.node, p.fault = n, "no setting takes such a number; a text that looks like one goes in quotes"
	case *ast.IntegerNode:
		if v := n.GetToken().Value; v != fmt.Sprint(n.Value) {
			p.node, p.fault = n, "write whole numbers in plain decimal; a text that looks like one goes in quotes"
		}
	}
	return p
}

// yamlError says in our words what the YAML library found.
func (d *Document) yamlError(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil {
		return errorf("it is not YAML, or not of the right shape")
	}
	path := d.pathOf(e.GetToken())
	switch e := e.(type) {
	case *yaml.UnknownFieldError:
		return located(e.Token, path, "there is no such setting")
	case *yaml.TypeError:
		return located(e.Token, path, "want "+kindName(e.DstType))
	case *yaml.OverflowError:
		return located(e.Token, path, "the number is out of range")
	case *yaml.UnexpectedNodeTypeError:
		return located(e.Token, path, "want a "+strings.Replace(e.Expected.YAMLName(), "sequence", "list", 1))
	}
	return located(e.GetToken(), path, unquoted(e.GetMessage())+why(e.GetMessage(), e.GetToken()))
}

// why says what is usually the matter where the library's words do not.
func why(message string, t *token.Token) string {
	switch {
	case strings.Contains(message, "\t"):
		return ": lines are indented by spaces, not by tabs"
	case strings.Contains(message, "not allowed in this context"), strings.Contains(message, "unexpected key"),
		strings.Contains(message, "non-map value"), t.Position.Column > 1 && strings.Contains(message, "indent"):
		return ": is it indented as the lines before it?"
	}
	return ""
}

// unquoted takes out of a message what it quotes of the file.
func unquoted(s string) string {
	parts := strings.Split(s, `"`)
	for i := 1; i < len(parts); i += 2 {
		parts[i] = "…"
	}
	return strings.ReplaceAll(strings.Join(parts, `"`), "\t", `\t`)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Pointer, reflect.Map:
		return "a mapping"
	default:
		return "a whole number"
	}
}

// located is an error at a place of the file.
func located(t *token.Token, path, text string) error {
	if path != "" {
		path += ": "
	}
	return errorf("[%d:%d] %s%s", t.Position.Line, t.Position.Column, path, text)
}

// at is an error at a node.
func (d *Document) at(n ast.Node, format string, args ...any) error {
	return located(start(n), trimPath(n.GetPath()), fmt.Sprintf(format, args...))
}

// start is where a node begins: a mapping without braces begins with its first key.
func start(n ast.Node) *token.Token {
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return start(m.Values[0])
		}
	case *ast.MappingValueNode:
		return m.Key.GetToken()
	}
	return n.GetToken()
}

func trimPath(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, "$"), ".") }

// Wrong is an error about the setting at a path, at the place where it stands
// or, if it does not, where it would.
func (d *Document) Wrong(path, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	for p := path; d != nil && p != ""; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
		y, err := yaml.PathString("$." + p)
		if err != nil {
			continue
		}
		if n, err := y.FilterFile(d.file); err == nil && n != nil {
			return located(start(n), path, text)
		}
	}
	return errorf("%s: %s", path, text)
}

// pathOf is the path of the node that a token stands for.
func (d *Document) pathOf(t *token.Token) string {
	if d.file == nil {
		return ""
	}
	f := &finder{position: *t.Position}
	ast.Walk(f, d.file.Docs[0].Body)
	return trimPath(f.path)
}

// finder finds the innermost node at a place.
type finder struct {
	position token.Position
	path     string
}

// Visit implements ast.Visitor.
func (f *finder) Visit(n ast.Node) ast.Visitor {
	if p := n.GetToken().Position; p.Line == f.position.Line && p.Column == f.position.Column {
		f.path = n.GetPath()
	}
	return f
}
