package config

// onlyGPU and onlyStage3 are reasons that many keys share.
const (
	onlyGPU    = "concerns GPUs and their memory"
	onlyStage3 = "concerns stage 3 only"
	noOffload  = "all training state is in host memory here, so there is nothing to offload"
	noVariant  = "is another training method, which is not implemented"
)

func topKeys() []Key {
	return []Key{
		{Path: "train_batch_size", Kind: Int, Range: atLeast(1), Derived: "micro-batch × accumulation × world",
			Doc: "Samples of one optimizer step over all ranks. Any two of the three batch keys give the third, this or the micro-batch alone also suffices (accumulation is then 1)."},
		{Path: "train_micro_batch_size_per_gpu", Kind: Int, Range: atLeast(1), Derived: "batch / (accumulation × world)",
			Doc: "Samples of one forward and backward on one rank."},
		{Path: "gradient_accumulation_steps", Kind: Int, Range: atLeast(1), Derived: "batch / (micro-batch × world), else 1",
			Doc: "Forward and backward passes of each rank in one optimizer step."},
		{Path: "gradient_clipping", Kind: Float, Range: atLeast(0), Default: 1.0,
			Doc: "Bound of the global gradient norm; 0 is off."},
		{Path: "gradient_allreduce_op", Kind: Enum, Allowed: []string{"mean", "sum"}, Default: "mean",
			Doc: "Whether the gradients of all micro-batches are averaged or summed."},
		{Path: "communication_data_type", Kind: DType, Derived: "the model's dtype",
			Doc: "Format of gradients on the wire. Each micro-batch gradient is rounded to it once; in local reduction_order, each rank's sum."},
		{Path: "steps_per_print", Kind: Int, Range: atLeast(0), Default: 10,
			Doc: "A progress line every so many steps where the output is no terminal; 0 is none. (DeepSpeed's default is none now and was 10.)"},
		{Path: "wall_clock_breakdown", Kind: Bool, Default: false,
			Doc: "Measure what the time of a step goes to, on every rank: data, forward, backward, waiting for reductions, the step itself and gathering weights. Printed every steps_per_print steps, and series of the monitor."},
		{Path: "prescale_gradients", Kind: Bool, Default: false,
			Doc: "Divide gradients by the world size before they are sent instead of after the sum. Changes their rounding, and with it results at another world size."},
		{Path: "gradient_predivide_factor", Kind: Float, Range: above(0), Default: 1.0,
			Doc: "Divide gradients by this before they are sent and multiply after the sum. Changes their rounding, unless it is a power of two and nothing leaves the range of the format. Not together with prescale_gradients, which decides alone in DeepSpeed."},
		{Path: "managed_gradient_accumulation", Kind: Bool, Default: true,
			Doc: "Whether a step that does not come after gradient_accumulation_steps backwards is an error. The train command steps there in any case."},
		{Path: "seq_parallel_communication_data_type", Kind: DType, Default: "fp32", Status: NoEffect,
			Doc: "there is no sequence parallelism"},
		{Path: "sequence_parallel_size", Kind: Int, Default: 1, Status: Refused, Doc: "There is no sequence parallelism."},
		{Path: "dataloader_drop_last", Kind: Bool, Default: false, Status: Refused, Doc: "Write data.drop_last."},
		{Path: "dump_state", Kind: Bool, Default: false, Status: NoEffect, Doc: "the effective configuration is always written"},
		{Path: "memory_breakdown", Kind: Bool, Default: false, Status: NoEffect, Doc: "the memory of each rank is always shown"},
		{Path: "sparse_gradients", Kind: Bool, Default: false, Status: NoEffect, Doc: "the models here have no sparse gradients"},
		{Path: "disable_allgather", Kind: Bool, Default: false, Status: NoEffect, Doc: "weights are gathered in one way only"},
		{Path: "graph_harvesting", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},
		{Path: "log_level", Kind: String, Status: NoEffect, Doc: "warnings and errors are always shown"},
		{Path: "zero_allow_untested_optimizer", Kind: Bool, Default: false, Status: NoEffect, Doc: "every optimizer that can be chosen is tested"},
		{Path: "zero_force_ds_cpu_optimizer", Kind: Bool, Default: true, Status: NoEffect, Doc: noOffload},
	}
}

