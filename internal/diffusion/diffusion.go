// Package diffusion joins the noise schedule, what the network is to predict and
// the sampler, and draws what a training step adds to its pictures.
package diffusion

import (
	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
)

// Process is a noise schedule, the kind of prediction and a sampler. It is not
// changed by its methods: ranks may share it.
type Process struct {
	*unet.Schedule
	Predict unet.PredictionType
	Sampler *unet.Sampler
}

// Noisy is a batch as the network sees it. The slices are reused by Draw.
type Noisy struct {
	Timesteps []int     // [B]
	Noise     []float32 // ε, [B,C,H,W]
	Input     []float32 // x_t, [B,C,H,W]
	Target    []float32 // what the network should predict, [B,C,H,W]
}

// Draw draws a timestep and noise for every picture of b and fills n. Both are
// functions of the seed, the step and the picture's position in the training.
func (p *Process) Draw(n *Noisy, b *data.Batch, seed uint64, step int) {
	batch, all := len(b.Positions), len(b.Pixels)
	n.resize(batch, all)
	size := all / batch
	for i, key := range b.Positions {
		ts := framework.NewStream(seed, step, key, "timestep").Intn(p.Len())
		framework.NewStream(seed, step, key, "noise").FillNorm(n.Noise[i*size : (i+1)*size])
		p.noise(n, i, size, b.Pixels, ts)
	}
}

// FixedTimestep is the timestep of held-out picture i of count, (i+½)·T/count rounded
// down: spread evenly over the schedule.
func (p *Process) FixedTimestep(i, count int) int { return (2*i + 1) * p.Len() / (2 * count) }

// DrawFixed is Draw for evaluation: picture i of b, number first+i of count in
// all, always has the same noise and the timestep FixedTimestep(first+i, count).
func (p *Process) DrawFixed(n *Noisy, b *data.Batch, first, count int) {
	batch, all := len(b.Positions), len(b.Pixels)
	n.resize(batch, all)
	size := all / batch
	for i := range batch {
		framework.NewStream(0, 0, first+i, "held-out noise").FillNorm(n.Noise[i*size : (i+1)*size])
		p.noise(n, i, size, b.Pixels, p.FixedTimestep(first+i, count))
	}
}

// noise fills picture i, of size values, at timestep ts.
func (p *Process) noise(n *Noisy, i, size int, pixels []float32, ts int) {
	lo, hi := i*size, (i+1)*size
	n.Timesteps[i] = ts
	p.AddNoise(n.Input[lo:hi], pixels[lo:hi], n.Noise[lo:hi], ts)
	p.Target(n.Target[lo:hi], p.Predict, pixels[lo:hi], n.Noise[lo:hi], ts)
}

func (n *Noisy) resize(batch, all int) {
	n.Timesteps = resize(n.Timesteps, batch)
	n.Noise, n.Input, n.Target = resize(n.Noise, all), resize(n.Input, all), resize(n.Target, all)
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
