// Package config reads the configuration of a training run: DeepSpeed's keys
// with DeepSpeed's names and meanings, and sections of zerogap's own for the
// model, the diffusion process, the data, the run and the communicator.
//
// [Load] is strict. It reports every error of a file at once, each with the
// full dotted path, the value and what is allowed, and it allocates nothing
// that depends on a value. One table, [Keys], says for every key what type,
// default, range, status and meaning it has; decoding, defaults, suggestions
// for misspelt keys and docs/configuration.md all come from it.
package config

import "github.com/zerogap/zerogap/dtype"

// Config is the effective configuration of a run: every field holds the value
// that is used, whether it was written in the file, set on the command line,
// derived from other values or left at its default. The key tags are the names
// in a file; a struct is a section.
type Config struct {
	// The three are consistent with Comm.World:
	// TrainBatchSize = TrainMicroBatchSizePerGPU · GradientAccumulationSteps · Comm.World.
	TrainBatchSize            int `key:"train_batch_size"`
	TrainMicroBatchSizePerGPU int `key:"train_micro_batch_size_per_gpu"`
	GradientAccumulationSteps int `key:"gradient_accumulation_steps"`

	GradientClipping      float64     `key:"gradient_clipping"`       // bound of the global norm; 0 is off
	GradientAllreduceOp   string      `key:"gradient_allreduce_op"`   // mean, sum
	CommunicationDataType dtype.DType `key:"communication_data_type"` // dtype of gradients on the wire
	PrescaleGradients     bool        `key:"prescale_gradients"`
	// GradientPredivideFactor is 1 where PrescaleGradients is true.
	GradientPredivideFactor     float64 `key:"gradient_predivide_factor"`
	ManagedGradientAccumulation bool    `key:"managed_gradient_accumulation"`
	StepsPerPrint               int     `key:"steps_per_print"` // 0: no progress lines
	WallClockBreakdown          bool    `key:"wall_clock_breakdown"`

	DataTypes        DataTypes        `key:"data_types"`
	BF16             BF16             `key:"bf16"`
	FP16             FP16             `key:"fp16"`
	ZeroOptimization ZeroOptimization `key:"zero_optimization"`
	Optimizer        Optimizer        `key:"optimizer"`
	Scheduler        Scheduler        `key:"scheduler"`
	CSVMonitor       Monitor          `key:"csv_monitor"`
	TensorBoard      Monitor          `key:"tensorboard"`
	FlopsProfiler    FlopsProfiler    `key:"flops_profiler"`
	CommsLogger      CommsLogger      `key:"comms_logger"`

	Model     Model     `key:"model"`
	Diffusion Diffusion `key:"diffusion"`
	Data      Data      `key:"data"`
	Run       Run       `key:"run"`
	Comm      Comm      `key:"comm"`
	Lab       Lab       `key:"lab"`

	// Warnings has one line for each thing that was written and has no effect,
	// in the order of the table.
	Warnings []string
	// WorldOrigin says where Comm.World came from, for messages.
	WorldOrigin string
}

// ModelDType returns the dtype that parameters and activations are computed
// in: bf16 or fp16 where that section is enabled, else fp32.
func (c *Config) ModelDType() dtype.DType {
	switch {
	case c.BF16.Enabled:
		return dtype.BF16
	case c.FP16.Enabled:
		return dtype.F16
	}
	return dtype.F32
}

// DataTypes is the section data_types.
type DataTypes struct {
	GradAccumDType dtype.DType `key:"grad_accum_dtype"`
}

// BF16 is the section bf16.
type BF16 struct {
	Enabled bool `key:"enabled"`
	// CheckGradOverflow skips a step whose gradients are not finite. It is true
	// unless the model's dtype is bf16: fp32 and fp16 always check.
	CheckGradOverflow bool `key:"check_grad_overflow"`
}

// FP16 is the section fp16.
type FP16 struct {
	Enabled               bool    `key:"enabled"`
	LossScale             float64 `key:"loss_scale"`          // 0: dynamic
	InitialScalePower     int     `key:"initial_scale_power"` // the first dynamic scale is 2 to this power
	LossScaleWindow       int     `key:"loss_scale_window"`   // clean steps before the scale doubles
	Hysteresis            int     `key:"hysteresis"`          // overflows before the scale halves
	ConsecutiveHysteresis bool    `key:"consecutive_hysteresis"`
	MinLossScale          float64 `key:"min_loss_scale"`
}

