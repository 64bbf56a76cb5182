//go:build amd64 && !noasm

package kernel

import "golang.org/x/sys/cpu"

//go:generate go run -C gen/vector . -out ../../vector_amd64.s -stubs ../../vector_stubs_amd64.go -pkg kernel

// hasVector reports AVX2 and F16C, of the processor and of the operating system
// (cpu reports AVX2 only where the system keeps the wide registers). It is a
// variable so that the tests can compare both paths; nothing else writes it.
var hasVector = cpu.X86.HasAVX2 && cpu.X86.HasF16C

// hasVector512 reports that there are the AVX-512 kernels, too, which need
// hasVector. They give the same bits.
var hasVector512 = hasVector && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL

// head returns how many of n elements, a multiple of 8, the AVX-512 kernels take.
func head(n int) int {
	if !hasVector512 {
		return 0
	}
	return n &^ 15
}

// prefix returns the greatest multiple of step in n, or 0 without the vector
// unit. step is a power of two.
func prefix(n, step int) int {
	if !hasVector {
		return 0
	}
	return n &^ (step - 1)
}

func add32(dst, a, b []float32) int {
	n := prefix(len(dst), 8)
	if n > 0 {
		addAVX2(&dst[0], &a[0], &b[0], n)
	}
	return n
}

func mul32(dst, a, b []float32) int {
	n := prefix(len(dst), 8)
	if n > 0 {
		mulAVX2(&dst[0], &a[0], &b[0], n)
	}
	return n
}

func mulAccumulate32(dst, a, b []float32) int {
	n := prefix(len(dst), 8)
	if n > 0 {
		mulAccumulateAVX2(&dst[0], &a[0], &b[0], n)
	}
	return n
}

func scale32(y, x []float32, s float32) int {
	n := prefix(len(y), 8)
	if n > 0 {
		scaleAVX2(&y[0], &x[0], n, s)
	}
	return n
}

func axpy32(y, x []float32, s float32) int {
	n := prefix(len(y), 8)
	if n > 0 {
		axpyAVX2(&y[0], &x[0], n, s)
	}
	return n
}

func addScalar32(y, x []float32, s float32) int {
	n := prefix(len(y), 8)
	if n > 0 {
		addScalarAVX2(&y[0], &x[0], n, s)
	}
	return n
}

func affine32(y, x []float32, shift, scale, bias float32) int {
	n := prefix(len(y), 8)
	if n > 0 {
		affineAVX2(&y[0], &x[0], n, shift, scale, bias)
	}
	return n
}

func scaleBy32(dst []float32, s float64) int {
	n := prefix(len(dst), 8)
	if n > 0 {
		scaleByAVX2(&dst[0], n, s)
	}
	return n
}

func sum32(l *lanes, x []float32) int {
	n := prefix(len(x), 16)
	if n > 0 {
		sumAVX2(&l[0], &x[0], n)
	}
	return n
}

func sumSquares32(l *lanes, x []float32) int {
	n := prefix(len(x), 16)
	if n > 0 {
		sumSquaresAVX2(&l[0], &x[0], n)
	}
	return n
}

func dot32(l *lanes, a, b []float32) int {
	n := prefix(len(a), 16)
	if n > 0 {
		dotAVX2(&l[0], &a[0], &b[0], n)
	}
	return n
}

func squaredError32(l *lanes, a, b []float32) int {
	n := prefix(len(a), 16)
	if n > 0 {
		squaredErrorAVX2(&l[0], &a[0], &b[0], n)
	}
	return n
}

func moments32(s, q *lanes, x []float32, shift float64) int {
	n := prefix(len(x), 16)
	if n > 0 {
		momentsAVX2(&s[0], &q[0], &x[0], n, shift)
	}
	return n
}

func planeSum32(a, b *lanes, x, dy []float32, mean float64) int {
	n := prefix(len(dy), 16)
	if n > 0 {
		planeSumAVX2(&a[0], &b[0], &x[0], &dy[0], n, mean)
	}
	return n
}

func addWide32(sums []float64, x []float32) int {
	n := prefix(len(x), 8)
	if n > 0 {
		addWideAVX2(&sums[0], &x[0], n)
	}
	return n
}

func silu32(y, x []float32) int {
	n := prefix(len(y), 8)
	h := head(n)
	if h > 0 {
		siluAVX512(&y[0], &x[0], h)
	}
	if h < n {
		siluAVX2(&y[h], &x[h], n-h)
	}
	return n
}

