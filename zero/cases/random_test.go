package cases

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// noise returns gradients of many magnitudes that depend on nothing but the seed,
// the step, the number of the micro-batch and the element.
func noise(seed uint64, world int) func(s, m, r, i int) float32 {
	return func(s, m, r, i int) float32 {
		h := mixBits(seed + uint64(s)<<56 + uint64(m*world+r)<<40 + uint64(i))
		mantissa := float64(int32(h)) / (1 << 31)
		return float32(math.Ldexp(mantissa, int(h>>32%13)-10))
	}
}

// mixBits is the finaliser of SplitMix64.
func mixBits(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// reference is the same training, one element and one contribution after the other
// on one thread: what the contracts say and nothing else.
func reference(tr training) (norms []float64, weights [][]float32) {
	params, own := tr.params(), tr.cfg.Policy().Param
	master, grads := make([][]float32, len(params)), make([][]float32, len(params))
	for p := range params {
		master[p], grads[p] = params[p].Init, make([]float32, len(params[p].Init))
	}
	for s := range tr.steps {
		var squares float64
		for k, format := range []dtype.DType{own, dtype.F32, dtype.BF16, dtype.F16} { // order of the element space
			at := 0
			for p := range params {
				for j := range grads[p] {
					if tr.format(params[p]) == format && !params[p].Frozen && (k == 0 || format != own) {
						grads[p][j] = tr.mean(s, p, at+j, format)
						squares += float64(grads[p][j]) * float64(grads[p][j])
					}
				}
				at += len(grads[p])
			}
		}
		norm, clip, all := math.Sqrt(squares), 1.0, []float32(nil)
		if c := tr.cfg.GradientClipping / (norm + 1e-6); tr.cfg.GradientClipping > 0 && c < 1 {
			clip = c
		}
		for p := range params {
			for j, g := range grads[p] {
				if params[p].Frozen {
					continue
				}
				lr := float32(tr.rate(s) * tr.scaleOf(params[p]))
				master[p][j] -= float32(lr * float32(float64(g)*clip))
				all = append(all, dtype.Round(tr.format(params[p]), master[p][j]))
			}
		}
		norms, weights = append(norms, norm), append(weights, all)
	}
	return norms, weights
}

// mean is the gradient of element i of parameter p in step s: contributions are
// rounded to the wire format and added in order of the micro-batches, in "local"
// order after each rank has added its own, and divided at the end.
func (tr training) mean(s, p, i int, format dtype.DType) float32 {
	cfg, policy := tr.cfg, tr.cfg.Policy()
	before, after := cfg.GradientPredivideFactor, 1.0
	if cfg.PrescaleGradients {
		before = float64(tr.world)
	}
	if cfg.GradientAllreduceOp == zero.OpMean {
		after = float64(cfg.GradientAccumulationSteps * tr.world)
	}
	if cfg.CommunicationDataType != "" {
		format = policy.Wire
	}
	sent := func(x float32) float32 { return dtype.Round(format, float32(float64(x)/before)) }
	add := func(acc *float32, x float32) { *acc = dtype.Round(policy.Accum, *acc+x) }
	local := cfg.ZeroOptimization.ReductionOrder == zero.OrderLocal && cfg.ZeroOptimization.Stage < 2
	var acc float32
	own := make([]float32, tr.world)
	for m := range tr.micros() {
		for r := range tr.world {
			switch {
			case !slices.Contains(tr.order(s, m, r), p):
			case local:
				add(&own[r], tr.grad(s, m, r, i))
			default:
				add(&acc, sent(tr.grad(s, m, r, i)))
			}
		}
	}
	for _, x := range own { // zeros in "global" order
		add(&acc, sent(x))
	}
	return float32(float64(acc) / (after / before))
}

// format is that of the compute copy of p.
func (tr training) format(p zero.Param) dtype.DType {
	if d, err := dtype.Parse(p.DType); err == nil {
		return d
	}
	return tr.cfg.Policy().Param
}

// TestRandomTrainings: random parameters, worlds, knobs, ready orders, timings and
// missing gradients, against the reference, bit for bit. Sent buffers are poisoned
// as soon as they are free. A failure prints its seed.
func TestRandomTrainings(t *testing.T) {
	rounds := 20 // of a hundred
	if testing.Short() {
		rounds = 2
	}
	start := time.Now()
	for range rounds {
		rapid.Check(t, func(t *rapid.T) { compareWithReference(t, drawTraining(t)) })
	}
	t.Logf("%d trainings in %v", 100*rounds, time.Since(start).Round(time.Millisecond))
}

func compareWithReference(t *rapid.T, tr training) {
	out, errs := tr.run(t)
	if !slices.ContainsFunc(tr.params(), func(p zero.Param) bool { return !p.Frozen }) {
		wantErrors(t, errs, "no parameters to train")
		return
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	norms, weights := reference(tr)
	for s := range norms {
		if got := out.results[s].Norm; math.Float64bits(got) != math.Float64bits(norms[s]) {
			t.Fatalf("step %d: norm %v, want %v", s+1, got, norms[s])
		}
		if i := firstDifference(out.weights[s], weights[s]); i >= 0 {
			t.Fatalf("step %d: weight %d is %v, want %v", s+1, i, out.weights[s][i], weights[s][i])
		}
	}
}

func drawTraining(t *rapid.T) training {
	formats := rapid.SampledFrom([]string{"fp32", "bf16", "fp16"})
	maybe := func(name string) bool { return rapid.Bool().Draw(t, name) }
	size := rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, 60), rapid.IntRange(0, 60), rapid.IntRange(0, 500))
	tr := training{
		world: rapid.IntRange(1, 8).Draw(t, "world"),
		sizes: rapid.SliceOfN(size, 0, 40).Draw(t, "sizes"),
		hooks: rapid.IntRange(0, 4).Draw(t, "hooks"),
		steps: 2, rate: rate(0.125),
		init: func(i int) float32 { return noise(99, 1)(0, 0, 0, i) },
	}
	if n := len(tr.sizes); n > 0 && rapid.IntRange(0, 7).Draw(t, "large") == 0 {
		tr.sizes[rapid.IntRange(0, n-1).Draw(t, "which")] = rapid.IntRange(1000, 5000).Draw(t, "size")
	}
	total := 0
	for i, n := range tr.sizes {
		total += n
		if rapid.IntRange(0, 9).Draw(t, "frozen") == 0 {
			tr.frozen = append(tr.frozen, i)
		}
	}
	model := formats.Draw(t, "model")
	tr.cfg = config(func(c *zero.Config) {
		z := &c.ZeroOptimization
		c.GradientAccumulationSteps = rapid.IntRange(1, 3).Draw(t, "accumulation")
		c.GradientClipping = rapid.SampledFrom([]float64{0, 1, 1e9}).Draw(t, "clipping")
		c.GradientAllreduceOp = rapid.SampledFrom([]string{zero.OpMean, zero.OpSum}).Draw(t, "op")
		c.CommunicationDataType = rapid.SampledFrom([]string{"", "fp32", "bf16", "fp16"}).Draw(t, "wire")
		c.DataTypes.GradAccumDType = formats.Draw(t, "accumulators")
		c.FP16.Enabled, c.FP16.LossScale, c.BF16.Enabled = model == "fp16", 1, model == "bf16"
		if c.PrescaleGradients = maybe("prescale"); !c.PrescaleGradients {
			c.GradientPredivideFactor = rapid.SampledFrom([]float64{1, 1, 2, 3, 0.3}).Draw(t, "predivide factor")
		}
		z.Stage = rapid.IntRange(0, 2).Draw(t, "stage")
		z.OverlapComm, z.ReduceScatter, z.ContiguousGradients = maybe("overlap"), maybe("reduce scatter"), maybe("contiguous")
		z.RoundRobinGradients, z.UseMultiRankBucketAllreduce = maybe("round robin"), maybe("multi rank bucket")
		z.ReductionOrder = rapid.SampledFrom([]string{zero.OrderGlobal, zero.OrderLocal}).Draw(t, "order")
		// At most some 60 buckets: a training of thousands would take the time of
		// a hundred others.
		bucket := func(name string) int {
			return rapid.OneOf(rapid.IntRange(1+total/60, 8+total/20), rapid.IntRange(1+total/60, 1000+total), rapid.Just(int(5e8))).Draw(t, name)
		}
		z.ReduceBucketSize, z.AllgatherBucketSize = bucket("reduce bucket"), bucket("allgather bucket")
	})
	if maybe("unmanaged") {
		tr.cfg.ManagedGradientAccumulation = false
		tr.backwards = rapid.IntRange(1, 3).Draw(t, "backwards")
	}
	seed := rapid.Uint64().Draw(t, "seed")
	tr.grad = noise(seed, tr.world)
	drawParams(t, &tr, seed)
	drawOrder(t, &tr, seed)
	tr.gates = gated.Options{Poison: gradientBucket}
	tr.ready = func(r, p int, _ bool) {
		for range mixBits(seed+uint64(r*100+p)) % 3 {
			runtime.Gosched()
		}
	}
	return tr
}

