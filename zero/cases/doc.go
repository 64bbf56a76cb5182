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
//	A  layout    buckets, overlap, partitions                    E01 to E06
//	B  counting  which gradients count, and how often            E07 to E13
//	C  norm      norm, clipping, overflow, loss scale, schedule  E14 to E23
//	D  segments  activation checkpointing                        E24, E25
//	E  failures  what happens when a rank stops                  E30
//	F  config    configuration and memory                        E31, E32, E34
//	G  diffusion prediction types and shapes                     E36
//
// Beside them stand a matrix of every way to run on gradients whose arithmetic is
// exact, and a comparison of random trainings with a sequential reference.
package cases
