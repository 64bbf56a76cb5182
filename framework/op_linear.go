package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Linear returns x·wᵀ + b for x [..., in], w [out, in] and b [out] or nil:
// shape [..., out].
func (t *Tape) Linear(x, w, b *Tensor) *Tensor {
	in, out := w.Dim(1), w.Dim(0)
	if x.Dim(-1) != in || b != nil && b.Len() != out {
		panic(fmt.Sprintf("framework: Linear of x %v with weight %v", x.shape, w.shape))
	}
	shape := append(append([]int(nil), x.shape[:len(x.shape)-1]...), out)
	y := t.result(shape...)
	ins := []*Tensor{x, w}
	if b != nil {
		ins = append(ins, b)
	}
	if t.wide() {
		return t.record("Linear", &linear[float64]{x, w, b, y}, y, ins...)
	}
	return t.record("Linear", &linear[float32]{x, w, b, y}, y, ins...)
}

type linear[T kernel.Float] struct{ x, w, b, y *Tensor }

func (o *linear[T]) sizes() (rows, in, out int) {
	in, out = o.w.Dim(1), o.w.Dim(0)
	return o.x.Len() / in, in, out
}

func (o *linear[T]) working(*Tape) (forward, backward int) {
	forward = widened(o.x, o.w, o.y)
	return forward, widened(o.y) + max(widened(o.x), widened(o.w, o.x))
}

func (o *linear[T]) forward(t *Tape) {
	rows, in, out := o.sizes()
	x, w, y := read[T](t, o.x), read[T](t, o.w), write[T](t, o.y)
	kernel.Gemm(false, true, rows, out, in, x.s, in, w.s, in, y.s, out, false)
	if o.b != nil {
		b := read[T](t, o.b)
		kernel.AddRow(y.s, b.s, rows, out)
		b.free()
	}
	y.commit()
	x.free()
	w.free()
}

func (o *linear[T]) backward(t *Tape) {
	rows, in, out := o.sizes()
	dy := readGrad[T](t, o.y)
	defer dy.free()
	if o.b != nil && o.b.needsGrad() {
		db := gradient[T](t, o.b)
		kernel.SumRows(db.s, dy.s, rows, out, db.acc)
		db.commit()
	}
	if o.w.needsGrad() {
		x, dw := read[T](t, o.x), gradient[T](t, o.w)
		kernel.Gemm(true, false, out, in, rows, dy.s, out, x.s, in, dw.s, in, dw.acc)
		dw.commit()
		x.free()
	}
	if o.x.needsGrad() {
		w, dx := read[T](t, o.w), gradient[T](t, o.x)
		kernel.Gemm(false, false, rows, in, out, dy.s, out, w.s, in, dx.s, in, dx.acc)
		dx.commit()
		w.free()
	}
}

// BatchMatMul returns a·b for a [n, m, k] and b [n, k, p], or with transB b
// [n, p, k]: shape [n, m, p].
func (t *Tape) BatchMatMul(a, b *Tensor, transB bool) *Tensor {
	n, m, k := a.Dim(0), a.Dim(1), a.Dim(2)
	kb, p := b.Dim(1), b.Dim(2)
	if transB {
		kb, p = p, kb
	}
	if b.Dim(0) != n || kb != k {
		panic(fmt.Sprintf("framework: BatchMatMul of %v and %v (transB %v)", a.shape, b.shape, transB))
	}
	y := t.result(n, m, p)
	if t.wide() {
		return t.record("BatchMatMul", &batchMatMul[float64]{a, b, y, transB, n, m, k, p}, y, a, b)
	}
	return t.record("BatchMatMul", &batchMatMul[float32]{a, b, y, transB, n, m, k, p}, y, a, b)
}

type batchMatMul[T kernel.Float] struct {
	a, b, y    *Tensor
	transB     bool
	n, m, k, p int
}

// ldb is the row length of b in memory.
func (o *batchMatMul[T]) ldb() int { return o.b.Dim(2) }

func (o *batchMatMul[T]) working(*Tape) (forward, backward int) {
	return widened(o.a, o.b, o.y), widened(o.y, o.a, o.b)
}

func (o *batchMatMul[T]) forward(t *Tape) {
	a, b, y := read[T](t, o.a), read[T](t, o.b), write[T](t, o.y)
	n, m, k, p := o.n, o.m, o.k, o.p
	kernel.GemmBatch(n, false, o.transB, m, p, k, a.s, k, m*k, b.s, o.ldb(), k*p, y.s, p, m*p, false)
	y.commit()
	a.free()
	b.free()
}

func (o *batchMatMul[T]) backward(t *Tape) {
	n, m, k, p := o.n, o.m, o.k, o.p
	dy := readGrad[T](t, o.y)
	defer dy.free()
	if o.a.needsGrad() { // da = dy·bᵀ
		b, da := read[T](t, o.b), gradient[T](t, o.a)
		kernel.GemmBatch(n, false, !o.transB, m, k, p, dy.s, p, m*p, b.s, o.ldb(), k*p, da.s, k, m*k, da.acc)
		da.commit()
		b.free()
	}
	if o.b.needsGrad() {
		a, db := read[T](t, o.a), gradient[T](t, o.b)
		if o.transB { // db [p,k] = dyᵀ·a
			kernel.GemmBatch(n, true, false, p, k, m, dy.s, p, m*p, a.s, k, m*k, db.s, k, k*p, db.acc)
		} else { // db [k,p] = aᵀ·dy
			kernel.GemmBatch(n, true, false, k, p, m, a.s, k, m*k, dy.s, p, m*p, db.s, p, k*p, db.acc)
		}
		db.commit()
		a.free()
	}
}
