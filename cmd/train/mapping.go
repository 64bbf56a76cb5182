package main

import (
	"errors"
	"fmt"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/internal/diffusion"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
)

// checks lets the model, the diffusion process and the optimizer look at their
// sections while all other mistakes of the file are being collected.
func checks() []config.Check {
	return []config.Check{
		{Section: "model", Run: func(c *config.Config) error {
			m := modelConfig(c)
			if err := prefixed("model", m.Validate()); err != nil {
				return err
			}
			_, err := pretrained(c)
			return err
		}},
		{Section: "diffusion", Run: func(c *config.Config) error {
			if _, err := newDiffusion(c); err != nil {
				return prefixed("diffusion", err)
			}
			return nil
		}},
		{Section: "zero_optimization", Run: func(c *config.Config) error {
			z := zeroConfig(c)
			z.GradientAccumulationSteps = max(1, z.GradientAccumulationSteps) // 0 here has been reported with the batch sizes
			return z.Validate()
		}},
		{Section: "optimizer", Run: func(c *config.Config) error {
			if v, ok := rule(c).(interface{ Validate() error }); ok {
				return v.Validate()
			}
			return nil
		}},
		{Section: "lab", Run: checkLab},
		{Section: "scheduler", Run: func(c *config.Config) error {
			if v, ok := schedule(c).(interface{ Validate() error }); ok {
				return v.Validate()
			}
			return nil
		}},
	}
}

// prefixed puts a section's name in front of each problem, so that every line
// begins with the key's full path.
func prefixed(section string, err error) error {
	if err == nil {
		return nil
	}
	problems := []string{err.Error()}
	var ce *unet.ConfigError
	if errors.As(err, &ce) {
		problems = ce.Problems
	}
	lines := make([]error, len(problems))
	for i, p := range problems {
		lines[i] = fmt.Errorf("%s.%s", section, p)
	}
	return errors.Join(lines...)
}

func modelConfig(c *config.Config) unet.Config {
	m, u := c.Model, unet.DefaultConfig()
	u.SampleSize = unet.Size{Height: m.SampleSize, Width: m.SampleSize}
	u.InChannels, u.OutChannels = m.InChannels, m.OutChannels
	u.BlockOutChannels = m.BlockOutChannels
	u.DownBlockTypes, u.UpBlockTypes = m.DownBlockTypes, m.UpBlockTypes
	if u.MidBlockType = unet.StringOrNull(m.MidBlockType); m.MidBlockType == "none" {
		u.MidBlockType = ""
	}
	u.LayersPerBlock = m.LayersPerBlock
	u.NormNumGroups, u.NormEps = m.NormNumGroups, m.NormEps
	u.AttnNormNumGroups = unet.IntOrNull(m.AttnNormNumGroups)
	u.AttentionHeadDim = unet.IntOrNull(m.AttentionHeadDim)
	u.AddAttention = m.AddAttention
	u.Dropout = m.Dropout
	u.TimeEmbeddingDim = unet.IntOrNull(m.TimeEmbeddingDim)
	u.FreqShift, u.FlipSinToCos = m.FreqShift, m.FlipSinToCos
	u.DownsamplePadding = m.DownsamplePadding
	u.ResnetTimeScaleShift, u.ActFn = m.ResnetTimeScaleShift, m.ActFn
	u.Variants = variants(c)
	return u
}

// newModel builds the network with its first weights and its checkpointing.
func newModel(c *config.Config) (*unet.UNet2DModel, error) {
	dir, err := pretrained(c)
	if err != nil {
		return nil, err
	}
	var model *unet.UNet2DModel
	if dir != "" {
		model, err = unet.LoadDiffusers(dir)
	} else {
		model, err = unet.New(modelConfig(c), c.Run.Seed)
	}
	if err != nil {
		return nil, err
	}
	ac := c.Model.ActivationCheckpointing
	mode, err := framework.ParseMode(ac.Mode)
	if err != nil {
		return nil, err
	}
	return model, model.SetCheckpointing(mode, ac.Segments)
}

// newDiffusion builds the noise schedule of training and the sampler on top of it.
func newDiffusion(c *config.Config) (*diffusion.Process, error) {
	d := c.Diffusion
	s, err := unet.NewSchedule(unet.ScheduleConfig{
		NumTrainTimesteps: d.NumTrainTimesteps, BetaSchedule: d.BetaSchedule,
		BetaStart: d.BetaStart, BetaEnd: d.BetaEnd,
	})
	if err != nil {
		return nil, err
	}
	predict, err := unet.ParsePredictionType(d.PredictionType)
	if err != nil {
		return nil, err
	}
	sampler, err := unet.NewSampler(s, unet.SamplerConfig{
		Kind: d.Sampler, Steps: d.SampleSteps, PredictionType: predict, Eta: d.Eta, ClipSample: d.ClipSample,
	})
	if err != nil {
		return nil, err
	}
	if s, err = labSchedule(c, s); err != nil {
		return nil, err
	}
	return &diffusion.Process{Schedule: s, Predict: predict, Sampler: sampler}, nil
}

