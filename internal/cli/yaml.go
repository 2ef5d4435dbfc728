package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 1 << 20

// document is a configuration file as it was written, for errors that say where.
type document struct{ file *ast.File }

// decode reads one YAML document into a struct. Unknown and repeated keys are
// refused, and so is what a reader would take for something else: a second
// document, anchors, aliases, merges and tags, numbers with a fraction, and
// whole numbers that are not plainly decimal. Errors name line, column and
// path, and never a value.
func decode(r io.Reader, into any) (*document, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("cli: read configuration: %w", err)
	}
	if len(data) > maxConfig {
		return nil, usage("configuration: longer than %d bytes", maxConfig)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, (&document{}).yamlError(err)
	}
	d := &document{file}
	switch {
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, usage("configuration: it is empty")
	case len(file.Docs) > 1:
		return nil, usage("configuration: it has more than one document")
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
func (d *document) yamlError(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil {
		return usage("configuration: it is not YAML, or not of the right shape")
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
		return located(e.Token, path, fmt.Sprintf("want a %s", e.Expected.YAMLName()))
	}
	return located(e.GetToken(), path, unquoted(e.GetMessage()))
}

// unquoted takes out of a message what it quotes of the file.
func unquoted(s string) string {
	parts := strings.Split(s, `"`)
	for i := 1; i < len(parts); i += 2 {
		parts[i] = "…"
	}
	return strings.Join(parts, `"`)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a sequence"
	case reflect.Struct, reflect.Pointer:
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
	return usage("configuration: [%d:%d] %s%s", t.Position.Line, t.Position.Column, path, text)
}

// at is an error at a node.
func (d *document) at(n ast.Node, format string, args ...any) error {
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

// wrong is an error about the setting at a path, at the place where it stands
// or, if it does not, where it would.
func (d *document) wrong(path, format string, args ...any) error {
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
	return usage("configuration: %s: %s", path, text)
}

// pathOf is the path of the node that a token stands for.
func (d *document) pathOf(t *token.Token) string {
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

// invalid is an error of a value at its own place.
func invalid(n ast.Node, text string) error {
	return &yaml.SyntaxError{Message: text, Token: n.GetToken()}
}

// Duration is a length of time, written with its unit: 250ms, 10s, 5m, 1h30m.
// It is above zero; where none is written, the default holds.
type Duration time.Duration

// UnmarshalYAML reads it.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	v, err := time.ParseDuration(n.GetToken().Value)
	if err != nil || v <= 0 {
		return invalid(n, "want a time above zero with its unit, such as 250ms, 10s or 5m")
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes it as it can be read.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// String writes it without units that are zero.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Size is a number of bytes above zero, written plainly or with KiB, MiB or GiB.
type Size int64

// UnmarshalYAML reads it.
func (z *Size) UnmarshalYAML(n ast.Node) error {
	text, shift := n.GetToken().Value, 0
	for i, unit := range [...]string{"KiB", "MiB", "GiB"} {
		if t, ok := strings.CutSuffix(text, unit); ok {
			text, shift = t, 10*(i+1)
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64>>shift {
		return invalid(n, "want a number of bytes above zero, such as 65536, 64KiB, 8MiB or 1GiB")
	}
	*z = Size(v << shift)
	return nil
}

// MarshalYAML writes it as it can be read.
func (z Size) MarshalYAML() (any, error) {
	for i, unit := range [...]string{"GiB", "MiB", "KiB"} {
		if shift := 30 - 10*i; z > 0 && z&(1<<shift-1) == 0 {
			return strconv.FormatInt(int64(z>>shift), 10) + unit, nil
		}
	}
	return int64(z), nil
}

// Number is a whole number above zero.
type Number int64

// UnmarshalYAML reads it.
func (c *Number) UnmarshalYAML(n ast.Node) error {
	v, err := strconv.ParseInt(n.GetToken().Value, 10, 64)
	if err != nil || v <= 0 {
		return invalid(n, "want a whole number above zero")
	}
	*c = Number(v)
	return nil
}
