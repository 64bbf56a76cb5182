package engine_test

import (
	"context"
	"sync"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// mnistNet is the network of configs/zero2.toml.
func mnistNet() unet.Config {
	c := unet.DefaultConfig()
	c.InChannels, c.OutChannels = 1, 1
	c.BlockOutChannels = []int{16, 32, 32}
	c.DownBlockTypes = []string{unet.DownBlock2D, unet.DownBlock2D, unet.AttnDownBlock2D}
	c.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D, unet.UpBlock2D}
	c.NormNumGroups = 8
	return c
}

// BenchmarkTrainStep is one optimizer step of the MNIST network at a global
// batch of 32: ranks x accumulation, storage format. It reports the peak of
// activations, their gradients and scratch of a rank, too.
func BenchmarkTrainStep(b *testing.B) {
	for _, bc := range []struct {
		name         string
		world, accum int
		bf16         bool
	}{
		{"world=1/fp32", 1, 2, false},
		{"world=1/bf16", 1, 2, true},
		{"world=2/fp32", 2, 1, false},
		{"world=2/bf16", 2, 1, true},
	} {
		b.Run(bc.name, func(b *testing.B) {
			cfg := zero.DefaultConfig()
			cfg.GradientAccumulationSteps = bc.accum
			cfg.BF16.Enabled = bc.bf16
			cfg.ZeroOptimization.Stage = 2
			cfg.ZeroOptimization.OverlapComm = true
			cfg.ZeroOptimization.ReduceBucketSize = 100_000
			ranks := newRanks(b, bc.world, cfg)
			ranks.step(b) // the first step allocates
			tape := ranks.engines[0].Tape()
			tape.ResetPeak()
			b.ReportAllocs()
			for b.Loop() {
				ranks.step(b)
			}
			b.ReportMetric(32*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
			b.ReportMetric(float64(tape.Memory().Peak)/(1<<20), "peak-MiB/rank")
		})
	}
}

type ranks struct {
	engines []*engine.Engine
	models  []*unet.UNet2DModel
	accum   int
	input   []float32
}

func newRanks(b *testing.B, world int, cfg zero.Config) *ranks {
	r := &ranks{accum: cfg.GradientAccumulationSteps, input: make([]float32, 16*32*32)}
	framework.NewStream(1, 0, 0, "test").FillNorm(r.input)
	r.engines, r.models = make([]*engine.Engine, world), make([]*unet.UNet2DModel, world)
	comms := local.New(world)
	r.each(b, func(i int) error {
		m, err := unet.New(mnistNet(), 1)
		if err != nil {
			return err
		}
		r.models[i] = m
		r.engines[i], err = engine.New(context.Background(), m, cfg, zero.Constant{Rate: 1e-4}, zero.DefaultAdamW(), comms[i])
		return err
	})
	b.Cleanup(func() {
		for i, e := range r.engines {
			if err := e.Close(); err != nil {
				b.Error(err)
			}
			if err := comms[i].Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return r
}

// each runs f for every rank at once.
func (r *ranks) each(b *testing.B, f func(rank int) error) {
	var wg sync.WaitGroup
	for i := range r.engines {
		wg.Go(func() {
			if err := f(i); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

func (r *ranks) step(b *testing.B) {
	timesteps := make([]int, 16)
	for i := range timesteps {
		timesteps[i] = 60 * i
	}
	r.each(b, func(i int) error {
		e, ctx := r.engines[i], context.Background()
		for range r.accum {
			t := e.Tape()
			shape := []int{16, 1, 32, 32}
			pred, err := r.models[i].Forward(t, t.Input(shape, r.input), timesteps)
			if err != nil {
				return err
			}
			if err := e.Backward(ctx, t.MSELoss(pred, t.Constant(shape, r.input))); err != nil {
				return err
			}
		}
		_, err := e.Step(ctx)
		return err
	})
}
