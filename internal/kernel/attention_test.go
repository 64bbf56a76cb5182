package kernel

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// attentionRun has the operands of one case in float32 and what was there before in
// the outputs.
type attentionRun struct{ q, k, v, dy, y, dq, dk, dv []float32 }

func newAttentionRun(s AttentionSizes, d dtype.DType) *attentionRun {
	n, m := s.Count*s.Rows*s.Dim, s.Count*s.Cols*s.Dim
	p, u := newSpans(n, 0, false), newSpans(m, 1, false)
	as := func(x []float32) []float32 { return asFloat32(rounded(d, x)) }
	return &attentionRun{q: as(p.a), dy: as(p.b), y: as(p.c), dq: as(p.d), k: as(u.a), v: as(u.b), dk: as(u.c), dv: as(u.d)}
}

// apart computes what Attention and its gradient compute, one operation at a time
// over stored scores.
func (r *attentionRun) apart(s AttentionSizes, scale float32, d dtype.DType, acc bool) {
	c, m, n, dim := s.Count, s.Rows, s.Cols, s.Dim
	store := func(x []float32) []float32 { return asFloat32(rounded(d, x)) }
	p := make([]float32, c*m*n)
	GemmBatch(c, false, true, m, n, dim, r.q, dim, m*dim, r.k, dim, n*dim, p, n, m*n, false)
	p = store(p)
	Softmax(p, p, c*m, n, scale)
	p = store(p)
	GemmBatch(c, false, false, m, dim, n, p, n, m*n, r.v, dim, n*dim, r.y, dim, m*dim, false)

	g := make([]float32, c*m*n)
	GemmBatch(c, false, true, m, n, dim, r.dy, dim, m*dim, r.v, dim, n*dim, g, n, m*n, false)
	GemmBatch(c, true, false, n, dim, m, p, n, m*n, r.dy, dim, m*dim, r.dv, dim, n*dim, acc)
	g = store(g)
	SoftmaxBackward(g, p, g, c*m, n, scale)
	g = store(g)
	GemmBatch(c, false, false, m, dim, n, g, n, m*n, r.k, dim, n*dim, r.dq, dim, m*dim, acc)
	GemmBatch(c, true, false, n, dim, m, g, n, m*n, r.q, dim, m*dim, r.dk, dim, n*dim, acc)
}

func (r *attentionRun) outputs() [][]float32 { return [][]float32{r.y, r.dq, r.dk, r.dv} }

func TestAttentionIsItsParts(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2, 4} {
		runtime.GOMAXPROCS(procs)
		for _, s := range []AttentionSizes{{1, 1, 1, 1}, {3, 5, 7, 3}, {2, 64, 64, 32}, {5, 33, 70, 9}, {1, 130, 65, 40}} {
			for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
				for _, acc := range []bool{false, true} {
					got, want := newAttentionRun(s, d), newAttentionRun(s, d)
					Attention(got.y, got.q, got.k, got.v, s, 0.3, d)
					AttentionBackward(got.dq, got.dk, got.dv, got.q, got.k, got.v, got.dy, s, 0.3, d, acc, acc, acc)
					want.apart(s, 0.3, d, acc)
					if k, i, bad := differ(got.outputs(), want.outputs()); bad {
						t.Errorf("%+v, %v, acc %v, GOMAXPROCS %d: output %d[%d] differs", s, d, acc, procs, k, i)
					}
				}
			}
		}
	}
}

// TestAttentionAgainstFloat64 bounds the error of float32: a few units in the last
// place of the greatest result for these sums of at most 70 products.
func TestAttentionAgainstFloat64(t *testing.T) {
	s := AttentionSizes{3, 33, 70, 9}
	r := newAttentionRun(s, dtype.F32)
	Attention(r.y, r.q, r.k, r.v, s, 0.3, dtype.F32)
	AttentionBackward(r.dq, r.dk, r.dv, r.q, r.k, r.v, r.dy, s, 0.3, dtype.F32, false, false, false)
	wide := func(x []float32) []float64 {
		w := make([]float64, len(x))
		for i, v := range x {
			w[i] = float64(v)
		}
		return w
	}
	q, k, v, dy := wide(r.q), wide(r.k), wide(r.v), wide(r.dy)
	y, dq, dk, dv := wide(r.y), wide(r.dq), wide(r.dk), wide(r.dv)
	Attention(y, q, k, v, s, 0.3, dtype.F64)
	AttentionBackward(dq, dk, dv, q, k, v, dy, s, 0.3, dtype.F64, false, false, false)
	for i, want := range [][]float64{y, dq, dk, dv} {
		var worst, top float64
		for j, w := range want {
			worst, top = max(worst, math.Abs(float64(r.outputs()[i][j])-w)), max(top, math.Abs(w))
		}
		if worst > 4e-6*top {
			t.Errorf("output %d: error %.2g of %.3g", i, worst, top)
		}
	}
}

func BenchmarkAttention(b *testing.B) {
	for _, s := range []AttentionSizes{{32, 64, 64, 32}, {16, 64, 64, 64}, {4, 256, 256, 64}} {
		r := newAttentionRun(s, dtype.F32)
		flops := 4 * float64(s.Count) * float64(s.Rows) * float64(s.Cols) * float64(s.Dim)
		b.Run(fmt.Sprintf("%dx%dx%dx%d/forward", s.Count, s.Rows, s.Cols, s.Dim), func(b *testing.B) {
			for b.Loop() {
				Attention(r.y, r.q, r.k, r.v, s, 0.3, dtype.F32)
			}
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		b.Run(fmt.Sprintf("%dx%dx%dx%d/backward", s.Count, s.Rows, s.Cols, s.Dim), func(b *testing.B) {
			for b.Loop() {
				AttentionBackward(r.dq, r.dk, r.dv, r.q, r.k, r.v, r.dy, s, 0.3, dtype.F32, false, false, false)
			}
			b.ReportMetric(3*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
