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

	stdout    io.Writer
	quiet     bool
	mpi       *mpi.Comm   // of this process's rank; nil when the ranks are goroutines
	processes string      // where the ranks are, with mpi
	addr      string      // of the web page, "" for none
	stop      atomic.Bool // the user wants the run to end after this step

	// rank 0's
	monitors []monitor.Writer
	web      *web.Server // one of the monitors; nil without -web
	comms    *commsLog   // nil without comms_logger
	progress *progress.Line
	curves   curves
}

// prepare reads and checks everything that can be wrong before work starts, and
// creates the output folder last.
func prepare(o options, stdout, stderr io.Writer) (*job, error) {
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
	if o.launch.Rank > 0 { // rank 0 makes the folder
		return j, nil
	}
	if err := checkMonitor(cfg); err != nil {
		return nil, usageError{err}
	}
	if j.out, err = makeOut(cfg, o.out != ""); err != nil {
		return nil, usageError{err}
	}
	return j, nil
}

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
	if err := os.MkdirAll(filepath.Join(dir, "samples"), 0o777); err != nil {
		return "", fmt.Errorf("output folder: %w; choose another with -out", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), c.TOML(), 0o666); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// run starts the ranks and returns when all have ended.
func (j *job) run(ctx context.Context) (err error) {
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
	defer func() { err = errors.Join(err, t.engine.Close()) }()
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
