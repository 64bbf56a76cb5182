package unet

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// diffusionValues mirrors testdata/diffusion/values.json, which its README describes.
type diffusionValues struct {
	NumTrainTimesteps int       `json:"num_train_timesteps"`
	BetaStart         float64   `json:"beta_start"`
	BetaEnd           float64   `json:"beta_end"`
	X0                []float32 `json:"x0"`
	Noise             []float32 `json:"noise"`
	Sample            []float32 `json:"sample"`
	ModelOutput       []float32 `json:"model_output"`
	StepNoise         []float32 `json:"step_noise"`
	Tables            []struct {
		BetaSchedule  string    `json:"beta_schedule"`
		T             []int     `json:"t"`
		Betas         []float64 `json:"betas"`
		AlphasCumprod []float64 `json:"alphas_cumprod"`
		Float32       []float64 `json:"alphas_cumprod_float32"`
	} `json:"tables"`
	Forward []struct {
		BetaSchedule string    `json:"beta_schedule"`
		T            int       `json:"t"`
		AddNoise     []float64 `json:"add_noise"`
		Velocity     []float64 `json:"velocity"`
	} `json:"forward"`
	DDPM      []diffusionStep `json:"ddpm"`
	DDIM      []diffusionStep `json:"ddim"`
	Timesteps []struct {
		Steps     int   `json:"steps"`
		Timesteps []int `json:"timesteps"`
	} `json:"timesteps"`
	Trajectories []struct {
		Kind   string    `json:"kind"`
		Steps  int       `json:"steps"`
		Sample []float64 `json:"sample"`
	} `json:"trajectories"`
}

type diffusionStep struct {
	BetaSchedule   string         `json:"beta_schedule"`
	PredictionType PredictionType `json:"prediction_type"`
	ClipSample     bool           `json:"clip_sample"`
	Eta            float64        `json:"eta"`
	Steps          int            `json:"steps"`
	T              int            `json:"t"`
	PrevSample     []float64      `json:"prev_sample"`
	PredOriginal   []float64      `json:"pred_original_sample"`
}

func loadDiffusion(t *testing.T) *diffusionValues {
	t.Helper()
	raw, err := os.ReadFile("../testdata/diffusion/values.json")
	if err != nil {
		t.Fatal(err)
	}
	v := new(diffusionValues)
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *diffusionValues) schedule(t *testing.T, name string) *Schedule {
	t.Helper()
	s, err := NewSchedule(ScheduleConfig{v.NumTrainTimesteps, v.BetaStart, v.BetaEnd, name})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkClose compares float32 results with float64 references, relative to the
// largest reference: half an ulp of it is 6e-8.
func checkClose(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	scale := 0.0
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= 1e-7*scale) {
			t.Errorf("%s[%d] = %.9g, want %.9g", what, i, got[i], w)
		}
	}
}

func checkRelative(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance*math.Abs(want)) {
		t.Errorf("%s = %.17g, want %.17g within %g", what, got, want, tolerance)
	}
}

func TestScheduleTables(t *testing.T) {
	v := loadDiffusion(t)
	if len(v.Tables) != 4 {
		t.Fatalf("%d tables", len(v.Tables))
	}
	for _, table := range v.Tables {
		t.Run(table.BetaSchedule, func(t *testing.T) {
			s := v.schedule(t, table.BetaSchedule)
			if s.Len() != 1000 || s.AlphaCumprod(-1) != 1 {
				t.Errorf("length %d, clean level %g", s.Len(), s.AlphaCumprod(-1))
			}
			for i, at := range table.T {
				checkRelative(t, "beta", s.Beta(at), table.Betas[i], 1e-10) // 1 − ratio of cosines cancels
				checkRelative(t, "alphas_cumprod", s.AlphaCumprod(at), table.AlphasCumprod[i], 1e-11)
				// The library's own table is a float32 product of up to 1000 factors.
				checkRelative(t, "alphas_cumprod_float32", s.AlphaCumprod(at), table.Float32[i], 3e-5)
			}
			for at := range s.Len() {
				b, a := s.Beta(at), s.Alpha(at)
				if !(b > 0 && b < 1) || a != 1-b {
					t.Fatalf("beta[%d] = %g, alpha %g", at, b, a)
				}
				checkRelative(t, "ratio of neighbours", s.AlphaCumprod(at)/s.AlphaCumprod(at-1), a, 1e-14)
			}
		})
	}
}

