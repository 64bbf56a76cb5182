package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	one, same, other := trainTiny(t, "-steps", "3"), trainTiny(t, "-steps", "3", "-world", "4"), trainTiny(t, "-steps", "3", "-set", "run.seed=1")
	out := filepath.Join(t.TempDir(), "new", "page.html")
	stdout := must(t, "compare", "-out", out, "-title", "three", one, same, other)
	if !strings.Contains(stdout, "same in 3 rows") || !strings.Contains(stdout, "differs from 8") {
		t.Errorf("comparison:\n%s", stdout)
	}
	if page := read(t, out); !strings.Contains(page, "<h1>three</h1>") || !strings.Contains(page, "grad norm") {
		t.Error("the page lacks title or curves")
	}
	if png := read(t, strings.TrimSuffix(out, "html")+"png"); !strings.HasPrefix(png, "\x89PNG") {
		t.Error("no plots")
	}
	if code, _, stderr := command("compare", t.TempDir()); code != exitUsage || !strings.Contains(stderr, "no CSV series") {
		t.Errorf("an empty folder: exit code %d, %s", code, stderr)
	}
}
