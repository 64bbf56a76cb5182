package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/internal/diffusion"
	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/progress"
	"github.com/zerogap/zerogap/internal/web"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/comm/mpi"
	"github.com/zerogap/zerogap/zero/fault"
)

// job is one training: everything that is known before the first rank starts.
type job struct {
	cfg     *config.Config
	plan    *zero.Plan
	tensors int // trainable parameters
	// activations predicts the most bytes of activations, their gradients and
	// working memory of a rank's micro-batch.
	activations int64
	diffusion   *diffusion.Process
	train       data.Dataset
	heldOut     data.Dataset
	out         string
	made        bool        // out is new: nothing in it can be lost
	lock        *os.File    // of the output folder
	resume      *resumption // nil: a new training

	stdout    io.Writer
	quiet     bool
	mpi       *mpi.Comm // of this process's rank; nil when the ranks are goroutines
	processes string    // where the ranks are, with mpi
	addr      string    // of the web page, "" for none
	halt

	// rank 0's
	monitors []monitor.Writer
	web      *web.Server // one of the monitors; nil without -web
	comms    *commsLog   // nil without comms_logger
	// flopsFile is where the FLOPs profile goes, nil for the standard output.
	flopsFile        *os.File
	profiled, traced bool // done, as asked for
	progress         *progress.Line
	display          atomic.Pointer[progress.Line] // progress, for who does not wait for it
	curves           curves

	// of a rehearsal
	probe  zero.Probe         // nil for none
	strike func(fault.Strike) // nil for none
}

// prepare reads and checks everything that can be wrong before work starts, and
// creates the output folder last.
func prepare(o options, stdout, stderr io.Writer) (*job, error) {
	if err := resumeConfig(&o); err != nil {
		return nil, usageError{err}
	}
	cfg, err := config.LoadFor(o.world(), o.config, o.sets, checks()...)
	if err == nil {
		err = checkLaunch(cfg, o.launch)
	}
	if err != nil {
		return nil, usageError{err}
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(stderr, "train: warning: %s\n", w)
	}
	j := &job{cfg: cfg, stdout: stdout, quiet: o.quiet, addr: o.web}
	if j.quiet {
		j.stdout = io.Discard
	}
	if j.plan, j.tensors, err = plan(cfg); err != nil {
		return nil, usageError{err}
	}
	if j.activations, err = activationMemory(cfg); err != nil {
		return nil, usageError{err}
	}
	if j.diffusion, err = newDiffusion(cfg); err != nil {
		return nil, usageError{err}
	}
	if j.train, j.heldOut, err = openData(cfg); err != nil {
		return nil, usageError{err}
	}
	if err := j.settle(o, stderr); err != nil {
		return nil, usageError{errors.Join(err, j.release())}
	}
	return j, nil
}

// settle finds the checkpoint to go on from, and the output folder.
func (j *job) settle(o options, stderr io.Writer) (err error) {
	if o.resume != "" {
		if j.resume, err = findCheckpoint(o.resume, j.cfg.Run.Out, stderr); err != nil {
			return err
		}
	}
	if j.resume != nil {
		if err := j.resume.fits(j.cfg); err != nil {
			return err
		}
		warnings, err := j.resume.compare(j.cfg)
		if err != nil {
			return err
		}
		for _, w := range warnings {
			fmt.Fprintf(stderr, "train: warning: %s\n", w)
		}
		j.curves.restore(j.resume.state.Curves)
	}
	if o.launch.Rank > 0 { // rank 0 makes the folder
		return nil
	}
	// Its own folder, or, when it was ended before its first checkpoint, one with
	// nothing to lose but what this run will write again.
	if j.resume != nil && j.resume.own || j.resume == nil && o.resume == "auto" && isRun(j.cfg.Run.Out) {
		j.out = j.cfg.Run.Out
		j.lock, err = lock(j.out)
		return err
	}
	if err := checkMonitor(j.cfg); err != nil {
		return err
	}
	if j.out, err = makeOut(j.cfg, o.out != ""); err != nil {
		return err
	}
	j.made = true
	j.lock, err = lock(j.out)
	return err
}

// release closes what prepare has opened.
func (j *job) release() error {
	err := j.resume.close()
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
	}
	return err
}

