package framework

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// params makes float64 parameters with random values in [-1,1).
func params64(seed uint64, shapes ...[]int) []*Param {
	r := rand.New(rand.NewPCG(seed, 1))
	var ps []*Param
	for i, shape := range shapes {
		p := NewParam(fmt.Sprintf("p%d", i), make([]float32, numel(shape)), shape...)
		b := dtype.Make(dtype.F64, numel(shape))
		for j := range b.F64 {
			b.F64[j] = 2*r.Float64() - 1
		}
		p.Rebind(b)
		ps = append(ps, p)
	}
	return ps
}

func uniform(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 2))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(2*r.Float64() - 1)
	}
	return x
}

// lossOf turns any output into a scalar whose gradient has no structure.
func lossOf(t *Tape, y *Tensor) *Tensor {
	return t.MSELoss(y, t.Constant(y.Shape(), uniform(99, y.Len())))
}

// opCases are the operations on inputs that are all parameters, so that every
// input's gradient is checked.
var opCases = []struct {
	name   string
	shapes [][]int
	f      func(t *Tape, p []*Tensor) *Tensor
}{
	{"Linear", [][]int{{3, 2, 5}, {4, 5}, {4}}, func(t *Tape, p []*Tensor) *Tensor { return t.Linear(p[0], p[1], p[2]) }},
	{"Linear no bias", [][]int{{3, 5}, {4, 5}}, func(t *Tape, p []*Tensor) *Tensor { return t.Linear(p[0], p[1], nil) }},
	{"BatchMatMul", [][]int{{3, 2, 5}, {3, 5, 4}}, func(t *Tape, p []*Tensor) *Tensor { return t.BatchMatMul(p[0], p[1], false) }},
	{"BatchMatMul transposed", [][]int{{3, 2, 5}, {3, 4, 5}}, func(t *Tape, p []*Tensor) *Tensor { return t.BatchMatMul(p[0], p[1], true) }},
	{"Conv2d 3x3", [][]int{{2, 3, 5, 4}, {4, 3, 3, 3}, {4}}, func(t *Tape, p []*Tensor) *Tensor { return t.Conv2d(p[0], p[1], p[2], 1, Pad(1)) }},
	{"Conv2d 3x3 stride 2", [][]int{{2, 3, 5, 7}, {4, 3, 3, 3}, {4}}, func(t *Tape, p []*Tensor) *Tensor { return t.Conv2d(p[0], p[1], p[2], 2, Pad(1)) }},
	{"Conv2d 3x3 stride 2 right/bottom", [][]int{{2, 3, 6, 6}, {4, 3, 3, 3}}, func(t *Tape, p []*Tensor) *Tensor {
		return t.Conv2d(p[0], p[1], nil, 2, Padding{Bottom: 1, Right: 1})
	}},
	{"Conv2d 1x1", [][]int{{2, 3, 5, 4}, {4, 3, 1, 1}, {4}}, func(t *Tape, p []*Tensor) *Tensor { return t.Conv2d(p[0], p[1], p[2], 1, Pad(0)) }},
	{"GroupNorm", [][]int{{2, 6, 3, 2}, {6}, {6}}, func(t *Tape, p []*Tensor) *Tensor { return t.GroupNorm(p[0], p[1], p[2], 3, 1e-5) }},
	{"GroupNormSiLU", [][]int{{2, 6, 3, 2}, {6}, {6}}, func(t *Tape, p []*Tensor) *Tensor { return t.GroupNormSiLU(p[0], p[1], p[2], 3, 1e-5) }},
	{"Attention", [][]int{{3, 4, 5}, {3, 2, 5}, {3, 2, 5}}, func(t *Tape, p []*Tensor) *Tensor { return t.Attention(p[0], p[1], p[2], 0.7) }},
	{"Attention of itself", [][]int{{3, 4, 5}}, func(t *Tape, p []*Tensor) *Tensor { return t.Attention(p[0], p[0], p[0], 0.7) }},
	{"UpsampleConv2d", [][]int{{2, 3, 2, 3}, {4, 3, 3, 3}, {4}}, func(t *Tape, p []*Tensor) *Tensor { return t.UpsampleConv2d(p[0], 4, 5, p[1], p[2], 1, Pad(1)) }},
	{"AddTo", [][]int{{3, 7}, {3, 7}}, func(t *Tape, p []*Tensor) *Tensor { return t.AddTo(t.SiLU(p[0]), p[1]) }},
	{"AddChannelTo", [][]int{{2, 3, 2, 4}, {2, 3}}, func(t *Tape, p []*Tensor) *Tensor { return t.AddChannelTo(t.SiLU(p[0]), p[1]) }},
	{"Softmax", [][]int{{3, 2, 5}}, func(t *Tape, p []*Tensor) *Tensor { return t.Softmax(p[0], 0.7) }},
	{"SiLU", [][]int{{3, 7}}, func(t *Tape, p []*Tensor) *Tensor { return t.SiLU(p[0]) }},
	{"Add", [][]int{{3, 7}, {3, 7}}, func(t *Tape, p []*Tensor) *Tensor { return t.Add(p[0], p[1]) }},
	{"Add to itself", [][]int{{3, 7}}, func(t *Tape, p []*Tensor) *Tensor { return t.Add(p[0], p[0]) }},
	{"Mul", [][]int{{3, 7}, {3, 7}}, func(t *Tape, p []*Tensor) *Tensor { return t.Mul(p[0], p[1]) }},
	{"Mul by itself", [][]int{{3, 7}}, func(t *Tape, p []*Tensor) *Tensor { return t.Mul(p[0], p[0]) }},
	{"AddChannel", [][]int{{2, 3, 2, 4}, {2, 3}}, func(t *Tape, p []*Tensor) *Tensor { return t.AddChannel(p[0], p[1]) }},
	{"ScaleShift", [][]int{{2, 3, 2, 4}, {2, 3}, {2, 3}}, func(t *Tape, p []*Tensor) *Tensor { return t.ScaleShift(p[0], p[1], p[2]) }},
	{"Concat", [][]int{{2, 3, 2}, {2, 1, 2}}, func(t *Tape, p []*Tensor) *Tensor { return t.Concat(p[0], p[1]) }},
	{"Concat with itself", [][]int{{2, 3, 2}}, func(t *Tape, p []*Tensor) *Tensor { return t.Concat(p[0], p[0]) }},
	{"Chunk", [][]int{{2, 6, 2}}, func(t *Tape, p []*Tensor) *Tensor {
		c := t.Chunk(p[0], 3)
		return t.Mul(c[0], c[2])
	}},
	{"Reshape", [][]int{{2, 6}}, func(t *Tape, p []*Tensor) *Tensor { return t.SiLU(t.Reshape(p[0], 3, 4)) }},
	{"Transpose last", [][]int{{2, 3, 4}}, func(t *Tape, p []*Tensor) *Tensor { return t.Transpose(p[0], 1, 2) }},
	{"Transpose inner", [][]int{{2, 3, 4, 2}}, func(t *Tape, p []*Tensor) *Tensor { return t.Transpose(p[0], 1, 2) }},
	{"UpsampleNearest", [][]int{{2, 3, 2, 3}}, func(t *Tape, p []*Tensor) *Tensor { return t.UpsampleNearest(p[0], 4, 6) }},
	{"UpsampleNearest odd", [][]int{{2, 3, 2, 3}}, func(t *Tape, p []*Tensor) *Tensor { return t.UpsampleNearest(p[0], 3, 5) }},
	{"Dropout", [][]int{{4, 9}}, func(t *Tape, p []*Tensor) *Tensor {
		t.SetSample(Sample{Seed: 7, Step: 3, Samples: []int{4, 5, 6, 7}, Train: true})
		return t.Dropout(p[0], 0.3, 1)
	}},
	{"Embedding", [][]int{{5, 3}}, func(t *Tape, p []*Tensor) *Tensor { return t.Embedding(p[0], []int{4, 0, 4, 2}) }},
}

