package fault_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/fault"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// TestHookOrderLayout: two branches in another order on one rank, (p5, p4) and (p2, p0):
// 1141 of 1205 elements are wrong, all but the 64 of p3, which lies between them. It
// takes no overlap and no second bucket. Where the orders agree nothing is wrong.
func TestHookOrderLayout(t *testing.T) {
	swapped := func(r int) []int {
		if r == 1 {
			return []int{4, 5, 3, 0, 2, 1}
		}
		return []int{5, 4, 3, 2, 1, 0}
	}
	for _, stage := range []int{0, 1, 2} {
		for _, overlap := range []bool{false, true} {
			for _, bucket := range []int{100, 5e8} {
				tr := training{faults: []string{fault.HookOrderLayout}, world: 2, grad: exact, order: swapped}
				tr.cfg = config(func(c *zero.Config) {
					c.ZeroOptimization.Stage, c.ZeroOptimization.OverlapComm, c.ZeroOptimization.ReduceBucketSize = stage, overlap, bucket
				})
				tr.clean(t)
				out := tr.must(t)
				wrong := tr.wrong(out, 0)
				if stage == 0 { // then each rank reads all of it from its own places
					wrong = union(wrong, tr.wrong(out, 1))
				}
				if len(wrong) != 1141 || slices.ContainsFunc(wrong, func(i int) bool { return i >= 1008 && i < 1072 }) {
					t.Errorf("stage %d, overlap %v, bucket %d: %d elements are wrong, want 1141, none of p3", stage, overlap, bucket, len(wrong))
				}
				tr.order = func(int) []int { return swapped(1) }
				if wrong := tr.wrong(tr.must(t), 0); len(wrong) > 0 {
					t.Errorf("stage %d: one other order on all ranks: %d elements are wrong", stage, len(wrong))
				}
			}
		}
	}
}

