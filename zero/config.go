package zero

import (
	"errors"
	"fmt"
	"math"

	"github.com/zerogap/zerogap/dtype"
)

// Config holds DeepSpeed's keys, nested as they are there, for what the
// optimizer does. Start from DefaultConfig: the zero value is not valid.
type Config struct {
	// GradientAccumulationSteps is the number of backwards per Step, >= 1.
	GradientAccumulationSteps int
	// ManagedGradientAccumulation makes a Step that does not come after
	// exactly GradientAccumulationSteps backwards an error. When it is false
	// the caller's Step is the boundary: the gradients of any number of
	// backwards, at least one, are summed, and a mean is still over world size
	// times GradientAccumulationSteps. The number must be the same on all ranks.
	ManagedGradientAccumulation bool
	// GradientClipping is the largest global norm that is left alone; 0 turns
	// clipping off.
	GradientClipping float64
	// GradientAllreduceOp is "mean" (divide by world size times accumulation
	// steps, once, after the sum) or "sum" (divide by nothing).
	GradientAllreduceOp string
	// PrescaleGradients divides by the world size before the sum instead of
	// after it. Results do not change but for their rounding: what is sent is
	// smaller, which keeps fp16 sums from overflowing and may make small
	// gradients vanish.
	PrescaleGradients bool
	// GradientPredivideFactor is divided by before the sum and multiplied by
	// after it, with the same effect on rounding; 1 does nothing.
	GradientPredivideFactor float64
	// CommunicationDataType is the wire format of gradients: fp32, bf16,
	// fp16, or empty for each parameter's own.
	CommunicationDataType string
	// CheckGradOverflow skips a step whose gradients hold Inf or NaN, in every
	// format (DeepSpeed has the key under bf16).
	CheckGradOverflow bool
	// MaxConsecutiveSkips ends the training after so many skipped steps in a row.
	MaxConsecutiveSkips int

	DataTypes        DataTypes
	ZeroOptimization ZeroOptimization
	FP16             FP16
	BF16             BF16
}

// DataTypes is the section data_types.
type DataTypes struct {
	// GradAccumDType is the format of the gradient accumulators: fp32, bf16,
	// fp16, or empty for fp32.
	GradAccumDType string
}

// ZeroOptimization is the section zero_optimization.
type ZeroOptimization struct {
	// Stage is 0 (every rank holds everything), 1 (optimizer state and
	// accumulators are partitioned) or 2 (gradients too).
	Stage int
	// ReduceBucketSize is the most elements in one gradient reduction. Buffers
	// are never larger than the model needs.
	ReduceBucketSize int
	// AllgatherBucketSize is the most elements in one gather of weights.
	AllgatherBucketSize int
	// ReductionOrder is "global" or "local". With "global" every micro-batch's
	// gradient is added in the order of the global micro-batch number, at every
	// stage, and the world size changes no bit. With "local" stages 0 and 1 add
	// a rank's micro-batches first, in the accumulation format, and reduce the
	// sums once per step: a fraction 1/GradientAccumulationSteps of the
	// traffic, and results that depend on the world size. Stage 2 reduces
	// every micro-batch in both.
	ReductionOrder string
	// ReduceScatter sends gradients to their owner only; otherwise every rank
	// sums whole buckets, and the owner keeps its part. Stage 0 always sums all.
	ReduceScatter bool
	// ContiguousGradients joins parameters in one bucket; otherwise each one is
	// reduced by itself. It counts at stages 1 and 2.
	ContiguousGradients bool
	// UseMultiRankBucketAllreduce reduces a bucket that has several owners in
	// one collective; otherwise there is one for each owner.
	UseMultiRankBucketAllreduce bool
	// RoundRobinGradients deals parameters out to the ranks by turns, so that
	// every bucket has several owners; otherwise a rank owns a run of them.
	RoundRobinGradients bool
	// OverlapComm reduces on a goroutine of its own while the backward runs.
	OverlapComm bool
	// IgnoreUnusedParameters counts a parameter without a gradient as zero;
	// otherwise it is an error on all ranks.
	IgnoreUnusedParameters bool
	// LoadFromFP32Weights starts the master weights from Param.Init itself;
	// otherwise from Init rounded to the parameter format.
	LoadFromFP32Weights bool
}

// FP16 is the section fp16. The loss scale keys count only when it is enabled.
type FP16 struct {
	Enabled bool
	// LossScale > 0 is a static scale; 0 is a dynamic one.
	LossScale float64
	// InitialScalePower: a dynamic scale starts at 2 to this power.
	InitialScalePower int
	// LossScaleWindow good steps in a row double the scale.
	LossScaleWindow int
	// Hysteresis is the number of overflows that lower the scale once; the
	// ones before the last are only counted.
	Hysteresis int
	// ConsecutiveHysteresis refills the hysteresis at every good step instead
	// of at every growth.
	ConsecutiveHysteresis bool
	// MinLossScale is the lowest dynamic scale; an overflow there is an error.
	MinLossScale float64
}

// BF16 is the section bf16.
type BF16 struct {
	Enabled bool
}

// The values of GradientAllreduceOp.
const (
	OpMean = "mean"
	OpSum  = "sum"
)

// The values of ReductionOrder.
const (
	OrderGlobal = "global"
	OrderLocal  = "local"
)

