package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
)

// Load restores opt, just made or between two steps, from the checkpoint. It is
// collective; c is the communicator that opt was made with. The model must have the
// checkpoint's parameters with the same names, shapes and states, in any order, with
// the same ones frozen; world size, stage, buckets and number formats may be others.
// Before anything is written the ranks verify the checksums and compare what they
// load. After an error during the reading itself opt holds parts of both trainings
// and must be closed.
func (f *Folder) Load(ctx context.Context, opt *zero.Optimizer, c comm.Communicator) error {
	if err := f.load(ctx, opt, c); err != nil {
		return fmt.Errorf("load checkpoint %s: %w", f.path, err)
	}
	return nil
}

func (f *Folder) load(ctx context.Context, opt *zero.Optimizer, c comm.Communicator) error {
	if err := opt.Drain(ctx); err != nil {
		return err
	}
	err := opt.AtBoundary()
	if err == nil {
		err = f.Fits(opt.Params(), opt.StateNames)
	}
	if err == nil {
		err = f.Verify()
	}
	what := fmt.Sprintf("checkpoint %q of step %d, number %d of its folder", f.manifest.Tag, f.Step(), f.manifest.Serial)
	if _, err := meet(ctx, c, "checkpoint to load", report{What: what}, err); err != nil {
		return err
	}
	if _, err := meet(ctx, c, "checkpoint loaded", report{What: what}, f.restore(opt)); err != nil {
		return err
	}
	return opt.Resume(ctx, f.manifest.Progress)
}

// Fits returns an error with the differences, the first ones when there are many,
// between the checkpoint's parameters and those of a model, of which names, shapes and
// Frozen count; states names the states of parameter i. Load asks it too; a caller can
// ask before it makes an optimizer.
func (f *Folder) Fits(params []zero.Param, states func(i int) []string) error {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	here := map[string]bool{}
	for i, p := range params {
		here[p.Name] = true
		saved, ok := f.Param(p.Name)
		switch {
		case !ok:
			add("parameter %q is not in it", p.Name)
		case !slices.Equal(saved.Shape, p.Shape):
			add("parameter %q has shape %v there and %v here", p.Name, saved.Shape, p.Shape)
		case saved.Frozen != p.Frozen:
			add("parameter %q is %s there and %s here", p.Name, trained(saved.Frozen), trained(p.Frozen))
		case !sameNames(saved.States, states(i)):
			add("parameter %q has the optimizer states %q there and %q here", p.Name, saved.States, states(i))
		}
	}
	for _, p := range f.manifest.Params {
		if !here[p.Name] {
			add("its parameter %q is not in the model", p.Name)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	const most = 4
	text := strings.Join(wrong[:min(most, len(wrong))], "; ")
	if more := len(wrong) - most; more > 0 {
		text += fmt.Sprintf("; and %d more differences", more)
	}
	return fmt.Errorf("it is of another model or optimizer: %s", text)
}

func trained(frozen bool) string {
	if frozen {
		return "frozen"
	}
	return "trained"
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// restore reads what this rank holds.
func (f *Folder) restore(opt *zero.Optimizer) error {
	params := opt.Params()
	for _, p := range opt.Holding() {
		name := params[p.Param].Name
		if err := f.readRun(name, master, p.Lo, p.Master); err != nil {
			return err
		}
		for k, key := range opt.StateNames(p.Param) {
			if err := f.readRun(name, key, p.Lo, p.States[k]); err != nil {
				return err
			}
		}
	}
	for i, p := range params {
		if p.Frozen && p.Value.Len() > 0 {
			if err := f.restoreFrozen(opt, i, p.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// restoreFrozen restores a parameter that has a compute copy only: bit for bit when
// the formats are equal.
func (f *Folder) restoreFrozen(opt *zero.Optimizer, i int, name string) error {
	w, err := f.Weights(name)
	if err != nil {
		return err
	}
	value := opt.Value(i)
	if w.DType == value.DType {
		value.Copy(w)
		return nil
	}
	wide := make([]float32, w.Len())
	kernel.Widen(wide, w)
	kernel.Round(value, wide)
	return nil
}
