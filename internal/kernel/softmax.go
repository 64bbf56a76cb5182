package kernel

// Softmax writes softmax(scale * x) into y, row by row; x and y are
// [rows, cols], y may be x. The greatest scaled element of a row is taken away
// before the exponential; the sum is kept in float64. A row with +Inf or NaN,
// or of -Inf alone, becomes NaN.
func Softmax[T Float](y, x []T, rows, cols int, scale T) {
	checkLen("Softmax", rows*cols, len(y), len(x))
	Parallel(rows, grainOf(4*cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			softmaxRow(y[r*cols:][:cols], x[r*cols:][:cols], scale)
		}
	})
}

func softmaxRow[T Float](y, x []T, scale T) {
	if len(x) == 0 {
		return
	}
	// The greatest of scale*x is found on the products, so a scale of any
	// sign is right. Where NaN is met it does not matter which is found: the
	// sum is NaN in any case.
	m := T(x[0] * scale)
	i, top := scaledMax32(f32(x), float32(scale))
	if i > 0 {
		m = T(top)
	}
	for ; i < len(x); i++ {
		if v := T(x[i] * scale); v > m {
			m = v
		}
	}
	var l lanes
	for i := expSum32(&l, f32(y), f32(x), float32(scale), float32(m)); i < len(x); i++ {
		y[i] = expOf(T(x[i]*scale) - m)
		l[i&15] += float64(y[i])
	}
	scaleSpan(y, y, T(1/l.total()), false)
}

// SoftmaxBackward is the gradient of [Softmax] with respect to the unscaled x:
// dx = scale * y * (dy - sum(dy*y)), the sum of each row in float64. y is the
// output of Softmax. dx may be dy.
func SoftmaxBackward[T Float](dx, y, dy []T, rows, cols int, scale T) {
	checkLen("SoftmaxBackward", rows*cols, len(dx), len(y), len(dy))
	Parallel(rows, grainOf(2*cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			softmaxBackwardRow(dx[r*cols:][:cols], y[r*cols:][:cols], dy[r*cols:][:cols], scale)
		}
	})
}

func softmaxBackwardRow[T Float](dx, y, dy []T, scale T) {
	var l lanes
	dot(&l, y, dy)
	d := T(l.total())
	for i := softmaxBackward32(f32(dx), f32(y), f32(dy), float32(d), float32(scale)); i < len(dx); i++ {
		dx[i] = T(y[i]*(dy[i]-d)) * scale
	}
}
