package unet

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/safetensors"
)

// parityModels are the folders of testdata: model, input, and what PyTorch and
// diffusers compute with them in float64.
var parityModels = []string{"attention", "cifar_style", "scale_shift", "odd_size"}

// reference is the stored computation of one model.
type reference struct {
	batch
	output []float32
	loss   float64
	file   *safetensors.File
}

func loadReference(t *testing.T, name string) (*UNet2DModel, reference) {
	t.Helper()
	m, err := LoadDiffusers(testdata + name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(testdata + name + "/reference.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	float := func(key string) []float32 {
		v, err := f.Float32(key)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	ts, err := f.Int64("timesteps")
	if err != nil {
		t.Fatal(err)
	}
	r := reference{output: float("output"), file: f}
	r.shape, r.images, r.targets = f.Shape("sample"), float("sample"), float("target")
	for i, v := range ts {
		r.timesteps = append(r.timesteps, int(v))
		r.sample.Samples = append(r.sample.Samples, i)
	}
	text, err := os.ReadFile(testdata + name + "/training.json")
	if err != nil {
		t.Fatal(err)
	}
	var training struct{ Loss float64 }
	if err := json.Unmarshal(text, &training); err != nil {
		t.Fatal(err)
	}
	r.loss = training.Loss
	return m, r
}

func (r reference) grad(t *testing.T, name string) []float32 {
	t.Helper()
	g, err := r.file.Float32("grad." + name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestParityWithDiffusers(t *testing.T) {
	const tolerance = 1e-4 // relative to the largest value of the tensor
	for _, name := range parityModels {
		t.Run(name, func(t *testing.T) {
			m, ref := loadReference(t, name)
			got := run(t, m, ref.batch)
			if d := distance(got.output, ref.output); !(d < tolerance) {
				t.Errorf("output is off by %.2g", d)
			}
			if d := math.Abs(got.loss-ref.loss) / ref.loss; !(d < tolerance) {
				t.Errorf("loss %v, want %v", got.loss, ref.loss)
			}
			for _, p := range m.params {
				want := ref.grad(t, p.Name)
				d := distance(got.grads[p.Name], want)
				if layer, ok := strings.CutSuffix(p.Name, "to_k.bias"); ok {
					// A bias of all keys shifts a row of scores by one number, which
					// softmax ignores: this gradient is 0 but for rounding.
					d = largest(got.grads[p.Name]) / largest(ref.grad(t, layer+"to_q.bias"))
				}
				if len(got.grads[p.Name]) != len(want) || !(d < tolerance) {
					t.Errorf("gradient of %s is off by %.2g", p.Name, d)
				}
			}
		})
	}
}

// 16-bit activations keep the network close to what fp32 computes, and leave
// loss and gradients in full precision.
func TestHalfPrecisionStaysClose(t *testing.T) {
	for _, c := range []struct {
		format    dtype.DType
		tolerance float64
	}{{dtype.BF16, 0.03}, {dtype.F16, 0.004}} {
		for _, name := range parityModels {
			t.Run(c.format.String()+"/"+name, func(t *testing.T) {
				m, ref := loadReference(t, name)
				full := run(t, m, ref.batch)
				half := run(t, m, ref.batch, framework.WithCompute(c.format))
				if d := distance(half.output, full.output); d > c.tolerance || d == 0 {
					t.Errorf("output is off by %.2g", d)
				}
				if d := math.Abs(half.loss-full.loss) / full.loss; d > c.tolerance {
					t.Errorf("loss %v, in fp32 %v", half.loss, full.loss)
				}
				var diff, norm float64
				for name, want := range full.grads {
					for i, g := range half.grads[name] {
						diff += (g - want[i]) * (g - want[i])
						norm += want[i] * want[i]
					}
				}
				if d := math.Sqrt(diff / norm); !(d < c.tolerance) || d == 0 {
					t.Errorf("gradient is off by %.2g of its norm", d)
				}
			})
		}
	}
}
