package kernel

import "runtime"

// Sums of a correlation are cut after as many input planes as make at most
// correlationDepth products, so that what a tile reads stays in the first level
// of cache. A strip of an image has at most stripSize elements, for the second.
const (
	correlationDepth = 320
	stripSize        = 1 << 17
)

// correlation computes out planes of dst for each image from its in planes of
// src. The result is the product of the weights [out, in*taps] and the matrix of
// what every tap of every plane shows to each output, which is read in place
// from a copy of the image with its padding.
type correlation[T Float] struct {
	images, in, out int
	window          window
	taps            []tap
	rows            int // of outputs in an image

	src, dst, bias                  []T
	stored                          *stored // instead of src and dst, or nil
	acc                             bool
	dstAt, dstPlane, dstRow, dstCol int // output (o, i, j) of an image is dst[dstAt + o*dstPlane + i*dstRow + j*dstCol]

	w         []T
	wOut, wIn int // weight of tap t from plane c to plane o is w[o*wOut + c*wIn + t.index]

	plan   rowPlan
	depth  int   // input planes of a block of the sum
	off    []int // where the copy has what each tap of the planes of a block shows
	a      []T   // packed weights, block after block
	direct bool  // src needs no copy
	strip  int   // rows of outputs in a unit of work
	plane  int   // distance of the planes of a strip, or of src if direct
}

func (c *correlation[T]) run() {
	if c.images == 0 || c.rows <= 0 || c.window.cols <= 0 {
		return
	}
	if len(c.taps) == 0 {
		c.clear()
		return
	}
	s := getScratch[T]()
	defer putScratch(s)
	c.prepare(s)
	strips := (c.rows + c.strip - 1) / c.strip
	work := c.strip * c.window.cols * c.in * c.out * len(c.taps)
	Parallel(c.images*strips, (minWork+work-1)/work, func(lo, hi int) {
		s := getScratch[T]()
		defer putScratch(s)
		cleared := -1 // the first row of the strip for which the copy is clear
		for u := lo; u < hi; u++ {
			first := u / c.images * c.strip
			c.compute(s, u%c.images, first, min(c.strip, c.rows-first), first != cleared)
			cleared = first
		}
	})
}

// clear makes the result of an empty sum.
func (c *correlation[T]) clear() {
	if c.acc {
		return
	}
	for p := range c.images * c.out {
		for i := range c.rows {
			at := c.dstAt + p*c.dstPlane + i*c.dstRow
			for j := range c.window.cols {
				c.dst[at+j*c.dstCol] = 0
			}
		}
	}
}

// prepare plans the work and packs the weights.
func (c *correlation[T]) prepare(s *scratch[T]) {
	v, taps := c.window, len(c.taps)
	c.plan = planRows(c.out)
	blocks := (c.in*taps + correlationDepth - 1) / correlationDepth
	c.depth = (c.in + blocks - 1) / blocks
	c.direct = v.whole(c.rows)

	c.strip = c.rows
	for c.strip > 1 && (c.in*v.height(c.strip)*v.line() > stripSize || c.images*((c.rows+c.strip-1)/c.strip) < runtime.GOMAXPROCS(0)) {
		c.strip = (c.strip + 1) / 2
	}
	c.plane = v.height(c.strip) * v.line()
	if c.direct {
		c.plane = v.h * v.w
	}
	c.off = grow(&s.off, c.depth*taps)
	for i := range c.depth {
		for t, tap := range c.taps {
			c.off[i*taps+t] = i*c.plane + v.offset(tap)
		}
	}
	if c.bias != nil {
		bias := grow(&s.c, c.plan.padded())
		clear(bias[copy(bias, c.bias):])
		c.bias = bias
	}
	c.a = grow(&s.a, c.plan.padded()*c.in*taps)
	Parallel(c.plan.panels(), max(1, minWork/(tileRows*c.in*taps)), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			c.pack(p)
		}
	})
}

// pack copies the weights of one panel of output planes, for all blocks.
func (c *correlation[T]) pack(panel int) {
	row, height := c.plan.panel(panel)
	for first := 0; first < c.in; first += c.depth {
		planes := min(c.depth, c.in-first)
		to := c.a[(c.plan.padded()*first+row*planes)*len(c.taps):][:height*planes*len(c.taps)]
		if c.inOrder() {
			transpose(to, height, c.w[row*c.wOut+first*c.wIn:], c.wOut, min(height, c.out-row), planes*len(c.taps))
			continue
		}
		for r := range height {
			if row+r >= c.out {
				for i := r; i < len(to); i += height {
					to[i] = 0
				}
				continue
			}
			i := r
			for p := range planes {
				w := c.w[(row+r)*c.wOut+(first+p)*c.wIn:]
				for _, t := range c.taps {
					to[i] = w[t.index]
					i += height
				}
			}
		}
	}
}

// inOrder reports whether the weights of an output lie in the order of the sum.
func (c *correlation[T]) inOrder() bool {
	for i, t := range c.taps {
		if t.index != i {
			return false
		}
	}
	return c.wIn == len(c.taps)
}

// compute fills rows [first, first+rows) of the outputs of image n.
func (c *correlation[T]) compute(s *scratch[T], n, first, rows int, unclear bool) {
	v := c.window
	src, dst := c.image(s, n, first, rows)
	b := src
	if c.direct {
		b = src[first*v.w:]
	} else {
		// Groups of outputs at the end of a row read on into what follows.
		b = grow(&s.b, c.in*c.plane+halfCols)
		if unclear {
			clear(b)
		}
		copyPlanes(v, b, c.plane, src, c.in, first, rows)
	}
	for p := 0; p < c.in; p += c.depth {
		planes := min(c.depth, c.in-p)
		a := c.a[c.plan.padded()*p*len(c.taps):]
		off := c.off[:planes*len(c.taps)]
		to := target[T]{c: dst, ld: c.dstPlane, step: c.dstCol, acc: c.acc || p > 0}
		if p == 0 {
			to.bias = c.bias
		}
		c.block(a, operand[T]{b: b[p*c.plane:], off: off}, to, first, rows)
	}
	c.commit(dst, n, first, rows)
}

// block adds the products of one block of the sum. It goes through the outputs
// by two pairs of groups of up to halfCols of a row.
func (c *correlation[T]) block(a []T, b operand[T], to target[T], first, rows int) {
	v := c.window
	inRow := (v.cols + halfCols - 1) / halfCols
	line := v.step * v.line()
	for g := 0; g < rows*inRow; g += len(b.at) {
		for h := range b.at {
			if g+h >= rows*inRow {
				b.at[h], to.width[h] = b.at[0], 0
				continue
			}
			i, j := (g+h)/inRow, (g+h)%inRow*halfCols
			b.at[h] = i*line + j
			to.at[h] = c.dstAt + (first+i)*c.dstRow + j*c.dstCol
			to.width[h] = min(halfCols, v.cols-j)
		}
		multiplyColumn(c.plan, a, b, to)
	}
}
