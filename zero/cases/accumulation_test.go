package cases

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// Section B, boundaries that the caller draws, and sums that a rank keeps.

// TestE10UnmanagedBackwards: with managed_gradient_accumulation = false any number of
// backwards is summed until Step: 1, 2 and 3 are 6. Managed, the second backward of
// a step of one is an error, and the step has the first (open-instruct #1498).
func TestE10UnmanagedBackwards(t *testing.T) {
	micro := func(_, m, _, _ int) float32 { return float32(m + 1) }
	for _, order := range []string{zero.OrderGlobal, zero.OrderLocal} {
		for _, cfg := range allConfigs(func(c *zero.Config) {
			c.ManagedGradientAccumulation = false
			c.ZeroOptimization.ReductionOrder = order
		}) {
			for _, world := range []int{1, 2, 3} {
				out := training{cfg: cfg, world: world, sizes: []int{1}, steps: 2, backwards: 3, grad: micro}.must(t)
				for s, w := range out.weights {
					want(t, fmt.Sprintf("%s order, world %d, stage %d, step %d: 1 + 2 + 3", order, world, cfg.ZeroOptimization.Stage, s+1), -float64(w[0])/float64(s+1), 6,
						mistake{3, "only the last backward was counted"}, mistake{1, "only the first backward was counted"},
						mistake{2, "divided by the number of backwards, which nobody configured"})
				}
			}
		}
	}
	for _, cfg := range allConfigs(nil) {
		_, errs := training{cfg: cfg, world: 2, sizes: []int{1}, backwards: 3, grad: micro}.run(t)
		wantErrors(t, errs, "backward 2", "gradient_accumulation_steps = 1")
	}
}

// TestE10BackwardsDiffer: ranks that closed a different number of backwards get an
// error on all of them, not each other's sums.
func TestE10BackwardsDiffer(t *testing.T) {
	for _, order := range []string{zero.OrderGlobal, zero.OrderLocal} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) {
				c.ManagedGradientAccumulation = false
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.ReductionOrder = order
			})
			_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
				ctx := context.Background()
				o, err := zero.New(ctx, training{sizes: f1}.params(), cfg, c, zero.SGD{})
				if err != nil {
					return err
				}
				defer o.Close()
				for range 2 + c.Rank() {
					for i := range f1 {
						if err := o.GradReady(ctx, i, make([]float32, f1[i])); err != nil {
							return err
						}
					}
					if err := o.EndBackward(ctx); err != nil {
						return err
					}
				}
				_, err = o.Step(ctx, 1)
				return err
			})
			wantErrors(t, errs, "rank 0", "rank 1")
		}
	}
}

// TestE10ChangedAccumulation: four micro-steps, then two, then three.
func TestE10ChangedAccumulation(t *testing.T) {
	for _, cfg := range allConfigs(func(c *zero.Config) { c.GradientAccumulationSteps = 4 }) {
		_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
			ctx := context.Background()
			o, err := zero.New(ctx, training{sizes: []int{2}}.params(), cfg, c, zero.SGD{})
			if err != nil {
				return err
			}
			defer o.Close()
			for k, n := range []int{4, 2, 3} {
				if k > 0 {
					if err := o.SetGradientAccumulationSteps(ctx, n); err != nil {
						return err
					}
				}
				before := o.Value(0).At(1)
				var sum float64
				for m := range n {
					g := float32(6 * (m + 1) * (1 + c.Rank()))
					sum += float64(6*(m+1)) * 3 // both ranks
					if err := o.GradReady(ctx, 0, []float32{g, g}); err != nil {
						return err
					}
					if err := o.EndBackward(ctx); err != nil {
						return err
					}
				}
				wantError(t, "too early a change", o.SetGradientAccumulationSteps(ctx, 5), "between steps")
				if _, err := o.Step(ctx, 1); err != nil {
					return err
				}
				want(t, fmt.Sprintf("mean over %d micro-steps", n), before-o.Value(0).At(1), sum/float64(2*n),
					mistake{sum / 8, "divided by the old number"})
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestE10ChangedOnOneRank: ranks that ask for different numbers are told both.
func TestE10ChangedOnOneRank(t *testing.T) {
	_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
		o, err := zero.New(context.Background(), training{sizes: f1}.params(), config(nil), c, zero.SGD{})
		if err != nil {
			return err
		}
		defer o.Close()
		return o.SetGradientAccumulationSteps(context.Background(), 2+c.Rank())
	})
	wantErrors(t, errs, "rank 0", "rank 1", "gradient_accumulation_steps = 2", "gradient_accumulation_steps = 3")
}

// TestE12LocalOrder: a rank that adds up its own micro-batches keeps them in the
// accumulation format; only the sum is rounded to the wire format, once per step.
func TestE12LocalOrder(t *testing.T) {
	for _, tc := range []struct {
		accum, wire string
		right       float64
	}{
		{"fp32", "fp32", 0.0643310546875},
		{"fp32", "bf16", 0.064453125}, // a quarter ulp: the documented rounding of the sum
		{"bf16", "bf16", 0.0625},
	} {
		for _, world := range []int{1, 2} {
			for stage := range 2 {
				cfg := config(func(c *zero.Config) {
					c.GradientAccumulationSteps = 16
					c.BF16.Enabled = true
					c.CommunicationDataType, c.DataTypes.GradAccumDType = tc.wire, tc.accum
					c.ZeroOptimization.Stage, c.ZeroOptimization.ReductionOrder = stage, zero.OrderLocal
				})
				r := training{cfg: cfg, world: world, sizes: []int{1}, grad: func(_, m, _, _ int) float32 {
					if m == 0 {
						return 1
					}
					return 0x1p-9
				}}.must(t).results[0]
				want(t, fmt.Sprintf("accumulated in %s, sent in %s, world %d, stage %d", tc.accum, tc.wire, world, stage), r.Norm, tc.right)
			}
		}
	}
}

// TestE01LocalOrder: in "local" order too, nothing but the order itself, the world
// size and the accumulation changes a bit: buckets, overlap, stages 0 and 1 and
// every way to reduce do not. The traffic is one reduction per step.
func TestE01LocalOrder(t *testing.T) {
	for _, world := range []int{2, 3, 4} {
		var first outcome
		for n, cfg := range allConfigs(func(c *zero.Config) {
			c.GradientAccumulationSteps = 4
			c.GradientClipping = 1
			c.ZeroOptimization.ReductionOrder = zero.OrderLocal
		}) {
			if cfg.ZeroOptimization.Stage == 2 {
				continue
			}
			cfg.CommunicationDataType = "bf16"
			cfg.ZeroOptimization.ReduceBucketSize = []int{30, 100, 131, 5e8}[n%4]
			cfg.ZeroOptimization.RoundRobinGradients = n%3 == 0
			tr := training{cfg: cfg, world: world, sizes: f1, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.01), grad: noise(4, world), order: shuffled(len(f1), uint64(n))}
			out := tr.must(t)
			if first.results == nil {
				first = out
			}
			if d := sameTraining(first, out); d != "" {
				t.Fatalf("world %d: %s\n%+v", world, d, cfg)
			}
			sent := 0
			for _, n := range sentSizes(out.gates.Log(0)) {
				sent += n
			}
			want(t, "elements reduced in three steps", float64(sent), 3*f1Len, mistake{12 * f1Len, "every micro-batch was reduced"})
		}
	}
}
