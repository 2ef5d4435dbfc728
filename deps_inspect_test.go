package bulkhead_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A policy is what a tree is held to.
type policy struct {
	rooms      map[string]room
	outside    []grant
	exceptions []exception
	fences     []fence
	variables  map[string]string
}

func ourPolicy() policy {
	return policy{rooms: house(), outside: outside(), exceptions: exceptions(), fences: fences(), variables: variables()}
}

// A source is one parsed file.
type source struct {
	room string // its package's path below the module
	name string // its path below the root, with slashes
	test bool
	file *ast.File
}

// An inspection is one pass over a tree.
type inspection struct {
	policy
	fset  *token.FileSet
	found []string
	used  map[string]bool // exceptions and variables that something needed
}

// inspect holds the tree at root to p. It returns one line for each breach, in
// a fixed order, and the number of packages it saw.
func inspect(root string, p policy) (problems []string, packages int, err error) {
	in := &inspection{policy: p, fset: token.NewFileSet(), used: map[string]bool{}}
	sources, err := in.load(root)
	if err != nil {
		return nil, 0, err
	}
	byRoom := map[string][]*source{}
	for _, s := range sources {
		byRoom[s.room] = append(byRoom[s.room], s)
	}
	for name, files := range byRoom {
		if _, listed := in.rooms[name]; !listed {
			in.add(files[0], files[0].file.Package, "package %s is not in the table of the house", name)
			continue
		}
		in.checkPackage(files)
		in.checkComment(files)
	}
	in.checkStale(byRoom)
	slices.Sort(in.found)
	return in.found, len(byRoom), nil
}

// load parses every Go file below root, whatever its build tags. Folders with
// a go.mod of their own are other modules.
func (in *inspection) load(root string) ([]*source, error) {
	var sources []*source
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if file != root && skipped(file, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(in.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		sources = append(sources, &source{room: path.Dir(rel), name: rel, test: strings.HasSuffix(rel, "_test.go"), file: parsed})
		return nil
	})
	return sources, err
}

func skipped(dir, name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules" {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return !errors.Is(err, fs.ErrNotExist)
}

func (in *inspection) add(s *source, at token.Pos, format string, args ...any) {
	in.found = append(in.found, fmt.Sprintf("%s:%d: %s", s.name, in.fset.Position(at).Line, fmt.Sprintf(format, args...)))
}

// checkPackage checks the files of one folder, which may hold a package and
// its external test package.
func (in *inspection) checkPackage(files []*source) {
	byClause := map[string][]*ast.File{}
	for _, s := range files {
		byClause[s.file.Name.Name] = append(byClause[s.file.Name.Name], s.file)
	}
	uses := map[string]*types.Info{}
	for clause, parsed := range byClause {
		uses[clause] = resolve(in.fset, files[0].room, parsed)
	}
	for _, s := range files {
		info := uses[s.file.Name.Name]
		for _, spec := range s.file.Imports {
			in.checkImport(s, spec)
		}
		in.checkFences(s, info)
		in.checkDeclarations(s, info)
		in.checkWrites(s, info)
		if s.test {
			in.checkSleeps(s, info)
		}
		if !ast.IsGenerated(s.file) {
			in.checkLengths(s)
		}
	}
}

// resolve finds what each name of a package means. Imports are stubs, so what
// lies behind them stays unknown; errors are the compiler's business.
func resolve(fset *token.FileSet, name string, files []*ast.File) *types.Info {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: stubs{}, Error: func(error) {}, FakeImportC: true}
	_, err := conf.Check(name, fset, files, info)
	_ = err // expected: the stubs are empty
	return info
}

// stubs answers every import with an empty package.
type stubs struct{}

func (stubs) Import(p string) (*types.Package, error) {
	if p == "unsafe" {
		return types.Unsafe, nil
	}
	name := path.Base(p)
	if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
		name = path.Base(path.Dir(p))
	}
	pkg := types.NewPackage(p, strings.TrimPrefix(name, "go-"))
	pkg.MarkComplete()
	return pkg, nil
}