func precisionKeys() []Key {
	return []Key{
		{Path: "data_types.grad_accum_dtype", Kind: DType, Default: "fp32",
			Doc: "Format in which gradients are added up over micro-batches and ranks, at every stage. (DeepSpeed's default is the model's dtype.)"},
		{Path: "data_types.param_dtype", Kind: DType, Derived: "the model's dtype",
			Doc: "Must agree with bf16.enabled and fp16.enabled, which decide."},
		{Path: "data_types.buffer_dtype", Kind: DType, Derived: "none", Status: NoEffect, Doc: "the models here have no buffers"},

		{Path: "bf16.enabled", Kind: Bool, Default: false, Doc: "Train in bfloat16. Not together with fp16."},
		{Path: "bf16.check_grad_overflow", Kind: Bool, Default: true,
			Doc: "Skip a step whose gradients are not finite, on all ranks alike. In fp32 and fp16 the check is always made."},
		{Path: "bf16.immediate_grad_update", Kind: Bool, Default: false, Status: NoEffect, Doc: "a gradient is always added as soon as it is reduced"},
		{Path: "bf16.bf16_master_weights_and_grads", Kind: Bool, Default: false, Status: Refused, Doc: "Master weights are fp32."},
		{Path: "bf16.bf16_optimizer_states", Kind: Bool, Default: false, Status: Refused, Doc: "Optimizer states are fp32."},

		{Path: "fp16.enabled", Kind: Bool, Default: false, Doc: "Train in IEEE half. Not together with bf16."},
		{Path: "fp16.loss_scale", Kind: Float, Range: atLeast(0), Default: 0.0, Doc: "Constant loss scale; 0 is a dynamic one."},
		{Path: "fp16.initial_scale_power", Kind: Int, Range: between(0, 64), Default: 16, Doc: "The first dynamic loss scale is 2 to this power."},
		{Path: "fp16.loss_scale_window", Kind: Int, Range: atLeast(1), Default: 1000, Doc: "Steps without overflow after which the scale doubles."},
		{Path: "fp16.hysteresis", Kind: Int, Range: atLeast(1), Default: 2, Doc: "Overflows that are let pass before the scale is halved."},
		{Path: "fp16.consecutive_hysteresis", Kind: Bool, Default: false, Doc: "Refill the hysteresis at every step without overflow."},
		{Path: "fp16.min_loss_scale", Kind: Float, Range: above(0), Default: 1.0, Doc: "Smallest dynamic scale; an overflow at it stops the run."},
		{Path: "fp16.auto_cast", Kind: Bool, Default: false, Status: NoEffect, Doc: "inputs are always cast to the model's dtype"},
		{Path: "fp16.fp16_master_weights_and_grads", Kind: Bool, Default: false, Status: Refused, Doc: "Master weights are fp32."},

		{Path: "torch_autocast.enabled", Kind: Bool, Default: false, Status: Refused, Doc: "Use bf16.enabled or fp16.enabled."},
		{Path: "torch_autocast.dtype", Kind: DType, Derived: "none", Status: NoEffect, Doc: "counts only with torch_autocast.enabled"},
		{Path: "torch_autocast.lower_precision_safe_modules", Kind: List, Derived: "none", Status: NoEffect, Doc: "counts only with torch_autocast.enabled"},
	}
}

