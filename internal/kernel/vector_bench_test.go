package kernel

import (
	"fmt"
	"testing"
	"time"

	"github.com/zerogap/zerogap/dtype"
)

// benchElements is large enough to leave the second-level cache of every core.
const benchElements = 1 << 22

// touched returns n ones. Memory that was never written is one shared page of
// zeros, and reading it measures the first-level cache.
func touched(n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = 1
	}
	return s
}

// triad measures the limit of memory speed in bytes per second: a = b + c over
// three arrays of the given bytes together, reads and writes counted, the best
// of several runs.
func triad(bytes int) float64 {
	n := bytes / 12
	a, b, c := touched(n), touched(n), touched(n)
	best := 0.0
	for range 12 {
		start := time.Now()
		Add(a, b, c)
		best = max(best, float64(12*n)/time.Since(start).Seconds())
	}
	return best
}

// bandwidth runs f, which reads and writes bytes, and reports its rate and that
// rate as a share of the triad over as many bytes, measured before and after.
func bandwidth(b *testing.B, bytes int, f func()) {
	limit := triad(bytes)
	f()
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
	rate := float64(bytes) * float64(b.N) / b.Elapsed().Seconds()
	limit = max(limit, triad(bytes))
	b.ReportMetric(rate/1e9, "GB/s")
	b.ReportMetric(100*rate/limit, "%triad")
}

func BenchmarkCopy(b *testing.B) {
	x, y := touched(benchElements), touched(benchElements)
	bandwidth(b, 8*benchElements, func() {
		Parallel(len(x), grain, func(lo, hi int) { copy(y[lo:hi], x[lo:hi]) })
	})
}

func BenchmarkCast(b *testing.B) {
	x := touched(benchElements)
	for _, d := range []dtype.DType{dtype.BF16, dtype.F16} {
		h := rounded(d, x)
		b.Run("round/"+d.String(), func(b *testing.B) { bandwidth(b, 6*len(x), func() { Round(h, x) }) })
		b.Run("widen/"+d.String(), func(b *testing.B) { bandwidth(b, 6*len(x), func() { Widen(x, h) }) })
	}
}

func BenchmarkFold(b *testing.B) {
	for _, acc := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			if acc != dtype.F32 && d != acc {
				continue
			}
			sum, xs := rounded(acc, touched(benchElements)), make([]dtype.Buffer, 4)
			for i := range xs {
				xs[i] = rounded(d, touched(benchElements))
			}
			b.Run(fmt.Sprintf("%s+4x%s", acc, d), func(b *testing.B) {
				bandwidth(b, 2*sum.Bytes()+4*xs[0].Bytes(), func() { Fold(sum, xs) })
			})
		}
	}
}

func BenchmarkAdamW(b *testing.B) {
	p := newSpans(benchElements, 0, false)
	for i := range p.b {
		p.b[i] *= 1e-3 // with gradients of one scale the moments stay normal numbers
	}
	step := 0
	bandwidth(b, 28*benchElements, func() {
		step++
		AdamW(step, 1e-3, 0.9, 0.999, 1e-8, 0.01, p.a, p.b, p.c, p.pos)
	})
}

func BenchmarkSumSquares(b *testing.B) {
	p := newSpans(benchElements, 0, false)
	sums := make([]float64, benchElements/1024)
	bandwidth(b, 4*benchElements, func() { SumSquares(sums, p.a, 1024) })
}

// The activations of a UNet at its widest: [16, 32, 32, 32].
const (
	benchN, benchC, benchHW = 16, 32, 32 * 32
	benchActivations        = benchN * benchC * benchHW
)

func BenchmarkSiLU(b *testing.B) {
	p := newSpans(benchActivations, 0, false)
	b.Run("forward", func(b *testing.B) { bandwidth(b, 8*p.n, func() { SiLU(p.b, p.a) }) })
	b.Run("backward", func(b *testing.B) { bandwidth(b, 12*p.n, func() { SiLUBackward(p.c, p.a, p.b, false) }) })
}

