package unet

import (
	"fmt"
	"math"
	"slices"
)

// PredictionType says what the network's output stands for, in diffusers' names.
type PredictionType string

// The prediction types. With x_t = √ᾱ·x₀ + √(1−ᾱ)·ε the network predicts:
const (
	PredictEpsilon  PredictionType = "epsilon"      // the noise ε
	PredictVelocity PredictionType = "v_prediction" // v = √ᾱ·ε − √(1−ᾱ)·x₀
	PredictSample   PredictionType = "sample"       // the clean image x₀
)

// ParsePredictionType returns the prediction type of that name.
func ParsePredictionType(name string) (PredictionType, error) {
	p := PredictionType(name)
	switch p {
	case PredictEpsilon, PredictVelocity, PredictSample:
		return p, nil
	}
	return "", fmt.Errorf("unknown prediction_type %q: allowed are epsilon, v_prediction, sample", name)
}

// ScheduleConfig describes a noise schedule in diffusers' terms.
type ScheduleConfig struct {
	NumTrainTimesteps int     // T
	BetaStart         float64 // β of timestep 0; unused by squaredcos_cap_v2
	BetaEnd           float64 // β of timestep T−1; unused by squaredcos_cap_v2
	BetaSchedule      string  // "linear", "scaled_linear", "squaredcos_cap_v2" or "sigmoid"
}

// DefaultScheduleConfig is the linear schedule of DDPM (Ho et al. 2020): 1000
// timesteps, β from 1e-4 to 0.02.
func DefaultScheduleConfig() ScheduleConfig {
	return ScheduleConfig{NumTrainTimesteps: 1000, BetaStart: 1e-4, BetaEnd: 0.02, BetaSchedule: "linear"}
}

// Schedule holds the noise levels of a forward diffusion
//
//	x_t = √ᾱ_t·x₀ + √(1−ᾱ_t)·ε,  ᾱ_t = Π_{s≤t} (1−β_s),  t = 0 … T−1
//
// in float64. Every method that mixes images does its arithmetic in float64 and
// rounds once: in a 16-bit format the first timesteps would add no noise at
// all. A Schedule is immutable and safe for concurrent use; the methods panic
// on a timestep outside [0, T) and on slices of different lengths.
type Schedule struct {
	betas, alphasCumprod []float64
}

// NewSchedule builds the tables. Errors name the key, the value and what is allowed.
func NewSchedule(c ScheduleConfig) (*Schedule, error) {
	if c.NumTrainTimesteps < 1 {
		return nil, fmt.Errorf("num_train_timesteps = %d: must be at least 1", c.NumTrainTimesteps)
	}
	// Written so that NaN fails.
	if c.BetaSchedule != "squaredcos_cap_v2" && !(c.BetaStart > 0 && c.BetaStart <= c.BetaEnd && c.BetaEnd < 1) {
		return nil, fmt.Errorf("beta_start = %g, beta_end = %g: must satisfy 0 < beta_start <= beta_end < 1", c.BetaStart, c.BetaEnd)
	}
	betas, err := namedBetas(c)
	if err != nil {
		return nil, err
	}
	return NewScheduleFromBetas(betas)
}

// NewScheduleFromBetas builds a schedule of the given β, which are copied and
// must lie in (0, 1]; 1 makes every later timestep pure noise.
func NewScheduleFromBetas(betas []float64) (*Schedule, error) {
	if len(betas) == 0 {
		return nil, fmt.Errorf("a noise schedule needs at least one beta")
	}
	s := &Schedule{betas: slices.Clone(betas), alphasCumprod: make([]float64, len(betas))}
	prod := 1.0
	for t, b := range s.betas {
		if !(b > 0 && b <= 1) {
			return nil, fmt.Errorf("beta[%d] = %g: must be in (0, 1]", t, b)
		}
		prod *= 1 - b
		s.alphasCumprod[t] = prod
	}
	return s, nil
}

