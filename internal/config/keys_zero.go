package config

func zeroKeys() []Key {
	const p = "zero_optimization."
	return []Key{
		{Path: p + "stage", Kind: Int, Range: between(0, 2), Default: 0, Elsewhere: []string{"3"},
			Doc: "0: every rank holds everything. 1: optimizer states are shared out. 2: gradients too."},
		{Path: p + "reduce_bucket_size", Kind: Int, Range: atLeast(1), Default: 500_000_000,
			Doc: "Elements that are reduced at a time. Buffers are never larger than the model."},
		{Path: p + "allgather_bucket_size", Kind: Int, Range: atLeast(1), Default: 500_000_000,
			Doc: "Elements that are gathered at a time after the update."},
		{Path: p + "overlap_comm", Kind: Bool, Default: false, Doc: "Reduce during the backward pass, with a second bucket."},
		{Path: p + "load_from_fp32_weights", Kind: Bool, Default: true,
			Doc: "Master weights begin as the initial fp32 weights; false: as those rounded to the model's dtype."},
		{Path: p + "reduction_order", Kind: Enum, Allowed: []string{"global"}, Default: "global",
			Doc: "zerogap's own. global: gradients are added in the order of global micro-batches, so that the world size changes no bit."},
		{Path: p + "max_consecutive_skips", Kind: Int, Range: atLeast(1), Default: 100,
			Doc: "zerogap's own. Stop the run after so many steps in a row were skipped for gradients that are not finite."},
		{Path: p + "ignore_unused_parameters", Kind: Bool, Default: true,
			Doc: "A parameter without a gradient counts as one with gradient zero; false: it is an error."},

		{Path: p + "contiguous_gradients", Kind: Bool, Default: true, Status: NoEffect, Doc: "buckets are always contiguous"},
		{Path: p + "reduce_scatter", Kind: Bool, Default: true, Status: NoEffect, Doc: "gradients always go to their owner only"},
		{Path: p + "use_multi_rank_bucket_allreduce", Kind: Bool, Default: true, Status: NoEffect, Doc: "gradients always go to their owner only"},
		{Path: p + "round_robin_gradients", Kind: Bool, Default: false, Status: NoEffect, Doc: "parameters are always laid out in registration order"},
		{Path: p + "allgather_partitions", Kind: Bool, Default: true, Status: NoEffect, Doc: "weights are always gathered, never broadcast"},
		{Path: p + "elastic_checkpoint", Kind: Bool, Default: false, Status: NoEffect, Doc: "concerns checkpoints"},
		{Path: p + "enable_sanity_checks", Kind: Bool, Default: false, Status: NoEffect, Doc: "collectives are always checked"},
		{Path: p + "legacy_stage1", Kind: Bool, Default: false, Status: Refused, Doc: "DeepSpeed rejects it too."},
		{Path: p + "zenflow", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: p + "zero_quantized_weights", Kind: Bool, Default: false, Status: Refused, Doc: "It " + noVariant + "."},
		{Path: p + "zero_quantized_nontrainable_weights", Kind: Bool, Default: false, Status: Refused, Doc: "It " + noVariant + "."},
		{Path: p + "zero_quantized_gradients", Kind: Bool, Default: false, Status: Refused, Doc: "It " + noVariant + "."},
		{Path: p + "zeropp_loco_param", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},

		{Path: p + "offload_optimizer", Kind: Object, Derived: "none", Status: NoEffect, Doc: noOffload},
		{Path: p + "offload_param", Kind: Object, Derived: "none", Status: NoEffect, Doc: noOffload},
		{Path: p + "cpu_offload", Kind: Bool, Default: false, Status: NoEffect, Doc: noOffload},
		{Path: p + "cpu_offload_param", Kind: Bool, Default: false, Status: NoEffect, Doc: noOffload},
		{Path: p + "cpu_offload_use_pin_memory", Kind: Bool, Default: false, Status: NoEffect, Doc: noOffload},

		{Path: p + "sub_group_size", Kind: Int, Default: 1_000_000_000, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_prefetch_bucket_size", Kind: Int, Default: 50_000_000, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_param_persistence_threshold", Kind: Int, Default: 100_000, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_model_persistence_threshold", Kind: Int, Default: nil, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_max_live_parameters", Kind: Int, Default: 1_000_000_000, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_max_reuse_distance", Kind: Int, Default: 1_000_000_000, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_gather_16bit_weights_on_model_save", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_gather_fp16_weights_on_model_save", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_module_granularity_threshold", Kind: Int, Default: 0, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "stage3_use_all_reduce_for_fetch_params", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "zero_hpz_partition_size", Kind: Int, Default: 1, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "mics_shard_size", Kind: Int, Default: -1, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "mics_hierarchical_params_gather", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "memory_efficient_linear", Kind: Bool, Default: true, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "pipeline_loading_checkpoint", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "override_module_apply", Kind: Bool, Default: true, Status: NoEffect, Doc: onlyStage3},
		{Path: p + "log_trace_cache_warnings", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyStage3},
	}
}

