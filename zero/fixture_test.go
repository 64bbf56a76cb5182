package zero

import (
	"fmt"
	"math"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// oracle is the exact result on F1, from a float64 program of one process.
var oracle = []struct {
	world, accum int
	norm         float64
	mean         [8]float64 // at the indices of oracleAt
}{
	{1, 1, 170.114667210, [8]float64{-8, 0, 7, 3, -7, -1, 3, 5}},
	{2, 1, 127.553910171, [8]float64{-6.5, 1.5, 0, 4.5, -5.5, 0.5, 4.5, 6.5}},
	{3, 1, 281.781830500, [8]float64{-15, 9, -4, 1, -12, 6, 1, 7}},
	{4, 1, 63.783324623, [8]float64{-3.5, 0.25, -1.25, -1, -2.5, 3.5, -1, 1}},
	{1, 4, 50.604471146, [8]float64{-0.5, -1, 1.75, 2, 0.5, -2, 2, -0.25}},
	{2, 4, 28.140551256, [8]float64{-1.125, 0.5, 1.125, 1.375, -0.125, -0.5, 1.375, 1.25}},
	{3, 4, 60.070791571, [8]float64{-1, 1.75, 1.5, 2.25, -2.25, -1.25, 2.25, -0.25}},
	{4, 4, 10.626838076, [8]float64{-0.25, 0.3125, -0.125, 0.125, -0.3125, 0.375, 0.125, 0}},
}

var oracleAt = [8]int{0, 6, 7, 1007, 1008, 1072, 1075, 1204}

// TestFixture: on exact gradients every way to run gives the oracle's weights,
// bit for bit, and one and the same norm.
func TestFixture(t *testing.T) {
	for _, want := range oracle {
		t.Run(fmt.Sprintf("world %d, accumulation %d", want.world, want.accum), func(t *testing.T) {
			first := math.NaN()
			for k, cfg := range allWays(want.accum) {
				if testing.Short() && k%4 != 0 {
					continue
				}
				tr := trial{cfg: cfg, world: want.world, sizes: fixture, steps: 1, lr: 1, grad: exactGrad(want.world)}
				out := tr.must(t)
				checkFixture(t, cfg, out, want.norm, want.mean)
				if norm := out.results[0].Norm; math.IsNaN(first) {
					first = norm
				} else if math.Float64bits(first) != math.Float64bits(norm) {
					t.Fatalf("norm %v, another way %v: %+v", norm, first, cfg)
				}
			}
		})
	}
}

func checkFixture(t *testing.T, cfg Config, out outcome, norm float64, mean [8]float64) {
	t.Helper()
	if got := out.results[0].Norm; math.Abs(got-norm) > 1e-7 {
		t.Fatalf("norm %v, want %v: %+v", got, norm, cfg)
	}
	for k, i := range oracleAt {
		if got := float64(out.values[0][i]); got != -mean[k] {
			t.Fatalf("weight %d is %v, want %v: %+v", i, got, -mean[k], cfg)
		}
	}
}

// allWays is every knob that must not matter, on exact gradients.
func allWays(accum int) []Config {
	var all []Config
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			for k, bucket := range []int{1, 7, 67, 100, 130, 131, 1001, 1204, 1205, 1206, 5e8} {
				if bucket < 67 && accum > 1 {
					continue // thousands of collectives that one micro-step has shown
				}
				for j, wire := range []string{"fp32", "bf16", "fp16"} {
					all = append(all, config(func(c *Config) {
						c.GradientAccumulationSteps = accum
						c.CommunicationDataType = wire
						c.ZeroOptimization.Stage = stage
						c.ZeroOptimization.OverlapComm = overlap
						c.ZeroOptimization.ReduceBucketSize = bucket
						c.ZeroOptimization.AllgatherBucketSize = []int{5e8, 100, 1}[(k+j)%3]
						c.BF16.Enabled = (k+j)%2 == 0 // the weights -mean are exact in bf16
					}))
				}
			}
		}
	}
	return all
}

