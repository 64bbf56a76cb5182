package framework

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// GroupNormSiLU is SiLU(GroupNorm(x)), the same bits as the two operations, without
// keeping what lies between them: the backward pass computes it again from x.
func (t *Tape) GroupNormSiLU(x, gamma, beta *Tensor, groups int, eps float64) *Tensor {
	checkGroupNorm("GroupNormSiLU", x, gamma, beta, groups)
	y := t.result(x.shape...)
	stat := []int{x.Dim(0) * groups}
	mean, rstd := t.alloc(dtype.F64, stat), t.alloc(dtype.F64, stat)
	n := normSizes{groups: groups, eps: eps}
	if t.wide() {
		return t.record("GroupNormSiLU", &groupNormSiLU[float64]{groupNorm[float64]{n, x, gamma, beta, y, mean, rstd}}, y, x, gamma, beta)
	}
	return t.record("GroupNormSiLU", &groupNormSiLU[float32]{groupNorm[float32]{n, x, gamma, beta, y, mean, rstd}}, y, x, gamma, beta)
}

type groupNormSiLU[T kernel.Float] struct{ groupNorm[T] }

func (o *groupNormSiLU[T]) forward(t *Tape) {
	n, c, hw := o.sizes()
	gamma, beta := read[T](t, o.gamma), read[T](t, o.beta)
	if t.wide() {
		x, y := read[T](t, o.x), write[T](t, o.y)
		kernel.GroupNorm(y.s, x.s, gamma.s, beta.s, n, c, hw, o.groups, o.eps, o.mean.Data().F64, o.rstd.Data().F64)
		kernel.SiLU(y.s, y.s)
	} else {
		kernel.GroupNormSiLUStored(o.y.Data(), o.x.Data(), float32Only(gamma), float32Only(beta), n, c, hw, o.groups, o.eps, o.mean.Data().F64, o.rstd.Data().F64)
	}
	gamma.free()
	beta.free()
}

func (o *groupNormSiLU[T]) backward(t *Tape) {
	pass := o.backwardFused
	if t.wide() {
		pass = o.backwardWide
	}
	o.eachParam(t, pass)
}

func (o *groupNormSiLU[T]) backwardFused(t *Tape, wantX bool, gamma, dgamma, dbeta span[T], acc bool) {
	n, c, hw := o.sizes()
	beta := read[T](t, o.beta)
	defer beta.free()
	var dx dtype.Buffer
	accX := false
	if wantX {
		dx, accX = t.gradientStored(o.x)
	}
	kernel.GroupNormSiLUBackwardStored(dx, float32Only(dgamma), float32Only(dbeta), o.x.Data(), float32Only(gamma), float32Only(beta), o.y.gradData(),
		n, c, hw, o.groups, o.mean.Data().F64, o.rstd.Data().F64, accX, acc)
}

// backwardWide is for float64 alone, where models are small.
func (o *groupNormSiLU[T]) backwardWide(t *Tape, wantX bool, gamma, dgamma, dbeta span[T], acc bool) {
	n, c, hw := o.sizes()
	x, dy, beta, g := read[T](t, o.x), readGrad[T](t, o.y), read[T](t, o.beta), scratch[T](t, o.x.Len())
	defer g.free()
	kernel.GroupNorm(g.s, x.s, gamma.s, beta.s, n, c, hw, o.groups, o.eps, o.mean.Data().F64, o.rstd.Data().F64)
	kernel.SiLUBackward(g.s, g.s, dy.s, false)
	var dx span[T]
	if wantX {
		dx = gradient[T](t, o.x)
	}
	kernel.GroupNormBackward(dx.s, dgamma.s, dbeta.s, x.s, gamma.s, g.s, n, c, hw, o.groups, o.mean.Data().F64, o.rstd.Data().F64, dx.acc, acc)
}
