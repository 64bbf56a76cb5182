package kernel

// The tile is the block of results that stays in registers while the sum over k
// runs: tileRows rows, or four at the end of a matrix, by two halves of halfCols
// columns.
const (
	tileRows = 6
	halfCols = 8
	tileCols = 2 * halfCols
)

// rowPlan covers rows of a matrix with panels of six rows, and then of four so
// that at most one row is empty (three, if there is only one).
type rowPlan struct{ rows, sixes, fours int }

func planRows(rows int) rowPlan {
	even := max(4, rows+rows&1)
	switch even % 6 {
	case 2:
		return rowPlan{rows, even/6 - 1, 2}
	case 4:
		return rowPlan{rows, even / 6, 1}
	}
	return rowPlan{rows, even / 6, 0}
}

// padded returns the number of rows of all panels.
func (p rowPlan) padded() int { return 6*p.sixes + 4*p.fours }

// panels returns the number of panels.
func (p rowPlan) panels() int { return p.sixes + p.fours }

// panel returns the first row and the height of panel i.
func (p rowPlan) panel(i int) (row, height int) {
	if i < p.sixes {
		return 6 * i, 6
	}
	return 6*p.sixes + 4*(i-p.sixes), 4
}

// target says where the columns of a tile belong in the result: its halves begin
// at c[at[0]] and c[at[1]], have width[0] and width[1] columns that are step
// apart, and rows are ld apart.
type target[T Float] struct {
	c         []T
	at, width [2]int
	ld, step  int
	acc       bool // add to what is there
	bias      []T  // added to every element of a row of tiles, or nil
}

// below returns the target of the tiles that begin the given number of rows below.
func (c target[T]) below(rows int) target[T] {
	c.at[0] += rows * c.ld
	c.at[1] += rows * c.ld
	if c.bias != nil {
		c.bias = c.bias[rows:]
	}
	return c
}

// operand is the right-hand side of a tile: element (p, j) of half h is
// b[off[p]+at[h]+j].
type operand[T Float] struct {
	b   []T
	off []int
	at  [2]int
}

// multiplyColumn computes one column of tiles, all rows of the plan. a holds the
// panels one after the other, each [k][height], with rows beyond the last zero.
func multiplyColumn[T Float](p rowPlan, a []T, b operand[T], c target[T]) {
	k := len(b.off)
	sixes, fours := 0, 0 // panels that can be written in place
	if c.step == 1 && c.width == [2]int{halfCols, halfCols} {
		sixes, fours = p.sixes, p.fours
		if p.rows < p.padded() {
			if fours > 0 {
				fours--
			} else {
				sixes--
			}
		}
	}
	if sixes > 0 {
		multiply(6, sixes, a, b, c)
	}
	for i := sixes; i < p.sixes; i++ {
		multiplyAside(p.rows-6*i, 6, a[6*i*k:], b, c.below(6*i))
	}
	if fours > 0 {
		row := 6 * p.sixes
		multiply(4, fours, a[row*k:], b, c.below(row))
	}
	for i := p.sixes + fours; i < p.panels(); i++ {
		row, _ := p.panel(i)
		multiplyAside(p.rows-row, 4, a[row*k:], b, c.below(row))
	}
}

// multiplyAside computes a tile that cannot be written in place, because it
// reaches beyond the given rows or the columns of the result are not contiguous.
func multiplyAside[T Float](rows, height int, a []T, b operand[T], c target[T]) {
	var tile [tileRows * tileCols]T
	multiply(height, 1, a, b, target[T]{c: tile[:], at: [2]int{0, halfCols}, ld: tileCols, bias: c.bias})
	for half, at := range c.at {
		width := c.width[half]
		for i := range min(height, rows) {
			if width > 0 {
				putRow(c.c[at+i*c.ld:], tile[i*tileCols+half*halfCols:][:width], c.step, c.acc)
			}
		}
	}
}

// putRow writes from to every step-th element of to, or adds it.
func putRow[T Float](to, from []T, step int, acc bool) {
	to = to[:(len(from)-1)*step+1]
	switch {
	case acc:
		for j, v := range from {
			to[j*step] += v
		}
	case step == 1:
		copy(to, from)
	default:
		for j, v := range from {
			to[j*step] = v
		}
	}
}

// multiply computes count tiles of the given height, one below the other, in
// place.
func multiply[T Float](height, count int, a []T, b operand[T], c target[T]) {
	if multiply32(height, count, f32(a), b.off, f32(b.b), b.at, f32(c.c), c.at, c.ld, c.acc, f32(c.bias)) {
		return
	}
	for t := range count {
		multiplyPlain(height, a[t*height*len(b.off):], b, c.below(t*height))
	}
}

// multiplyPlain computes one tile in blocks of two rows by four columns, which
// fit the registers of every architecture.
func multiplyPlain[T Float](height int, a []T, b operand[T], c target[T]) {
	for i := 0; i < height; i += 2 {
		for j := 0; j < tileCols; j += 4 {
			half, col := j/halfCols, j%halfCols
			sum := dot2x4(height, a[i:], b.b[b.at[half]+col:], b.off)
			for r := range 2 {
				to := c.c[c.at[half]+(i+r)*c.ld+col:][:4]
				for q, v := range sum[r] {
					if c.bias != nil {
						v += c.bias[i+r]
					}
					if c.acc {
						v += to[q]
					}
					to[q] = v
				}
			}
		}
	}
}

// dot2x4 returns the sums over p of a[p*height+i] * b[off[p]+j] for two i and
// four j.
func dot2x4[T Float](height int, a, b []T, off []int) (s [2][4]T) {
	var s00, s01, s02, s03, s10, s11, s12, s13 T
	for p, o := range off {
		x, y := (*[2]T)(a[p*height:]), (*[4]T)(b[o:])
		s00 += T(x[0] * y[0])
		s01 += T(x[0] * y[1])
		s02 += T(x[0] * y[2])
		s03 += T(x[0] * y[3])
		s10 += T(x[1] * y[0])
		s11 += T(x[1] * y[1])
		s12 += T(x[1] * y[2])
		s13 += T(x[1] * y[3])
	}
	return [2][4]T{{s00, s01, s02, s03}, {s10, s11, s12, s13}}
}
