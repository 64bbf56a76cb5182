package zero

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// noise returns a gradient that depends on nothing but seed, step, the global
// number of the micro-batch and the element, over many magnitudes.
func noise(seed uint64, world int) func(s, m, r, i int) float32 {
	return func(s, m, r, i int) float32 {
		rng := rand.New(rand.NewPCG(seed, uint64(s)<<48|uint64(m*world+r)<<32|uint64(i)))
		return float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(12)-10)))
	}
}

func initial(i int) float32 {
	return float32(rand.New(rand.NewPCG(99, uint64(i))).NormFloat64())
}

// TestInvariance: AdamW on random gradients gives the same bits for every knob
// and for every world size with the same number of micro-batches.
func TestInvariance(t *testing.T) {
	sizes := []int{7, 0, 301, 64, 3, 130}
	for _, tc := range []struct{ model, wire, accum string }{
		{"fp32", "", ""}, {"bf16", "", ""}, {"bf16", "fp32", ""}, {"fp32", "bf16", ""}, {"bf16", "", "bf16"}, {"fp16", "bf16", "fp16"},
	} {
		t.Run(fmt.Sprintf("%s, wire %q, accumulator %q", tc.model, tc.wire, tc.accum), func(t *testing.T) {
			var first outcome
			seed := uint64(0)
			for _, world := range []int{1, 2, 4} {
				for stage := range 3 {
					for _, bucket := range []int{50, 130, 5e8} {
						seed++
						cfg := config(func(c *Config) {
							c.GradientAccumulationSteps = 4 / world
							c.GradientClipping = 1
							c.CommunicationDataType, c.DataTypes.GradAccumDType = tc.wire, tc.accum
							c.BF16.Enabled, c.FP16.Enabled, c.FP16.LossScale = tc.model == "bf16", tc.model == "fp16", 1
							c.ZeroOptimization.Stage = stage
							c.ZeroOptimization.OverlapComm = seed%2 == 0
							c.ZeroOptimization.ReduceBucketSize = bucket
							c.ZeroOptimization.AllgatherBucketSize = bucket
						})
						tr := trial{cfg: cfg, world: world, sizes: sizes, given: seed%3 == 0, rule: DefaultAdamW(), steps: 4, lr: 1e-2,
							init: initial, grad: noise(5, world), order: shuffled(len(sizes), seed)}
						out := tr.must(t)
						if first.plan == nil {
							first = out
						} else if err := sameOutcome(first, out); err != nil {
							t.Fatalf("world %d, stage %d, bucket %d: %v", world, stage, bucket, err)
						}
					}
				}
			}
		})
	}
}

// reference is the training of tr on one thread: per element, round each
// micro-batch's gradient to the wire, add in order of the global micro-batch
// number, divide once, clip, update, round.
func reference(tr trial) (norms []float64, master []float32, values [][]float32) {
	policy := tr.cfg.Policy()
	var at []int // trainable elements: index in the space of all parameters
	used := func(int, int, int, int) bool { return true }
	if tr.order != nil {
		used = func(s, m, r, p int) bool { return slices.Contains(tr.order(s, m, r), p) }
	}
	var param []int
	offset := 0
	for p, n := range tr.sizes {
		for j := range n {
			if !tr.frozen[p] {
				at, param = append(at, offset+j), append(param, p)
				master = append(master, tr.init(offset+j))
			}
		}
		offset += n
	}
	for s := range tr.steps {
		g := make([]float32, len(at))
		var sum float64
		for e, i := range at {
			var acc float32
			for m := range tr.cfg.GradientAccumulationSteps {
				for r := range tr.world {
					if used(s, m, r, param[e]) {
						acc = dtype.Round(policy.Accum, acc+dtype.Round(policy.Wire, tr.grad(s, m, r, i)))
					}
				}
			}
			g[e] = float32(float64(acc) / float64(tr.cfg.GradientAccumulationSteps*tr.world))
			sum += float64(g[e]) * float64(g[e]) // blocks of one element
		}
		norm := math.Sqrt(sum)
		norms = append(norms, norm)
		value := make([]float32, len(at))
		for e := range at {
			if c := tr.cfg.GradientClipping / (norm + 1e-6); tr.cfg.GradientClipping > 0 && c < 1 {
				g[e] = float32(float64(g[e]) * c)
			}
			master[e] -= float32(float32(tr.lr) * g[e])
			value[e] = dtype.Round(policy.Param, master[e])
		}
		values = append(values, value)
	}
	return norms, master, values
}

