package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// span is a tensor's elements in the arithmetic type T: the tensor's own memory
// where the format is T's, otherwise scratch that is widened on the way in and
// rounded on the way out. It is what lets every operation be written once.
type span[T kernel.Float] struct {
	s       []T
	acc     bool // add to what is there
	t       *Tape
	scratch *storage     // nil when s is the tensor's own memory
	home    dtype.Buffer // where commit rounds to
}

func elems[T kernel.Float](b dtype.Buffer) []T {
	var s any
	switch any(T(0)).(type) {
	case float32:
		s = b.F32
	case float64:
		s = b.F64
	}
	return s.([]T)
}

// native reports whether format d is stored as T.
func native[T kernel.Float](d dtype.DType) bool { return d == formatOf[T]() }

func formatOf[T kernel.Float]() dtype.DType {
	if _, ok := any(T(0)).(float64); ok {
		return dtype.F64
	}
	return dtype.F32
}

// view opens b for reading and, if it is to be committed, writing.
func view[T kernel.Float](t *Tape, b dtype.Buffer, fill bool) span[T] {
	if native[T](b.DType) {
		return span[T]{s: elems[T](b), t: t}
	}
	sc := t.arena.get(formatOf[T](), b.Len())
	v := span[T]{s: elems[T](sc.buf.Slice(0, b.Len())), t: t, scratch: sc, home: b}
	if fill {
		widenInto(v.s, b)
	}
	return v
}

// read opens a tensor's elements. The span must be freed.
func read[T kernel.Float](t *Tape, x *Tensor) span[T] { return view[T](t, x.Data(), true) }

// readGrad opens the gradient that has arrived at x. The span must be freed.
func readGrad[T kernel.Float](t *Tape, x *Tensor) span[T] {
	return view[T](t, x.gradData(), true)
}

// write opens a tensor for its first content, uninitialised. The span must be
// committed.
func write[T kernel.Float](t *Tape, x *Tensor) span[T] { return view[T](t, x.Data(), false) }

// gradient opens the gradient of x for one contribution: to be overwritten when
// it is the first, added to (acc) when not. The span must be committed before
// the next one is opened.
func gradient[T kernel.Float](t *Tape, x *Tensor) span[T] {
	first := x.grad == nil
	if first {
		x.grad = t.arena.get(t.gradFormat(x), x.Len())
	}
	v := view[T](t, x.gradData(), !first)
	v.acc = !first
	return v
}

// half reports whether activations are stored in 16 bits. The kernels named
// xxxStored then take them as they are; other operations open spans.
func (t *Tape) half() bool { return t.compute.Half() }

// gradData returns the gradient that has arrived at x, in its storage format.
func (x *Tensor) gradData() dtype.Buffer { return x.grad.buf.Slice(0, x.Len()) }

// gradientStored is gradient in the storage format; there is nothing to commit.
func (t *Tape) gradientStored(x *Tensor) (b dtype.Buffer, acc bool) {
	acc = x.grad != nil
	if !acc {
		x.grad = t.arena.get(t.gradFormat(x), x.Len())
	}
	return x.gradData(), acc
}

// float32Only turns a span of an operation in T into what kernels for stored
// formats take, whose parameters are float32.
func float32Only[T kernel.Float](v span[T]) []float32 {
	s, _ := any(v.s).([]float32)
	return s
}

// gradFormat: gradients of activations are stored as the activations are,
// those of parameters in full precision until they are complete.
func (t *Tape) gradFormat(x *Tensor) dtype.DType {
	if x.param != nil {
		return t.accum()
	}
	return x.dtype
}

func (v *span[T]) free() {
	if v.scratch != nil {
		v.t.arena.put(v.scratch)
		v.scratch = nil
	}
}

func (v *span[T]) commit() {
	if v.scratch == nil {
		return
	}
	switch s := any(v.s).(type) {
	case []float32:
		kernel.Round(v.home, s)
	case []float64:
		panic(fmt.Sprintf("framework: fp64 result for a tensor stored as %s", v.home.DType))
	}
	v.free()
}

func widenInto[T kernel.Float](dst []T, b dtype.Buffer) {
	switch d := any(dst).(type) {
	case []float32:
		if b.DType == dtype.F64 {
			panic("framework: fp64 tensor in a float32 operation; make the tape WithCompute(dtype.F64)")
		}
		kernel.Widen(d, b)
	case []float64:
		widen64(d, b)
	}
}

func widen64(dst []float64, b dtype.Buffer) {
	for i := range dst {
		dst[i] = b.At(i)
	}
}

// scratch is working memory in T, to be freed.
func scratch[T kernel.Float](t *Tape, n int) span[T] {
	sc := t.arena.get(formatOf[T](), n)
	return span[T]{s: elems[T](sc.buf.Slice(0, n)), t: t, scratch: sc}
}

// add contributes g to the gradient of x.
func add[T kernel.Float](t *Tape, x *Tensor, g []T) {
	dx := gradient[T](t, x)
	if dx.acc {
		kernel.Accumulate(dx.s, g)
	} else {
		copy(dx.s, g)
	}
	dx.commit()
}

// give contributes the whole gradient of y to x, which has as many elements,
// and takes it from y: memory changes hands where it can.
func give[T kernel.Float](t *Tape, x, y *Tensor) {
	if x.grad == nil && y.grad.dtype == t.gradFormat(x) {
		x.grad, y.grad = y.grad, nil
		return
	}
	if t.half() {
		addStored(t, x, y.gradData())
		return
	}
	dy := readGrad[T](t, y)
	add(t, x, dy.s)
	dy.free()
}

// addStored is add for a gradient in its storage format.
func addStored(t *Tape, x *Tensor, g dtype.Buffer) {
	dx, acc := t.gradientStored(x)
	kernel.CopyBlocksStored(dx, dx.Len(), g, g.Len(), 1, g.Len(), acc)
}
