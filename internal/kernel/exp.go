package kernel

import "math"

// Constants of expNeg. x*log2e is rounded to an integer n by adding and taking
// away roundMagic: 1.5 * 2^23 leaves the sum no room for a fraction, and the 127
// on top makes its low bits the biased exponent of 2^n. ln2 is split into ln2Hi,
// whose 9 significant bits make n*ln2Hi exact, and the rest.
const (
	expFloor   = -87
	log2e      = float32(1.442695040888963407359924681001892137427)
	roundMagic = float32(1.5*(1<<23) + 127)
	ln2Hi      = float32(0.693359375)
	ln2Lo      = float32(-2.12194440054690583e-4)
)

// The polynomial q(r) with exp(r) = 1 + r + r*r*q(r) on |r| <= ln2/2, by
// interpolation at the Chebyshev nodes; relative error 1.1e-8 with these
// coefficients, which are float32.
const (
	expC0 = float32(0x1p-1)
	expC1 = float32(0x1.5554dcp-3)
	expC2 = float32(0x1.55551ap-5)
	expC3 = float32(0x1.120ba2p-7)
	expC4 = float32(0x1.6d113cp-10)
)

// expNeg returns exp(x) for x <= 0, to 1.2 units in the last place, and 0 below
// -87, where results come near the subnormal numbers, which are slow. NaN stays
// NaN. No step is fused: the vector kernels perform these operations in this
// order and give the same bits.
func expNeg(x float32) float32 {
	if x < expFloor {
		return 0
	}
	t := float32(x*log2e) + roundMagic
	n := t - roundMagic
	r := x - float32(n*ln2Hi)
	r -= float32(n * ln2Lo)
	q := float32(expC4*r) + expC3
	q = float32(q*r) + expC2
	q = float32(q*r) + expC1
	q = float32(q*r) + expC0
	q = float32(float32(q*r)*r) + r
	q += 1
	return q * math.Float32frombits(math.Float32bits(t)<<23)
}

// expOf returns exp(x) for x <= 0 in the precision of T.
func expOf[T Float](x T) T {
	if isF32[T]() {
		return T(expNeg(float32(x)))
	}
	return T(math.Exp(float64(x)))
}
