package cases

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// Section B: which gradients are counted, and how often.

// TestE09UnusedParameters: a parameter without a gradient in a step, on one rank or
// on all, counts as zero there; the division is by all ranks; nothing of an earlier
// step comes back; nobody waits (DeepSpeed #777, #1355, #5397, #4948).
func TestE09UnusedParameters(t *testing.T) {
	for _, tc := range []struct {
		name  string
		order func(s, m, r int) []int
		want  [][2]float64 // a and b, after each step
	}{
		{"a, then b", func(s, _, _ int) []int { return []int{s % 2} }, [][2]float64{{-2, 0}, {-2, -2}}},
		{"a on rank 0, b on rank 1", func(_, _, r int) []int { return []int{r} }, [][2]float64{{-1, -1}, {-2, -2}}},
		{"b once, then never", func(s, _, _ int) []int { return [][]int{{0, 1}, {0}, {0}, {0}}[s] }, [][2]float64{{-2, -2}, {-4, -2}, {-6, -2}, {-8, -2}}},
		{"nothing on rank 1", func(_, _, r int) []int { return [][]int{{1, 0}, nil}[r] }, [][2]float64{{-1, -1}, {-2, -2}, {-3, -3}}},
		{"nothing anywhere", func(_, _, _ int) []int { return nil }, [][2]float64{{0, 0}, {0, 0}}},
	} {
		for _, bucket := range []int{4, 100} {
			for _, cfg := range allConfigs(func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = bucket }) {
				out := training{cfg: cfg, world: 2, sizes: []int{5, 5}, steps: len(tc.want), order: tc.order, grad: constant(2)}.must(t)
				for s, right := range tc.want {
					for p, name := range []string{"a", "b"} {
						for i := range 5 {
							want(t, fmt.Sprintf("%s, bucket %d: %s after %d steps", tc.name, bucket, name, s+1), float64(out.weights[s][5*p+i]), right[p],
								mistake{right[p] - 2, "a gradient of an earlier step came back, or only the ranks that used it were counted"})
						}
					}
				}
			}
		}
	}
}

// TestE09Refused: with ignore_unused_parameters = false every rank gets an error
// that names the parameter and the rank; used ones are named nowhere.
func TestE09Refused(t *testing.T) {
	for _, cfg := range allConfigs(func(c *zero.Config) { c.ZeroOptimization.IgnoreUnusedParameters = false }) {
		name := func(p []zero.Param) { p[0].Name, p[1].Name = "layer.used", "layer.unused" }
		tr := training{cfg: cfg, world: 2, sizes: []int{5, 5}, edit: name, steps: 2, grad: constant(2)}
		tr.must(t)
		tr.order = func(s, _, r int) []int {
			if s == 1 && r == 1 {
				return []int{0}
			}
			return []int{1, 0}
		}
		_, errs := tr.run(t)
		wantErrors(t, errs, `"layer.unused" on rank 1`, "ignore_unused_parameters = true")
		for _, err := range errs {
			if errors.Join(err) != nil && containsAny(err.Error(), "layer.used", "on rank 0") {
				t.Errorf("error %q names what was used", err)
			}
		}
	}
}

// TestE09AdamMovesUnused: Adam treats a parameter without a gradient as one with a
// gradient of zero, at every stage and world size: moments decay and move it, and
// weight decay applies.
func TestE09AdamMovesUnused(t *testing.T) {
	var first outcome
	for _, world := range []int{1, 2, 4} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) { c.GradientAccumulationSteps = 4 / world; c.ZeroOptimization.Stage = stage })
			out := training{cfg: cfg, world: world, sizes: []int{5, 5, 5}, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.1),
				init: func(int) float32 { return 1 }, grad: constant(1),
				order: func(s, _, _ int) []int { return [][]int{{0, 1}, {0}, {0}}[s] },
			}.must(t)
			if first.results == nil {
				first = out
			}
			if d := sameTraining(first, out); d != "" {
				t.Fatalf("world %d, stage %d: %s", world, stage, d)
			}
			for s := 1; s < 3; s++ {
				if out.weights[s][5] >= out.weights[s-1][5] {
					t.Errorf("step %d: a parameter with moments and no gradient did not move", s+1)
				}
				// Never used: only the decay of 0.01, at a rate of 0.1, three times.
				near(t, "weight that was never used", float64(out.weights[s][10]), pow(1-0.001, s+1), 1e-6)
			}
		}
	}
}

func pow(x float64, n int) float64 {
	p := 1.0
	for range n {
		p *= x
	}
	return p
}

// TestE10Accumulation: every micro-batch of every rank counts once, in the first
// step and in later ones (DeepSpeed #6550, #545, #1488, #7985, InfiniTrain #213).
func TestE10Accumulation(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4} {
		for _, cfg := range allConfigs(func(c *zero.Config) {
			c.GradientAccumulationSteps = 4
			c.ZeroOptimization.ReduceBucketSize = 67
		}) {
			tr := training{cfg: cfg, world: world, sizes: f1, steps: 3, grad: exact(world)}
			oracleOf(world, 4).check(t, tr, tr.must(t))
		}
	}
}

