package zero

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/zero/comm"
)

// knobChanges are the switches that decide what memory there is and what is sent.
var knobChanges = map[string]func(*Config){
	"local order":                        func(c *Config) { c.ZeroOptimization.ReductionOrder = OrderLocal },
	"local order, bf16 accumulators":     func(c *Config) { c.ZeroOptimization.ReductionOrder = OrderLocal; c.DataTypes.GradAccumDType = "bf16" },
	"no reduce_scatter":                  func(c *Config) { c.ZeroOptimization.ReduceScatter = false },
	"no contiguous_gradients":            func(c *Config) { c.ZeroOptimization.ContiguousGradients = false },
	"no use_multi_rank_bucket_allreduce": func(c *Config) { c.ZeroOptimization.UseMultiRankBucketAllreduce = false },
	"round_robin_gradients":              func(c *Config) { c.ZeroOptimization.RoundRobinGradients = true },
	"prescale_gradients":                 func(c *Config) { c.PrescaleGradients = true },
	"fp32 wire":                          func(c *Config) { c.CommunicationDataType = "fp32" },
}

// TestMemoryOfKnobs: what a plan predicts is what the ranks allocate, with groups
// of different states and parameters of two formats.
func TestMemoryOfKnobs(t *testing.T) {
	sizes := slices.Repeat([]int{1000, 30, 7}, 20)
	groups := []Group{{}, {Rule: sgd{}}}
	for name, change := range knobChanges {
		for stage := range 3 {
			cfg := config(func(c *Config) {
				c.GradientAccumulationSteps = 2
				c.BF16.Enabled = true
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = true
				c.ZeroOptimization.ReduceBucketSize = 2000
				c.ZeroOptimization.AllgatherBucketSize = 5000
				change(c)
			})
			tr := trial{cfg: cfg, world: 4, sizes: sizes, frozen: map[int]bool{1: true}, rule: DefaultAdamW(), groups: groups, steps: 2, grad: exactGrad(4),
				group: func(p int) int { return p % 2 }, dtype: func(p int) string { return []string{"fp32", "", ""}[p%3] }}
			// The wire is slow, so that every buffer is wanted.
			tr.wrap = func(c comm.Communicator) comm.Communicator {
				return &gate{Communicator: c, hold: func(int) { runtime.Gosched() }}
			}
			out := tr.must(t)
			want, got := out.plan.Memory(0, tr.rule, true, groups...), out.peak
			if got.Buckets < want.Buckets/4 || got.Buckets > want.Buckets {
				t.Errorf("%s, stage %d: buckets took %d bytes, predicted %d", name, stage, got.Buckets, want.Buckets)
			}
			got.Buckets = want.Buckets
			if got != want {
				t.Errorf("%s, stage %d:\n took %+v\n want %+v", name, stage, got, want)
			}
		}
	}
}

