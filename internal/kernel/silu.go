package kernel

// clamp brings x into [-lim, lim], where outside of it a sigmoid in T is 0 or 1
// to the last bit. With a finite x, products with the sigmoid take their limits
// at infinity instead of 0*Inf. NaN stays NaN.
func clamp[T Float](x T) T {
	lim := T(750)
	if isF32[T]() {
		lim = 1 - expFloor
	}
	if x < -lim {
		return -lim
	}
	if x > lim {
		return lim
	}
	return x
}

// sigmoid returns s = 1/(1+exp(-x)) and 1-s for a clamped x. The exponential is
// taken of -|x|, so nothing overflows and the lower tails of both keep their
// relative accuracy.
func sigmoid[T Float](x T) (s, rest T) {
	if x < 0 {
		e := expOf(x)
		r := 1 / (1 + e)
		return e * r, r
	}
	e := expOf(-x)
	r := 1 / (1 + e)
	return r, e * r
}

// SiLU writes x * sigmoid(x) into y, elementwise; y may be x. Its limits hold:
// -0 at -Inf and +Inf at +Inf; NaN stays NaN. For float32 the exponential is
// accurate to 1.2 units in the last place, and the sigmoid is 0 below -87.
func SiLU[T Float](y, x []T) {
	checkLen("SiLU", len(y), len(x))
	Parallel(len(y), grain, func(lo, hi int) { siluSpan(y[lo:hi], x[lo:hi]) })
}

func siluSpan[T Float](y, x []T) {
	for i := silu32(f32(y), f32(x)); i < len(y); i++ {
		c := clamp(x[i])
		s, _ := sigmoid(c)
		// Only the lower bound matters here: above the upper, s is 1.
		y[i] = max(c, x[i]) * s
	}
}

// SiLUBackward writes the gradient dy * s * (1 + x*(1-s)), s = sigmoid(x), into
// dx, or adds it with acc. dx may be dy or x unless acc.
func SiLUBackward[T Float](dx, x, dy []T, acc bool) {
	checkLen("SiLUBackward", len(dx), len(x), len(dy))
	Parallel(len(dx), grain, func(lo, hi int) { siluBackwardSpan(dx[lo:hi], x[lo:hi], dy[lo:hi], acc) })
}

func siluBackwardSpan[T Float](dx, x, dy []T, acc bool) {
	for i := siluBackward32(f32(dx), f32(x), f32(dy), acc); i < len(dx); i++ {
		c := clamp(x[i])
		s, rest := sigmoid(c)
		d := T(c*rest) + 1
		d = T(dy[i] * T(s*d))
		if acc {
			d += dx[i]
		}
		dx[i] = d
	}
}
