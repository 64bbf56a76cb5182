package unet

import (
	"math"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

// small returns a configuration of few channels: two levels of halving,
// attention in the middle of both paths, odd settings everywhere.
func small() Config {
	c := DefaultConfig()
	c.InChannels, c.OutChannels = 2, 2
	c.BlockOutChannels = []int{4, 4, 8}
	c.DownBlockTypes = []string{DownBlock2D, AttnDownBlock2D, DownBlock2D}
	c.UpBlockTypes = []string{UpBlock2D, AttnUpBlock2D, UpBlock2D}
	c.LayersPerBlock = 1
	c.NormNumGroups = 2
	c.AttentionHeadDim = 2
	return c
}

func mustNew(t *testing.T, c Config, seed uint64) *UNet2DModel {
	t.Helper()
	m, err := New(c, seed)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// batch is the input of one training step.
type batch struct {
	shape     []int // of images, [B,C,H,W]
	images    []float32
	targets   []float32
	timesteps []int
	sample    framework.Sample
}

func newBatch(c Config, b, h, w int) batch {
	s := framework.NewStream(11, 0, 0, "batch")
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(s.Norm())
		}
		return x
	}
	d := batch{
		shape:   []int{b, c.InChannels, h, w},
		images:  normal(b * c.InChannels * h * w),
		targets: normal(b * c.OutChannels * h * w),
		sample:  framework.Sample{Seed: 5, Train: true},
	}
	for i := range b {
		d.timesteps = append(d.timesteps, s.Intn(1000))
		d.sample.Samples = append(d.sample.Samples, 100+i)
	}
	return d
}

// rows returns the batch of the given rows.
func (d batch) rows(rows ...int) batch {
	out := d
	out.shape = append([]int{len(rows)}, d.shape[1:]...)
	out.images, out.targets, out.timesteps, out.sample.Samples = nil, nil, nil, nil
	in, tg := len(d.images)/d.shape[0], len(d.targets)/d.shape[0]
	for _, r := range rows {
		out.images = append(out.images, d.images[r*in:(r+1)*in]...)
		out.targets = append(out.targets, d.targets[r*tg:(r+1)*tg]...)
		out.timesteps = append(out.timesteps, d.timesteps[r])
		out.sample.Samples = append(out.sample.Samples, d.sample.Samples[r])
	}
	return out
}

// result is what one training step computes.
type result struct {
	output []float32
	loss   float64
	grads  map[string][]float64
	peak   int64 // bytes of activations
}

// run runs forward and backward and takes the gradients off the parameters.
func run(t *testing.T, m *UNet2DModel, d batch, opts ...framework.Option) result {
	t.Helper()
	tape := framework.NewTape(opts...)
	tape.SetSample(d.sample)
	out, err := m.Forward(tape, tape.Input(d.shape, d.images), d.timesteps)
	if err != nil {
		t.Fatal(err)
	}
	r := result{output: out.Float32s(), grads: map[string][]float64{}}
	loss := tape.MSELoss(out, tape.Constant(out.Shape(), d.targets))
	r.loss = loss.Item()
	if err := tape.Backward(loss, 1); err != nil {
		t.Fatal(err)
	}
	r.peak = tape.Memory().Peak
	for _, p := range m.params {
		if p.Grad.Len() > 0 {
			g := make([]float64, p.Len())
			for i := range g {
				g[i] = p.Grad.At(i)
			}
			r.grads[p.Name] = g
			p.Grad = dtype.Buffer{}
		}
	}
	return r
}

// sameBits fails the test at the first difference in loss, output or gradients.
func sameBits(t *testing.T, got, want result) {
	t.Helper()
	if math.Float64bits(got.loss) != math.Float64bits(want.loss) {
		t.Errorf("loss %v, want %v", got.loss, want.loss)
	}
	if !slices.Equal(got.output, want.output) {
		t.Error("output differs")
	}
	if len(got.grads) != len(want.grads) {
		t.Errorf("%d gradients, want %d", len(got.grads), len(want.grads))
	}
	for name, w := range want.grads {
		g := got.grads[name]
		if len(g) != len(w) {
			t.Errorf("%s: %d gradient elements, want %d", name, len(g), len(w))
			continue
		}
		for i := range w {
			if math.Float64bits(g[i]) != math.Float64bits(w[i]) {
				t.Errorf("%s[%d]: gradient %v, want %v", name, i, g[i], w[i])
				break
			}
		}
	}
}

// distance is the largest difference relative to the largest value of want.
func distance[A, B float32 | float64](got []A, want []B) float64 {
	diff := make([]float64, len(want))
	for i := range want {
		diff[i] = float64(got[i]) - float64(want[i])
	}
	d := largest(diff)
	if d == 0 {
		return 0
	}
	return d / largest(want)
}

func largest[T float32 | float64](x []T) float64 {
	var m float64
	for _, v := range x {
		m = max(m, math.Abs(float64(v)))
	}
	return m
}