func optimizerKeys() []Key {
	schedulers := []string{"constant", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}
	return []Key{
		{Path: "optimizer.type", Kind: Enum, Allowed: []string{"AdamW", "Adam", "SGD", "Lion"}, Default: "AdamW", FoldCase: true,
			Elsewhere: []string{"Lamb", "Adagrad", "Muon", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "MuAdam", "MuAdamW", "MuSGD"},
			Doc:       "The update rule. Adam is AdamW too, as in DeepSpeed, unless adam_w_mode is false. SGD is torch.optim.SGD, Lion DeepSpeed's FusedLion."},
		{Path: "optimizer.legacy_fusion", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},

		{Path: "optimizer.params.lr", Kind: Float, Range: atLeast(0), Default: 1e-3,
			Doc: "Learning rate: constant, or the peak of WarmupCosineLR. WarmupLR and WarmupDecayLR bring their own."},
		{Path: "optimizer.params.betas", Kind: FloatPair, Range: below(0, 1), Default: []float64{0.9, 0.999}, Doc: "AdamW, Adam: decay of the moving averages of gradient and squared gradient. Lion: of the update and of the moving average; its default is [0.9, 0.99]."},
		{Path: "optimizer.params.eps", Kind: Float, Range: above(0), Default: 1e-8, Doc: "AdamW, Adam: added to the root of the second moment."},
		{Path: "optimizer.params.weight_decay", Kind: Float, Range: atLeast(0), Default: 0.0, Doc: "AdamW, Lion: decoupled decay, each step multiplies weights by 1 − lr · weight_decay. Adam, SGD: weight_decay times the weights is added to the gradient."},
		{Path: "optimizer.params.momentum", Kind: Float, Range: atLeast(0), Default: 0.0, Doc: "SGD: what the velocity keeps in each step; 0 is plain gradient descent."},
		{Path: "optimizer.params.dampening", Kind: Float, Default: 0.0, Doc: "SGD: 1 − dampening of each gradient enters the velocity."},
		{Path: "optimizer.params.nesterov", Kind: Bool, Default: false, Doc: "SGD: step along the velocity ahead. Needs a momentum, and no dampening."},
		{Path: "optimizer.params.bias_correction", Kind: Bool, Default: true, Status: Refused, Doc: "The moments are always corrected for their start at zero."},
		{Path: "optimizer.params.amsgrad", Kind: Bool, Default: false, Status: Refused, Doc: "Not implemented."},
		{Path: "optimizer.params.adam_w_mode", Kind: Bool, Default: true, Doc: "Adam: false is Adam with L2 regularisation, as torch.optim.Adam. With AdamW the name decides, as in DeepSpeed."},
		{Path: "optimizer.params.torch_adam", Kind: Bool, Default: false, Status: NoEffect, Doc: "there is one implementation of each rule here; its update is torch.optim's"},
		{Path: "optimizer.params.fused", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},
		{Path: "optimizer.params.foreach", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},
		{Path: "optimizer.params.max_grad_norm", Kind: Float, Derived: "none", Status: Refused, Doc: "Write gradient_clipping."},

		{Path: "scheduler.type", Kind: Enum, Allowed: schedulers, Default: "constant",
			Elsewhere: []string{"LRRangeTest", "OneCycle", "CosineAnnealingLR", "LinearLR", "StepLR", "ExponentialLR", "LambdaLR"},
			Doc:       "The learning rate over the steps. (constant is zerogap's word for no scheduler.)"},
		{Path: "scheduler.params.warmup_num_steps", Kind: Int, Range: atLeast(0), Default: 1000, Doc: "Steps of the warm-up; fewer than 2 count as 2, as in DeepSpeed."},
		{Path: "scheduler.params.warmup_type", Kind: Enum, Allowed: []string{"log", "linear"}, Default: "log", Doc: "Shape of the warm-up."},
		{Path: "scheduler.params.warmup_min_lr", Kind: Float, Range: atLeast(0), Default: 0.0, Doc: "WarmupLR, WarmupDecayLR: learning rate before the first step."},
		{Path: "scheduler.params.warmup_max_lr", Kind: Float, Range: atLeast(0), Default: 1e-3, Doc: "WarmupLR, WarmupDecayLR: learning rate after the warm-up."},
		{Path: "scheduler.params.warmup_min_ratio", Kind: Float, Range: between(0, 1), Default: 0.0, Doc: "WarmupCosineLR: the warm-up begins at this fraction of optimizer.params.lr."},
		{Path: "scheduler.params.cos_min_ratio", Kind: Float, Range: between(0, 1), Default: 1e-4, Doc: "WarmupCosineLR: the cosine ends at this fraction of optimizer.params.lr."},
		{Path: "scheduler.params.total_num_steps", Kind: Int, Range: atLeast(1), Derived: "required by the two",
			Doc: "WarmupDecayLR, WarmupCosineLR: the step at which the decay ends."},
		{Path: "scheduler.params.last_batch_iteration", Kind: Int, Default: -1, Status: Refused, Doc: "The schedule begins with the run."},
	}
}

