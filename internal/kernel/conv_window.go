package kernel

// window describes which part of a plane of h by w elements the taps of one
// stretch of outputs cover: output (i, j), j < cols, sees the spanH by spanW
// elements from (top + i*step, left + j*step) on, which are zero where they lie
// beyond the plane.
//
// A copy of that part holds each of its rows as step runs, one for every
// remainder of the column by step, so that what one tap shows consecutive
// outputs of a row is contiguous. The product of matrices reads its right-hand
// side there: the matrix with a copy of the image for every tap never exists.
type window struct {
	h, w         int
	top, left    int
	step         int
	spanH, spanW int
	cols         int
}

// run returns the length of a run.
func (v window) run() int { return v.cols - 1 + (v.spanW+v.step-1)/v.step }

// line returns the length of a copied row.
func (v window) line() int { return v.run() * min(v.step, v.spanW) }

// height returns how many rows of the plane the given number of rows of outputs
// covers.
func (v window) height(rows int) int { return (rows-1)*v.step + v.spanH }

// offset returns where the copy has the element that output (0, 0) meets at t.
func (v window) offset(t tap) int {
	return t.y*v.line() + t.x%v.step*v.run() + t.x/v.step
}

// whole reports whether the plane itself has the layout of a copy: nothing but
// stride 1 without padding, and no columns that whole groups of outputs would
// read in vain.
func (v window) whole(rows int) bool {
	return v.step == 1 && v.top == 0 && v.left == 0 && v.line() == v.w && v.height(rows) <= v.h && v.cols%halfCols == 0
}

// copyPlanes writes what output rows [first, first+rows) of planes of src see to
// copies that are step apart in dst, apart from the zeros beyond the edges: those
// depend on first and rows alone, so that a caller clears dst only when it turns
// to other rows.
func copyPlanes[T Float](v window, dst []T, step int, src []T, planes, first, rows int) {
	y := v.top + first*v.step // row of the plane that is row 0 of the copy
	lo, hi := max(0, -y), min(v.height(rows), v.h-y)
	for q := range min(v.step, v.spanW) {
		at, n, x := v.inside(q)
		if n == 0 || lo >= hi {
			continue
		}
		for p := range planes {
			copyRows(dst[p*step+lo*v.line()+at:], v.line(), src[(p*v.h+y+lo)*v.w+x:], v.w, hi-lo, n, v.step)
		}
	}
}

// inside returns which part of run q lies within the plane: n elements, of which
// the first is element at of a copied row and column x of the plane.
func (v window) inside(q int) (at, n, x int) {
	x = v.left + q // column of element 0 of the run
	lo := 0
	if x < 0 {
		lo = min(v.run(), (-x+v.step-1)/v.step)
	}
	hi := min(v.run(), (v.w-x+v.step-1)/v.step)
	if hi <= lo {
		return 0, 0, 0
	}
	return q*v.run() + lo, hi - lo, x + lo*v.step
}

// copyRows writes n elements, step apart, of each of the given number of rows of
// src, ld apart, to rows of dst, width apart.
func copyRows[T Float](dst []T, width int, src []T, ld, rows, n, step int) {
	if step == 1 {
		run := n & -n // the greatest power of two that divides n
		if run = min(run, 16); run < 4 {
			run = n
		}
		copyRuns(dst, width, run, src, ld, rows, n/run, run)
		return
	}
	for i := range rows {
		to, from := dst[i*width:][:n], src[i*ld:]
		done := 0
		if step == 2 {
			done = everySecond32(f32(to), f32(from))
		}
		for j := done; j < n; j++ {
			to[j] = from[j*step]
		}
	}
}
