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

// reference is the training of tr on one thread, per element: round each
// micro-batch's gradient to the wire, add in order of the global micro-batch
// number (in "local" order: add the rank's own first, round the sums), divide
// once, clip, update, round.
func reference(tr trial) (norms []float64, master []float32, values [][]float32) {
	elems := tr.elements()
	weights := make([]float32, len(elems)) // in registration order
	for k, e := range elems {
		weights[k] = tr.init(e.at)
	}
	order := make([]int, len(elems)) // the model's own format first
	for k := range order {
		order[k] = k
	}
	rank := func(k int) int {
		return slices.Index([]dtype.DType{tr.cfg.Policy().Param, dtype.F32, dtype.BF16, dtype.F16}, tr.format(elems[k].param))
	}
	slices.SortStableFunc(order, func(a, b int) int { return rank(a) - rank(b) })
	for s := range tr.steps {
		g, sum := make([]float32, len(elems)), 0.0
		for _, k := range order {
			g[k] = tr.mean(s, elems[k])
			sum += float64(g[k]) * float64(g[k]) // blocks of one element
		}
		norm := math.Sqrt(sum)
		norms = append(norms, norm)
		value := make([]float32, len(elems))
		for k, e := range elems {
			if c := tr.cfg.GradientClipping / (norm + 1e-6); tr.cfg.GradientClipping > 0 && c < 1 {
				g[k] = float32(float64(g[k]) * c)
			}
			lr := tr.lr
			if tr.groups != nil {
				lr *= tr.groups[tr.group(e.param)].LRScale
			}
			weights[k] -= float32(float32(lr) * g[k])
			value[k] = dtype.Round(tr.format(e.param), weights[k])
		}
		values = append(values, value)
	}
	for _, k := range order {
		master = append(master, weights[k])
	}
	return norms, master, values
}

// element is a trainable element: its parameter, and its index in the space of all
// parameters.
type element struct{ param, at int }

func (tr trial) elements() (all []element) {
	at := 0
	for p, n := range tr.sizes {
		for range n {
			if !tr.frozen[p] {
				all = append(all, element{p, at})
			}
			at++
		}
	}
	return all
}

// mean is the gradient of e in step s.
func (tr trial) mean(s int, e element) float32 {
	policy := tr.cfg.Policy()
	wire := tr.format(e.param)
	if tr.cfg.CommunicationDataType != "" {
		wire = policy.Wire
	}
	pre, divisor := tr.cfg.GradientPredivideFactor, 1.0
	if tr.cfg.PrescaleGradients {
		pre = float64(tr.world)
	}
	if tr.cfg.GradientAllreduceOp == OpMean {
		divisor = float64(tr.cfg.GradientAccumulationSteps * tr.world)
	}
	send := func(x float32) float32 { return dtype.Round(wire, float32(float64(x)/pre)) }
	add := func(acc, x float32) float32 { return dtype.Round(policy.Accum, acc+x) }
	local := tr.cfg.ZeroOptimization.ReductionOrder == OrderLocal && tr.cfg.ZeroOptimization.Stage < 2
	own := make([]float32, tr.world)
	var acc float32
	for m := range tr.cfg.GradientAccumulationSteps {
		for r := range tr.world {
			if tr.order != nil && !slices.Contains(tr.order(s, m, r), e.param) {
				continue
			}
			if x := tr.grad(s, m, r, e.at); local {
				own[r] = add(own[r], x)
			} else {
				acc = add(acc, send(x))
			}
		}
	}
	for _, x := range own { // zeros in "global" order
		acc = add(acc, send(x))
	}
	return float32(float64(acc) / (divisor / pre))
}

