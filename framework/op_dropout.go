package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Dropout zeroes each element of x [B,...] with probability p and scales the
// rest by 1/(1-p), when the tape's Sample says Train; otherwise it returns x.
// The mask of a row is keyed by the seed, the step, the row's global sample
// index and the layer (a number that is the caller's to keep apart), so it is
// the same on every rank and when a checkpointed segment runs again.
func (t *Tape) Dropout(x *Tensor, p float64, layer uint64) *Tensor {
	if p < 0 || p >= 1 {
		panic(fmt.Sprintf("framework: Dropout probability %v: want [0,1)", p))
	}
	if p == 0 || !t.sample.Train {
		return x
	}
	if len(t.sample.Samples) != x.Dim(0) {
		panic(fmt.Sprintf("framework: Dropout of %d rows with %d sample indices; call SetSample for this batch", x.Dim(0), len(t.sample.Samples)))
	}
	y := t.result(x.shape...)
	key := t.sample
	if t.wide() {
		return t.record("Dropout", &dropout[float64]{x, y, p, layer, key}, y, x)
	}
	return t.record("Dropout", &dropout[float32]{x, y, p, layer, key}, y, x)
}

type dropout[T kernel.Float] struct {
	x, y  *Tensor
	p     float64
	layer uint64
	key   Sample
}

func (o *dropout[T]) working(*Tape) (forward, backward int) {
	return widened(o.x, o.y), widened(o.y, o.x) + o.y.Len()
}

func (o *dropout[T]) forward(t *Tape) {
	x, y := read[T](t, o.x), write[T](t, o.y)
	o.mask(y.s, x.s)
	y.commit()
	x.free()
}

func (o *dropout[T]) backward(t *Tape) {
	dy := readGrad[T](t, o.y)
	g := scratch[T](t, len(dy.s))
	o.mask(g.s, dy.s)
	add(t, o.x, g.s)
	g.free()
	dy.free()
}

// mask writes the kept and scaled elements of src to dst. It is computed again
// in the backward pass rather than stored.
func (o *dropout[T]) mask(dst, src []T) {
	row := len(src) / len(o.key.Samples)
	keep := T(1 / (1 - o.p))
	for r, sample := range o.key.Samples {
		s := NewStream(o.key.Seed^o.layer*0x9e3779b97f4a7c15, o.key.Step, sample, "dropout")
		for i := r * row; i < (r+1)*row; i++ {
			if s.Float64() < o.p {
				dst[i] = 0
			} else {
				dst[i] = src[i] * keep
			}
		}
	}
}
