// Package compare holds curves of several trainings against each other: CSV series in
// the layout of DeepSpeed's monitor, of this trainer or another.
package compare

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Run is one training's series.
type Run struct {
	Name   string
	Dir    string
	Series map[string]*Series // by file name without .csv
	// Notes say what was odd about the files and how it was taken.
	Notes []string
}

// Series is one curve.
type Series struct {
	X, Y []float64 // X ascends strictly; Y may hold values that are not finite
}

// Read finds the runs below dirs: each folder with CSV files whose first line begins
// with "step," is one. A run is called by the shortest end of its path that tells it
// from the others, without a last "csv/JOB" where that is enough.
func Read(dirs []string) ([]*Run, error) {
	var runs []*Run
	for _, dir := range dirs {
		found, err := readBelow(dir)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: no CSV series there: a file of one begins with a line such as step,train_loss", dir)
		}
		runs = append(runs, found...)
	}
	name(runs)
	return runs, nil
}

// readBelow reads the runs of one folder, in order of their paths.
func readBelow(dir string) ([]*Run, error) {
	byDir := map[string]*Run{}
	var runs []*Run
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || filepath.Ext(path) != ".csv" {
			return nil
		}
		s, notes, err := readSeries(path)
		if err != nil || s == nil {
			return err
		}
		at := filepath.Dir(path)
		r, ok := byDir[at]
		if !ok {
			r = &Run{Dir: at, Series: map[string]*Series{}}
			byDir[at], runs = r, append(runs, r)
		}
		r.Series[strings.TrimSuffix(filepath.Base(path), ".csv")] = s
		r.Notes = append(r.Notes, notes...)
		return nil
	})
	var missing *fs.PathError
	if errors.As(err, &missing) && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such folder", missing.Path)
	}
	return runs, err
}

// readSeries reads a file; nil when it is no series. Headers may be repeated, as a
// trainer that was resumed leaves them, and a resumed run may begin again before the
// end of the one it goes on from: the later rows count.
func readSeries(path string) (*Series, []string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	lines := strings.Split(strings.TrimPrefix(string(raw), "\ufeff"), "\n")
	if !isHeader(lines[0]) {
		return nil, nil, nil
	}
	s, headers, replaced := &Series{}, 0, 0
	for i, line := range lines {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case isHeader(line):
			headers++
			continue
		}
		x, y, err := row(line)
		if err != nil {
			return nil, nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
		keep := len(s.X)
		for keep > 0 && s.X[keep-1] >= x {
			keep--
		}
		replaced += len(s.X) - keep
		s.X, s.Y = append(s.X[:keep], x), append(s.Y[:keep], y)
	}
	var notes []string
	if headers > 1 {
		notes = append(notes, fmt.Sprintf("%s has %d headers: it was resumed", filepath.Base(path), headers))
	}
	if replaced > 0 {
		notes = append(notes, fmt.Sprintf("%s goes back: %d rows were replaced by later ones", filepath.Base(path), replaced))
	}
	return s, notes, nil
}

func isHeader(line string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(line)), "step,")
}

// row reads one line. Old versions of DeepSpeed write tensors as Python prints them.
func row(line string) (x, y float64, err error) {
	left, right, ok := strings.Cut(line, ",")
	if !ok {
		return 0, 0, fmt.Errorf("%q is not step,value", line)
	}
	if x, err = number(left); err == nil && (math.IsNaN(x) || math.IsInf(x, 0)) {
		err = fmt.Errorf("the step is %v", x)
	}
	if err != nil {
		return 0, 0, err
	}
	y, err = number(right)
	return x, y, err
}

func number(text string) (float64, error) {
	text = strings.Trim(strings.TrimSpace(text), `"`)
	if inner, ok := strings.CutPrefix(text, "tensor("); ok {
		inner, _, _ = strings.Cut(inner, ")")
		text, _, _ = strings.Cut(inner, ",")
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return v, nil
}

// name gives the runs their names.
func name(runs []*Run) {
	short := func(dir string, parts int) string {
		all := strings.Split(filepath.ToSlash(filepath.Clean(dir)), "/")
		return strings.Join(all[max(0, len(all)-parts):], "/")
	}
	// OUT/csv/JOB is the run OUT.
	base := func(r *Run) string {
		if d := filepath.Dir(r.Dir); filepath.Base(d) == "csv" {
			return filepath.Dir(d)
		}
		return r.Dir
	}
	for _, of := range []func(*Run) string{base, func(r *Run) string { return r.Dir }} {
		for parts := 1; parts < 64; parts++ {
			names := map[string]bool{}
			for _, r := range runs {
				r.Name = short(of(r), parts)
				names[r.Name] = true
			}
			if len(names) == len(runs) {
				return
			}
		}
	}
}

// byTimestep matches the parts of a loss by timestep.
var byTimestep = regexp.MustCompile(`_t\d+$`)

// Names lists the series of the runs: the loss first, then by name.
func Names(runs []*Run) []string {
	var names []string
	for _, r := range runs {
		for n := range r.Series {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	rank := func(n string) int {
		n = strings.ToLower(n)
		if byTimestep.MatchString(n) {
			return 8
		}
		for i, word := range []string{"train_loss", "loss_scale", "loss", "norm"} {
			if strings.Contains(n, word) {
				return []int{0, 9, 1, 2}[i]
			}
		}
		return 5
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names
}
