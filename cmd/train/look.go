package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/zerogap/zerogap/internal/evaluate"
	"github.com/zerogap/zerogap/internal/picture"
)

// look measures the held-out loss and draws pictures when it is time. All ranks
// share the work.
func (t *trainer) look(ctx context.Context, step int, end bool) error {
	due := func(every int) bool { return end || every > 0 && step%every == 0 }
	evaluate := t.cfg.Run.EvalSamples > 0 && due(t.cfg.Run.EvalEvery)
	draw := t.cfg.Run.SampleCount > 0 && due(t.cfg.Run.SampleEvery)
	if !evaluate && !draw {
		return nil
	}
	return t.withAverage(ctx, func() error { return t.lookNow(ctx, step, evaluate, draw) })
}

func (t *trainer) lookNow(ctx context.Context, step int, heldOut, draw bool) error {
	if heldOut {
		losses, timesteps, err := t.view.losses(ctx, t.heldOut, t.cfg.Run.EvalSamples)
		if err != nil {
			return err
		}
		bins := evaluate.Bins(losses, timesteps, t.diffusion.Len(), evaluate.DefaultBins)
		if err := t.reportHeldOut(step, evaluate.Mean(losses), bins); err != nil {
			return err
		}
	}
	if draw {
		return t.draw(ctx, step, t.cfg.Run.SampleCount)
	}
	return nil
}

// draw generates n pictures and rank 0 writes the grid. Picture i starts from the
// same noise at every step.
func (t *trainer) draw(ctx context.Context, step, n int) error {
	all, err := t.view.pictures(ctx, n, t.cfg.Run.Seed, nil)
	if err != nil || t.comm.Rank() != 0 {
		return err
	}
	path := filepath.Join(t.out, "samples", fmt.Sprintf("step-%06d.png", step))
	return picture.Grid(path, all, n, t.view.c, t.view.h, t.view.w, columns(n))
}
