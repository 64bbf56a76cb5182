package kernel

// Add writes a + b into dst, elementwise. dst may be a or b.
func Add[T Float](dst, a, b []T) {
	checkLen("Add", len(dst), len(a), len(b))
	Parallel(len(dst), grain, func(lo, hi int) { addSpan(dst[lo:hi], a[lo:hi], b[lo:hi]) })
}

func addSpan[T Float](dst, a, b []T) {
	for i := add32(f32(dst), f32(a), f32(b)); i < len(dst); i++ {
		dst[i] = a[i] + b[i]
	}
}

// Accumulate adds src to dst, elementwise.
func Accumulate[T Float](dst, src []T) {
	checkLen("Accumulate", len(dst), len(src))
	Parallel(len(dst), grain, func(lo, hi int) { addSpan(dst[lo:hi], dst[lo:hi], src[lo:hi]) })
}

// Mul writes a * b into dst, elementwise. dst may be a or b.
func Mul[T Float](dst, a, b []T) {
	checkLen("Mul", len(dst), len(a), len(b))
	Parallel(len(dst), grain, func(lo, hi int) {
		dst, a, b := dst[lo:hi], a[lo:hi], b[lo:hi]
		for i := mul32(f32(dst), f32(a), f32(b)); i < len(dst); i++ {
			dst[i] = a[i] * b[i]
		}
	})
}

// MulAccumulate adds a * b to dst, elementwise; the product is rounded before
// it is added.
func MulAccumulate[T Float](dst, a, b []T) {
	checkLen("MulAccumulate", len(dst), len(a), len(b))
	Parallel(len(dst), grain, func(lo, hi int) {
		dst, a, b := dst[lo:hi], a[lo:hi], b[lo:hi]
		for i := mulAccumulate32(f32(dst), f32(a), f32(b)); i < len(dst); i++ {
			dst[i] += T(a[i] * b[i])
		}
	})
}

// Scale multiplies dst by s, elementwise.
func Scale[T Float](dst []T, s T) {
	Parallel(len(dst), grain, func(lo, hi int) { scaleSpan(dst[lo:hi], dst[lo:hi], s, false) })
}

// ScaleBy multiplies dst by s in float64 and rounds each product once: the
// factor itself is never rounded to float32. It is how a gradient is unscaled,
// averaged and clipped in a single rounding. With s == 1 every bit stays.
func ScaleBy(dst []float32, s float64) {
	if s == 1 {
		return
	}
	Parallel(len(dst), grain, func(lo, hi int) {
		dst := dst[lo:hi]
		for i := scaleBy32(dst, s); i < len(dst); i++ {
			dst[i] = float32(float64(dst[i]) * s)
		}
	})
}

// AddRow adds the row b to each of the rows of y [rows, cols].
func AddRow[T Float](y, b []T, rows, cols int) {
	checkLen("AddRow", rows*cols, len(y))
	checkLen("AddRow", cols, len(b))
	Parallel(rows, grainOf(cols), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row := y[r*cols:][:cols]
			addSpan(row, row, b)
		}
	})
}

// AddChannel writes x[n,c,:] + b[n,c] into y; x and y are [n, c, hw], b is
// [n, c]. y may be x.
func AddChannel[T Float](y, x, b []T, n, c, hw int) {
	checkLen("AddChannel", n*c*hw, len(y), len(x))
	checkLen("AddChannel", n*c, len(b))
	Parallel(n*c, grainOf(hw), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			addScalarSpan(y[p*hw:][:hw], x[p*hw:][:hw], b[p])
		}
	})
}

func addScalarSpan[T Float](y, x []T, s T) {
	for i := addScalar32(f32(y), f32(x), float32(s)); i < len(y); i++ {
		y[i] = x[i] + s
	}
}

// ScaleShift writes x[n,c,:] * (1 + s[n,c]) + b[n,c] into y; x and y are
// [n, c, hw], s and b are [n, c]. y may be x.
func ScaleShift[T Float](y, x, s, b []T, n, c, hw int) {
	checkLen("ScaleShift", n*c*hw, len(y), len(x))
	checkLen("ScaleShift", n*c, len(s), len(b))
	Parallel(n*c, grainOf(hw), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			affineSpan(y[p*hw:][:hw], x[p*hw:][:hw], 0, 1+s[p], b[p])
		}
	})
}

// ScaleShiftBackward is the gradient of [ScaleShift]: dx = dy * (1+s),
// ds = sum(dy * x), db = sum(dy), the sums over hw in float64. With acc, dx is
// added to; with accParam, ds and db are. Each of dx, ds, db may be nil; dx may
// be dy unless acc.
func ScaleShiftBackward[T Float](dx, ds, db, x, s, dy []T, n, c, hw int, acc, accParam bool) {
	checkLen("ScaleShiftBackward", n*c*hw, len(x), len(dy))
	checkLen("ScaleShiftBackward", n*c, len(s))
	checkOutput("ScaleShiftBackward", n*c*hw, dx)
	checkOutput("ScaleShiftBackward", n*c, ds)
	checkOutput("ScaleShiftBackward", n*c, db)
	Parallel(n*c, grainOf(hw), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			dy := dy[p*hw:][:hw]
			if ds != nil {
				var l lanes
				dot(&l, dy, x[p*hw:][:hw])
				store(&ds[p], l.total(), accParam)
			}
			if db != nil {
				var l lanes
				sum(&l, dy)
				store(&db[p], l.total(), accParam)
			}
			if dx != nil {
				scaleSpan(dx[p*hw:][:hw], dy, 1+s[p], acc)
			}
		}
	})
}

// scaleSpan writes s*x into y, or adds it.
func scaleSpan[T Float](y, x []T, s T, acc bool) {
	if acc {
		for i := axpy32(f32(y), f32(x), float32(s)); i < len(y); i++ {
			y[i] += T(s * x[i])
		}
		return
	}
	for i := scale32(f32(y), f32(x), float32(s)); i < len(y); i++ {
		y[i] = s * x[i]
	}
}

// affineSpan writes (x - shift)*scale + bias into y.
func affineSpan[T Float](y, x []T, shift, scale, bias T) {
	for i := affine32(f32(y), f32(x), float32(shift), float32(scale), float32(bias)); i < len(y); i++ {
		y[i] = T((x[i]-shift)*scale) + bias
	}
}

// store writes v into *p, or adds it in float64 and rounds once.
func store[T Float](p *T, v float64, acc bool) {
	if acc {
		v += float64(*p)
	}
	*p = T(v)
}
