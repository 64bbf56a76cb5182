package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// packages are the names that docs/contracts.md calls packages by.
var packages = map[string]string{
	"zero": "zero", "cases": "zero/cases", "gated": "zero/comm/gated", "local": "zero/comm/local", "engine": "zero/engine",
	"fault": "zero/fault", "bisect": "zero/bisect", "framework": "framework", "config": "internal/config", "train": "cmd/train",
	"checkpoint": "zero/checkpoint",
}

// TestContractsHaveTests: every row of docs/contracts.md names a test, and every
// test that it names is there.
func TestContractsHaveTests(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "contracts.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := tests(t, root)
	reference := regexp.MustCompile("`([a-z]+)\\.((?:Test|Fuzz|Benchmark|Example)\\w*)`")
	rows := 0
	for _, line := range strings.Split(string(text), "\n") {
		named := reference.FindAllStringSubmatch(line, -1)
		for _, m := range named {
			if dir, known := packages[m[1]]; !known || !have[dir+"."+m[2]] {
				t.Errorf("docs/contracts.md names %s.%s, which is not there", m[1], m[2])
			}
		}
		if strings.HasPrefix(line, "| ") && line != "| contract | test |" {
			rows++
			if len(named) == 0 {
				t.Errorf("docs/contracts.md has a contract without a test: %s", line)
			}
		}
	}
	if rows < 50 {
		t.Errorf("%d contracts in docs/contracts.md: is it still a table of them?", rows)
	}
}

// tests lists the test functions of the tree as folder.name.
func tests(t *testing.T, root string) map[string]bool {
	t.Helper()
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range declared.FindAllStringSubmatch(string(source), -1) {
			have[filepath.ToSlash(dir)+"."+m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}