// BenchmarkStored compares with twice the bytes in fp32: what 16 bits save in
// memory traffic they spend on casts.
func BenchmarkStored(b *testing.B) {
	p := newSpans(benchActivations, 0, false)
	x, y, z := rounded(dtype.BF16, p.a), rounded(dtype.BF16, p.b), rounded(dtype.BF16, p.c)
	gamma, beta := newSpans(benchC, 0, false).a, newSpans(benchC, 0, false).b
	dgamma, dbeta := make([]float32, benchC), make([]float32, benchC)
	mean, rstd := make([]float64, benchN*8), make([]float64, benchN*8)
	b.Run("add", func(b *testing.B) { bandwidth(b, 6*p.n, func() { AddStored(z, x, y) }) })
	b.Run("silu", func(b *testing.B) { bandwidth(b, 4*p.n, func() { SiLUStored(y, x) }) })
	b.Run("silu backward", func(b *testing.B) { bandwidth(b, 6*p.n, func() { SiLUBackwardStored(z, x, y, false) }) })
	b.Run("group norm", func(b *testing.B) {
		bandwidth(b, 4*p.n, func() { GroupNormStored(y, x, gamma, beta, benchN, benchC, benchHW, 8, 1e-5, mean, rstd) })
	})
	b.Run("group norm backward", func(b *testing.B) {
		bandwidth(b, 6*p.n, func() {
			GroupNormBackwardStored(z, dgamma, dbeta, x, gamma, y, benchN, benchC, benchHW, 8, mean, rstd, false, true)
		})
	})
}

func BenchmarkGroupNorm(b *testing.B) {
	p := newSpans(benchActivations, 0, false)
	gamma, beta := newSpans(benchC, 0, false).a, newSpans(benchC, 0, false).b
	dgamma, dbeta := make([]float32, benchC), make([]float32, benchC)
	for _, groups := range []int{8, 32} {
		mean, rstd := make([]float64, benchN*groups), make([]float64, benchN*groups)
		b.Run(fmt.Sprintf("forward/%d", groups), func(b *testing.B) {
			bandwidth(b, 8*p.n, func() { GroupNorm(p.b, p.a, gamma, beta, benchN, benchC, benchHW, groups, 1e-5, mean, rstd) })
		})
		b.Run(fmt.Sprintf("backward/%d", groups), func(b *testing.B) {
			bandwidth(b, 12*p.n, func() {
				GroupNormBackward(p.c, dgamma, dbeta, p.a, gamma, p.d, benchN, benchC, benchHW, groups, mean, rstd, false, true)
			})
		})
	}
}

func BenchmarkRows(b *testing.B) {
	p := newSpans(benchActivations, 0, false)
	sums := make([]float32, 1024)
	b.Run("softmax", func(b *testing.B) { bandwidth(b, 8*p.n, func() { Softmax(p.b, p.a, p.n/256, 256, 0.125) }) })
	b.Run("softmax backward", func(b *testing.B) {
		bandwidth(b, 12*p.n, func() { SoftmaxBackward(p.c, p.b, p.a, p.n/256, 256, 0.125) })
	})
	b.Run("sum rows", func(b *testing.B) { bandwidth(b, 4*p.n, func() { SumRows(sums[:256], p.a, p.n/256, 256, false) }) })
	b.Run("sum planes", func(b *testing.B) {
		bandwidth(b, 4*p.n, func() { SumChannel(sums[:benchN*benchC], p.a, benchN, benchC, benchHW, false) })
	})
	b.Run("add channel", func(b *testing.B) {
		bandwidth(b, 8*p.n, func() { AddChannel(p.b, p.a, sums[:benchN*benchC], benchN, benchC, benchHW) })
	})
}

func BenchmarkLayout(b *testing.B) {
	p := newSpans(benchActivations, 0, false)
	b.Run("transpose", func(b *testing.B) { bandwidth(b, 8*p.n, func() { Transpose2D(p.b, p.a, 16, 128, 256) }) })
	b.Run("upsample", func(b *testing.B) {
		bandwidth(b, 5*p.n, func() { UpsampleNearest(p.b, p.a[:p.n/4], benchN*benchC, 16, 16, 32, 32) })
	})
	b.Run("upsample backward", func(b *testing.B) {
		bandwidth(b, 5*p.n, func() { UpsampleNearestBackward(p.a[:p.n/4], p.b, benchN*benchC, 16, 16, 32, 32, false) })
	})
}