// otherKeys are the sections of DeepSpeed that have no part in training a
// replicated dense model on CPUs.
func otherKeys() []Key {
	return []Key{
		{Path: "activation_checkpointing.partition_activations", Kind: Bool, Default: false, Status: NoEffect, Doc: "there is no model parallelism"},
		{Path: "activation_checkpointing.cpu_checkpointing", Kind: Bool, Default: false, Status: NoEffect, Doc: noOffload},
		{Path: "activation_checkpointing.contiguous_memory_optimization", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},
		{Path: "activation_checkpointing.number_checkpoints", Kind: Int, Status: NoEffect, Doc: onlyGPU},
		{Path: "activation_checkpointing.synchronize_checkpoint_boundary", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},
		{Path: "activation_checkpointing.profile", Kind: Bool, Default: false, Status: NoEffect, Doc: onlyGPU},

		{Path: "checkpoint.load_universal", Kind: Bool, Default: false, Status: Refused, Doc: "Universal checkpoints cannot be read."},
		{Path: "checkpoint.tag_validation", Kind: Enum, Allowed: []string{"Ignore", "Warn", "Fail"}, FoldCase: true, Default: "Warn", Status: NoEffect, Doc: "no checkpoints are written"},
		{Path: "checkpoint.use_node_local_storage", Kind: Bool, Default: false, Status: NoEffect, Doc: "no checkpoints are written"},
		{Path: "checkpoint.parallel_write", Kind: Object, Derived: "none", Status: NoEffect, Doc: "no checkpoints are written"},
		{Path: "checkpoint.writer", Kind: Object, Derived: "none", Status: NoEffect, Doc: "no checkpoints are written"},

		{Path: "aio", Kind: Object, Derived: "none", Status: NoEffect, Doc: noOffload},
		{Path: "autotuning", Kind: Object, Derived: "none", Status: NoEffect, Doc: "nothing is tuned"},
		{Path: "compile", Kind: Object, Derived: "none", Status: NoEffect, Doc: "nothing is compiled at run time"},
		{Path: "hybrid_engine", Kind: Object, Derived: "none", Status: NoEffect, Doc: "concerns text generation"},
		{Path: "nebula", Kind: Object, Derived: "none", Status: NoEffect, Doc: "no checkpoints are written"},
		{Path: "pipeline", Kind: Object, Derived: "none", Status: NoEffect, Doc: "there is no pipeline parallelism"},
		{Path: "amp", Kind: Object, Derived: "none", Status: Refused, Doc: "Use bf16.enabled or fp16.enabled."},
		{Path: "elasticity", Kind: Object, Derived: "none", Status: Refused, Doc: "The batch size is the one written."},
		{Path: "tensor_parallel", Kind: Object, Derived: "none", Status: Refused, Doc: "There is no tensor parallelism."},
		{Path: "sparse_attention", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: "progressive_layer_drop", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: "curriculum_learning", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: "data_efficiency", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: "eigenvalue", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: "quantize_training", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
		{Path: "compression_training", Kind: Object, Derived: "none", Status: Refused, Doc: "It " + noVariant + "."},
	}
}
