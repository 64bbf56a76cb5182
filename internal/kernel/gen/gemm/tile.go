package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// unroll is the number of steps of k per round of the inner loops.
const unroll = 4

// tile is a block of height rows by 16 columns that stays in registers: two
// vectors a row. Six rows leave of the 16 registers two for a row of B and two
// for elements of A; four rows are the fewest that hide the latency of an FMA.
type tile struct{ height int }

func (t tile) acc(row, half int) VecPhysical {
	return []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11}[2*row+half]
}

func (t tile) clear() {
	for row := range t.height {
		for half := range 2 {
			VXORPS(t.acc(row, half), t.acc(row, half), t.acc(row, half))
		}
	}
}

// step adds the product of one column of A and one row of B, which is in b.
func (t tile) step(a func(row int) Mem, b [2]Mem) {
	VMOVUPS(b[0], Y12)
	VMOVUPS(b[1], Y13)
	for row := range t.height {
		element := []VecPhysical{Y14, Y15}[row%2]
		VBROADCASTSS(a(row), element)
		VFMADD231PS(element, Y12, t.acc(row, 0))
		VFMADD231PS(element, Y13, t.acc(row, 1))
	}
}

// store writes the tile to the rows that start at c[0] and c[1], ld bytes apart,
// and leaves c after the last row.
func (t tile) store(c [2]Register, ld Op) {
	t.rows(c, ld, func(sum VecPhysical, m Mem) { VMOVUPS(sum, m) })
}

// add adds the tile instead.
func (t tile) add(c [2]Register, ld Op) {
	t.rows(c, ld, func(sum VecPhysical, m Mem) {
		VADDPS(m, sum, sum)
		VMOVUPS(sum, m)
	})
}

func (t tile) rows(c [2]Register, ld Op, do func(sum VecPhysical, m Mem)) {
	for row := range t.height {
		for half, r := range c {
			do(t.acc(row, half), Mem{Base: r})
			ADDQ(ld, r)
		}
	}
}

// prefetch asks for the rows of the result while the sum runs.
func (t tile) prefetch(c [2]Register, ld, tmp Register) {
	for _, r := range c {
		MOVQ(r, tmp)
		for row := range t.height {
			PREFETCHT0(Mem{Base: tmp})
			if row < t.height-1 {
				ADDQ(ld, tmp)
			}
		}
	}
}

// addBias adds one element of bias to each row.
func (t tile) addBias(bias Register) {
	for row := range t.height {
		VBROADCASTSS(Mem{Base: bias, Disp: 4 * row}, Y12)
		for half := range 2 {
			VADDPS(Y12, t.acc(row, half), t.acc(row, half))
		}
	}
}

// rounds writes a loop over n steps, several a round.
func rounds(n Register, step, advance func(int)) {
	SUBQ(I32(unroll), n)
	JL(LabelRef("rest"))
	Label("loop")
	for p := range unroll {
		step(p)
	}
	advance(unroll)
	SUBQ(I32(unroll), n)
	JGE(LabelRef("loop"))
	Label("rest")
	ADDQ(I32(unroll), n)
	JE(LabelRef("done"))
	Label("single")
	step(0)
	advance(1)
	DECQ(n)
	JNE(LabelRef("single"))
	Label("done")
}

