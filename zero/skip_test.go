package zero

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestSkip: a non-finite gradient on any rank, of any owner's element, skips the
// step on all ranks, whole: the rest of the training is as if it had not been
// tried, apart from the counters.
func TestSkip(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, tc := range []struct {
		rank, element int
		value         float32
	}{{1, 0, inf}, {1, 9, inf}, {1, 9, nan}, {0, 0, -inf}, {0, 9, nan}} {
		for stage := range 3 {
			for _, model := range []string{"fp32", "bf16", "fp16"} {
				t.Run(fmt.Sprintf("%v on rank %d at %d, stage %d, %s", tc.value, tc.rank, tc.element, stage, model), func(t *testing.T) {
					cfg := config(func(c *Config) {
						c.GradientAccumulationSteps = 2
						c.ZeroOptimization.Stage = stage
						c.ZeroOptimization.OverlapComm = true
						c.BF16.Enabled, c.FP16.Enabled, c.FP16.LossScale = model == "bf16", model == "fp16", 128
					})
					tr := trial{cfg: cfg, world: 2, sizes: []int{5, 5}, rule: DefaultAdamW(), steps: 4, lr: 0.1, init: initial}
					clean := noise(7, 2)
					tr.grad = func(s, m, r, i int) float32 {
						if s == 1 && m == 0 && r == tc.rank && i == tc.element {
							return tc.value
						}
						if s >= 2 {
							s-- // step 2 of the clean run comes one step later
						}
						return clean(s, m, r, i)
					}
					out := tr.must(t)
					r := out.results[1]
					if r.Applied || r.AppliedSteps != 1 || r.SkippedSteps != 1 || r.Skip == nil || r.Norm-r.Norm == 0 || r.NextLossScale != r.LossScale {
						t.Fatalf("step 2: %+v", r)
					}
					if line, want := r.Skip.String(), fmt.Sprintf("step 2 skipped: rank %d has a non-finite gradient, first in parameter \"p%d\"", tc.rank, tc.element/5); line != want || strings.Contains(line, "\n") {
						t.Errorf("log line %q, want %q", line, want)
					}
					if r := out.results[3]; r.AppliedSteps != 3 || r.SkippedSteps != 1 || r.Skip != nil {
						t.Errorf("step 4: %+v", r)
					}
					tr.grad, tr.steps = clean, 3
					want := tr.must(t)
					if !sameBits(out.master, want.master) || !sameBits(out.states[0], want.states[0]) || !sameBits(out.states[1], want.states[1]) {
						t.Error("weights or moments differ from three clean steps")
					}
					if !sameBits(out.values[0], out.values[1]) {
						t.Error("the skipped step moved weights")
					}
				})
			}
		}
	}
}

// TestSkipNames: the log line names this step's first bad parameter and the lowest
// rank that had it, nothing of an earlier step.
func TestSkipNames(t *testing.T) {
	bad := [][2][]int{ // by step and rank: elements that are not finite
		{{0, 4}, {2}},
		{{7}, {7, 9}},
		{nil, {9, 4}},
	}
	want := []string{`rank 0 has a non-finite gradient, first in parameter "p0"`, `rank 0 has a non-finite gradient, first in parameter "p3"`, `rank 1 has a non-finite gradient, first in parameter "p2"`}
	for _, bucket := range []int{1, 100} {
		cfg := config(func(c *Config) { c.ZeroOptimization.Stage = 2; c.ZeroOptimization.ReduceBucketSize = bucket })
		tr := trial{cfg: cfg, world: 2, sizes: []int{2, 1, 3, 5}, steps: 3, grad: func(s, _, r, i int) float32 {
			if slices.Contains(bad[s][r], i) {
				return float32(math.NaN())
			}
			return 1
		}}
		for s, r := range tr.must(t).results {
			if got := r.Skip.String(); got != fmt.Sprintf("step %d skipped: %s", s+1, want[s]) {
				t.Errorf("log line %q, want %q", got, want[s])
			}
		}
	}
}

