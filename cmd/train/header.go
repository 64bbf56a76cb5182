package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/zerogap/zerogap/zero"
)

// header prints what is going to run, as decided and not as configured.
func (j *job) header() {
	c, p := j.cfg, j.plan
	m := c.Model
	line := func(name, format string, args ...any) {
		fmt.Fprintf(j.stdout, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	ch, h, w := j.train.Shape()
	line("model", "UNet2DModel %v, %d layers a block, %s parameters in %d tensors", m.BlockOutChannels, m.LayersPerBlock, thousands(p.Elements), j.tensors)
	line("data", "%s, %s pictures of %dx%dx%d, %s held out", c.Data.Kind, thousands(j.train.Len()), ch, h, w, thousands(j.heldOut.Len()))
	line("diffusion", "%s schedule over %d timesteps, %s prediction; %s sampler in %d steps", c.Diffusion.BetaSchedule, c.Diffusion.NumTrainTimesteps, c.Diffusion.PredictionType, c.Diffusion.Sampler, c.Diffusion.SampleSteps)
	line("batch", "%d = %d a micro-batch x %d accumulated x %d ranks (%s)", c.TrainBatchSize, c.TrainMicroBatchSizePerGPU, c.GradientAccumulationSteps, c.Comm.World, c.WorldOrigin)
	line("optimizer", "%v, %s; clipping %s", rule(c), describeSchedule(c.Scheduler.Type, schedule(c)), onOff(c.GradientClipping))
	line("dtypes", "%v", zeroConfig(c).Policy())
	line("zero", "stage %d, %s reduction order, overlap_comm %v, %s, partitions of %s", c.ZeroOptimization.Stage, c.ZeroOptimization.ReductionOrder, c.ZeroOptimization.OverlapComm, buckets(p), thousands(p.Partition))
	line("checkpoints", "of activations: %s", describeCheckpointing(m.ActivationCheckpointing.Mode, m.ActivationCheckpointing.Segments))
	line("memory", "%s", memoryLine("a rank, without activations:", p.Memory(0, rule(c), true)))
	line("activations", "%s at most, of a micro-batch and its backward", mib(j.activations))
	line("engine", "%s, GOMAXPROCS %d", j.describeEngine(), runtime.GOMAXPROCS(0))
	if j.processes != "" {
		line("processes", "%s", j.processes)
	}
	line("run", "seed %d, %s steps%s", c.Run.Seed, thousands(c.Run.Steps), j.describeResume())
	if names := c.Lab.Fault; len(names) > 0 {
		line("FAULTS", "%s, seed %d: this training is wrong on purpose", strings.Join(names, ", "), c.Lab.Seed)
	}
	line("output", "%s", j.out)
	if j.web != nil {
		line("live", "%s", j.web.URL())
	}
	fmt.Fprintln(j.stdout)
}

func (j *job) describeResume() string {
	if j.resume == nil {
		return ""
	}
	return fmt.Sprintf("; goes on after step %s, from %s", thousands(j.start()), j.resume.folder.Path())
}

func describeSchedule(name string, s zero.Schedule) string {
	if k, ok := s.(zero.Constant); ok {
		return fmt.Sprintf("lr %g", k.Rate)
	}
	return fmt.Sprintf("%s from %.3g", name, s.LR(0))
}

func describeCheckpointing(mode string, segments int) string {
	switch {
	case mode == "none":
		return "all kept"
	case segments == 0:
		return mode + ", every block recomputed on its own"
	}
	return fmt.Sprintf("%s in %d segments", mode, segments)
}

func onOff(clip float64) string {
	if clip == 0 {
		return "off"
	}
	return fmt.Sprintf("at norm %g", clip)
}

func buckets(p *zero.Plan) string {
	if len(p.Buckets) == 1 {
		return fmt.Sprintf("1 bucket of %s", thousands(p.BucketLen()))
	}
	return fmt.Sprintf("%d buckets of at most %s elements", len(p.Buckets), thousands(p.BucketLen()))
}

// memoryLine lists the kinds of memory that are there.
func memoryLine(what string, m zero.Memory) string {
	var parts []string
	for _, k := range []struct {
		name  string
		bytes int64
	}{
		{"parameters", m.Parameters}, {"gradients", m.Gradients}, {"accumulators", m.Accumulators},
		{"master", m.Master}, {"moments", m.Moments}, {"buckets", m.Buckets}, {"workspace", m.Workspace},
	} {
		if k.bytes > 0 {
			parts = append(parts, k.name+" "+mib(k.bytes))
		}
	}
	return fmt.Sprintf("%s %s (%s)", what, mib(m.Total()), strings.Join(parts, ", "))
}

func mib(bytes int64) string { return fmt.Sprintf("%.2f MiB", float64(bytes)/(1<<20)) }

// thousands writes 408641 as 408,641.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
