package kernel

import "fmt"

// Conv is the shape of a two-dimensional convolution as networks mean it, a
// cross-correlation: of x [N,C,H,W] with w [O,C,KH,KW] gives y [N,O,OutH,OutW],
//
//	y[n,o,i,j] = sum over c, p, q of w[o,c,p,q] * x[n,c,i*Stride+p-PadTop,j*Stride+q-PadLeft]
//
// where x is zero beyond its edges. PadBottom and PadRight only decide how large
// the output is.
//
// The sum of every output is taken in one order that depends on the shape alone.
type Conv struct {
	N, C, H, W, O, KH, KW, Stride        int
	PadTop, PadLeft, PadBottom, PadRight int
}

// OutH returns the height of the output, which is zero or less if the padded
// image is lower than the kernel.
func (s Conv) OutH() int { return outSize(s.H+s.PadTop+s.PadBottom, s.KH, s.Stride) }

// OutW returns the width of the output.
func (s Conv) OutW() int { return outSize(s.W+s.PadLeft+s.PadRight, s.KW, s.Stride) }

func outSize(size, kernel, stride int) int {
	if size < kernel {
		return 0
	}
	return (size-kernel)/stride + 1
}

// ConvForward computes y from x, w and bias [O], which may be nil. y must not
// overlap its inputs.
func ConvForward[T Float](s Conv, x, w, bias, y []T) {
	s.check("ConvForward", len(x), len(w), len(y))
	if bias != nil {
		checkLen("ConvForward", s.O, len(bias))
	}
	c := forward[T](s)
	c.src, c.dst, c.w, c.bias = x, y, w, bias
	c.run()
}

// forward returns the forward pass without its operands.
func forward[T Float](s Conv) correlation[T] {
	return correlation[T]{
		images: s.N, in: s.C, out: s.O,
		window: s.window(), taps: s.taps(), rows: s.OutH(),
		dstPlane: s.OutH() * s.OutW(), dstRow: s.OutW(), dstCol: 1,
		wOut: s.C * s.KH * s.KW, wIn: s.KH * s.KW,
	}
}

// ConvBackwardInput computes the gradient dx of x from w and the gradient dy of
// y, or with acc adds it to dx. dx must not overlap its inputs.
func ConvBackwardInput[T Float](s Conv, w, dy, dx []T, acc bool) {
	s.check("ConvBackwardInput", len(dx), len(w), len(dy))
	// Rows of dx that are equal modulo the stride meet the same rows of the kernel,
	// and so do columns: each class is a correlation of dy with those taps, of
	// stride 1, whose results lie Stride apart.
	for i := range min(s.Stride, s.H) {
		for j := range min(s.Stride, s.W) {
			c := backwardInput[T](s, i, j)
			c.src, c.dst, c.w, c.acc = dy, dx, w, acc
			c.run()
		}
	}
}

// backwardInput returns, without its operands, the part of the input gradient for
// the elements whose rows and columns are i and j modulo the stride.
func backwardInput[T Float](s Conv, i, j int) correlation[T] {
	vertical := tapsOf(s.KH, s.Stride, i+s.PadTop)
	horizontal := tapsOf(s.KW, s.Stride, j+s.PadLeft)
	return correlation[T]{
		images: s.N, in: s.O, out: s.C,
		window: window{
			h: s.OutH(), w: s.OutW(), top: vertical.first, left: horizontal.first, step: 1,
			spanH: vertical.span, spanW: horizontal.span, cols: (s.W - j + s.Stride - 1) / s.Stride,
		},
		taps: cross(vertical, horizontal, s.KW), rows: (s.H - i + s.Stride - 1) / s.Stride,
		dstAt: i*s.W + j, dstPlane: s.H * s.W, dstRow: s.Stride * s.W, dstCol: s.Stride,
		wOut: s.KH * s.KW, wIn: s.C * s.KH * s.KW,
	}
}

// check panics unless the lengths fit the shape.
func (s Conv) check(op string, x, w, y int) {
	if min(s.C, s.O, s.KH, s.KW, s.Stride) < 1 || min(s.N, s.H, s.W, s.PadTop, s.PadLeft, s.PadBottom, s.PadRight) < 0 ||
		x != s.N*s.C*s.H*s.W || w != s.O*s.C*s.KH*s.KW || y != s.N*s.O*s.OutH()*s.OutW() {
		panic(fmt.Sprintf("kernel: %s: x has %d, w %d and y %d elements, which does not fit %+v", op, x, w, y, s))
	}
}

// tap is an element of the kernel: where it lies in the window below it, and its
// index in a [KH,KW] kernel.
type tap struct{ y, x, index int }

// taps returns all elements of the kernel.
func (s Conv) taps() []tap {
	taps := make([]tap, 0, s.KH*s.KW)
	for y := range s.KH {
		for x := range s.KW {
			taps = append(taps, tap{y, x, y*s.KW + x})
		}
	}
	return taps
}

// window returns the part of x that the kernel covers.
func (s Conv) window() window {
	return window{h: s.H, w: s.W, top: -s.PadTop, left: -s.PadLeft, step: s.Stride, spanH: s.KH, spanW: s.KW, cols: s.OutW()}
}

// axis holds, of one dimension of the kernel, the taps that one class of
// coordinates of dx meets: coordinate number i of the class meets tap k at
// element first + i + at[k] of dy. at is -1 for the other taps.
type axis struct {
	first, span int
	at          []int
}

// tapsOf returns the axis for the coordinates of dx whose distance from the
// beginning of the padded image is start modulo stride: dx at coordinate
// start + stride*i meets tap k at (start - k)/stride + i of dy, if that divides.
func tapsOf(size, stride, start int) axis {
	a := axis{at: make([]int, size)}
	last := start % stride // the lowest tap of the class
	if last < size {
		a.first = (start - (last + (size-1-last)/stride*stride)) / stride
		a.span = (start-last)/stride - a.first + 1
	}
	for k := range a.at {
		a.at[k] = -1
		if (start-k)%stride == 0 {
			a.at[k] = (start-k)/stride - a.first
		}
	}
	return a
}

// cross returns the taps of a kernel of the given width that both axes meet.
func cross(vertical, horizontal axis, width int) []tap {
	var taps []tap
	for p, y := range vertical.at {
		for q, x := range horizontal.at {
			if y >= 0 && x >= 0 {
				taps = append(taps, tap{y, x, p*width + q})
			}
		}
	}
	return taps
}
