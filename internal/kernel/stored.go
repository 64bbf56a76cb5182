package kernel

import (
	"github.com/zerogap/zerogap/dtype"
)

// The functions named xxxStored are the kernels of the same name for operands in
// any training format (fp32, bf16 or fp16): they give the bits of [Widen], the
// kernel and [Round] over whole tensors. But they go through the elements in
// strips that stay in the first or second level of cache, so that float32 copies
// of tensors never reach memory.

// stripElements is how many elements of each operand an elementwise kernel
// widens at a time: a multiple of the lanes of sums.
const stripElements = 2048

// strip holds the float32 copies of one goroutine. Their contents are arbitrary
// when it is taken.
type strip struct {
	bufs  [4][]float32
	halfs []uint16
}

var strips stock[strip]

// read returns elements [lo, hi) of b: the memory of b if that is float32,
// otherwise copy k.
func (s *strip) read(k int, b dtype.Buffer, lo, hi int) []float32 {
	if b.DType == dtype.F32 {
		return b.F32[lo:hi]
	}
	v := grow(&s.bufs[k], hi-lo)
	widenSpan(v, b.Slice(lo, hi))
	return v
}

// write is read for elements that are to be overwritten, or with acc added to,
// and then committed.
func (s *strip) write(k int, b dtype.Buffer, lo, hi int, acc bool) []float32 {
	if acc || b.DType == dtype.F32 {
		return s.read(k, b, lo, hi)
	}
	return grow(&s.bufs[k], hi-lo)
}

// commit rounds what write returned to where it belongs.
func (s *strip) commit(b dtype.Buffer, lo int, v []float32) {
	if b.DType != dtype.F32 {
		roundSpan(b.Slice(lo, lo+len(v)), v)
	}
}

// roundTrip rounds v to format d and back, as if it had been stored.
func (s *strip) roundTrip(d dtype.DType, v []float32) {
	if d == dtype.F32 {
		return
	}
	b := dtype.Buffer{DType: d, U16: grow(&s.halfs, len(v))}
	roundSpan(b, v)
	widenSpan(v, b)
}

// eachStrip calls f for the strips of n elements.
func eachStrip(n int, f func(s *strip, lo, hi int)) {
	Parallel(n, grain, func(lo, hi int) {
		s := strips.take()
		defer strips.put(s)
		for ; lo < hi; lo += stripElements {
			f(s, lo, min(hi, lo+stripElements))
		}
	})
}

// eachPlane calls f for the strips of each of the given number of planes.
func eachPlane(planes, size int, f func(s *strip, plane, lo, hi int)) {
	Parallel(planes, grainOf(size), func(first, last int) {
		s := strips.take()
		defer strips.put(s)
		for p := first; p < last; p++ {
			for lo := p * size; lo < (p+1)*size; lo += stripElements {
				f(s, p, lo, min((p+1)*size, lo+stripElements))
			}
		}
	})
}

// checkStored panics unless every buffer has n elements in a training format.
func checkStored(op string, n int, bufs ...dtype.Buffer) {
	for _, b := range bufs {
		checkLen(op, n, b.Len())
		checkFormat(op, b.DType)
	}
}

// SiLUStored is [SiLU].
func SiLUStored(y, x dtype.Buffer) {
	checkStored("SiLUStored", x.Len(), y, x)
	eachStrip(x.Len(), func(s *strip, lo, hi int) {
		v := s.write(0, y, lo, hi, false)
		siluSpan(v, s.read(1, x, lo, hi))
		s.commit(y, lo, v)
	})
}

// SiLUBackwardStored is [SiLUBackward].
func SiLUBackwardStored(dx, x, dy dtype.Buffer, acc bool) {
	checkStored("SiLUBackwardStored", x.Len(), dx, x, dy)
	eachStrip(x.Len(), func(s *strip, lo, hi int) {
		v := s.write(0, dx, lo, hi, acc)
		siluBackwardSpan(v, s.read(1, x, lo, hi), s.read(2, dy, lo, hi), acc)
		s.commit(dx, lo, v)
	})
}

// AddStored is [Add].
func AddStored(dst, a, b dtype.Buffer) {
	checkStored("AddStored", dst.Len(), dst, a, b)
	eachStrip(dst.Len(), func(s *strip, lo, hi int) {
		v := s.write(0, dst, lo, hi, false)
		addSpan(v, s.read(1, a, lo, hi), s.read(2, b, lo, hi))
		s.commit(dst, lo, v)
	})
}

// AddChannelStored is [AddChannel].
func AddChannelStored(y, x dtype.Buffer, b []float32, n, c, hw int) {
	checkStored("AddChannelStored", n*c*hw, y, x)
	checkLen("AddChannelStored", n*c, len(b))
	eachPlane(n*c, hw, func(s *strip, plane, lo, hi int) {
		v := s.write(0, y, lo, hi, false)
		addScalarSpan(v, s.read(1, x, lo, hi), b[plane])
		s.commit(y, lo, v)
	})
}

// SumChannelStored is [SumChannel].
func SumChannelStored(db []float32, dy dtype.Buffer, n, c, hw int, acc bool) {
	checkLen("SumChannelStored", n*c, len(db))
	checkStored("SumChannelStored", n*c*hw, dy)
	Parallel(n*c, grainOf(hw), func(first, last int) {
		s := strips.take()
		defer strips.put(s)
		for p := first; p < last; p++ {
			var l lanes
			for lo := p * hw; lo < (p+1)*hw; lo += stripElements {
				sum(&l, s.read(0, dy, lo, min((p+1)*hw, lo+stripElements)))
			}
			store(&db[p], l.total(), acc)
		}
	})
}

// CopyBlocksStored is [CopyBlocks].
func CopyBlocksStored(dst dtype.Buffer, dstStride int, src dtype.Buffer, srcStride, count, size int, acc bool) {
	checkBlocks("CopyBlocksStored", dst.Len(), dstStride, src.Len(), srcStride, count, size)
	checkFormat("CopyBlocksStored", dst.DType)
	checkFormat("CopyBlocksStored", src.DType)
	Parallel(count, grainOf(size), func(lo, hi int) {
		s := strips.take()
		defer strips.put(s)
		for i := lo; i < hi; i++ {
			d, from := dst.Slice(i*dstStride, i*dstStride+size), src.Slice(i*srcStride, i*srcStride+size)
			if !acc && d.DType == from.DType {
				d.Copy(from)
				continue
			}
			for lo := 0; lo < size; lo += stripElements {
				hi := min(size, lo+stripElements)
				v, u := s.write(0, d, lo, hi, acc), s.read(1, from, lo, hi)
				if acc {
					addSpan(v, v, u)
				} else {
					copy(v, u)
				}
				s.commit(d, lo, v)
			}
		}
	})
}

// UpsampleNearestStored is [UpsampleNearest] for buffers of one format.
func UpsampleNearestStored(y, x dtype.Buffer, planes, h, w, oh, ow int) {
	if x.DType == dtype.F32 {
		UpsampleNearest(y.F32, x.F32, planes, h, w, oh, ow)
		return
	}
	checkStored("UpsampleNearestStored", planes*h*w, x)
	checkStored("UpsampleNearestStored", planes*oh*ow, y)
	upsampleNearest(y.U16, x.U16, planes, h, w, oh, ow)
}
