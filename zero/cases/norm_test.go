package cases

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// Section C: norm, clipping, non-finite gradients.

// TestE15GlobalNorm: the norm is the whole mean gradient's, each element once,
// before clipping, on every rank (PyTorch #72548, #170862, #88621, torchtitan #766,
// FairScale #517, ms-swift #8341).
func TestE15GlobalNorm(t *testing.T) {
	grad := func(_, _, _, i int) float32 { return []float32{3, 0, 0, 4}[i] }
	for _, world := range []int{1, 2, 4} {
		for _, clip := range []float64{0, 1, 5.1, 1e9} {
			for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientClipping = clip }) {
				out := training{cfg: cfg, world: world, sizes: []int{2, 2}, grad: grad}.must(t)
				r := out.results[0]
				want(t, fmt.Sprintf("world %d, clip %g: norm", world, clip), r.Norm, 5,
					mistake{3, "only the shard of rank 0 was measured"}, mistake{4, "only the shard of rank 1 was measured"},
					mistake{3.5, "the norms of the ranks were averaged"}, mistake{5 * math.Sqrt2, "everything was counted twice"},
					mistake{10, "gradients were counted once for every rank"}, mistake{1, "the norm was taken after clipping"})
				right := []float32{-3, 0, 0, -4}
				if clip == 1 {
					c := 1 / (5 + 1e-6)
					right = []float32{float32(-3 * c), 0, 0, float32(-4 * c)}
					near(t, "coefficient", r.ClipCoefficient, 0.2, 1e-6)
				} else {
					want(t, fmt.Sprintf("clip %g: coefficient", clip), r.ClipCoefficient, 1)
				}
				if i := firstDifference(right, out.last()); i >= 0 {
					t.Errorf("world %d, clip %g: weights %v, want %v", world, clip, out.last(), right)
				}
			}
		}
	}
}

// TestE15ClipAboveNorm: a limit above the norm leaves every bit alone.
func TestE15ClipAboveNorm(t *testing.T) {
	for stage := range 3 {
		one := func(clip float64) outcome {
			cfg := config(func(c *zero.Config) { c.GradientClipping = clip; c.ZeroOptimization.Stage = stage })
			return training{cfg: cfg, world: 4, sizes: f1, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.01), grad: noise(3, 4)}.must(t)
		}
		free := one(0)
		most := 0.0
		for _, r := range free.results {
			most = max(most, r.Norm)
		}
		if d := sameTraining(free, one(most+1e-5)); d != "" {
			t.Errorf("stage %d: clipping above the norm changes %s", stage, d)
		}
		if d := sameTraining(free, one(most/2)); d == "" {
			t.Errorf("stage %d: clipping below the norm changes nothing", stage)
		}
	}
}

// TestE15Frozen: frozen parameters are in no norm.
func TestE15Frozen(t *testing.T) {
	for _, cfg := range allConfigs(nil) {
		out := training{cfg: cfg, world: 4, sizes: f1, frozen: []int{2}, init: func(i int) float32 { return float32(i % 128) }, grad: exact(4)}.must(t)
		near(t, "norm without p2", out.results[0].Norm, math.Sqrt(689.5), 1e-9)
		if out.plan.Elements != 204 {
			t.Errorf("%d trainable elements, want 204", out.plan.Elements)
		}
		for j, w := range out.all[2] {
			want(t, "frozen weight", float64(w), float64((7+j)%128))
		}
	}
}

