package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are the files that people read.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "testdata/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) < 10 {
		t.Fatalf("%d documents: is the test looking at the repository?", len(all))
	}
	return all
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksLeadSomewhere follows the links between documents, to files and to
// headings in them.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, doc := range documents(t) {
		text := readText(t, doc)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			to := doc
			if path != "" {
				to = filepath.Join(filepath.Dir(doc), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", doc, target, err)
			} else if anchor != "" && !hasHeading(readText(t, to), anchor) {
				t.Errorf("%s links to %s: there is no such heading", doc, target)
			}
		}
	}
}

// hasHeading knows headings by the names that GitHub gives them.
func hasHeading(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		slug := notSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		if strings.ReplaceAll(slug, " ", "-") == anchor {
			return true
		}
	}
	return false
}

func readText(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// goTest is a command in an indented line or in a sentence.
var goTest = regexp.MustCompile("go test ([^`\n]*)")

// TestDocumentedTestsExist checks the packages and names in every "go test" of the
// documents: a benchmark that was renamed must not leave a command that runs nothing.
func TestDocumentedTestsExist(t *testing.T) {
	checked := 0
	for _, doc := range documents(t) {
		text := strings.ReplaceAll(readText(t, doc), "\\\n", " ")
		for _, m := range goTest.FindAllStringSubmatch(text, -1) {
			checkGoTest(t, doc, m[1])
			checked++
		}
	}
	if checked < 8 {
		t.Errorf("only %d commands were found", checked)
	}
}

func checkGoTest(t *testing.T, doc, args string) {
	fields := strings.Fields(args)
	var names []string // functions of the packages
	for _, f := range fields {
		f = strings.TrimRight(f, ".,;:)") // of the sentence
		switch {
		case f == "./", args == "":
		case strings.HasPrefix(f, "./"):
			found := functions(t, strings.TrimSuffix(strings.TrimSuffix(f, "..."), "/"), strings.HasSuffix(f, "..."))
			if len(found) == 0 && !strings.Contains(args, "./...") {
				t.Errorf("%s: go test %s: %s has no tests", doc, args, f)
			}
			names = append(names, found...)
		}
	}
	for i, f := range fields[:max(0, len(fields)-1)] {
		if f != "-run" && f != "-bench" {
			continue
		}
		pattern := strings.Trim(fields[i+1], "'\"")
		if pattern == "^$" || pattern == "NAME" || pattern == "." {
			continue
		}
		// Slashes part the names of subtests: only the functions are looked at.
		for _, alternative := range strings.Split(strings.SplitN(pattern, "/", 2)[0], "|") {
			re, err := regexp.Compile(alternative)
			if err != nil {
				t.Errorf("%s: go test %s: %v", doc, args, err)
				continue
			}
			found := false
			for _, name := range names {
				found = found || re.MatchString(name)
			}
			if !found {
				t.Errorf("%s: go test %s: nothing is called %s", doc, args, alternative)
			}
		}
	}
}

// functions lists the tests, benchmarks and fuzz targets below a folder.
func functions(t *testing.T, dir string, below bool) []string {
	var names []string
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && !below && path != filepath.Join(root, dir):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				names = append(names, fn.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("go test %s: %v", dir, err)
	}
	return names
}
