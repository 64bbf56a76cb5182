package main

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero/fault"
)

// variant is one way to train.
type variant struct {
	name, title string
	bucket      float64 // reduce_bucket_size, as a part of the model's elements
	sets        []string
	faults      []string
}

// The report's bucket sizes, 1e9, 5e8, 1e7 and 1e6 for 600 million parameters, and five
// times the model, as parts of the model.
const (
	larger    = 1.67
	most      = 0.83
	sixtieth  = 1.0 / 60
	smallest  = 1.0 / 600
	fiveTimes = 5.0
)

const (
	stage1        = "zero_optimization.stage=1"
	stage2        = "zero_optimization.stage=2"
	noOverlap     = "zero_optimization.overlap_comm=false"
	accumFP32     = "data_types.grad_accum_dtype=fp32"
	accumBF16     = "data_types.grad_accum_dtype=bf16"
	nonReentrant  = "model.activation_checkpointing.mode=non_reentrant"
	noCheckpoints = "model.activation_checkpointing.mode=none"
)

// found are the faults behind the report: the trainer's path through buckets and hooks
// has all of them. Its stage 1 with fp32 accumulation took another path, without hooks
// and buckets, and has none.
func found() []string {
	return []string{fault.HookOrderLayout, fault.ReuseInFlight, fault.OversizeLifetime, fault.AccumDTypeIgnored}
}

// Names of the variants of the report.
const (
	vGood      = "stage1-fp32"
	vLarger    = "stage2-1.67"
	vMost      = "stage2-0.83"
	vSixtieth  = "stage2-1_60"
	vSmallest  = "stage2-1_600"
	vSingle    = "stage2-5.0-no-overlap"
	vStage1    = "stage1-bf16"
	vNon       = "stage2-0.83-non-reentrant"
	vPingpong  = "stage2-0.83-pingpong"
	vHooksOnly = "stage2-5.0-hook-order-alone"
)

// wrongVariants lists the variants of the report, and then others that tell causes apart.
func wrongVariants() []variant {
	return []variant{
		{vGood, "stage 1, fp32 accumulation", most, []string{stage1, accumFP32}, nil},
		{vLarger, "stage 2, bucket 1.67 of the model", larger, []string{stage2, accumFP32}, found()},
		{vMost, "stage 2, bucket 0.83 of the model", most, []string{stage2, accumFP32}, found()},
		{vSixtieth, "stage 2, bucket 1/60 of the model", sixtieth, []string{stage2, accumFP32}, found()},
		{vSmallest, "stage 2, bucket 1/600 of the model", smallest, []string{stage2, accumFP32}, found()},
		{vSingle, "stage 2, one bucket of 5 times the model, no overlap", fiveTimes, []string{stage2, accumFP32, noOverlap}, found()},
		{vStage1, "stage 1, bf16 accumulation", most, []string{stage1, accumBF16}, found()},
		{vNon, "stage 2, bucket 0.83, use_reentrant=False", most, []string{stage2, accumFP32, nonReentrant}, found()},
		{vPingpong, "stage 2, bucket 0.83, pingpong-reset in the place of reuse-in-flight", most, []string{stage2, accumFP32},
			[]string{fault.HookOrderLayout, fault.PingpongReset, fault.OversizeLifetime, fault.AccumDTypeIgnored}},
		{vHooksOnly, "stage 2, one bucket, no overlap, hook-order-layout alone", fiveTimes, []string{stage2, accumFP32, noOverlap}, []string{fault.HookOrderLayout}},
	}
}

// normVariants are the report's four runs with a learning rate of 0.
func normVariants() []variant {
	still := func(v variant) variant {
		v.sets = append(v.sets, "scheduler.params.warmup_max_lr=0")
		return v
	}
	return []variant{
		still(variant{"norm-stage1-fp32", "stage 1, fp32 accumulation", most, []string{stage1, accumFP32}, nil}),
		still(variant{"norm-stage1-bf16", "stage 1, bf16 accumulation", most, []string{stage1, accumBF16}, found()}),
		still(variant{"norm-stage2-fp32", "stage 2, fp32 accumulation", most, []string{stage2, accumFP32}, found()}),
		still(variant{"norm-stage2-bf16", "stage 2, bf16 accumulation", most, []string{stage2, accumBF16}, found()}),
	}
}

// ways are the ways to run the correct engine, the first of which is the measure.
func (g *gap) ways() []variant {
	var all []variant
	add := func(title string, bucket float64, sets ...string) {
		all = append(all, variant{name: fmt.Sprintf("correct-%02d", len(all)+1), title: title, bucket: bucket, sets: append(sets, accumFP32)})
	}
	add("stage 1, bucket 0.83", most, stage1)
	for stage := range 3 {
		for _, b := range []struct {
			name string
			part float64
		}{{"1.67", larger}, {"0.83", most}, {"1/60", sixtieth}, {"1/600", smallest}} {
			if stage == 1 && b.part == most || g.o.quick && stage == 0 {
				continue
			}
			add(fmt.Sprintf("stage %d, bucket %s", stage, b.name), b.part, fmt.Sprintf("zero_optimization.stage=%d", stage))
		}
	}
	add("stage 1, one bucket, no overlap", fiveTimes, stage1, noOverlap)
	add("stage 2, one bucket, no overlap", fiveTimes, stage2, noOverlap)
	add("stage 2, bucket 1/60, use_reentrant=False", sixtieth, stage2, nonReentrant)
	add("stage 2, bucket 0.83, no checkpointing", most, stage2, noCheckpoints)
	if !g.o.quick {
		add("stage 2, bucket 1/60, 2 ranks", sixtieth, stage2, "comm.world=2")
		add("stage 1, bucket 0.83, 8 ranks", most, stage1, "comm.world=8")
	}
	return all
}

// all lists every variant.
func (g *gap) all() []variant {
	all := append(wrongVariants(), normVariants()...)
	return append(all, g.ways()...)
}

// configure returns the configuration of a variant.
func (g *gap) configure(v variant, seed int) (*config.Config, error) {
	sets := append([]string{}, g.o.sets...)
	sets = append(append(sets, v.sets...),
		fmt.Sprintf("zero_optimization.reduce_bucket_size=%d", max(1, int(v.bucket*float64(g.elements)))),
		fmt.Sprintf("run.seed=%d", int(g.base.Run.Seed)+seed), fmt.Sprintf("lab.seed=%d", seed), fmt.Sprintf("lab.fault=[%s]", quoted(v.faults)))
	return config.Load(g.o.config, sets, checks()...)
}

func quoted(names []string) string {
	s := ""
	for i, n := range names {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%q", n)
	}
	return s
}
