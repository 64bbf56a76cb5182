package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// zmm is the file of AVX-512 registers.
var zmm = []VecPhysical{
	Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
	Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31,
}

// wideTile is a block of height rows by two vectors of 16 columns. Each lane adds
// what the lane of tile adds in the same order, so the bits are the same.
type wideTile struct{ height int }

func (t wideTile) acc(row, v int) VecPhysical { return zmm[2*row+v] }

// step adds the product of one column of A and one row of B, which load brings.
func (t wideTile) step(a func(row int) Mem, load func(v int, to VecPhysical)) {
	load(0, Z28)
	load(1, Z29)
	for row := range t.height {
		element := zmm[30+row%2]
		VBROADCASTSS(a(row), element)
		VFMADD231PS(element, Z28, t.acc(row, 0))
		VFMADD231PS(element, Z29, t.acc(row, 1))
	}
}

// multiplyWide writes the tiles of matrix products and correlations of 32
// columns: two runs of 16 or, split, four of 8.
func multiplyWide(height int, split bool) {
	t := wideTile{height}
	name, runs, width := fmt.Sprintf("multiply%dAVX512", height), 2, 16
	if split {
		name, runs, width = fmt.Sprintf("multiply%dSplitAVX512", height), 4, 8
	}
	function(name, "func(count, k int, a *float32, off *int, b *float32, at *[4]int, c *float32, to *[4]int, ldc int, acc bool, bias *float32)",
		fmt.Sprintf(`is multiply%[1]dFMA for %[2]d runs of %[3]d columns, of which at and to hold the places:

	for t := range count {
		for i := range %[1]d {
			for h := range %[2]d {
				for j := range %[3]d {
					c[to[%[4]d*h]+(%[1]d*t+i)*ldc+j] (+)= sum over p < k of a[(t*k+p)*%[1]d+i] * b[off[p]+at[%[4]d*h]+j]
				}
			}
		}
	}

and with bias, which may be nil, adds bias[%[1]d*t+i] to the sums. count and k are
positive.`, height, runs, width, 4/runs))
	a, off, n, index, ldc := RSI, R8, RCX, RAX, R13
	b, c := []Register{R9, R10, R11, R12}[:runs], []Register{RBX, RDX, RDI, R15}[:runs]
	load("a", a)
	load("ldc", ldc)
	bytes(ldc)
	places("b", "at", b)
	places("c", "to", c)

	Label("tile")
	t.clear()
	load("off", off)
	load("k", n)
	t.prefetch(c, ldc, index)
	step := func(p int) {
		MOVQ(Mem{Base: off, Disp: 8 * p}, index)
		t.step(func(row int) Mem { return Mem{Base: a, Disp: 4 * (p*height + row)} }, func(v int, to VecPhysical) {
			if !split {
				VMOVUPS(Mem{Base: b[v], Index: index, Scale: 4}, to)
				return
			}
			VMOVUPS(Mem{Base: b[2*v], Index: index, Scale: 4}, to.AsY())
			VINSERTF64X4(U8(1), Mem{Base: b[2*v+1], Index: index, Scale: 4}, to, to)
		})
	}
	rounds(n, step, func(steps int) {
		ADDQ(I32(int32(4*height*steps)), a)
		ADDQ(I32(int32(8*steps)), off)
	})

	load("bias", index)
	TESTQ(index, index)
	JE(LabelRef("unbiased"))
	t.addBias(index)
	ADDQ(I32(int32(4*height)), param("bias"))
	Label("unbiased")
	CMPB(param("acc"), U8(0))
	JE(LabelRef("store"))
	for row := range height {
		t.add(row, c)
		t.store(row, c, ldc)
	}
	JMP(LabelRef("next"))
	Label("store")
	for row := range height {
		t.store(row, c, ldc)
	}
	Label("next")
	DECQ(param("count"))
	JNE(LabelRef("tile"))
	VZEROUPPER()
	RET()
}

// places points each register to one of the places in base, every one or every
// second.
func places(base, at string, regs []Register) {
	load(base, RAX)
	load(at, RCX)
	for i, r := range regs {
		MOVQ(Mem{Base: RCX, Disp: 8 * (4 / len(regs) * i)}, r)
		LEAQ(Mem{Base: RAX, Index: r, Scale: 4}, r)
	}
}

func (t wideTile) clear() {
	for row := range t.height {
		for v := range 2 {
			VPXORD(t.acc(row, v), t.acc(row, v), t.acc(row, v))
		}
	}
}

// prefetch asks for the rows of the result while the sum runs.
func (t wideTile) prefetch(c []Register, ldc, tmp Register) {
	for _, r := range c {
		MOVQ(r, tmp)
		for row := range t.height {
			PREFETCHT0(Mem{Base: tmp})
			if row < t.height-1 {
				ADDQ(ldc, tmp)
			}
		}
	}
}

// addBias adds one element of bias to each row.
func (t wideTile) addBias(bias Register) {
	for row := range t.height {
		VBROADCASTSS(Mem{Base: bias, Disp: 4 * row}, Z28)
		for v := range 2 {
			VADDPS(Z28, t.acc(row, v), t.acc(row, v))
		}
	}
}

