package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/picture"
	"github.com/zerogap/zerogap/internal/progress"
	"github.com/zerogap/zerogap/internal/web"
	"github.com/zerogap/zerogap/zero/engine"
)

// Series of the monitor beyond DeepSpeed's own.
const (
	gradNorm      = "Train/Samples/grad_norm"
	samplesPerSec = "Train/Samples/samples_per_sec"
	skippedSteps  = "Train/Samples/skipped_steps"
	heldOutLoss   = "Eval/Samples/held_out_loss"
)

// curves is what the plot at the end shows.
type curves struct {
	steps, loss, heldOutSteps, heldOut []float64
}

// checkMonitor refuses a folder that holds the curves of an earlier run: two
// runs in one file are one curve to whoever reads it.
func checkMonitor(c *config.Config) error {
	for _, m := range []struct {
		section, files string
		config.Monitor
	}{{"csv_monitor", "*.csv", c.CSVMonitor}, {"tensorboard", "*tfevents*", c.TensorBoard}} {
		if !m.Enabled || m.OutputPath == "" {
			continue
		}
		old, err := filepath.Glob(filepath.Join(m.OutputPath, m.JobName, m.files))
		if err != nil {
			return err
		}
		if len(old) > 0 {
			return fmt.Errorf("%s.output_path, %[1]s.job_name: %s holds the curves of an earlier run: choose another job_name, or remove them", m.section, filepath.Dir(old[0]))
		}
	}
	return nil
}

// openReports opens what rank 0 writes to, so that what cannot be written is
// known before the first step.
func (j *job) openReports() error {
	if !j.follows() {
		if err := j.openMonitors(); err != nil {
			return errors.Join(err, j.closeMonitors())
		}
	}
	j.progress = progress.New(progress.Options{
		Out: j.stdout, Total: j.cfg.Run.Steps, Every: max(1, j.cfg.StepsPerPrint),
		Quiet: j.quiet || j.cfg.StepsPerPrint == 0,
	})
	return nil
}

func (j *job) openMonitors() error {
	add := func(w monitor.Writer, err error) error {
		if err == nil {
			j.monitors = append(j.monitors, w)
		}
		return err
	}
	options := func(m config.Monitor, folder string) monitor.Options {
		if m.OutputPath == "" {
			m.OutputPath = filepath.Join(j.out, folder)
		}
		return monitor.Options{Path: m.OutputPath, JobName: m.JobName}
	}
	if m := j.cfg.CSVMonitor; m.Enabled {
		if err := add(monitor.Open(options(m, "csv"))); err != nil {
			return err
		}
	}
	if m := j.cfg.TensorBoard; m.Enabled {
		if err := add(monitor.OpenTensorBoard(options(m, "tensorboard"))); err != nil {
			return err
		}
	}
	if j.addr != "" {
		var err error
		j.web, err = web.Open(web.Options{
			Addr: j.addr, Title: j.title(), Samples: filepath.Join(j.out, "samples"), Total: j.cfg.Run.Steps * j.cfg.TrainBatchSize,
		})
		if err := add(j.web, err); err != nil {
			return err
		}
	}
	return j.openCommsLog()
}

// title names the run on plots and pages.
func (j *job) title() string {
	return fmt.Sprintf("%s, ZeRO stage %d, %d ranks", j.cfg.Data.Kind, j.cfg.ZeroOptimization.Stage, j.cfg.Comm.World)
}

func (j *job) closeMonitors() error {
	var err error
	for _, m := range j.monitors {
		err = errors.Join(err, m.Close())
	}
	return err
}

func (j *job) closeReports() error {
	err := errors.Join(j.progress.Close(), j.closeMonitors())
	table, commsErr := j.comms.close()
	if table != "" {
		_, printErr := fmt.Fprintf(j.stdout, "\n%s", table)
		err = errors.Join(err, printErr)
	}
	return errors.Join(err, commsErr)
}

