package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// GroupNorm normalises x [B,C,...] to zero mean and unit (biased) variance over
// each group of C/groups channels and all positions, then scales by gamma [C]
// and shifts by beta [C]. Statistics are taken in float64.
func (t *Tape) GroupNorm(x, gamma, beta *Tensor, groups int, eps float64) *Tensor {
	checkGroupNorm("GroupNorm", x, gamma, beta, groups)
	y := t.result(x.shape...)
	stat := []int{x.Dim(0) * groups}
	mean, rstd := t.alloc(dtype.F64, stat), t.alloc(dtype.F64, stat)
	n := normSizes{groups: groups, eps: eps}
	if t.wide() {
		return t.record("GroupNorm", &groupNorm[float64]{n, x, gamma, beta, y, mean, rstd}, y, x, gamma, beta)
	}
	return t.record("GroupNorm", &groupNorm[float32]{n, x, gamma, beta, y, mean, rstd}, y, x, gamma, beta)
}

func checkGroupNorm(op string, x, gamma, beta *Tensor, groups int) {
	if c := x.Dim(1); c%groups != 0 || gamma.Len() != c || beta.Len() != c {
		panic(fmt.Sprintf("framework: %s of x %v in %d groups with gamma %v", op, x.shape, groups, gamma.shape))
	}
}

type normSizes struct {
	groups int
	eps    float64
}

type groupNorm[T kernel.Float] struct {
	normSizes
	x, gamma, beta, y, mean, rstd *Tensor
}

func (o *groupNorm[T]) sizes() (n, c, hw int) {
	n, c = o.x.Dim(0), o.x.Dim(1)
	return n, c, o.x.Len() / (n * c)
}

func (o *groupNorm[T]) working(*Tape) (forward, backward int) { return 0, 0 }

func (o *groupNorm[T]) forward(t *Tape) {
	n, c, hw := o.sizes()
	if t.half() {
		gamma, beta := read[float32](t, o.gamma), read[float32](t, o.beta)
		kernel.GroupNormStored(o.y.Data(), o.x.Data(), gamma.s, beta.s, n, c, hw, o.groups, o.eps, o.mean.Data().F64, o.rstd.Data().F64)
		gamma.free()
		beta.free()
		return
	}
	x, gamma, beta, y := read[T](t, o.x), read[T](t, o.gamma), read[T](t, o.beta), write[T](t, o.y)
	kernel.GroupNorm(y.s, x.s, gamma.s, beta.s, n, c, hw, o.groups, o.eps, o.mean.Data().F64, o.rstd.Data().F64)
	y.commit()
	x.free()
	gamma.free()
	beta.free()
}

func (o *groupNorm[T]) backward(t *Tape) {
	pass := o.backwardSpans
	if t.half() {
		pass = o.backwardStored
	}
	o.eachParam(t, pass)
}

// eachParam opens the gradients of gamma and beta, and runs pass, which computes
// those that are not empty and, if it is wanted, that of x.
func (o *groupNorm[T]) eachParam(t *Tape, pass func(t *Tape, wantX bool, gamma, dgamma, dbeta span[T], acc bool)) {
	gamma := read[T](t, o.gamma)
	var dgamma, dbeta span[T]
	if o.gamma.needsGrad() {
		dgamma = gradient[T](t, o.gamma)
	}
	if o.beta.needsGrad() {
		dbeta = gradient[T](t, o.beta)
	}
	if dgamma.s == nil || dbeta.s == nil || dgamma.acc == dbeta.acc {
		pass(t, o.x.needsGrad(), gamma, dgamma, dbeta, dgamma.acc || dbeta.acc)
	} else { // one of the two is shared with another layer
		pass(t, o.x.needsGrad(), gamma, dgamma, span[T]{}, dgamma.acc)
		pass(t, false, gamma, span[T]{}, dbeta, dbeta.acc)
	}
	dgamma.commit()
	dbeta.commit()
	gamma.free()
}

func (o *groupNorm[T]) backwardSpans(t *Tape, wantX bool, gamma, dgamma, dbeta span[T], acc bool) {
	n, c, hw := o.sizes()
	x, dy := read[T](t, o.x), readGrad[T](t, o.y)
	var dx span[T]
	if wantX {
		dx = gradient[T](t, o.x)
	}
	kernel.GroupNormBackward(dx.s, dgamma.s, dbeta.s, x.s, gamma.s, dy.s, n, c, hw, o.groups, o.mean.Data().F64, o.rstd.Data().F64, dx.acc, acc)
	dx.commit()
	x.free()
	dy.free()
}

func (o *groupNorm[T]) backwardStored(t *Tape, wantX bool, gamma, dgamma, dbeta span[T], acc bool) {
	n, c, hw := o.sizes()
	var dx dtype.Buffer
	accX := false
	if wantX {
		dx, accX = t.gradientStored(o.x)
	}
	kernel.GroupNormBackwardStored(dx, float32Only(dgamma), float32Only(dbeta), o.x.Data(), float32Only(gamma), o.y.gradData(),
		n, c, hw, o.groups, o.mean.Data().F64, o.rstd.Data().F64, accX, acc)
}

// Softmax returns the softmax of scale·x along the last axis.
func (t *Tape) Softmax(x *Tensor, scale float64) *Tensor {
	y := t.result(x.shape...)
	if t.wide() {
		return t.record("Softmax", &softmax[float64]{x, y, scale}, y, x)
	}
	return t.record("Softmax", &softmax[float32]{x, y, float32(scale)}, y, x)
}

type softmax[T kernel.Float] struct {
	x, y  *Tensor
	scale T
}

func (o *softmax[T]) working(*Tape) (forward, backward int) {
	return widened(o.x, o.y), widened(o.y, o.y, o.x) + o.y.Len()
}

func (o *softmax[T]) forward(t *Tape) {
	x, y := read[T](t, o.x), write[T](t, o.y)
	cols := o.x.Dim(-1)
	kernel.Softmax(y.s, x.s, len(x.s)/cols, cols, o.scale)
	y.commit()
	x.free()
}

func (o *softmax[T]) backward(t *Tape) {
	y, dy := read[T](t, o.y), readGrad[T](t, o.y)
	cols := o.x.Dim(-1)
	g := scratch[T](t, len(y.s))
	kernel.SoftmaxBackward(g.s, y.s, dy.s, len(y.s)/cols, cols, o.scale)
	add(t, o.x, g.s)
	g.free()
	y.free()
	dy.free()
}
