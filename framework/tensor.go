// Package framework is a small automatic differentiation engine for training:
// tensors, a tape that records operations, their backward passes, parameter
// hooks that fire as soon as a gradient is complete, and activation
// checkpointing.
//
// Every operation has one fixed order of arithmetic, so that losses and
// gradients are the same bits at any number of threads, with or without
// checkpointing. 16-bit tensors are storage: operations widen to float32,
// compute, and round once on the way out.
package framework

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/zerogap/zerogap/dtype"
)

// Tensor is a dense row-major array on a tape, or the value of a parameter.
//
// A tensor made by a tape is valid until that tape's Backward or Reset, or, if
// made inside NoGrad, until NoGrad returns; tensors of one element stay valid.
// A Tensor is not safe for concurrent use.
type Tensor struct {
	shape    []int
	dtype    dtype.DType
	st       *storage // nil after release
	grad     *storage // nil until a gradient arrives
	needGrad bool
	param    *Param // set on the value of a parameter
}

// Shape returns the sizes of the axes. The caller must not change the slice.
func (x *Tensor) Shape() []int { return x.shape }

// Dim returns the size of axis i; negative i counts from the last axis.
func (x *Tensor) Dim(i int) int {
	if i < 0 {
		i += len(x.shape)
	}
	return x.shape[i]
}

// Len returns the number of elements.
func (x *Tensor) Len() int { return numel(x.shape) }

// DType returns the storage format.
func (x *Tensor) DType() dtype.DType { return x.dtype }

// Data returns the elements in their storage format, aliased.
func (x *Tensor) Data() dtype.Buffer {
	if x.st == nil {
		panic("framework: tensor used after its tape was run backward or reset; copy it out before")
	}
	return x.st.buf.Slice(0, x.Len())
}

// Float32s returns the elements widened (or, from fp64, rounded) to float32, in
// a new slice.
func (x *Tensor) Float32s() []float32 {
	b := x.Data()
	out := make([]float32, b.Len())
	for i := range out {
		out[i] = float32(b.At(i))
	}
	return out
}

// Item returns the single element of a scalar.
func (x *Tensor) Item() float64 {
	if x.Len() != 1 {
		panic(fmt.Sprintf("framework: Item of a tensor of shape %v", x.shape))
	}
	return x.Data().At(0)
}

// Dense returns the tensor as a gorgonia container for interchange. fp32 and
// fp64 alias the tensor's memory and share its lifetime; gorgonia has no 16-bit
// formats, so those come as a widened float32 copy.
func (x *Tensor) Dense() *tensor.Dense {
	b := x.Data()
	switch b.DType {
	case dtype.F32:
		return tensor.New(tensor.WithShape(x.shape...), tensor.WithBacking(b.F32))
	case dtype.F64:
		return tensor.New(tensor.WithShape(x.shape...), tensor.WithBacking(b.F64))
	}
	return tensor.New(tensor.WithShape(x.shape...), tensor.WithBacking(x.Float32s()))
}

// NeedsGrad reports whether a backward will bring the tensor a gradient.
func (x *Tensor) NeedsGrad() bool { return x.needsGrad() }

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func sameShape(a, b *Tensor) bool { return slices.Equal(a.shape, b.shape) }
