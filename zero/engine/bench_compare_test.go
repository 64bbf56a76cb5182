//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// colourNet is the network of configs/emoji.toml.
func colourNet() unet.Config {
	c := unet.DefaultConfig()
	c.BlockOutChannels = []int{32, 64, 64}
	c.DownBlockTypes = []string{unet.DownBlock2D, unet.DownBlock2D, unet.AttnDownBlock2D}
	c.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D, unet.UpBlock2D}
	return c
}

// BenchmarkWholeStep is a whole training step on one rank: forward, backward,
// clipping at norm 1, AdamW. scripts/compare_pytorch.py runs it in turns with the
// same step of PyTorch. ms is the median of the steps and cpu-ms that of their CPU
// time, which says more on a machine that does much else; params, by which the script
// knows that both have the same network, their number.
func BenchmarkWholeStep(b *testing.B) {
	for _, n := range []struct {
		name  string
		net   unet.Config
		batch int
	}{
		{"unet=16-32-32", mnistNet(), 32},
		{"unet=32-64-64", colourNet(), 16},
	} {
		for _, bf16 := range []bool{false, true} {
			format := "fp32"
			if bf16 {
				format = "bf16"
			}
			b.Run(fmt.Sprintf("%s/image=%dx32x32/batch=%d/%s", n.name, n.net.InChannels, n.batch, format), func(b *testing.B) { wholeStep(b, n.net, n.batch, bf16) })
		}
	}
}

func wholeStep(b *testing.B, net unet.Config, batch int, bf16 bool) {
	ctx := context.Background()
	m, err := unet.New(net, 1)
	if err != nil {
		b.Fatal(err)
	}
	cfg := zero.DefaultConfig()
	cfg.BF16.Enabled = bf16
	cfg.GradientClipping = 1
	cfg.ZeroOptimization.Stage = 2
	c := local.New(1)[0]
	e, err := engine.New(ctx, m, cfg, zero.Constant{Rate: 1e-4}, zero.DefaultAdamW(), c)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}()
	shape := []int{batch, net.InChannels, 32, 32}
	x, noise := make([]float32, batch*net.InChannels*32*32), make([]float32, batch*net.InChannels*32*32)
	framework.NewStream(1, 0, 0, "test").FillNorm(x)
	framework.NewStream(2, 0, 0, "test").FillNorm(noise)
	timesteps := make([]int, batch)
	for i := range timesteps {
		timesteps[i] = i * 1000 / batch
	}
	step := func() {
		t := e.Tape()
		pred, err := m.Forward(t, t.Input(shape, x), timesteps)
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Backward(ctx, t.MSELoss(pred, t.Constant(shape, noise))); err != nil {
			b.Fatal(err)
		}
		if _, err := e.Step(ctx); err != nil {
			b.Fatal(err)
		}
	}
	step() // the first step allocates
	step() // and the second, sizes that only the first has shown
	var times, cpu []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began, used := time.Now(), cpuTime(b)
		step()
		times, cpu = append(times, time.Since(began)), append(cpu, cpuTime(b)-used)
	}
	params := 0
	for _, p := range m.Params() {
		params += p.Len()
	}
	b.ReportMetric(float64(median(times))/1e6, "ms")
	b.ReportMetric(float64(median(cpu))/1e6, "cpu-ms")
	b.ReportMetric(float64(params), "params")
	b.ReportMetric(float64(batch)/median(times).Seconds(), "samples/s")
}