// ZeroOptimization is the section zero_optimization. Sizes are in elements.
type ZeroOptimization struct {
	Stage                       int    `key:"stage"` // 0, 1, 2
	ReduceBucketSize            int    `key:"reduce_bucket_size"`
	AllgatherBucketSize         int    `key:"allgather_bucket_size"`
	OverlapComm                 bool   `key:"overlap_comm"`
	ContiguousGradients         bool   `key:"contiguous_gradients"`
	ReduceScatter               bool   `key:"reduce_scatter"`
	RoundRobinGradients         bool   `key:"round_robin_gradients"`
	UseMultiRankBucketAllreduce bool   `key:"use_multi_rank_bucket_allreduce"`
	LoadFromFP32Weights         bool   `key:"load_from_fp32_weights"`
	ReductionOrder              string `key:"reduction_order"` // global, local
	MaxConsecutiveSkips         int    `key:"max_consecutive_skips"`
	IgnoreUnusedParameters      bool   `key:"ignore_unused_parameters"`
}

// Optimizer is the section optimizer. Type is the rule that runs: Adam with
// adam_w_mode is "AdamW".
type Optimizer struct {
	Type   string          `key:"type"` // AdamW, Adam, SGD, Lion
	Params OptimizerParams `key:"params"`
}

// OptimizerParams is the section optimizer.params. Fields that Optimizer.Type
// does not use hold their defaults.
type OptimizerParams struct {
	LR          float64    `key:"lr"` // where the scheduler is "constant"
	Betas       [2]float64 `key:"betas"`
	Eps         float64    `key:"eps"`
	WeightDecay float64    `key:"weight_decay"`
	Momentum    float64    `key:"momentum"`    // SGD
	Dampening   float64    `key:"dampening"`   // SGD
	Nesterov    bool       `key:"nesterov"`    // SGD
	AdamWMode   bool       `key:"adam_w_mode"` // false only where Type is Adam
}

// Scheduler is the section scheduler; without one, Type is "constant".
type Scheduler struct {
	Type   string          `key:"type"` // constant, WarmupLR, WarmupDecayLR, WarmupCosineLR
	Params SchedulerParams `key:"params"`
}

// SchedulerParams is the section scheduler.params. Fields that Scheduler.Type
// does not use hold their defaults.
type SchedulerParams struct {
	WarmupMinLR    float64 `key:"warmup_min_lr"`    // WarmupLR, WarmupDecayLR
	WarmupMaxLR    float64 `key:"warmup_max_lr"`    // WarmupLR, WarmupDecayLR
	WarmupMinRatio float64 `key:"warmup_min_ratio"` // WarmupCosineLR
	CosMinRatio    float64 `key:"cos_min_ratio"`    // WarmupCosineLR
	WarmupNumSteps int     `key:"warmup_num_steps"`
	WarmupType     string  `key:"warmup_type"`     // log, linear
	TotalNumSteps  int     `key:"total_num_steps"` // WarmupDecayLR, WarmupCosineLR; else 0
}

// Monitor is the section csv_monitor or tensorboard.
type Monitor struct {
	Enabled    bool   `key:"enabled"`
	OutputPath string `key:"output_path"` // "": the folder of the run
	JobName    string `key:"job_name"`
}

// FlopsProfiler is the section flops_profiler.
type FlopsProfiler struct {
	Enabled            bool    `key:"enabled"`
	ProfileStep        int     `key:"profile_step"` // counted from 1
	ModuleDepth        int     `key:"module_depth"` // -1: all levels
	TopModules         int     `key:"top_modules"`
	Detailed           bool    `key:"detailed"`
	OutputFile         string  `key:"output_file"` // "": standard output
	RecomputeFwdFactor float64 `key:"recompute_fwd_factor"`
}

// CommsLogger is the section comms_logger.
type CommsLogger struct {
	Enabled bool     `key:"enabled"`
	Verbose bool     `key:"verbose"`
	ProfAll bool     `key:"prof_all"`
	ProfOps []string `key:"prof_ops"`
}

