package cases

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
)

// Section G: what a diffusion model needs of its trainer.

// TestE36bPredictionTypes: targets and their inverses at a level of 0.64 (diffusers
// #5654, #6307, #8466, #9451).
func TestE36bPredictionTypes(t *testing.T) {
	s, err := unet.NewScheduleFromBetas([]float64{0.36})
	if err != nil {
		t.Fatal(err)
	}
	x0, eps := []float32{1}, []float32{2}
	xt, target, backX, backEps := make([]float32, 1), make([]float32, 1), make([]float32, 1), make([]float32, 1)
	s.AddNoise(xt, x0, eps, 0)
	near(t, "x_t", float64(xt[0]), 2, 1e-6)
	for p, right := range map[unet.PredictionType]float64{unet.PredictEpsilon: 2, unet.PredictVelocity: 1, unet.PredictSample: 1} {
		s.Target(target, p, x0, eps, 0)
		near(t, fmt.Sprintf("target of %s", p), float64(target[0]), right, 1e-6)
		s.Recover(backX, backEps, p, xt, target, 0)
		near(t, fmt.Sprintf("x0 from %s", p), float64(backX[0]), 1, 1e-6)
		near(t, fmt.Sprintf("noise from %s", p), float64(backEps[0]), 2, 1e-6)
	}
	_, err = unet.ParsePredictionType("noise")
	wantError(t, "prediction_type", err, `"noise"`, "epsilon", "v_prediction", "sample")
}

// TestE36bMinSNR: the weights of min-SNR-γ at γ = 5 (kohya sd-scripts #673).
func TestE36bMinSNR(t *testing.T) {
	for _, tc := range []struct{ level, snr, epsilon, velocity float64 }{
		{0.64, 1.777778, 1, 0.64},
		{0.99, 99, 0.050505, 0.05},
		{0, 0, 1, 0},
	} {
		snr := tc.level / (1 - tc.level)
		near(t, fmt.Sprintf("SNR at %g", tc.level), snr, tc.snr, 1e-6)
		near(t, fmt.Sprintf("weight of epsilon at %g", tc.level), unet.MinSNRWeight(unet.PredictEpsilon, snr, 5), tc.epsilon, 1e-6)
		if v := unet.MinSNRWeight(unet.PredictVelocity, snr, 5); math.Abs(v-tc.velocity) > 1e-6 {
			t.Errorf("weight of v at %g: %g, want %g (1 is min(SNR+1, γ)/(SNR+1))", tc.level, v, tc.velocity)
		}
	}
	s, err := unet.NewScheduleFromBetas([]float64{0.36})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "SNR of the schedule", s.SNR(0), 0.64/0.36, 1e-12)
}

// TestE36bNoise: timesteps and noise belong to samples: repeatable for a seed, step
// and sample, different for any two.
func TestE36bNoise(t *testing.T) {
	draw := func(seed uint64, step, sample int) string {
		noise := make([]float32, 8)
		framework.NewStream(seed, step, sample, "noise").FillNorm(noise)
		return fmt.Sprint(framework.NewStream(seed, step, sample, "timestep").Intn(1<<30), noise)
	}
	seen := map[string]bool{}
	for seed := range uint64(3) {
		for step := range 5 {
			for sample := range 8 {
				d := draw(seed, step, sample)
				if seen[d] || d != draw(seed, step, sample) {
					t.Errorf("seed %d, step %d, sample %d: drawn twice, or not the same again", seed, step, sample)
				}
				seen[d] = true
			}
		}
	}
}

