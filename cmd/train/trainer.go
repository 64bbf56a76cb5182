package main

import (
	"context"
	"time"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/diffusion"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/engine"
)

// trainer is one rank of a training.
type trainer struct {
	*job
	comm   comm.Communicator
	model  *unet.UNet2DModel
	engine *engine.Engine
	loader *data.Loader

	batch data.Batch
	noisy diffusion.Noisy
	votes []float64  // scratch of agreeToStop
	times *breakdown // nil unless wall_clock_breakdown

	peak int64 // the most bytes of activations, their gradients and working memory in a step
}

func newTrainer(ctx context.Context, j *job, c comm.Communicator) (*trainer, error) {
	t := &trainer{job: j, votes: make([]float64, c.Size()+1)}
	if j.cfg.WallClockBreakdown {
		t.times = &breakdown{}
	}
	c = j.watch(c, t.times)
	t.comm = c
	var err error
	if t.model, err = newModel(j.cfg); err != nil {
		return nil, err
	}
	if t.loader, err = newLoader(j.cfg, j.train); err != nil {
		return nil, err
	}
	rule, options, err := j.faulty()
	if err != nil {
		return nil, err
	}
	if t.engine, err = engine.New(ctx, t.model, zeroConfig(j.cfg), schedule(j.cfg), rule, c, options...); err != nil {
		return nil, err
	}
	return t, nil
}

// train is the loop: forward, backward while gradients are being reduced, step.
func (t *trainer) train(ctx context.Context) error {
	last, start := t.cfg.Run.Steps, time.Now()
	for step := 1; step <= last; step++ {
		began := time.Now()
		t.engine.Tape().ResetPeak()
		for micro := range t.cfg.GradientAccumulationSteps {
			loss, err := t.forward(step, micro)
			if err != nil {
				return err
			}
			if err := t.backward(ctx, loss); err != nil {
				return err
			}
		}
		t.peak = max(t.peak, t.engine.Tape().Memory().Peak)
		result, err := t.step(ctx)
		if err != nil {
			return err
		}
		if err := t.report(step, result, time.Since(began)); err != nil {
			return err
		}
		if err := t.reportBreakdown(ctx, step); err != nil {
			return err
		}
		stop, err := t.agreeToStop(ctx)
		if err != nil {
			return err
		}
		if stop {
			last = step
		}
		if err := t.look(ctx, step, step == last); err != nil {
			return err
		}
	}
	return t.finish(last, time.Since(start))
}

// forward computes the loss of micro-batch micro of this rank. Everything
// random is keyed by the position of a sample in the training, so the loss does
// not depend on which rank computes it.
func (t *trainer) forward(step, micro int) (*framework.Tensor, error) {
	if err := t.load(step, micro); err != nil {
		return nil, err
	}
	defer t.times.begin(phaseForward)()
	tape := t.engine.Tape()
	tape.SetSample(framework.Sample{Seed: t.cfg.Run.Seed, Step: step, Samples: t.batch.Positions, Train: true})
	c, h, w := t.job.train.Shape()
	shape := []int{len(t.batch.Positions), c, h, w}
	pred, err := t.model.ForwardLabeled(tape, tape.Input(shape, t.noisy.Input), t.noisy.Timesteps, labels(t.cfg, t.batch.Labels))
	if err != nil {
		return nil, err
	}
	return tape.MSELoss(pred, tape.Constant(shape, t.noisy.Target)), nil
}

// load reads micro-batch micro of this rank and adds its noise.
func (t *trainer) load(step, micro int) error {
	defer t.times.begin(phaseData)()
	g := micro*t.comm.Size() + t.comm.Rank()
	if err := t.loader.Batch(&t.batch, step-1, g); err != nil {
		return err
	}
	t.diffusion.Draw(&t.noisy, &t.batch, t.cfg.Run.Seed, step)
	return nil
}

func (t *trainer) backward(ctx context.Context, loss *framework.Tensor) error {
	defer t.times.begin(phaseBackward)()
	return t.engine.Backward(ctx, loss)
}

// step waits for the reductions and updates the weights.
func (t *trainer) step(ctx context.Context) (engine.Result, error) {
	if t.times != nil { // Step waits too
		end := t.times.begin(phaseReduce)
		if err := t.engine.Optimizer().Drain(ctx); err != nil {
			return engine.Result{}, err
		}
		end()
	}
	defer t.times.begin(phaseStep)()
	return t.engine.Step(ctx)
}

// agreeToStop tells every rank whether any has been asked to stop, so that all
// leave after the same step.
func (t *trainer) agreeToStop(ctx context.Context) (bool, error) {
	w := t.comm.Size()
	mine, all := t.votes[w:], t.votes[:w]
	mine[0] = 0
	if t.stop.Load() {
		mine[0] = 1
	}
	err := t.gather(ctx, "votes to stop", evenly(w, w), dtype.Buffer{DType: dtype.F64, F64: mine}, dtype.Buffer{DType: dtype.F64, F64: all})
	for _, v := range all {
		if v != 0 {
			return true, err
		}
	}
	return false, err
}

// gather collects every rank's part of all.
func (t *trainer) gather(ctx context.Context, name string, bounds []int, part, all dtype.Buffer) error {
	return comm.Do(ctx, t.comm, &comm.Op{
		Kind: comm.AllGather, Bounds: bounds, Send: part, Recv: all,
		Sig: comm.Signature{Name: name, Bucket: -1},
	})
}

// evenly splits n items over the ranks: rank r has [bounds[r], bounds[r+1]).
func evenly(n, world int) []int {
	bounds := make([]int, world+1)
	for r := range bounds {
		bounds[r] = n * r / world
	}
	return bounds
}
