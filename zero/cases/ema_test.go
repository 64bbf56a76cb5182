package cases

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// averages trains five weights that start at init, all with the gradient grads[s]
// in step s, and returns the average of the last one after every step: the same on
// all ranks.
func averages(t *testing.T, cfg zero.Config, world int, rule zero.EMA, init float32, lr float64, grads []float32) []float32 {
	t.Helper()
	byRank := make([][]float32, world)
	_, errs := onRanks(t, world, gated.Options{}, nil, func(c comm.Communicator) error {
		ctx := context.Background()
		w := []float32{init, init, init, init, init}
		o, err := zero.New(ctx, []zero.Param{{Name: "w", Shape: []int{5}, Init: w}}, cfg, c, rule)
		if err != nil {
			return err
		}
		defer o.Close()
		for _, g := range grads {
			for range cfg.GradientAccumulationSteps {
				if err := o.GradReady(ctx, 0, []float32{g, g, g, g, g}); err != nil {
					return err
				}
				if err := o.EndBackward(ctx); err != nil {
					return err
				}
			}
			if _, err := o.Step(ctx, lr); err != nil {
				return err
			}
			ema, err := o.FullState(ctx, "w", "ema")
			if err != nil {
				return err
			}
			byRank[c.Rank()] = append(byRank[c.Rank()], ema[4])
		}
		return nil
	})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
		if !slices.Equal(byRank[r], byRank[0]) {
			t.Errorf("rank %d has the averages %v, rank 0 %v", r, byRank[r], byRank[0])
		}
	}
	return byRank[0]
}

// TestE36aEMA: once per applied step, from the fp32 master, at any world size
// (diffusers #5783 never updated, F5-TTS #631 updated every micro-step, diffusers
// #1930 broken on several GPUs).
func TestE36aEMA(t *testing.T) {
	half := zero.EMA{Rule: zero.SGD{}, Decay: 0.5}
	for _, cfg := range stageConfigs() {
		for _, world := range []int{1, 2, 4, 8} {
			for _, accum := range []int{1, 4} {
				cfg.GradientClipping, cfg.GradientAccumulationSteps = 0, accum
				name := fmt.Sprintf("stage %d, world %d, accumulation %d", cfg.ZeroOptimization.Stage, world, accum)
				got := averages(t, cfg, world, half, 0, 1, []float32{-1, -1, -1})
				if want := []float32{0.5, 1.25, 2.125}; !slices.Equal(got, want) {
					t.Errorf("%s: averages %v, want %v (0.5, 1.46875, 2.466796875: updated every micro-step)", name, got, want)
				}
				inf := float32(math.Inf(1))
				got = averages(t, cfg, world, half, 0, 1, []float32{-1, inf, -1})
				if want := []float32{0.5, 0.5, 1.25}; !slices.Equal(got, want) {
					t.Errorf("%s: averages %v with the second step skipped, want %v", name, got, want)
				}
			}
		}
	}
}

// TestE36aFP32: the average of bf16 weights is fp32. 1 drawn towards 2 with decay
// 0.9999 for 100 steps; an average kept in bf16 stays 1 for ever.
func TestE36aFP32(t *testing.T) {
	cfg := config(func(c *zero.Config) { c.BF16.Enabled = true; c.ZeroOptimization.Stage = 2 })
	grads := make([]float32, 100)
	grads[0] = -1 // 1 becomes 2 and stays there
	got := averages(t, cfg, 2, zero.EMA{Rule: zero.SGD{}, Decay: 0.9999}, 1, 1, grads)
	near(t, "average after 100 steps", float64(got[99]), 1.00995, 1e-5)
}

// TestE36aRamp: diffusers' rising decay: the first step takes the weights over,
// then min(decay, (1+s)/(10+s)).
func TestE36aRamp(t *testing.T) {
	got := averages(t, config(nil), 2, zero.EMA{Rule: zero.SGD{}, Decay: 0.25, Ramp: true}, 0, 1, []float32{-1, -1, -1, -1})
	want := 0.0
	for step, d := range []float64{0, 2.0 / 11, 0.25, 0.25} {
		want -= (1 - d) * (want - float64(step+1))
		near(t, fmt.Sprintf("average after step %d", step+1), float64(got[step]), want, 1e-6)
	}
	err := zero.EMA{Rule: zero.AdamW{Beta1: 2}, Decay: 1}.Validate()
	wantError(t, "rule", err, "EMA decay = 1", "optimizer.params.betas")
}