func zeroConfig(c *config.Config) zero.Config {
	z := zero.DefaultConfig()
	z.GradientAccumulationSteps = c.GradientAccumulationSteps
	z.GradientClipping = c.GradientClipping
	z.GradientAllreduceOp = c.GradientAllreduceOp
	z.ManagedGradientAccumulation = c.ManagedGradientAccumulation
	z.PrescaleGradients = c.PrescaleGradients
	z.GradientPredivideFactor = c.GradientPredivideFactor
	z.CommunicationDataType = c.CommunicationDataType.String()
	z.DataTypes.GradAccumDType = c.DataTypes.GradAccumDType.String()
	if c.BF16.Enabled {
		z.CheckGradOverflow = c.BF16.CheckGradOverflow
	}
	z.MaxConsecutiveSkips = c.ZeroOptimization.MaxConsecutiveSkips
	z.BF16.Enabled = c.BF16.Enabled
	z.FP16 = zero.FP16{
		Enabled: c.FP16.Enabled, LossScale: c.FP16.LossScale, InitialScalePower: c.FP16.InitialScalePower,
		LossScaleWindow: c.FP16.LossScaleWindow, Hysteresis: c.FP16.Hysteresis,
		ConsecutiveHysteresis: c.FP16.ConsecutiveHysteresis, MinLossScale: c.FP16.MinLossScale,
	}
	z.ZeroOptimization.Stage = c.ZeroOptimization.Stage
	z.ZeroOptimization.ReduceBucketSize = c.ZeroOptimization.ReduceBucketSize
	z.ZeroOptimization.AllgatherBucketSize = c.ZeroOptimization.AllgatherBucketSize
	z.ZeroOptimization.OverlapComm = c.ZeroOptimization.OverlapComm
	z.ZeroOptimization.ReductionOrder = c.ZeroOptimization.ReductionOrder
	z.ZeroOptimization.ReduceScatter = c.ZeroOptimization.ReduceScatter
	z.ZeroOptimization.ContiguousGradients = c.ZeroOptimization.ContiguousGradients
	z.ZeroOptimization.UseMultiRankBucketAllreduce = c.ZeroOptimization.UseMultiRankBucketAllreduce
	z.ZeroOptimization.RoundRobinGradients = c.ZeroOptimization.RoundRobinGradients
	z.ZeroOptimization.IgnoreUnusedParameters = c.ZeroOptimization.IgnoreUnusedParameters
	z.ZeroOptimization.LoadFromFP32Weights = c.ZeroOptimization.LoadFromFP32Weights
	return z
}

// rule is the optimizer's, with the moving average around it.
func rule(c *config.Config) zero.Rule {
	if d := c.Diffusion; d.EMADecay > 0 {
		return zero.EMA{Rule: baseRule(c), Decay: d.EMADecay, Ramp: d.EMARamp}
	}
	return baseRule(c)
}

func baseRule(c *config.Config) zero.Rule {
	p := c.Optimizer.Params
	switch c.Optimizer.Type {
	case "SGD":
		return zero.SGD{Momentum: p.Momentum, Dampening: p.Dampening, WeightDecay: p.WeightDecay, Nesterov: p.Nesterov}
	case "Lion":
		return zero.Lion{Beta1: p.Betas[0], Beta2: p.Betas[1], WeightDecay: p.WeightDecay}
	case "Adam":
		return zero.Adam{Beta1: p.Betas[0], Beta2: p.Betas[1], Eps: p.Eps, WeightDecay: p.WeightDecay}
	}
	return zero.AdamW{Beta1: p.Betas[0], Beta2: p.Betas[1], Eps: p.Eps, WeightDecay: p.WeightDecay}
}

func schedule(c *config.Config) zero.Schedule {
	p := c.Scheduler.Params
	warmup := zero.Warmup{NumSteps: p.WarmupNumSteps, Type: zero.WarmupType(p.WarmupType)}
	switch c.Scheduler.Type {
	case "WarmupLR":
		return zero.WarmupLR{Warmup: warmup, MinLR: p.WarmupMinLR, MaxLR: p.WarmupMaxLR}
	case "WarmupDecayLR":
		return zero.WarmupDecayLR{Warmup: warmup, MinLR: p.WarmupMinLR, MaxLR: p.WarmupMaxLR, TotalNumSteps: p.TotalNumSteps}
	case "WarmupCosineLR":
		return zero.WarmupCosineLR{Warmup: warmup, Rate: c.Optimizer.Params.LR, MinRatio: p.WarmupMinRatio, CosMinRatio: p.CosMinRatio, TotalNumSteps: p.TotalNumSteps}
	}
	return zero.Constant{Rate: c.Optimizer.Params.LR}
}

// parameters lists those of the network, without allocating any.
func parameters(c *config.Config) ([]zero.Param, error) {
	shapes, err := unet.ParamShapes(modelConfig(c))
	if err != nil {
		return nil, err
	}
	params := make([]zero.Param, len(shapes))
	for i, s := range shapes {
		params[i] = zero.Param{Name: s.Name, Shape: s.Shape}
	}
	return params, nil
}

// plan lays out the optimizer without allocating it, for the header, and counts
// the parameters.
func plan(c *config.Config) (p *zero.Plan, tensors int, err error) {
	params, err := parameters(c)
	if err != nil {
		return nil, 0, err
	}
	p, err = zero.NewPlan(params, zeroConfig(c), c.Comm.World)
	return p, len(params), err
}