// TestAgainstReference: any parameters, world size, knobs, ready orders, timing
// and missing gradients give the bits of the sequential reference. Buffers are
// poisoned as soon as the optimizer has let them go.
func TestAgainstReference(t *testing.T) {
	rounds := 4 // of a hundred cases each
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
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
		c.CommunicationDataType = rapid.SampledFrom([]string{"", "fp32", "bf16", "fp16"}).Draw(t, "wire")
		c.DataTypes.GradAccumDType = formats.Draw(t, "accumulators")
		c.FP16.Enabled, c.FP16.LossScale, c.BF16.Enabled = model == "fp16", 1, model == "bf16"
		c.ZeroOptimization.Stage = rapid.IntRange(0, 2).Draw(t, "stage")
		c.ZeroOptimization.OverlapComm = rapid.Bool().Draw(t, "overlap")
		c.ZeroOptimization.ReductionOrder = rapid.SampledFrom([]string{OrderGlobal, OrderLocal}).Draw(t, "order")
		c.ZeroOptimization.ReduceScatter = rapid.Bool().Draw(t, "reduce scatter")
		c.ZeroOptimization.ContiguousGradients = rapid.Bool().Draw(t, "contiguous")
		c.ZeroOptimization.UseMultiRankBucketAllreduce = rapid.Bool().Draw(t, "multi rank bucket")
		c.ZeroOptimization.RoundRobinGradients = rapid.Bool().Draw(t, "round robin")
		c.GradientAllreduceOp = rapid.SampledFrom([]string{OpMean, OpSum}).Draw(t, "op")
		c.ManagedGradientAccumulation = rapid.Bool().Draw(t, "managed")
		if c.PrescaleGradients = rapid.Bool().Draw(t, "prescale"); !c.PrescaleGradients {
			c.GradientPredivideFactor = rapid.SampledFrom([]float64{1, 1, 2, 3, 0.1}).Draw(t, "predivide factor")
		}
		c.ZeroOptimization.ReduceBucketSize = rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 1000), rapid.Just(int(5e8))).Draw(t, "reduce bucket")
		c.ZeroOptimization.AllgatherBucketSize = rapid.OneOf(rapid.IntRange(1, 1000), rapid.Just(int(5e8))).Draw(t, "allgather bucket")
	})
	for i := range tr.sizes {
		tr.frozen[i] = rapid.IntRange(0, 9).Draw(t, "frozen") == 0
	}
	seed := rapid.Uint64().Draw(t, "seed")
	if n := rapid.IntRange(0, 3).Draw(t, "groups"); n > 0 {
		tr.groups = []Group{{LRScale: 1}, {LRScale: 0.5}, {LRScale: 3}}[:n]
		tr.group = func(p int) int { return int(seed>>(p%32)&0xffff) % n }
	}
	if rapid.Bool().Draw(t, "mixed formats") {
		tr.dtype = func(p int) string { return []string{"", "fp32", "bf16", "fp16"}[(seed>>(2*(p%30)))%4] }
	}
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
	if tr.cfg.ZeroOptimization.ReductionOrder == OrderLocal && tr.cfg.ZeroOptimization.Stage < 2 && rapid.Bool().Draw(t, "no sync") {
		tr.noSync = func(s, m int) bool { return seed>>(4*s+m)&1 == 1 }
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
	sizes := []int{100_000, 3, 1, 2, 1, 5, 89_991, 80_001} // blocks that span parameters
	sines := make([]float32, 270_004)
	for i := range sines {
		sines[i] = float32(math.Sin(float64(i)))
	}
	grad := func(_, m, r, i int) float32 { return sines[i] * float32(1+m+r) }
	var first float64
	for k := range 6 {
		world := []int{1, 2, 4}[k%3]
		cfg := config(func(c *Config) {
			c.GradientAccumulationSteps = 4 / world
			c.ZeroOptimization.Stage = 2 * (k % 2)
			c.ZeroOptimization.RoundRobinGradients = k >= 2
		})
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
			t.Errorf("world %d, %+v: norm %v, world 1: %v", world, cfg.ZeroOptimization, norm, first)
		}
	}
}
