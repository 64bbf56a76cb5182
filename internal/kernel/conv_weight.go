package kernel

// gradientDepth is about how many outputs enter a tile of a weight gradient
// before it is added to the sum: a packed panel of dy of that depth stays in the
// first level of cache.
const gradientDepth = 256

// ConvBackwardWeight computes the gradients dw of w and db [O] of the bias, which
// may be nil, from x and the gradient dy of y, or with acc adds them.
func ConvBackwardWeight[T Float](s Conv, x, dy, dw, db []T, acc bool) {
	s.check("ConvBackwardWeight", len(x), len(dw), len(dy))
	outs := s.OutH() * s.OutW()
	if db != nil {
		checkLen("ConvBackwardWeight", s.O, len(db))
		Parallel(s.O, grainOf(s.N*outs), func(lo, hi int) {
			for o := lo; o < hi; o++ {
				var l lanes
				for n := range s.N {
					sum(&l, dy[(n*s.O+o)*outs:][:outs])
				}
				store(&db[o], l.total(), acc)
			}
		})
	}
	if s.N*outs == 0 {
		if !acc {
			clear(dw)
		}
		return
	}
	g := weightGradient[T]{Conv: s, window: s.window(), taps: s.taps(), x: x, dy: dy, dw: dw, acc: acc}
	g.run()
}

func (g *weightGradient[T]) run() {
	s, outs, dw := g.Conv, g.OutH()*g.OutW(), g.dw
	g.plan()
	panels := (s.O + tileCols - 1) / tileCols
	// To pack an output plane takes about twice the time of copying an input plane.
	byOut, byIn := grid(workers(s.N*outs*len(dw)), side{panels, 2 * tileCols}, side{s.C, 1})
	Parallel(byOut*byIn, 1, func(lo, hi int) {
		for cell := lo; cell < hi; cell++ {
			o0, o1 := share(s.O, tileCols, byOut, cell/byIn)
			c0, c1 := share(s.C, 1, byIn, cell%byIn)
			g.compute(o0, o1, c0, c1)
		}
	})
}

// weightGradient computes the transpose of dw, whose rows are the taps of the
// input planes and whose columns are output planes: the product of what each tap
// shows to all outputs of all images, read in place from copies of the images
// with their padding, and of dy.
type weightGradient[T Float] struct {
	Conv
	window    window
	taps      []tap
	x, dy, dw []T
	stored    *stored // instead of x and dy, or nil
	acc       bool

	images, rows int // at most so many images and rows of outputs at a time
}

// plan cuts the sum over all outputs, by the shape alone.
func (g *weightGradient[T]) plan() {
	g.rows = min(g.OutH(), max(1, gradientDepth/g.OutW()))
	g.images = 1
	if g.rows == g.OutH() {
		g.images = max(1, min(g.N, gradientDepth/(g.OutH()*g.OutW())))
	}
}

// pixels says how the outputs of a step lie in the copies of a plane.
type pixels struct{ images, rows, cols, imageStep, rowStep int }

func (s pixels) count() int { return s.images * s.rows * s.cols }

// compute fills the part of dw from input planes [c0,c1) to output planes [o0,o1).
func (g *weightGradient[T]) compute(o0, o1, c0, c1 int) {
	s := getScratch[T]()
	defer putScratch(s)
	plane, imageStep := g.images*g.window.height(g.rows)*g.window.line(), g.window.height(g.rows)*g.window.line()
	if g.window.whole(g.OutH()) {
		plane, imageStep = g.H*g.W, g.xStep(c1-c0)
	}
	plan := planRows((c1 - c0) * len(g.taps))
	off := grow(&s.off, plan.padded())
	clear(off)
	for i := range plan.rows {
		off[i] = i/len(g.taps)*plane + g.window.offset(g.taps[i%len(g.taps)])
	}
	sums := grow(&s.c, plan.padded()*(o1-o0+tileCols-1)/tileCols*tileCols)
	clear(sums)
	for n := 0; n < g.N; n += g.images {
		x, dy := g.planes(s, n, o0, o1, c0, c1)
		for first := 0; first < g.OutH(); first += g.rows {
			p := pixels{min(g.images, g.N-n), min(g.rows, g.OutH()-first), g.OutW(), imageStep, g.window.step * g.window.line()}
			a := g.copyInput(s, p, x, n, first, c1-c0)
			b := g.packOutput(s, p, dy, first, o1-o0)
			for o := 0; o < o1-o0; o += tileCols {
				g.addStep(p, plan, off, a, b[o*p.count():], sums[o*plan.padded():])
			}
		}
	}
	g.write(sums, plan, o0, o1, c0)
}

// planes returns the planes [c0,c1) of x and [o0,o1) of dy from image n on.
func (g *weightGradient[T]) planes(s *scratch[T], n, o0, o1, c0, c1 int) (x, dy []T) {
	in, out := g.H*g.W, g.OutH()*g.OutW()
	if g.stored == nil {
		return g.x[(n*g.C+c0)*in:], g.dy[(n*g.O+o0)*out:]
	}
	images := min(g.images, g.N-n)
	x, dy = grow(&s.x, images*(c1-c0)*in), grow(&s.y, images*(o1-o0)*out)
	for i := range images {
		g.stored.widenSrc(f32(x[i*(c1-c0)*in:][:(c1-c0)*in]), ((n+i)*g.C+c0)*in)
		g.stored.widenDst(f32(dy[i*(o1-o0)*out:][:(o1-o0)*out]), ((n+i)*g.O+o0)*out)
	}
	return x, dy
}