// TestFixtureSteps: nothing survives a step. With a learning rate of 0 and
// constant data the norm has the same bits at every step, after a skipped step
// too, in every format.
func TestFixtureSteps(t *testing.T) {
	for stage := range 3 {
		for _, model := range []string{"fp32", "bf16", "fp16"} {
			for _, poison := range []bool{false, true} {
				cfg := config(func(c *Config) {
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.ReduceBucketSize = 100
					c.ZeroOptimization.OverlapComm = true
					c.FP16.Enabled, c.FP16.LossScale = model == "fp16", 1024
					c.BF16.Enabled = model == "bf16"
				})
				scale := float32(1)
				if cfg.FP16.Enabled {
					scale = 1024
				}
				exact := exactGrad(2)
				tr := trial{cfg: cfg, world: 2, sizes: fixture, steps: 5, grad: func(s, m, r, i int) float32 {
					if poison && s == 2 && r == 1 && i == 700 {
						return float32(math.Inf(1))
					}
					return scale * exact(s, m, r, i)
				}}
				for s, r := range tr.must(t).results {
					if skipped := poison && s == 2; r.Applied == skipped {
						t.Fatalf("stage %d, %s: step %d applied %v", stage, model, s+1, r.Applied)
					} else if !skipped && math.Abs(r.Norm-127.553910171) > 1e-6 {
						t.Fatalf("stage %d, %s: step %d has norm %v", stage, model, s+1, r.Norm)
					}
				}
			}
		}
	}
}

// TestAccumulationFormat: small contributions reach an fp32 accumulator in every
// stage and at every world size, and are lost in a 16-bit one, which is what the
// key asks for.
func TestAccumulationFormat(t *testing.T) {
	for _, tc := range []struct {
		model, accum string
		small        float64
		want         float64
	}{
		{"bf16", "fp32", 1.0 / 512, 0.0643310546875},
		{"bf16", "", 1.0 / 512, 0.0643310546875},
		{"bf16", "bf16", 1.0 / 512, 0.0625},
		{"fp16", "fp32", 1.0 / 4096, 1.003662109375 / 16},
		{"fp16", "fp16", 1.0 / 4096, 1.0 / 16},
	} {
		for stage := range 3 {
			for _, world := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s in %q, stage %d, world %d", tc.model, tc.accum, stage, world), func(t *testing.T) {
					cfg := config(func(c *Config) {
						c.GradientAccumulationSteps = 16
						c.DataTypes.GradAccumDType = tc.accum
						c.ZeroOptimization.Stage = stage
						c.BF16.Enabled, c.FP16.Enabled, c.FP16.LossScale = tc.model == "bf16", tc.model == "fp16", 1
					})
					out := trial{cfg: cfg, world: world, sizes: []int{1}, steps: 1, lr: 1, grad: func(_, m, _, _ int) float32 {
						if m == 0 {
							return 1
						}
						return float32(tc.small)
					}}.must(t)
					if got := -float64(out.master[0]); got != tc.want {
						t.Errorf("mean %v, want %v", got, tc.want)
					}
				})
			}
		}
	}
}

// TestMicroStepsCounted: no micro-batch of an accumulation is dropped, doubled
// or only local, in the first step and in later ones.
func TestMicroStepsCounted(t *testing.T) {
	for stage := range 3 {
		cfg := config(func(c *Config) {
			c.GradientAccumulationSteps = 4
			c.ZeroOptimization.Stage = stage
		})
		tr := trial{cfg: cfg, world: 2, sizes: []int{1, 5}, steps: 3, lr: 1,
			grad: func(_, m, r, i int) float32 {
				if i > 0 {
					return 8 // p1, only in micro-step 1
				}
				return float32(4*r + m + 1)
			},
			order: func(_, m, _ int) []int {
				if m == 1 {
					return []int{1, 0}
				}
				return []int{0}
			}}
		for s, v := range tr.must(t).values {
			if v[0] != -4.5*float32(s+1) || v[1] != -2*float32(s+1) {
				t.Errorf("stage %d: after step %d the weights are %v", stage, s+1, v[:2])
			}
		}
	}
}

