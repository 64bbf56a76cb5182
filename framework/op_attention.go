package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Attention returns softmax(scale·q·kᵀ)·v for q [n, m, d] and k, v [n, p, d]: shape
// [n, m, d], the bits of BatchMatMul, Softmax and BatchMatMul. Scores and
// probabilities, [n, m, p], are not kept: the backward pass computes them again, a
// few of the n at a time.
func (t *Tape) Attention(q, k, v *Tensor, scale float64) *Tensor {
	if len(q.shape) != 3 || len(k.shape) != 3 || !sameShape(k, v) || q.Dim(0) != k.Dim(0) || q.Dim(2) != k.Dim(2) {
		panic(fmt.Sprintf("framework: Attention of q %v, k %v, v %v", q.shape, k.shape, v.shape))
	}
	s := kernel.AttentionSizes{Count: q.Dim(0), Rows: q.Dim(1), Cols: k.Dim(1), Dim: q.Dim(2)}
	y := t.result(q.shape...)
	if t.wide() {
		return t.record("Attention", &attention[float64]{s, q, k, v, y, scale}, y, q, k, v)
	}
	return t.record("Attention", &attention[float32]{s, q, k, v, y, float32(scale)}, y, q, k, v)
}

type attention[T kernel.Float] struct {
	sizes      kernel.AttentionSizes
	q, k, v, y *Tensor
	scale      T
}

func (o *attention[T]) working(*Tape) (forward, backward int) {
	forward = widened(o.q, o.k, o.v, o.y)
	return forward, forward + widened(o.q, o.k, o.v)
}

func (o *attention[T]) forward(t *Tape) {
	q, k, v, y := read[T](t, o.q), read[T](t, o.k), read[T](t, o.v), write[T](t, o.y)
	kernel.Attention(y.s, q.s, k.s, v.s, o.sizes, o.scale, t.compute)
	y.commit()
	q.free()
	k.free()
	v.free()
}

func (o *attention[T]) backward(t *Tape) {
	q, k, v, dy := read[T](t, o.q), read[T](t, o.k), read[T](t, o.v), readGrad[T](t, o.y)
	defer func() {
		q.free()
		k.free()
		v.free()
		dy.free()
	}()
	if o.q == o.k || o.k == o.v || o.q == o.v {
		o.backwardShared(t, q, k, v, dy)
		return
	}
	var grads [3]span[T] // of q, k, v
	for i, x := range []*Tensor{o.q, o.k, o.v} {
		if x.needsGrad() {
			grads[i] = gradient[T](t, x)
		}
	}
	kernel.AttentionBackward(grads[0].s, grads[1].s, grads[2].s, q.s, k.s, v.s, dy.s, o.sizes, o.scale, t.compute, grads[0].acc, grads[1].acc, grads[2].acc)
	for i := range grads {
		grads[i].commit()
	}
}

// backwardShared makes one contribution at a time, in the order of the separate
// operations, for a tensor that is more than one of q, k and v.
func (o *attention[T]) backwardShared(t *Tape, q, k, v, dy span[T]) {
	for _, i := range [3]int{2, 0, 1} {
		x := [3]*Tensor{o.q, o.k, o.v}[i]
		if !x.needsGrad() {
			continue
		}
		g := gradient[T](t, x)
		var d [3][]T
		d[i] = g.s
		kernel.AttentionBackward(d[0], d[1], d[2], q.s, k.s, v.s, dy.s, o.sizes, o.scale, t.compute, g.acc, g.acc, g.acc)
		g.commit()
	}
}
