package zero

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/zero/comm"
)

// TestMemory: what a plan predicts is what the ranks allocate, by kind.
func TestMemory(t *testing.T) {
	sizes := slices.Repeat([]int{1000, 30, 7}, 20)
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			for _, model := range []string{"fp32", "bf16"} {
				for _, given := range []bool{false, true} {
					for _, gather := range []int{500, 5e8} {
						cfg := config(func(c *Config) {
							c.ZeroOptimization.Stage = stage
							c.ZeroOptimization.OverlapComm = overlap
							c.ZeroOptimization.ReduceBucketSize = 2000
							c.ZeroOptimization.AllgatherBucketSize = gather
							c.BF16.Enabled = model == "bf16"
						})
						tr := trial{cfg: cfg, world: 4, sizes: sizes, frozen: map[int]bool{1: true}, given: given, rule: DefaultAdamW(), steps: 2, grad: exactGrad(4)}
						// The wire is slow, so that every buffer is wanted.
						tr.wrap = func(c comm.Communicator) comm.Communicator {
							return &gate{Communicator: c, hold: func(int) { runtime.Gosched() }}
						}
						out := tr.must(t)
						want := out.plan.Memory(0, tr.rule, !given)
						got := out.peak
						if got.Buckets < want.Buckets/2 || got.Buckets > want.Buckets {
							t.Errorf("stage %d, overlap %v, %s: buckets took %d bytes, predicted %d", stage, overlap, model, got.Buckets, want.Buckets)
						}
						got.Buckets = want.Buckets
						if got != want {
							t.Errorf("stage %d, %s, given %v, gather %d:\n took %+v\n want %+v", stage, model, given, gather, got, want)
						}
					}
				}
			}
		}
	}
}

// TestMemoryFormula holds the prediction against the sums on paper, for Ψ elements
// in bf16 with fp32 accumulators on W ranks.
func TestMemoryFormula(t *testing.T) {
	const psi, world, bucket = 1 << 26, 4, 1 << 20
	for stage, want := range []Memory{
		{Parameters: 2 * psi, Gradients: 2 * psi, Accumulators: 4 * psi, Master: 4 * psi, Moments: 8 * psi},
		{Parameters: 2 * psi, Gradients: 2 * psi, Accumulators: psi, Master: psi, Moments: 2 * psi},
		{Parameters: 2 * psi, Accumulators: psi, Master: psi, Moments: 2 * psi, Buckets: 2 * 2 * bucket},
	} {
		cfg := config(func(c *Config) {
			c.BF16.Enabled = true
			c.ZeroOptimization.Stage = stage
			c.ZeroOptimization.OverlapComm = true
			c.ZeroOptimization.ReduceBucketSize = bucket
		})
		p, err := NewPlan([]Param{{Name: "w", Shape: []int{psi}}}, cfg, world)
		if err != nil {
			t.Fatal(err)
		}
		got := p.Memory(1, DefaultAdamW(), true)
		want.Workspace = 8 * (psi/1024 + 2*world + psi/1024/world + 2)
		if got != want {
			t.Errorf("stage %d: %+v, want %+v", stage, got, want)
		}
	}
	// fp32 throughout: the accumulators of stage 0 are the gradient.
	cfg := config(func(c *Config) { c.ZeroOptimization.ReduceBucketSize = bucket })
	p, err := NewPlan([]Param{{Name: "w", Shape: []int{psi}}}, cfg, world)
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Memory(0, nil, true); m.Gradients != 0 || m.Accumulators != 4*psi || m.Buckets != 4*bucket || m.Moments != 0 {
		t.Errorf("fp32, stage 0: %+v", m)
	}
}

// TestHugeBucket: buffers are as large as the model at most, whatever the key says.
func TestHugeBucket(t *testing.T) {
	cfg := config(func(c *Config) {
		c.BF16.Enabled = true
		c.ZeroOptimization.Stage = 2
		c.ZeroOptimization.OverlapComm = true
	})
	out := trial{cfg: cfg, world: 2, sizes: []int{600, 400}, steps: 3, grad: exactGrad(2)}.must(t)
	if max := int64(2 * 1000 * 2); out.peak.Buckets > max {
		t.Errorf("buckets took %d bytes, want at most %d", out.peak.Buckets, max)
	}
}

// TestSteadyState: after the first steps, a step allocates next to nothing, and
// the count of live bytes does not move.
func TestSteadyState(t *testing.T) {
	const n, count = 20_000, 10
	grads := make([][]float32, count)
	for i := range grads {
		grads[i] = make([]float32, n)
	}
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			cfg := config(func(c *Config) {
				c.BF16.Enabled = true
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = overlap
				c.ZeroOptimization.ReduceBucketSize = n
				c.ZeroOptimization.AllgatherBucketSize = n
			})
			var perStep uint64
			var before, after [2]Memory
			errs := ranks(t, 2, func(c comm.Communicator) error {
				o, err := New(context.Background(), trial{cfg: cfg, sizes: slices.Repeat([]int{n}, count)}.params(), cfg, c, DefaultAdamW())
				if err != nil {
					return err
				}
				defer o.Close()
				if err := plainSteps(o, grads, 5); err != nil {
					return err
				}
				before[c.Rank()], _ = o.Memory()
				var m0, m1 runtime.MemStats
				runtime.ReadMemStats(&m0)
				if err := plainSteps(o, grads, 10); err != nil {
					return err
				}
				runtime.ReadMemStats(&m1)
				after[c.Rank()], _ = o.Memory()
				if c.Rank() == 0 {
					perStep = (m1.TotalAlloc - m0.TotalAlloc) / 10
				}
				return nil
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			// Both ranks together; one gradient has 80 kB.
			if perStep > 120_000 {
				t.Errorf("stage %d, overlap %v: %d bytes are allocated per step", stage, overlap, perStep)
			}
			if before != after {
				t.Errorf("stage %d, overlap %v: live memory moves from %+v to %+v", stage, overlap, before, after)
			}
		}
	}
}

func plainSteps(o *Optimizer, grads [][]float32, steps int) error {
	ctx := context.Background()
	for range steps {
		for i := len(grads) - 1; i >= 0; i-- {
			if err := o.GradReady(ctx, i, grads[i]); err != nil {
				return err
			}
		}
		if err := o.EndBackward(ctx); err != nil {
			return err
		}
		if _, err := o.Step(ctx, 1e-3); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkStep is one micro-batch and one AdamW step of the whole machinery on
// two ranks.
func BenchmarkStep(b *testing.B) {
	const n, count = 1 << 16, 16
	grads := make([][]float32, count)
	for i := range grads {
		grads[i] = make([]float32, n)
	}
	for stage := range 3 {
		for _, bucket := range []int{1 << 14, 1 << 18, 5e8} {
			b.Run(fmt.Sprintf("stage=%d/bucket=%d", stage, bucket), func(b *testing.B) {
				cfg := config(func(c *Config) {
					c.BF16.Enabled = true
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.OverlapComm = true
					c.ZeroOptimization.ReduceBucketSize = bucket
				})
				b.SetBytes(4 * n * count)
				errs := ranks(b, 2, func(c comm.Communicator) error {
					o, err := New(context.Background(), trial{cfg: cfg, sizes: slices.Repeat([]int{n}, count)}.params(), cfg, c, DefaultAdamW())
					if err != nil {
						return err
					}
					defer o.Close()
					return plainSteps(o, grads, b.N)
				})
				if err := errors.Join(errs...); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
