package cases

import (
	"fmt"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
)

// Section B, weights that are used more than once in a step.

// sharing is a network that uses one weight several times, in checkpointed
// segments or not, with other parameters between the uses. Its gradients are the
// inputs, exactly.
type sharing struct {
	w, v *framework.Param
	mode framework.Mode
	nest string
	uses func(use, m, r, i int) float32 // input of a use
	n    int                            // uses of w
}

func newSharing(n, uses int, mode framework.Mode, nest string, input func(use, m, r, i int) float32) *sharing {
	return &sharing{
		w: framework.NewParam("w", make([]float32, n), 1, n), v: framework.NewParam("v", make([]float32, 50), 1, 50),
		mode: mode, nest: nest, uses: input, n: uses,
	}
}

func (s *sharing) Params() []*framework.Param { return []*framework.Param{s.w, s.v} }

func (s *sharing) Loss(t *framework.Tape, _, m, r, _ int) (*framework.Tensor, error) {
	input := func(use, n int) *framework.Tensor {
		x := make([]float32, n)
		for i := range x {
			x[i] = s.uses(use, m, r, i)
		}
		return t.Input([]int{1, n}, x)
	}
	segment := func(on bool, x *framework.Tensor, f func(*framework.Tensor) *framework.Tensor) *framework.Tensor {
		if !on {
			return f(x)
		}
		return t.Checkpoint(s.mode, x, f)
	}
	inputs := make([]*framework.Tensor, s.n)
	for u := range inputs {
		inputs[u] = input(u, s.w.Len())
	}
	gap := input(99, 50)
	model := func(x *framework.Tensor) *framework.Tensor {
		y := segment(s.nest == "each" || s.nest == "one" || s.nest == "nested", x, func(x *framework.Tensor) *framework.Tensor { return t.Linear(x, s.w.Value, nil) })
		for u := 1; u < s.n; u++ {
			y = t.Add(y, t.Linear(gap, s.v.Value, nil))
			y = t.Add(y, segment(s.nest == "each", inputs[u], func(x *framework.Tensor) *framework.Tensor {
				return segment(s.nest == "nested", x, func(x *framework.Tensor) *framework.Tensor { return t.Linear(x, s.w.Value, nil) })
			}))
		}
		return y
	}
	return linearLoss(t, segment(s.nest == "whole" || s.nest == "nested", inputs[0], model)), nil
}

// nests are the ways to lay segments around the uses: every use in one of its own,
// only the first, a segment inside a segment, the whole model in one.
var nests = []string{"each", "one", "nested", "whole"}

var modes = []framework.Mode{framework.ModeNone, framework.ModeReentrant, framework.ModeNonReentrant}

// wantShared trains once and compares w with the mean over the micro-batches of the
// sum over the uses.
func wantShared(t *testing.T, cfg zero.Config, world int, build func() *sharing) modelOutcome {
	t.Helper()
	out := modelTraining{cfg: cfg, world: world, build: func() (network, error) { return build(), nil }}.must(t)
	s := build()
	mean := func(i int, uses []int) float64 {
		var sum float64
		for m := range cfg.GradientAccumulationSteps {
			for r := range world {
				for _, u := range uses {
					sum += float64(s.uses(u, m, r, i))
				}
			}
		}
		return sum / float64(world*cfg.GradientAccumulationSteps)
	}
	all := make([]int, s.n)
	for u := range all {
		all[u] = u
	}
	for i, w := range out.weights["w"] {
		right := mean(i, all)
		want(t, fmt.Sprintf("%v, %s, stage %d: gradient of w[%d]", s.mode, s.nest, cfg.ZeroOptimization.Stage, i), -float64(w), right,
			mistake{mean(i, all[:1]), "only the first use was counted"},
			mistake{mean(i, all[s.n-1:]), "only the last use was counted"},
			mistake{right * float64(world), "the sum over the ranks was not divided"},
			mistake{right + mean(i, all[:1]), "the first use was counted twice"},
			mistake{right + mean(i, all[s.n-1:]), "the last use was counted twice"},
			mistake{2 * right, "everything was counted twice"})
		if t.Failed() {
			t.FailNow()
		}
	}
	return out
}

