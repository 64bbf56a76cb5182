package nn_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

// attentionReference is self-attention written out in float64 loops over
// [C][N] channels and positions of one image.
func attentionReference(a *nn.Attention, x [][]float64, groups, headDim int, eps float64) [][]float64 {
	c, n := len(x), len(x[0])
	h := x
	if groups > 0 {
		h = groupNormReference(a.GroupNorm, x, groups, eps)
	}
	q, k, v := linearReference(a.ToQ, h), linearReference(a.ToK, h), linearReference(a.ToV, h)
	o := make([][]float64, c)
	for ch := range o {
		o[ch] = make([]float64, n)
	}
	for i := range n {
		for head := 0; head < c; head += headDim {
			p, sum := make([]float64, n), 0.0
			for j := range n {
				dot := 0.0
				for d := head; d < head+headDim; d++ {
					dot += q[d][i] * k[d][j]
				}
				p[j] = math.Exp(dot / math.Sqrt(float64(headDim)))
				sum += p[j]
			}
			for d := head; d < head+headDim; d++ {
				for j := range n {
					o[d][i] += p[j] / sum * v[d][j]
				}
			}
		}
	}
	y := linearReference(a.ToOut, o)
	for ch := range y {
		for i := range y[ch] {
			y[ch][i] += x[ch][i]
		}
	}
	return y
}

func groupNormReference(g *nn.GroupNorm, x [][]float64, groups int, eps float64) [][]float64 {
	c, n := len(x), len(x[0])
	w, b := g.Weight.Value.Float32s(), g.Bias.Value.Float32s()
	y := make([][]float64, c)
	for lo := 0; lo < c; lo += c / groups {
		var sum, sq float64
		for _, row := range x[lo : lo+c/groups] {
			for _, v := range row {
				sum += v
				sq += v * v
			}
		}
		size := float64(c / groups * n)
		mean := sum / size
		std := math.Sqrt(sq/size - mean*mean + eps)
		for ch := lo; ch < lo+c/groups; ch++ {
			y[ch] = make([]float64, n)
			for i, v := range x[ch] {
				y[ch][i] = (v-mean)/std*float64(w[ch]) + float64(b[ch])
			}
		}
	}
	return y
}

func linearReference(l *nn.Linear, x [][]float64) [][]float64 {
	w, b := l.Weight.Value.Float32s(), l.Bias.Value.Float32s()
	y := make([][]float64, len(b))
	for o := range y {
		y[o] = make([]float64, len(x[0]))
		for i := range y[o] {
			y[o][i] = float64(b[o])
			for c := range x {
				y[o][i] += float64(w[o*len(x)+c]) * x[c][i]
			}
		}
	}
	return y
}

func TestAttentionAgainstReference(t *testing.T) {
	const batch, channels, height, width, eps = 2, 12, 3, 5, 1e-5
	for _, c := range []struct{ headDim, groups int }{{12, 3}, {4, 3}, {1, 12}, {6, 0}} {
		t.Run(fmt.Sprintf("head_dim=%d,groups=%d", c.headDim, c.groups), func(t *testing.T) {
			cfg := nn.AttentionConfig{Channels: channels, HeadDim: c.headDim, Groups: c.groups, Eps: eps}
			a := nn.NewAttention(nn.NewScope(5), cfg)
			// Large projections, so that the softmax is far from uniform.
			for _, p := range a.Params() {
				s := framework.NewStream(6, 0, 0, framework.Purpose(p.Name))
				for i := range p.Value.Data().F32 {
					p.Value.Data().F32[i] = float32(0.5 * s.Norm())
				}
			}
			s := framework.NewStream(8, 0, 0, "x")
			x := make([]float32, batch*channels*height*width)
			for i := range x {
				x[i] = float32(s.Norm())
			}
			tape := framework.NewTape()
			got := a.Forward(tape, tape.Input([]int{batch, channels, height, width}, x)).Float32s()
			const n = height * width
			for b := range batch {
				image := make([][]float64, channels)
				for ch := range image {
					image[ch] = make([]float64, n)
					for i := range n {
						image[ch][i] = float64(x[(b*channels+ch)*n+i])
					}
				}
				for ch, row := range attentionReference(a, image, c.groups, c.headDim, eps) {
					for i, want := range row {
						if g := float64(got[(b*channels+ch)*n+i]); math.Abs(g-want) > 2e-5*max(1, math.Abs(want)) {
							t.Fatalf("image %d channel %d position %d: %v, want %v", b, ch, i, g, want)
						}
					}
				}
			}
		})
	}
}
