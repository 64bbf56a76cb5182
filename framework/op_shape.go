package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Reshape returns the same elements, in the same memory, under another shape.
func (t *Tape) Reshape(x *Tensor, shape ...int) *Tensor {
	if numel(shape) != x.Len() {
		panic(fmt.Sprintf("framework: Reshape of %v to %v", x.shape, shape))
	}
	y := &Tensor{shape: shape, dtype: x.dtype}
	t.live = append(t.live, y)
	if t.wide() {
		return t.record("Reshape", &reshape[float64]{x, y}, y, x)
	}
	return t.record("Reshape", &reshape[float32]{x, y}, y, x)
}

type reshape[T kernel.Float] struct{ x, y *Tensor }

func (*reshape[T]) placesOutput() {}

func (o *reshape[T]) forward(*Tape) { o.place() }

func (o *reshape[T]) place() { takePlace(o.y, o.x) }

func (o *reshape[T]) under() *Tensor { return o.x }

func (o *reshape[T]) backward(t *Tape) { give[T](t, o.x, o.y) }

// Transpose returns x with axes i and j = i+1 swapped, copied: with x
// [..., R, C, ...], shape [..., C, R, ...].
func (t *Tape) Transpose(x *Tensor, i, j int) *Tensor {
	if j != i+1 || i < 0 || j >= len(x.shape) {
		panic(fmt.Sprintf("framework: Transpose of axes %d and %d of %v: only neighbours can be swapped", i, j, x.shape))
	}
	shape := append([]int(nil), x.shape...)
	shape[i], shape[j] = shape[j], shape[i]
	g := transposeSizes{numel(x.shape[:i]), x.shape[i], x.shape[j], numel(x.shape[j+1:])}
	y := t.result(shape...)
	if t.wide() {
		return t.record("Transpose", &transpose[float64]{g, x, y}, y, x)
	}
	return t.record("Transpose", &transpose[float32]{g, x, y}, y, x)
}

type transposeSizes struct{ batch, rows, cols, run int }

type transpose[T kernel.Float] struct {
	transposeSizes
	x, y *Tensor
}

func (o *transpose[T]) forward(t *Tape) {
	x, y := read[T](t, o.x), write[T](t, o.y)
	swap(y.s, x.s, o.batch, o.rows, o.cols, o.run)
	y.commit()
	x.free()
}

func (o *transpose[T]) working(*Tape) (forward, backward int) {
	return widened(o.x, o.y), widened(o.y, o.x) + o.x.Len()
}

func (o *transpose[T]) backward(t *Tape) {
	dy := readGrad[T](t, o.y)
	g := scratch[T](t, len(dy.s))
	swap(g.s, dy.s, o.batch, o.cols, o.rows, o.run)
	add(t, o.x, g.s)
	g.free()
	dy.free()
}

// swap turns [batch, rows, cols, run] into [batch, cols, rows, run].
func swap[T kernel.Float](dst, src []T, batch, rows, cols, run int) {
	if run == 1 {
		kernel.Transpose2D(dst, src, batch, rows, cols)
		return
	}
	size := rows * cols * run
	for b := 0; b < batch; b++ {
		d, s := dst[b*size:(b+1)*size], src[b*size:(b+1)*size]
		for r := 0; r < rows; r++ {
			for c := 0; c < cols; c++ {
				copy(d[(c*rows+r)*run:][:run], s[(r*cols+c)*run:][:run])
			}
		}
	}
}

// Concat joins a [B,Ca,...] and b [B,Cb,...] along axis 1.
func (t *Tape) Concat(a, b *Tensor) *Tensor {
	if len(a.shape) != len(b.shape) || a.Dim(0) != b.Dim(0) || numel(a.shape[2:]) != numel(b.shape[2:]) {
		panic(fmt.Sprintf("framework: Concat of %v and %v", a.shape, b.shape))
	}
	shape := append([]int(nil), a.shape...)
	shape[1] += b.shape[1]
	y := t.result(shape...)
	if t.wide() {
		return t.record("Concat", &concat[float64]{a, b, y}, y, a, b)
	}
	return t.record("Concat", &concat[float32]{a, b, y}, y, a, b)
}