// TestAgainstReference: any parameters, world size, knobs, ready orders, timing
// and missing gradients give the bits of the sequential reference. Buffers are
// poisoned as soon as the optimizer has let them go.
func TestAgainstReference(t *testing.T) {
	for range 4 { // of a hundred cases each
		rapid.Check(t, func(t *rapid.T) {
			tr := drawTrial(t)
			trainable := false
			for i := range tr.sizes {
				trainable = trainable || !tr.frozen[i]
			}
			out, errs := tr.run(t)
			for _, err := range errs {
				if trainable != (err == nil) {
					t.Fatalf("something to train: %v, error: %v", trainable, err)
				}
			}
			if !trainable {
				return
			}
			norms, master, values := reference(tr)
			for s, want := range norms {
				if r := out.results[s]; math.Float64bits(r.Norm) != math.Float64bits(want) {
					t.Fatalf("step %d: norm %v, want %v", s+1, r.Norm, want)
				}
				if !sameBits(out.values[s], values[s]) {
					t.Fatalf("step %d: weights differ from the reference", s+1)
				}
			}
			if !sameBits(out.master, master) {
				t.Fatal("master weights differ from the reference")
			}
		})
	}
}

func drawTrial(t *rapid.T) trial {
	formats := rapid.SampledFrom([]string{"fp32", "bf16", "fp16"})
	model := formats.Draw(t, "model")
	tr := trial{
		world: rapid.IntRange(1, 8).Draw(t, "world"),
		sizes: rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 300)), 0, 40).Draw(t, "sizes"),
		given: rapid.Bool().Draw(t, "values given"),
		hooks: rapid.IntRange(0, 3).Draw(t, "hooks"),
		steps: 2, lr: 0.125, init: initial, frozen: map[int]bool{},
	}
	tr.cfg = config(func(c *Config) {
		c.GradientAccumulationSteps = rapid.IntRange(1, 3).Draw(t, "accumulation")
		c.GradientClipping = rapid.SampledFrom([]float64{0, 1, 1e9}).Draw(t, "clipping")
		c.CommunicationDataType = formats.Draw(t, "wire")
		c.DataTypes.GradAccumDType = formats.Draw(t, "accumulators")
		c.FP16.Enabled, c.FP16.LossScale, c.BF16.Enabled = model == "fp16", 1, model == "bf16"
		c.ZeroOptimization.Stage = rapid.IntRange(0, 2).Draw(t, "stage")
		c.ZeroOptimization.OverlapComm = rapid.Bool().Draw(t, "overlap")
		c.ZeroOptimization.ReduceBucketSize = rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 1000), rapid.Just(int(5e8))).Draw(t, "reduce bucket")
		c.ZeroOptimization.AllgatherBucketSize = rapid.OneOf(rapid.IntRange(1, 1000), rapid.Just(int(5e8))).Draw(t, "allgather bucket")
	})
	for i := range tr.sizes {
		tr.frozen[i] = rapid.IntRange(0, 9).Draw(t, "frozen") == 0
	}
	seed := rapid.Uint64().Draw(t, "seed")
	tr.grad = noise(seed, tr.world)
	order := shuffled(len(tr.sizes), seed)
	missing := rapid.Bool().Draw(t, "missing gradients")
	tr.order = func(s, m, r int) []int {
		o := order(s, m, r)
		if missing {
			return o[:len(o)-len(o)/3]
		}
		return o
	}
	tr.wrap = func(c comm.Communicator) comm.Communicator {
		return &gate{Communicator: c, hold: func(n int) {
			if (uint64(n+c.Rank())^seed)%7 == 0 {
				runtime.Gosched()
			}
		}}
	}
	return tr
}

// TestNormBlocks: where blocks are longer than one element the norm is still the
// same at every world size, and near the float64 sum.
func TestNormBlocks(t *testing.T) {
	sizes := []int{100_000, 3, 170_001}
	grad := func(_, m, r, i int) float32 { return float32(math.Sin(float64(i))) * float32(1+m+r) }
	var first float64
	for _, world := range []int{1, 2, 4} {
		cfg := config(func(c *Config) { c.GradientAccumulationSteps = 4 / world; c.ZeroOptimization.Stage = 2 })
		g := func(s, m, r, i int) float32 { return grad(s, m*world+r, 0, i) }
		out := trial{cfg: cfg, world: world, sizes: sizes, steps: 1, grad: g}.must(t)
		if out.plan.NormBlock != 4 {
			t.Fatalf("norm block %d, want 4", out.plan.NormBlock)
		}
		norm := out.results[0].Norm
		if first == 0 {
			first = norm
			var sum float64
			for i := range out.plan.Elements {
				mean := (grad(0, 0, 0, i) + grad(0, 1, 0, i) + grad(0, 2, 0, i) + grad(0, 3, 0, i)) / 4
				sum += float64(mean) * float64(mean)
			}
			if want := math.Sqrt(sum); math.Abs(norm/want-1) > 1e-12 {
				t.Errorf("norm %v, want %v", norm, want)
			}
		}
		if math.Float64bits(norm) != math.Float64bits(first) {
			t.Errorf("world %d: norm %v, world 1: %v", world, norm, first)
		}
	}
}
