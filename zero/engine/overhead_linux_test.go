package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// workload is a model with a loss.
type workload struct {
	params []*framework.Param
	loss   func(*framework.Tape) (*framework.Tensor, error)
}

func unetWork(batch int) (workload, error) {
	m, err := unet.New(mnistNet(), 1)
	if err != nil {
		return workload{}, err
	}
	x := make([]float32, batch*32*32)
	framework.NewStream(1, 0, 0, "test").FillNorm(x)
	timesteps := make([]int, batch)
	for i := range timesteps {
		timesteps[i] = 60 * i
	}
	return workload{m.Params(), func(t *framework.Tape) (*framework.Tensor, error) {
		shape := []int{batch, 1, 32, 32}
		pred, err := m.Forward(t, t.Input(shape, x), timesteps)
		if err != nil {
			return nil, err
		}
		return t.MSELoss(pred, t.Constant(shape, x)), nil
	}}, nil
}

func linearWork(layers, width, batch int) (workload, error) {
	m := newStack(layers, width)
	x := make([]float32, batch*width)
	framework.NewStream(1, 0, 0, "test").FillNorm(x)
	return workload{m.Params(), func(t *framework.Tape) (*framework.Tensor, error) {
		shape := []int{batch, width}
		return t.MSELoss(m.forward(t, t.Input(shape, x)), t.Constant(shape, x)), nil
	}}, nil
}

func (w workload) Params() []*framework.Param { return w.params }

// bareStep returns a training step without any machinery: gradients are copied
// into one flat buffer as they become ready, and AdamW runs over all weights.
func bareStep(w workload) func() error {
	n := 0
	for _, p := range w.params {
		n += p.Len()
	}
	weights, grads, m, v := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	place, at := map[*framework.Param][]float32{}, 0
	for _, p := range w.params {
		copy(weights[at:], p.Value.Data().F32)
		p.Rebind(dtype.OfFloat32(weights[at : at+p.Len()]))
		place[p] = grads[at : at+p.Len()]
		at += p.Len()
	}
	tape := framework.NewTape(framework.WithGradHook(func(p *framework.Param, g dtype.Buffer) error {
		copy(place[p], g.F32)
		return nil
	}))
	step := 0
	return func() error {
		loss, err := w.loss(tape)
		if err != nil {
			return err
		}
		if err := tape.Backward(loss, 1); err != nil {
			return err
		}
		step++
		kernel.AdamW(step, 1e-4, 0.9, 0.999, 1e-8, 0.01, weights, grads, m, v)
		return nil
	}
}

