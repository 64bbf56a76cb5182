package main

import (
	"context"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/diffusion"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero/comm"
)

// How many pictures a rank puts through the network at once. A picture's result
// does not depend on the others in its batch.
const (
	evalBatch   = 16
	sampleBatch = 16
)

// viewer looks at a network: it draws pictures with it and measures its loss. The
// ranks share the work, and each gets all results; they are the same at any world
// size. Its methods are collective.
type viewer struct {
	comm      comm.Communicator
	tape      *framework.Tape
	model     *unet.UNet2DModel
	diffusion *diffusion.Process
	c, h, w   int  // of a picture
	labeled   bool // the network takes the pictures' labels where they are known
}

// losses returns the MSE of each of the first n held-out pictures, or of all when
// there are fewer, and the timestep it was measured at. Noise and timesteps are those
// of diffusion.DrawFixed: the same for every network.
func (v *viewer) losses(ctx context.Context, heldOut data.Dataset, n int) (losses []float64, timesteps []int, err error) {
	n = min(n, heldOut.Len())
	losses, timesteps = make([]float64, n), make([]int, n)
	for i := range timesteps {
		timesteps[i] = v.diffusion.FixedTimestep(i, n)
	}
	bounds := evenly(n, v.comm.Size())
	lo, hi := bounds[v.comm.Rank()], bounds[v.comm.Rank()+1]
	for first := lo; first < hi; first += evalBatch {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if err := v.lossBatch(heldOut, losses[first:min(hi, first+evalBatch)], first, n); err != nil {
			return nil, nil, err
		}
	}
	all := dtype.Buffer{DType: dtype.F64, F64: losses}
	return losses, timesteps, gather(ctx, v.comm, "held-out losses", bounds, all.Slice(lo, hi), all)
}

// lossBatch measures the held-out pictures from first on, of n.
func (v *viewer) lossBatch(heldOut data.Dataset, losses []float64, first, n int) error {
	b, size := len(losses), v.c*v.h*v.w
	batch := data.Batch{Pixels: make([]float32, b*size), Labels: make([]int, b), Positions: make([]int, b)}
	for i := range b {
		var err error
		if batch.Labels[i], err = heldOut.Load(first+i, batch.Pixels[i*size:(i+1)*size]); err != nil {
			return err
		}
	}
	var noisy diffusion.Noisy
	v.diffusion.DrawFixed(&noisy, &batch, first, n)
	var labels []int
	if v.labeled {
		labels = batch.Labels
	}
	out, err := v.predict([]int{b, v.c, v.h, v.w}, noisy.Input, noisy.Timesteps, labels)
	if err != nil {
		return err
	}
	for i := range losses {
		var sum float64
		for j := i * size; j < (i+1)*size; j++ {
			d := float64(out[j]) - float64(noisy.Target[j])
			sum += d * d
		}
		losses[i] = sum / float64(size)
	}
	return nil
}

// predict runs the network on noisy pictures of the shape; labels are nil where there
// are none.
func (v *viewer) predict(shape []int, x []float32, timesteps, labels []int) (out []float32, err error) {
	v.tape.SetSample(framework.Sample{})
	err = v.tape.NoGrad(func() error {
		pred, err := v.model.ForwardLabeled(v.tape, v.tape.Input(shape, x), timesteps, labels)
		if err == nil {
			out = pred.Float32s()
		}
		return err
	})
	return out, err
}

// pictures generates n pictures from the noise of seed, as [n,C,H,W] in [−1, 1].
// Picture i is the same for every n. progress, which may be nil, is told after each
// batch how many of this rank's share are done.
func (v *viewer) pictures(ctx context.Context, n int, seed uint64, progress func(done, share int)) ([]float32, error) {
	size := v.c * v.h * v.w
	bounds := evenly(n, v.comm.Size())
	lo, hi := bounds[v.comm.Rank()], bounds[v.comm.Rank()+1]
	for r := range bounds {
		bounds[r] *= size
	}
	all := make([]float32, n*size)
	for first := lo; first < hi; first += sampleBatch {
		count := min(sampleBatch, hi-first)
		x, err := v.diffusion.Sampler.Sample(ctx, v.denoiser(count), unet.StreamNoise(seed), first, count, size)
		if err != nil {
			return nil, err
		}
		copy(all[first*size:], x)
		if progress != nil {
			progress(first+count-lo, hi-lo)
		}
	}
	pictures := dtype.OfFloat32(all)
	return all, gather(ctx, v.comm, "pictures", bounds, pictures.Slice(lo*size, hi*size), pictures)
}

// denoiser is the network as the sampler sees it.
func (v *viewer) denoiser(count int) unet.Denoiser {
	shape, timesteps := []int{count, v.c, v.h, v.w}, make([]int, count)
	return func(x []float32, ts int) ([]float32, error) {
		for i := range timesteps {
			timesteps[i] = ts
		}
		return v.predict(shape, x, timesteps, nil)
	}
}

// columns makes a grid of n pictures nearly square, wider than high.
func columns(n int) int {
	c := 1
	for c*c < n {
		c++
	}
	return c
}

// gather collects every rank's part of all.
func gather(ctx context.Context, c comm.Communicator, name string, bounds []int, part, all dtype.Buffer) error {
	return comm.Do(ctx, c, &comm.Op{
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
