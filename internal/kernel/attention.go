package kernel

import (
	"runtime"

	"github.com/zerogap/zerogap/dtype"
)

// AttentionSizes are those of count matrix triples: queries [Rows, Dim], keys and
// values [Cols, Dim], all row-major, one triple after the other.
type AttentionSizes struct{ Count, Rows, Cols, Dim int }

func (s AttentionSizes) check(op string, q, k, v, y int) {
	checkLen(op, s.Count*s.Rows*s.Dim, q, y)
	checkLen(op, s.Count*s.Cols*s.Dim, k, v)
}

// Attention writes softmax(scale·q·kᵀ)·v into y, which is shaped as q: the bits of
// [GemmBatch], [Softmax] and [GemmBatch] with the scores and the probabilities
// stored in format d between them (fp32 for float32, fp64 for float64: not
// rounded). No more of them exist at a time than there are processors.
func Attention[T Float](y, q, k, v []T, s AttentionSizes, scale T, d dtype.DType) {
	s.check("Attention", len(q), len(k), len(v), len(y))
	m, n, dim := s.Rows, s.Cols, s.Dim
	eachTriple(s, func(i int, w worker[T]) {
		sc := takeScores[T](m * n)
		defer sc.put()
		p := sc.probabilities(w, q[i*m*dim:], k[i*n*dim:], s, scale, d)
		w.gemm(false, false, m, dim, n, p, n, v[i*n*dim:], dim, y[i*m*dim:], dim, false)
	})
}

// AttentionBackward is the gradient of [Attention] for the output gradient dy. The
// probabilities are computed again; their gradients have format d too. Each of dq, dk
// and dv may be nil, and is added to where its acc is set.
func AttentionBackward[T Float](dq, dk, dv, q, k, v, dy []T, s AttentionSizes, scale T, d dtype.DType, accQ, accK, accV bool) {
	s.check("AttentionBackward", len(q), len(k), len(v), len(dy))
	m, n, dim := s.Rows, s.Cols, s.Dim
	checkOutput("AttentionBackward", len(q), dq)
	checkOutput("AttentionBackward", len(k), dk)
	checkOutput("AttentionBackward", len(v), dv)
	eachTriple(s, func(i int, w worker[T]) {
		sc := takeScores[T](2 * m * n)
		defer sc.put()
		q, k, dy := q[i*m*dim:], k[i*n*dim:], dy[i*m*dim:]
		p := sc.probabilities(w, q, k, s, scale, d)
		if dv != nil {
			w.gemm(true, false, n, dim, m, p, n, dy, dim, dv[i*n*dim:], dim, accV)
		}
		if dq == nil && dk == nil {
			return
		}
		g := sc.s[m*n : 2*m*n]
		w.gemm(false, true, m, n, dim, dy, dim, v[i*n*dim:], dim, g, n, false)
		sc.roundTrip(g, d)
		w.softmaxBackward(g, p, m, n, scale)
		sc.roundTrip(g, d)
		if dq != nil {
			w.gemm(false, false, m, dim, n, g, n, k, dim, dq[i*m*dim:], dim, accQ)
		}
		if dk != nil {
			w.gemm(true, false, n, dim, m, g, n, q, dim, dk[i*n*dim:], dim, accK)
		}
	})
}

// worker does the parts of one triple: alone, or sharing each with the other
// processors. Both give the same bits.
type worker[T Float] struct{ alone bool }

func (w worker[T]) gemm(transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, c []T, ldc int, acc bool) {
	if w.alone {
		multiplyAlone(transA, transB, m, n, k, a, lda, b, ldb, c, ldc, acc)
		return
	}
	Gemm(transA, transB, m, n, k, a, lda, b, ldb, c, ldc, acc)
}

func (w worker[T]) softmax(p []T, rows, cols int, scale T) {
	if !w.alone {
		Softmax(p, p, rows, cols, scale)
		return
	}
	for r := range rows {
		row := p[r*cols:][:cols]
		softmaxRow(row, row, scale)
	}
}

// softmaxBackward turns g, the gradient of p, into that of the scores.
func (w worker[T]) softmaxBackward(g, p []T, rows, cols int, scale T) {
	if !w.alone {
		SoftmaxBackward(g, p, g, rows, cols, scale)
		return
	}
	for r := range rows {
		row := g[r*cols:][:cols]
		softmaxBackwardRow(row, p[r*cols:][:cols], row, scale)
	}
}

// eachTriple calls f for every triple, several at once where there are enough.
func eachTriple[T Float](s AttentionSizes, f func(i int, w worker[T])) {
	if s.Count < runtime.GOMAXPROCS(0) {
		for i := range s.Count {
			f(i, worker[T]{})
		}
		return
	}
	one := max(1, 2*s.Rows*s.Cols*s.Dim)
	Parallel(s.Count, (minWork+one-1)/one, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i, worker[T]{alone: true})
		}
	})
}

// scores is the working memory of one triple.
type scores[T Float] struct {
	s     []T
	halfs []uint16
}

var (
	scores32 stock[scores[float32]]
	scores64 stock[scores[float64]]
)

func scoreStock[T Float]() *stock[scores[T]] {
	var s any = &scores64
	if isF32[T]() {
		s = &scores32
	}
	return s.(*stock[scores[T]])
}

func takeScores[T Float](n int) *scores[T] {
	sc := scoreStock[T]().take()
	sc.s = grow(&sc.s, n)
	return sc
}

func (sc *scores[T]) put() { scoreStock[T]().put(sc) }

// probabilities returns softmax(scale·q·kᵀ) in the first part of s.
func (sc *scores[T]) probabilities(w worker[T], q, k []T, s AttentionSizes, scale T, d dtype.DType) []T {
	m, n, dim := s.Rows, s.Cols, s.Dim
	p := sc.s[:m*n]
	w.gemm(false, true, m, n, dim, q, dim, k, dim, p, n, false)
	sc.roundTrip(p, d)
	w.softmax(p, m, n, scale)
	sc.roundTrip(p, d)
	return p
}

// roundTrip rounds v to format d and back.
func (sc *scores[T]) roundTrip(v []T, d dtype.DType) {
	if !d.Half() {
		return
	}
	b := dtype.Buffer{DType: d, U16: grow(&sc.halfs, len(v))}
	roundSpan(b, f32(v))
	widenSpan(f32(v), b)
}
