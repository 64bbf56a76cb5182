// Package cases holds, as tests, what users of ZeRO trainers have run into.
//
// Each test restates a public report about some other system as a small input with
// one right result, and checks it for the whole kind of input: every stage, bucket
// size, number format and world size that could bring the mistake back. The names
// of wrong results (a contribution lost, a sum not divided, a shard taken for the
// whole) are in the messages, so that a failure tells its cause.
//
// The tests use the public surface only: packages zero, zero/engine, framework and
// unet, and zero/comm/gated for what happens on the wire.
//
//	A  layout_test, overlap_test                 buckets, overlap, partitions            E01 to E06
//	B  counting_test, sharing_test,              which gradients count, and how often    E07 to E13
//	   accumulation_test
//	C  norm_test, groups_test, scale_test        norm, clipping, overflow, parameter     E14 to E21, E23
//	                                             groups, loss scale, schedule
//	D  segments_test                             activation checkpointing                E24, E25
//	E  failures_test                             what happens when a rank stops          E30
//	F  config_test, memory_test                  configuration (see internal/config for  E31, E32, E34
//	                                             what a file may say) and memory
//	G  diffusion_test, ema_test                  prediction types, shapes, averages      E36
//
// The numbers that are missing belong to parts that have their own tests elsewhere:
// files of checkpoints, the monitor, the profiler.
//
// Beside them stand a matrix of every way to run on gradients whose arithmetic is
// exact (fixture_test), a comparison of random trainings with a sequential reference
// (random_test), and fuzzed layouts (plan_fuzz_test).
package cases
