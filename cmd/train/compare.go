package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/zerogap/zerogap/internal/compare"
	"github.com/zerogap/zerogap/internal/picture"
)

// compareCommand is "train compare": the curves of several runs on one page.
func compareCommand(args []string, stdout, stderr io.Writer) error {
	var out, title string
	f := newFlags("compare")
	f.StringVar(&out, "out", "compare.html", "`file` of the page; the plots go into a .png beside it")
	f.StringVar(&title, "title", "", "title of the page")
	if err := parseArgs(f, args, stderr); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return usageError{errors.New("compare what? Give the folders of runs, of this trainer or with DeepSpeed's CSV files")}
	}
	runs, err := compare.Read(f.Args())
	if err == nil {
		err = writable(filepath.Dir(out))
	}
	if err != nil {
		return usageError{err}
	}
	if title == "" {
		title = fmt.Sprintf("%d runs", len(runs))
	}
	plots := strings.TrimSuffix(out, filepath.Ext(out)) + ".png"
	if err := picture.Panels(plots, panels(runs)...); err != nil {
		return err
	}
	var page strings.Builder
	if err := compare.WritePage(&page, title, runs); err != nil {
		return err
	}
	if err := os.WriteFile(out, []byte(page.String()), 0o666); err != nil {
		return err
	}
	if err := printComparison(stdout, runs); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\n%s, %s\n", out, plots)
	return err
}

// panels are the plots of the loss and of the gradient norm, or of the first series
// where there is neither.
func panels(runs []*compare.Run) []picture.Panel {
	var chosen []string
	names := compare.Names(runs)
	for _, n := range names {
		if strings.HasSuffix(n, "loss") || strings.HasSuffix(n, "norm") {
			chosen = append(chosen, n)
		}
	}
	if len(chosen) == 0 {
		chosen = names[:1]
	}
	var all []picture.Panel
	for _, name := range chosen {
		p := picture.Panel{Title: compare.Title(name), X: "samples", Y: compare.Title(name)}
		for _, r := range runs {
			if s, ok := r.Series[name]; ok {
				p.Curves = append(p.Curves, picture.Curve{Name: r.Name, X: s.X, Y: s.Y, Points: len(s.X) < 40})
			}
		}
		all = append(all, p)
	}
	return all
}

// printComparison prints what the page's tables say of the loss and the norm.
func printComparison(w io.Writer, runs []*compare.Run) (err error) {
	say := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	for _, r := range runs {
		for _, n := range r.Notes {
			say("%s: %s", r.Name, n)
		}
	}
	for _, p := range panels(runs) {
		say("%-28s %8s %12s %12s  %s", p.Title, "rows", "last 5 %", "smallest", "beside the first run")
		var first *compare.Series
		for _, c := range p.Curves {
			s := &compare.Series{X: c.X, Y: c.Y}
			f := compare.Examine(s, first)
			beside := "the first"
			switch {
			case first == nil:
				first = s
			case f.Compared == 0:
				beside = "no step in common"
			case math.IsNaN(f.Differs):
				beside = fmt.Sprintf("same in %d rows", f.Compared)
			default:
				beside = fmt.Sprintf("differs from %g", f.Differs)
			}
			if !math.IsNaN(f.NotFinite) {
				beside += fmt.Sprintf("; not finite from %g", f.NotFinite)
			}
			say("  %-26s %8d %12.5g %12.5g  %s", c.Name, f.Rows, f.Tail, f.Min, beside)
		}
	}
	return err
}
