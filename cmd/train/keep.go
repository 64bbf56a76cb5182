package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"

	"github.com/zerogap/zerogap/zero/checkpoint"
)

// Files of the command in a checkpoint, and its folder of checkpoints in that of
// the run.
const (
	checkpointsDir = "checkpoints"
	configFile     = "config.toml"
	stateFile      = "train.json"
)

// trainState is what a checkpoint keeps of the training beside the optimizer.
// Everything random is a function of seed, step and position, so the step, which the
// optimizer counts, is the state of data order, noise and dropout.
type trainState struct {
	Samples int         `json:"samples"` // trained on, over all ranks: the position in the data
	Seed    uint64      `json:"seed"`    // the key of everything random
	Config  string      `json:"config_sha256"`
	Curves  savedCurves `json:"curves"`
}

// savedCurves are the curves of the plot. JSON has neither NaN nor infinity: a null
// is one of them.
type savedCurves struct {
	Loss         []*float64 `json:"loss"` // of step 1, 2, ...
	HeldOutSteps []float64  `json:"held_out_steps"`
	HeldOut      []*float64 `json:"held_out"`
}

// keeper saves the checkpoints of one rank.
type keeper struct {
	saver   *checkpoint.Saver
	pending *checkpoint.Pending // being written
	saved   int                 // step of the last one
}

func (t *trainer) newKeeper() *keeper {
	return &keeper{saver: checkpoint.NewSaver(t.engine.Optimizer(), t.comm, checkpoint.Options{
		Dir: filepath.Join(t.out, checkpointsDir), Keep: t.cfg.Run.CheckpointKeep,
	}), saved: t.start()}
}

// written reports whether this rank has nothing left to write.
func (k *keeper) written() bool { return k.pending == nil || k.pending.Written() }

// keep saves a checkpoint when it is time. One that cannot be saved is a warning, since
// the training is worth more than that, unless it is the last of the run. Where the
// communication has failed the next collective says so again.
func (t *trainer) keep(ctx context.Context, step int, end, written bool) error {
	err := t.save(ctx, step, end, written)
	if err == nil || end {
		return err
	}
	t.keeper.saved = -1
	if t.comm.Rank() != 0 {
		return nil
	}
	return t.progress.Warnf("%v; the training goes on, and saves again when the next checkpoint is due", err)
}

// save makes a checkpoint that is being written appear when all ranks are done with it
// (written), and begins the one that is due. The last one of a run is there when save
// returns.
func (t *trainer) save(ctx context.Context, step int, end, written bool) error {
	k := t.keeper
	every := t.cfg.Run.CheckpointEvery
	due := end || every > 0 && step%every == 0
	if k.pending != nil && (written || due) {
		pending := k.pending
		k.pending = nil
		if err := pending.Commit(ctx); err != nil {
			return err
		}
	}
	if !due || k.saved == step {
		return nil
	}
	attached, err := t.attachments(step)
	if err != nil {
		return err
	}
	k.saved = step
	if end || !t.cfg.Run.CheckpointAsync {
		return k.saver.Save(ctx, checkpoint.StepTag(step), attached...)
	}
	k.pending, err = k.saver.Begin(ctx, checkpoint.StepTag(step), attached...)
	return err
}

func (t *trainer) attachments(step int) ([]checkpoint.Attachment, error) {
	if t.comm.Rank() != 0 {
		return nil, nil
	}
	c, cfg := t.curves, t.cfg.TOML()
	raw, err := json.Marshal(trainState{
		Samples: step * t.cfg.TrainBatchSize, Seed: t.cfg.Run.Seed, Config: fmt.Sprintf("%x", sha256.Sum256(cfg)),
		Curves: savedCurves{Loss: numbers(c.loss), HeldOutSteps: c.heldOutSteps, HeldOut: numbers(c.heldOut)},
	})
	if err != nil {
		return nil, err
	}
	model, err := json.MarshalIndent(t.model.Config(), "", "  ")
	if err != nil {
		return nil, err
	}
	return []checkpoint.Attachment{
		{Name: stateFile, Data: raw}, {Name: configFile, Data: cfg}, {Name: modelFile, Data: append(model, '\n')},
	}, nil
}

// modelFile describes the network as diffusers does.
const modelFile = "model.json"

func numbers(x []float64) []*float64 {
	out := make([]*float64, len(x))
	for i := range x {
		if !math.IsNaN(x[i]) && !math.IsInf(x[i], 0) {
			out[i] = &x[i]
		}
	}
	return out
}

func values(x []*float64) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		out[i] = math.NaN()
		if x[i] != nil {
			out[i] = *x[i]
		}
	}
	return out
}