// add adds what is there to a row of the tile.
func (t wideTile) add(row int, c []Register) {
	for v := range 2 {
		if len(c) == 2 {
			VADDPS(Mem{Base: c[v]}, t.acc(row, v), t.acc(row, v))
			continue
		}
		VMOVUPS(Mem{Base: c[2*v]}, Y28)
		VINSERTF64X4(U8(1), Mem{Base: c[2*v+1]}, Z28, Z28)
		VADDPS(Z28, t.acc(row, v), t.acc(row, v))
	}
}

// store writes a row of the tile and moves c to the next.
func (t wideTile) store(row int, c []Register, ldc Register) {
	for v := range 2 {
		if len(c) == 2 {
			VMOVUPS(t.acc(row, v), Mem{Base: c[v]})
			continue
		}
		VMOVUPS(t.acc(row, v).AsY(), Mem{Base: c[2*v]})
		VEXTRACTF64X4(U8(1), t.acc(row, v), Mem{Base: c[2*v+1]})
	}
	for _, r := range c {
		ADDQ(ldc, r)
	}
}

// peakWide is peak for AVX-512.
func peakWide() {
	function("peakAVX512", "func(rounds int)", "performs 12 * 32 floating point operations a round, in registers.")
	load("rounds", RCX)
	for _, v := range zmm[:14] {
		VPXORD(v, v, v)
	}
	Label("loop")
	for _, v := range zmm[:12] {
		VFMADD231PS(Z12, Z13, v)
	}
	DECQ(RCX)
	JNE(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// gradientRow adds the pixels of a row, from at on to the one before end.
func gradientRow(a []Register, at, b Register, end Mem) {
	step := func(p int) {
		VMOVUPS(Mem{Base: b, Disp: 64 * p}, zmm[30+p%2])
		for row, r := range a {
			VFMADD231PS_BCST(Mem{Base: r, Index: at, Scale: 4, Disp: 4 * p}, zmm[30+p%2], zmm[row])
		}
	}
	advance := func(steps int) {
		ADDQ(I32(int32(steps)), at)
		ADDQ(I32(int32(64*steps)), b)
	}
	SUBQ(I32(unroll), end)
	CMPQ(at, end)
	JG(LabelRef("rest"))
	Label("loop")
	for p := range unroll {
		step(p)
	}
	advance(unroll)
	CMPQ(at, end)
	JLE(LabelRef("loop"))
	Label("rest")
	ADDQ(I32(unroll), end)
	CMPQ(at, end)
	JE(LabelRef("rowDone"))
	Label("single")
	step(0)
	advance(1)
	CMPQ(at, end)
	JNE(LabelRef("single"))
}

// gradientWide writes the tiles of weight gradients: one vector a row.
func gradientWide(height int) {
	function(fmt.Sprintf("gradient%dAVX512", height),
		"func(images, rows, cols, imageStep, rowStep int, a *float32, off *int, b, c *float32)",
		fmt.Sprintf(`is gradientPlain for tiles of %d rows, with fused multiply-add:

	for i := range %[1]d {
		for j := range 16 {
			c[i*16+j] += sum over n < images, y < rows, x < cols of
				a[off[i]+n*imageStep+y*rowStep+x] * b[((n*rows+y)*cols+x)*16+j]
		}
	}

images, rows and cols are positive.`, height))
	// Twelve rows leave two registers: the pixel in A and b.
	at, b := RAX, RDX
	a := []Register{RSI, RDI, R8, R9, R10, R11, R12, R13, R15, RBX, R14, RCX}[:height]
	image, line, y, end := AllocLocal(8), AllocLocal(8), AllocLocal(8), AllocLocal(8)
	load("off", RDX)
	load("a", RAX)
	for row, r := range a {
		MOVQ(Mem{Base: RDX, Disp: 8 * row}, r)
		LEAQ(Mem{Base: RAX, Index: r, Scale: 4}, r)
		VPXORD(zmm[row], zmm[row], zmm[row])
	}
	load("b", b)
	XORQ(at, at)
	MOVQ(at, image)

	Label("image")
	MOVQ(at, line)
	load("rows", RAX)
	MOVQ(RAX, y)
	Label("row")
	load("cols", RAX)
	ADDQ(line, RAX)
	MOVQ(RAX, end)
	MOVQ(line, at)
	gradientRow(a, at, b, end)
	Label("rowDone")
	MOVQ(line, at)
	ADDQ(param("rowStep"), at)
	MOVQ(at, line)
	DECQ(y)
	JNE(LabelRef("row"))
	MOVQ(image, at)
	ADDQ(param("imageStep"), at)
	MOVQ(at, image)
	DECQ(param("images"))
	JNE(LabelRef("image"))

	load("c", RAX)
	for row := range a {
		VADDPS(Mem{Base: RAX, Disp: 64 * row}, zmm[row], zmm[row])
		VMOVUPS(zmm[row], Mem{Base: RAX, Disp: 64 * row})
	}
	VZEROUPPER()
	RET()
}