// TestSumOp: gradient_allreduce_op "sum" divides by nothing.
func TestSumOp(t *testing.T) {
	cfg := config(func(c *Config) {
		c.GradientAllreduceOp = OpSum
		c.GradientAccumulationSteps = 2
		c.ZeroOptimization.Stage = 2
	})
	out := trial{cfg: cfg, world: 2, sizes: []int{3}, steps: 1, lr: 1, grad: func(_, m, r, _ int) float32 { return float32(1 + 2*m + 4*r) }}.must(t)
	if want := float32(1 + 3 + 5 + 7); out.master[0] != -want {
		t.Errorf("sum %v, want %v", -out.master[0], want)
	}
}

// TestOrderOfSum: one element whose rank values are 256, 1, 1, 1 in bf16 has the
// mean 64.75 wherever it lies in whatever bucket.
func TestOrderOfSum(t *testing.T) {
	for _, bucket := range []int{1, 3, 1000} {
		for _, at := range []int{0, 1, 500, 999} {
			cfg := config(func(c *Config) {
				c.BF16.Enabled = true
				c.ZeroOptimization.Stage = 2
				c.ZeroOptimization.ReduceBucketSize = bucket
			})
			out := trial{cfg: cfg, world: 4, sizes: []int{1000}, steps: 1, lr: 1, grad: func(_, _, r, i int) float32 {
				switch {
				case i != at:
					return 0
				case r == 0:
					return 256
				}
				return 1
			}}.must(t)
			if got := -out.master[at]; got != 64.75 {
				t.Errorf("bucket %d, offset %d: %v, want 64.75", bucket, at, got)
			}
		}
	}
}

// TestNorm: the norm is the whole gradient's, each element once, on all ranks;
// clipping scales by it, and a coefficient of 1 leaves bits alone.
func TestNorm(t *testing.T) {
	grad := func(_, _, _, i int) float32 { return []float32{3, 0, 0, 4}[i] }
	for stage := range 3 {
		for _, world := range []int{1, 2, 4} {
			for _, clip := range []float64{0, 1, 5.1} {
				cfg := config(func(c *Config) { c.GradientClipping = clip; c.ZeroOptimization.Stage = stage })
				out := trial{cfg: cfg, world: world, sizes: []int{2, 2}, steps: 1, lr: 1, grad: grad}.must(t)
				if got := out.results[0].Norm; got != 5 {
					t.Errorf("stage %d, world %d: norm %v, want 5", stage, world, got)
				}
				want := []float32{-3, 0, 0, -4}
				if clip == 1 {
					c := 1 / (5 + 1e-6)
					want = []float32{-float32(3 * c), 0, 0, -float32(4 * c)}
				}
				for i, w := range want {
					if got := out.master[i]; got != w {
						t.Errorf("stage %d, world %d, clip %v: weight %d is %v, want %v", stage, world, clip, i, got, w)
					}
				}
			}
		}
	}
}

// TestNormOfLargeGradients: finite gradients have a finite norm.
func TestNormOfLargeGradients(t *testing.T) {
	out := trial{cfg: config(nil), world: 1, sizes: []int{100}, steps: 1, lr: 0, grad: func(_, _, _, _ int) float32 { return 1e20 }}.must(t)
	if r := out.results[0]; !r.Applied || math.Abs(r.Norm/1e21-1) > 1e-6 {
		t.Errorf("norm %v, applied %v; want 1e21, applied", r.Norm, r.Applied)
	}
}

