package unet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func newSampler(t *testing.T, s *Schedule, c SamplerConfig) *Sampler {
	t.Helper()
	sampler, err := NewSampler(s, c)
	if err != nil {
		t.Fatal(err)
	}
	return sampler
}

func TestSamplerSteps(t *testing.T) {
	v := loadDiffusion(t)
	for kind, entries := range map[string][]diffusionStep{"ddpm": v.DDPM, "ddim": v.DDIM} {
		if len(entries) < 100 {
			t.Fatalf("%s: only %d references", kind, len(entries))
		}
		for _, e := range entries {
			name := fmt.Sprintf("%s %s %s clip=%t eta=%g steps=%d t=%d", kind, e.BetaSchedule, e.PredictionType, e.ClipSample, e.Eta, e.Steps, e.T)
			schedule := v.schedule(t, e.BetaSchedule)
			s := newSampler(t, schedule, SamplerConfig{kind, e.Steps, e.PredictionType, e.Eta, e.ClipSample})
			i := slices.Index(s.Timesteps(), e.T)
			got := make([]float32, len(v.Sample))
			noise := v.StepNoise
			if !s.NeedsNoise(i) {
				noise = nil
			}
			s.Step(got, v.Sample, v.ModelOutput, noise, i)
			checkClose(t, name, got, e.PrevSample)
			if !e.ClipSample {
				schedule.Recover(got, nil, e.PredictionType, v.Sample, v.ModelOutput, e.T)
				checkClose(t, name+" x0", got, e.PredOriginal)
			}
			if wantNoise := e.T > 0 && (kind == "ddpm" || e.Eta > 0); s.NeedsNoise(i) != wantNoise {
				t.Errorf("%s: NeedsNoise %t", name, !wantNoise)
			}
			alias := slices.Clone(v.Sample)
			s.Step(alias, alias, v.ModelOutput, noise, i)
			s.Step(got, v.Sample, v.ModelOutput, noise, i)
			if !slices.Equal(alias, got) {
				t.Errorf("%s: a step in place differs", name)
			}
		}
	}
}

// A whole descent with the network stand-in of testdata/diffusion/make.py.
func TestTrajectories(t *testing.T) {
	v := loadDiffusion(t)
	for _, e := range v.Trajectories {
		s := newSampler(t, v.schedule(t, "linear"), SamplerConfig{Kind: e.Kind, Steps: e.Steps, PredictionType: PredictEpsilon, ClipSample: true})
		model := func(x []float32, t int) ([]float32, error) {
			out := make([]float32, len(x))
			for i := range x {
				out[i] = float32(float64(x[i])*math.Sqrt(float64(t)/1000) + 0.1*math.Sin(float64(t)))
			}
			return out, nil
		}
		noise := func(dst []float32, _, step int) {
			clear(dst)
			if step < 0 {
				copy(dst, v.Sample)
			}
		}
		got, err := s.Sample(t.Context(), model, noise, 0, 1, len(v.Sample))
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range e.Sample {
			// Each of the steps rounds the image to float32.
			if math.Abs(float64(got[i])-w) > 2e-6 {
				t.Errorf("%s, %d steps: [%d] = %.9g, want %.9g", e.Kind, e.Steps, i, got[i], w)
			}
		}
	}
}

// If the network knows the one clean image there is, every sampler must end at it.
func TestPerfectNetwork(t *testing.T) {
	v := loadDiffusion(t)
	s := v.schedule(t, "squaredcos_cap_v2")
	size := len(v.X0)
	for _, p := range []PredictionType{PredictEpsilon, PredictVelocity, PredictSample} {
		for _, c := range []SamplerConfig{
			{Kind: "ddpm", Steps: 100}, {Kind: "ddim", Steps: 10}, {Kind: "ddim", Steps: 30, Eta: 1}, {Kind: "ddim", Steps: 1},
		} {
			c.PredictionType, c.ClipSample = p, true
			model := func(x []float32, t int) ([]float32, error) {
				a := s.AlphaCumprod(t)
				out, eps := make([]float32, len(x)), make([]float32, len(x))
				for i := range x {
					eps[i] = float32((float64(x[i]) - math.Sqrt(a)*float64(v.X0[i])) / math.Sqrt(1-a))
				}
				s.Target(out, p, v.X0, eps, t)
				return out, nil
			}
			got, err := newSampler(t, s, c).Sample(t.Context(), model, testNoise, 0, 1, size)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range v.X0 {
				if math.Abs(float64(got[i]-w)) > 1e-4 {
					t.Errorf("%+v: [%d] = %g, want %g", c, i, got[i], w)
				}
			}
		}
	}
}

// testNoise is keyed like StreamNoise, from another generator.
func testNoise(dst []float32, image, step int) {
	r := rand.New(rand.NewPCG(uint64(image), uint64(step+1)))
	for i := range dst {
		dst[i] = float32(r.NormFloat64())
	}
}