// TestE15TiedWeight: a weight has one name, one state and one place in the norm.
// Given twice, by name or by memory, it is an error that names both.
func TestE15TiedWeight(t *testing.T) {
	for name, edit := range map[string]func([]zero.Param){
		"embed": func(p []zero.Param) { p[0].Name, p[1].Name = "embed", "embed" },
		"head":  func(p []zero.Param) { p[0].Name, p[1].Name = "embed", "head" },
	} {
		cfg := config(nil)
		tr := training{cfg: cfg, world: 2, sizes: []int{1, 1}, grad: constant(5), edit: func(p []zero.Param) {
			edit(p)
			if name == "head" {
				p[0].Value = bufferOf(1)
				p[1].Value = p[0].Value
			}
		}}
		_, errs := tr.run(t)
		wantErrors(t, errs, `"embed"`, `"`+name+`"`, "tied weight once")
	}
	for _, cfg := range allConfigs(nil) {
		out := modelTraining{cfg: cfg, world: 2, build: func() (network, error) {
			return newSharing(1, 2, framework.ModeNone, "", func(use, _, _, _ int) float32 { return []float32{2, 3}[use%2] * float32(1-use/99) }), nil
		}}.must(t)
		want(t, "norm of a weight used twice", out.results[0].Norm, 5, mistake{5 * math.Sqrt2, "the tied weight was counted under both names"})
	}
}

// TestE17FiniteGradients: finite gradients have a finite norm, and clipping by it
// makes them neither zero nor NaN (PyTorch #46849).
func TestE17FiniteGradients(t *testing.T) {
	for _, g := range []float32{1e20, 1e30, 1e-20, 1e-30} {
		for _, world := range []int{1, 2} {
			for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientClipping = 1e-35 }) {
				out := training{cfg: cfg, world: world, sizes: []int{60, 40}, grad: constant(g)}.must(t)
				r := out.results[0]
				if !r.Applied {
					t.Fatalf("gradient %g: skipped: %v", g, r.Skip)
				}
				near(t, fmt.Sprintf("norm of a hundred times %g", g), r.Norm/float64(g), 10, 0.05) // bf16 rounds g
				if math.Abs(r.ClipCoefficient*(r.Norm+1e-6)-1e-35) > 1e-50 {
					t.Errorf("gradient %g: coefficient %g", g, r.ClipCoefficient)
				}
				if w := float64(out.last()[0]); w >= 0 && float64(g)*r.ClipCoefficient > 1e-44 || math.IsNaN(w) {
					t.Errorf("gradient %g: clipped to %v", g, -w)
				}
			}
		}
	}
}

// TestE17NonFinite: a non-finite gradient leaves weights and moments untouched, to
// the bit, and the message names step, rank and parameter.
func TestE17NonFinite(t *testing.T) {
	for _, bad := range []float32{inf, -inf, nan} {
		for _, world := range []int{1, 2, 4} {
			for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientClipping = 1 }) {
				clean := noise(5, world)
				tr := training{cfg: cfg, world: world, sizes: []int{3, 4, 5}, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.1), init: func(int) float32 { return 1 }}
				tr.grad = func(s, m, r, i int) float32 {
					if s == 1 && r == world-1 && i == 5 {
						return bad
					}
					return clean(s/2, m, r, i) // step 3 has the gradients of step 2's place
				}
				out := tr.must(t)
				if i := firstDifference(out.weights[0], out.weights[1]); i >= 0 {
					t.Fatalf("%v: the skipped step moved weight %d", bad, i)
				}
				for _, part := range []string{"step 2 skipped", fmt.Sprintf("rank %d", world-1), `"p1"`} {
					if s := out.results[1].Skip.String(); !strings.Contains(s, part) {
						t.Fatalf("log line %q does not contain %q", s, part)
					}
				}
				tr.steps, tr.grad = 2, func(s, m, r, i int) float32 { return clean(s, m, r, i) }
				if i := firstDifference(tr.must(t).weights[1], out.weights[2]); i >= 0 {
					t.Fatalf("%v: after the skipped step the training goes another way", bad)
				}
			}
		}
	}
}

