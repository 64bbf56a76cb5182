package unet

import (
	"fmt"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

// measure runs a real pass and returns its peak.
func measure(t *testing.T, cfg Config, p Pass) int64 {
	t.Helper()
	m, err := New(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range m.Params() {
		q.Rebind(dtype.Make(p.Compute, q.Len())) // zeros: sizes are what matters
	}
	if err := m.SetCheckpointing(p.Mode, p.Segments); err != nil {
		t.Fatal(err)
	}
	tape := framework.NewTape(framework.WithCompute(p.Compute), framework.WithGradHook(func(*framework.Param, dtype.Buffer) error { return nil }))
	shape := []int{p.Batch, cfg.InChannels, p.Height, p.Width}
	samples := make([]int, p.Batch)
	tape.SetSample(framework.Sample{Samples: samples, Train: true})
	x := make([]float32, p.Batch*cfg.InChannels*p.Height*p.Width)
	pred, err := m.Forward(tape, tape.Input(shape, x), samples)
	if err != nil {
		t.Fatal(err)
	}
	if err := tape.Backward(tape.MSELoss(pred, tape.Constant(shape, x)), 1); err != nil {
		t.Fatal(err)
	}
	return tape.Memory().Peak
}

func TestActivationMemoryIsPredicted(t *testing.T) {
	small := DefaultConfig()
	small.SampleSize = Size{Height: 16, Width: 16}
	small.InChannels, small.OutChannels = 1, 1
	small.BlockOutChannels = []int{8, 16, 16}
	small.DownBlockTypes = []string{"DownBlock2D", "DownBlock2D", "AttnDownBlock2D"}
	small.UpBlockTypes = []string{"AttnUpBlock2D", "UpBlock2D", "UpBlock2D"}
	small.NormNumGroups = 8
	wide := small
	wide.BlockOutChannels = []int{24, 32, 32}
	wide.InChannels, wide.OutChannels = 3, 3
	wide.AttnNormNumGroups = 8
	shift := small
	shift.ResnetTimeScaleShift = "scale_shift"
	shift.Dropout = 0.1
	deep := small
	deep.DownBlockTypes = []string{"AttnDownBlock2D", "DownBlock2D", "AttnDownBlock2D"}
	deep.UpBlockTypes = []string{"AttnUpBlock2D", "UpBlock2D", "AttnUpBlock2D"}
	deep.AttentionHeadDim = 8
	for name, cfg := range map[string]Config{"small": small, "wide": wide, "scale and shift, dropout": shift, "attention at full size": deep} {
		for _, d := range []dtype.DType{dtype.F32, dtype.BF16} {
			for _, c := range []struct {
				mode     framework.Mode
				segments int
			}{{framework.ModeNone, 0}, {framework.ModeReentrant, 0}, {framework.ModeReentrant, 4}, {framework.ModeNonReentrant, 3}} {
				p := Pass{Batch: 4, Height: 16, Width: 16, Compute: d, Mode: c.mode, Segments: c.segments}
				got, err := ActivationMemory(cfg, p)
				if err != nil {
					t.Fatal(err)
				}
				want := measure(t, cfg, p)
				if got != want {
					t.Errorf("%s, %v, %v in %d segments: predicted %d bytes, measured %d", name, d, c.mode, c.segments, got, want)
				}
			}
		}
	}
}

func TestActivationMemoryRefusesWhatCannotRun(t *testing.T) {
	if _, err := ActivationMemory(Config{}, Pass{Batch: 1, Height: 8, Width: 8}); err == nil {
		t.Error("a configuration without levels was taken")
	}
	if _, err := ActivationMemory(DefaultConfig(), Pass{Height: 8, Width: 8}); err == nil {
		t.Error("an empty batch was taken")
	}
}

// BenchmarkCheckpointing is the curve of checkpointing: peak memory of activations
// against the time of a forward and backward pass, of the network of
// configs/zero2.toml on 16 pictures in bf16.
func BenchmarkCheckpointing(b *testing.B) {
	cfg := DefaultConfig()
	cfg.SampleSize = Size{Height: 32, Width: 32}
	cfg.InChannels, cfg.OutChannels = 1, 1
	cfg.BlockOutChannels = []int{16, 32, 32}
	cfg.DownBlockTypes = []string{"DownBlock2D", "DownBlock2D", "AttnDownBlock2D"}
	cfg.UpBlockTypes = []string{"AttnUpBlock2D", "UpBlock2D", "UpBlock2D"}
	cfg.NormNumGroups = 8
	for _, c := range []struct {
		mode     framework.Mode
		segments int
	}{
		{framework.ModeNone, 0},
		{framework.ModeReentrant, 2}, {framework.ModeReentrant, 4}, {framework.ModeReentrant, 8}, {framework.ModeReentrant, 0},
		{framework.ModeNonReentrant, 2}, {framework.ModeNonReentrant, 4}, {framework.ModeNonReentrant, 8}, {framework.ModeNonReentrant, 0},
	} {
		b.Run(fmt.Sprintf("%v/segments=%d", c.mode, c.segments), func(b *testing.B) {
			m, err := New(cfg, 1)
			if err != nil {
				b.Fatal(err)
			}
			for _, q := range m.Params() {
				buf := dtype.Make(dtype.BF16, q.Len())
				for i, v := range q.Value.Data().F32 {
					buf.U16[i] = dtype.FromFloat32(dtype.BF16, v)
				}
				q.Rebind(buf)
			}
			if err := m.SetCheckpointing(c.mode, c.segments); err != nil {
				b.Fatal(err)
			}
			tape := framework.NewTape(framework.WithCompute(dtype.BF16), framework.WithGradHook(func(*framework.Param, dtype.Buffer) error { return nil }))
			const batch = 16
			x, shape, timesteps := make([]float32, batch*32*32), []int{batch, 1, 32, 32}, make([]int, batch)
			for i := range x {
				x[i] = float32(i%17)/8 - 1
			}
			for b.Loop() {
				pred, err := m.Forward(tape, tape.Input(shape, x), timesteps)
				if err != nil {
					b.Fatal(err)
				}
				if err := tape.Backward(tape.MSELoss(pred, tape.Constant(shape, x)), 1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(tape.Memory().Peak)/(1<<20), "peak-MiB")
		})
	}
}