// drawParams draws groups and formats of single parameters.
func drawParams(t *rapid.T, tr *training, seed uint64) {
	groups := rapid.IntRange(0, 3).Draw(t, "groups")
	if groups > 0 {
		tr.groups = []zero.Group{{LRScale: 1}, {LRScale: 0.5}, {LRScale: 3}}[:groups]
	}
	mixed := rapid.IntRange(0, 2).Draw(t, "formats") == 0
	tr.edit = func(params []zero.Param) {
		for i := range params {
			h := mixBits(seed ^ uint64(i))
			if groups > 0 {
				params[i].Group = int(h % uint64(groups))
			}
			if mixed {
				params[i].DType = []string{"", "fp32", "bf16", "fp16"}[h>>32%4]
			}
		}
	}
}

// drawOrder draws the ready orders, and what gets no gradient.
func drawOrder(t *rapid.T, tr *training, seed uint64) {
	order := shuffled(len(tr.sizes), seed)
	missing := rapid.SampledFrom([]int{0, 0, 3, 1}).Draw(t, "missing")
	orders := map[[3]int][]int{} // the reference asks for them once per element
	for s := range tr.steps {
		for m := range tr.micros() {
			for r := range tr.world {
				o := order(s, m, r)
				if missing > 0 && (s+m+r)%2 == 0 {
					o = o[:len(o)-len(o)/missing] // a third, or all
				}
				orders[[3]int{s, m, r}] = o
			}
		}
	}
	tr.order = func(s, m, r int) []int { return orders[[3]int{s, m, r}] }
}
