package framework

import (
	"fmt"
	"math"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// fusedCases are operations that do the work of several, beside those they stand
// for. All inputs but one, which comes out of an operation, are parameters.
var fusedCases = []struct {
	name         string
	shapes       [][]int
	fused, apart func(t *Tape, p []*Tensor) *Tensor
}{
	{"GroupNormSiLU", [][]int{{2, 6, 5, 7}, {6}, {6}},
		func(t *Tape, p []*Tensor) *Tensor { return t.GroupNormSiLU(t.SiLU(p[0]), p[1], p[2], 3, 1e-5) },
		func(t *Tape, p []*Tensor) *Tensor { return t.SiLU(t.GroupNorm(t.SiLU(p[0]), p[1], p[2], 3, 1e-5)) }},
	{"GroupNormSiLU with one tensor for scale and shift", [][]int{{2, 6, 5, 7}, {6}},
		func(t *Tape, p []*Tensor) *Tensor { return t.GroupNormSiLU(p[0], p[1], p[1], 2, 1e-5) },
		func(t *Tape, p []*Tensor) *Tensor { return t.SiLU(t.GroupNorm(p[0], p[1], p[1], 2, 1e-5)) }},
	{"AddTo", [][]int{{3, 7}, {3, 7}},
		func(t *Tape, p []*Tensor) *Tensor { return t.AddTo(t.SiLU(p[0]), p[1]) },
		func(t *Tape, p []*Tensor) *Tensor { return t.Add(p[1], t.SiLU(p[0])) }},
	{"AddTo with what it came from", [][]int{{3, 7}},
		func(t *Tape, p []*Tensor) *Tensor { x := t.SiLU(p[0]); return t.AddTo(t.SiLU(x), x) },
		func(t *Tape, p []*Tensor) *Tensor { x := t.SiLU(p[0]); return t.Add(x, t.SiLU(x)) }},
	{"AddChannelTo", [][]int{{2, 3, 5, 7}, {2, 3}},
		func(t *Tape, p []*Tensor) *Tensor { return t.AddChannelTo(t.SiLU(p[0]), p[1]) },
		func(t *Tape, p []*Tensor) *Tensor { return t.AddChannel(t.SiLU(p[0]), p[1]) }},
	{"Attention", [][]int{{3, 20, 9}, {3, 17, 9}, {3, 17, 9}},
		func(t *Tape, p []*Tensor) *Tensor { return t.Attention(t.SiLU(p[0]), p[1], p[2], 0.4) },
		func(t *Tape, p []*Tensor) *Tensor {
			return t.BatchMatMul(t.Softmax(t.BatchMatMul(t.SiLU(p[0]), p[1], true), 0.4), p[2], false)
		}},
	{"Attention of itself", [][]int{{3, 20, 9}},
		func(t *Tape, p []*Tensor) *Tensor { return t.Attention(p[0], p[0], p[0], 0.4) },
		func(t *Tape, p []*Tensor) *Tensor {
			return t.BatchMatMul(t.Softmax(t.BatchMatMul(p[0], p[0], true), 0.4), p[0], false)
		}},
	{"UpsampleConv2d", [][]int{{2, 3, 4, 5}, {6, 3, 3, 3}, {6}},
		func(t *Tape, p []*Tensor) *Tensor { return t.UpsampleConv2d(t.SiLU(p[0]), 8, 9, p[1], p[2], 1, Pad(1)) },
		func(t *Tape, p []*Tensor) *Tensor {
			return t.Conv2d(t.UpsampleNearest(t.SiLU(p[0]), 8, 9), p[1], p[2], 1, Pad(1))
		}},
	{"UpsampleConv2d without bias, stride 2", [][]int{{2, 3, 4, 5}, {6, 3, 3, 3}},
		func(t *Tape, p []*Tensor) *Tensor { return t.UpsampleConv2d(p[0], 8, 10, p[1], nil, 2, Pad(1)) },
		func(t *Tape, p []*Tensor) *Tensor {
			return t.Conv2d(t.UpsampleNearest(p[0], 8, 10), p[1], nil, 2, Pad(1))
		}},
}

// TestFusedOperationsAreTheirParts compares bits of outputs and gradients in every
// format, recorded and inside a segment of each checkpointing mode.
func TestFusedOperationsAreTheirParts(t *testing.T) {
	for i, c := range fusedCases {
		for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16, dtype.F64} {
			want := fusedRun(t, uint64(i), d, ModeNone, c.shapes, c.apart)
			for _, mode := range []Mode{ModeNone, ModeReentrant, ModeNonReentrant} {
				got := fusedRun(t, uint64(i), d, mode, c.shapes, c.fused)
				for k := range want {
					if math.Float64bits(got[k]) != math.Float64bits(want[k]) {
						t.Errorf("%s, %v, checkpointing %v: value %d of outputs and gradients is %v, want %v", c.name, d, mode, k, got[k], want[k])
						break
					}
				}
			}
		}
	}
}

// fusedRun returns the output of f and the gradients of all parameters. The first
// parameter gets a contribution from elsewhere too.
func fusedRun(t *testing.T, seed uint64, d dtype.DType, mode Mode, shapes [][]int, f func(*Tape, []*Tensor) *Tensor) []float64 {
	t.Helper()
	ps := params64(seed, shapes...)
	if d != dtype.F64 {
		for i, p := range ps {
			x := make([]float32, p.Len())
			for j := range x {
				x[j] = dtype.Round(d, float32(p.Value.Data().F64[j]))
			}
			ps[i] = NewParam(p.Name, x, p.Shape()...)
		}
	}
	tape := NewTape(WithCompute(d))
	var out []float64
	run := func() { // twice: the second runs in recycled memory
		out = out[:0]
		for _, p := range ps {
			p.Grad.Clear()
		}
		first := tape.SiLU(ps[0].Value)
		y := tape.Checkpoint(mode, first, func(*Tensor) *Tensor { return f(tape, values(ps)) })
		for _, v := range y.Float32s() {
			out = append(out, float64(v))
		}
		n := first.Len()
		loss := tape.MSELoss(tape.Concat(tape.Reshape(y, 1, y.Len()), tape.Reshape(first, 1, n)), tape.Constant([]int{1, y.Len() + n}, uniform(99, y.Len()+n)))
		if err := tape.Backward(loss, 1); err != nil {
			t.Fatal(err)
		}
	}
	run()
	run()
	if live := tape.Memory().Live; live != 0 {
		t.Errorf("%s: %d bytes are still in use after the backward", fmt.Sprint(d, mode), live)
	}
	for _, p := range ps {
		for j := range p.Len() {
			out = append(out, p.Grad.At(j))
		}
	}
	return out
}

func TestInPlaceSparesParameters(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("AddTo overwrote a parameter")
		}
	}()
	p := NewParam("w", []float32{1, 2}, 2)
	tape := NewTape()
	tape.AddTo(p.Value, tape.Input([]int{2}, []float32{1, 1}))
}
