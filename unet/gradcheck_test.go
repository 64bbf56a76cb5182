package unet

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

// The gradient of every layer along a random direction, in float64,
// against differences of the loss, at image sizes that halving does not divide.
func TestGradientAgainstDifferences(t *testing.T) {
	for _, c := range []struct {
		name                 string
		change               func(c *Config)
		batch, height, width int
	}{
		{"default", func(*Config) {}, 1, 13, 9},
		{"default", func(*Config) {}, 1, 12, 12},
		{"default", func(*Config) {}, 2, 1, 1},
		{"scale_shift", func(c *Config) { c.ResnetTimeScaleShift, c.Dropout = timeScaleShift, 0.2 }, 2, 4, 5},
		{"scale_shift", func(c *Config) { c.ResnetTimeScaleShift, c.AttnNormNumGroups = timeScaleShift, 4 }, 2, 1, 1},
		{"one head", func(c *Config) { c.AttentionHeadDim, c.DownsamplePadding = 0, 0 }, 1, 4, 5},
		{"two layers", func(c *Config) { c.LayersPerBlock = 2 }, 1, 3, 2},
		{"no middle", func(c *Config) { c.MidBlockType = "" }, 1, 6, 3},
	} {
		t.Run(fmt.Sprintf("%s/%dx%d", c.name, c.height, c.width), func(t *testing.T) {
			t.Parallel()
			cfg := small()
			// With few values in a group, an eps of 1e-5 makes the norm so
			// steep that differences are no good reference.
			cfg.NormEps = 1e-2
			c.change(&cfg)
			gradCheck(t, cfg, newBatch(cfg, c.batch, c.height, c.width))
		})
	}
}

func gradCheck(t *testing.T, c Config, d batch) {
	m := mustNew(t, c, 3)
	widen(m)
	wide := framework.WithCompute(dtype.F64)
	got := run(t, m, d, wide)
	tape := framework.NewTape(wide)
	tape.SetSample(d.sample)
	loss := func() float64 {
		var l float64
		err := tape.NoGrad(func() error {
			out, err := m.Forward(tape, tape.Input(d.shape, d.images), d.timesteps)
			if err == nil {
				l = tape.MSELoss(out, tape.Constant(out.Shape(), d.targets)).Item()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	s := framework.NewStream(4, 0, 0, "direction")
	for _, layer := range layers(m.params) {
		var w, dir []dtype.Buffer
		var size, along, norm float64
		for _, p := range layer {
			d, g := dtype.Make(dtype.F64, p.Len()), got.grads[p.Name]
			for i := range d.F64 {
				d.F64[i] = s.Norm()
				size += d.F64[i] * d.F64[i]
				norm += g[i] * g[i]
				along += d.F64[i] * g[i]
			}
			w, dir = append(w, p.Value.Data()), append(dir, d)
		}
		size, norm = math.Sqrt(size), math.Sqrt(norm)
		want := differences(loss, w, dir, 2e-4/size) / size
		// Relative to the size of the gradient: a direction may be almost level.
		if rel := math.Abs(along/size-want) / (norm + 1e-4); !(rel < 1e-6) {
			t.Errorf("%s: derivative %.12g, differences %.12g, relative error %.2g", layer[0].Name, along/size, want, rel)
		}
	}
}

// layers groups parameters whose names differ in the last part: weight and bias.
func layers(params []*framework.Param) [][]*framework.Param {
	var out [][]*framework.Param
	last := ""
	for _, p := range params {
		name := p.Name[:strings.LastIndex(p.Name, ".")]
		if name != last {
			out, last = append(out, nil), name
		}
		out[len(out)-1] = append(out[len(out)-1], p)
	}
	return out
}

// widen puts the parameters into float64 memory, where steps of any size are
// exact enough, and moves norms away from 1 and 0.
func widen(m *UNet2DModel) {
	s := framework.NewStream(9, 0, 0, "perturb")
	for _, p := range m.params {
		b := dtype.Make(dtype.F64, p.Len())
		for i, v := range p.Value.Float32s() {
			b.F64[i] = float64(v) + 0.1*s.Norm()
		}
		p.Rebind(b)
	}
}

// differences is the five-point central difference of f at w along dir, in
// steps of h; its error is of fourth order.
func differences(f func() float64, w, dir []dtype.Buffer, h float64) float64 {
	at := func(steps float64) float64 {
		saved := make([]dtype.Buffer, len(w))
		for i := range w {
			saved[i] = dtype.Make(dtype.F64, w[i].Len())
			saved[i].Copy(w[i])
			for j, d := range dir[i].F64 {
				w[i].F64[j] += steps * h * d
			}
		}
		y := f()
		for i := range w {
			w[i].Copy(saved[i])
		}
		return y
	}
	return (8*(at(1)-at(-1)) - (at(2) - at(-2))) / (12 * h)
}
