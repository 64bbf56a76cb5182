package main

import (
	"context"
	"errors"
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

	batch   data.Batch
	noisy   diffusion.Noisy
	votes   []float64  // scratch of vote
	times   *breakdown // nil unless wall_clock_breakdown
	view    *viewer
	keeper  *keeper
	own     []dtype.Buffer // the training's weights, while those of the average are looked at
	inspect inspector

	firstPeak int64 // the most bytes of the optimizer in the first step
	peak      int64 // the most bytes of activations, their gradients and working memory in a step
}

func newTrainer(ctx context.Context, j *job, c comm.Communicator) (*trainer, error) {
	t := &trainer{job: j, votes: make([]float64, c.Size()+1), inspect: j.openInspector(c.Rank())}
	if j.cfg.WallClockBreakdown {
		t.times = &breakdown{}
	}
	c = j.watch(c, t.times, t.inspect.trace)
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
	t.view = &viewer{comm: c, tape: t.engine.Tape(), model: t.model, diffusion: j.diffusion, labeled: j.cfg.Model.NumClasses > 0}
	t.view.c, t.view.h, t.view.w = j.train.Shape()
	t.keeper = t.newKeeper()
	if j.resume == nil {
		return t, nil
	}
	if err := j.resume.folder.Load(ctx, t.engine.Optimizer(), c); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// close ends a checkpoint that was begun and will not appear, and the engine.
func (t *trainer) close() error { return errors.Join(t.keeper.saver.Close(), t.engine.Close()) }

// train is the loop: forward, backward while gradients are being reduced, step.
func (t *trainer) train(ctx context.Context) error {
	last, begin := t.cfg.Run.Steps, time.Now()
	for step := t.start() + 1; step <= last; step++ {
		began := time.Now()
		t.engine.Tape().ResetPeak()
		t.beginStep(step)
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
		if err := t.endStep(ctx, step); err != nil {
			return err
		}
		if err := t.report(step, result, time.Since(began)); err != nil {
			return err
		}
		if err := t.reportBreakdown(ctx, step); err != nil {
			return err
		}
		v, err := t.vote(ctx)
		if err != nil {
			return err
		}
		if v.stop {
			last = step
		}
		if v.stop { // it may not be given the time for pictures
			if err := t.keep(ctx, step, true, !v.writing); err != nil {
				return err
			}
		}
		if !v.hurry {
			if err := t.look(ctx, step, step == last); err != nil {
				return err
			}
		}
		if err := t.keep(ctx, step, step == last, !v.writing); err != nil {
			return err
		}
	}
	return t.finish(ctx, last, time.Since(begin))
}

// forward computes the loss of micro-batch micro of this rank. Everything
// random is keyed by the position of a sample in the training, so the loss does
// not depend on which rank computes it.
func (t *trainer) forward(step, micro int) (*framework.Tensor, error) {
	if err := t.load(step, micro); err != nil {
		return nil, err
	}
	defer t.begin(phaseForward)()
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
	defer t.begin(phaseData)()
	g := micro*t.comm.Size() + t.comm.Rank()
	if err := t.loader.Batch(&t.batch, step-1, g); err != nil {
		return err
	}
	t.diffusion.Draw(&t.noisy, &t.batch, t.cfg.Run.Seed, step)
	return nil
}

func (t *trainer) backward(ctx context.Context, loss *framework.Tensor) error {
	defer t.begin(phaseBackward)()
	return t.engine.Backward(ctx, loss)
}

// step waits for the reductions and updates the weights.
func (t *trainer) step(ctx context.Context) (engine.Result, error) {
	if t.times != nil || t.inspect.trace.On() { // Step waits too
		end := t.begin(phaseReduce)
		if err := t.engine.Optimizer().Drain(ctx); err != nil {
			return engine.Result{}, err
		}
		end()
	}
	defer t.begin(phaseStep)()
	return t.engine.Step(ctx)
}

// ballot is what the ranks decide together after a step.
type ballot struct {
	stop    bool // someone was asked to end the run
	hurry   bool // and to do it soon
	writing bool // someone still writes a checkpoint
}

// vote tells every rank what any has to say, so that all do the same.
func (t *trainer) vote(ctx context.Context) (ballot, error) {
	const stop, hurry, writing = 1, 2, 4
	w := t.comm.Size()
	mine, all := t.votes[w:], t.votes[:w]
	bits := 0
	if t.stop.Load() {
		bits |= stop
	}
	if t.hurry.Load() {
		bits |= hurry
	}
	if !t.keeper.written() {
		bits |= writing
	}
	mine[0] = float64(bits)
	err := gather(ctx, t.comm, "votes", evenly(w, w), dtype.Buffer{DType: dtype.F64, F64: mine}, dtype.Buffer{DType: dtype.F64, F64: all})
	for _, v := range all {
		bits |= int(v)
	}
	return ballot{stop: bits&stop != 0, hurry: bits&hurry != 0, writing: bits&writing != 0}, err
}
