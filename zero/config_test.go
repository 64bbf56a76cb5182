package zero

import (
	"errors"
	"math"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		change func(*Config)
		want   []string
	}{
		{func(c *Config) { c.ZeroOptimization.ReduceBucketSize = 0 }, []string{"zero_optimization.reduce_bucket_size = 0", "at least 1"}},
		{func(c *Config) { c.ZeroOptimization.ReduceBucketSize = -1 }, []string{"zero_optimization.reduce_bucket_size = -1"}},
		{func(c *Config) { c.ZeroOptimization.AllgatherBucketSize = 0 }, []string{"zero_optimization.allgather_bucket_size = 0"}},
		{func(c *Config) { c.ZeroOptimization.Stage = 3 }, []string{"zero_optimization.stage = 3", "not supported"}},
		{func(c *Config) { c.GradientAccumulationSteps = 0 }, []string{"gradient_accumulation_steps = 0"}},
		{func(c *Config) { c.GradientClipping = -1 }, []string{"gradient_clipping = -1"}},
		{func(c *Config) { c.GradientClipping = math.NaN() }, []string{"gradient_clipping = NaN"}},
		{func(c *Config) { c.GradientClipping = math.Inf(1) }, []string{"gradient_clipping = +Inf"}},
		{func(c *Config) { c.GradientAllreduceOp = "max" }, []string{`gradient_allreduce_op = "max"`, `"mean" or "sum"`}},
		{func(c *Config) { c.CommunicationDataType = "fp8" }, []string{`communication_data_type = "fp8"`, "fp32, bf16, fp16"}},
		{func(c *Config) { c.DataTypes.GradAccumDType = "fp8" }, []string{`data_types.grad_accum_dtype = "fp8"`, "fp32, bf16, fp16"}},
		{func(c *Config) { c.MaxConsecutiveSkips = 0 }, []string{"max_consecutive_skips = 0"}},
		{func(c *Config) { c.GradientPredivideFactor = 0 }, []string{"gradient_predivide_factor = 0", "positive finite"}},
		{func(c *Config) { c.GradientPredivideFactor = math.NaN() }, []string{"gradient_predivide_factor = NaN"}},
		{func(c *Config) { c.GradientPredivideFactor, c.PrescaleGradients = 2, true }, []string{"gradient_predivide_factor = 2", "prescale_gradients"}},
		{func(c *Config) { c.ZeroOptimization.ReductionOrder = "ring" }, []string{`zero_optimization.reduction_order = "ring"`, `"global" or "local"`}},
		{func(c *Config) { c.FP16.Enabled, c.BF16.Enabled = true, true }, []string{"fp16.enabled", "bf16.enabled"}},
		{func(c *Config) { c.FP16.Enabled, c.FP16.LossScale = true, -2 }, []string{"fp16.loss_scale = -2"}},
		{func(c *Config) { c.FP16.Enabled, c.FP16.InitialScalePower = true, 65 }, []string{"fp16.initial_scale_power = 65"}},
		{func(c *Config) { c.FP16.Enabled, c.FP16.LossScaleWindow = true, 0 }, []string{"fp16.loss_scale_window = 0"}},
		{func(c *Config) { c.FP16.Enabled, c.FP16.Hysteresis = true, 0 }, []string{"fp16.hysteresis = 0"}},
		{func(c *Config) { c.FP16.Enabled, c.FP16.MinLossScale = true, 0 }, []string{"fp16.min_loss_scale = 0"}},
		{func(c *Config) { c.FP16.Enabled, c.FP16.InitialScalePower, c.FP16.MinLossScale = true, 2, 8 }, []string{"fp16.min_loss_scale = 8", "2^2"}},
		{func(c *Config) { c.FP16.Enabled, c.CheckGradOverflow = true, false }, []string{"check_grad_overflow", "fp16.loss_scale"}},
		{func(c *Config) {
			c.ZeroOptimization.Stage = -1
			c.GradientClipping = -1
			c.CommunicationDataType = "int8"
		}, []string{"zero_optimization.stage = -1", "\n", "gradient_clipping = -1", "communication_data_type"}},
	} {
		wantError(t, config(tc.change).Validate(), tc.want...)
	}
	for _, change := range []func(*Config){
		nil,
		func(c *Config) { c.ZeroOptimization.ReduceBucketSize = 1; c.GradientClipping = 0 },
		func(c *Config) { c.FP16.Enabled, c.FP16.LossScale, c.CheckGradOverflow = true, 128, false },
		func(c *Config) { c.FP16.LossScaleWindow = -1 }, // not enabled
	} {
		if err := config(change).Validate(); err != nil {
			t.Error(err)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	_, err := NewPlan([]Param{{Name: "a"}}, Config{}, 1)
	wantError(t, err, "zero_optimization.reduce_bucket_size")
	_, err = NewPlan([]Param{{Name: "a"}}, DefaultConfig(), 0)
	wantError(t, err, "world size 0")
}

func TestPolicy(t *testing.T) {
	for _, tc := range []struct {
		change func(*Config)
		want   Policy
	}{
		{nil, Policy{dtype.F32, dtype.F32, dtype.F32, dtype.F32, dtype.F32}},
		{func(c *Config) { c.BF16.Enabled = true }, Policy{dtype.BF16, dtype.BF16, dtype.BF16, dtype.F32, dtype.F32}},
		{func(c *Config) { c.FP16.Enabled = true }, Policy{dtype.F16, dtype.F16, dtype.F16, dtype.F32, dtype.F32}},
		{func(c *Config) {
			c.BF16.Enabled = true
			c.CommunicationDataType, c.DataTypes.GradAccumDType = "fp32", "bf16"
		}, Policy{dtype.BF16, dtype.BF16, dtype.F32, dtype.BF16, dtype.F32}},
	} {
		if got := config(tc.change).Policy(); got != tc.want {
			t.Errorf("%v, want %v", got, tc.want)
		}
	}
	if got, want := config(func(c *Config) { c.BF16.Enabled = true }).Policy().String(), "param bf16, compute bf16, wire bf16, accum fp32, master fp32"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAdamWValidate(t *testing.T) {
	if err := DefaultAdamW().Validate(); err != nil {
		t.Error(err)
	}
	err := AdamW{Beta1: 1, Beta2: 0.9, Eps: -1, WeightDecay: math.NaN()}.Validate()
	wantError(t, err, "optimizer.params.betas = [1 0.9]", "optimizer.params.eps = -1", "optimizer.params.weight_decay = NaN")

	_, errs := trial{cfg: config(nil), world: 1, sizes: []int{2}, rule: AdamW{Beta1: 2}}.run(t)
	wantError(t, errors.Join(errs...), "optimizer.params.betas")
}

// TestAdamWSteps: with the gradient 1 and a rate of 0.1 every step moves the
// weight by almost 0.1, and a tied weight decays once.
func TestAdamWSteps(t *testing.T) {
	for stage := range 3 {
		cfg := config(func(c *Config) { c.ZeroOptimization.Stage = stage })
		rule := AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}
		out := trial{cfg: cfg, world: 2, sizes: []int{3}, rule: rule, steps: 11, lr: 0.1, grad: func(_, _, _, _ int) float32 { return 1 }}.must(t)
		if got := float64(out.master[2]); math.Abs(got+1.099999999) > 1e-6 {
			t.Errorf("stage %d: weight %v after 11 steps, want -1.099999999", stage, got)
		}
		rule.WeightDecay = 0.5
		out = trial{cfg: cfg, world: 2, sizes: []int{1}, rule: rule, steps: 1, lr: 0.1, init: func(int) float32 { return 1 }, grad: func(_, _, _, _ int) float32 { return 0 }}.must(t)
		if got := out.master[0]; got != float32(0.95) {
			t.Errorf("stage %d: decayed weight %v, want 0.95", stage, got)
		}
	}
}
