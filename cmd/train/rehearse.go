package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
	"github.com/zerogap/zerogap/zero/fault"
)

// rehearsal is a training for the sake of its numbers: the same as train's, without
// pictures, curves and folders.
type rehearsal struct {
	cfg    *config.Config
	steps  int
	probe  zero.Probe         // nil for none
	strike func(fault.Strike) // nil for none
	// after is called by every rank after each step; an error ends the training. Its
	// context ends when another rank has failed.
	after func(ctx context.Context, step, rank int, r engine.Result) error
}

// prepared checks the configuration as train does, and creates nothing.
func (r rehearsal) prepared() (*job, error) {
	j := &job{cfg: r.cfg, stdout: io.Discard, quiet: true, probe: r.probe, strike: r.strike}
	var err error
	if j.plan, j.tensors, err = plan(r.cfg); err != nil {
		return nil, usageError{err}
	}
	if j.diffusion, err = newDiffusion(r.cfg); err != nil {
		return nil, usageError{err}
	}
	if j.train, j.heldOut, err = openData(r.cfg); err != nil {
		return nil, usageError{err}
	}
	return j, nil
}

// run trains. An error of after is returned as it is.
func (r rehearsal) run(ctx context.Context) error {
	j, err := r.prepared()
	if err != nil {
		return err
	}
	var stopped error
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err = local.Run(ctx, r.cfg.Comm.World, func(ctx context.Context, c comm.Communicator) (err error) {
		defer func() {
			if err != nil { // the others may be waiting in after
				cancel(err)
			}
		}()
		t, err := newTrainer(ctx, j, c)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.engine.Close()) }()
		stop, err := t.rehearse(ctx, waiting, r)
		if c.Rank() == 0 {
			stopped = stop
		}
		defer abortOnFailure(c, &err)
		return err
	}, local.WithTimeout(time.Duration(r.cfg.Comm.TimeoutMS)*time.Millisecond))
	return errors.Join(err, stopped)
}

// rehearse is the loop of train without reports. stop is the error of after, which gets
// the context waiting.
func (t *trainer) rehearse(ctx, waiting context.Context, r rehearsal) (stop, err error) {
	for step := 1; step <= r.steps; step++ {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		for micro := range t.cfg.GradientAccumulationSteps {
			loss, err := t.forward(step, micro)
			if err != nil {
				return nil, err
			}
			if err := t.backward(ctx, loss); err != nil {
				return nil, err
			}
		}
		result, err := t.step(ctx)
		if err != nil {
			return nil, err
		}
		if r.after == nil {
			continue
		}
		if stop := r.after(waiting, step, t.comm.Rank(), result); stop != nil {
			return stop, nil
		}
	}
	return nil, nil
}
