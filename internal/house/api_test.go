package house

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/api.txt")

// published are the rooms whose exported names other programs use.
var published = []string{
	"dtype", "framework", "nn", "unet", "data",
	"zero", "zero/comm", "zero/comm/local", "zero/engine", "zero/solver",
}

// TestExportedSurface compares what the published packages export with
// testdata/api.txt, so that no change of it goes unnoticed. After a change that is
// meant, `go test ./internal/house -run Surface -update` writes the file, and
// CHANGELOG.md says what users have to do.
func TestExportedSurface(t *testing.T) {
	const path = "testdata/api.txt"
	var all []string
	for _, room := range published {
		lines, err := surface(room)
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) == 0 {
			t.Errorf("%s exports nothing: is the test looking at the repository?", room)
		}
		all = append(all, lines...)
	}
	got := strings.Join(all, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	for _, line := range want {
		if !slices.Contains(all, line) {
			t.Errorf("gone or changed: %s", line)
		}
	}
	for _, line := range all {
		if !slices.Contains(want, line) {
			t.Errorf("new or changed: %s", line)
		}
	}
	if t.Failed() {
		t.Log("if that is meant: go test ./internal/house -run Surface -update, and a line in CHANGELOG.md")
	}
}

// surface lists the exported declarations of a room, one a line, sorted.
func surface(room string) ([]string, error) {
	fset := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(root, room, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, module+room)
	if err != nil {
		return nil, err
	}
	var lines []string
	add := func(decl ast.Node) { lines = append(lines, room+": "+oneLine(fset, decl)) }
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			add(v.Decl)
		}
	}
	funcs := func(fs []*doc.Func) {
		for _, f := range fs {
			f.Decl.Body = nil
			add(f.Decl)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, ty := range p.Types {
		add(ty.Decl)
		values(ty.Consts)
		values(ty.Vars)
		funcs(ty.Funcs)
		funcs(ty.Methods)
	}
	slices.Sort(lines)
	return lines, nil
}

// oneLine prints a declaration without line breaks.
func oneLine(fset *token.FileSet, decl ast.Node) string {
	var b bytes.Buffer
	if err := (&printer.Config{Mode: printer.RawFormat}).Fprint(&b, fset, decl); err != nil {
		return fmt.Sprint(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