func (in *inspection) checkImport(s *source, spec *ast.ImportSpec) {
	target, err := strconv.Unquote(spec.Path.Value)
	if err != nil || (spec.Name != nil && spec.Name.Name == ".") {
		in.add(s, spec.Pos(), "dot import of %s hides where names come from", target)
		return
	}
	for i, e := range in.exceptions {
		if e.in == s.room && e.path == target && (s.test || !e.tests) {
			in.used["exception "+strconv.Itoa(i)] = true
			return
		}
	}
	switch {
	case target == module || strings.HasPrefix(target, module+"/"):
		in.checkOurs(s, spec, strings.TrimPrefix(strings.TrimPrefix(target, module), "/"))
	case strings.Contains(strings.SplitN(target, "/", 2)[0], "."):
		in.checkOutside(s, spec, target)
	default:
		in.checkStandard(s, spec, target)
	}
}

func (in *inspection) checkOurs(s *source, spec *ast.ImportSpec, target string) {
	home, there := in.rooms[s.room], in.rooms[target]
	_, listed := in.rooms[target]
	switch {
	case target == s.room: // an external test package imports what it tests
	case !listed:
		in.add(s, spec.Pos(), "imports %s, which is not in the table of the house", target)
	case there.layer > home.layer:
		in.add(s, spec.Pos(), "%s imports %s upward", s.room, target)
	case there.layer == home.layer:
		in.add(s, spec.Pos(), "%s imports its sibling %s", s.room, target)
	case there.suite && !s.test:
		in.add(s, spec.Pos(), "%s imports the test suite %s outside a test", s.room, target)
	case home.public && !there.public:
		in.add(s, spec.Pos(), "public package %s imports %s, which is not public", s.room, target)
	case home.pure && !there.pure && there.layer != leaf:
		in.add(s, spec.Pos(), "pure package %s imports %s, which is not pure", s.room, target)
	}
}

func (in *inspection) checkOutside(s *source, spec *ast.ImportSpec, target string) {
	for _, g := range in.outside {
		if target != g.module && !strings.HasPrefix(target, g.module+"/") {
			continue
		}
		if slices.Contains(g.to, s.room) && (s.test || !g.tests) {
			return
		}
	}
	in.add(s, spec.Pos(), "%s imports %s, which is not granted to it", s.room, target)
}

func (in *inspection) checkStandard(s *source, spec *ast.ImportSpec, target string) {
	home := in.rooms[s.room]
	for _, f := range in.fences {
		if len(f.names) == 0 && f.path == target && !f.opens(s) {
			in.add(s, spec.Pos(), "%s imports %s: %s", s.room, target, f.why)
		}
	}
	if target == "C" {
		in.add(s, spec.Pos(), "cgo: the house is built with Go alone")
		return
	}
	if !home.pure || slices.Contains(pureImports(), target) || slices.Contains(home.more, target) {
		return
	}
	if s.test && (slices.Contains(testImports(), target) || slices.Contains(home.tests, target)) {
		return
	}
	for _, pattern := range home.choosers {
		if ok, err := path.Match(pattern, path.Base(s.name)); err == nil && ok && !s.test {
			return
		}
	}
	in.add(s, spec.Pos(), "pure package %s imports %s, which is not on the pure list", s.room, target)
}

func (f fence) opens(s *source) bool {
	return slices.Contains(f.open, s.room) || (s.test && f.tests) || f.path == module+"/"+s.room
}

// checkFences looks for fenced names, and for fenced types being made: by a
// literal, by a conversion, by new, or by a variable left at zero.
func (in *inspection) checkFences(s *source, info *types.Info) {
	asked := map[ast.Node]bool{} // names inside the arguments of a method Has
	report := func(e ast.Expr, suffix string) {
		sel, ok := e.(*ast.SelectorExpr)
		if !ok {
			return
		}
		from := importedPath(sel, info)
		for _, f := range in.fences {
			hit := from == f.path && f.around(sel.Sel.Name+suffix, asked[sel])
			if from == "" && suffix == "" {
				hit = slices.Contains(f.names, "."+sel.Sel.Name) && imports(s.file, f.path)
			}
			if hit && !f.opens(s) {
				in.add(s, sel.Pos(), "%s.%s in %s: %s", path.Base(f.path), sel.Sel.Name, s.room, f.why)
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			report(n, "")
		case *ast.CompositeLit:
			report(n.Type, "{}")
		case *ast.CallExpr:
			report(n.Fun, "{}")
			switch fun := n.Fun.(type) {
			case *ast.Ident:
				if fun.Name == "new" && len(n.Args) == 1 {
					report(n.Args[0], "{}")
				}
			case *ast.SelectorExpr:
				if fun.Sel.Name == "Has" {
					for _, arg := range n.Args {
						ast.Inspect(arg, func(n ast.Node) bool { asked[n] = true; return true })
					}
				}
			}
		case *ast.ValueSpec:
			if len(n.Values) == 0 {
				report(n.Type, "{}")
			}
		}
		return true
	})
}

