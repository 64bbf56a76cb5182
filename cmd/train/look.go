package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/diffusion"
	"github.com/zerogap/zerogap/internal/picture"
	"github.com/zerogap/zerogap/unet"
)

// How many pictures a rank puts through the network at once. A picture's result
// does not depend on the others in its batch; the sum of a batch's losses does,
// so evaluation always cuts the same batches.
const (
	evalBatch   = 16
	sampleBatch = 16
)

// look measures the held-out loss and draws pictures when it is time. All ranks
// share the work.
func (t *trainer) look(ctx context.Context, step int, end bool) error {
	due := func(every int) bool { return end || every > 0 && step%every == 0 }
	if n := t.cfg.Run.EvalSamples; n > 0 && due(t.cfg.Run.EvalEvery) {
		loss, err := t.heldOutLoss(ctx, n)
		if err != nil {
			return err
		}
		if err := t.reportHeldOut(step, loss); err != nil {
			return err
		}
	}
	if n := t.cfg.Run.SampleCount; n > 0 && due(t.cfg.Run.SampleEvery) {
		return t.draw(ctx, step, n)
	}
	return nil
}

// heldOutLoss is the network's MSE on the first n held-out pictures, with the
// noise and timesteps of diffusion.DrawFixed.
func (t *trainer) heldOutLoss(ctx context.Context, n int) (float64, error) {
	n = min(n, t.heldOut.Len())
	batches := (n + evalBatch - 1) / evalBatch
	bounds := evenly(batches, t.comm.Size())
	lo, hi := bounds[t.comm.Rank()], bounds[t.comm.Rank()+1]
	sums := make([]float64, batches)
	for b := lo; b < hi; b++ {
		if err := ctx.Err(); err != nil {
			return 0, context.Cause(ctx)
		}
		var err error
		if sums[b], err = t.heldOutBatch(b*evalBatch, min(n, (b+1)*evalBatch), n); err != nil {
			return 0, err
		}
	}
	all := dtype.Buffer{DType: dtype.F64, F64: sums}
	if err := t.gather(ctx, "held-out losses", bounds, all.Slice(lo, hi), all); err != nil {
		return 0, err
	}
	var sum float64
	for _, s := range sums {
		sum += s
	}
	return sum / float64(n), nil
}

// heldOutBatch returns the sum of the losses of held-out pictures [lo, hi) of n.
func (t *trainer) heldOutBatch(lo, hi, n int) (float64, error) {
	c, h, w := t.heldOut.Shape()
	b, size := hi-lo, c*h*w
	batch := data.Batch{Pixels: make([]float32, b*size), Labels: make([]int, b), Positions: make([]int, b)}
	for i := range b {
		if _, err := t.heldOut.Load(lo+i, batch.Pixels[i*size:(i+1)*size]); err != nil {
			return 0, err
		}
	}
	var noisy diffusion.Noisy
	t.diffusion.DrawFixed(&noisy, &batch, lo, n)
	var sum float64
	tape, shape := t.engine.Tape(), []int{b, c, h, w}
	tape.SetSample(framework.Sample{})
	err := tape.NoGrad(func() error {
		pred, err := t.model.ForwardLabeled(tape, tape.Input(shape, noisy.Input), noisy.Timesteps, labels(t.cfg, batch.Labels))
		if err != nil {
			return err
		}
		sum = float64(b) * tape.MSELoss(pred, tape.Constant(shape, noisy.Target)).Item()
		return nil
	})
	return sum, err
}

// draw generates n pictures, each rank its share, and rank 0 writes the grid.
// Picture i starts from the same noise at every step and world size.
func (t *trainer) draw(ctx context.Context, step, n int) error {
	c, h, w := t.job.train.Shape()
	size := c * h * w
	bounds := evenly(n, t.comm.Size())
	lo, hi := bounds[t.comm.Rank()], bounds[t.comm.Rank()+1]
	for r := range bounds {
		bounds[r] *= size
	}
	all := make([]float32, n*size)
	for first := lo; first < hi; first += sampleBatch {
		count := min(sampleBatch, hi-first)
		x, err := t.diffusion.Sampler.Sample(ctx, t.denoiser([]int{count, c, h, w}), unet.StreamNoise(t.cfg.Run.Seed), first, count, size)
		if err != nil {
			return err
		}
		copy(all[first*size:], x)
	}
	pictures := dtype.OfFloat32(all)
	if err := t.gather(ctx, "pictures", bounds, pictures.Slice(lo*size, hi*size), pictures); err != nil {
		return err
	}
	if t.comm.Rank() != 0 {
		return nil
	}
	path := filepath.Join(t.out, "samples", fmt.Sprintf("step-%06d.png", step))
	return picture.Grid(path, all, n, c, h, w, columns(n))
}

// denoiser is the network as the sampler sees it.
func (t *trainer) denoiser(shape []int) unet.Denoiser {
	tape, timesteps := t.engine.Tape(), make([]int, shape[0])
	tape.SetSample(framework.Sample{})
	return func(x []float32, ts int) (out []float32, err error) {
		for i := range timesteps {
			timesteps[i] = ts
		}
		err = tape.NoGrad(func() error {
			pred, err := t.model.Forward(tape, tape.Input(shape, x), timesteps)
			if err == nil {
				out = pred.Float32s()
			}
			return err
		})
		return out, err
	}
}

// columns makes the grid nearly square, wider than high.
func columns(n int) int {
	c := 1
	for c*c < n {
		c++
	}
	return c
}
