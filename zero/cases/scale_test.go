package cases

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
	"github.com/zerogap/zerogap/zero/engine"
)

// Section C: loss scale and schedule.

// TestE14ScaleOfTheStep: the scale that multiplied this step's losses is what its
// gradients, norm and clipping are divided by, though the scale changes in every
// step, up and down (DeepSpeed #2686).
func TestE14ScaleOfTheStep(t *testing.T) {
	for _, clip := range []float64{0, 1} {
		for _, accum := range []int{1, 4} {
			for _, cfg := range allConfigs(func(c *zero.Config) {
				c.GradientAccumulationSteps = accum
				c.GradientClipping = clip
				c.FP16.Enabled, c.FP16.InitialScalePower, c.FP16.LossScaleWindow, c.FP16.Hysteresis = true, 4, 1, 1
			}) {
				out := training{cfg: cfg, world: 2, sizes: []int{4}, steps: 6, grad: func(s, _, _, i int) float32 {
					if s == 3 {
						return inf
					}
					return []float32{2, 0, 0, 0}[i]
				}}.must(t)
				scale := 16.0
				moved := 0.0
				for s, r := range out.results {
					what := fmt.Sprintf("step %d, clip %g", s+1, clip)
					want(t, what+": scale of the step", r.LossScale, scale)
					if s == 3 {
						scale /= 2
						want(t, what+": next scale", r.NextLossScale, scale)
						continue
					}
					scale *= 2
					want(t, what+": next scale", r.NextLossScale, scale)
					want(t, what+": norm", r.Norm, 2, mistake{1, "divided by the doubled scale"}, mistake{4, "divided by the halved scale"}, mistake{2 * r.LossScale, "not unscaled"})
					moved += 2
					if clip == 0 {
						want(t, what+": weight", -float64(out.weights[s][0]), moved)
					} else {
						near(t, what+": weight", -float64(out.weights[s][0]), moved/2, 0.01)
					}
				}
			}
		}
	}
}

// TestE14Engine: the same where the engine multiplies the loss: a linear model in
// fp16 whose scale doubles in every step has a constant norm.
func TestE14Engine(t *testing.T) {
	cfg := config(func(c *zero.Config) {
		c.FP16.Enabled, c.FP16.InitialScalePower, c.FP16.LossScaleWindow = true, 3, 1
		c.ZeroOptimization.Stage = 2
	})
	out := modelTraining{cfg: cfg, world: 2, steps: 5, build: func() (network, error) {
		return newSharing(1, 1, framework.ModeNone, "", func(int, int, int, int) float32 { return 2 }), nil
	}}.must(t)
	for s, r := range out.results {
		want(t, fmt.Sprintf("step %d: norm", s+1), r.Norm, 2, mistake{1, "divided by the doubled scale"})
		want(t, "scale", r.LossScale, math.Ldexp(8, s))
		want(t, "loss", r.Loss, 0.25, mistake{0.25 * r.LossScale, "the loss is reported multiplied by its scale"})
	}
}