// TestE07SharedWeight: y = w·xA + w·xB. A weight used twice in one step has the sum
// of its contributions, reduced once, after the last (DeepSpeed #8224, #7718).
func TestE07SharedWeight(t *testing.T) {
	input := func(use, _, r, _ int) float32 { return float32(1 + use + 2*r) } // 1 and 2 on rank 0, 3 and 4 on rank 1
	for _, cfg := range allConfigs(nil) {
		out := wantShared(t, cfg, 2, func() *sharing { return newSharing(1, 2, framework.ModeNone, "", input) })
		want(t, "gradient of w", -float64(out.weights["w"][0]), 5)
	}
}

// TestE07ThreeUses: a large vector, over several buckets, used three times with
// other parameters between the uses and four micro-steps.
func TestE07ThreeUses(t *testing.T) {
	for _, world := range []int{1, 2, 4} {
		for _, cfg := range allConfigs(func(c *zero.Config) {
			c.GradientAccumulationSteps = 4
			c.ZeroOptimization.ReduceBucketSize = 100
			c.BF16.Enabled = c.ZeroOptimization.Stage == 1
		}) {
			wantShared(t, cfg, world, func() *sharing { return newSharing(1001, 3, framework.ModeNone, "", useInput) })
		}
	}
}

func useInput(use, m, r, i int) float32 { return float32((7*i+3*r+5*m+11*use)%17 - 8) }

// TestE08SharedWeightInSegments: E07 with the uses in checkpointed segments:
// reentrant, non-reentrant and none are the same bits, and each parameter is
// reduced once (DeepSpeed #988, transformers #18330, DALLE2-pytorch #225).
func TestE08SharedWeightInSegments(t *testing.T) {
	input := func(use, _, r, _ int) float32 { return float32(1 + use + 2*r) }
	for _, nest := range nests {
		for _, mode := range modes {
			for _, cfg := range allConfigs(nil) {
				out := wantShared(t, cfg, 2, func() *sharing { return newSharing(1, 2, mode, nest, input) })
				want(t, "gradient of w", -float64(out.weights["w"][0]), 5)
			}
			cfg := config(func(c *zero.Config) {
				c.ZeroOptimization.Stage = 2
				c.ZeroOptimization.ReduceBucketSize = 50 // v in one bucket, w in another
			})
			out := wantShared(t, cfg, 2, func() *sharing { return newSharing(1, 2, mode, nest, input) })
			if got := fmt.Sprint(sentSizes(out.gates.Log(0))); got != "[50 1]" {
				t.Errorf("%v, %s: reductions of %s elements, want [50 1]: w was reduced more than once", mode, nest, got)
			}
		}
	}
}

// TestE08LargeSharedWeight: the same for a vector over many buckets and four
// micro-steps.
func TestE08LargeSharedWeight(t *testing.T) {
	for _, nest := range nests {
		for _, mode := range modes[1:] {
			for stage := range 3 {
				cfg := config(func(c *zero.Config) {
					c.GradientAccumulationSteps = 4
					c.BF16.Enabled = true
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.OverlapComm = true
					c.ZeroOptimization.ReduceBucketSize = 100
				})
				wantShared(t, cfg, 2, func() *sharing { return newSharing(1001, 3, mode, nest, useInput) })
			}
		}
	}
}

// TestE08UNet: three steps of a UNet leave the same losses and weights with and
// without checkpointing, at every stage, with small and large buckets.
func TestE08UNet(t *testing.T) {
	for _, model := range []string{"fp32", "bf16"} {
		var first modelOutcome
		for stage := range 3 {
			for _, mode := range modes {
				for _, segments := range []int{0, 1, 2} {
					if testing.Short() && (stage+segments)%3 != 2 {
						continue
					}
					cfg := config(func(c *zero.Config) {
						c.BF16.Enabled = model == "bf16"
						c.GradientAccumulationSteps = 2
						c.ZeroOptimization.Stage = stage
						c.ZeroOptimization.OverlapComm = true
						c.ZeroOptimization.ReduceBucketSize = []int{100, 5e8}[segments%2]
					})
					out := tinyUNet{cfg: cfg, world: 2, steps: 3, mode: mode, segments: segments}.must(t)
					if first.losses == nil {
						first = out
					}
					if d := first.differs(out); d != "" {
						t.Errorf("%s, stage %d, %v in %d segments: other %s than without checkpointing", model, stage, mode, segments, d)
					}
				}
			}
		}
	}
}