// DefaultConfig returns DeepSpeed's defaults, except fp32 gradient accumulators.
func DefaultConfig() Config {
	return Config{
		GradientAccumulationSteps:   1,
		ManagedGradientAccumulation: true,
		GradientClipping:            1,
		GradientAllreduceOp:         OpMean,
		GradientPredivideFactor:     1,
		CheckGradOverflow:           true,
		MaxConsecutiveSkips:         100,
		ZeroOptimization: ZeroOptimization{
			ReduceBucketSize:            5e8,
			AllgatherBucketSize:         5e8,
			ReductionOrder:              OrderGlobal,
			ReduceScatter:               true,
			ContiguousGradients:         true,
			UseMultiRankBucketAllreduce: true,
			IgnoreUnusedParameters:      true,
			LoadFromFP32Weights:         true,
		},
		FP16: FP16{InitialScalePower: 16, LossScaleWindow: 1000, Hysteresis: 2, MinLossScale: 1},
	}
}

// Validate returns every problem at once, joined, each one line that starts
// with the dotted key; nil when there is none.
func (c Config) Validate() error {
	var p problems
	z := c.ZeroOptimization
	p.check(c.GradientAccumulationSteps >= 1, "gradient_accumulation_steps", c.GradientAccumulationSteps, "a whole number of at least 1")
	p.check(c.GradientClipping >= 0 && !math.IsInf(c.GradientClipping, 0), "gradient_clipping", c.GradientClipping, "a finite number, or 0 for no clipping")
	p.check(c.GradientAllreduceOp == OpMean || c.GradientAllreduceOp == OpSum, "gradient_allreduce_op", c.GradientAllreduceOp, `"mean" or "sum"`)
	f := c.GradientPredivideFactor
	p.check(f > 0 && !math.IsInf(f, 0), "gradient_predivide_factor", f, "a positive finite number, 1 for none")
	p.check(!c.PrescaleGradients || f == 1, "gradient_predivide_factor", f, "1 with prescale_gradients = true, which divides by the world size instead")
	p.check(z.ReductionOrder == OrderGlobal || z.ReductionOrder == OrderLocal, "zero_optimization.reduction_order", z.ReductionOrder, `"global" or "local"`)
	p.check(c.MaxConsecutiveSkips >= 1, "max_consecutive_skips", c.MaxConsecutiveSkips, "a whole number of at least 1")
	p.dtype("communication_data_type", c.CommunicationDataType)
	p.dtype("data_types.grad_accum_dtype", c.DataTypes.GradAccumDType)
	p.check(z.Stage >= 0 && z.Stage <= 2, "zero_optimization.stage", z.Stage, "0, 1 or 2; stage 3 is not supported")
	p.check(z.ReduceBucketSize >= 1, "zero_optimization.reduce_bucket_size", z.ReduceBucketSize, "a whole number of elements, at least 1")
	p.check(z.AllgatherBucketSize >= 1, "zero_optimization.allgather_bucket_size", z.AllgatherBucketSize, "a whole number of elements, at least 1")
	if c.FP16.Enabled && c.BF16.Enabled {
		p = append(p, errors.New("fp16.enabled and bf16.enabled are both true: enable one of them"))
	}
	if c.FP16.Enabled {
		p.lossScale(c.FP16)
		if c.FP16.LossScale == 0 && !c.CheckGradOverflow {
			p = append(p, errors.New("check_grad_overflow = false: a dynamic loss scale (fp16.loss_scale = 0) needs the check; leave it true or set a static scale"))
		}
	}
	return errors.Join(p...)
}

// problems collects what is wrong with a configuration.
type problems []error

func (p *problems) check(ok bool, key string, value any, allowed string) {
	if ok {
		return
	}
	if s, isString := value.(string); isString {
		value = fmt.Sprintf("%q", s)
	}
	*p = append(*p, fmt.Errorf("%s = %v: allowed is %s", key, value, allowed))
}

func (p *problems) dtype(key, name string) {
	if name == "" {
		return
	}
	if _, err := dtype.Parse(name); err != nil {
		*p = append(*p, fmt.Errorf("%s = %q: allowed are fp32, bf16, fp16", key, name))
	}
}

func (p *problems) lossScale(f FP16) {
	finite := func(x float64) bool { return !math.IsInf(x, 0) && !math.IsNaN(x) }
	p.check(f.LossScale >= 0 && finite(f.LossScale), "fp16.loss_scale", f.LossScale, "0 for a dynamic scale, or a positive finite number")
	if f.LossScale != 0 {
		return
	}
	p.check(f.InitialScalePower >= 0 && f.InitialScalePower <= 64, "fp16.initial_scale_power", f.InitialScalePower, "a whole number from 0 to 64")
	p.check(f.LossScaleWindow >= 1, "fp16.loss_scale_window", f.LossScaleWindow, "a whole number of at least 1")
	p.check(f.Hysteresis >= 1, "fp16.hysteresis", f.Hysteresis, "a whole number of at least 1")
	p.check(f.MinLossScale > 0 && finite(f.MinLossScale), "fp16.min_loss_scale", f.MinLossScale, "a positive finite number")
	p.check(f.InitialScalePower < 0 || math.Ldexp(1, f.InitialScalePower) >= f.MinLossScale, "fp16.min_loss_scale", f.MinLossScale,
		fmt.Sprintf("at most the initial scale 2^%d", f.InitialScalePower))
}