// TestE18NoSentinel: the norm of a dead step is Inf or NaN, never a healthy-looking
// number (DeepSpeed #5347: 1.414..., #7171; LlamaFactory #8004: 1.0).
func TestE18NoSentinel(t *testing.T) {
	for _, bad := range []float32{inf, -inf, nan} {
		for _, check := range []bool{true, false} {
			for _, world := range []int{1, 2, 3} {
				for _, model := range []string{"fp32", "bf16", "fp16"} {
					for stage := range 3 {
						cfg := config(func(c *zero.Config) {
							c.GradientClipping = 1
							c.CheckGradOverflow = check
							c.BF16.Enabled = model == "bf16"
							c.FP16.Enabled, c.FP16.LossScale = model == "fp16", 2
							c.ZeroOptimization.Stage = stage
						})
						out := training{cfg: cfg, world: world, sizes: []int{2, 2}, steps: 3, grad: func(_, _, r, i int) float32 {
							if r == 0 && i == 3 {
								return bad
							}
							return 1
						}}.must(t)
						for s, r := range out.results {
							what := fmt.Sprintf("%v, %s, stage %d, world %d, step %d", bad, model, stage, world, s+1)
							if !math.IsNaN(r.Norm) && !math.IsInf(r.Norm, 1) {
								t.Errorf("%s: norm %v of a gradient that is not finite (1 and 1.414 are sentinels)", what, r.Norm)
							}
							if r.Applied == check {
								t.Errorf("%s: applied %v with check_grad_overflow = %v", what, r.Applied, check)
							}
							if check && r.SkippedSteps != s+1 {
								t.Errorf("%s: %d skipped steps", what, r.SkippedSteps)
							}
						}
					}
				}
			}
		}
	}
}

// TestE19Skip: the second of four batches is infinite: three steps are applied, one
// is skipped whole, and one line says so (DeepSpeed #8415, #8035, #5879).
func TestE19Skip(t *testing.T) {
	for _, model := range []string{"bf16", "fp32"} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) { c.BF16.Enabled = model == "bf16"; c.ZeroOptimization.Stage = stage })
			clean := noise(8, 2)
			tr := training{cfg: cfg, world: 2, sizes: []int{5, 6}, steps: 4, rule: zero.DefaultAdamW(), init: func(i int) float32 { return float32(i) }}
			tr.rate = func(applied int) float64 { return 0.01 * float64(applied+1) }
			tr.grad = func(s, m, r, i int) float32 {
				if s == 1 {
					return inf
				}
				return clean(s-min(1, s/2), m, r, i)
			}
			out := tr.must(t)
			last := out.results[3]
			if last.AppliedSteps != 3 || last.SkippedSteps != 1 || last.Step != 4 {
				t.Errorf("%s, stage %d: %d tried, %d applied, %d skipped", model, stage, last.Step, last.AppliedSteps, last.SkippedSteps)
			}
			var lines []string
			for _, r := range out.results {
				if r.Skip != nil {
					lines = append(lines, r.Skip.String())
				}
			}
			if len(lines) != 1 || !strings.Contains(lines[0], "step 2 skipped") || strings.Contains(lines[0], "\n") {
				t.Errorf("%s, stage %d: log %q", model, stage, lines)
			}
			tr.grad, tr.steps = clean, 3
			if i := firstDifference(tr.must(t).last(), out.last()); i >= 0 {
				t.Errorf("%s, stage %d: weight %d is not that of three clean steps", model, stage, i)
			}
		}
	}
}

// TestE19Limit: when every batch is infinite the training ends, on all ranks, with
// the number of skips and the key of the limit.
func TestE19Limit(t *testing.T) {
	for stage := range 3 {
		cfg := config(func(c *zero.Config) {
			c.BF16.Enabled = true
			c.MaxConsecutiveSkips = 7
			c.ZeroOptimization.Stage = stage
		})
		out, errs := training{cfg: cfg, world: 2, sizes: []int{5}, steps: 50, grad: constant(inf)}.run(t)
		wantErrors(t, errs, "7 steps in a row", "max_consecutive_skips", "step 7")
		if n := len(out.results); n != 7 {
			t.Errorf("stage %d: %d steps, want 7", stage, n)
		}
		// A good step in between starts the count again.
		out, errs = training{cfg: cfg, world: 2, sizes: []int{5}, steps: 20, grad: func(s, _, _, _ int) float32 {
			if s == 6 {
				return 1
			}
			return inf
		}}.run(t)
		wantErrors(t, errs, "7 steps in a row", "step 14")
		if n := len(out.results); n != 14 || !slices.ContainsFunc(out.results, func(r zero.StepResult) bool { return r.Applied }) {
			t.Errorf("stage %d: %d steps, want 14", stage, n)
		}
	}
}

