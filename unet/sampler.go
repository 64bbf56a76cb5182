package unet

import (
	"context"
	"fmt"
	"math"

	"github.com/zerogap/zerogap/framework"
)

// SamplerConfig chooses how noise becomes images.
type SamplerConfig struct {
	// Kind is "ddpm" (ancestral sampling, Ho et al. 2020, with the smaller of its
	// two variances) or "ddim" (Song et al. 2021).
	Kind string
	// Steps is the number of network calls, from 1 to the schedule's length.
	Steps int
	// PredictionType must be the one that the network was trained with.
	PredictionType PredictionType
	// Eta scales DDIM's noise, from 0 (deterministic) to 1; DDPM takes none.
	Eta float64
	// ClipSample clips every predicted clean image to [-1, 1]. The predicted
	// noise is not derived anew from the clipped image.
	ClipSample bool
}

// Sampler walks a schedule down from noise. It is immutable and safe for
// concurrent use.
type Sampler struct {
	steps []samplerStep
	clip  bool
}

// samplerStep is one transition x_t → x_t′. Both methods are of one form,
//
//	x̂₀ = clip(x0FromX·x_t + x0FromOutput·output)
//	ε̂  = epsFromX·x_t + epsFromOutput·output
//	x_t′ = wX0·x̂₀ + wX·x_t + wEps·ε̂ + sigma·z
//
// and differ in the weights.
type samplerStep struct {
	t int
	recoverCoef
	wX0, wX, wEps, sigma float64
}

// NewSampler computes the weights of every step. Errors name the key, the value
// and what is allowed.
func NewSampler(s *Schedule, c SamplerConfig) (*Sampler, error) {
	if _, err := ParsePredictionType(string(c.PredictionType)); err != nil {
		return nil, err
	}
	var weigh func(st *samplerStep, alpha, prev, eta float64)
	switch {
	case c.Kind == "ddpm" && c.Eta != 0:
		return nil, fmt.Errorf("eta = %g: only the ddim sampler takes an eta", c.Eta)
	case c.Kind == "ddpm":
		weigh = (*samplerStep).ddpm
	case c.Kind == "ddim" && !(c.Eta >= 0 && c.Eta <= 1):
		return nil, fmt.Errorf("eta = %g: must be from 0 to 1", c.Eta)
	case c.Kind == "ddim":
		weigh = (*samplerStep).ddim
	default:
		return nil, fmt.Errorf("unknown sampler %q: allowed are ddpm, ddim", c.Kind)
	}
	ts, err := s.Timesteps(c.Steps)
	if err != nil {
		return nil, err
	}
	out := &Sampler{clip: c.ClipSample, steps: make([]samplerStep, len(ts))}
	for i, t := range ts {
		before := -1
		if i+1 < len(ts) {
			before = ts[i+1]
		}
		alpha := s.AlphaCumprod(t)
		if alpha == 0 && c.PredictionType == PredictEpsilon {
			return nil, fmt.Errorf("prediction_type epsilon cannot recover an image at timestep %d, which is pure noise: train with v_prediction or sample", t)
		}
		st := &out.steps[i]
		st.t, st.recoverCoef = t, recovery(c.PredictionType, alpha)
		weigh(st, alpha, s.AlphaCumprod(before), c.Eta)
	}
	return out, nil
}

// minVariance keeps the variance of DDPM's steps positive, as diffusers does.
const minVariance = 1e-20

// posterior returns β of the transition and the variance of q(x_t′ | x_t, x₀)
// (Ho et al. 2020, eq. 7), where alpha and prev are ᾱ at t and t′.
func posterior(alpha, prev float64) (beta, variance float64) {
	beta = 1 - alpha/prev
	return beta, (1 - prev) / (1 - alpha) * beta
}

func (st *samplerStep) ddpm(alpha, prev, _ float64) {
	beta, variance := posterior(alpha, prev)
	st.wX0 = math.Sqrt(prev) * beta / (1 - alpha)
	st.wX = math.Sqrt(alpha/prev) * (1 - prev) / (1 - alpha)
	if st.t > 0 {
		st.sigma = math.Sqrt(max(variance, minVariance))
	}
}