func TestSampleDoesNotDependOnBatching(t *testing.T) {
	s := newSampler(t, loadDiffusion(t).schedule(t, "linear"), SamplerConfig{Kind: "ddpm", Steps: 20, PredictionType: PredictEpsilon})
	const size, total = 5, 6
	model := func(x []float32, t int) ([]float32, error) {
		out := make([]float32, len(x))
		for i := range x {
			out[i] = float32(math.Tanh(float64(x[i]))) * float32(t) / 1000
		}
		return out, nil
	}
	for name, noise := range map[string]NoiseFunc{"test": testNoise, "stream": StreamNoise(3)} {
		draw := func(first, n int) []float32 {
			x, err := s.Sample(t.Context(), model, noise, first, n, size)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		whole := draw(0, total)
		for first, n := range map[int]int{0: 1, 1: 3, 4: 2} {
			if got, want := draw(first, n), whole[first*size:(first+n)*size]; !slices.Equal(got, want) {
				t.Errorf("%s: images %d…%d differ: %v, want %v", name, first, first+n-1, got, want)
			}
		}
		if slices.Equal(whole[:size], whole[size:2*size]) {
			t.Errorf("%s: images do not differ from each other", name)
		}
	}
}

func TestStreamNoise(t *testing.T) {
	fill := func(seed uint64, image, step int) []float32 {
		dst := make([]float32, 4000)
		StreamNoise(seed)(dst, image, step)
		return dst
	}
	base := fill(1, 2, 3)
	var sum, squares float64
	for _, v := range base {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	// Five standard errors of mean and variance.
	if n := float64(len(base)); math.Abs(sum/n) > 5/math.Sqrt(n) || math.Abs(squares/n-1) > 5*math.Sqrt(2/n) {
		t.Errorf("mean %g, variance %g", sum/n, squares/n)
	}
	if !slices.Equal(base, fill(1, 2, 3)) {
		t.Error("not repeatable")
	}
	for _, other := range [][]float32{fill(2, 2, 3), fill(1, 3, 3), fill(1, 2, 4), fill(1, 2, -1)} {
		if slices.Equal(base, other) {
			t.Error("seed, image or step has no influence")
		}
	}
}

func TestSampleErrors(t *testing.T) {
	s := newSampler(t, loadDiffusion(t).schedule(t, "linear"), SamplerConfig{Kind: "ddim", Steps: 10, PredictionType: PredictEpsilon})
	broken := errors.New("broken")
	_, err := s.Sample(t.Context(), func([]float32, int) ([]float32, error) { return nil, broken }, testNoise, 0, 1, 2)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "timestep 900") {
		t.Errorf("error %v", err)
	}
	_, err = s.Sample(t.Context(), func([]float32, int) ([]float32, error) { return make([]float32, 3), nil }, testNoise, 0, 1, 2)
	if err == nil || !strings.Contains(err.Error(), "returned 3 elements for 2") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	_, err = s.Sample(ctx, func(x []float32, _ int) ([]float32, error) {
		calls++
		if calls == 2 {
			cancel()
		}
		return x, nil
	}, testNoise, 0, 1, 2)
	if err != context.Canceled || calls != 2 {
		t.Errorf("error %v after %d calls", err, calls)
	}
}

func TestSamplerConfigErrors(t *testing.T) {
	linear := loadDiffusion(t).schedule(t, "linear")
	terminal, err := NewScheduleFromBetas([]float64{0.1, 1})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		schedule *Schedule
		config   SamplerConfig
		want     string
	}{
		{linear, SamplerConfig{"euler", 10, PredictEpsilon, 0, true}, `unknown sampler "euler": allowed are ddpm, ddim`},
		{linear, SamplerConfig{"ddpm", 10, "", 0, true}, `unknown prediction_type "": allowed are`},
		{linear, SamplerConfig{"ddpm", 10, PredictEpsilon, 0.5, true}, "eta = 0.5: only the ddim sampler takes an eta"},
		{linear, SamplerConfig{"ddim", 10, PredictEpsilon, 1.5, true}, "eta = 1.5: must be from 0 to 1"},
		{linear, SamplerConfig{"ddim", 10, PredictEpsilon, math.NaN(), true}, "eta = NaN"},
		{linear, SamplerConfig{"ddim", 0, PredictEpsilon, 0, true}, "num_inference_steps = 0"},
		{terminal, SamplerConfig{"ddim", 2, PredictEpsilon, 0, true}, "pure noise: train with v_prediction or sample"},
	}
	for _, c := range cases {
		if _, err := NewSampler(c.schedule, c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	// Pure noise at the last timestep is fine for v-prediction.
	s := newSampler(t, terminal, SamplerConfig{"ddim", 2, PredictVelocity, 0, false})
	got := make([]float32, 1)
	s.Step(got, []float32{3}, []float32{-1}, nil, 0)
	checkClose(t, "step from pure noise", got, []float64{math.Sqrt(0.9)*1 + math.Sqrt(0.1)*3})
}

func TestPixels(t *testing.T) {
	x := []float32{-2, -1, -0.9961, 0, 0.5, 0.999, 1, 7, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
	want := []uint8{0, 0, 0, 128, 191, 255, 255, 255, 0, 255, 0}
	got := make([]uint8, len(x))
	Pixels(got, x)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