// multiply writes the tiles of matrix products and correlations.
func multiply(height int) {
	t := tile{height}
	function(fmt.Sprintf("multiply%dFMA", height),
		"func(count, k int, a *float32, off *int, b0, b1, c0, c1 *float32, ldc int, acc bool, bias *float32)",
		fmt.Sprintf(`is multiplyPlain for tiles of %d rows, with fused multiply-add:

	for t := range count {
		for i := range %[1]d {
			for j := range 8 {
				c0[(%[1]d*t+i)*ldc+j] (+)= sum over p < k of a[(t*k+p)*%[1]d+i] * b0[off[p]+j]
				c1[(%[1]d*t+i)*ldc+j] (+)= sum over p < k of a[(t*k+p)*%[1]d+i] * b1[off[p]+j]
			}
		}
	}

and with bias, which may be nil, adds bias[%[1]d*t+i] to the sums. count and k are
positive.`, height))
	a, off, n := RSI, R8, RCX
	b, c, ldc := [2]Register{R9, R10}, [2]Register{R11, R12}, R13
	load("a", a)
	load("b0", b[0])
	load("b1", b[1])
	load("c0", c[0])
	load("c1", c[1])
	load("ldc", ldc)
	bytes(ldc)

	Label("tile")
	t.clear()
	load("off", off)
	load("k", n)
	t.prefetch(c, ldc, RAX)
	step := func(p int) {
		index := []Register{RAX, RBX, RDX, RDI}[p]
		MOVQ(Mem{Base: off, Disp: 8 * p}, index)
		t.step(func(row int) Mem { return Mem{Base: a, Disp: 4 * (p*height + row)} },
			[2]Mem{{Base: b[0], Index: index, Scale: 4}, {Base: b[1], Index: index, Scale: 4}})
	}
	advance := func(steps int) {
		ADDQ(I32(int32(4*height*steps)), a)
		ADDQ(I32(int32(8*steps)), off)
	}
	rounds(n, step, advance)

	load("bias", RAX)
	TESTQ(RAX, RAX)
	JE(LabelRef("unbiased"))
	t.addBias(RAX)
	ADDQ(I32(int32(4*height)), param("bias"))
	Label("unbiased")
	CMPB(param("acc"), U8(0))
	JE(LabelRef("store"))
	t.add(c, ldc)
	JMP(LabelRef("next"))
	Label("store")
	t.store(c, ldc)
	Label("next")
	DECQ(param("count"))
	JNE(LabelRef("tile"))
	VZEROUPPER()
	RET()
}

// gradient writes the tiles of weight gradients.
func gradient(height int) {
	t := tile{height}
	function(fmt.Sprintf("gradient%dFMA", height),
		"func(images, rows, cols, imageStep, rowStep int, a *float32, off *int, b, c *float32)",
		fmt.Sprintf(`is gradientPlain for tiles of %d rows, with fused multiply-add:

	for i := range %[1]d {
		for j := range 16 {
			c[i*16+j] += sum over n < images, y < rows, x < cols of
				a[off[i]+n*imageStep+y*rowStep+x] * b[((n*rows+y)*cols+x)*16+j]
		}
	}

images, rows and cols are positive.`, height))
	b, n := R15, RCX
	var a []Register
	off := R13
	load("off", off)
	load("a", RAX)
	for row, r := range []Register{RSI, RDI, R8, R9, R10, R11}[:height] {
		MOVQ(Mem{Base: off, Disp: 8 * row}, r)
		LEAQ(Mem{Base: RAX, Index: r, Scale: 4}, r)
		a = append(a, r)
	}
	image, line, at := RDX, R12, R13 // offsets into A of the image, of the row in it, of the pixel
	load("b", b)
	t.clear()
	XORQ(image, image)

	Label("image")
	MOVQ(image, line)
	load("rows", RBX)
	Label("row")
	MOVQ(line, at)
	load("cols", n)
	step := func(p int) {
		t.step(func(row int) Mem { return Mem{Base: a[row], Index: at, Scale: 4, Disp: 4 * p} },
			[2]Mem{{Base: b, Disp: 64 * p}, {Base: b, Disp: 64*p + 32}})
	}
	advance := func(steps int) {
		ADDQ(I32(int32(steps)), at)
		ADDQ(I32(int32(64*steps)), b)
	}
	rounds(n, step, advance)
	ADDQ(param("rowStep"), line)
	DECQ(RBX)
	JNE(LabelRef("row"))
	ADDQ(param("imageStep"), image)
	DECQ(param("images"))
	JNE(LabelRef("image"))

	load("c", RAX)
	LEAQ(Mem{Base: RAX, Disp: 32}, RBX)
	t.add([2]Register{RAX, RBX}, I32(64))
	VZEROUPPER()
	RET()
}