type concat[T kernel.Float] struct{ a, b, y *Tensor }

func (o *concat[T]) forward(t *Tape) {
	n := o.a.Dim(0)
	la, lb := o.a.Len()/n, o.b.Len()/n
	if t.half() {
		y := o.y.Data()
		kernel.CopyBlocksStored(y, la+lb, o.a.Data(), la, n, la, false)
		kernel.CopyBlocksStored(y.Slice(la, y.Len()), la+lb, o.b.Data(), lb, n, lb, false)
		return
	}
	a, b, y := read[T](t, o.a), read[T](t, o.b), write[T](t, o.y)
	kernel.CopyBlocks(y.s, la+lb, a.s, la, n, la, false)
	kernel.CopyBlocks(y.s[la:], la+lb, b.s, lb, n, lb, false)
	y.commit()
	a.free()
	b.free()
}

func (o *concat[T]) working(*Tape) (forward, backward int) { return 0, 0 }

func (o *concat[T]) backward(t *Tape) {
	n := o.a.Dim(0)
	la, lb := o.a.Len()/n, o.b.Len()/n
	if o.a.needsGrad() {
		takeColumns[T](t, o.a, o.y, n, la, 0)
	}
	if o.b.needsGrad() {
		takeColumns[T](t, o.b, o.y, n, lb, la)
	}
}

// takeColumns contributes columns [at, at+l) of the n rows of the gradient of y
// to x.
func takeColumns[T kernel.Float](t *Tape, x, y *Tensor, n, l, at int) {
	stride := y.Len() / n
	if t.half() {
		dx, acc := t.gradientStored(x)
		kernel.CopyBlocksStored(dx, l, y.gradData().Slice(at, y.Len()), stride, n, l, acc)
		return
	}
	dy, dx := readGrad[T](t, y), gradient[T](t, x)
	kernel.CopyBlocks(dx.s, l, dy.s[at:], stride, n, l, dx.acc)
	dx.commit()
	dy.free()
}

// Chunk splits x [B,C,...] into parts of C/parts channels each.
func (t *Tape) Chunk(x *Tensor, parts int) []*Tensor {
	if x.Dim(1)%parts != 0 {
		panic(fmt.Sprintf("framework: Chunk of %v into %d parts", x.shape, parts))
	}
	out := make([]*Tensor, parts)
	for i := range out {
		out[i] = t.narrow(x, i*x.Dim(1)/parts, x.Dim(1)/parts)
	}
	return out
}

func (t *Tape) narrow(x *Tensor, at, width int) *Tensor {
	shape := append([]int(nil), x.shape...)
	shape[1] = width
	y := t.result(shape...)
	if t.wide() {
		return t.record("Narrow", &narrow[float64]{x, y, at}, y, x)
	}
	return t.record("Narrow", &narrow[float32]{x, y, at}, y, x)
}

type narrow[T kernel.Float] struct {
	x, y *Tensor
	at   int // first channel
}

// sizes are the row lengths of x and y and the offset in x, in elements.
func (o *narrow[T]) sizes() (n, lx, ly, at int) {
	n = o.x.Dim(0)
	return n, o.x.Len() / n, o.y.Len() / n, o.at * numel(o.x.shape[2:])
}

func (o *narrow[T]) working(*Tape) (forward, backward int) {
	return widened(o.x, o.y), widened(o.x, o.y)
}

func (o *narrow[T]) forward(t *Tape) {
	n, lx, ly, at := o.sizes()
	x, y := read[T](t, o.x), write[T](t, o.y)
	kernel.CopyBlocks(y.s, ly, x.s[at:], lx, n, ly, false)
	y.commit()
	x.free()
}

func (o *narrow[T]) backward(t *Tape) {
	n, lx, ly, at := o.sizes()
	dy, dx := readGrad[T](t, o.y), gradient[T](t, o.x)
	if !dx.acc {
		clear(dx.s)
	}
	kernel.CopyBlocks(dx.s[at:], lx, dy.s, ly, n, ly, true)
	dx.commit()
	dy.free()
}
