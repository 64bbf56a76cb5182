package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/profile"
	"github.com/zerogap/zerogap/zero/comm"
)

// inspector looks into the operations of chosen steps of a rank: it counts FLOPs at
// flops_profiler.profile_step, and traces run.trace_step.
type inspector struct {
	flops *profile.Flops // while the profile step runs, on rank 0
	trace *profile.Trace // nil without a trace
}

// profileFile opens the file that the profile goes to, so that what cannot be written
// is known before the first step; nil is the standard output.
func (j *job) profileFile() (*os.File, error) {
	p := j.cfg.FlopsProfiler
	if !p.Enabled || p.OutputFile == "" {
		return nil, nil
	}
	f, err := os.Create(p.OutputFile)
	if err != nil {
		return nil, fmt.Errorf("flops_profiler.output_file: %w", err)
	}
	return f, nil
}

// openInspector makes what rank needs to look into its steps.
func (j *job) openInspector(rank int) inspector {
	var i inspector
	if j.cfg.Run.TraceStep > 0 {
		i.trace = profile.NewTrace(rank)
	}
	return i
}

// begin starts a phase of the step; the function it returns ends it.
func (t *trainer) begin(p phase) (end func()) {
	stop := t.times.begin(p)
	if !t.inspect.trace.On() {
		return stop
	}
	start := time.Now()
	return func() {
		stop()
		t.inspect.trace.Phase(phaseNames[p], start)
	}
}

// beginStep makes the inspector watch the step, if it is to be watched.
func (t *trainer) beginStep(step int) {
	i := &t.inspect
	var watch []framework.Observer
	if p := t.cfg.FlopsProfiler; p.Enabled && step == p.ProfileStep && t.comm.Rank() == 0 {
		i.flops = profile.NewFlops(t.model.Params())
		watch = append(watch, i.flops.Observe)
	}
	if i.trace != nil && step == t.cfg.Run.TraceStep {
		i.trace.Begin()
		watch = append(watch, i.trace.Observe)
	}
	if watch != nil {
		t.engine.Tape().SetObserver(func(e framework.Execution) {
			for _, observe := range watch {
				observe(e)
			}
		})
	}
}

// endStep ends the watch and shows what was seen. All ranks call it.
func (t *trainer) endStep(ctx context.Context, step int) error {
	i := &t.inspect
	if i.flops == nil && !i.trace.On() {
		return nil
	}
	t.engine.Tape().SetObserver(nil)
	var err error
	if i.flops != nil {
		err = t.reportFlops(step, i.flops)
		i.flops = nil
	}
	if err == nil && i.trace.On() {
		err = t.writeTrace(ctx)
	}
	return err
}

func (t *trainer) reportFlops(step int, f *profile.Flops) error {
	c := t.cfg
	p := c.FlopsProfiler
	var b strings.Builder
	err := profile.Report{
		Model: "UNet2DModel", Step: step, MicroBatches: c.GradientAccumulationSteps, Samples: c.TrainMicroBatchSizePerGPU,
		ModuleDepth: p.ModuleDepth, TopModules: p.TopModules, Detailed: p.Detailed, RecomputeFwdFactor: p.RecomputeFwdFactor,
	}.Write(&b, f)
	t.profiled = true
	switch {
	case err != nil || t.flopsFile == nil && t.quiet:
		return err
	case t.flopsFile == nil:
		return t.progress.Warnf("\n%s", b.String())
	}
	if _, err := t.flopsFile.WriteString(b.String()); err != nil {
		return fmt.Errorf("flops_profiler.output_file: %w", err)
	}
	return nil
}

// writeTrace collects the traces of all ranks, and rank 0 writes them.
func (t *trainer) writeTrace(ctx context.Context) (err error) {
	mine, err := t.inspect.trace.End()
	if err != nil {
		return err
	}
	ranks, err := comm.Texts(ctx, t.comm, "trace of a step", mine)
	if err != nil || t.comm.Rank() != 0 {
		return err
	}
	path := filepath.Join(t.out, "trace.json")
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("run.trace_step: %w", err)
	}
	t.traced = true
	if err := errors.Join(profile.WriteTrace(f, ranks), f.Close()); err != nil {
		return fmt.Errorf("run.trace_step: write %s: %w", path, err)
	}
	return t.progress.Printf("trace of step %d: %s, for https://ui.perfetto.dev", t.cfg.Run.TraceStep, path)
}

// closeInspection says what was asked for and did not come about, and closes the file
// of the profile.
func (j *job) closeInspection() error {
	if j.follows() {
		return nil
	}
	var err error
	missed := func(asked bool, key string, step int, what string) {
		if asked {
			err = errors.Join(err, j.progress.Warnf("%s = %d: the run ended before that step, so there is no %s", key, step, what))
		}
	}
	missed(j.cfg.FlopsProfiler.Enabled && !j.profiled, "flops_profiler.profile_step", j.cfg.FlopsProfiler.ProfileStep, "FLOPs profile")
	missed(j.cfg.Run.TraceStep > 0 && !j.traced, "run.trace_step", j.cfg.Run.TraceStep, "trace")
	if j.flopsFile != nil {
		err = errors.Join(err, j.flopsFile.Close())
	}
	return err
}
