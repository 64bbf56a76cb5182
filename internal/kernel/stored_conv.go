package kernel

import "github.com/zerogap/zerogap/dtype"

// stored holds the two image operands of a convolution in their own formats.
type stored struct{ src, dst dtype.Buffer }

func (s *stored) widenSrc(to []float32, at int) { widenSpan(to, s.src.Slice(at, at+len(to))) }
func (s *stored) widenDst(to []float32, at int) { widenSpan(to, s.dst.Slice(at, at+len(to))) }

// image returns the planes of image n of src and dst, of which those rows are
// there that the given rows of outputs concern.
func (c *correlation[T]) image(s *scratch[T], n, first, rows int) (src, dst []T) {
	v := c.window
	in, out := v.h*v.w, c.dstPlane
	if c.stored == nil {
		return c.src[n*c.in*in:][:c.in*in], c.dst[n*c.out*out:][:c.out*out]
	}
	src, dst = grow(&s.x, c.in*in), grow(&s.y, c.out*out)
	lo := max(0, v.top+first*v.step)
	if hi := min(v.h, v.top+first*v.step+v.height(rows)); lo == 0 && hi == v.h {
		c.stored.widenSrc(f32(src), n*c.in*in)
	} else if lo < hi {
		for p := range c.in {
			c.stored.widenSrc(f32(src[p*in+lo*v.w:p*in+hi*v.w]), (n*c.in+p)*in+lo*v.w)
		}
	}
	if c.acc {
		for p := range c.out {
			c.stored.widenDst(f32(dst[p*out+first*c.dstRow:][:rows*c.dstRow]), (n*c.out+p)*out+first*c.dstRow)
		}
	}
	return src, dst
}

// commit rounds rows of the planes that image returned to dst.
func (c *correlation[T]) commit(dst []T, n, first, rows int) {
	if c.stored == nil {
		return
	}
	for p := range c.out {
		at := (n*c.out+p)*c.dstPlane + first*c.dstRow
		roundSpan(c.stored.dst.Slice(at, at+rows*c.dstRow), f32(dst[p*c.dstPlane+first*c.dstRow:][:rows*c.dstRow]))
	}
}

// ConvForwardStored is [ConvForward]; it widens and rounds an image at a time.
func ConvForwardStored(s Conv, x dtype.Buffer, w, bias []float32, y dtype.Buffer) {
	s.check("ConvForwardStored", x.Len(), len(w), y.Len())
	checkStored("ConvForwardStored", x.Len(), x)
	checkStored("ConvForwardStored", y.Len(), y)
	if bias != nil {
		checkLen("ConvForwardStored", s.O, len(bias))
	}
	c := forward[float32](s)
	c.stored, c.w, c.bias = &stored{x, y}, w, bias
	c.run()
}

// ConvBackwardInputStored is [ConvBackwardInput] for stride 1; it widens and
// rounds an image at a time.
func ConvBackwardInputStored(s Conv, w []float32, dy, dx dtype.Buffer, acc bool) {
	s.check("ConvBackwardInputStored", dx.Len(), len(w), dy.Len())
	checkLen("ConvBackwardInputStored: stride", 1, s.Stride)
	checkStored("ConvBackwardInputStored", dy.Len(), dy)
	checkStored("ConvBackwardInputStored", dx.Len(), dx)
	if s.N*s.H*s.W == 0 {
		return
	}
	c := backwardInput[float32](s, 0, 0)
	c.stored, c.w, c.acc = &stored{dy, dx}, w, acc
	c.run()
}

// ConvBackwardWeightStored is [ConvBackwardWeight] without the bias; it widens
// the images of a step at a time.
func ConvBackwardWeightStored(s Conv, x, dy dtype.Buffer, dw []float32, acc bool) {
	s.check("ConvBackwardWeightStored", x.Len(), len(dw), dy.Len())
	checkStored("ConvBackwardWeightStored", x.Len(), x)
	checkStored("ConvBackwardWeightStored", dy.Len(), dy)
	if dy.Len() == 0 {
		if !acc {
			clear(dw)
		}
		return
	}
	g := weightGradient[float32]{Conv: s, window: s.window(), taps: s.taps(), stored: &stored{x, dy}, dw: dw, acc: acc}
	g.run()
}