func union(a, b []int) []int {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestBuffers: the faults of bucket buffers need what their classes say, and with it
// make elements wrong, each with values from where its mechanism takes them.
func TestBuffers(t *testing.T) {
	for _, tc := range []struct {
		name            string
		bucket, without int // with an occasion, and without one
		overlap         bool
	}{
		{fault.ReuseInFlight, 100, 1001, true}, // three buckets at least
		{fault.PingpongReset, 1001, 5e8, true}, // two
		{fault.OversizeLifetime, 100, 1001, true},
		{fault.OneProducerWait, 5e8, 0, false},
		{fault.StaleTail, 131, 5e8, false},
		{fault.NotReadyShift, 131, 0, false},
	} {
		for _, stage := range []int{0, 1, 2} {
			tr := training{faults: []string{tc.name}, world: 2, grad: exact, seed: 4, cfg: config(func(c *zero.Config) {
				c.ZeroOptimization.Stage, c.ZeroOptimization.OverlapComm, c.ZeroOptimization.ReduceBucketSize = stage, tc.overlap, tc.bucket
			})}
			tr.clean(t)
			if n := len(tr.wrong(tr.must(t), 0)); n == 0 {
				t.Errorf("%s, stage %d: nothing is wrong", tc.name, stage)
			} else {
				t.Logf("%s, stage %d: %d elements are wrong", tc.name, stage, n)
			}
			if tc.without > 0 {
				tr.cfg.ZeroOptimization.ReduceBucketSize = tc.without
				if n := len(tr.wrong(tr.must(t), 0)); n > 0 {
					t.Errorf("%s, stage %d: %d elements are wrong with buckets of %d, which give no occasion", tc.name, stage, n, tc.without)
				}
			}
			if tc.overlap {
				tr.cfg.ZeroOptimization.OverlapComm, tr.cfg.ZeroOptimization.ReduceBucketSize = false, tc.bucket
				if n := len(tr.wrong(tr.must(t), 0)); n > 0 {
					t.Errorf("%s, stage %d: %d elements are wrong without overlap_comm", tc.name, stage, n)
				}
			}
		}
	}
}

// TestOvertaken: what is sent in place of a gradient is what the fill two later, or one
// later, has written there.
func TestOvertaken(t *testing.T) {
	for _, tc := range []struct {
		name  string
		later int
	}{{fault.ReuseInFlight, 2}, {fault.PingpongReset, 1}} {
		copied, sent := map[int][]float64{}, map[int][]float64{}
		tr := training{faults: []string{tc.name}, world: 1, grad: exact, seed: 4, cfg: config(func(c *zero.Config) {
			c.ZeroOptimization.OverlapComm, c.ZeroOptimization.ReduceBucketSize = true, 100
		})}
		tr.probe = func(s zero.Sight) {
			for i := range s.Values.Len() {
				switch s.Life {
				case zero.LifeCopy:
					copied[s.Bucket] = append(copied[s.Bucket], s.Values.At(i))
				case zero.LifeWire:
					sent[s.Bucket] = append(sent[s.Bucket], s.Values.At(i))
				}
			}
		}
		tr.must(t)
		n := 0
		for b, x := range sent {
			for i, v := range x {
				if v == copied[b][i] {
					continue
				}
				n++
				if later := copied[b+tc.later]; i >= len(later) || v != later[i] {
					t.Fatalf("%s: bucket %d sends %v at %d, which is not what bucket %d has there", tc.name, b, v, i, b+tc.later)
				}
			}
		}
		if n == 0 {
			t.Errorf("%s: nothing was overtaken", tc.name)
		}
	}
}

// TestOversizeNaN: in bf16, memory that is released and used for fp32 numbers soon
// holds a NaN or an infinity.
func TestOversizeNaN(t *testing.T) {
	tr := training{faults: []string{fault.OversizeLifetime}, world: 2, steps: 4, grad: exact, seed: 1, cfg: config(func(c *zero.Config) {
		c.BF16.Enabled, c.CheckGradOverflow = true, false
		c.ZeroOptimization.Stage, c.ZeroOptimization.OverlapComm, c.ZeroOptimization.ReduceBucketSize = 2, true, 7
	})}
	first := 0
	for s, r := range tr.must(t).results[0] {
		if r.Norm-r.Norm != 0 && first == 0 {
			first = s + 1
		}
	}
	if first != 1 {
		t.Errorf("the norm is not finite from step %d on, want 1: 128 elements in 1001 are overwritten by bits that mean nothing", first)
	}
}

// TestAccumDTypeIgnored: of 64 micro-gradients, 1 and 63 times 2^-9, one survives in a
// bf16 accumulator: 63 are lost.
func TestAccumDTypeIgnored(t *testing.T) {
	tr := training{faults: []string{fault.AccumDTypeIgnored}, world: 1, sizes: []int{1}, order: func(int) []int { return []int{0} }}
	tr.cfg = config(func(c *zero.Config) {
		c.GradientAccumulationSteps, c.BF16.Enabled, c.DataTypes.GradAccumDType = 64, true, "fp32"
		c.ZeroOptimization.Stage = 2
	})
	tr.grad = func(_, m, _, _ int) float32 {
		if m == 0 {
			return 1
		}
		return 0x1p-9
	}
	if norm := tr.must(t).results[0][0].Norm; norm*64 != 1 {
		t.Errorf("sum %v, want 1: 63 of 64 micro-gradients are lost", norm*64)
	}
	tr.faults = nil
	if norm := tr.must(t).results[0][0].Norm; norm*64 != 1+63*0x1p-9 {
		t.Errorf("the correct engine: sum %v, want %v", norm*64, 1+63*0x1p-9)
	}
}

// TestContributions: the faults that count other contributions, on two ranks with
// micro-gradients 1, 2, 3, 4 and 5, 6, 7, 8: 4.5 is right.
func TestContributions(t *testing.T) {
	for _, tc := range []struct {
		name string
		want [2]float64 // with the element on rank 0 and on rank 1
	}{
		{fault.FP32CopyDiscarded, [2]float64{2.5, 6.5}},
		{fault.LastMicrobatchLocal, [2]float64{4, 5}},
		{fault.MicrostepOverwrite, [2]float64{1.5, 1.5}}, // (4 + 8) / 8
	} {
		for _, stage := range []int{0, 1, 2} {
			tr := training{faults: []string{tc.name}, world: 2, sizes: []int{1, 1}, order: func(int) []int { return []int{1, 0} }}
			tr.grad = func(_, m, r, _ int) float32 { return float32(1 + m + 4*r) }
			tr.cfg = config(func(c *zero.Config) {
				c.GradientAccumulationSteps, c.ZeroOptimization.Stage = 4, stage
			})
			out := tr.must(t)
			got := [2]float64{-float64(out.weights[0][0]), -float64(out.weights[0][1])}
			if stage == 0 { // the ranks go on with different weights
				got[1] = -float64(out.weights[1][1])
			}
			if got != tc.want {
				t.Errorf("%s, stage %d: %v, want %v", tc.name, stage, got, tc.want)
			}
			tr.faults = nil
			if w := tr.must(t).weights[1]; w[0] != -4.5 || w[1] != -4.5 {
				t.Errorf("the correct engine, stage %d: %v, want -4.5", stage, w)
			}
		}
	}
	// On the fixture nothing is right that was not written back.
	tr := training{faults: []string{fault.FP32CopyDiscarded}, world: 2, grad: exact, cfg: config(nil)}
	if n := len(tr.wrong(tr.must(t), 0)); n != f1Len {
		t.Errorf("%d of %d elements are wrong, want all", n, f1Len)
	}
}

// TestNaNSentinel: a norm that is not finite reads 1, and 1.414 with two groups, and
// the step is applied.
func TestNaNSentinel(t *testing.T) {
	bad := func(s, m, r, i int) float32 {
		if r == 1 && i == 500 {
			return float32(math.Inf(1))
		}
		return exact(s, m, r, i)
	}
	for groups, want := range []float64{1, 1, math.Sqrt2} {
		tr := training{faults: []string{fault.NaNSentinel}, world: 2, grad: bad, cfg: config(nil)}
		if tr.groups = make([]zero.Group, groups); groups == 2 {
			tr.group = func(p int) int { return p % 2 }
		}
		if r := tr.must(t).results[0][0]; r.Norm != want || !r.Applied {
			t.Errorf("%d groups: norm %v, applied %v, want %v and true", groups, r.Norm, r.Applied, want)
		}
		tr.faults = nil
		if r := tr.must(t).results[0][0]; !math.IsInf(r.Norm, 1) || r.Applied {
			t.Errorf("the correct engine: norm %v, applied %v, want +Inf and false", r.Norm, r.Applied)
		}
	}
}

// TestSkips: without a skip one Inf reaches the weights; where ranks decide for
// themselves, only the share that has it stays as it was.
func TestSkips(t *testing.T) {
	bad := func(s, m, r, i int) float32 {
		if r == 1 && i == 500 {
			return float32(math.Inf(1))
		}
		return exact(s, m, r, i)
	}
	for _, stage := range []int{1, 2} {
		cfg := config(func(c *zero.Config) { c.ZeroOptimization.Stage = stage })
		tr := training{world: 2, grad: bad, cfg: cfg}
		for _, w := range tr.must(t).weights[0] {
			if w != 0 {
				t.Fatalf("the correct engine changes a weight to %v in a step with Inf", w)
			}
		}
		tr.faults = []string{fault.NoSkip}
		if w := tr.must(t).weights[0][500]; !math.IsInf(float64(w), -1) {
			t.Errorf("no-skip, stage %d: the weight is %v, want -Inf", stage, w)
		}
		tr.faults = []string{fault.RankLocalSkip}
		out := tr.must(t)
		own := out.plan.Owned(0).Runs[0] // the rank with element 500
		for i, g := range tr.right(0) {
			want := -g
			if i >= own.Lo && i < own.Hi {
				want = 0
			}
			if float64(out.weights[0][i]) != want {
				t.Fatalf("rank-local-skip, stage %d: weight %d is %v, want %v", stage, i, out.weights[0][i], want)
			}
		}
	}
}

// TestRingOrder: a value's sum depends on its place in the bucket. In bf16, 256 and
// three times 1 are 256 when the ring begins at 256, and 258 or 260 when it comes last.
func TestRingOrder(t *testing.T) {
	results := map[float32]bool{}
	for _, bucket := range []int{8, 5e8} {
		tr := training{faults: []string{fault.RingOrder}, world: 4, sizes: []int{16}, order: func(int) []int { return []int{0} }}
		tr.cfg = config(func(c *zero.Config) {
			c.BF16.Enabled, c.GradientAllreduceOp = true, zero.OpSum
			c.ZeroOptimization.Stage, c.ZeroOptimization.ReduceBucketSize = 2, bucket
		})
		tr.grad = func(_, _, r, _ int) float32 { return []float32{256, 1, 1, 1}[r] }
		for i, w := range tr.must(t).weights[0] {
			start := i*4/16 + 1
			if bucket == 8 {
				start = i%8*4/8 + 1
			}
			sum := tr.grad(0, 0, start%4, i)
			for k := 1; k < 4; k++ {
				sum = dtype.Round(dtype.BF16, sum+tr.grad(0, 0, (start+k)%4, i))
			}
			results[sum] = true
			if w != -sum {
				t.Errorf("bucket %d: sum %d is %v, want %v", bucket, i, -w, sum)
			}
		}
		tr.faults = nil
		for i, w := range tr.must(t).weights[0] { // 259 rounds to 260
			if w != -260 {
				t.Errorf("the correct engine, bucket %d: sum %d is %v, want 260", bucket, i, -w)
			}
		}
	}
	if len(results) < 2 {
		t.Errorf("sums %v: every place gives the same one", results)
	}
}

// TestPredivide: each of four fp16 gradients of 2^-24 vanishes when it is divided by 4
// before the sum, and three thirds of 1 in bf16 are not 1.
func TestPredivide(t *testing.T) {
	for _, tc := range []struct {
		world       int
		fp16        bool
		grad, wrong float32
	}{
		{4, true, 0x1p-24, 0},
		{3, false, 1, 3 * dtype.Round(dtype.BF16, 1.0/3)},
	} {
		tr := training{faults: []string{fault.PredivideLowPrecision}, world: tc.world, sizes: []int{1}, order: func(int) []int { return []int{0} }}
		tr.grad = func(int, int, int, int) float32 { return tc.grad }
		tr.cfg = config(func(c *zero.Config) {
			c.FP16.Enabled, c.FP16.LossScale, c.CommunicationDataType = tc.fp16, 1, "bf16"
			if tc.fp16 {
				c.CommunicationDataType = "fp16"
			}
		})
		if norm := tr.must(t).results[0][0].Norm; float32(norm) != tc.wrong {
			t.Errorf("world %d: mean %v, want %v", tc.world, norm, tc.wrong)
		}
		tr.faults = nil
		if norm := tr.must(t).results[0][0].Norm; float32(norm) != tc.grad {
			t.Errorf("the correct engine, world %d: mean %v, want %v", tc.world, norm, tc.grad)
		}
	}
}

// TestClipAfterUpdateScale: in the step in which the loss scale doubles, the gradient
// and its norm are unscaled with the doubled one.
func TestClipAfterUpdateScale(t *testing.T) {
	tr := training{faults: []string{fault.ClipAfterUpdateScale}, world: 2, steps: 4, grad: exact, cfg: config(func(c *zero.Config) {
		c.FP16.Enabled, c.FP16.InitialScalePower, c.FP16.LossScaleWindow = true, 2, 2
		c.GradientClipping = 100
	})}
	const norm = 127.553910171
	right := 100 / (norm + 1e-6)
	for s, r := range tr.must(t).results[0] {
		want := right
		if s%2 == 1 { // the scale grows: half the norm, which is below 100, and half the gradient
			want = 0.5
		}
		if math.Abs(r.ClipCoefficient-want) > 1e-9 {
			t.Errorf("step %d: coefficient %v, want %v", s+1, r.ClipCoefficient, want)
		}
	}
	tr.faults = nil
	for s, r := range tr.must(t).results[0] {
		if math.Abs(r.ClipCoefficient-right) > 1e-9 {
			t.Errorf("the correct engine, step %d: coefficient %v, want %v", s+1, r.ClipCoefficient, right)
		}
	}
}

// TestNormLocal: each rank's norm is that of its share, and together they are the
// right one.
func TestNormLocal(t *testing.T) {
	const norm = 63.783324623
	tr := training{faults: []string{fault.NormLocal}, world: 4, grad: exact, cfg: config(func(c *zero.Config) { c.ZeroOptimization.Stage = 2 })}
	together, different := 0.0, map[float64]bool{}
	for _, r := range tr.must(t).results {
		together = math.Hypot(together, r[0].Norm)
		different[r[0].Norm] = true
	}
	if math.Abs(together-norm) > 1e-7 || len(different) < 2 {
		t.Errorf("norms %v, want different ones that are %v together", different, norm)
	}
	for _, r := range tr.clean(t).results {
		if math.Abs(r[0].Norm-norm) > 1e-7 {
			t.Errorf("the correct engine: norm %v", r[0].Norm)
		}
	}
}
