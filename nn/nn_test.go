package nn_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

func TestScopeNamesAndOrder(t *testing.T) {
	root := nn.NewScope(1)
	nn.NewLinear(root.Sub("b"), 3, 2)
	nn.NewAttention(root.Sub("a", 0, "attn"), nn.AttentionConfig{Channels: 4, Groups: 2, Eps: 1e-5})
	nn.NewTimestepEmbedding(root.Sub("time"), 2, 8)
	nn.NewEmbedding(root, 5, 3)
	nn.NewConv2d(root.Sub("conv"), nn.Conv2dConfig{In: 2, Out: 6, Kernel: 3})
	want := []string{
		"b.weight", "b.bias",
		"a.0.attn.group_norm.weight", "a.0.attn.group_norm.bias",
		"a.0.attn.to_q.weight", "a.0.attn.to_q.bias", "a.0.attn.to_k.weight", "a.0.attn.to_k.bias",
		"a.0.attn.to_v.weight", "a.0.attn.to_v.bias", "a.0.attn.to_out.0.weight", "a.0.attn.to_out.0.bias",
		"time.linear_1.weight", "time.linear_1.bias", "time.linear_2.weight", "time.linear_2.bias",
		"weight", "conv.weight", "conv.bias",
	}
	var got []string
	for i, p := range root.Params() {
		got = append(got, p.Name)
		if s := root.Shapes()[i]; s.Name != p.Name || !slices.Equal(s.Shape, p.Shape()) || s.Len() != p.Len() {
			t.Errorf("shape %d is %v, parameter is %s %v", i, s, p.Name, p.Shape())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p := root.Sub("a", 0, "attn").Path(); p != "a.0.attn" {
		t.Errorf("path %q", p)
	}
	if p := root.Path(); p != "" {
		t.Errorf("path of the root %q", p)
	}
}

func TestInitialValuesDependOnSeedAndNameAlone(t *testing.T) {
	weights := func(seed uint64, names ...string) map[string][]float32 {
		s, out := nn.NewScope(seed), map[string][]float32{}
		for _, n := range names {
			out[n] = nn.NewLinear(s.Sub(n), 4, 3).Weight.Value.Float32s()
		}
		return out
	}
	ab, ba := weights(1, "a", "b"), weights(1, "c", "b", "a")
	for _, n := range []string{"a", "b"} {
		if !slices.Equal(ab[n], ba[n]) {
			t.Errorf("%s changed with the order of construction", n)
		}
	}
	if slices.Equal(ab["a"], ab["b"]) {
		t.Error("two names have the same values")
	}
	if slices.Equal(ab["a"], weights(2, "a")["a"]) {
		t.Error("two seeds have the same values")
	}
}

// PyTorch's defaults: uniform within 1/sqrt(fan_in) for weight and bias, norms
// 1 and 0, embeddings N(0,1).
func TestInitialDistributions(t *testing.T) {
	s := nn.NewScope(3)
	fc := nn.NewLinear(s.Sub("fc"), 64, 256)
	conv := nn.NewConv2d(s.Sub("conv"), nn.Conv2dConfig{In: 16, Out: 64, Kernel: 3})
	for _, c := range []struct {
		p     *framework.Param
		fanIn float64
	}{{fc.Weight, 64}, {fc.Bias, 64}, {conv.Weight, 144}, {conv.Bias, 144}} {
		bound := 1 / math.Sqrt(c.fanIn)
		mean, variance, peak := moments(c.p.Value.Float32s())
		n := float64(c.p.Len())
		// Standard errors of mean and variance of n uniform draws, times 5.
		if math.Abs(mean) > 5*bound/math.Sqrt(3*n) {
			t.Errorf("%s: mean %v", c.p.Name, mean)
		}
		if want := bound * bound / 3; math.Abs(variance-want) > 5*want*math.Sqrt(0.8/n) {
			t.Errorf("%s: variance %v, want %v", c.p.Name, variance, want)
		}
		if peak > bound || peak < 0.9*bound {
			t.Errorf("%s: largest value %v, bound %v", c.p.Name, peak, bound)
		}
	}
	norm := nn.NewGroupNorm(s.Sub("norm"), 2, 4, 1e-5)
	if w, b := norm.Weight.Value.Float32s(), norm.Bias.Value.Float32s(); !slices.Equal(w, []float32{1, 1, 1, 1}) || !slices.Equal(b, []float32{0, 0, 0, 0}) {
		t.Errorf("norm starts at %v, %v", w, b)
	}
	mean, variance, _ := moments(nn.NewEmbedding(s.Sub("emb"), 100, 100).Weight.Value.Float32s())
	if math.Abs(mean) > 0.05 || math.Abs(variance-1) > 0.07 {
		t.Errorf("embedding has mean %v, variance %v", mean, variance)
	}
}

func moments(x []float32) (mean, variance, peak float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += float64(v) / n
		peak = max(peak, math.Abs(float64(v)))
	}
	for _, v := range x {
		variance += (float64(v) - mean) * (float64(v) - mean) / n
	}
	return mean, variance, peak
}

func TestShapeScopeAllocatesNothing(t *testing.T) {
	s := nn.NewShapeScope()
	l := nn.NewLinear(s.Sub("huge"), 1<<20, 1<<20)
	if l.Weight != nil || len(s.Params()) != 0 || len(l.Params()) != 0 {
		t.Error("a shape scope made parameters")
	}
	if got := s.Shapes()[0].Len(); got != 1<<40 {
		t.Errorf("%d elements", got)
	}
}

func TestFillGetsNameAndShape(t *testing.T) {
	s := nn.NewScopeFill(func(name string, _ nn.Init, shape []int) []float32 {
		if name != "x.weight" {
			return make([]float32, shape[0])
		}
		return []float32{1, 2, 3, 4, 5, 6}
	})
	l := nn.NewLinear(s.Sub("x"), 3, 2)
	if got := l.Weight.Value.Float32s(); !slices.Equal(got, []float32{1, 2, 3, 4, 5, 6}) {
		t.Errorf("%v", got)
	}
}

func TestConstructionMistakesPanic(t *testing.T) {
	for name, f := range map[string]func(s *nn.Scope){
		`"a.weight" registered twice`: func(s *nn.Scope) {
			nn.NewLinear(s.Sub("a"), 1, 1)
			nn.NewLinear(s.Sub("a"), 1, 1)
		},
		`"n": 5 channels in 2 groups`: func(s *nn.Scope) { nn.NewGroupNorm(s.Sub("n"), 2, 5, 1e-5) },
		`"t": 6 channels in heads of 4`: func(s *nn.Scope) {
			nn.NewAttention(s.Sub("t"), nn.AttentionConfig{Channels: 6, HeadDim: 4})
		},
		`"d": p = 1 is not in [0, 1)`: func(s *nn.Scope) { nn.NewDropout(s.Sub("d"), 1) },
		`scope part 1.5 is a float64`: func(s *nn.Scope) { s.Sub(1.5) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, name) {
					t.Errorf("panic %q", got)
				}
			}()
			f(nn.NewScope(1))
		})
	}
}

