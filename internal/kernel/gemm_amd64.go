//go:build amd64 && !noasm

package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go run -C gen/gemm . -out ../../gemm_amd64.s -stubs ../../gemm_stubs_amd64.go -pkg kernel

// hasFMA reports AVX2 and FMA, of the processor and of the operating system (cpu
// reports them only where the system keeps the wide registers).
var hasFMA = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// hasWide reports that there are the AVX-512 kernels, too, which need hasFMA. They
// give the same bits.
var hasWide = hasFMA && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL

// runs reports whether the second group of each pair follows the first.
func (g groups) runs() bool { return g[1] == g[0]+halfCols && g[3] == g[2]+halfCols }

// multiplyWide32 is multiply in assembly for two pairs; it reports false, having
// done nothing, if there is none for the case.
func multiplyWide32(height, count int, a []float32, off []int, b []float32, at *groups, c []float32, to *groups, ldc int, acc bool, bias []float32) bool {
	if a == nil || !hasWide {
		return false
	}
	// As in multiply32.
	last := (count*height-1)*ldc + halfCols - 1
	_ = a[count*height*len(off)-1]
	for h := range at {
		_, _ = b[at[h]], c[to[h]+last]
	}
	switch runs := at.runs() && to.runs(); {
	case runs && height == 6:
		multiply6AVX512(count, len(off), &a[0], &off[0], &b[0], (*[4]int)(at), &c[0], (*[4]int)(to), ldc, acc, unsafe.SliceData(bias))
	case runs:
		multiply4AVX512(count, len(off), &a[0], &off[0], &b[0], (*[4]int)(at), &c[0], (*[4]int)(to), ldc, acc, unsafe.SliceData(bias))
	case height == 6:
		multiply6SplitAVX512(count, len(off), &a[0], &off[0], &b[0], (*[4]int)(at), &c[0], (*[4]int)(to), ldc, acc, unsafe.SliceData(bias))
	default:
		multiply4SplitAVX512(count, len(off), &a[0], &off[0], &b[0], (*[4]int)(at), &c[0], (*[4]int)(to), ldc, acc, unsafe.SliceData(bias))
	}
	return true
}

// multiply32 is multiply in assembly for one pair; it reports false, having done nothing, if
// there is none for the case.
func multiply32(height, count int, a []float32, off []int, b []float32, bAt [2]int, c []float32, cAt [2]int, ldc int, acc bool, bias []float32) bool {
	if a == nil || !hasFMA {
		return false
	}
	// The assembly stays within a and c if these elements do; for what off reaches
	// in b the caller answers, as in the plain path, which checks it.
	last := (count*height-1)*ldc + halfCols - 1
	_, _, _ = a[count*height*len(off)-1], c[cAt[0]+last], c[cAt[1]+last]
	if height == 6 {
		multiply6FMA(count, len(off), &a[0], &off[0], &b[bAt[0]], &b[bAt[1]], &c[cAt[0]], &c[cAt[1]], ldc, acc, unsafe.SliceData(bias))
	} else {
		multiply4FMA(count, len(off), &a[0], &off[0], &b[bAt[0]], &b[bAt[1]], &c[cAt[0]], &c[cAt[1]], ldc, acc, unsafe.SliceData(bias))
	}
	return true
}

// gradient32 is gradientPlain in assembly; it reports false, having done
// nothing, if there is none for the case.
func gradient32(s pixels, a []float32, off []int, b, c []float32) bool {
	if a == nil || !hasFMA {
		return false
	}
	_, _ = b[s.count()*tileCols-1], c[len(off)*tileCols-1]
	last := (s.images-1)*s.imageStep + (s.rows-1)*s.rowStep + s.cols - 1
	for _, o := range off {
		_ = a[o+last]
	}
	switch rows := len(off); {
	case rows == 12:
		gradient12AVX512(s.images, s.rows, s.cols, s.imageStep, s.rowStep, &a[0], &off[0], &b[0], &c[0])
	case rows == 8:
		gradient8AVX512(s.images, s.rows, s.cols, s.imageStep, s.rowStep, &a[0], &off[0], &b[0], &c[0])
	case rows == 6 && hasWide:
		gradient6AVX512(s.images, s.rows, s.cols, s.imageStep, s.rowStep, &a[0], &off[0], &b[0], &c[0])
	case rows == 6:
		gradient6FMA(s.images, s.rows, s.cols, s.imageStep, s.rowStep, &a[0], &off[0], &b[0], &c[0])
	default:
		gradient4FMA(s.images, s.rows, s.cols, s.imageStep, s.rowStep, &a[0], &off[0], &b[0], &c[0])
	}
	return true
}

// transpose32 transposes the first columns of four rows into a panel with width
// elements per step and returns how many it has done.
func transpose32(dst []float32, width int, src []float32, ld, depth int) int {
	depth &^= 7
	if dst == nil || !hasFMA || depth == 0 {
		return 0
	}
	_, _ = dst[(depth-1)*width+3], src[3*ld+depth-1]
	transpose4AVX(depth, &src[0], ld, &dst[0], width)
	return depth
}

// copyRuns32 is copyRuns in assembly; it reports false, having done nothing, if
// there is none for the case.
func copyRuns32(dst []float32, width, step int, src []float32, ld, rows, runs, n int) bool {
	if dst == nil || !hasFMA || rows*runs == 0 {
		return false
	}
	_, _ = dst[(rows-1)*width+(runs-1)*step+n-1], src[(rows-1)*ld+runs*n-1]
	switch n {
	case 4:
		copyRuns4AVX(rows, runs, &src[0], ld, &dst[0], width, step)
	case 6:
		copyRuns6AVX(rows, runs, &src[0], ld, &dst[0], width, step)
	case 8:
		copyRuns8AVX(rows, runs, &src[0], ld, &dst[0], width, step)
	case 16:
		copyRuns16AVX(rows, runs, &src[0], ld, &dst[0], width, step)
	default:
		return false
	}
	return true
}

// everySecond32 copies the first elements of even index and returns how many it
// has done.
func everySecond32(dst, src []float32) int {
	n := min(len(dst), len(src)/2) &^ 7
	if dst == nil || !hasFMA || n == 0 {
		return 0
	}
	everySecondAVX2(n, &dst[0], &src[0])
	return n
}
