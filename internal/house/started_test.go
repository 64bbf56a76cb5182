package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestGettingStartedRuns builds and runs the program of docs/getting-started.md, and
// holds what the text says of it: its output, and the length of train and main.
func TestGettingStartedRuns(t *testing.T) {
	text := readText(t, filepath.Join(root, "docs", "getting-started.md"))
	_, rest, _ := strings.Cut(text, "```go\n")
	program, after, ok := strings.Cut(rest, "```")
	if !ok || !strings.HasPrefix(program, "package main") {
		t.Fatal("no program in docs/getting-started.md")
	}
	path := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && (fn.Name.Name == "main" || fn.Name.Name == "train") {
			lines += fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
		}
	}
	if lines >= 30 || !strings.Contains(text, "in `train` and `main`, "+strconv.Itoa(lines)+" lines") {
		t.Errorf("train and main have %d lines", lines)
	}
	command := exec.Command("go", "run", path)
	command.Dir = root // its module's versions are those that are tested
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, said, _ := strings.Cut(after, "It prints\n\n")
	said, _, _ = strings.Cut(said, "\n\n")
	said = strings.ReplaceAll(said, "    ", "")
	// Processors differ in the last bits, which digits that are shown may not.
	digits := regexp.MustCompile(`0\.\d+`)
	if digits.ReplaceAllString(strings.TrimSpace(string(out)), "#") != digits.ReplaceAllString(strings.TrimSpace(said), "#") {
		t.Errorf("it prints\n%s\nand is said to print\n%s", out, said)
	}
}