func TestForwardProcess(t *testing.T) {
	v := loadDiffusion(t)
	for _, f := range v.Forward {
		s := v.schedule(t, f.BetaSchedule)
		n := len(v.X0)
		xt, vel := make([]float32, n), make([]float32, n)
		s.AddNoise(xt, v.X0, v.Noise, f.T)
		checkClose(t, "add_noise", xt, f.AddNoise)
		s.Velocity(vel, v.X0, v.Noise, f.T)
		checkClose(t, "velocity", vel, f.Velocity)

		alias := slices.Clone(v.X0)
		s.AddNoise(alias, alias, v.Noise, f.T)
		if !slices.Equal(alias, xt) {
			t.Errorf("%s t=%d: AddNoise in place differs", f.BetaSchedule, f.T)
		}
	}
}

func TestTargetsAndRecover(t *testing.T) {
	s, err := NewScheduleFromBetas([]float64{0.36})
	if err != nil {
		t.Fatal(err)
	}
	x0, eps, out := []float32{1}, []float32{2}, []float32{0}
	xt := []float32{0}
	s.AddNoise(xt, x0, eps, 0)
	checkClose(t, "x_t", xt, []float64{2})
	for p, want := range map[PredictionType]float64{PredictEpsilon: 2, PredictVelocity: 1, PredictSample: 1} {
		s.Target(out, p, x0, eps, 0)
		checkClose(t, string(p)+" target", out, []float64{want})
		gotX, gotE := []float32{0}, []float32{0}
		s.Recover(gotX, gotE, p, xt, out, 0)
		checkClose(t, string(p)+" x0", gotX, []float64{1})
		checkClose(t, string(p)+" noise", gotE, []float64{2})
		s.Recover(nil, xtCopy(xt, gotE), p, xt, out, 0)
		checkClose(t, string(p)+" noise alone", gotE, []float64{2})
	}
}

// xtCopy puts xt into dst and returns it, so that a stale dst cannot pass.
func xtCopy(xt, dst []float32) []float32 {
	copy(dst, xt)
	return dst
}

// Every prediction type must be undone by Recover on a real schedule too.
func TestRecoverInvertsTarget(t *testing.T) {
	v := loadDiffusion(t)
	s := v.schedule(t, "linear")
	n := len(v.X0)
	for _, p := range []PredictionType{PredictEpsilon, PredictVelocity, PredictSample} {
		for _, at := range []int{100, 500, 900} {
			xt, out := make([]float32, n), make([]float32, n)
			x0, eps := make([]float32, n), make([]float32, n)
			s.AddNoise(xt, v.X0, v.Noise, at)
			s.Target(out, p, v.X0, v.Noise, at)
			s.Recover(x0, eps, p, xt, out, at)
			for i := range x0 {
				// Rounding of x_t is amplified by 1/√ᾱ, here at most 61.
				if math.Abs(float64(x0[i]-v.X0[i])) > 1e-5 || math.Abs(float64(eps[i]-v.Noise[i])) > 1e-5 {
					t.Errorf("%s t=%d: recovered %g and %g, want %g and %g", p, at, x0[i], eps[i], v.X0[i], v.Noise[i])
				}
			}
		}
	}
}