func values(ps []*Param) []*Tensor {
	var v []*Tensor
	for _, p := range ps {
		v = append(v, p.Value)
	}
	return v
}

func TestOpsAgainstCentralDifferences(t *testing.T) {
	for i, c := range opCases {
		t.Run(c.name, func(t *testing.T) {
			ps := params64(uint64(i), c.shapes...)
			loss := func() float64 {
				tape := NewTape(WithCompute(dtype.F64))
				l := lossOf(tape, c.f(tape, values(ps)))
				return l.Item()
			}
			tape := NewTape(WithCompute(dtype.F64))
			if err := tape.Backward(lossOf(tape, c.f(tape, values(ps))), 1); err != nil {
				t.Fatal(err)
			}
			for _, p := range ps {
				w := p.Value.Data().F64
				for j := range w {
					const h = 1e-5
					keep := w[j]
					w[j] = keep + h
					up := loss()
					w[j] = keep - h
					down := loss()
					w[j] = keep
					want := (up - down) / (2 * h)
					if got := p.Grad.At(j); math.Abs(got-want) > 1e-7*(1+math.Abs(want)) {
						t.Errorf("%s[%d]: gradient %.10g, central difference %.10g", p.Name, j, got, want)
					}
				}
			}
		})
	}
}

// TestOpsFloat32AgainstFloat64 runs the fast path of every operation beside the
// float64 one, and the 16-bit storage with its coarser rounding.
func TestOpsFloat32AgainstFloat64(t *testing.T) {
	tol := map[dtype.DType]float64{dtype.F32: 2e-6, dtype.F16: 5e-3, dtype.BF16: 4e-2}
	for i, c := range opCases {
		for d, eps := range tol {
			t.Run(fmt.Sprintf("%s %s", c.name, d), func(t *testing.T) {
				ref := params64(uint64(i), c.shapes...)
				var ps []*Param
				for _, r := range ref {
					b := dtype.Make(dtype.F64, r.Len())
					p := NewParam(r.Name, make([]float32, r.Len()), r.Shape()...)
					for j := range b.F64 { // the same values on both sides
						v := dtype.Round(d, float32(r.Value.Data().F64[j]))
						r.Value.Data().F64[j] = float64(v)
						p.Value.Data().F32[j] = v
					}
					ps = append(ps, p)
				}
				want, got := NewTape(WithCompute(dtype.F64)), NewTape(WithCompute(d))
				wl := lossOf(want, c.f(want, values(ref)))
				gl := lossOf(got, c.f(got, values(ps)))
				if math.Abs(wl.Item()-gl.Item()) > eps*(1+wl.Item()) {
					t.Errorf("loss %v, float64 %v", gl.Item(), wl.Item())
				}
				if err := want.Backward(wl, 1); err != nil {
					t.Fatal(err)
				}
				if err := got.Backward(gl, 1); err != nil {
					t.Fatal(err)
				}
				for k := range ps {
					var top float64
					for _, v := range ref[k].Grad.F64 {
						top = max(top, math.Abs(v))
					}
					for j, w := range ref[k].Grad.F64 {
						if g := ps[k].Grad.At(j); math.Abs(g-w) > eps*(top+1e-3) {
							t.Errorf("%s[%d]: gradient %v, float64 %v", ps[k].Name, j, g, w)
						}
					}
				}
			})
		}
	}
}