// TestE10LastMicroBatch: micro-gradients 1 to 4 on rank 0 and 5 to 8 on rank 1.
func TestE10LastMicroBatch(t *testing.T) {
	for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientAccumulationSteps = 4 }) {
		out := training{cfg: cfg, world: 2, sizes: []int{1}, steps: 3, grad: func(_, m, r, _ int) float32 { return float32(1 + m + 4*r) }}.must(t)
		for s, w := range out.weights {
			n := float64(s + 1)
			want(t, fmt.Sprintf("mean in step %d", s+1), -float64(w[0])/n, 4.5,
				mistake{4, "the last micro-batch was added after the reduction, on this rank only"},
				mistake{1.5, "only the last micro-batch was counted"},
				mistake{6, "only the last micro-batch was counted, undivided"},
				mistake{9, "the sum over the ranks was not divided"})
		}
	}
}

// TestE10SomeMicroSteps: a parameter with a gradient in one micro-step of four.
func TestE10SomeMicroSteps(t *testing.T) {
	for at := range 4 {
		for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientAccumulationSteps = 4 }) {
			out := training{cfg: cfg, world: 2, sizes: []int{3, 3}, steps: 2, grad: constant(8), order: func(_, m, _ int) []int {
				if m == at {
					return []int{1, 0}
				}
				return []int{0}
			}}.must(t)
			for s, w := range out.weights {
				want(t, fmt.Sprintf("gradient in micro-step %d only, step %d", at, s+1), -float64(w[3])/float64(s+1), 2,
					mistake{8, "divided by the micro-steps that had one"}, mistake{0, "lost"})
				want(t, "gradient in every micro-step", -float64(w[0])/float64(s+1), 8)
			}
		}
	}
}

