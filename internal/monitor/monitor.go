// Package monitor writes the series of a training as CSV files in the layout of
// DeepSpeed's CSV monitor, so that scripts made for those read these.
//
// Each series is one file, output_path/job_name/NAME.csv, where NAME is the
// series' name with "/" and " " replaced by "_". Its first line is "step," and
// the part of the name after the last "/"; each other line is "samples,value".
// As in DeepSpeed, the column called step counts samples, over all ranks.
//
// Two things differ, since they lose data there. A file that exists keeps one
// header, and a run that resumes drops the rows beyond the point it resumes
// from, so that the first column always ascends.
package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Names of DeepSpeed's series.
const (
	TrainLoss = "Train/Samples/train_loss"
	LR        = "Train/Samples/lr"
	LossScale = "Train/Samples/loss_scale"
)

// Options say where the files are.
type Options struct {
	Path    string // csv_monitor.output_path
	JobName string // csv_monitor.job_name

	// From is the number of samples after which the run begins: 0 for a new
	// run, that of the checkpoint for a resumed one. Rows with more samples,
	// left in the files by an earlier run, are removed.
	From int
}

// Event is one value of a series.
type Event struct {
	Name  string
	Value float64
}

// Writer is where the series of a training go: CSV, TensorBoard or a page that
// shows them live.
type Writer interface {
	// Write adds one value to each event's series. samples is the number of
	// samples trained on so far, over all ranks.
	Write(samples int, events ...Event) error
	Close() error
}

// CSV writes series. Only one rank opens it, and one goroutine uses it.
type CSV struct {
	dir    string
	from   int
	series map[string]*series // by file name
}

type series struct {
	name string
	file *os.File
	size int64 // bytes that hold whole rows
	last int   // samples of the last row, −1 when there is none
}

// Open creates the folder if it is missing, checks that files can be written
// there, and removes the rows beyond o.From of the series that are there.
func Open(o Options) (*CSV, error) {
	dir := filepath.Join(o.Path, o.JobName)
	m := &CSV{dir: dir, from: o.From, series: map[string]*series{}}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, m.hint(err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return nil, m.hint(err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, m.hint(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, m.hint(err)
	}
	for _, f := range files {
		if !f.Type().IsRegular() || filepath.Ext(f.Name()) != ".csv" {
			continue
		}
		if err := rewind(filepath.Join(dir, f.Name()), o.From); err != nil {
			return nil, m.hint(err)
		}
	}
	return m, nil
}

func (m *CSV) hint(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return fmt.Errorf("csv_monitor: %w: choose another folder with csv_monitor.output_path or csv_monitor.job_name, or set csv_monitor.enabled = false", err)
}

// Write appends one row to each event's series. samples is the number of
// samples trained on so far, over all ranks, and must exceed that of the last
// row of each series. The rows are with the operating system when Write
// returns. A row is written whole or, when there is an error, not at all.
func (m *CSV) Write(samples int, events ...Event) error {
	for _, e := range events {
		s, err := m.open(e.Name)
		if err != nil {
			return err
		}
		if samples <= s.last {
			return fmt.Errorf("csv_monitor: series %q has a row at %d samples, and now one at %d: they must ascend", e.Name, s.last, samples)
		}
		if err := s.append(strconv.Itoa(samples) + "," + format(e.Value) + "\n"); err != nil {
			return fmt.Errorf("csv_monitor: write %s: %w", s.file.Name(), reason(err))
		}
		s.last = samples
	}
	return nil
}

// Close closes the files.
func (m *CSV) Close() error {
	var errs []error
	for _, s := range m.series {
		errs = append(errs, s.file.Close())
	}
	m.series = nil
	return errors.Join(errs...)
}

// open returns the series, opening its file at the first use.
func (m *CSV) open(name string) (*series, error) {
	file := strings.NewReplacer("/", "_", " ", "_").Replace(name) + ".csv"
	if s, ok := m.series[file]; ok {
		if s.name != name {
			return nil, fmt.Errorf("csv_monitor: series %q and %q would share the file %s: rename one", s.name, name, file)
		}
		return s, nil
	}
	f, err := os.OpenFile(filepath.Join(m.dir, file), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, m.hint(err)
	}
	s := &series{name: name, file: f, last: -1}
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = s.append(header(name))
	} else if err == nil {
		s.size, s.last = info.Size(), m.from
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("csv_monitor: write %s: %w", f.Name(), reason(err)), f.Close())
	}
	m.series[file] = s
	return s, nil
}

func header(name string) string { return "step," + quote(name[strings.LastIndex(name, "/")+1:]) + "\n" }

// quote protects a field as RFC 4180 asks for.
func quote(field string) string {
	if !strings.ContainsAny(field, ",\"\r\n") {
		return field
	}
	return `"` + strings.ReplaceAll(field, `"`, `""`) + `"`
}

// append writes a line, wholly or not at all.
func (s *series) append(line string) error {
	if _, err := s.file.WriteString(line); err != nil {
		s.cut()
		return err
	}
	s.size += int64(len(line))
	return nil
}

// cut drops what is behind the last whole row. That it fails on what is no
// regular file is of no interest beside the error that led here.
func (s *series) cut() { _ = s.file.Truncate(s.size) }

// format writes a number as Python does, which readers of these files expect.
func format(v float64) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// rewind removes from a series' file the rows beyond from, a last row that was
// not finished, and repeated headers. A file that is no series is left alone; a
// series without rows is removed.
func rewind(path string, from int) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(old, []byte("step,")) {
		return nil
	}
	lines := bytes.SplitAfter(old, []byte("\n"))
	kept := [][]byte{lines[0]}
	for i, line := range lines[1:] {
		text := strings.TrimRight(string(line), "\r\n")
		if text == "" || bytes.HasPrefix(line, []byte("step,")) || !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		first, _, _ := strings.Cut(text, ",")
		samples, err := strconv.Atoi(first)
		if err != nil {
			return fmt.Errorf("%s: line %d: %q does not begin with a number of samples", path, i+2, text)
		}
		if samples <= from {
			kept = append(kept, line)
		}
	}
	switch fresh := slices.Concat(kept...); {
	case len(kept) == 1:
		return os.Remove(path)
	case bytes.Equal(fresh, old):
		return nil
	default:
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return replace(path, fresh, info.Mode())
	}
}

// replace writes a file anew so that either the old or the new one exists.
func replace(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".csv-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func reason(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
