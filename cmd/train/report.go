package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/internal/evaluate"
	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/picture"
	"github.com/zerogap/zerogap/internal/progress"
	"github.com/zerogap/zerogap/internal/web"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero/engine"
)

// Series of the monitor beyond DeepSpeed's own.
const (
	gradNorm      = "Train/Samples/grad_norm"
	samplesPerSec = "Train/Samples/samples_per_sec"
	skippedSteps  = "Train/Samples/skipped_steps"
	heldOutLoss   = "Eval/Samples/held_out_loss"
)

// refresh is how often the live view follows the size of the terminal.
const refresh = 250 * time.Millisecond

// curves is what the plot at the end shows.
type curves struct {
	steps, loss, heldOutSteps, heldOut []float64
}

// restore brings back the curves of the training that goes on.
func (c *curves) restore(s savedCurves) {
	c.loss, c.heldOutSteps, c.heldOut = values(s.Loss), s.HeldOutSteps, values(s.HeldOut)
	for i := range c.loss {
		c.steps = append(c.steps, float64(i+1))
	}
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
		old, err := filepath.Glob(filepath.Join(m.OutputPath, labelled(c, m.JobName), m.files))
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
		Quiet: j.quiet || j.cfg.StepsPerPrint == 0, Refresh: refresh,
	})
	j.display.Store(j.progress)
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
		return monitor.Options{Path: m.OutputPath, JobName: labelled(j.cfg, m.JobName), From: j.start() * j.cfg.TrainBatchSize}
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
			Addr: j.addr, Title: j.title(), Samples: filepath.Join(j.out, samplesDir), Total: j.cfg.Run.Steps * j.cfg.TrainBatchSize,
		})
		if err := add(j.web, err); err != nil {
			return err
		}
	}
	var err error
	if j.flopsFile, err = j.profileFile(); err != nil {
		return err
	}
	if err := j.openCommsLog(); err != nil {
		if j.flopsFile != nil {
			err = errors.Join(err, j.flopsFile.Close())
		}
		return err
	}
	return nil
}

// title names the run on plots and pages.
func (j *job) title() string {
	return faultTitle(j.cfg) + fmt.Sprintf("%s, ZeRO stage %d, %d ranks", j.cfg.Data.Kind, j.cfg.ZeroOptimization.Stage, j.cfg.Comm.World)
}

func (j *job) closeMonitors() error {
	var err error
	for _, m := range j.monitors {
		err = errors.Join(err, m.Close())
	}
	return err
}

func (j *job) closeReports() error {
	err := errors.Join(j.closeInspection(), j.progress.Close(), j.closeMonitors())
	table, commsErr := j.comms.close()
	if table != "" {
		_, printErr := fmt.Fprintf(j.stdout, "\n%s", table)
		err = errors.Join(err, printErr)
	}
	return errors.Join(err, commsErr)
}