// TestE10StepBeforeBoundary: a step that comes too early is an error that changes
// nothing, on every rank alike: the training goes on to the right result.
func TestE10StepBeforeBoundary(t *testing.T) {
	for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientAccumulationSteps = 4 }) {
		_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
			ctx := context.Background()
			o, err := zero.New(ctx, training{sizes: []int{1}}.params(), cfg, c, zero.SGD{})
			if err != nil {
				return err
			}
			defer o.Close()
			for m := range 4 {
				_, err := o.Step(ctx, 1)
				wantError(t, "step", err, fmt.Sprintf("after %d of 4 backwards", m))
				if err := o.GradReady(ctx, 0, []float32{float32(1 + m + 4*c.Rank())}); err != nil {
					return err
				}
				if err := o.EndBackward(ctx); err != nil {
					return err
				}
			}
			wantError(t, "fifth backward", o.GradReady(ctx, 0, []float32{1}), "backward 5", "gradient_accumulation_steps = 4")
			if _, err := o.Step(ctx, 1); err != nil {
				return err
			}
			want(t, "mean", -o.Value(0).At(0), 4.5)
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestE11NothingSurvivesAStep: with a rate of zero and constant data the norm has
// the same bits in every step, also after a skipped one (RamTorch #13, DeepSpeed
// #856, #7839).
func TestE11NothingSurvivesAStep(t *testing.T) {
	var first float64
	for _, model := range []string{"fp32", "bf16", "fp16"} {
		for _, poisoned := range []int{-1, 2} {
			for _, cfg := range allConfigs(func(c *zero.Config) {
				c.BF16.Enabled = model == "bf16"
				c.FP16.Enabled, c.FP16.LossScale = model == "fp16", 1024
				c.ZeroOptimization.ReduceBucketSize = 100
			}) {
				clean := exact(2)
				out := training{cfg: cfg, world: 2, sizes: f1, steps: 5, rate: rate(0), grad: func(s, m, r, i int) float32 {
					if s == poisoned && r == 1 && i == 700 {
						return inf
					}
					return clean(s, m, r, i)
				}}.must(t)
				for s, r := range out.results {
					if s == poisoned {
						if r.Applied {
							t.Fatalf("%s: the step with an infinite gradient was applied", model)
						}
						continue
					}
					if first == 0 {
						first = r.Norm
						near(t, "norm", first, 127.553910171, 1e-6)
					}
					want(t, fmt.Sprintf("%s: norm of step %d", model, s+1), r.Norm, first,
						mistake{float64(s+1) * first, "gradients of earlier steps were not cleared"})
				}
			}
		}
	}
}

// TestE11Scalar: the scalar version, whose wrong values tell what survived.
func TestE11Scalar(t *testing.T) {
	for _, cfg := range allConfigs(nil) {
		out := training{cfg: cfg, world: 2, sizes: []int{1}, steps: 5, rate: rate(0), grad: constant(1)}.must(t)
		for s, r := range out.results {
			want(t, fmt.Sprintf("norm of step %d", s+1), r.Norm, 1,
				mistake{float64(s + 1), "gradients were not cleared"},
				mistake{2 - pow(0.5, s), "the owner's stale value was averaged in"})
		}
	}
}

// TestE12AccumulationFormat: small contributions reach an fp32 accumulator at every
// stage, and are lost in a 16-bit one, which is what the key asks for (DeepSpeed
// #1800, #2352, #2768, #5170).
func TestE12AccumulationFormat(t *testing.T) {
	for _, tc := range []struct {
		model, accum string
		small, right float64
	}{
		{"bf16", "fp32", 0x1p-9, 0.0643310546875},
		{"bf16", "", 0x1p-9, 0.0643310546875},
		{"bf16", "bf16", 0x1p-9, 0.0625},
		{"fp16", "fp32", 0x1p-12, 1.003662109375 / 16},
		{"fp16", "", 0x1p-12, 1.003662109375 / 16},
		{"fp16", "fp16", 0x1p-12, 1.0 / 16},
		{"fp32", "fp32", 0x1p-9, 0.0643310546875},
		{"fp32", "bf16", 0x1p-9, 0.0625},
	} {
		for _, wire := range []string{"", "fp32"} {
			for _, world := range []int{1, 2} {
				for stage := range 3 {
					cfg := config(func(c *zero.Config) {
						c.GradientAccumulationSteps = 16
						c.CommunicationDataType = wire
						c.DataTypes.GradAccumDType = tc.accum
						c.BF16.Enabled = tc.model == "bf16"
						c.FP16.Enabled, c.FP16.LossScale = tc.model == "fp16", 1
						c.ZeroOptimization.Stage = stage
						c.ZeroOptimization.OverlapComm = true
					})
					// The norm is taken of the accumulators: the weight itself is
					// rounded to the model's format.
					r := training{cfg: cfg, world: world, sizes: []int{1}, grad: func(_, m, _, _ int) float32 {
						if m == 0 {
							return 1
						}
						return float32(tc.small)
					}}.must(t).results[0]
					want(t, fmt.Sprintf("%s accumulated in %q, wire %q, world %d, stage %d", tc.model, tc.accum, wire, world, stage), r.Norm, tc.right,
						mistake{0.0625, "small contributions were lost in 16 bits"},
						mistake{0.064453125, "the sum was rounded to 16 bits for its reduction"})
				}
			}
		}
	}
}

// TestE13EqualBatches: the loader never hands out a short micro-batch, so the mean
// of means is the mean of the samples, and every rank takes the same steps
// (transformers #34191, torchtitan #2206, mlx-lm #1413).
func TestE13EqualBatches(t *testing.T) {
	for _, dropLast := range []bool{true, false} {
		ds := fakePictures(10)
		l, err := data.NewLoader(ds, data.LoaderOptions{Seed: 1, TrainBatch: 4, MicroBatch: 2, DropLast: dropLast})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]int{}
		var b data.Batch
		for step := range 5 {
			for g := range 2 {
				if err := l.Batch(&b, step, g); err != nil {
					t.Fatal(err)
				}
				if len(b.Positions) != 2 {
					t.Errorf("drop_last %v: micro-batch of %d samples, want 2", dropLast, len(b.Positions))
				}
				for i := range b.Positions {
					seen[int(b.Pixels[i])]++
				}
			}
		}
		// Two epochs of 8 and half of a third, or two epochs of 10.
		total := 0
		for sample, n := range seen {
			total += n
			if !dropLast && n != 2 {
				t.Errorf("sample %d was seen %d times in two epochs", sample, n)
			}
		}
		if total != 20 {
			t.Errorf("%d samples in 5 steps of 4", total)
		}
	}
	if _, err := data.NewLoader(fakePictures(10), data.LoaderOptions{TrainBatch: 4, MicroBatch: 3}); err == nil {
		t.Error("a micro-batch size that leaves a short batch is accepted")
	}
}

// TestE13MeanOfSamples: the loss and gradient of a step are means over its samples,
// however they are cut into micro-batches and ranks.
func TestE13MeanOfSamples(t *testing.T) {
	sample := func(k int) float32 { return float32(k*k%13 - 6) }
	const samples = 16
	var right float64
	for k := range samples {
		right += float64(sample(k)) / samples
	}
	for _, world := range []int{1, 2, 4} {
		for _, accum := range []int{1, 2, 4} {
			micro := samples / world / accum
			for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientAccumulationSteps = accum }) {
				out := training{cfg: cfg, world: world, sizes: []int{1}, grad: func(_, m, r, _ int) float32 {
					var sum float32
					for k := range micro {
						sum += sample((m*world+r)*micro + k)
					}
					return sum / float32(micro)
				}}.must(t)
				want(t, fmt.Sprintf("world %d, accumulation %d", world, accum), -float64(out.last()[0]), right)
			}
		}
	}
}

// fakePictures is a data set of pictures of one pixel, whose value is their number.
type fakePictures int

func (n fakePictures) Len() int { return int(n) }

func (fakePictures) Shape() (int, int, int) { return 1, 1, 1 }

func (fakePictures) Load(i int, dst []float32) (int, error) {
	dst[0] = float32(i)
	return -1, nil
}