// TestE20OneRank: what one rank alone sees, in an element that it owns or that
// another does, is known to all before anything is written: all skip, with the same
// scale afterwards (ColossalAI #1175, FairScale #565).
func TestE20OneRank(t *testing.T) {
	for _, bad := range []float32{inf, nan} {
		for _, rank := range []int{0, 1} {
			for _, element := range []int{0, 3, 4, 7} { // rank 0 owns 0 to 3
				for _, cfg := range allConfigs(func(c *zero.Config) { c.FP16.Enabled, c.FP16.InitialScalePower, c.FP16.Hysteresis = true, 4, 1 }) {
					out := training{cfg: cfg, world: 2, sizes: []int{8}, steps: 3, grad: func(s, _, r, i int) float32 {
						if s == 1 && r == rank && i == element {
							return bad
						}
						return 1
					}}.must(t)
					for s, right := range []struct {
						applied bool
						scale   float64
					}{{true, 16}, {false, 8}, {true, 8}} {
						if r := out.results[s]; r.Applied != right.applied || r.NextLossScale != right.scale {
							t.Fatalf("%v on rank %d at %d: step %d applied %v, scale %v", bad, rank, element, s+1, r.Applied, r.NextLossScale)
						}
					}
					want(t, "weight", float64(out.last()[0]), -2)
				}
			}
		}
	}
}

// TestE20Extremes: the largest and the smallest fp16 values survive a mean; where
// the accumulators are too small for a sum, the step is skipped, never wrong.
func TestE20Extremes(t *testing.T) {
	for _, accum := range []string{"", "fp32", "fp16"} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) {
				c.FP16.Enabled, c.FP16.LossScale = true, 1
				c.DataTypes.GradAccumDType = accum
				c.ZeroOptimization.Stage = stage
			})
			out := training{cfg: cfg, world: 2, sizes: []int{3}, grad: constant(65504)}.must(t)
			r := out.results[0]
			switch {
			case accum == "fp16" && (r.Applied || out.last()[0] != 0):
				t.Errorf("stage %d: an fp16 sum of 65504 twice: applied %v, weight %v", stage, r.Applied, out.last()[0])
			case accum == "fp16":
				if s := r.Skip.String(); !strings.Contains(s, "sum of finite gradients") {
					t.Errorf("log line %q", s)
				}
			default:
				want(t, "mean of 65504 twice", -float64(out.last()[0]), 65504, mistake{32752, "one rank was lost"})
			}
			out = training{cfg: cfg, world: 4, sizes: []int{3}, grad: constant(0x1p-24)}.must(t)
			want(t, "mean of 2^-24 four times", -float64(out.last()[0]), 0x1p-24, mistake{0, "divided in fp16 before the sum"})
		}
	}
}

// TestE20NobodyWaits: ranks that disagree about an overflow do not go separate ways
// into different collectives, however late one of them is.
func TestE20NobodyWaits(t *testing.T) {
	cfg := config(func(c *zero.Config) {
		c.BF16.Enabled = true
		c.ZeroOptimization.Stage = 2
		c.ZeroOptimization.OverlapComm = true
	})
	var kinds [2][]comm.Kind
	tr := training{cfg: cfg, world: 2, sizes: f1, steps: 2, grad: func(s, _, r, i int) float32 {
		if s == 0 && r == 1 && i == 0 {
			return nan
		}
		return 1
	}, gates: gated.Options{Poison: gradientBucket}}
	out := tr.must(t)
	for r := range 2 {
		for _, e := range out.gates.Log(r) {
			kinds[r] = append(kinds[r], e.Kind)
		}
	}
	if !slices.Equal(kinds[0], kinds[1]) {
		t.Errorf("rank 0 ran %v, rank 1 %v", kinds[0], kinds[1])
	}
	if out.results[0].Applied || !out.results[1].Applied {
		t.Error("the first step should be skipped, the second applied")
	}
}
