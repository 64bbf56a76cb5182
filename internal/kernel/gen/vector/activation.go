package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// exponential holds the constants of expNeg in exp.go of package kernel, which
// says where they come from.
type exponential struct {
	floor, log2e, magic, ln2Hi, ln2Lo, one Mem
	c                                      [5]Mem
}

func newExponential() (e exponential) {
	e.floor = float("expFloor", -87)
	e.log2e = float("log2e", 1.442695040888963407359924681001892137427)
	e.magic = float("roundMagic", 1.5*(1<<23)+127)
	e.ln2Hi = float("ln2Hi", 0.693359375)
	e.ln2Lo = float("ln2Lo", -2.12194440054690583e-4)
	e.one = float("one", 1)
	names := [5]string{"expC0", "expC1", "expC2", "expC3", "expC4"}
	for k, v := range [5]float32{0x1p-1, 0x1.5554dcp-3, 0x1.55551ap-5, 0x1.120ba2p-7, 0x1.6d113cp-10} {
		e.c[k] = float(names[k], v)
	}
	return e
}

// of returns exp(x) for x <= 0, by the operations of expNeg in their order.
func (e exponential) of(x VecVirtual) VecVirtual {
	t, n, r, q := vector(), vector(), vector(), vector()
	VMULPS(e.log2e, x, t)
	VADDPS(e.magic, t, t)
	VSUBPS(e.magic, t, n)
	VMULPS(e.ln2Hi, n, r)
	VSUBPS(r, x, r)
	VMULPS(e.ln2Lo, n, n)
	VSUBPS(n, r, r)
	VMULPS(e.c[4], r, q)
	for k := 3; k >= 0; k-- {
		VADDPS(e.c[k], q, q)
		VMULPS(r, q, q)
	}
	VMULPS(r, q, q)
	VADDPS(r, q, q)
	VADDPS(e.one, q, q)
	VPSLLD(U8(23), t, t)
	VMULPS(t, q, q)
	const notLess = 0x15 // so that NaN is kept
	if avx512 {
		keep := K()
		VCMPPS(U8(notLess), e.floor, x, keep)
		VMOVAPS_Z(q, keep, q)
		return q
	}
	keep := YMM()
	VCMPPS(U8(notLess), e.floor, x, keep)
	VANDPS(keep, q, q)
	return q
}

// silu holds the constants of the sigmoid.
type silu struct {
	exp         exponential
	least, most Mem // the bounds of clamp in silu.go
	sign        Mem
}

// sigmoid returns the sigmoid of c and one less the sigmoid.
func (s silu) sigmoid(c VecVirtual) (sig, rest VecVirtual) {
	minus := vector()
	if avx512 {
		VPORD(s.sign, c, minus)
	} else {
		VORPS(s.sign, c, minus)
	}
	e := s.exp.of(minus)
	one, r, small := vector(), vector(), vector()
	VMOVUPS(s.exp.one, one)
	VADDPS(e, one, r)
	VDIVPS(r, one, r)
	VMULPS(e, r, small)
	sig, rest = vector(), vector()
	if avx512 {
		negative := K()
		VPTESTMD(s.sign, c, negative)
		VBLENDMPS(small, r, negative, sig)
		VBLENDMPS(r, small, negative, rest)
		return sig, rest
	}
	VBLENDVPS(c, small, r, sig)
	VBLENDVPS(c, r, small, rest)
	return sig, rest
}

func activations() {
	exp := newExponential()
	s := silu{exp: exp, least: float("siluLeast", -88), most: float("siluMost", 88), sign: constant("signBit", 1<<31)}

	for _, avx512 = range []bool{true, false} {
		s.forward()
		s.backward("siluBackward", false)
		s.backward("siluBackwardAccumulate", true)
	}

	function("scaledMaxAVX2", "func(max, x *float32, n int, scale float32)",
		"raises the eight elements of max to those of scale * x. Step 8.")
	top, x, scale := pointer("max"), pointer("x"), broadcast("scale")
	m := ymm(Mem{Base: top})
	loop(8, func(i Register) {
		v := YMM()
		VMULPS(at(x, i, 0, 4), scale, v)
		VMAXPS(v, m, m)
	})
	VMOVUPS(m, Mem{Base: top})
	end()

	function("expSumAVX2", "func(l *float64, y, x *float32, n int, scale, m float32)",
		"writes exp(scale*x - m) into y and adds it to the lanes l. Step 16.")
	l, y, x, scale, shift := pointer("l"), pointer("y"), pointer("x"), broadcast("scale"), broadcast("m")
	acc := accumulators(l)
	loop(16, func(i Register) {
		for k := 0; k < 16; k += 8 {
			v := YMM()
			VMULPS(at(x, i, k, 4), scale, v)
			VSUBPS(shift, v, v)
			e := exp.of(v)
			VMOVUPS(e, at(y, i, k, 4))
			for j := 0; j < 8; j += 4 {
				part, w := XMM(), YMM()
				VEXTRACTF128(U8(j/4), e, part)
				VCVTPS2PD(part, w)
				VADDPD(w, acc[(k+j)/4], acc[(k+j)/4])
			}
		}
	})
	keep(acc, l)
	end()

	function("softmaxBackwardAVX2", "func(dx, y, dy *float32, n int, d, scale float32)",
		"writes y*(dy - d)*scale into dx. Step 8.")
	dx, y, dy, d, scale := pointer("dx"), pointer("y"), pointer("dy"), broadcast("d"), broadcast("scale")
	loop(8, func(i Register) {
		v := ymm(at(dy, i, 0, 4))
		VSUBPS(d, v, v)
		VMULPS(at(y, i, 0, 4), v, v)
		VMULPS(scale, v, v)
		VMOVUPS(v, at(dx, i, 0, 4))
	})
	end()
}

func (s silu) forward() {
	function("silu"+suffix(), "func(y, x *float32, n int)", "writes x * sigmoid(x) into y. Step 8.")
	least := vec(s.least)
	unary(func(_, x, i Register) VecVirtual {
		v := vector()
		VMAXPS(at(x, i, 0, 4), least, v)
		sig, _ := s.sigmoid(v)
		VMULPS(sig, v, sig)
		return sig
	})
}

func (s silu) backward(name string, accumulate bool) {
	verb := "writes"
	if accumulate {
		verb = "adds"
	}
	function(name+suffix(), "func(dx, x, dy *float32, n int)", verb+" dy * s * (1 + x*(1-s)) to dx, s = sigmoid(x). Step 8.")
	dx, x, dy := pointer("dx"), pointer("x"), pointer("dy")
	least, most, one := vec(s.least), vec(s.most), vec(s.exp.one)
	loop(lanes(), func(i Register) {
		// VMAXPS and VMINPS give their last source where the two do not
		// compare: NaN stays.
		c := vector()
		VMAXPS(at(x, i, 0, 4), least, c)
		VMINPS(c, most, c)
		sig, d := s.sigmoid(c)
		VMULPS(c, d, d)
		VADDPS(one, d, d)
		VMULPS(sig, d, d)
		VMULPS(at(dy, i, 0, 4), d, d)
		if accumulate {
			VADDPS(at(dx, i, 0, 4), d, d)
		}
		VMOVUPS(d, at(dx, i, 0, 4))
	})
	end()
}