// engineStep returns the same step through the engine, on one rank at stage 2.
func engineStep(b *testing.B, w workload, bucket int) func() error {
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.ReduceBucketSize = bucket
	c := local.New(1)[0]
	ctx := context.Background()
	e, err := engine.New(ctx, w, cfg, zero.Constant{Rate: 1e-4}, zero.DefaultAdamW(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	return func() error {
		loss, err := w.loss(e.Tape())
		if err != nil {
			return err
		}
		if err := e.Backward(ctx, loss); err != nil {
			return err
		}
		_, err = e.Step(ctx)
		return err
	}
}

// cpuTime returns what this process has had of the CPUs.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOverhead is what the machinery costs on one rank: a step of the engine
// at stage 2 against a bare backward and AdamW. The steps take turns, so that what
// else the machine does falls on all of them; the metrics are ratios of medians, of
// wall time and, for machines that do much else, of CPU time.
func BenchmarkOverhead(b *testing.B) {
	for _, c := range []struct {
		name string
		make func() (workload, error)
	}{
		{"unet", func() (workload, error) { return unetWork(16) }},
		{"linears/batch=64", func() (workload, error) { return linearWork(16, 512, 64) }},
		{"linears/batch=512", func() (workload, error) { return linearWork(16, 512, 512) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			buckets := []int{1e4, 1e6, 5e8}
			var steps []func() error
			for i := range 1 + len(buckets) {
				w, err := c.make()
				if err != nil {
					b.Fatal(err)
				}
				if i == 0 {
					steps = append(steps, bareStep(w))
				} else {
					steps = append(steps, engineStep(b, w, buckets[i-1]))
				}
			}
			times, cpu := make([][]time.Duration, len(steps)), make([][]time.Duration, len(steps))
			order := rand.New(rand.NewPCG(1, 2)) // who runs after whom matters
			turn := func() {
				for _, i := range order.Perm(len(steps)) {
					began, used := time.Now(), cpuTime(b)
					if err := steps[i](); err != nil {
						b.Fatal(err)
					}
					times[i] = append(times[i], time.Since(began))
					cpu[i] = append(cpu[i], cpuTime(b)-used)
				}
			}
			turn() // the first step allocates
			for i := range times {
				times[i], cpu[i] = times[i][:0], cpu[i][:0]
			}
			for b.Loop() {
				turn()
			}
			b.ReportMetric(float64(median(times[0]))/1e6, "bare-ms")
			for i, bucket := range buckets {
				b.ReportMetric(float64(median(times[i+1]))/float64(median(times[0])), fmt.Sprintf("time-%.0e/bare", float64(bucket)))
				b.ReportMetric(float64(median(cpu[i+1]))/float64(median(cpu[0])), fmt.Sprintf("cpu-%.0e/bare", float64(bucket)))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(x []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(x))
	return s[len(s)/2]
}

// BenchmarkWorlds is a step of the MNIST network at one global batch of 32 on two
// ranks against one rank that accumulates two micro-batches: ratios of medians of
// steps that take turns.
func BenchmarkWorlds(b *testing.B) {
	for _, format := range []string{"fp32", "bf16"} {
		b.Run(format, func(b *testing.B) {
			var groups []*ranks
			for world := 1; world <= 2; world++ {
				cfg := zero.DefaultConfig()
				cfg.GradientAccumulationSteps = 2 / world
				cfg.BF16.Enabled = format == "bf16"
				cfg.ZeroOptimization.Stage = 2
				cfg.ZeroOptimization.OverlapComm = true
				cfg.ZeroOptimization.ReduceBucketSize = 100_000
				groups = append(groups, newRanks(b, world, cfg))
			}
			for _, g := range groups {
				g.step(b) // the first step allocates
			}
			var times, cpu [2][]time.Duration
			for b.Loop() {
				for i, g := range groups {
					began, used := time.Now(), cpuTime(b)
					g.step(b)
					times[i] = append(times[i], time.Since(began))
					cpu[i] = append(cpu[i], cpuTime(b)-used)
				}
			}
			b.ReportMetric(float64(median(times[0]))/1e6, "world-1-ms")
			b.ReportMetric(float64(median(times[1]))/float64(median(times[0])), "time-2/1")
			b.ReportMetric(float64(median(cpu[1]))/float64(median(cpu[0])), "cpu-2/1")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkBucketSizes is the price of small buckets: a step of the MNIST network on
// two ranks at stage 2, against one bucket for all, as ratios of medians of steps
// that take turns. The losses are the same bits (TestNoKnobChangesABit).
func BenchmarkBucketSizes(b *testing.B) {
	sizes := []int{1 << 30, 200_000, 50_000, 10_000, 2_000, 500, 100}
	var groups []*ranks
	for _, size := range sizes {
		cfg := zero.DefaultConfig()
		cfg.BF16.Enabled = true
		cfg.ZeroOptimization.Stage = 2
		cfg.ZeroOptimization.OverlapComm = true
		cfg.ZeroOptimization.ReduceBucketSize = size
		cfg.ZeroOptimization.AllgatherBucketSize = size
		groups = append(groups, newRanks(b, 2, cfg))
	}
	for _, g := range groups {
		g.step(b) // the first step allocates
	}
	times := make([][]time.Duration, len(sizes))
	for b.Loop() {
		for i, g := range groups {
			began := time.Now()
			g.step(b)
			times[i] = append(times[i], time.Since(began))
		}
	}
	b.ReportMetric(float64(median(times[0]))/1e6, "one-bucket-ms")
	for i, size := range sizes[1:] {
		b.ReportMetric(float64(median(times[i+1]))/float64(median(times[0])), fmt.Sprintf("%d/one", size))
	}
	b.ReportMetric(0, "ns/op")
}