// NewScheduleFromAlphasCumprod builds a schedule of given ᾱ, which are copied: from 1
// down to 0, none above the one before. Where two are equal, β is 0 and a timestep adds
// nothing.
func NewScheduleFromAlphasCumprod(products []float64) (*Schedule, error) {
	if len(products) == 0 {
		return nil, fmt.Errorf("a noise schedule needs at least one timestep")
	}
	s := &Schedule{betas: make([]float64, len(products)), alphasCumprod: slices.Clone(products)}
	before := 1.0
	for t, a := range products {
		if !(a >= 0 && a <= before) {
			return nil, fmt.Errorf("alpha_cumprod[%d] = %g: must be from 0 to %g, the one before", t, a, before)
		}
		if before > 0 {
			s.betas[t] = 1 - a/before
		} else {
			s.betas[t] = 1
		}
		before = a
	}
	return s, nil
}

// namedBetas computes a schedule of diffusers' DDPMScheduler by its name.
func namedBetas(c ScheduleConfig) ([]float64, error) {
	n := c.NumTrainTimesteps
	switch c.BetaSchedule {
	case "linear":
		return linspace(n, c.BetaStart, c.BetaEnd), nil
	case "scaled_linear":
		b := linspace(n, math.Sqrt(c.BetaStart), math.Sqrt(c.BetaEnd))
		for i, v := range b {
			b[i] = v * v
		}
		return b, nil
	case "squaredcos_cap_v2":
		// Nichol & Dhariwal 2021, eq. 17, with β capped at 0.999.
		bar := func(i int) float64 {
			c := math.Cos((float64(i)/float64(n) + 0.008) / 1.008 * math.Pi / 2)
			return c * c
		}
		b := make([]float64, n)
		for i := range b {
			b[i] = min(1-bar(i+1)/bar(i), 0.999)
		}
		return b, nil
	case "sigmoid":
		b := linspace(n, -6, 6)
		for i, v := range b {
			b[i] = (c.BetaEnd-c.BetaStart)/(1+math.Exp(-v)) + c.BetaStart
		}
		return b, nil
	}
	return nil, fmt.Errorf("unknown beta_schedule %q: allowed are linear, scaled_linear, squaredcos_cap_v2, sigmoid", c.BetaSchedule)
}

// linspace returns n evenly spaced values; the last is exactly end unless n is 1.
func linspace(n int, start, end float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = start
		if i > 0 {
			v[i] += float64(float64(i) * ((end - start) / float64(n-1)))
		}
	}
	if n > 1 {
		v[n-1] = end
	}
	return v
}

// Len returns the number of timesteps T.
func (s *Schedule) Len() int { return len(s.betas) }

// Beta returns β_t.
func (s *Schedule) Beta(t int) float64 { return s.betas[t] }

// Alpha returns α_t = 1 − β_t.
func (s *Schedule) Alpha(t int) float64 { return 1 - s.betas[t] }

// AlphaCumprod returns ᾱ_t, and 1 for t = −1: the clean image.
func (s *Schedule) AlphaCumprod(t int) float64 {
	if t == -1 {
		return 1
	}
	return s.alphasCumprod[t]
}

// SNR returns the signal-to-noise ratio ᾱ_t / (1−ᾱ_t).
func (s *Schedule) SNR(t int) float64 {
	a := s.alphasCumprod[t]
	return a / (1 - a)
}

// AddNoise stores x_t = √ᾱ_t·x0 + √(1−ᾱ_t)·noise in dst, which may be one of them.
func (s *Schedule) AddNoise(dst, x0, noise []float32, t int) {
	signal, sigma := s.levels(t)
	mix(dst, x0, noise, signal, sigma)
}

// Velocity stores v = √ᾱ_t·noise − √(1−ᾱ_t)·x0 in dst, which may be one of them.
func (s *Schedule) Velocity(dst, x0, noise []float32, t int) {
	signal, sigma := s.levels(t)
	mix(dst, noise, x0, signal, -sigma)
}