func (st *samplerStep) ddim(alpha, prev, eta float64) {
	_, variance := posterior(alpha, prev)
	st.wX0 = math.Sqrt(prev)
	// Rounding may leave a tiny negative number where the exact value is 0.
	st.wEps = math.Sqrt(max(0, 1-prev-float64(eta*eta*variance)))
	st.sigma = eta * math.Sqrt(variance)
}

// Timesteps returns the descending timesteps at which the network is called.
func (s *Sampler) Timesteps() []int {
	ts := make([]int, len(s.steps))
	for i, st := range s.steps {
		ts[i] = st.t
	}
	return ts
}

// NeedsNoise reports whether step i adds noise.
func (s *Sampler) NeedsNoise(i int) bool { return s.steps[i].sigma > 0 }

// Step stores the image that follows x in dst, given the network's output for
// x at Timesteps()[i] and standard normal noise, which may be nil where
// NeedsNoise(i) is false. All have one length; dst may be any of them. The
// arithmetic is in float64 and rounded once.
func (s *Sampler) Step(dst, x, output, noise []float32, i int) {
	st := &s.steps[i]
	if len(dst) != len(x) || len(output) != len(x) || (st.sigma > 0 && len(noise) != len(x)) {
		panic(fmt.Sprintf("unet: sampler step from %d elements, output %d, noise %d into %d", len(x), len(output), len(noise), len(dst)))
	}
	for j := range x {
		v, m := float64(x[j]), float64(output[j])
		x0 := float64(st.x0FromX*v) + float64(st.x0FromOutput*m)
		if s.clip {
			x0 = min(max(x0, -1), 1)
		}
		next := float64(st.wX0*x0) + float64(st.wX*v)
		if st.wEps != 0 {
			eps := float64(st.epsFromX*v) + float64(st.epsFromOutput*m)
			next += float64(st.wEps * eps)
		}
		if st.sigma > 0 {
			next += float64(st.sigma * float64(noise[j]))
		}
		dst[j] = float32(next)
	}
}

// NoiseFunc fills dst with standard normal noise for one image. Step -1 is the
// noise to start from, step i ≥ 0 that of the sampler's i-th step. It must
// depend on its arguments alone.
type NoiseFunc func(dst []float32, image, step int)

// StreamNoise draws from random streams keyed by seed, image and step, apart
// from every stream of training.
func StreamNoise(seed uint64) NoiseFunc {
	return func(dst []float32, image, step int) {
		r := framework.NewStream(seed, step+1, image, "sampling")
		for i := range dst {
			dst[i] = float32(r.Norm())
		}
	}
}

// Denoiser is the network: its output for the batch x, row-major [N,C,H,W], at
// timestep t. It must treat images independently and not change x; its result
// is read before the next call.
type Denoiser func(x []float32, t int) ([]float32, error)

// Sample denoises n images of size elements (C·H·W) each and returns them as
// one slice [N,C,H,W], in the training range [-1, 1]. They are the images
// first … first+n−1: noise is asked for by these numbers, so an image does not
// depend on how a set of images is split into batches. ctx is looked at before
// every network call; its error is returned as it is.
func (s *Sampler) Sample(ctx context.Context, model Denoiser, noise NoiseFunc, first, n, size int) ([]float32, error) {
	x, z := make([]float32, n*size), make([]float32, n*size)
	draw := func(dst []float32, step int) {
		for k := range n {
			noise(dst[k*size:(k+1)*size], first+k, step)
		}
	}
	draw(x, -1)
	for i, st := range s.steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		output, err := model(x, st.t)
		if err != nil {
			return nil, fmt.Errorf("sampling, timestep %d: %w", st.t, err)
		}
		if len(output) != len(x) {
			return nil, fmt.Errorf("sampling, timestep %d: the network returned %d elements for %d: its in_channels and out_channels must be equal", st.t, len(output), len(x))
		}
		if s.NeedsNoise(i) {
			draw(z, i)
		}
		s.Step(x, x, output, z, i)
	}
	return x, nil
}

// Pixels maps images from [-1, 1] to 8-bit pixels: round(255·(x/2 + 1/2)),
// clamped. NaN becomes 0. dst has the length of x.
func Pixels(dst []uint8, x []float32) {
	for i, v := range x {
		p := math.Round((float64(v)/2 + 0.5) * 255)
		switch {
		case p >= 255:
			dst[i] = 255
		case p > 0:
			dst[i] = uint8(p)
		default:
			dst[i] = 0
		}
	}
}