// notify tells the user something in the middle of a run: above a live view, else on
// stderr.
func (j *job) notify(stderr io.Writer, text string) {
	if d := j.display.Load(); d == nil || !d.Above(text) {
		fmt.Fprintf(stderr, "\n%s\n", text)
	}
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
	if _, peak := t.engine.Optimizer().Memory(); step == t.start()+1 && t.cfg.Run.Steps > step {
		t.firstPeak = peak.Total()
		t.engine.Optimizer().ResetPeak()
	}
	t.curves.steps = append(t.curves.steps, float64(step))
	t.curves.loss = append(t.curves.loss, r.Loss)
	_, peak := t.engine.Optimizer().Memory()
	err := t.progress.Step(progress.Status{
		Step: step, Samples: t.cfg.TrainBatchSize, Loss: r.Loss, Norm: r.Norm, LR: r.LR, Skipped: !r.Applied,
		State: peak.Total(), Activations: t.peak,
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

func (t *trainer) reportHeldOut(step int, loss float64, bins []evaluate.Bin) error {
	if t.comm.Rank() != 0 {
		return nil
	}
	t.curves.heldOutSteps = append(t.curves.heldOutSteps, float64(step))
	t.curves.heldOut = append(t.curves.heldOut, loss)
	if err := t.progress.HeldOut(step, loss); err != nil {
		return err
	}
	return t.record(step, heldOutEvents(loss, bins)...)
}

func (t *trainer) record(step int, events ...monitor.Event) error {
	for _, m := range t.monitors {
		if err := m.Write(step*t.cfg.TrainBatchSize, events...); err != nil {
			return err
		}
	}
	return nil
}

// heldOutEvents are the series of a held-out loss and of its bins of timesteps.
func heldOutEvents(loss float64, bins []evaluate.Bin) []monitor.Event {
	events := []monitor.Event{{Name: heldOutLoss, Value: loss}}
	for _, b := range bins {
		if b.Samples > 0 {
			events = append(events, monitor.Event{Name: fmt.Sprintf("%s_t%03d", heldOutLoss, b.Lo), Value: b.Loss})
		}
	}
	return events
}

// finish saves the network, draws the curves and says what came of the run.
func (t *trainer) finish(ctx context.Context, steps int, took time.Duration) error {
	err := t.withAverage(ctx, func() error {
		if t.comm.Rank() != 0 {
			return nil
		}
		return t.saveModel()
	})
	if err != nil || t.comm.Rank() != 0 {
		return err
	}
	plot := filepath.Join(t.out, "loss.png")
	err = picture.LossPlot(plot, t.title(),
		picture.Curve{Name: "training", X: t.curves.steps, Y: t.curves.loss},
		picture.Curve{Name: "held out", X: t.curves.heldOutSteps, Y: t.curves.heldOut, Points: true})
	if err != nil {
		return err
	}
	if err := t.progress.Close(); err != nil {
		return err
	}
	return t.summary(steps, took)
}

// networkDir is the folder of the trained network in that of the run.
const networkDir = "unet"

func (t *trainer) summary(steps int, took time.Duration) (err error) {
	say := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(t.stdout, format+"\n", args...)
		}
	}
	say("")
	if steps < t.cfg.Run.Steps {
		say("stopped      after step %d of %d, as asked; go on with train -resume auto -out %s", steps, t.cfg.Run.Steps, t.out)
	}
	say("trained      %d steps in %v", steps-t.start(), took.Round(time.Second))
	if n := len(t.curves.heldOut); n > 0 {
		say("held-out     loss %.4f", t.curves.heldOut[n-1])
	}
	opt := t.engine.Optimizer()
	_, peak := opt.Memory()
	say("memory       %s; predicted %s", memoryLine("measured on rank 0:", peak), mib(t.plan.Memory(0, rule(t.cfg), true).Total()))
	if t.firstPeak > peak.Total() {
		say("             %s in the first step, in which the ranks learn in what order gradients come", mib(t.firstPeak))
	}
	tried, applied := opt.Steps()
	if t.resume != nil {
		before := t.resume.folder.Manifest().Progress
		tried, applied = tried-before.Tried, applied-before.Applied+1 // going on gathers the weights, too
	}
	say("traffic      %s", trafficLine(opt.Traffic(), t.plan.Traffic(0), tried, applied))
	say("activations  %s at most on rank 0; predicted %s", mib(t.peak), mib(t.activations))
	say("output       %s", t.describeOutput())
	return err
}

// describeOutput lists what the folder holds.
func (j *job) describeOutput() string {
	parts := filepath.Join(j.out, configFile) + ", loss.png, " + checkpointsDir
	if variants(j.cfg) == (unet.Variants{}) {
		parts += ", " + networkDir + " (diffusers' format)"
	}
	if j.cfg.CSVMonitor.Enabled {
		parts += ", csv"
	}
	if j.cfg.TensorBoard.Enabled {
		parts += ", tensorboard"
	}
	if j.traced {
		parts += ", trace.json"
	}
	if grids, _ := os.ReadDir(filepath.Join(j.out, samplesDir)); len(grids) > 0 {
		parts += ", samples/" + grids[len(grids)-1].Name()
	}
	return parts
}