// isRun reports whether a folder is that of a run.
func isRun(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, configFile))
	return err == nil && isDir(filepath.Join(dir, samplesDir))
}

// start is the number of steps that the training has made already.
func (j *job) start() int { return j.resume.step() }

// openData opens the data set and checks that it fits the model and the batch.
func openData(c *config.Config) (train, heldOut data.Dataset, err error) {
	train, heldOut, err = data.Open(data.Options{
		Kind: c.Data.Kind, Path: c.Data.Path, ImageSize: c.Data.ImageSize,
		Channels: c.Data.Channels, Category: c.Data.Category, TrainSamples: c.Data.TrainSamples,
	})
	if err != nil {
		return nil, nil, err
	}
	if _, err := newLoader(c, train); err != nil {
		return nil, nil, err
	}
	if channels, _, _ := train.Shape(); channels != c.Model.InChannels {
		return nil, nil, fmt.Errorf("model.in_channels = %d, but the pictures have %d channels: set model.in_channels or data.channels", c.Model.InChannels, channels)
	}
	return train, heldOut, nil
}

func newLoader(c *config.Config, ds data.Dataset) (*data.Loader, error) {
	return data.NewLoader(ds, data.LoaderOptions{
		Seed: c.Run.Seed, TrainBatch: c.TrainBatchSize, MicroBatch: c.TrainMicroBatchSizePerGPU,
		Flip: c.Data.Flip, DropLast: c.Data.DropLast,
	})
}

// makeOut creates the output folder with the effective configuration in it. A
// folder that holds an earlier run is never written to: one that the user named
// is refused, the configuration's default gets a number.
func makeOut(c *config.Config, named bool) (string, error) {
	dir := c.Run.Out
	for n := 2; ; n++ {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
			break
		}
		if err != nil {
			return "", fmt.Errorf("output folder: %w; choose another with -out", err)
		}
		if named {
			return "", fmt.Errorf("output folder %s is not empty: choose another with -out, or remove it", dir)
		}
		dir = fmt.Sprintf("%s-%d", c.Run.Out, n)
	}
	c.Run.Out = dir
	if err := os.MkdirAll(filepath.Join(dir, samplesDir), 0o777); err != nil {
		return "", fmt.Errorf("output folder: %w; choose another with -out", err)
	}
	if err := saveConfig(c, dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// samplesDir is the folder of grids in that of the run.
const samplesDir = "samples"

// saveConfig leaves the effective configuration in the run's folder, whole or as it
// was.
func saveConfig(c *config.Config, dir string) error {
	path := filepath.Join(dir, configFile)
	temp := path + ".new"
	err := os.WriteFile(temp, c.TOML(), 0o666)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("output folder: %w", err), os.RemoveAll(temp))
	}
	return nil
}

// run starts the ranks and returns when all have ended.
func (j *job) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, j.release()) }()
	if done := j.start(); done >= j.cfg.Run.Steps {
		_, err := fmt.Fprintf(j.stdout, "nothing to do: %s is at step %d, and run.steps = %d; -steps N trains on\n", j.resume.folder.Path(), done, j.cfg.Run.Steps)
		return err
	}
	if !j.made && !j.follows() { // only now: a run that is refused keeps the configuration it had
		if err := saveConfig(j.cfg, j.out); err != nil {
			return err
		}
	}
	if err := j.openReports(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.closeReports()) }()
	j.header()

	if j.mpi != nil {
		return runRank(ctx, j.mpi, j.rank)
	}
	return local.Run(ctx, j.cfg.Comm.World, j.rank, local.WithTimeout(time.Duration(j.cfg.Comm.TimeoutMS)*time.Millisecond))
}

// rank runs one rank to its end.
func (j *job) rank(ctx context.Context, c comm.Communicator) (err error) {
	t, err := newTrainer(ctx, j, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	// Before the engine closes, and not only after, as local.Run would: the others
	// are to hear the cause, not that this rank gave up a reduction.
	defer abortOnFailure(c, &err)
	return t.train(ctx)
}

// abortOnFailure is deferred: it turns a panic into an error and tells the other
// ranks of either.
func abortOnFailure(c comm.Communicator, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
	if *err != nil {
		c.Abort(*err)
	}
}
