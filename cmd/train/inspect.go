package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/zerogap/zerogap/zero/checkpoint"
)

// inspectCommand is "train inspect": what is in a checkpoint, or in which ones a run
// has, and whether it is undamaged.
func inspectCommand(args []string, stdout, stderr io.Writer) error {
	var tensors bool
	f := newFlags("inspect")
	f.BoolVar(&tensors, "tensors", false, "list the parameters with their shapes and the size of their values")
	if err := parseArgs(f, args, stderr); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return usageError{errors.New("inspect what? Give one folder: a run, its checkpoints or a checkpoint")}
	}
	path := f.Arg(0)
	if _, err := os.Stat(filepath.Join(path, checkpoint.ManifestFile)); err == nil {
		return inspect(path, tensors, stdout)
	}
	if !isDir(path) {
		return usageError{fmt.Errorf("%s: no such folder", path)}
	}
	if sub := filepath.Join(path, checkpointsDir); isDir(sub) {
		path = sub
	}
	return inspectAll(path, stdout)
}

// inspectAll lists the checkpoints of a folder and verifies them.
func inspectAll(path string, stdout io.Writer) error {
	all, err := checkpoint.List(path)
	switch {
	case err != nil:
		return err
	case len(all) == 0:
		return usageError{fmt.Errorf("%s: no checkpoints there", path)}
	}
	bad := 0
	for _, e := range all {
		err := e.Err
		if err == nil {
			err = verify(e.Path)
		}
		if err != nil {
			bad++
			fmt.Fprintf(stdout, "%-14s damaged: %v\n", e.Tag, err)
			continue
		}
		m := e.Manifest
		var bytes int64
		for _, f := range m.Files {
			bytes += f.Bytes
		}
		fmt.Fprintf(stdout, "%-14s good: step %s, %d files of %s, by %d ranks at stage %d\n", e.Tag, thousands(m.Progress.Tried), len(m.Files), mib(bytes), m.World, m.Stage)
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d checkpoints in %s are damaged", bad, len(all), path)
	}
	return nil
}

func verify(path string) error {
	f, err := checkpoint.OpenVerified(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// inspect describes one checkpoint.
func inspect(path string, tensors bool, stdout io.Writer) (err error) {
	f, err := checkpoint.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	say := func(name, format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(stdout, "%-12s %s\n", name, fmt.Sprintf(format, args...))
		}
	}
	m := f.Manifest()
	p := m.Progress
	say("checkpoint", "%s, %s version %d, number %d of its folder", m.Tag, m.Format, m.Version, m.Serial)
	say("step", "%s tried, %s applied, %d skipped in a row", thousands(p.Tried), thousands(p.Applied), p.SkippedInARow)
	if s := p.Scaler; s != nil {
		say("loss scale", "%g, %d good steps in a row, %d overflows until it is lowered", s.Scale, s.GoodSteps, s.OverflowsLeft)
	}
	say("written by", "%d ranks at stage %d, %s", m.World, m.Stage, m.DTypes)
	say("optimizer", "%s", m.Optimizer)
	if len(m.Parts) > 0 {
		say("PARTS", "%s, in place of the optimizer's own", strings.Join(m.Parts, ", "))
	}
	elements, frozen := 0, 0
	states := map[string]bool{}
	var names []string
	for _, p := range m.Params {
		elements += p.Len()
		if p.Frozen {
			frozen++
		}
		for _, s := range p.States {
			if !states[s] {
				states[s], names = true, append(names, s)
			}
		}
	}
	say("parameters", "%s in %d tensors, %d of them frozen; master weights and %s of the others", thousands(elements), len(m.Params), frozen, strings.Join(names, ", "))
	describeState(f, say)
	for _, info := range m.Files {
		say("file", "%-40s %12s  sha256 %s", info.Name, thousands(int(info.Bytes)), info.SHA256[:16])
	}
	if tensors {
		if err := listTensors(f, say); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if err := f.Verify(); err != nil {
		return err
	}
	say("checksums", "all good")
	return err
}

// describeState shows what this command attached, if it did.
func describeState(f *checkpoint.Folder, say func(name, format string, args ...any)) {
	raw, err := f.Attachment(stateFile)
	var s trainState
	if err != nil || json.Unmarshal(raw, &s) != nil {
		return
	}
	say("data", "%s samples seen, seed %d", thousands(s.Samples), s.Seed)
	if n := len(s.Curves.Loss); n > 0 {
		say("loss", "%.5f at the last step", values(s.Curves.Loss[n-1:])[0])
	}
	if n := len(s.Curves.HeldOut); n > 0 {
		say("held-out", "%.5f at step %g", values(s.Curves.HeldOut[n-1:])[0], s.Curves.HeldOutSteps[n-1])
	}
	say("config", "%s, sha256 %.16s", filepath.Join(f.Path(), configFile), s.Config)
}

func listTensors(f *checkpoint.Folder, say func(name, format string, args ...any)) error {
	for _, p := range f.Manifest().Params {
		master, err := f.Master(p.Name)
		if err != nil {
			return err
		}
		var sum float64
		for _, v := range master {
			sum += float64(v) * float64(v)
		}
		say("tensor", "%-60s %-18v %s  rms %.4g", p.Name, p.Shape, p.DType, math.Sqrt(sum/float64(max(1, len(master)))))
	}
	return nil
}
