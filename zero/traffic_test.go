package zero

import (
	"fmt"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// TestTraffic: what a plan predicts is what every rank sends, to the byte.
func TestTraffic(t *testing.T) {
	sizes := slices.Repeat([]int{1000, 30, 0, 7}, 5)
	for stage := range 3 {
		for _, world := range []int{1, 2, 4} {
			for _, format := range []struct{ model, wire string }{{"fp32", ""}, {"bf16", ""}, {"fp16", ""}, {"bf16", "fp32"}, {"fp32", "fp16"}} {
				for _, overlap := range []bool{false, true} {
					for _, size := range []int{64, 2000, 5e8} {
						cfg := config(func(c *Config) {
							c.GradientAccumulationSteps = 1 + world%3
							c.BF16.Enabled = format.model == "bf16"
							c.FP16.Enabled = format.model == "fp16"
							c.FP16.InitialScalePower = 0
							c.CommunicationDataType = format.wire
							c.ZeroOptimization.Stage = stage
							c.ZeroOptimization.OverlapComm = overlap
							c.ZeroOptimization.ReduceBucketSize = size
							c.ZeroOptimization.AllgatherBucketSize = size
						})
						const steps = 2
						out := trial{cfg: cfg, world: world, sizes: sizes, frozen: map[int]bool{1: true}, steps: steps, grad: exactGrad(world)}.must(t)
						for rank, got := range out.traffic {
							want := out.plan.Traffic(rank)
							want.scale(steps)
							want.Other = got.Other
							if got != want {
								t.Errorf("stage %d, world %d, %+v, overlap %v, size %d, rank %d:\n sent %+v\n want %+v", stage, world, format, overlap, size, rank, got, want)
							}
							// The two halves of the layout hash, and rank 0's order of the buckets.
							other := int64(2 * 8 * (world - 1))
							if n := len(out.plan.Buckets); rank == 0 && n > 1 {
								other += int64(8 * n * (world - 1))
							}
							if got.Other.Bytes != other {
								t.Errorf("stage %d, world %d, size %d, rank %d: %d other bytes, want %d", stage, world, size, rank, got.Other.Bytes, other)
							}
						}
					}
				}
			}
		}
	}
}

// TestTrafficOfKnobs: the same for every way to reduce.
func TestTrafficOfKnobs(t *testing.T) {
	sizes := slices.Repeat([]int{1000, 30, 0, 7}, 3)
	for name, change := range map[string]func(*Config){
		"local order":             func(c *Config) { c.ZeroOptimization.ReductionOrder = OrderLocal },
		"no reduce_scatter":       func(c *Config) { c.ZeroOptimization.ReduceScatter = false },
		"no contiguous_gradients": func(c *Config) { c.ZeroOptimization.ContiguousGradients = false },
		"one owner a collective":  func(c *Config) { c.ZeroOptimization.UseMultiRankBucketAllreduce = false },
		"round_robin_gradients":   func(c *Config) { c.ZeroOptimization.RoundRobinGradients = true },
		"round robin by the owner": func(c *Config) {
			c.ZeroOptimization.RoundRobinGradients = true
			c.ZeroOptimization.UseMultiRankBucketAllreduce = false
		},
		"prescale_gradients": func(c *Config) { c.PrescaleGradients = true },
	} {
		for stage := range 3 {
			for _, world := range []int{1, 2, 4} {
				cfg := config(func(c *Config) {
					c.GradientAccumulationSteps = 2
					c.BF16.Enabled = true
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.ReduceBucketSize = 1500
					c.ZeroOptimization.AllgatherBucketSize = 1500
					change(c)
				})
				const steps = 2
				out := trial{cfg: cfg, world: world, sizes: sizes, steps: steps, grad: exactGrad(world)}.must(t)
				for rank, got := range out.traffic {
					want := out.plan.Traffic(rank)
					want.scale(steps)
					want.Other = got.Other
					if got != want {
						t.Errorf("%s, stage %d, world %d, rank %d:\n sent %+v\n want %+v", name, stage, world, rank, got, want)
					}
				}
			}
		}
	}
}

// scale multiplies what a step sends.
func (t *Traffic) scale(steps int64) {
	for _, f := range []*Flow{&t.Gradients, &t.Weights, &t.Norm} {
		f.Bytes *= steps
		f.Collectives *= steps
	}
}

// TestTrafficFormula holds the prediction against the sums on paper: Ψ elements in
// bf16 on W ranks send (W-1)/W of the gradients and of the weights, each in two
// bytes, whatever the bucket size.
func TestTrafficFormula(t *testing.T) {
	const psi, world, micro = 1 << 24, 64, 3
	for _, bucket := range []int{1 << 14, 1 << 20, 5e8} {
		for stage := range 3 {
			cfg := config(func(c *Config) {
				c.BF16.Enabled = true
				c.GradientAccumulationSteps = micro
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.ReduceBucketSize = bucket
			})
			p, err := NewPlan([]Param{{Name: "w", Shape: []int{psi}}}, cfg, world)
			if err != nil {
				t.Fatal(err)
			}
			const share = 2 * psi / world * (world - 1)
			want := Traffic{
				Gradients: Flow{micro * share, int64(micro * len(p.Buckets))},
				Weights:   Flow{share, 1},
			}
			if stage == 0 { // every rank adds everything
				want.Gradients.Bytes, want.Weights = micro*2*psi*(world-1), Flow{}
			}
			got := p.Traffic(17)
			want.Norm = got.Norm
			if got != want {
				t.Errorf("stage %d, bucket %d: %+v, want %+v", stage, bucket, got, want)
			}
			if sum := got.Total(); sum.Bytes != got.Gradients.Bytes+got.Weights.Bytes+got.Norm.Bytes {
				t.Errorf("total %+v of %+v", sum, got)
			}
		}
	}
}

// TestSkippedStepSendsNoWeights: a step that is skipped costs its gradients and
// norm, and no weights.
func TestSkippedStepSendsNoWeights(t *testing.T) {
	cfg := config(func(c *Config) { c.ZeroOptimization.Stage = 2 })
	huge := func(s, _, _, _ int) float32 { return []float32{1, 3e38, 1}[s] }
	out := trial{cfg: cfg, world: 2, sizes: []int{10, 6}, steps: 3, grad: func(s, m, r, i int) float32 { return 2 * huge(s, m, r, i) }}.must(t)
	want := out.plan.Traffic(0)
	if got := out.traffic[0]; got.Weights.Bytes != 2*want.Weights.Bytes || got.Gradients.Bytes != 3*want.Gradients.Bytes || want.Weights.Bytes == 0 {
		t.Errorf("sent %+v in three steps of which one was skipped; a step is %+v", got, want)
	}
}

// TestSent: each kind of collective, on paper.
func TestSent(t *testing.T) {
	for _, c := range []struct {
		op   comm.Op
		want int64
	}{
		{comm.Op{Kind: comm.ReduceScatter, Bounds: []int{0, 3, 10, 10}, Send: dtype.Make(dtype.BF16, 10)}, 2 * 3},
		{comm.Op{Kind: comm.AllReduce, Send: dtype.Make(dtype.F32, 10)}, 4 * 10 * 2},
		{comm.Op{Kind: comm.AllGather, Bounds: []int{0, 3, 10, 10}, Send: dtype.Make(dtype.F64, 7)}, 8 * 7 * 2},
		{comm.Op{Kind: comm.Barrier}, 0},
	} {
		if got := c.op.Sent(1, 3); got != c.want {
			t.Errorf("%v: %d bytes, want %d", fmt.Sprint(c.op.Kind), got, c.want)
		}
	}
}
