//go:build linux && (amd64 || arm64)

package mpi

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/checkpoint"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/exchange"
)

// The training of the failure tests: a few steps with a checkpoint after each, on
// gradients that a formula gives. It goes on from the last checkpoint in its folder.
const (
	envTrain = "ZEROGAP_TEST_TRAINING" // a fault, or "none"

	trainSteps   = 6
	trainTimeout = 3 * time.Second
)

// fault is what goes wrong with one rank: "RANK PLACE STEP DEED".
type fault struct {
	rank  int
	place string // forward, collective, checkpoint
	step  int
	deed  string // kill, stop, error, panic
}

// strike does the deed when it is time.
func (f fault) strike(rank, step int, place string) error {
	if rank != f.rank || step != f.step || place != f.place {
		return nil
	}
	switch f.deed {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Hour) // the signal takes a moment
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Hour)
	case "panic":
		panic("disk on fire")
	}
	return errors.New("disk on fire")
}

// trainRank is the whole program of a rank.
func trainRank(text string) {
	var f fault
	if text != "none" {
		fmt.Sscan(text, &f.rank, &f.place, &f.step, &f.deed)
	} else {
		f.rank = -1
	}
	c, err := Connect(Options{Launch: Detect(os.Getenv), Timeout: trainTimeout})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir := os.Getenv(envOut)
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("pid-%d", c.Rank())), []byte(fmt.Sprint(os.Getpid())), 0o666); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	err = training(c, f, dir)
	if err == nil {
		if err = c.Close(); err == nil {
			os.Exit(0)
		}
	}
	c.Abort(err)
	fmt.Fprintf(os.Stderr, "train: rank %d: %v\n", c.Rank(), strings.Split(err.Error(), "\n")[0])
	_ = c.Close()
	if errors.Is(err, exchange.ErrLost) {
		c.Exit(ExitFailed)
	}
	c.Exit(1)
}

// training runs one rank; a panic is an error.
func training(c comm.Communicator, f fault, dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		if err != nil {
			c.Abort(err)
		}
	}()
	ctx, watched := context.Background(), &faulty{c, f}
	opt, err := zero.New(ctx, trainParams(), trainConfig(c.Size()), watched, zero.DefaultAdamW())
	if err != nil {
		return err
	}
	defer opt.Close()
	saves := filepath.Join(dir, "checkpoints")
	if err := resume(ctx, opt, watched, saves); err != nil {
		return err
	}
	saver := checkpoint.NewSaver(opt, watched, checkpoint.Options{Dir: saves, Keep: 2, FS: faultyFS{f, c.Rank(), opt}})
	for opt.Progress().Tried < trainSteps {
		step := opt.Progress().Tried + 1
		for m := range 4 / c.Size() {
			if err := f.strike(c.Rank(), step, "forward"); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
			if err := trainBackward(ctx, opt, step, m*c.Size()+c.Rank()); err != nil {
				return err
			}
		}
		if _, err := opt.Step(ctx, 0.05); err != nil {
			return err
		}
		if err := saver.Save(ctx, checkpoint.StepTag(step)); err != nil {
			return err
		}
	}
	return leaveFingerprint(ctx, opt, c.Rank(), dir)
}

func resume(ctx context.Context, opt *zero.Optimizer, c comm.Communicator, dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	folder, _, err := checkpoint.Find(dir)
	if err != nil || folder == nil {
		return err
	}
	defer folder.Close()
	return folder.Load(ctx, opt, c)
}

var trainSizes = []int{300_000, 7, 40_000}

func trainParams() []zero.Param {
	var params []zero.Param
	for i, n := range trainSizes {
		init := make([]float32, n)
		for k := range init {
			init[k] = pseudo(0, i, k)
		}
		params = append(params, zero.Param{Name: fmt.Sprintf("layer.%d", i), Shape: []int{n}, Init: init})
	}
	return params
}

func trainConfig(world int) zero.Config {
	cfg := zero.DefaultConfig()
	cfg.GradientAccumulationSteps = 4 / world
	cfg.GradientClipping = 1
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.ReduceBucketSize = 50_000
	cfg.ZeroOptimization.OverlapComm = true
	return cfg
}

func trainBackward(ctx context.Context, opt *zero.Optimizer, step, g int) error {
	for i := len(trainSizes) - 1; i >= 0; i-- {
		grad := make([]float32, trainSizes[i])
		for k := range grad {
			grad[k] = pseudo(step*100+g, i, k)
		}
		if err := opt.GradReady(ctx, i, grad); err != nil {
			return err
		}
	}
	return opt.EndBackward(ctx)
}

// pseudo is a value between -1 and 1 that its keys decide.
func pseudo(a, b, c int) float32 {
	h := uint64(a+1)*0x9e3779b97f4a7c15 ^ uint64(b+1)*0xbf58476d1ce4e5b9 ^ uint64(c+1)*0x94d049bb133111eb
	h ^= h >> 29
	h *= 0xd6e8feb86659fd93
	return float32(int32(h>>32)) / (1 << 31)
}

// leaveFingerprint writes what became of the weights and moments. It is collective.
func leaveFingerprint(ctx context.Context, opt *zero.Optimizer, rank int, dir string) error {
	h := fnv.New64a()
	for i, p := range opt.Params() {
		all, err := opt.FullParam(ctx, p.Name)
		for _, key := range opt.StateNames(i) {
			if err == nil {
				var state []float32
				state, err = opt.FullState(ctx, p.Name, key)
				all = append(all, state...)
			}
		}
		if err != nil {
			return err
		}
		for _, v := range all {
			fmt.Fprintf(h, "%08x", math.Float32bits(v))
		}
	}
	if rank != 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, "fingerprint"), []byte(fmt.Sprintf("%016x", h.Sum64())), 0o666)
}

// faulty strikes right after a reduction has begun.
type faulty struct {
	comm.Communicator
	f fault
}

// Start implements comm.Communicator.
func (c *faulty) Start(ctx context.Context, op *comm.Op) comm.Handle {
	h := c.Communicator.Start(ctx, op)
	if op.Kind == comm.ReduceScatter {
		if err := c.f.strike(c.Rank(), op.Sig.Step, "collective"); err != nil {
			c.Abort(err)
		}
	}
	return h
}

// faultyFS strikes when the first bytes of a file are in it.
type faultyFS struct {
	f    fault
	rank int
	opt  *zero.Optimizer
}

// Mkdir implements checkpoint.FS.
func (d faultyFS) Mkdir(path string) error { return checkpoint.Disk{}.Mkdir(path) }

// Create implements checkpoint.FS.
func (d faultyFS) Create(path string) (checkpoint.File, error) {
	f, err := checkpoint.Disk{}.Create(path)
	return faultyFile{f, d}, err
}

// Rename implements checkpoint.FS.
func (d faultyFS) Rename(from, to string) error { return checkpoint.Disk{}.Rename(from, to) }

// Remove implements checkpoint.FS.
func (d faultyFS) Remove(path string) error { return checkpoint.Disk{}.Remove(path) }

// SyncDir implements checkpoint.FS.
func (d faultyFS) SyncDir(path string) error { return checkpoint.Disk{}.SyncDir(path) }

type faultyFile struct {
	checkpoint.File
	d faultyFS
}

// Write implements checkpoint.File.
func (f faultyFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b[:len(b)/2])
	if err != nil {
		return n, err
	}
	if err := f.d.f.strike(f.d.rank, f.d.opt.Progress().Tried, "checkpoint"); err != nil {
		return n, err
	}
	m, err := f.File.Write(b[n:])
	return n + m, err
}
