package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
)

// Param is a trainable array. Operations take its Value; the optimizer rebinds
// the storage behind it.
//
// A parameter belongs to one recording tape at a time: its gradient and the
// count of its uses live on it. Tapes that only evaluate, inside NoGrad, may
// share it as long as nobody writes it meanwhile.
type Param struct {
	// Name is the dotted path in the model, for example
	// "down_blocks.0.resnets.1.conv1.weight".
	Name string
	// Frozen parameters take part in the forward pass and get no gradient.
	// Set it before the parameter is first used.
	Frozen bool
	// Value is what operations take.
	Value *Tensor
	// Grad collects gradients when the tape has no gradient hook: fp32 (fp64 on
	// an fp64 tape), same length as Value, added to by every backward. It is
	// empty before the first.
	Grad dtype.Buffer

	uses int // uses in this forward whose gradients have not come back yet
}

// NewParam makes a float32 parameter that takes ownership of data.
func NewParam(name string, data []float32, shape ...int) *Param {
	if numel(shape) != len(data) {
		panic(fmt.Sprintf("framework: parameter %s: %d values for shape %v", name, len(data), shape))
	}
	p := &Param{Name: name}
	p.Value = &Tensor{shape: shape, st: &storage{buf: dtype.OfFloat32(data), size: len(data), refs: 1}, param: p}
	return p
}

// Shape returns the sizes of the axes.
func (p *Param) Shape() []int { return p.Value.shape }

// Len returns the number of elements.
func (p *Param) Len() int { return p.Value.Len() }

// Rebind puts the parameter's value into b, which must have its length. The
// old content is not copied: whoever rebinds also fills.
func (p *Param) Rebind(b dtype.Buffer) {
	if b.Len() != p.Len() {
		panic(fmt.Sprintf("framework: parameter %s: rebinding %d elements to %d", p.Name, p.Len(), b.Len()))
	}
	p.Value.st, p.Value.dtype = &storage{buf: b, dtype: b.DType, size: b.Len(), refs: 1}, b.DType
}
