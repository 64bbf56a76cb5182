package fault_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/zero/fault"
)

var update = flag.Bool("update", false, "write docs/laboratory.md")

// TestDocumentation: the table of faults in docs/laboratory.md is that of Classes.
// `go test ./zero/fault -run TestDocumentation -update` writes it.
func TestDocumentation(t *testing.T) {
	const path, begin, end = "../../docs/laboratory.md", "-run TestDocumentation -update\" -->\n", "<!-- end of the table of faults -->"
	var table strings.Builder
	table.WriteString("\n| name | what goes wrong | first seen at |\n|---|---|---|\n")
	for _, c := range fault.Classes() {
		fmt.Fprintf(&table, "| `%s` | %s | %v |\n", c.Name, c.Mechanism, c.Life)
	}
	table.WriteString("\n")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/laboratory.md has lost the marks of its table")
	}
	fresh := []byte(before + begin + table.String() + end + after)
	if *update {
		if err := os.WriteFile(path, fresh, 0o666); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(old, fresh) {
		t.Error("docs/laboratory.md is not up to date: run this test with -update")
	}
}
