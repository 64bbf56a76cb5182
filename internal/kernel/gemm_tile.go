package kernel

// The tile is the block of results that stays in registers while the sum over k
// runs: tileRows rows, or four at the end of a matrix, by one or two pairs of
// groups of halfCols columns. Which it is cannot be seen in the result.
const (
	tileRows = 6
	halfCols = 8
	tileCols = 2 * halfCols
	wideCols = 2 * tileCols
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

// groups holds something for each of up to four groups of columns.
type groups [4]int

// pair returns groups 2i and 2i+1 alone.
func (g groups) pair(i int) groups { return groups{g[2*i], g[2*i+1]} }

// target says where the columns of a tile belong in the result: group h begins at
// c[at[h]] and has width[h] columns that are step apart, and rows are ld apart.
// The second pair may be empty.
type target[T Float] struct {
	c         []T
	at, width groups
	ld, step  int
	acc       bool // add to what is there
	bias      []T  // added to every element of a row of tiles, or nil
}

// pairs returns how many pairs of groups there are.
func (c target[T]) pairs() int {
	if c.width[2] > 0 {
		return 2
	}
	return 1
}

// full reports whether all groups can be written in place.
func (c target[T]) full() bool {
	const n = halfCols
	return c.step == 1 && (c.width == groups{n, n, n, n} || c.width == groups{n, n})
}

// below returns the target of the tiles that begin the given number of rows below.
func (c target[T]) below(rows int) target[T] {
	for h := range c.at {
		c.at[h] += rows * c.ld
	}
	if c.bias != nil {
		c.bias = c.bias[rows:]
	}
	return c
}

// operand is the right-hand side of a tile: element (p, j) of group h is
// b[off[p]+at[h]+j].
type operand[T Float] struct {
	b   []T
	off []int
	at  groups
}

// multiplyColumn computes one column of tiles, all rows of the plan. a holds the
// panels one after the other, each [k][height], with rows beyond the last zero.
func multiplyColumn[T Float](p rowPlan, a []T, b operand[T], c target[T]) {
	if c.pairs() == 1 || c.full() && hasWide {
		multiplyTiles(p, a, b, c)
		return
	}
	for i := range 2 {
		bi, ci := b, c
		bi.at, ci.at, ci.width = b.at.pair(i), c.at.pair(i), c.width.pair(i)
		multiplyTiles(p, a, bi, ci)
	}
}

// multiplyTiles is multiplyColumn for what the kernels take at once.
func multiplyTiles[T Float](p rowPlan, a []T, b operand[T], c target[T]) {
	k := len(b.off)
	sixes, fours := 0, 0 // panels that can be written in place
	if c.full() {
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
	var tile [tileRows * wideCols]T
	aside := target[T]{c: tile[:], ld: wideCols, step: 1, bias: c.bias}
	for h := range 2 * c.pairs() {
		aside.at[h], aside.width[h] = h*halfCols, halfCols
	}
	multiply(height, 1, a, b, aside)
	for h, width := range c.width {
		for i := range min(height, rows) {
			if width > 0 {
				putRow(c.c[c.at[h]+i*c.ld:], tile[i*wideCols+h*halfCols:][:width], c.step, c.acc)
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
	pairs := c.pairs()
	if pairs == 2 && multiplyWide32(height, count, f32(a), b.off, f32(b.b), &b.at, f32(c.c), &c.at, c.ld, c.acc, f32(c.bias)) {
		return
	}
	for i := range pairs {
		from, to := [2]int(b.at[2*i:]), [2]int(c.at[2*i:])
		if multiply32(height, count, f32(a), b.off, f32(b.b), from, f32(c.c), to, c.ld, c.acc, f32(c.bias)) {
			continue
		}
		for t := range count {
			multiplyPlain(height, a[t*height*len(b.off):], b, c.below(t*height), i)
		}
	}
}

// multiplyPlain computes one pair of a tile in blocks of two rows by four
// columns, which fit the registers of every architecture.
func multiplyPlain[T Float](height int, a []T, b operand[T], c target[T], pair int) {
	for i := 0; i < height; i += 2 {
		for j := 0; j < tileCols; j += 4 {
			h, col := 2*pair+j/halfCols, j%halfCols
			sum := dot2x4(height, a[i:], b.b[b.at[h]+col:], b.off)
			for r := range 2 {
				to := c.c[c.at[h]+(i+r)*c.ld+col:][:4]
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
