package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented is a command of this program in an indented line of a document.
var documented = regexp.MustCompile(`(?m)^    (?:\S+ )*?(?:go run \./cmd/train|train)( .*)?$`)

// TestDocumentedCommandsAreTaken checks every command of the README and the docs:
// the subcommand, its flags, the configuration and the keys of -set exist.
func TestDocumentedCommandsAreTaken(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, doc := range append(docs, "../../README.md") {
		raw, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(raw), "\\\n", " ")
		for _, m := range documented.FindAllStringSubmatch(text, -1) {
			checkDocumented(t, doc, strings.Fields(m[1]))
			checked++
		}
	}
	if checked < 8 {
		t.Errorf("only %d commands were found", checked)
	}
}

func checkDocumented(t *testing.T, doc string, args []string) {
	line := strings.Join(args, " ")
	help := []string{"-help"}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if commands[args[0]] == nil {
			t.Errorf("%s: train %s: no such command", doc, line)
			return
		}
		help = []string{args[0], "-help"}
	}
	_, _, usage := command(help...)
	show := []string{"config", "-show"}
	for i, a := range args {
		if !strings.HasPrefix(a, "-") || len(a) < 2 || a[1] >= '0' && a[1] <= '9' {
			continue
		}
		if !strings.Contains(usage, "\n  "+a+" ") && !strings.Contains(usage, "\n  "+a+"\n") && !strings.Contains(usage, "\n  "+a+"\t") {
			t.Errorf("%s: train %s: there is no flag %s", doc, line, a)
		}
		switch {
		case i+1 == len(args):
		case a == "-config" && strings.HasPrefix(args[i+1], "configs/"):
			show = append(show, "-config", "../../"+args[i+1])
		case a == "-set":
			show = append(show, "-set", strings.Trim(args[i+1], "'\""))
		}
	}
	if len(show) > 2 && show[2] == "-config" {
		if code, _, stderr := command(show...); code != 0 {
			t.Errorf("%s: train %s: %s", doc, line, stderr)
		}
	}
}
