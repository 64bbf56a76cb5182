package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/picture"
)

// compareCommand is "train compare": it draws the curves of several runs, of this
// program or of another with DeepSpeed's CSV monitor, on one page.
//
//	train compare -out DIR RUN...
func compareCommand(args []string, stdout, stderr io.Writer) error {
	var out string
	f := flag.NewFlagSet("train compare", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, by run
	f.StringVar(&out, "out", "compare", "`folder` of the page and the pictures")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stderr)
		f.Usage()
		return err
	case err != nil:
		return usageError{fmt.Errorf("%w (train compare -help lists the flags)", err)}
	case f.NArg() == 0:
		return usageError{errors.New("train compare wants the folders of the runs, such as: train compare -out compare out/a/csv out/b/csv")}
	}
	c, err := readRuns(f.Args())
	if err != nil {
		return usageError{err}
	}
	path, err := c.write(out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "compared %d series of %d runs: %s\n", len(c.series), len(c.runs), path)
	return err
}

// comparison is the curves of several runs.
type comparison struct {
	runs   []string // folders, as they were given
	curves []map[string]monitor.Series
	series []string // those of the first run first
}

func readRuns(dirs []string) (*comparison, error) {
	c := &comparison{runs: dirs}
	for _, dir := range dirs {
		curves, err := monitor.Read(dir)
		if err != nil {
			return nil, err
		}
		c.curves = append(c.curves, curves)
		var names []string
		for name := range curves {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if !slices.Contains(c.series, name) {
				c.series = append(c.series, name)
			}
		}
	}
	slices.SortStableFunc(c.series, func(a, b string) int { return rank(a) - rank(b) })
	return c, nil
}

// rank puts losses before norms, and both before the rest.
func rank(name string) int {
	switch {
	case strings.Contains(name, "loss") && !strings.Contains(name, "scale"):
		return 0
	case strings.Contains(name, "norm"):
		return 1
	}
	return 2
}

// write draws one picture for each series and puts all on a page.
func (c *comparison) write(out string) (string, error) {
	if err := os.MkdirAll(out, 0o777); err != nil {
		return "", fmt.Errorf("output folder: %w; choose another with -out", err)
	}
	p := page{Title: "Runs compared", Lead: []string{fmt.Sprintf("%d runs: %s. The first column of a monitor counts samples.", len(c.runs), strings.Join(c.runs, ", "))}}
	for _, name := range c.series {
		part, err := c.part(out, name)
		if err != nil {
			return "", err
		}
		p.Parts = append(p.Parts, part)
	}
	path := filepath.Join(out, "compare.html")
	return path, p.write(path)
}

// part is one series of all runs that have it.
func (c *comparison) part(out, name string) (part, error) {
	t := part{Title: name, Head: []string{"run", "rows", "last", "mean of the last fifth", "first not finite", "differs from the first run"}}
	var curves []picture.Curve
	var first *monitor.Series
	for k, run := range c.runs {
		s, has := c.curves[k][name]
		if !has {
			continue
		}
		if first == nil {
			first = &s
		}
		curves = append(curves, picture.Curve{Name: run, X: s.Samples, Y: s.Values})
		t.Rows = append(t.Rows, cells(run, fmt.Sprint(len(s.Values)), last(s), fmt.Sprintf("%.6g", mean(s.Values, len(s.Values)*4/5, len(s.Values))), firstNotFinite(s), differs(*first, s)))
	}
	path := filepath.Join(out, name+".png")
	if err := picture.Plot(path, name, "value", curves...); err != nil {
		return t, err
	}
	fig, err := inline(path, name+", raw and smoothed; values that are not above 0 have no place on the axis")
	t.Figures = []figure{fig}
	return t, err
}

func last(s monitor.Series) string {
	if len(s.Values) == 0 {
		return "none"
	}
	return fmt.Sprintf("%.6g", s.Values[len(s.Values)-1])
}

func firstNotFinite(s monitor.Series) string {
	for i, v := range s.Values {
		if v-v != 0 {
			return fmt.Sprintf("%v at %.0f", v, s.Samples[i])
		}
	}
	return "none"
}

// differs says where a series leaves another one, bit for bit.
func differs(a, b monitor.Series) string {
	n := min(len(a.Values), len(b.Values))
	for i := range n {
		if a.Samples[i] != b.Samples[i] || math.Float64bits(a.Values[i]) != math.Float64bits(b.Values[i]) {
			return fmt.Sprintf("from %.0f on", b.Samples[i])
		}
	}
	return fmt.Sprintf("in none of %d", n)
}
