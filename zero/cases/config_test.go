package cases

import (
	"math"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/zero"
)

// Section F: configuration. What a file may say is internal/config's, whose tests
// TestBucketSize, TestValues, TestUnknownKeys, TestDuplicateKeys and TestBatchSizes
// hold every value of E31 and E32. This is the same for a configuration that comes
// from Go.

// TestE31Values: what would fail later, or never, is refused before anything is
// built, with its dotted key, its value and what is allowed (DeepSpeed #8260,
// accelerate #2814, recsys-examples #374).
func TestE31Values(t *testing.T) {
	for _, tc := range []struct {
		change func(*zero.Config)
		want   []string
	}{
		{func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = 0 }, []string{"zero_optimization.reduce_bucket_size = 0", "at least 1"}},
		{func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = -1 }, []string{"zero_optimization.reduce_bucket_size = -1", "at least 1"}},
		{func(c *zero.Config) { c.ZeroOptimization.AllgatherBucketSize = 0 }, []string{"zero_optimization.allgather_bucket_size = 0"}},
		{func(c *zero.Config) { c.ZeroOptimization.Stage = 3 }, []string{"zero_optimization.stage = 3", "stage 3 is not supported"}},
		{func(c *zero.Config) { c.ZeroOptimization.Stage = -1 }, []string{"zero_optimization.stage = -1"}},
		{func(c *zero.Config) { c.FP16.Enabled, c.BF16.Enabled = true, true }, []string{"fp16.enabled", "bf16.enabled"}},
		{func(c *zero.Config) { c.GradientClipping = -1 }, []string{"gradient_clipping = -1"}},
		{func(c *zero.Config) { c.GradientClipping = math.NaN() }, []string{"gradient_clipping = NaN"}},
		{func(c *zero.Config) { c.GradientClipping = math.Inf(1) }, []string{"gradient_clipping = +Inf"}},
		{func(c *zero.Config) { c.GradientAccumulationSteps = 0 }, []string{"gradient_accumulation_steps = 0", "at least 1"}},
		{func(c *zero.Config) { c.GradientAllreduceOp = "avg" }, []string{`gradient_allreduce_op = "avg"`, `"mean" or "sum"`}},
		{func(c *zero.Config) { c.DataTypes.GradAccumDType = "fp8" }, []string{`data_types.grad_accum_dtype = "fp8"`, "fp32, bf16, fp16"}},
		{func(c *zero.Config) { c.CommunicationDataType = "int8" }, []string{`communication_data_type = "int8"`, "fp32, bf16, fp16"}},
		{func(c *zero.Config) { c.FP16.Enabled, c.FP16.LossScale = true, -1 }, []string{"fp16.loss_scale = -1"}},
		{func(c *zero.Config) { c.FP16.Enabled, c.FP16.LossScaleWindow = true, 0 }, []string{"fp16.loss_scale_window = 0"}},
		{func(c *zero.Config) { c.FP16.Enabled, c.FP16.Hysteresis = true, 0 }, []string{"fp16.hysteresis = 0"}},
		{func(c *zero.Config) { c.FP16.Enabled, c.FP16.InitialScalePower = true, 100 }, []string{"fp16.initial_scale_power = 100"}},
		{func(c *zero.Config) { c.FP16.Enabled, c.FP16.MinLossScale = true, 0 }, []string{"fp16.min_loss_scale = 0"}},
	} {
		cfg := config(tc.change)
		wantError(t, "Validate", cfg.Validate(), tc.want...)
		_, errs := training{cfg: cfg, world: 2, sizes: []int{1000}, grad: constant(1)}.run(t)
		wantErrors(t, errs, tc.want...)
	}
	for _, change := range []func(*zero.Config){
		func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = 1 },
		func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = 500_000_000 },
		func(c *zero.Config) { c.GradientClipping = 0 },
	} {
		if err := config(change).Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestE31AllAtOnce: every problem of a configuration is named at once, one a line.
func TestE31AllAtOnce(t *testing.T) {
	cfg := config(func(c *zero.Config) {
		c.ZeroOptimization.Stage, c.ZeroOptimization.ReduceBucketSize, c.GradientClipping = 3, 0, -1
	})
	err := cfg.Validate()
	wantError(t, "Validate", err, "zero_optimization.stage = 3", "zero_optimization.reduce_bucket_size = 0", "gradient_clipping = -1")
	if n := strings.Count(err.Error(), "\n") + 1; n != 3 {
		t.Errorf("%d lines, want 3:\n%v", n, err)
	}
}

// TestE31AllFrozen: nothing to train is an error that says so.
func TestE31AllFrozen(t *testing.T) {
	for name, sizes := range map[string][]int{"frozen": {3, 4}, "empty": nil} {
		_, errs := training{cfg: config(nil), world: 2, sizes: sizes, frozen: []int{0, 1}, grad: constant(1)}.run(t)
		wantErrors(t, errs, "no parameters to train", name)
	}
}
