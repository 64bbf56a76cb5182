package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiguresAreUpToDate: the committed figures are what this program draws.
func TestFiguresAreUpToDate(t *testing.T) {
	for _, name := range []string{"layout", "gradient"} {
		var b bytes.Buffer
		if err := run([]string{name}, &b); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("..", name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s.svg is another picture: go run ./docs/images/gen %[1]s > docs/images/%[1]s.svg", name)
		}
		wellFormed(t, name, b.String())
	}
}

// TestTimeline draws a trace of two ranks.
func TestTimeline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	trace := `{"traceEvents":[{"name":"process_name","ph":"M","pid":1,"tid":0,"ts":0},
		{"name":"backward","cat":"phase","ph":"X","ts":0,"dur":5000,"pid":0,"tid":0},
		{"name":"Conv2d <a>","cat":"backward","ph":"X","ts":10,"dur":900,"pid":0,"tid":0},
		{"name":"gradient bucket 3","cat":"collective","ph":"X","ts":700,"dur":1500,"pid":1,"tid":1}]}`
	if err := os.WriteFile(path, []byte(trace), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := run([]string{"trace", path}, &b); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, "trace", b.String())
	for _, want := range []string{"rank 1", "gradient bucket 3, 1.50 ms", ">3</text>", ">backward</text>", "0 ms"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in the picture", want)
		}
	}
	for _, args := range [][]string{nil, {"trace"}, {"trace", path + "x"}, {"other"}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

func wellFormed(t *testing.T, name, svg string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}
