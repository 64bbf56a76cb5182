package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/reg"
)

func elementwise() {
	function("addAVX2", "func(dst, a, b *float32, n int)", "writes a + b into dst. Step 8.")
	binary(func(d, a, b, i Register) VecVirtual {
		y := ymm(at(a, i, 0, 4))
		VADDPS(at(b, i, 0, 4), y, y)
		return y
	})
	function("mulAVX2", "func(dst, a, b *float32, n int)", "writes a * b into dst. Step 8.")
	binary(func(d, a, b, i Register) VecVirtual {
		y := ymm(at(a, i, 0, 4))
		VMULPS(at(b, i, 0, 4), y, y)
		return y
	})
	function("mulAccumulateAVX2", "func(dst, a, b *float32, n int)", "adds a * b to dst. Step 8.")
	binary(func(d, a, b, i Register) VecVirtual {
		y := ymm(at(a, i, 0, 4))
		VMULPS(at(b, i, 0, 4), y, y)
		VADDPS(at(d, i, 0, 4), y, y)
		return y
	})

	function("scaleAVX2", "func(y, x *float32, n int, s float32)", "writes s * x into y. Step 8.")
	s := broadcast("s")
	unary(func(_, x, i Register) VecVirtual {
		v := ymm(at(x, i, 0, 4))
		VMULPS(s, v, v)
		return v
	})
	function("axpyAVX2", "func(y, x *float32, n int, s float32)", "adds s * x to y. Step 8.")
	s = broadcast("s")
	unary(func(y, x, i Register) VecVirtual {
		v := ymm(at(x, i, 0, 4))
		VMULPS(s, v, v)
		VADDPS(at(y, i, 0, 4), v, v)
		return v
	})
	function("addScalarAVX2", "func(y, x *float32, n int, s float32)", "writes x + s into y. Step 8.")
	s = broadcast("s")
	unary(func(_, x, i Register) VecVirtual {
		v := ymm(at(x, i, 0, 4))
		VADDPS(s, v, v)
		return v
	})
	function("affineAVX2", "func(y, x *float32, n int, shift, scale, bias float32)",
		"writes (x - shift)*scale + bias into y. Step 8.")
	shift, scale, bias := broadcast("shift"), broadcast("scale"), broadcast("bias")
	unary(func(_, x, i Register) VecVirtual {
		v := ymm(at(x, i, 0, 4))
		VSUBPS(shift, v, v)
		VMULPS(scale, v, v)
		VADDPS(bias, v, v)
		return v
	})

	function("scaleByAVX2", "func(dst *float32, n int, s float64)",
		"multiplies dst by s in float64 and rounds once. Step 8.")
	dst, wide := pointer("dst"), broadcast64("s")
	loop(8, func(i Register) {
		for k := 0; k < 8; k += 4 {
			v, x := YMM(), XMM()
			VCVTPS2PD(at(dst, i, k, 4), v)
			VMULPD(wide, v, v)
			VCVTPD2PSY(v, x)
			VMOVUPS(x, at(dst, i, k, 4))
		}
	})
	end()
}

// binary writes f of a and b into dst, a vector at a time.
func binary(f func(d, a, b, i Register) VecVirtual) {
	d, a, b := pointer("dst"), pointer("a"), pointer("b")
	loop(lanes(), func(i Register) { VMOVUPS(f(d, a, b, i), at(d, i, 0, 4)) })
	end()
}

// unary writes f of x into y, a vector at a time.
func unary(f func(y, x, i Register) VecVirtual) {
	y, x := pointer("y"), pointer("x")
	loop(lanes(), func(i Register) { VMOVUPS(f(y, x, i), at(y, i, 0, 4)) })
	end()
}