// around reports whether the fence stands around name.
func (f fence) around(name string, asked bool) bool {
	return slices.ContainsFunc(f.names, func(n string) bool {
		prefix, many := strings.CutSuffix(n, "*")
		if !many || asked {
			return n == name
		}
		rest, ok := strings.CutPrefix(name, prefix)
		return ok && rest != "" && token.IsExported(rest)
	})
}

func imports(file *ast.File, target string) bool {
	return slices.ContainsFunc(file.Imports, func(spec *ast.ImportSpec) bool { return spec.Path.Value == strconv.Quote(target) })
}

// importedPath gives the import path of the package that e names, or "".
func importedPath(e ast.Expr, info *types.Info) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	if pkg, ok := info.Uses[x].(*types.PkgName); ok {
		return pkg.Imported().Path()
	}
	return ""
}

// checkDeclarations refuses init and package-level variables, save those that
// are constants in spirit: error sentinels, arrays, structs without references,
// embedded files, interface guards, and in tests the flags.
func (in *inspection) checkDeclarations(s *source, info *types.Info) {
	for _, decl := range s.file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			in.add(s, fn.Pos(), "func init")
		}
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, spec := range gen.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || embeds(gen.Doc) || embeds(v.Doc) {
				continue
			}
			for i, name := range v.Names {
				if name.Name == "_" || isArray(info.Defs[name]) || isArrayType(v.Type) {
					continue
				}
				if i < len(v.Values) && constantInSpirit(v.Values[i], info, s.test) {
					continue
				}
				key := s.room + "." + name.Name
				if _, allowed := in.variables[key]; allowed {
					in.used[key] = true
					continue
				}
				in.add(s, name.Pos(), "package variable %s: make it a constant, an array, a function or a field", name.Name)
			}
		}
	}
}

func embeds(doc *ast.CommentGroup) bool {
	if doc == nil {
		return false
	}
	return slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

func constantInSpirit(value ast.Expr, info *types.Info, test bool) bool {
	switch v := value.(type) {
	case *ast.CompositeLit:
		return isArrayType(v.Type) || isFixed(info.Types[v].Type)
	case *ast.CallExpr:
		switch importedPath(v.Fun, info) {
		case "errors":
			return v.Fun.(*ast.SelectorExpr).Sel.Name == "New"
		case "flag":
			return test
		}
	}
	return false
}

// isFixed reports whether a value of type t shares nothing when it is copied.
// An error is taken for a value.
func isFixed(t types.Type) bool {
	if t == nil {
		return false
	}
	if types.Identical(t, types.Universe.Lookup("error").Type()) {
		return true
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return true
	case *types.Array:
		return isFixed(u.Elem())
	case *types.Struct:
		for f := range u.Fields() {
			if !isFixed(f.Type()) {
				return false
			}
		}
		return true
	}
	return false
}

func isArrayType(e ast.Expr) bool {
	array, ok := e.(*ast.ArrayType)
	return ok && array.Len != nil
}

func isArray(o types.Object) bool {
	if o == nil {
		return false
	}
	_, ok := o.Type().Underlying().(*types.Array)
	return ok
}

// checkWrites refuses every write to a package-level variable, and taking the
// address of one, but for r := &table[i], through which it refuses writes.
func (in *inspection) checkWrites(s *source, info *types.Info) {
	views := map[types.Object]bool{} // locals that point into a package variable
	viewed := map[ast.Expr]bool{}
	written := func(e ast.Expr) {
		o := root(e, info)
		_, whole := e.(*ast.Ident)
		if isPackageVariable(o) || views[o] && !whole {
			in.add(s, e.Pos(), "writes the package variable behind %s", o.Name())
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs { // what := defines is no use of a name
				written(left)
				name, named := left.(*ast.Ident)
				if !named || n.Tok != token.DEFINE || len(n.Rhs) != len(n.Lhs) {
					continue
				}
				if address, ok := n.Rhs[i].(*ast.UnaryExpr); ok && isPackageVariable(root(address.X, info)) {
					views[info.Defs[name]], viewed[address] = true, true
				}
			}
		case *ast.IncDecStmt:
			written(n.X)
		case *ast.UnaryExpr:
			if n.Op == token.AND && !viewed[n] {
				written(n.X)
			}
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				written(n.Key)
				written(n.Value)
			}
		}
		return true
	})
}

