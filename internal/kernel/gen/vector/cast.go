package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// format is how sixteen elements are loaded as two vectors of float32 and
// stored from them.
type format struct {
	name, goType string
	load         func(p, i Register) [2]VecVirtual
	store        func(v [2]VecVirtual, p, i Register)
}

func formats() (f32, bf16, f16 format) {
	f32 = format{name: "F32", goType: "float32"}
	f32.load = func(p, i Register) [2]VecVirtual {
		return [2]VecVirtual{ymm(at(p, i, 0, 4)), ymm(at(p, i, 8, 4))}
	}
	f32.store = func(v [2]VecVirtual, p, i Register) {
		VMOVUPS(v[0], at(p, i, 0, 4))
		VMOVUPS(v[1], at(p, i, 8, 4))
	}

	bf16 = format{name: "BF16", goType: "uint16"}
	bf16.load = func(p, i Register) (v [2]VecVirtual) {
		for k := range v {
			v[k] = YMM()
			VPMOVZXWD(at(p, i, 8*k, 2), v[k])
			VPSLLD(U8(16), v[k], v[k])
		}
		return v
	}
	half, one, quiet := constant("bf16Half", 0x7fff), constant("bf16One", 1), constant("bf16Quiet", 0x40)
	bf16.store = func(v [2]VecVirtual, p, i Register) {
		for k := range v {
			v[k] = roundBF16(v[k], half, one, quiet)
		}
		// Packing works within each half of the register; the permutation
		// puts the four groups in order.
		VPACKUSDW(v[1], v[0], v[0])
		VPERMQ(U8(0xd8), v[0], v[0])
		VMOVDQU(v[0], at(p, i, 0, 2))
	}

	f16 = format{name: "F16", goType: "uint16"}
	f16.load = func(p, i Register) (v [2]VecVirtual) {
		for k := range v {
			v[k] = YMM()
			VCVTPH2PS(at(p, i, 8*k, 2), v[k])
		}
		return v
	}
	f16.store = func(v [2]VecVirtual, p, i Register) {
		for k := range v {
			VCVTPS2PH(U8(0), v[k], at(p, i, 8*k, 2)) // 0: to nearest even
		}
	}
	return f32, bf16, f16
}

// roundBF16 returns the bf16 of each float32 in the low half of its lane: half
// of the unit, less the parity bit, is added to the bits and they are cut off; a
// NaN is cut off and made quiet instead.
func roundBF16(v VecVirtual, half, one, quiet Mem) VecVirtual {
	nan, top, odd := YMM(), YMM(), YMM()
	VCMPPS(U8(3), v, v, nan) // 3: unordered
	VPSRLD(U8(16), v, top)
	VPAND(one, top, odd)
	VPOR(quiet, top, top)
	VPADDD(half, v, v)
	VPADDD(odd, v, v)
	VPSRLD(U8(16), v, v)
	VPBLENDVB(nan, top, v, v)
	return v
}

// wideCasts writes the bf16 casts for AVX-512.
func wideCasts() {
	function("widenBF16AVX512", "func(dst *float32, src *uint16, n int)", "converts src to float32. Step 16.")
	dst, src := pointer("dst"), pointer("src")
	loop(16, func(i Register) {
		v := ZMM()
		VPMOVZXWD(at(src, i, 0, 2), v)
		VPSLLD(U8(16), v, v)
		VMOVDQU32(v, at(dst, i, 0, 4))
	})
	end()

	function("roundBF16AVX512", "func(dst *uint16, src *float32, n int)", "converts src to BF16. Step 16.")
	dst, src = pointer("dst"), pointer("src")
	half, one, quiet := ZMM(), ZMM(), ZMM()
	VMOVDQU32(constant("bf16WideHalf", 0x7fff), half)
	VMOVDQU32(constant("bf16WideOne", 1), one)
	VMOVDQU32(constant("bf16WideQuiet", 0x40), quiet)
	loop(16, func(i Register) { // as roundBF16
		v, top, odd, nan := ZMM(), ZMM(), ZMM(), K()
		VMOVUPS(at(src, i, 0, 4), v)
		VCMPPS(U8(3), v, v, nan) // 3: unordered
		VPSRLD(U8(16), v, top)
		VPANDD(one, top, odd)
		VPADDD(half, v, v)
		VPADDD(odd, v, v)
		VPSRLD(U8(16), v, v)
		VPORD(quiet, top, nan, v)
		VPMOVDW(v, at(dst, i, 0, 2))
	})
	end()
}

func casts() {
	wideCasts()
	f32, bf16, f16 := formats()
	for _, f := range []format{bf16, f16} {
		cast("widen"+f.name+"AVX2", f32, f, "float32")
		cast("round"+f.name+"AVX2", f, f32, f.name)
	}
	for _, p := range [][2]format{{f32, bf16}, {f32, f16}, {f16, f16}, {bf16, f32}, {f16, f32}} {
		fold(p[0], p[1])
	}
	foldBF16()
}

func cast(name string, to, from format, what string) {
	function(name, "func(dst *"+to.goType+", src *"+from.goType+", n int)", "converts src to "+what+". Step 16.")
	dst, src := pointer("dst"), pointer("src")
	loop(16, func(i Register) { to.store(from.load(src, i), dst, i) })
	end()
}

// fold adds x to acc in float32 and rounds to the format of acc.
func fold(acc, x format) {
	function("fold"+acc.name+x.name+"AVX2", "func(acc *"+acc.goType+", x *"+x.goType+", n int)",
		"adds x ("+x.name+") to acc ("+acc.name+"). Step 16.")
	a, b := pointer("acc"), pointer("x")
	loop(16, func(i Register) {
		u, v := acc.load(a, i), x.load(b, i)
		for k := range u {
			VADDPS(v[k], u[k], u[k])
		}
		acc.store(u, a, i)
	})
	end()
}

// foldBF16 adds bf16 to bf16 without moving elements across lanes: each 32-bit
// lane holds two of them, which are widened in place, the even ones by a shift
// and the odd ones by a mask. NaN needs no care: that of a sum is quiet, and with
// bf16 operands its low half is zero, so rounding cannot carry into the high one.
func foldBF16() {
	function("foldBF16BF16AVX2", "func(acc *uint16, x *uint16, n int)", "adds x (BF16) to acc (BF16). Step 16.")
	a, b := pointer("acc"), pointer("x")
	high := ymm(constant("bf16High", 0xffff0000))
	half, one := ymm(constant("bf16FoldHalf", 0x7fff)), ymm(constant("bf16FoldOne", 1))
	widen := func(v VecVirtual) (even, odd VecVirtual) {
		even, odd = YMM(), YMM()
		VPSLLD(U8(16), v, even)
		VPAND(high, v, odd)
		return even, odd
	}
	add := func(u, v VecVirtual) VecVirtual {
		VADDPS(v, u, u)
		bias := YMM()
		VPSRLD(U8(16), u, bias)
		VPAND(one, bias, bias)
		VPADDD(half, bias, bias)
		VPADDD(bias, u, u)
		return u
	}
	loop(16, func(i Register) {
		ae, ao := widen(ymm(at(a, i, 0, 2)))
		xe, xo := widen(ymm(at(b, i, 0, 2)))
		even, odd := add(ae, xe), add(ao, xo)
		VPSRLD(U8(16), even, even)
		VPAND(high, odd, odd)
		VPOR(even, odd, odd)
		VMOVDQU(odd, at(a, i, 0, 2))
	})
	end()
}
