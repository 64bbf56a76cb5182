package kernel

import "fmt"

// CopyBlocks copies count blocks of size elements from src to dst, or adds them
// with acc: block i from i*srcStride to i*dstStride. Concatenation and splitting
// along an axis, and their gradients, are such copies. dst and src must not
// overlap.
func CopyBlocks[T Float](dst []T, dstStride int, src []T, srcStride, count, size int, acc bool) {
	checkBlocks("CopyBlocks", len(dst), dstStride, len(src), srcStride, count, size)
	Parallel(count, grainOf(size), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d, s := dst[i*dstStride:][:size], src[i*srcStride:][:size]
			if acc {
				addSpan(d, d, s)
			} else {
				copy(d, s)
			}
		}
	})
}

func checkBlocks(op string, dst, dstStride, src, srcStride, count, size int) {
	if count > 0 && ((count-1)*dstStride+size > dst || (count-1)*srcStride+size > src) {
		panic(fmt.Sprintf("kernel: %s: %d blocks of %d in strides of %d and %d do not fit %d and %d elements",
			op, count, size, dstStride, srcStride, dst, src))
	}
}

// tile is the side of the squares that Transpose2D moves: 16 rows of 16
// float32 are one cache line each way.
const tile = 16

// Transpose2D writes the transpose of each matrix of src [batch, rows, cols]
// into dst [batch, cols, rows]. dst and src must not overlap.
func Transpose2D[T Float](dst, src []T, batch, rows, cols int) {
	checkLen("Transpose2D", batch*rows*cols, len(dst), len(src))
	strips := (cols + tile - 1) / tile
	Parallel(batch*strips, grainOf(2*rows*tile), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			at := i / strips * rows * cols
			j := i % strips * tile
			transposeStrip(dst[at:][:rows*cols], src[at:][:rows*cols], rows, cols, j, min(cols, j+tile))
		}
	})
}

// transposeStrip transposes the columns [j0, j1) of src.
func transposeStrip[T Float](dst, src []T, rows, cols, j0, j1 int) {
	for i0 := 0; i0 < rows; i0 += tile {
		i1 := min(rows, i0+tile)
		for j := j0; j < j1; j++ {
			out := dst[j*rows+i0 : j*rows+i1]
			for k := range out {
				out[k] = src[(i0+k)*cols+j]
			}
		}
	}
}

// UpsampleNearest writes into y [planes, oh, ow] the element floor(i*h/oh),
// floor(j*w/ow) of x [planes, h, w] for each i, j, as PyTorch's mode "nearest".
func UpsampleNearest[T Float](y, x []T, planes, h, w, oh, ow int) {
	checkLen("UpsampleNearest", planes*h*w, len(x))
	checkLen("UpsampleNearest", planes*oh*ow, len(y))
	upsampleNearest(y, x, planes, h, w, oh, ow)
}

// upsampleNearest moves elements of any kind.
func upsampleNearest[E any](y, x []E, planes, h, w, oh, ow int) {
	if len(x) == 0 || len(y) == 0 {
		return
	}
	Parallel(planes, grainOf(oh*ow), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			upsamplePlane(y[p*oh*ow:][:oh*ow], x[p*h*w:][:h*w], h, w, oh, ow)
		}
	})
}

func upsamplePlane[E any](y, x []E, h, w, oh, ow int) {
	last := -1
	for i := range oh {
		from, row := i*h/oh, y[i*ow:][:ow]
		if from == last {
			copy(row, y[(i-1)*ow:][:ow])
			continue
		}
		last = from
		src := x[from*w:][:w]
		if ow == 2*w {
			for j, v := range src {
				pair := row[2*j:][:2]
				pair[0], pair[1] = v, v
			}
			continue
		}
		for j := range row {
			row[j] = src[j*w/ow]
		}
	}
}

// UpsampleNearestBackward is the gradient of [UpsampleNearest]: each element of
// dx [planes, h, w] becomes, or with acc is increased by, the elements of dy
// [planes, oh, ow] that were copied from it, added one by one in row-major order.
func UpsampleNearestBackward[T Float](dx, dy []T, planes, h, w, oh, ow int, acc bool) {
	checkLen("UpsampleNearestBackward", planes*h*w, len(dx))
	checkLen("UpsampleNearestBackward", planes*oh*ow, len(dy))
	Parallel(planes, grainOf(oh*ow), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			plane := dx[p*h*w:][:h*w]
			if !acc {
				clear(plane)
			}
			upsampleBackwardPlane(plane, dy[p*oh*ow:][:oh*ow], h, w, oh, ow)
		}
	})
}

func upsampleBackwardPlane[T Float](dx, dy []T, h, w, oh, ow int) {
	for i := range oh {
		row, dst := dy[i*ow:][:ow], dx[i*h/oh*w:][:w]
		if ow == 2*w {
			for j := range dst {
				pair := row[2*j:][:2]
				dst[j] = dst[j] + pair[0] + pair[1]
			}
			continue
		}
		for j, v := range row {
			dst[j*w/ow] += v
		}
	}
}