func siluBackward32(dx, x, dy []float32, acc bool) int {
	n := prefix(len(dx), 8)
	h := head(n)
	if h > 0 && acc {
		siluBackwardAccumulateAVX512(&dx[0], &x[0], &dy[0], h)
	} else if h > 0 {
		siluBackwardAVX512(&dx[0], &x[0], &dy[0], h)
	}
	if h < n && acc {
		siluBackwardAccumulateAVX2(&dx[h], &x[h], &dy[h], n-h)
	} else if h < n {
		siluBackwardAVX2(&dx[h], &x[h], &dy[h], n-h)
	}
	return n
}

func normBackward32(dx, x, dy []float32, shift, scale, slope, offset float32, acc bool) int {
	n := prefix(len(dx), 8)
	switch {
	case n == 0:
	case acc:
		normBackwardAccumulateAVX2(&dx[0], &x[0], &dy[0], n, shift, scale, slope, offset)
	default:
		normBackwardAVX2(&dx[0], &x[0], &dy[0], n, shift, scale, slope, offset)
	}
	return n
}

func scaledMax32(x []float32, scale float32) (n int, top float32) {
	n = prefix(len(x), 8)
	if n == 0 {
		return 0, 0
	}
	var m [8]float32
	for i := range m {
		m[i] = x[i] * scale
	}
	scaledMaxAVX2(&m[0], &x[0], n, scale)
	top = m[0]
	for _, v := range m[1:] {
		if v > top {
			top = v
		}
	}
	return n, top
}

func expSum32(l *lanes, y, x []float32, scale, m float32) int {
	n := prefix(len(y), 16)
	if n > 0 {
		expSumAVX2(&l[0], &y[0], &x[0], n, scale, m)
	}
	return n
}

func softmaxBackward32(dx, y, dy []float32, d, scale float32) int {
	n := prefix(len(dx), 8)
	if n > 0 {
		softmaxBackwardAVX2(&dx[0], &y[0], &dy[0], n, d, scale)
	}
	return n
}

func widenBF16(dst []float32, src []uint16) int {
	n := prefix(len(dst), 16)
	switch {
	case n == 0:
	case hasVector512:
		widenBF16AVX512(&dst[0], &src[0], n)
	default:
		widenBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func roundBF16(dst []uint16, src []float32) int {
	n := prefix(len(dst), 16)
	switch {
	case n == 0:
	case hasVector512:
		roundBF16AVX512(&dst[0], &src[0], n)
	default:
		roundBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func widenF16(dst []float32, src []uint16) int {
	n := prefix(len(dst), 16)
	if n > 0 {
		widenF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func roundF16(dst []uint16, src []float32) int {
	n := prefix(len(dst), 16)
	if n > 0 {
		roundF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func foldF32BF16(acc []float32, x []uint16) int {
	n := prefix(len(acc), 16)
	if n > 0 {
		foldF32BF16AVX2(&acc[0], &x[0], n)
	}
	return n
}

func foldF32F16(acc []float32, x []uint16) int {
	n := prefix(len(acc), 16)
	if n > 0 {
		foldF32F16AVX2(&acc[0], &x[0], n)
	}
	return n
}

func foldBF16BF16(acc, x []uint16) int {
	n := prefix(len(acc), 16)
	if n > 0 {
		foldBF16BF16AVX2(&acc[0], &x[0], n)
	}
	return n
}

func foldF16F16(acc, x []uint16) int {
	n := prefix(len(acc), 16)
	if n > 0 {
		foldF16F16AVX2(&acc[0], &x[0], n)
	}
	return n
}

func foldBF16F32(acc []uint16, x []float32) int {
	n := prefix(len(acc), 16)
	if n > 0 {
		foldBF16F32AVX2(&acc[0], &x[0], n)
	}
	return n
}

func foldF16F32(acc []uint16, x []float32) int {
	n := prefix(len(acc), 16)
	if n > 0 {
		foldF16F32AVX2(&acc[0], &x[0], n)
	}
	return n
}

// adamw32 passes the address of the first of the eight float32 that adam
// consists of.
func adamw32(a *adam, w, g, m, v []float32) int {
	n := prefix(len(w), 8)
	if n > 0 {
		adamwAVX2(&a.decay, &w[0], &g[0], &m[0], &v[0], n)
	}
	return n
}
