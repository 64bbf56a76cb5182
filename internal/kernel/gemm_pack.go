package kernel

// matrix is an operand of a product: element (i,j) is x[i*ld+j], or x[j*ld+i] if
// it is stored transposed.
type matrix[T Float] struct {
	x     []T
	ld    int
	trans bool
}

// packRows copies rows i, i+1, ... of the plan and columns [l, l+depth) into
// panels of [depth][height].
func (m matrix[T]) packRows(dst []T, plan rowPlan, i, l, depth int) {
	q := 0
	if full := min(plan.sixes, plan.rows/tileRows); m.trans && full > 0 {
		q = full // together
		interleave(dst, full, tileRows, m.x[l*m.ld+i:], m.ld, tileRows, depth)
	}
	for ; q < plan.panels(); q++ {
		row, height := plan.panel(q)
		n := min(height, plan.rows-row)
		if m.trans {
			interleave(dst[row*depth:], 1, height, m.x[l*m.ld+i+row:], m.ld, n, depth)
		} else {
			transpose(dst[row*depth:], height, m.x[(i+row)*m.ld+l:], m.ld, n, depth)
		}
	}
}

// packCols copies rows [l, l+depth) and columns [j, j+cols) into panels of
// [depth][tileCols].
func (m matrix[T]) packCols(dst []T, l, depth, j, cols int) {
	// More panels at a time would drive each other out of the cache, because they
	// lie a power of two apart.
	const together = 4
	for q := 0; q < cols; {
		to, n, panels := dst[q*depth:], min(tileCols, cols-q), 1
		if m.trans {
			transpose(to, tileCols, m.x[(j+q)*m.ld+l:], m.ld, n, depth)
		} else {
			panels = max(1, min(together, (cols-q)/tileCols))
			interleave(to, panels, tileCols, m.x[l*m.ld+j+q:], m.ld, n, depth)
		}
		q += panels * tileCols
	}
}

// interleave copies from rows of src, ld apart, the runs of n elements that
// belong to neighbouring panels with width elements per step. If n is less than
// width, there is one panel, which is filled up with zeros.
func interleave[T Float](dst []T, panels, width int, src []T, ld, n, depth int) {
	if n < width {
		clear(dst[:depth*width])
	}
	copyRuns(dst, width, depth*width, src, ld, depth, panels, n)
}

// copyRuns copies from each of the given number of rows of src, ld apart,
// neighbouring runs of n elements to rows of dst, width apart, where the runs are
// step apart.
func copyRuns[T Float](dst []T, width, step int, src []T, ld, rows, runs, n int) {
	if copyRuns32(f32(dst), width, step, f32(src), ld, rows, runs, n) {
		return
	}
	for p := range rows {
		for q := range runs {
			copy(dst[p*width+q*step:], src[p*ld+q*n:][:n])
		}
	}
}

// transpose copies n rows of depth elements, ld apart in src, to a panel with
// width elements per step, filled up with zeros.
func transpose[T Float](dst []T, width int, src []T, ld, n, depth int) {
	if n < width {
		clear(dst[:depth*width])
	}
	for i := 0; i < n; {
		// Of six rows, the middle two are copied twice, by four rows each.
		if i > 0 && i+4 > n {
			i = max(0, n-4)
		}
		rows := min(4, n-i)
		done := 0
		if rows == 4 {
			done = transpose32(f32(dst[i:]), width, f32(src[i*ld:]), ld, depth)
		}
		for r := i; r < i+rows; r++ {
			row := src[r*ld:][:depth]
			for p := done; p < depth; p++ {
				dst[p*width+r] = row[p]
			}
		}
		i += rows
	}
}
