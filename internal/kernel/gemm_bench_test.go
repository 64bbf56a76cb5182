package kernel

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// BenchmarkGemm reports GFLOP/s and their share of the peak of the same run.
func BenchmarkGemm(b *testing.B) {
	for _, c := range []gemmCase{
		{m: 64, n: 64, k: 64}, {m: 256, n: 256, k: 256}, {m: 256, n: 256, k: 256, transB: true}, {m: 256, n: 256, k: 256, transA: true},
		{m: 1024, n: 1024, k: 1024}, {m: 1024, n: 64, k: 64, transB: true},
	} {
		b.Run(fmt.Sprintf("m=%d/n=%d/k=%d/transA=%v/transB=%v", c.m, c.n, c.k, c.transA, c.transB), func(b *testing.B) {
			d := newGemm(c, draw[float32], 1)
			flops(b, 2*c.m*c.n*c.k, func() {
				Gemm(c.transA, c.transB, c.m, c.n, c.k, d.a, d.lda, d.b, d.ldb, d.c, d.ldc, false)
			})
		})
	}
}

// BenchmarkGemmBatch is the two products of attention with 8 heads of 8 channels
// on images of 8 x 8, batch 16.
func BenchmarkGemmBatch(b *testing.B) {
	const count = 128
	for _, c := range []gemmCase{{m: 64, n: 64, k: 8, transB: true}, {m: 64, n: 8, k: 64}} {
		b.Run(fmt.Sprintf("m=%d/n=%d/k=%d/transB=%v", c.m, c.n, c.k, c.transB), func(b *testing.B) {
			x, y, z := make([]float32, count*c.m*c.k), make([]float32, count*c.k*c.n), make([]float32, count*c.m*c.n)
			ldb := c.n
			if c.transB {
				ldb = c.k
			}
			flops(b, 2*count*c.m*c.n*c.k, func() {
				GemmBatch(count, c.transA, c.transB, c.m, c.n, c.k, x, c.k, c.m*c.k, y, ldb, c.k*c.n, z, c.n, c.m*c.n, false)
			})
		})
	}
}

// BenchmarkConv runs the convolutions of a UNet with 16 images.
func BenchmarkConv(b *testing.B) {
	for _, s := range []Conv{
		conv3x3(3, 32, 32, 1), conv3x3(32, 32, 32, 1), conv3x3(96, 32, 32, 1), conv3x3(32, 3, 32, 1), conv3x3(16, 16, 32, 1),
		conv3x3(32, 32, 32, 2), conv3x3(64, 64, 16, 1), conv3x3(128, 64, 16, 1), conv3x3(64, 64, 8, 1), conv3x3(32, 32, 8, 1),
		{16, 96, 32, 32, 32, 1, 1, 1, 0, 0, 0, 0}, {16, 32, 28, 28, 32, 3, 3, 1, 1, 1, 1, 1},
	} {
		d := newConv(s, draw[float32])
		work := 2 * len(d.dy) * s.C * s.KH * s.KW
		shape := fmt.Sprintf("%dto%d/%dx%d/k%d/s%d/", s.C, s.O, s.H, s.W, s.KH, s.Stride)
		for _, pass := range []struct {
			name string
			run  func()
		}{
			{"forward", func() { ConvForward(s, d.x, d.w, d.bias, d.dy) }},
			{"input", func() { ConvBackwardInput(s, d.w, d.dy, d.dxOld, false) }},
			{"weight", func() { ConvBackwardWeight(s, d.x, d.dy, d.dwOld, nil, false) }},
		} {
			b.Run(shape+pass.name, func(b *testing.B) { flops(b, work, pass.run) })
		}
	}
}

// BenchmarkConvStored is one convolution on bf16 images.
func BenchmarkConvStored(b *testing.B) {
	s := conv3x3(32, 32, 32, 1)
	d := newConv(s, draw[float32])
	x, y := rounded(dtype.BF16, d.x), rounded(dtype.BF16, d.dy)
	work := 2 * y.Len() * s.C * s.KH * s.KW
	b.Run("forward", func(b *testing.B) { flops(b, work, func() { ConvForwardStored(s, x, d.w, d.bias, y) }) })
	b.Run("input", func(b *testing.B) { flops(b, work, func() { ConvBackwardInputStored(s, d.w, y, x, false) }) })
	b.Run("weight", func(b *testing.B) { flops(b, work, func() { ConvBackwardWeightStored(s, x, y, d.dwOld, false) }) })
}

// conv3x3 is a 3x3 convolution of 16 square images that keeps their size, or
// halves it with the asymmetric padding of diffusers.
func conv3x3(in, out, size, stride int) Conv {
	s := Conv{16, in, size, size, out, 3, 3, stride, 1, 1, 1, 1}
	if stride == 2 {
		s.PadTop, s.PadLeft = 0, 0
	}
	return s
}

// flops runs f, which performs the given number of operations, and reports its
// rate and that rate as a share of what the processors in use can do at most,
// measured before and after.
func flops(b *testing.B, perOp int, f func()) {
	limit := peak()
	f()
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
	rate := float64(perOp) * float64(b.N) / b.Elapsed().Seconds()
	limit = max(limit, peak()) * float64(runtime.GOMAXPROCS(0))
	b.ReportMetric(rate/1e9, "GFLOP/s")
	b.ReportMetric(0, "ns/op")
	if limit > 0 {
		b.ReportMetric(100*rate/limit, "%peak")
	}
}