// TestSteadyStateOfKnobs: after the first steps a step allocates nothing large,
// and the count of live bytes does not move.
func TestSteadyStateOfKnobs(t *testing.T) {
	const n, count = 4_000, 10
	grads := make([][]float32, count)
	for i := range grads {
		grads[i] = make([]float32, n)
	}
	for name, change := range knobChanges {
		for stage := range 3 {
			cfg := config(func(c *Config) {
				c.BF16.Enabled = true
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = stage == 2
				c.ZeroOptimization.ReduceBucketSize = n
				c.ZeroOptimization.AllgatherBucketSize = n
				change(c)
			})
			var perStep uint64
			var before, after [2]Memory
			errs := trial{cfg: cfg, world: 2, sizes: slices.Repeat([]int{n}, count), rule: DefaultAdamW()}.withOptimizer(t, func(o *Optimizer, c comm.Communicator) error {
				if err := plainSteps(o, grads, 3); err != nil {
					return err
				}
				before[c.Rank()], _ = o.Memory()
				var m0, m1 runtime.MemStats
				runtime.ReadMemStats(&m0)
				if err := plainSteps(o, grads, 5); err != nil {
					return err
				}
				runtime.ReadMemStats(&m1)
				after[c.Rank()], _ = o.Memory()
				if c.Rank() == 0 {
					perStep = (m1.TotalAlloc - m0.TotalAlloc) / 5
				}
				return nil
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			// Both ranks together; all gradients have 160 kB.
			if perStep > 80_000 {
				t.Errorf("%s, stage %d: %d bytes are allocated per step", name, stage, perStep)
			}
			if before != after {
				t.Errorf("%s, stage %d: live memory moves from %+v to %+v", name, stage, before, after)
			}
		}
	}
}

// TestLocalOrderSendsOnce: in "local" order stages 0 and 1 reduce once per step,
// whatever the accumulation, and stage 2 as often as ever.
func TestLocalOrderSendsOnce(t *testing.T) {
	for stage := range 3 {
		var sent [2]Flow
		for k, order := range []string{OrderGlobal, OrderLocal} {
			cfg := config(func(c *Config) {
				c.GradientAccumulationSteps = 5
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.ReductionOrder = order
			})
			sent[k] = trial{cfg: cfg, world: 2, sizes: []int{100}, steps: 1, grad: exactGrad(2)}.must(t).traffic[0].Gradients
		}
		want := int64(5)
		if stage == 2 {
			want = 1
		}
		if sent[0].Bytes != want*sent[1].Bytes || sent[0].Collectives != want*sent[1].Collectives {
			t.Errorf("stage %d: %+v in global order, %+v in local order", stage, sent[0], sent[1])
		}
	}
}

// TestLocalOrderDependsOnWorld shows what "local" gives up, and what it keeps: the
// same bits at stages 0 and 1, but others at another world size.
func TestLocalOrderDependsOnWorld(t *testing.T) {
	run := func(world, stage int, order string) outcome {
		cfg := config(func(c *Config) {
			c.GradientAccumulationSteps = 8 / world
			c.ZeroOptimization.Stage = stage
			c.ZeroOptimization.ReductionOrder = order
		})
		return trial{cfg: cfg, world: world, sizes: []int{500}, steps: 2, lr: 1, grad: noise(11, world), init: initial}.must(t)
	}
	if err := sameOutcome(run(2, 0, OrderLocal), run(2, 1, OrderLocal)); err != nil {
		t.Errorf("stages 0 and 1: %v", err)
	}
	if sameOutcome(run(2, 1, OrderLocal), run(4, 1, OrderLocal)) == nil {
		t.Error("the world size changes no bit: local order adds as global order does")
	}
	if err := sameOutcome(run(2, 1, OrderGlobal), run(4, 1, OrderGlobal)); err != nil {
		t.Errorf("global order: %v", err)
	}
	if err := sameOutcome(run(8, 1, OrderGlobal), run(8, 1, OrderLocal)); err != nil {
		t.Errorf("without accumulation: %v", err)
	}
}

// TestWireOverflow: what is divided before the sum fits where the sum would not,
// and loses what is too small; the accumulators themselves have room for both.
func TestWireOverflow(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		grad   float32
		want   float32 // mean; 0 for what vanishes
		skip   bool
	}{
		{"largest, fp32 sums", func(c *Config) {}, 65504, 65504, false},
		{"largest, fp16 sums", func(c *Config) { c.DataTypes.GradAccumDType = "fp16" }, 65504, 0, true},
		{"largest, prescaled", func(c *Config) { c.DataTypes.GradAccumDType = "fp16"; c.PrescaleGradients = true }, 65504, 65504, false},
		{"largest, predivided", func(c *Config) { c.DataTypes.GradAccumDType = "fp16"; c.GradientPredivideFactor = 4 }, 65504, 65504, false},
		{"smallest", func(c *Config) {}, 1.0 / (1 << 24), 1.0 / (1 << 24), false},
		{"smallest, prescaled", func(c *Config) { c.PrescaleGradients = true }, 1.0 / (1 << 24), 0, false},
	} {
		for stage := range 3 {
			for _, order := range []string{OrderGlobal, OrderLocal} {
				cfg := config(func(c *Config) {
					c.FP16.Enabled, c.FP16.LossScale = true, 1
					c.ZeroOptimization.Stage, c.ZeroOptimization.ReductionOrder = stage, order
					tc.change(c)
				})
				out := trial{cfg: cfg, world: 4, sizes: []int{3}, steps: 1, lr: 1, grad: func(_, _, _, _ int) float32 { return tc.grad }}.must(t)
				if r := out.results[0]; r.Applied == tc.skip || out.master[1] != -tc.want {
					t.Errorf("%s, stage %d, %s: applied %v, weight %v, want %v", tc.name, stage, order, r.Applied, out.master[1], -tc.want)
				}
			}
		}
	}
}

// TestNewRefusesGroups: a group that is not there, a rate that is none, and a rule
// that is wrong.
func TestNewRefusesGroups(t *testing.T) {
	for _, tc := range []struct {
		groups []Group
		index  int
		want   string
	}{
		{nil, 1, `"p0": group 1, there are 1`},
		{[]Group{{}, {}}, 2, "group 2, there are 2"},
		{[]Group{{}}, -1, "group -1"},
		{[]Group{{LRScale: -1}}, 0, "group 0: LRScale -1"},
		{[]Group{{}, {Rule: AdamW{Beta1: 2}}}, 0, "group 1: optimizer.params.betas"},
	} {
		tr := trial{cfg: config(nil), world: 1, sizes: []int{2}, groups: tc.groups, group: func(int) int { return tc.index }}
		errs := tr.withOptimizer(t, func(o *Optimizer, _ comm.Communicator) error { return o.Drain(context.Background()) })
		wantError(t, errors.Join(errs...), tc.want)
	}
	errs := ranks(t, 1, func(c comm.Communicator) error {
		_, err := New(context.Background(), []Param{{Name: "w"}}, config(nil), c, nil)
		return err
	})
	wantError(t, errors.Join(errs...), "group 0 has no rule")
	tr := trial{cfg: config(nil), world: 1, sizes: []int{2}, dtype: func(int) string { return "fp8" }}
	errs = tr.withOptimizer(t, func(o *Optimizer, _ comm.Communicator) error { return nil })
	wantError(t, errors.Join(errs...), `"p0"`, "fp8", "fp32, bf16, fp16")
}
