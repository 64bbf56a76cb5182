package kernel

// A block of a is at most blockRows x blockDepth, a block of b blockDepth x
// blockCols elements: a panel of b (16 KiB in float32) stays in the first level
// of cache, the block of a in the second and the block of b in the third.
// blockDepth is part of the result, because sums are cut there; the other two
// are not.
const (
	blockRows  = 144
	blockCols  = 1024
	blockDepth = 256
)

// product is a matrix product under way.
type product[T Float] struct {
	m, n, k int
	a, b    matrix[T]
	c       []T
	ldc     int
	acc     bool
}

// compute fills rows [i0,i1) and columns [j0,j1) of the result.
func (p *product[T]) compute(i0, i1, j0, j1 int) {
	if i0 >= i1 || j0 >= j1 {
		return
	}
	if p.k == 0 {
		p.clear(i0, i1, j0, j1)
		return
	}
	s := getScratch[T]()
	defer putScratch(s)
	for j := j0; j < j1; j += blockCols {
		cols := min(blockCols, j1-j)
		for l := 0; l < p.k; l += blockDepth {
			depth := min(blockDepth, p.k-l)
			b := grow(&s.b, (cols+tileCols-1)/tileCols*tileCols*depth)
			p.b.packCols(b, l, depth, j, cols)
			for i := i0; i < i1; i += blockRows {
				plan := planRows(min(blockRows, i1-i))
				a := grow(&s.a, plan.padded()*depth)
				p.a.packRows(a, plan, i, l, depth)
				p.block(s, plan, a, b, i, j, cols, depth, p.acc || l > 0)
			}
		}
	}
}

// block multiplies a packed block of a with one of b.
func (p *product[T]) block(s *scratch[T], plan rowPlan, a, b []T, i, j, cols, depth int, acc bool) {
	off := s.panelRows(depth)
	for q := 0; q < cols; q += wideCols {
		from, to := operand[T]{b: b[q*depth:], off: off}, target[T]{c: p.c, ld: p.ldc, step: 1, acc: acc}
		for h := range to.width {
			j0 := q + h*halfCols
			if to.width[h] = max(0, min(halfCols, cols-j0)); to.width[h] > 0 {
				from.at[h] = h/2*tileCols*depth + h%2*halfCols
				to.at[h] = i*p.ldc + j + j0
			}
		}
		multiplyColumn(plan, a, from, to)
	}
}

// clear makes the result of an empty sum.
func (p *product[T]) clear(i0, i1, j0, j1 int) {
	for i := i0; i < i1 && !p.acc; i++ {
		clear(p.c[i*p.ldc+j0 : i*p.ldc+j1])
	}
}

// scratch is memory of one goroutine for packed operands. Its contents are
// arbitrary when it is taken.
type scratch[T Float] struct {
	a, b, c []T
	x, y    []T // widened operands
	off     []int
	rows    []int
}

// panelRows returns where the rows of a packed panel of columns begin.
func (s *scratch[T]) panelRows(n int) []int {
	for p := len(s.rows); p < n; p++ {
		s.rows = append(s.rows, p*tileCols)
	}
	return s.rows[:n]
}

var (
	scratch32 stock[scratch[float32]]
	scratch64 stock[scratch[float64]]
)

func scratchStock[T Float]() *stock[scratch[T]] {
	var s any = &scratch64
	if isF32[T]() {
		s = &scratch32
	}
	return s.(*stock[scratch[T]])
}

func getScratch[T Float]() *scratch[T]  { return scratchStock[T]().take() }
func putScratch[T Float](s *scratch[T]) { scratchStock[T]().put(s) }

// grow returns n elements of *buf, which it makes longer when needed.
func grow[E any](buf *[]E, n int) []E {
	if cap(*buf) < n {
		*buf = make([]E, n)
	}
	return (*buf)[:n]
}