// report shows and records a step, on rank 0.
func (t *trainer) report(step int, r engine.Result, took time.Duration) error {
	if t.comm.Rank() != 0 {
		return nil
	}
	if r.Skip != nil {
		if err := t.progress.Warnf("%v", r.Skip); err != nil {
			return err
		}
	}
	t.curves.steps = append(t.curves.steps, float64(step))
	t.curves.loss = append(t.curves.loss, r.Loss)
	err := t.progress.Step(progress.Status{
		Step: step, Samples: t.cfg.TrainBatchSize, Loss: r.Loss, Norm: r.Norm, LR: r.LR, Skipped: !r.Applied,
	})
	if err != nil {
		return err
	}
	return t.record(step,
		monitor.Event{Name: monitor.TrainLoss, Value: r.Loss},
		monitor.Event{Name: monitor.LR, Value: r.LR},
		monitor.Event{Name: monitor.LossScale, Value: r.LossScale},
		monitor.Event{Name: gradNorm, Value: r.Norm},
		monitor.Event{Name: samplesPerSec, Value: float64(t.cfg.TrainBatchSize) / took.Seconds()},
		monitor.Event{Name: skippedSteps, Value: float64(r.SkippedSteps)},
	)
}

func (t *trainer) reportHeldOut(step int, loss float64) error {
	if t.comm.Rank() != 0 {
		return nil
	}
	t.curves.heldOutSteps = append(t.curves.heldOutSteps, float64(step))
	t.curves.heldOut = append(t.curves.heldOut, loss)
	if err := t.progress.Printf("step %d: held-out loss %.4f", step, loss); err != nil {
		return err
	}
	return t.record(step, monitor.Event{Name: heldOutLoss, Value: loss})
}

func (t *trainer) record(step int, events ...monitor.Event) error {
	for _, m := range t.monitors {
		if err := m.Write(step*t.cfg.TrainBatchSize, events...); err != nil {
			return err
		}
	}
	return nil
}

// finish draws the curves and says what came of the run, on rank 0.
func (t *trainer) finish(steps int, took time.Duration) error {
	if t.comm.Rank() != 0 {
		return nil
	}
	// The compute copy, as it was trained: what the pictures were drawn with.
	if err := t.model.SaveDiffusers(filepath.Join(t.out, "unet"), nil); err != nil {
		return err
	}
	plot := filepath.Join(t.out, "loss.png")
	err := picture.LossPlot(plot, t.title(),
		picture.Curve{Name: "training", X: t.curves.steps, Y: t.curves.loss},
		picture.Curve{Name: "held out", X: t.curves.heldOutSteps, Y: t.curves.heldOut, Points: true})
	if err != nil {
		return err
	}
	if err := t.progress.Close(); err != nil {
		return err
	}
	say := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(t.stdout, format+"\n", args...)
		}
	}
	say("")
	if steps < t.cfg.Run.Steps {
		say("stopped      after step %d of %d, as asked", steps, t.cfg.Run.Steps)
	}
	say("trained      %d steps in %v", steps, took.Round(time.Second))
	if n := len(t.curves.heldOut); n > 0 {
		say("held-out     loss %.4f", t.curves.heldOut[n-1])
	}
	opt := t.engine.Optimizer()
	_, peak := opt.Memory()
	say("memory       %s; predicted %s", memoryLine("measured on rank 0:", peak), mib(t.plan.Memory(0, rule(t.cfg), true).Total()))
	tried, applied := opt.Steps()
	say("traffic      %s", trafficLine(opt.Traffic(), t.plan.Traffic(0), tried, applied))
	say("activations  %s at most on rank 0; predicted %s", mib(t.peak), mib(t.activations))
	say("output       %s", t.describeOutput())
	return err
}

// describeOutput lists what the folder holds.
func (j *job) describeOutput() string {
	parts := filepath.Join(j.out, "config.toml") + ", loss.png, unet (diffusers' format)"
	if j.cfg.CSVMonitor.Enabled {
		parts += ", csv"
	}
	if j.cfg.TensorBoard.Enabled {
		parts += ", tensorboard"
	}
	if grids, _ := os.ReadDir(filepath.Join(j.out, "samples")); len(grids) > 0 {
		parts += ", samples/" + grids[len(grids)-1].Name()
	}
	return parts
}