func monitorKeys() []Key {
	return []Key{
		{Path: "csv_monitor.enabled", Kind: Bool, Default: false, Doc: "Write the series of the run as CSV files."},
		{Path: "csv_monitor.output_path", Kind: String, Default: "", Doc: "Folder; empty is the folder of the run."},
		{Path: "csv_monitor.job_name", Kind: String, Default: "DeepSpeedJobName", Doc: "Folder below output_path."},
		{Path: "tensorboard.enabled", Kind: Bool, Default: false, Doc: "Write the series of the run as event files of TensorBoard."},
		{Path: "tensorboard.output_path", Kind: String, Default: "", Doc: "Folder; empty is the folder of the run."},
		{Path: "tensorboard.job_name", Kind: String, Default: "DeepSpeedJobName", Doc: "Folder below output_path."},
		{Path: "wandb.enabled", Kind: Bool, Default: false, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "wandb.group", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "wandb.team", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "wandb.project", Kind: String, Default: "deepspeed", Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.enabled", Kind: Bool, Default: false, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.samples_log_interval", Kind: Int, Default: 100, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.project", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.workspace", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.experiment_name", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.experiment_key", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.online", Kind: Bool, Status: NoEffect, Doc: "use csv_monitor"},
		{Path: "comet.mode", Kind: String, Status: NoEffect, Doc: "use csv_monitor"},

		{Path: "flops_profiler.enabled", Kind: Bool, Default: false, Doc: "Profile one step of rank 0. (DeepSpeed switches wall_clock_breakdown on with it; here that is a key of its own.)"},
		{Path: "flops_profiler.profile_step", Kind: Int, Range: atLeast(1), Default: 1, Doc: "The optimizer step that is profiled, counted from 1, with all its micro-batches. The other steps run unwatched."},
		{Path: "flops_profiler.module_depth", Kind: Int, Range: atLeast(-1), Default: -1, Doc: "Levels of modules inside the model that are shown; -1 is all."},
		{Path: "flops_profiler.top_modules", Kind: Int, Range: atLeast(0), Default: 1, Doc: "Modules that are named for each level, by parameters, by multiply-accumulates and by time."},
		{Path: "flops_profiler.detailed", Kind: Bool, Default: true, Doc: "Show a line for every module."},
		{Path: "flops_profiler.output_file", Kind: String, Default: "", Doc: "File for the profile, written over; empty is the standard output."},
		{Path: "flops_profiler.recompute_fwd_factor", Kind: Float, Range: atLeast(0), Default: 0.0, Doc: "Enters DeepSpeed's estimate of the whole step, forward × (3 + recompute_fwd_factor), which is shown beside the count. What checkpointing computes again is counted, not estimated."},
		{Path: "comms_logger.enabled", Kind: Bool, Default: false, Doc: "Measure the collectives of rank 0 and print a table at the end: operation, purpose, bytes, number, time, bandwidths."},
		{Path: "comms_logger.verbose", Kind: Bool, Default: false, Doc: "Write a line for each collective, to comms.log in the folder of the run."},
		{Path: "comms_logger.prof_all", Kind: Bool, Default: true, Doc: "All operations; else those of prof_ops."},
		{Path: "comms_logger.prof_ops", Kind: Enums, Allowed: []string{"reduce_scatter", "all_reduce", "all_gather", "barrier"}, Default: []string{}, Doc: "Operations to measure when prof_all is false."},
		{Path: "comms_logger.debug", Kind: Bool, Default: false, Status: NoEffect, Doc: "collectives have their purpose as a name instead of the calling function"},
		{Path: "timers.throughput.enabled", Kind: Bool, Default: true, Status: NoEffect, Doc: "samples a second are always shown"},
		{Path: "timers.throughput.synchronized", Kind: Bool, Default: true, Status: NoEffect, Doc: "samples a second are always shown"},
	}
}
