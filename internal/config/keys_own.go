package config

import "github.com/zerogap/zerogap/zero/fault"

func modelKeys() []Key {
	down := []string{"DownBlock2D", "AttnDownBlock2D"}
	up := []string{"UpBlock2D", "AttnUpBlock2D"}
	return []Key{
		{Path: "model.type", Kind: Enum, Allowed: []string{"unet2d"}, Default: "unet2d", Doc: "The network."},
		{Path: "model.sample_size", Kind: Int, Range: between(1, 4096), Default: 32, Doc: "Height and width of the pictures, in pixels."},
		{Path: "model.in_channels", Kind: Int, Range: atLeast(1), Default: 1, Doc: "Channels of a picture: 1 grey, 3 colour."},
		{Path: "model.out_channels", Kind: Int, Range: atLeast(1), Derived: "`model.in_channels`", Doc: "Channels of the prediction; the same as in_channels."},
		{Path: "model.block_out_channels", Kind: Ints, Range: atLeast(1), Default: []int{16, 32, 32}, Doc: "Channels of each level, largest picture first. Multiples of norm_num_groups."},
		{Path: "model.down_block_types", Kind: Enums, Allowed: down, Default: []string{"DownBlock2D", "DownBlock2D", "AttnDownBlock2D"}, Doc: "The levels on the way down: without or with attention."},
		{Path: "model.mid_block_type", Kind: Enum, Allowed: []string{"UNetMidBlock2D", "none"}, Default: "UNetMidBlock2D", Doc: "The block at the bottom."},
		{Path: "model.up_block_types", Kind: Enums, Allowed: up, Default: []string{"AttnUpBlock2D", "UpBlock2D", "UpBlock2D"}, Doc: "The levels on the way up, smallest picture first."},
		{Path: "model.layers_per_block", Kind: Int, Range: atLeast(1), Default: 2, Doc: "Residual blocks of a level on the way down; one more on the way up."},
		{Path: "model.norm_num_groups", Kind: Int, Range: atLeast(1), Default: 8, Doc: "Groups of each group norm. (diffusers: 32.)"},
		{Path: "model.norm_eps", Kind: Float, Range: above(0), Default: 1e-5, Doc: "Added to the variance in each group norm."},
		{Path: "model.attn_norm_num_groups", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Groups of the norm before the attention of the middle block; 0 is diffusers' None: norm_num_groups, and no norm there with scale_shift."},
		{Path: "model.attention_head_dim", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Channels of an attention head; 0 is diffusers' None: one head over all channels. (diffusers: 8.)"},
		{Path: "model.add_attention", Kind: Bool, Default: true, Doc: "Attention in the middle block."},
		{Path: "model.dropout", Kind: Float, Range: below(0, 1), Default: 0.0, Doc: "Probability of dropout in the residual blocks."},
		{Path: "model.time_embedding_dim", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Width of the time embedding; 0 is diffusers' None: 4 · block_out_channels[0]."},
		{Path: "model.freq_shift", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Shift of the frequencies of the time embedding."},
		{Path: "model.flip_sin_to_cos", Kind: Bool, Default: true, Doc: "Cosines before sines in the time embedding."},
		{Path: "model.downsample_padding", Kind: Int, Range: between(0, 1), Default: 1, Doc: "1: pad all around; 0: pad below and to the right."},
		{Path: "model.resnet_time_scale_shift", Kind: Enum, Allowed: []string{"default", "scale_shift"}, Default: "default", Doc: "default: the time embedding is added; scale_shift: it scales and shifts."},
		{Path: "model.act_fn", Kind: Enum, Allowed: []string{"silu", "swish"}, Default: "silu", Doc: "The activation function; both names mean the same one."},
		{Path: "model.from_pretrained", Kind: String, Default: "", Doc: "A folder of diffusers (of a UNet2DModel, or of a pipeline with one) whose weights the training begins with; its network must be the configured one. A resumed training has weights of its own."},
		{Path: "model.num_classes", Kind: Int, Range: atLeast(0), Default: 0, Doc: "For the laboratory: a branch of the time embedding for classes, and one of the same shape for no class. The labels are those of the data; it needs at least as many classes."},
		{Path: "model.label_dropout", Kind: Float, Range: between(0, 1), Default: 0.0, Doc: "For the laboratory: probability that a micro-batch takes the branch for no class, so that ranks use different parameters."},
		{Path: "model.parallel_branches", Kind: Int, Range: atLeast(0), Default: 0, Doc: "For the laboratory: two branches of so many resnets behind the last block, an attention in one of them, of which either may be computed first, so that ranks compute gradients in different orders."},
		{Path: "model.self_conditioning", Kind: Bool, Default: false, Doc: "For the laboratory: the network sees its own prediction, in half of the micro-batches that of a first pass without gradient."},
		{Path: "model.shared_middle", Kind: Bool, Default: false, Doc: "For the laboratory: the two resnets of the middle block share their weights, across checkpointed segments."},
		{Path: "model.checkpoint_conv_in", Kind: Bool, Default: false, Doc: "For the laboratory: the first convolution is a checkpointed segment, whose input needs no gradient."},
		{Path: "model.activation_checkpointing.mode", Kind: Enum, Allowed: []string{"none", "reentrant", "non_reentrant"}, Default: "none",
			Doc: "Keep all activations, or compute those of a segment again in the backward pass; the two manners are those of PyTorch's use_reentrant."},
		{Path: "model.activation_checkpointing.segments", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Segments the network is cut into; 0 makes every step of it one."},
	}
}

func diffusionKeys() []Key {
	return []Key{
		{Path: "diffusion.num_train_timesteps", Kind: Int, Range: between(1, 1_000_000), Default: 1000, Doc: "Steps of the noise schedule."},
		{Path: "diffusion.beta_schedule", Kind: Enum, Allowed: []string{"linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid"}, Default: "linear", Doc: "Shape of the noise schedule."},
		{Path: "diffusion.beta_start", Kind: Float, Range: below(0, 1), Default: 1e-4, Doc: "First β of linear and scaled_linear."},
		{Path: "diffusion.beta_end", Kind: Float, Range: below(0, 1), Default: 0.02, Doc: "Last β of linear and scaled_linear."},
		{Path: "diffusion.prediction_type", Kind: Enum, Allowed: []string{"epsilon", "v_prediction", "sample"}, Default: "epsilon", Doc: "What the network predicts: the noise, the velocity or the picture."},
		{Path: "diffusion.sampler", Kind: Enum, Allowed: []string{"ddpm", "ddim"}, Default: "ddpm", Doc: "How pictures are made. ddim needs fewer steps, and a well trained network."},
		{Path: "diffusion.sample_steps", Kind: Int, Range: atLeast(1), Derived: "250, or `diffusion.num_train_timesteps` if that is less", Doc: "Steps of the sampler, at most num_train_timesteps."},
		{Path: "diffusion.eta", Kind: Float, Range: between(0, 1), Default: 0.0, Doc: "Noise of ddim: 0 none, 1 as much as ddpm."},
		{Path: "diffusion.ema_decay", Kind: Float, Range: below(0, 1), Default: 0.0, Doc: "Keep an exponential moving average of the weights with this decay, for instance 0.999, in 4 more bytes a parameter over all ranks; grids, held-out loss and the saved network use it. 0: none."},
		{Path: "diffusion.ema_ramp", Kind: Bool, Default: true, Doc: "Let the average follow quickly at first: the decay of step s is at most (1+s)/(10+s)."},
		{Path: "diffusion.clip_sample", Kind: Bool, Default: true, Doc: "Clip the predicted picture to [−1, 1] at each step of the sampler."},
	}
}

func dataKeys() []Key {
	return []Key{
		{Path: "data.kind", Kind: Enum, Allowed: []string{"mnist", "emoji", "folder", "procedural"}, Default: "mnist",
			Doc: "mnist: handwritten digits, which come with the module. emoji: colour pictures of an npm package. folder: the PNG and JPEG files of a folder. procedural: drawn shapes, no files."},
		{Path: "data.path", Kind: String, Default: "", Doc: "The folder, for kind folder; for kind emoji that of the unpacked npm package emoji-datasource-google."},
		{Path: "data.category", Kind: String, Default: "", Doc: "For kind emoji: only the pictures of this category of its emoji.json, such as \"Smileys & Emotion\"; empty is all."},
		{Path: "data.image_size", Kind: Int, Range: between(1, 4096), Derived: "`model.sample_size`", Doc: "Height and width that pictures are brought to."},
		{Path: "data.channels", Kind: Int, Range: atLeast(1), Derived: "`model.in_channels`", Doc: "Channels that pictures are brought to."},
		{Path: "data.flip", Kind: Bool, Default: false, Doc: "Mirror half of the pictures, left to right."},
		{Path: "data.drop_last", Kind: Bool, Default: true, Doc: "Leave out the samples at the end of an epoch that do not fill a batch."},
		{Path: "data.train_samples", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Use the first so many samples only; 0 is all."},
	}
}

func runKeys() []Key {
	return []Key{
		{Path: "run.seed", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Seed of weights, order, noise, timesteps, dropout and flips."},
		{Path: "run.steps", Kind: Int, Range: atLeast(1), Default: 800, Doc: "Optimizer steps."},
		{Path: "run.out", Kind: String, Default: "out", Doc: "Folder of the results."},
		{Path: "run.eval_every", Kind: Int, Range: atLeast(0), Default: 200, Doc: "Held-out loss every so many steps; 0 is only at the end."},
		{Path: "run.eval_samples", Kind: Int, Range: atLeast(1), Default: 256, Doc: "Held-out samples of one evaluation."},
		{Path: "run.sample_every", Kind: Int, Range: atLeast(0), Default: 200, Doc: "A grid of generated pictures every so many steps; 0 is only at the end."},
		{Path: "run.checkpoint_every", Kind: Int, Range: atLeast(0), Default: 0, Doc: "A checkpoint every so many steps; 0 is only at the end, or when the run is stopped."},
		{Path: "run.checkpoint_keep", Kind: Int, Range: atLeast(0), Default: 2, Doc: "Checkpoints that stay, the newest ones; 0 is all. Older ones are deleted when a new one is safe."},
		{Path: "run.checkpoint_async", Kind: Bool, Default: true, Doc: "Write checkpoints off a copy while the training goes on. The copy takes the memory of the optimizer state once more."},
		{Path: "run.sample_count", Kind: Int, Range: between(0, 4096), Default: 16, Doc: "Pictures in a grid; 0 is no grids."},
		{Path: "run.trace_step", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Write a trace of this step, counted from 1, to trace.json in the folder of the run; 0 is none. See docs/profiling.md."},
	}
}

func commKeys() []Key {
	return []Key{
		{Path: "comm.engine", Kind: Enum, Allowed: []string{"auto", "local", "mpi"}, Default: "auto",
			Doc: "local: the ranks are goroutines of one process. mpi: they are processes on any number of machines, see distributed.md. auto: mpi when started by mpirun or srun, else local."},
		{Path: "comm.library", Kind: String, Default: "auto", Doc: "For engine mpi: openmpi, mpich, or the path of a library; auto is the one that the launcher belongs to."},
		{Path: "comm.world", Kind: Int, Range: between(1, 1024), Default: 1, Doc: "Number of ranks. With engine mpi the launcher decides it."},
		{Path: "comm.timeout_ms", Kind: Int, Range: atLeast(1), Default: 300_000, Doc: "Longest wait for another rank, in milliseconds; after it every rank stops with an error."},
	}
}

func labKeys() []Key {
	return []Key{
		{Path: "lab.fault", Kind: Enums, Allowed: fault.Names(), Default: []string{}, Doc: "Faults of other trainers to train with, see [the laboratory](laboratory.md). The run's header, curves and checkpoints carry their names."},
		{Path: "lab.seed", Kind: Int, Range: atLeast(0), Default: 0, Doc: "Seed of what a race would leave to chance."},
		{Path: "lab.late", Kind: Float, Range: atLeast(0), Default: fault.DefaultLate, Doc: "How slow the network is beside the backward pass, where a fault does not wait for it: the probability that a buffer is overwritten while it is being sent; above 1 always, when at most 1/late of it was sent."},
	}
}