// TestE36cGroups: channels that groups do not divide are an error when the model is
// built, with key and numbers; group counts are never changed (diffusers #410,
// conditional-flow-matching #161, icenet-mp #277).
func TestE36cGroups(t *testing.T) {
	for _, tc := range []struct {
		channels []int
		groups   int
		want     []string // nil: builds
	}{
		{[]int{31, 64}, 32, []string{"block_out_channels", "31", "32", "norm_num_groups"}},
		{[]int{48, 64}, 32, []string{"block_out_channels", "48", "32", "norm_num_groups"}},
		{[]int{64, 48}, 32, []string{"block_out_channels[1]", "48", "32"}},
		{[]int{48, 96}, 16, nil},
	} {
		c := tinyConfig()
		c.BlockOutChannels, c.NormNumGroups, c.AttentionHeadDim = tc.channels, tc.groups, 0
		m, err := unet.New(c, 1)
		if tc.want != nil {
			wantError(t, fmt.Sprint(tc.channels), err, tc.want...)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := m.Config().NormNumGroups; g != tc.groups {
			t.Errorf("%v: %d groups, want %d", tc.channels, g, tc.groups)
		}
	}
}

// TestE36cOddSizes: pictures whose sides two does not divide keep their size through
// two levels of halving, 13 to 7 to 4 and 9 to 5 to 3 and back, and every parameter
// gets a finite gradient (diffusers #255, #10039). The gradients themselves are held
// against differences, at the same sizes, by the tests of package unet.
func TestE36cOddSizes(t *testing.T) {
	c := tinyConfig()
	c.BlockOutChannels = []int{2, 4, 4}
	c.DownBlockTypes = []string{unet.DownBlock2D, unet.DownBlock2D, unet.AttnDownBlock2D}
	c.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D, unet.UpBlock2D}
	m, err := unet.New(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{13, 9}, {12, 12}, {1, 1}, {5, 17}, {2, 3}} {
		shape := []int{2, 1, size[0], size[1]}
		n := 2 * size[0] * size[1]
		x := make([]float32, n)
		framework.NewStream(1, 0, 0, "picture").FillNorm(x)
		hooks := 0
		tape := framework.NewTape(framework.WithGradHook(func(p *framework.Param, g dtype.Buffer) error {
			hooks++
			for i, v := range g.F32 {
				if v-v != 0 {
					return fmt.Errorf("gradient %d is %v", i, v)
				}
			}
			return nil
		}))
		tape.SetSample(framework.Sample{Seed: 1, Samples: []int{0, 1}, Train: true})
		y, err := m.Forward(tape, tape.Input(shape, x), []int{3, 700})
		if err != nil {
			t.Fatalf("%v: %v", size, err)
		}
		if !slices.Equal(y.Shape(), shape) {
			t.Errorf("%v: output of shape %v", shape, y.Shape())
		}
		if err := tape.Backward(tape.MSELoss(y, tape.Constant(shape, make([]float32, n))), 1); err != nil {
			t.Errorf("%v: %v", size, err)
		}
		if hooks != len(m.Params()) {
			t.Errorf("%v: %d gradients of %d parameters", size, hooks, len(m.Params()))
		}
	}
}

// wrongChannels feeds pictures of three channels to a model that wants another
// number.
type wrongChannels struct{ *unet.UNet2DModel }

func (w wrongChannels) Loss(t *framework.Tape, _, _, _, _ int) (*framework.Tensor, error) {
	y, err := w.Forward(t, t.Input([]int{1, 3, 4, 4}, make([]float32, 48)), []int{1})
	if err != nil {
		return nil, err
	}
	return t.MSELoss(y, t.Constant(y.Shape(), make([]float32, y.Len()))), nil
}

// TestE36cChannels: a model and pictures that do not fit are an error with both
// numbers at the first batch, before any gradient is sent.
func TestE36cChannels(t *testing.T) {
	out, errs := modelTraining{cfg: config(func(c *zero.Config) { c.ZeroOptimization.Stage = 2 }), world: 2, build: func() (network, error) {
		c := tinyConfig()
		c.InChannels = 4
		m, err := unet.New(c, 1)
		return wrongChannels{m}, err
	}}.run(t)
	wantErrors(t, errs, "3 channels", "in_channels = 4")
	for r := range 2 {
		if n := len(sentSizes(out.gates.Log(r))); n != 0 {
			t.Errorf("rank %d sent %d buckets", r, n)
		}
	}
	m, err := unet.New(tinyConfig(), 1)
	if err != nil {
		t.Fatal(err)
	}
	tape := framework.NewTape()
	_, err = m.Forward(tape, tape.Input([]int{2, 1, 4, 4}, make([]float32, 32)), []int{1})
	wantError(t, "two pictures, one timestep", err, "1 timesteps", "2 images")
}