// TestE21LossScale: the path of a dynamic loss scale. Growth comes at the last good
// step of a window. O is an overflow, n a good step (DeepSpeed #3008, #697, #4986,
// #138, DeepSpeedExamples #418, apex #834).
func TestE21LossScale(t *testing.T) {
	type setting = func(*zero.FP16)
	for _, tc := range []struct {
		name   string
		set    setting
		steps  string
		scales []float64
		lines  []string // of the skipped steps
		err    bool
	}{
		{"window 2, hysteresis 2", func(f *zero.FP16) { f.InitialScalePower, f.LossScaleWindow, f.Hysteresis, f.MinLossScale = 4, 2, 2, 1 },
			"OOOnnnnO", []float64{16, 8, 4, 4, 8, 8, 16, 16},
			[]string{"16 -> 16, hysteresis left 1", "16 -> 8, hysteresis left 1", "8 -> 4, hysteresis left 1", "16 -> 16, hysteresis left 1"}, false},
		{"down to the minimum", func(f *zero.FP16) { f.InitialScalePower, f.Hysteresis = 4, 2 },
			"OOOOOO", []float64{16, 8, 4, 2, 1, 1}, nil, true},
		{"a higher minimum", func(f *zero.FP16) { f.InitialScalePower, f.Hysteresis, f.MinLossScale = 4, 1, 6 },
			"OOO", []float64{8, 6, 6}, nil, true},
		{"enabled alone", func(*zero.FP16) {}, "nO", []float64{65536, 65536}, []string{"65536 -> 65536, hysteresis left 1"}, false},
		{"static", func(f *zero.FP16) { f.LossScale = 128 }, "nOOn", []float64{128, 128, 128, 128}, nil, false},
	} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) {
				c.FP16.Enabled = true
				tc.set(&c.FP16)
				c.ZeroOptimization.Stage = stage
			})
			out, errs := training{cfg: cfg, world: 2, sizes: []int{3}, steps: len(tc.steps), grad: func(s, _, r, _ int) float32 {
				if tc.steps[s] == 'O' && r == 1 {
					return inf
				}
				return 0x1p-16
			}}.run(t)
			if tc.err {
				wantErrors(t, errs, "lowest loss scale", "fp16.min_loss_scale", fmt.Sprint(cfg.FP16.MinLossScale))
			} else if err := errors.Join(errs...); err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			var scales []float64
			var lines []string
			for _, r := range out.results {
				scales = append(scales, r.NextLossScale)
				if r.Skip != nil {
					lines = append(lines, r.Skip.String())
				}
			}
			if !slices.Equal(scales, tc.scales) {
				t.Errorf("%s: %s gives scales %v, want %v", tc.name, tc.steps, scales, tc.scales)
			}
			for k, line := range tc.lines {
				if k >= len(lines) || !strings.Contains(lines[k], line) {
					t.Errorf("%s: log %q, want %q in line %d", tc.name, lines, line, k)
				}
			}
			if tc.name == "static" && (out.results[1].Applied || !out.results[3].Applied) {
				t.Error("a static scale: the overflow was applied, or the good step after it was not")
			}
		}
	}
}

// overflowing is a network of one weight whose first steps overflow.
type overflowing struct {
	w    *framework.Param
	bad  int
	rate float32
}

func (o overflowing) Params() []*framework.Param { return []*framework.Param{o.w} }

func (o overflowing) Loss(t *framework.Tape, s, _, _, _ int) (*framework.Tensor, error) {
	x := o.rate
	if s < o.bad {
		x = inf
	}
	return linearLoss(t, t.Linear(t.Input([]int{1, 1}, []float32{x}), o.w.Value, nil)), nil
}

// TestE23Schedule: the schedule counts applied steps: skipped ones, ranks and
// accumulation do not move it, and the rate can be read before the first step
// (transformers #10362, #11144, #10330, accelerate #2926, #995).
func TestE23Schedule(t *testing.T) {
	schedule := zero.WarmupLR{Warmup: zero.Warmup{NumSteps: 4, Type: zero.WarmupLinear}, MaxLR: 0.1}
	right := []float64{0, 0.025, 0.05, 0.075, 0.1, 0.1}
	for _, skipped := range []int{0, 2} {
		for _, world := range []int{1, 4} {
			for _, accum := range []int{1, 4} {
				cfg := config(func(c *zero.Config) {
					c.GradientAccumulationSteps = accum
					c.BF16.Enabled = true
					c.ZeroOptimization.Stage = 2
				})
				out := modelTraining{cfg: cfg, world: world, steps: len(right) + skipped, schedule: schedule, build: func() (network, error) {
					return overflowing{framework.NewParam("w", []float32{1}, 1, 1), skipped, 1}, nil
				}}.must(t)
				var rates []float64
				for _, r := range out.results {
					if r.Applied {
						rates = append(rates, r.LR)
					} else if r.LR != 0 {
						t.Errorf("a skipped step moved the rate to %v", r.LR)
					}
				}
				if len(rates) != len(right) {
					t.Fatalf("%d steps were applied, want %d", len(rates), len(right))
				}
				for s, lr := range right {
					near(t, fmt.Sprintf("world %d, accumulation %d, %d skipped: rate of applied step %d", world, accum, skipped, s+1), rates[s], lr, 1e-15)
				}
			}
		}
	}
	_, errs := onRanks(t, 1, gated.Options{}, nil, func(c comm.Communicator) error {
		net := overflowing{framework.NewParam("w", []float32{1}, 1, 1), 0, 1}
		e, err := engine.New(context.Background(), net, config(nil), zero.Constant{Rate: 0.25}, zero.SGD{}, c)
		if err != nil {
			return err
		}
		defer e.Close()
		want(t, "rate before the first step", e.LR(), 0.25)
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