func TestMinSNRWeight(t *testing.T) {
	snr := func(alpha float64) float64 { return alpha / (1 - alpha) }
	s, err := NewScheduleFromBetas([]float64{0.36})
	if err != nil {
		t.Fatal(err)
	}
	checkRelative(t, "SNR", s.SNR(0), 1.777778, 1e-6)
	cases := []struct {
		p                 PredictionType
		snr, gamma, want  float64
		relativeTolerance float64
	}{
		{PredictEpsilon, snr(0.64), 5, 1, 0},
		{PredictVelocity, snr(0.64), 5, 0.64, 1e-12},
		{PredictSample, snr(0.64), 5, 1.777778, 1e-6},
		{PredictEpsilon, snr(0.99), 5, 0.050505, 1e-5},
		{PredictVelocity, snr(0.99), 5, 0.05, 1e-12},
		{PredictSample, snr(0.99), 5, 5, 0},
		{PredictEpsilon, 0, 5, 1, 0},
		{PredictVelocity, 0, 5, 0, 0},
		{PredictSample, 0, 5, 0, 0},
		{PredictEpsilon, snr(0.99), 0, 1, 0},
		{PredictVelocity, snr(0.99), -1, 1, 0},
	}
	for _, c := range cases {
		checkRelative(t, string(c.p), MinSNRWeight(c.p, c.snr, c.gamma), c.want, c.relativeTolerance)
	}
}

func TestTimesteps(t *testing.T) {
	v := loadDiffusion(t)
	s := v.schedule(t, "linear")
	for _, c := range v.Timesteps {
		got, err := s.Timesteps(c.Steps)
		if err != nil || !slices.Equal(got, c.Timesteps) {
			t.Errorf("%d steps: %v (%v), want %v", c.Steps, got, err, c.Timesteps)
		}
	}
	if all, err := s.Timesteps(1000); err != nil || all[0] != 999 || all[999] != 0 {
		t.Errorf("1000 steps: %v", err)
	}
}

func TestScheduleErrors(t *testing.T) {
	base := DefaultScheduleConfig()
	with := func(f func(*ScheduleConfig)) error {
		c := base
		f(&c)
		_, err := NewSchedule(c)
		return err
	}
	fromBetas := func(b ...float64) error {
		_, err := NewScheduleFromBetas(b)
		return err
	}
	s, err := NewSchedule(base)
	if err != nil {
		t.Fatal(err)
	}
	_, steps0 := s.Timesteps(0)
	_, steps1001 := s.Timesteps(1001)
	_, prediction := ParsePredictionType("noise")
	cases := []struct {
		err  error
		want string
	}{
		{with(func(c *ScheduleConfig) { c.NumTrainTimesteps = 0 }), "num_train_timesteps = 0: must be at least 1"},
		{with(func(c *ScheduleConfig) { c.BetaSchedule = "cosine" }), `unknown beta_schedule "cosine": allowed are linear, scaled_linear, squaredcos_cap_v2, sigmoid`},
		{with(func(c *ScheduleConfig) { c.BetaStart = 0 }), "beta_start = 0, beta_end = 0.02: must satisfy 0 < beta_start <= beta_end < 1"},
		{with(func(c *ScheduleConfig) { c.BetaEnd = 1 }), "beta_end = 1"},
		{with(func(c *ScheduleConfig) { c.BetaStart = 0.5 }), "beta_start = 0.5, beta_end = 0.02"},
		{with(func(c *ScheduleConfig) { c.BetaEnd = math.NaN() }), "beta_end = NaN"},
		{fromBetas(), "at least one beta"},
		{fromBetas(0.1, 1.5), "beta[1] = 1.5: must be in (0, 1]"},
		{fromBetas(math.NaN()), "beta[0] = NaN"},
		{steps0, "num_inference_steps = 0: must be from 1 to 1000"},
		{steps1001, "num_inference_steps = 1001: must be from 1 to 1000"},
		{prediction, `unknown prediction_type "noise": allowed are epsilon, v_prediction, sample`},
	}
	for _, c := range cases {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("error %v, want %q", c.err, c.want)
		}
	}
	one := base
	one.NumTrainTimesteps = 1
	if s, err := NewSchedule(one); err != nil || s.Beta(0) != one.BetaStart {
		t.Errorf("a schedule of one timestep: %v", err)
	}
}
