package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// MSELoss returns the mean of (pred-target)² over all elements, a scalar in
// full precision. The target gets no gradient.
func (t *Tape) MSELoss(pred, target *Tensor) *Tensor {
	if pred.Len() != target.Len() {
		panic(fmt.Sprintf("framework: MSELoss of %v and %v", pred.shape, target.shape))
	}
	y := t.alloc(t.accum(), []int{1})
	if t.wide() {
		return t.record("MSELoss", &mse[float64]{pred, target, y}, y, pred)
	}
	return t.record("MSELoss", &mse[float32]{pred, target, y}, y, pred)
}

type mse[T kernel.Float] struct{ pred, target, y *Tensor }

func (o *mse[T]) forward(t *Tape) {
	p, q, y := read[T](t, o.pred), read[T](t, o.target), write[T](t, o.y)
	y.s[0] = T(kernel.MSE(p.s, q.s))
	y.commit()
	p.free()
	q.free()
}

func (o *mse[T]) backward(t *Tape) {
	p, q, dy, dp := read[T](t, o.pred), read[T](t, o.target), readGrad[T](t, o.y), gradient[T](t, o.pred)
	kernel.MSEBackward(dp.s, p.s, q.s, float64(dy.s[0]), dp.acc)
	dp.commit()
	p.free()
	q.free()
	dy.free()
}

// Embedding returns the rows of table [N, D] named by ids: shape [len(ids), D].
func (t *Tape) Embedding(table *Tensor, ids []int) *Tensor {
	for _, id := range ids {
		if id < 0 || id >= table.Dim(0) {
			panic(fmt.Sprintf("framework: Embedding of id %d in a table of %d rows", id, table.Dim(0)))
		}
	}
	ids = append([]int(nil), ids...)
	y := t.result(len(ids), table.Dim(1))
	if t.wide() {
		return t.record("Embedding", &embedding[float64]{table, y, ids}, y, table)
	}
	return t.record("Embedding", &embedding[float32]{table, y, ids}, y, table)
}

type embedding[T kernel.Float] struct {
	table, y *Tensor
	ids      []int
}

func (o *embedding[T]) forward(t *Tape) {
	w, y := read[T](t, o.table), write[T](t, o.y)
	d := o.table.Dim(1)
	for i, id := range o.ids {
		copy(y.s[i*d:(i+1)*d], w.s[id*d:])
	}
	y.commit()
	w.free()
}

func (o *embedding[T]) backward(t *Tape) {
	dy, dw := readGrad[T](t, o.y), gradient[T](t, o.table)
	if !dw.acc {
		clear(dw.s)
	}
	d := o.table.Dim(1)
	for i, id := range o.ids { // in order, so repeated ids add in a fixed order
		kernel.Accumulate(dw.s[id*d:(id+1)*d], dy.s[i*d:(i+1)*d])
	}
	dw.commit()
	dy.free()
}
