package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func normalisation() {
	normBackward("normBackwardAVX2", false)
	normBackward("normBackwardAccumulateAVX2", true)
}

func normBackward(name string, accumulate bool) {
	verb := "writes"
	if accumulate {
		verb = "adds"
	}
	function(name, "func(dx, x, dy *float32, n int, shift, scale, slope, offset float32)",
		verb+" scale*dy + (slope*(x - shift) + offset) to dx. Step 8.")
	dx, x, dy := pointer("dx"), pointer("x"), pointer("dy")
	shift, scale, slope, offset := broadcast("shift"), broadcast("scale"), broadcast("slope"), broadcast("offset")
	loop(8, func(i Register) {
		v, g := ymm(at(x, i, 0, 4)), YMM()
		VSUBPS(shift, v, v)
		VMULPS(slope, v, v)
		VADDPS(offset, v, v)
		VMULPS(at(dy, i, 0, 4), scale, g)
		VADDPS(v, g, g)
		if accumulate {
			VADDPS(at(dx, i, 0, 4), g, g)
		}
		VMOVUPS(g, at(dx, i, 0, 4))
	})
	end()
}

func adamw() {
	function("adamwAVX2", "func(a, w, grad, m, v *float32, n int)",
		"applies AdamW with the eight factors of adam at a. Step 8.")
	a := pointer("a")
	var factor [8]VecVirtual
	for k := range factor {
		factor[k] = YMM()
		VBROADCASTSS(Mem{Base: a, Disp: 4 * k}, factor[k])
	}
	decay, b1, c1, b2, c2, root, eps, rate := factor[0], factor[1], factor[2], factor[3], factor[4], factor[5], factor[6], factor[7]
	w, g, m, v := pointer("w"), pointer("grad"), pointer("m"), pointer("v")
	loop(8, func(i Register) {
		grad, first, second, t := ymm(at(g, i, 0, 4)), YMM(), YMM(), YMM()
		VMULPS(at(m, i, 0, 4), b1, first)
		VMULPS(grad, c1, t)
		VADDPS(t, first, first)
		VMOVUPS(first, at(m, i, 0, 4))
		VMULPS(at(v, i, 0, 4), b2, second)
		VMULPS(grad, grad, t)
		VMULPS(t, c2, t)
		VADDPS(t, second, second)
		VMOVUPS(second, at(v, i, 0, 4))
		VSQRTPS(second, second)
		VDIVPS(root, second, second)
		VADDPS(eps, second, second)
		VMULPS(rate, first, first)
		VDIVPS(second, first, first)
		VMULPS(at(w, i, 0, 4), decay, t)
		VSUBPS(first, t, t)
		VMOVUPS(t, at(w, i, 0, 4))
	})
	end()
}