func TestDropoutIsKeyedByLayerAndSample(t *testing.T) {
	s := nn.NewScope(1)
	a, b := nn.NewDropout(s.Sub("a"), 0.5), nn.NewDropout(s.Sub("b"), 0.5)
	ones := make([]float32, 2*257)
	for i := range ones {
		ones[i] = 1
	}
	mask := func(d *nn.Dropout, sample framework.Sample) []float32 {
		tape := framework.NewTape()
		tape.SetSample(sample)
		return d.Forward(tape, tape.Input([]int{2, 257}, ones)).Float32s()
	}
	key := framework.Sample{Seed: 1, Step: 2, Samples: []int{10, 11}, Train: true}
	m := mask(a, key)
	if !slices.Equal(m, mask(nn.NewDropout(nn.NewScope(9).Sub("a"), 0.5), key)) {
		t.Error("same key, other mask")
	}
	if slices.Equal(m, mask(b, key)) {
		t.Error("two layers share a mask")
	}
	swapped := mask(a, framework.Sample{Seed: 1, Step: 2, Samples: []int{11, 10}, Train: true})
	if !slices.Equal(m[:257], swapped[257:]) || !slices.Equal(m[257:], swapped[:257]) {
		t.Error("a row's mask depends on its place in the batch")
	}
	key.Train = false
	if !slices.Equal(mask(a, key), ones) {
		t.Error("dropout outside training")
	}
	if !slices.Equal(mask(nn.NewDropout(s.Sub("c"), 0), framework.Sample{Train: true}), ones) {
		t.Error("dropout of probability 0 changed its input")
	}
}