// xStep returns the distance of images in what planes returns of x.
func (g *weightGradient[T]) xStep(planes int) int {
	if g.stored == nil {
		planes = g.C
	}
	return planes * g.H * g.W
}

// copyInput copies what the taps show of the given planes of x, each with all
// images of the step. If that is all there is, it returns x itself.
func (g *weightGradient[T]) copyInput(s *scratch[T], p pixels, x []T, n, first, planes int) []T {
	if g.window.whole(g.OutH()) {
		return x[first*g.W:]
	}
	a := grow(&s.a, planes*g.images*p.imageStep)
	if g.rows < g.OutH() || n == 0 {
		clear(a)
	}
	for i := range p.images {
		copyPlanes(g.window, a[i*p.imageStep:], g.images*p.imageStep, x[i*g.xStep(planes):], planes, first, p.rows)
	}
	return a
}

// packOutput packs the given planes of dy into panels of [outputs][tileCols].
func (g *weightGradient[T]) packOutput(s *scratch[T], p pixels, dy []T, first, planes int) []T {
	plane, depth, image := g.OutH()*g.OutW(), p.rows*p.cols, planes
	if g.stored == nil {
		image = g.O
	}
	b := grow(&s.b, (planes+tileCols-1)/tileCols*tileCols*p.count())
	for o := 0; o < planes; o += tileCols {
		for i := range p.images {
			to := b[o*p.count()+i*depth*tileCols:]
			transpose(to, tileCols, dy[(i*image+o)*plane+first*p.cols:], plane, min(tileCols, planes-o), depth)
		}
	}
	return b
}

// addStep adds the outputs of one step to the sums of one panel of output planes.
func (g *weightGradient[T]) addStep(p pixels, plan rowPlan, off []int, a, b, sums []T) {
	for row, height := 0, 0; row < plan.padded(); row += height {
		height = plan.gradientRows(row)
		at, to := off[row:row+height], sums[row*tileCols:]
		if !gradient32(p, f32(a), at, f32(b), f32(to)) {
			gradientPlain(p, a, at, b, to)
		}
	}
}

// gradientRows returns how many rows from the given one on enter a tile of a
// weight gradient: one panel or, where the wide kernel takes them, two.
func (p rowPlan) gradientRows(row int) int {
	sixes := 6 * p.sixes
	switch {
	case hasWide && row+12 <= sixes:
		return 12
	case row < sixes:
		return 6
	case hasWide && row+8 <= p.padded():
		return 8
	}
	return 4
}

// write stores the sums, whose panels are [taps of planes][tileCols].
func (g *weightGradient[T]) write(sums []T, plan rowPlan, o0, o1, c0 int) {
	taps := len(g.taps)
	for o := o0; o < o1; o++ {
		from := sums[(o-o0)/tileCols*tileCols*plan.padded()+(o-o0)%tileCols:]
		to := g.dw[(o*g.C+c0)*taps:][:plan.rows]
		for i := range to {
			if g.acc {
				to[i] += from[i*tileCols]
			} else {
				to[i] = from[i*tileCols]
			}
		}
	}
}

// gradientPlain adds to c[i*tileCols+j] the sum over all outputs of a, from
// off[i] on, times b, in blocks of two rows by four columns.
func gradientPlain[T Float](p pixels, a []T, off []int, b, c []T) {
	for i := 0; i < len(off); i += 2 {
		for j := 0; j < tileCols; j += 4 {
			sum := dotPixels2x4(p, a[off[i]:], a[off[i+1]:], b[j:])
			for r := range 2 {
				to := c[(i+r)*tileCols+j:][:4]
				for q := range to {
					to[q] += sum[r][q]
				}
			}
		}
	}
}

// dotPixels2x4 returns the sums over all outputs of two rows of a times four
// columns of b.
func dotPixels2x4[T Float](p pixels, a0, a1, b []T) (s [2][4]T) {
	var s00, s01, s02, s03, s10, s11, s12, s13 T
	at := 0
	for n := range p.images {
		for y := range p.rows {
			from := n*p.imageStep + y*p.rowStep
			r0, r1 := a0[from:][:p.cols], a1[from:][:p.cols]
			for x, u := range r0 {
				v, w := r1[x], (*[4]T)(b[at:])
				s00 += T(u * w[0])
				s01 += T(u * w[1])
				s02 += T(u * w[2])
				s03 += T(u * w[3])
				s10 += T(v * w[0])
				s11 += T(v * w[1])
				s12 += T(v * w[2])
				s13 += T(v * w[3])
				at += tileCols
			}
		}
	}
	return [2][4]T{{s00, s01, s02, s03}, {s10, s11, s12, s13}}
}
