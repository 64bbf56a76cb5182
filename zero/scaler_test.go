package zero

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// TestLossScale follows DeepSpeed's rules: "scale/overflows left" after each step
// (O overflow, n good).
func TestLossScale(t *testing.T) {
	fp16 := func(change func(*FP16)) FP16 {
		f := DefaultConfig().FP16
		f.Enabled = true
		change(&f)
		return f
	}
	for _, tc := range []struct {
		name  string
		cfg   FP16
		steps string
		want  string
		err   bool
	}{
		{"hysteresis, then halving, then growth", fp16(func(f *FP16) { f.InitialScalePower, f.LossScaleWindow = 4, 2 }),
			"OOOnnnnO", "16/1 8/1 4/1 4/1 8/2 8/2 16/2 16/1", false},
		{"down to the lowest", fp16(func(f *FP16) { f.InitialScalePower = 4 }), "OOOOOO", "16/1 8/1 4/1 2/1 1/1 1/1", true},
		{"a higher floor", fp16(func(f *FP16) { f.InitialScalePower, f.MinLossScale, f.Hysteresis = 4, 6, 1 }), "OOO", "8/1 6/1 6/1", true},
		{"refill at every good step", fp16(func(f *FP16) { f.InitialScalePower, f.ConsecutiveHysteresis = 4, true }), "OnOnO", "16/1 16/2 16/1 16/2 16/1", false},
		{"no refill before growth", fp16(func(f *FP16) { f.InitialScalePower = 4 }), "OnOnO", "16/1 16/1 8/1 8/1 4/1", false},
		{"an overflow restarts the window", fp16(func(f *FP16) { f.InitialScalePower, f.LossScaleWindow = 4, 3 }), "nnOnnn", "16/2 16/2 16/1 16/1 16/1 32/2", false},
		{"defaults", fp16(func(*FP16) {}), "n", "65536/2", false},
		{"static", fp16(func(f *FP16) { f.LossScale = 128 }), "nOOOn", "128/2 128/2 128/2 128/2 128/2", false},
		{"not fp16", FP16{Hysteresis: 2}, "nOn", "1/2 1/2 1/2", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScaler(tc.cfg)
			var got []string
			var err error
			for _, step := range tc.steps {
				err = s.update(step == 'O')
				got = append(got, fmt.Sprintf("%g/%d", s.scale, s.left))
			}
			if text := strings.Join(got, " "); text != tc.want {
				t.Errorf("%s gives %s, want %s", tc.steps, text, tc.want)
			}
			if tc.err {
				wantError(t, err, "fp16.min_loss_scale", fmt.Sprint(tc.cfg.MinLossScale))
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLossScaleInTraining: the scale that multiplied this step's loss unscales
// this step's gradients, also in the step that changes it; all ranks stop at the
// lowest scale.
func TestLossScaleInTraining(t *testing.T) {
	cfg := config(func(c *Config) {
		c.FP16 = FP16{Enabled: true, InitialScalePower: 4, LossScaleWindow: 1, Hysteresis: 1, MinLossScale: 1}
		c.ZeroOptimization.Stage = 2
		c.GradientClipping = 100
	})
	scale := [2]float32{16, 16}
	tr := trial{cfg: cfg, world: 2, sizes: []int{3, 2}, steps: 5, lr: 1}
	tr.grad = func(s, m, r, i int) float32 {
		if s > 0 && i == 3 { // first element asked for in a step: the scale has doubled
			scale[r] *= 2
		}
		return 0.5 * scale[r]
	}
	out := tr.must(t)
	for s, r := range out.results {
		if want := math.Sqrt(5 * 0.25); r.Norm != want || r.LossScale != math.Ldexp(16, s) || r.NextLossScale != 2*r.LossScale {
			t.Errorf("step %d: norm %v, scale %v -> %v; want %v, %v, doubled", s+1, r.Norm, r.LossScale, r.NextLossScale, want, math.Ldexp(16, s))
		}
		if out.values[s][0] != float32(-0.5*float64(s+1)) {
			t.Errorf("step %d: weight %v", s+1, out.values[s][0])
		}
	}

	tr.grad = func(_, _, r, _ int) float32 { return float32(math.Inf(1 - 2*r)) }
	tr.steps = 9
	out, errs := tr.run(t)
	for _, err := range errs {
		wantError(t, err, "lowest loss scale", "fp16.min_loss_scale", "step 5")
	}
	if got, want := out.results[0].Skip.String(), "loss scale 16 -> 8, hysteresis left 1"; !strings.HasSuffix(got, want) {
		t.Errorf("log line %q does not end in %q", got, want)
	}
}

// TestGradientRead: the division is the correctly rounded quotient, exact for
// powers of two, and a coefficient of 1 leaves bits alone.
func TestGradientRead(t *testing.T) {
	src := []float32{1, 3, -7, 1e-40, math.MaxFloat32, 0.1, float32(math.Copysign(0, -1)), 0x1p-149}
	for _, div := range []float64{1, 2, 3, 12, 1024, 65536 * 3, 0.5, 0.75, 0x1p20, 1e-3} {
		for _, clip := range []float64{1, 0.3} {
			got := make([]float32, len(src))
			gradient{div, clip}.read(got, bufferOf("fp32", src))
			for i, x := range src {
				want := float32(float64(x) / div)
				if clip != 1 {
					want = float32(float64(want) * clip)
				}
				if math.Float32bits(got[i]) != math.Float32bits(want) {
					t.Errorf("%v / %v * %v = %v, want %v", x, div, clip, got[i], want)
				}
			}
		}
	}
}

func bufferOf(format string, x []float32) dtype.Buffer {
	d, err := dtype.Parse(format)
	if err != nil {
		panic(err)
	}
	b := dtype.Make(d, len(x))
	kernel.Round(b, x)
	return b
}