// Target stores what a network of prediction type p is trained to return for
// x_t: noise, velocity or x0. dst may be one of the inputs.
func (s *Schedule) Target(dst []float32, p PredictionType, x0, noise []float32, t int) {
	if len(dst) != len(x0) || len(dst) != len(noise) {
		panic(fmt.Sprintf("unet: target of %d elements from %d and %d", len(dst), len(x0), len(noise)))
	}
	switch p {
	case PredictEpsilon:
		copy(dst, noise)
	case PredictSample:
		copy(dst, x0)
	default:
		s.Velocity(dst, x0, noise, t)
	}
}

// Recover stores the clean image and the noise that the network's output for
// xt implies in x0 and noise, unclipped. Either may be nil, or be an input; the
// two must differ. For PredictEpsilon and ᾱ_t = 0 nothing determines x0, for
// PredictSample and ᾱ_t = 1 nothing determines the noise: they come out infinite
// or NaN.
func (s *Schedule) Recover(x0, noise []float32, p PredictionType, xt, output []float32, t int) {
	c := recovery(p, s.alphasCumprod[t])
	for i, x := range xt {
		x, m := float64(x), float64(output[i])
		if x0 != nil {
			x0[i] = float32(float64(c.x0FromX*x) + float64(c.x0FromOutput*m))
		}
		if noise != nil {
			noise[i] = float32(float64(c.epsFromX*x) + float64(c.epsFromOutput*m))
		}
	}
}

// Timesteps returns the n timesteps of a descent in diffusers' "leading"
// spacing: k·⌊T/n⌋ for k = n−1 … 0.
func (s *Schedule) Timesteps(n int) ([]int, error) {
	if n < 1 || n > s.Len() {
		return nil, fmt.Errorf("num_inference_steps = %d: must be from 1 to %d, the schedule's num_train_timesteps", n, s.Len())
	}
	ts := make([]int, n)
	for i := range ts {
		ts[i] = (n - 1 - i) * (s.Len() / n)
	}
	return ts, nil
}

// MinSNRWeight is the loss weight of Min-SNR-γ (Hang et al. 2023) at the given
// signal-to-noise ratio:
//
//	epsilon       min(snr, γ) / snr, and its limit 1 at snr = 0
//	v_prediction  min(snr, γ) / (snr + 1)
//	sample        min(snr, γ)
//
// A γ of 0 or less turns weighting off: the weight is 1.
func MinSNRWeight(p PredictionType, snr, gamma float64) float64 {
	if gamma <= 0 {
		return 1
	}
	clipped := min(snr, gamma)
	switch {
	case p == PredictSample:
		return clipped
	case p == PredictVelocity:
		return clipped / (snr + 1)
	case snr == 0:
		return 1
	}
	return clipped / snr
}

// levels returns √ᾱ_t and √(1−ᾱ_t).
func (s *Schedule) levels(t int) (signal, sigma float64) {
	a := s.alphasCumprod[t]
	return math.Sqrt(a), math.Sqrt(1 - a)
}

// mix stores a·x + b·y in dst, computed in float64 and rounded once. The
// conversions keep compilers from fusing, so every machine gets the same bits.
func mix(dst, x, y []float32, a, b float64) {
	if len(dst) != len(x) || len(dst) != len(y) {
		panic(fmt.Sprintf("unet: mix of %d and %d elements into %d", len(x), len(y), len(dst)))
	}
	for i := range dst {
		dst[i] = float32(float64(a*float64(x[i])) + float64(b*float64(y[i])))
	}
}

// recoverCoef are the weights that turn (x_t, network output) into x̂₀ and ε̂.
type recoverCoef struct{ x0FromX, x0FromOutput, epsFromX, epsFromOutput float64 }

func recovery(p PredictionType, alphaCumprod float64) recoverCoef {
	signal, sigma := math.Sqrt(alphaCumprod), math.Sqrt(1-alphaCumprod)
	switch p {
	case PredictEpsilon:
		return recoverCoef{x0FromX: 1 / signal, x0FromOutput: -sigma / signal, epsFromOutput: 1}
	case PredictSample:
		return recoverCoef{x0FromOutput: 1, epsFromX: 1 / sigma, epsFromOutput: -signal / sigma}
	}
	return recoverCoef{x0FromX: signal, x0FromOutput: -sigma, epsFromX: sigma, epsFromOutput: signal}
}