// root finds the variable in which e lies, or nil.
func root(e ast.Expr, info *types.Info) types.Object {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.Ident:
			return info.Uses[x]
		default:
			return nil
		}
	}
}

func isPackageVariable(o types.Object) bool {
	v, ok := o.(*types.Var)
	return ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope()
}

// checkSleeps refuses real waiting in tests: time.Sleep, and a bare receive
// from time.After. Inside the bubble of synctest.Test time is not real.
func (in *inspection) checkSleeps(s *source, info *types.Info) {
	var bubbles []ast.Node
	inBubble := func(n ast.Node) bool {
		return slices.ContainsFunc(bubbles, func(b ast.Node) bool { return b.Pos() <= n.Pos() && n.End() <= b.End() })
	}
	is := func(e ast.Expr, pkg, name string) bool {
		return importedPath(e, info) == pkg && e.(*ast.SelectorExpr).Sel.Name == name
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if is(n.Fun, "testing/synctest", "Test") {
				bubbles = append(bubbles, n)
			}
			if is(n.Fun, "time", "Sleep") && !inBubble(n) {
				in.add(s, n.Pos(), "a real sleep in a test: use testing/synctest or a channel")
			}
		case *ast.ExprStmt:
			receive, ok := n.X.(*ast.UnaryExpr)
			if !ok || receive.Op != token.ARROW {
				break
			}
			if call, ok := receive.X.(*ast.CallExpr); ok && is(call.Fun, "time", "After") && !inBubble(n) {
				in.add(s, n.Pos(), "a real sleep in a test: use testing/synctest or a channel")
			}
		}
		return true
	})
}

func (in *inspection) checkLengths(s *source) {
	whole := in.lines(s.file.FileStart, s.file.FileEnd)
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if n := in.lines(d.Pos(), d.End()) - in.tableLines(d); n > maxFunction {
				in.add(s, d.Pos(), "function %s has %d lines, tables not counted; at most %d", d.Name.Name, n, maxFunction)
			}
		case *ast.GenDecl:
			whole -= in.tableLines(d)
		}
	}
	if whole > maxFile {
		in.add(s, s.file.Package, "file has %d lines, tables not counted; at most %d", whole, maxFile)
	}
}

func (in *inspection) lines(from, to token.Pos) int {
	return in.fset.Position(to).Line - in.fset.Position(from).Line + 1
}

// tableLines counts the lines inside composite literals below n. Functions
// written inside a literal are code, and count as code.
func (in *inspection) tableLines(n ast.Node) int {
	lines := 0
	ast.Inspect(n, func(n ast.Node) bool {
		table, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		lines += in.lines(table.Pos(), table.End()) - 1
		ast.Inspect(table, func(n ast.Node) bool {
			if fn, ok := n.(*ast.FuncLit); ok {
				lines -= in.lines(fn.Pos(), fn.End()) - 1
				return false
			}
			return true
		})
		return false
	})
	return lines
}

// checkComment wants one package comment in each package.
func (in *inspection) checkComment(files []*source) {
	var first *source
	for _, s := range files {
		if strings.HasSuffix(s.file.Name.Name, "_test") && s.room != "." {
			continue
		}
		if s.file.Doc != nil {
			want := "Package " + s.file.Name.Name + " "
			if s.file.Name.Name == "main" {
				want = "Command "
			}
			if !strings.HasPrefix(s.file.Doc.Text(), want) {
				in.add(s, s.file.Doc.Pos(), "the package comment does not begin with %q", want)
			}
			return
		}
		if first == nil {
			first = s
		}
	}
	if first != nil {
		in.add(first, first.file.Package, "package %s has no package comment", first.room)
	}
}

// checkStale finds exceptions that nothing needs.
func (in *inspection) checkStale(present map[string][]*source) {
	for i, e := range in.exceptions {
		if files := present[e.in]; files != nil && !in.used["exception "+strconv.Itoa(i)] {
			in.add(files[0], files[0].file.Package, "stale exception: nothing in %s imports %s", e.in, e.path)
		}
	}
	for key := range in.variables {
		where := key[:strings.LastIndex(key, ".")]
		if files := present[where]; files != nil && !in.used[key] {
			in.add(files[0], files[0].file.Package, "stale exception: there is no variable %s", key)
		}
	}
}
