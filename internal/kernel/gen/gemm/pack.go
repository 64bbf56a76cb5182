package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// transpose4 writes the transposition of four rows at a time.
func transpose4() {
	function("transpose4AVX", "func(k int, src *float32, ld int, dst *float32, step int)",
		`transposes four rows of k elements, k a positive multiple of 8:

	for p := range k {
		for i := range 4 {
			dst[p*step+i] = src[i*ld+p]
		}
	}`)
	n, dst, step, step3 := RCX, RDI, RDX, R8
	rows := []Register{RSI, R9, R10, R11}
	load("k", n)
	load("src", rows[0])
	load("ld", RAX)
	bytes(RAX)
	for i, r := range rows[1:] {
		LEAQ(Mem{Base: rows[i], Index: RAX, Scale: 1}, r)
	}
	load("dst", dst)
	load("step", step)
	bytes(step)
	LEAQ(Mem{Base: step, Index: step, Scale: 2}, step3)

	Label("loop")
	for i, v := range []VecPhysical{Y0, Y1, Y2, Y3} {
		VMOVUPS(Mem{Base: rows[i]}, v)
		ADDQ(I32(32), rows[i])
	}
	// Of each half of the vectors: pairs of rows 0 and 1, and of rows 2 and 3.
	VUNPCKLPS(Y1, Y0, Y4)
	VUNPCKHPS(Y1, Y0, Y5)
	VUNPCKLPS(Y3, Y2, Y6)
	VUNPCKHPS(Y3, Y2, Y7)
	VSHUFPS(U8(0x44), Y6, Y4, Y0)
	VSHUFPS(U8(0xee), Y6, Y4, Y1)
	VSHUFPS(U8(0x44), Y7, Y5, Y2)
	VSHUFPS(U8(0xee), Y7, Y5, Y3)
	for half := range 2 {
		at := []Mem{{Base: dst}, {Base: dst, Index: step, Scale: 1}, {Base: dst, Index: step, Scale: 2}, {Base: dst, Index: step3, Scale: 1}}
		for i, m := range at {
			if half == 0 {
				VMOVUPS([]VecPhysical{X0, X1, X2, X3}[i], m)
			} else {
				VEXTRACTF128(U8(1), []VecPhysical{Y0, Y1, Y2, Y3}[i], m)
			}
		}
		LEAQ(Mem{Base: dst, Index: step, Scale: 4}, dst)
	}
	SUBQ(I32(8), n)
	JNE(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// copyRuns writes the copy of short runs, which would cost a call each.
func copyRuns(n int) {
	function(fmt.Sprintf("copyRuns%dAVX", n), "func(rows, runs int, src *float32, ld int, dst *float32, width, step int)",
		fmt.Sprintf(`copies runs of %d elements, rows and runs positive:

	for p := range rows {
		for q := range runs {
			for i := range %[1]d {
				dst[p*width+q*step+i] = src[p*ld+q*%[1]d+i]
			}
		}
	}`, n))
	rows, runs, from, to := RCX, RAX, RBX, RDX
	src, dst, ld, width, step := RSI, RDI, R8, R9, R10
	load("rows", rows)
	load("src", src)
	load("dst", dst)
	load("ld", ld)
	load("width", width)
	load("step", step)
	for _, r := range []Register{ld, width, step} {
		bytes(r)
	}
	Label("row")
	MOVQ(src, from)
	MOVQ(dst, to)
	load("runs", runs)
	Label("run")
	switch n {
	case 4:
		VMOVUPS(Mem{Base: from}, X0)
		VMOVUPS(X0, Mem{Base: to})
	case 6:
		VMOVUPS(Mem{Base: from}, X0)
		VMOVSD(Mem{Base: from, Disp: 16}, X1)
		VMOVUPS(X0, Mem{Base: to})
		VMOVSD(X1, Mem{Base: to, Disp: 16})
	case 8:
		VMOVUPS(Mem{Base: from}, Y0)
		VMOVUPS(Y0, Mem{Base: to})
	case 16:
		VMOVUPS(Mem{Base: from}, Y0)
		VMOVUPS(Mem{Base: from, Disp: 32}, Y1)
		VMOVUPS(Y0, Mem{Base: to})
		VMOVUPS(Y1, Mem{Base: to, Disp: 32})
	}
	ADDQ(I32(int32(4*n)), from)
	ADDQ(step, to)
	DECQ(runs)
	JNE(LabelRef("run"))
	ADDQ(ld, src)
	ADDQ(width, dst)
	DECQ(rows)
	JNE(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// everySecond writes the separation of columns for stride 2.
func everySecond() {
	function("everySecondAVX2", "func(n int, dst, src *float32)",
		`copies n elements, n a positive multiple of 8:

	for i := range n {
		dst[i] = src[2*i]
	}

It reads one element more than that.`)
	load("n", RCX)
	load("dst", RDI)
	load("src", RSI)
	Label("loop")
	VMOVUPS(Mem{Base: RSI}, Y0)
	VSHUFPS(U8(0x88), Mem{Base: RSI, Disp: 32}, Y0, Y0) // elements 0 2 8 10 4 6 12 14
	VPERMPD(U8(0xd8), Y0, Y0)
	VMOVUPS(Y0, Mem{Base: RDI})
	ADDQ(I32(64), RSI)
	ADDQ(I32(32), RDI)
	SUBQ(I32(8), RCX)
	JNE(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// peak writes the loop that benchmarks compare the kernels with.
func peak() {
	function("peakFMA", "func(rounds int)",
		"performs 12 * 16 floating point operations a round, in registers: no code that multiplies and adds eight lanes at a time is faster.")
	load("rounds", RCX)
	acc := []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11}
	for _, v := range append(acc, Y12, Y13) {
		VXORPS(v, v, v)
	}
	Label("loop")
	for _, v := range acc {
		VFMADD231PS(Y12, Y13, v)
	}
	DECQ(RCX)
	JNE(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