// TestSkipLimit: a run whose gradients stay non-finite stops with an error on
// all ranks.
func TestSkipLimit(t *testing.T) {
	cfg := config(func(c *Config) { c.MaxConsecutiveSkips = 3; c.BF16.Enabled = true })
	tr := trial{cfg: cfg, world: 2, sizes: []int{4}, steps: 10, grad: func(s, _, r, _ int) float32 {
		if s >= 2 && r == 1 {
			return float32(math.NaN())
		}
		return 1
	}}
	out, errs := tr.run(t)
	for _, err := range errs {
		wantError(t, err, "3 steps in a row", "max_consecutive_skips", "step 5", `"p0"`)
	}
	if n := len(out.results); n != 5 {
		t.Errorf("%d steps, want 5", n)
	}
}

// TestUnchecked: with check_grad_overflow = false the step is applied as it is,
// and the norm still tells.
func TestUnchecked(t *testing.T) {
	cfg := config(func(c *Config) { c.CheckGradOverflow = false })
	out := trial{cfg: cfg, world: 2, sizes: []int{2}, steps: 1, lr: 1, grad: func(_, _, _, i int) float32 { return []float32{1, float32(math.Inf(1))}[i] }}.must(t)
	if r := out.results[0]; !r.Applied || !math.IsInf(r.Norm, 1) {
		t.Errorf("%+v", r)
	}
	if out.master[0] != -1 || !math.IsInf(float64(out.master[1]), -1) {
		t.Errorf("weights %v", out.master)
	}
}

// TestExtremesOfFP16: a sum that fp16 cannot hold is right with fp32 accumulators
// and a skipped step with fp16 ones; the smallest value survives a mean.
func TestExtremesOfFP16(t *testing.T) {
	for _, accum := range []string{"fp32", "fp16"} {
		cfg := config(func(c *Config) {
			c.FP16.Enabled, c.FP16.LossScale = true, 1
			c.DataTypes.GradAccumDType = accum
			c.ZeroOptimization.Stage = 2
		})
		tr := trial{cfg: cfg, world: 2, sizes: []int{2}, steps: 1, lr: 1, grad: func(_, _, _, _ int) float32 { return 65504 }}
		out := tr.must(t)
		switch r := out.results[0]; {
		case accum == "fp32" && (out.master[0] != -65504 || !r.Applied):
			t.Errorf("mean of 65504 and 65504: %v, %+v", -out.master[0], r)
		case accum == "fp16" && (r.Applied || r.Skip == nil || out.master[0] != 0):
			t.Errorf("fp16 sum: %+v", r)
		case accum == "fp16":
			if got, want := r.Skip.String(), `step 1 skipped: the sum of finite gradients overflows fp16, first in parameter "p0"`; got != want {
				t.Errorf("log line %q, want %q", got, want)
			}
		}
		tr.world = 4
		tr.grad = func(_, _, _, _ int) float32 { return 0x1p-24 }
		if got := -tr.must(t).master[0]; got != 0x1p-24 {
			t.Errorf("%s: mean of four times 2^-24 is %v", accum, got)
		}
	}
}

// TestFirstNonFinite looks at every value of the 16-bit formats and at the edges
// of fp32.
func TestFirstNonFinite(t *testing.T) {
	for _, f := range []float32{0, 1, -1, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32} {
		for n := range 9 {
			x := make([]float32, n)
			for i := range x {
				x[i] = f
			}
			if got := firstNonFinite(bufferOf("fp32", x)); got != -1 {
				t.Errorf("%d times %v: %d, want -1", n, f, got)
			}
			for i := range x {
				for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
					x[i] = float32(bad)
					for _, d := range []string{"fp32", "bf16", "fp16"} {
						if f == math.MaxFloat32 || f == -math.MaxFloat32 {
							continue // overflows in 16 bits
						}
						if got := firstNonFinite(bufferOf(d, x)); got != i {
							t.Errorf("%s: %v at %d of %d: %d", d, bad, i, n, got)
						}
					}
					x[i] = f
				}
			}
		}
	}
	for _, d := range []string{"bf16", "fp16"} {
		b := bufferOf(d, make([]float32, 1))
		for u := range 1 << 16 {
			b.U16[0] = uint16(u)
			want := -1
			if v := b.At(0); math.IsNaN(v) || math.IsInf(v, 0) {
				want = 0
			}
			if got := firstNonFinite(b); got != want {
				t.Fatalf("%s %#04x: %d, want %d", d, u, got, want)
			}
		}
	}
}