// Model is the section [model]: diffusers' UNet2DModel under its own names.
type Model struct {
	Type                 string   `key:"type"` // unet2d
	SampleSize           int      `key:"sample_size"`
	InChannels           int      `key:"in_channels"`
	OutChannels          int      `key:"out_channels"`
	BlockOutChannels     []int    `key:"block_out_channels"`
	DownBlockTypes       []string `key:"down_block_types"`
	MidBlockType         string   `key:"mid_block_type"` // UNetMidBlock2D, none
	UpBlockTypes         []string `key:"up_block_types"`
	LayersPerBlock       int      `key:"layers_per_block"`
	NormNumGroups        int      `key:"norm_num_groups"`
	NormEps              float64  `key:"norm_eps"`
	AttnNormNumGroups    int      `key:"attn_norm_num_groups"` // 0: none
	AttentionHeadDim     int      `key:"attention_head_dim"`   // 0: one head over all channels
	AddAttention         bool     `key:"add_attention"`        // in the middle block
	Dropout              float64  `key:"dropout"`
	TimeEmbeddingDim     int      `key:"time_embedding_dim"` // 0: 4·BlockOutChannels[0]
	FreqShift            int      `key:"freq_shift"`
	FlipSinToCos         bool     `key:"flip_sin_to_cos"`
	DownsamplePadding    int      `key:"downsample_padding"`      // 0, 1
	ResnetTimeScaleShift string   `key:"resnet_time_scale_shift"` // default, scale_shift
	ActFn                string   `key:"act_fn"`                  // silu, swish (the same)
	FromPretrained       string   `key:"from_pretrained"`         // "": fresh weights

	// Departures from diffusers' network, for the laboratory.
	NumClasses       int     `key:"num_classes"`
	LabelDropout     float64 `key:"label_dropout"`
	ParallelBranches int     `key:"parallel_branches"`
	SelfConditioning bool    `key:"self_conditioning"`
	SharedMiddle     bool    `key:"shared_middle"`
	CheckpointConvIn bool    `key:"checkpoint_conv_in"`

	ActivationCheckpointing ActivationCheckpointing `key:"activation_checkpointing"`
}

// ActivationCheckpointing is the section [model.activation_checkpointing].
type ActivationCheckpointing struct {
	Mode     string `key:"mode"`     // none, reentrant, non_reentrant
	Segments int    `key:"segments"` // 0: every step of the network is one
}

// Diffusion is the section [diffusion].
type Diffusion struct {
	NumTrainTimesteps int     `key:"num_train_timesteps"`
	BetaSchedule      string  `key:"beta_schedule"` // linear, scaled_linear, squaredcos_cap_v2, sigmoid
	BetaStart         float64 `key:"beta_start"`
	BetaEnd           float64 `key:"beta_end"`
	PredictionType    string  `key:"prediction_type"` // epsilon, v_prediction, sample
	Sampler           string  `key:"sampler"`         // ddpm, ddim
	SampleSteps       int     `key:"sample_steps"`
	Eta               float64 `key:"eta"`
	ClipSample        bool    `key:"clip_sample"`
	EMADecay          float64 `key:"ema_decay"` // 0: no moving average
	EMARamp           bool    `key:"ema_ramp"`
}

// Data is the section [data].
type Data struct {
	Kind         string `key:"kind"` // mnist, emoji, folder, procedural
	Path         string `key:"path"`
	Category     string `key:"category"` // of emoji; "": all
	ImageSize    int    `key:"image_size"`
	Channels     int    `key:"channels"`
	Flip         bool   `key:"flip"`
	DropLast     bool   `key:"drop_last"`
	TrainSamples int    `key:"train_samples"` // 0: all there are
}

// Run is the section [run].
type Run struct {
	Seed        uint64 `key:"seed"`
	Steps       int    `key:"steps"` // optimizer steps
	Out         string `key:"out"`
	EvalEvery   int    `key:"eval_every"` // steps; 0: only at the end
	EvalSamples int    `key:"eval_samples"`
	SampleEvery int    `key:"sample_every"` // steps; 0: only at the end
	SampleCount int    `key:"sample_count"` // pictures in a grid; 0: no grids

	CheckpointEvery int  `key:"checkpoint_every"` // steps; 0: only at the end
	CheckpointKeep  int  `key:"checkpoint_keep"`  // 0: all
	CheckpointAsync bool `key:"checkpoint_async"`
	TraceStep       int  `key:"trace_step"` // 0: no trace
}

// Lab is the section [lab].
type Lab struct {
	Fault []string `key:"fault"` // names of package zero/fault; none is the correct training
	Seed  uint64   `key:"seed"`
	Late  float64  `key:"late"` // how slow the network is, see fault.Lab.Late
}

// Comm is the section [comm].
type Comm struct {
	Engine    string `key:"engine"`  // auto, local, mpi
	Library   string `key:"library"` // auto, openmpi, mpich, or a path
	World     int    `key:"world"`   // ranks
	TimeoutMS int    `key:"timeout_ms"`
}