// TestUnusedParameters: a parameter without a gradient counts as zero, on one
// rank or on all; nothing of an earlier step comes back.
func TestUnusedParameters(t *testing.T) {
	for stage := range 3 {
		for _, bucket := range []int{4, 100} {
			for _, overlap := range []bool{false, true} {
				cfg := config(func(c *Config) {
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.ReduceBucketSize = bucket
					c.ZeroOptimization.OverlapComm = overlap
				})
				for _, tc := range []struct {
					name  string
					order func(s, m, r int) []int
					want  [][2]float32 // of parameters 0 and 1, after each step
				}{
					{"by turns", func(s, _, _ int) []int { return []int{s % 2} }, [][2]float32{{-2, 0}, {-2, -2}, {-4, -2}}},
					{"by rank", func(_, _, r int) []int { return []int{r} }, [][2]float32{{-1, -1}, {-2, -2}, {-3, -3}}},
					{"never on rank 1", func(_, _, r int) []int { return [][]int{{0, 1}, {}}[r] }, [][2]float32{{-1, -1}, {-2, -2}, {-3, -3}}},
					{"once", func(s, _, _ int) []int { return [][]int{{0, 1}, {0}, {0}}[s] }, [][2]float32{{-2, -2}, {-4, -2}, {-6, -2}}},
				} {
					out := trial{cfg: cfg, world: 2, sizes: []int{5, 5}, steps: 3, lr: 1, order: tc.order, grad: func(_, _, _, _ int) float32 { return 2 }}.must(t)
					for s, want := range tc.want {
						if got := [2]float32{out.values[s][4], out.values[s][5]}; got != want {
							t.Errorf("stage %d, bucket %d, overlap %v, %s: step %d gives %v, want %v", stage, bucket, overlap, tc.name, s+1, got, want)
						}
					}
				}
			}
		}
	}
}

// TestUnusedRefused: with ignore_unused_parameters = false every rank gets an
// error with the parameter's name.
func TestUnusedRefused(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		cfg := config(func(c *Config) {
			c.ZeroOptimization.Stage = 2
			c.ZeroOptimization.OverlapComm = overlap
			c.ZeroOptimization.IgnoreUnusedParameters = false
		})
		tr := trial{cfg: cfg, world: 2, sizes: []int{5, 5, 2}, steps: 2, lr: 1, grad: func(_, _, _, _ int) float32 { return 2 }}
		tr.must(t)
		tr.order = func(s, _, r int) []int {
			if s == 1 && r == 1 {
				return []int{0, 2}
			}
			return []int{0, 1, 2}
		}
		_, errs := tr.run(t)
		for _, err := range errs {
			wantError(t, err, `"p1" on rank 1`, "ignore_unused_parameters")
		}
	}
}

// TestFrozen: a frozen parameter is in no layout and keeps its value.
func TestFrozen(t *testing.T) {
	for stage := range 3 {
		cfg := config(func(c *Config) { c.ZeroOptimization.Stage = stage })
		tr := trial{cfg: cfg, world: 4, sizes: fixture, frozen: map[int]bool{2: true}, steps: 1, lr: 1, grad: exactGrad(4), init: func(i int) float32 { return float32(i) }}
		out := tr.must(t)
		if want := math.Sqrt(689.5); math.Abs(out.results[0].Norm-want) > 1e-9 || out.plan.Elements != 204 {
			t.Errorf("stage %d: norm %v of %d elements, want %v of 204", stage, out.results[0].Norm, out.plan.Elements, want)
		}
	}
}

// TestLoadFromFP32Weights: master weights are the initial ones, or their rounding
// to the parameter format.
func TestLoadFromFP32Weights(t *testing.T) {
	const w = 1 + 1.0/1024
	for _, exact := range []bool{true, false} {
		cfg := config(func(c *Config) { c.BF16.Enabled = true; c.ZeroOptimization.LoadFromFP32Weights = exact })
		out := trial{cfg: cfg, world: 2, sizes: []int{3}, steps: 1, init: func(int) float32 { return w }, grad: func(_, _, _, _ int) float32 { return 0 }}.must(t)
		want := float32(w)
		if !exact {
			want = dtype.Round(dtype.BF16, w)
		}
		if out.master[1] != want {
			t.Errorf("load_from_fp32_weights = %v: master %v, want %v", exact, out.master[1], want)
		}
	}
}
