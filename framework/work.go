package framework

// counted is an operation that does arithmetic; the others move elements.
//
// The products of matrices and convolutions are counted exactly, padding included, in
// the backward pass for each gradient that is wanted. All else is counted by the
// convention of FLOPs profilers: one operation an element for what is pointwise, one
// for adding a bias, five for a normalisation. The backward pass of those takes as
// many for each input, parameters apart, whose gradient is wanted.
type counted interface {
	work(backward bool) Work
}

// product is one matrix product of so many multiply-accumulates.
func product(macs int) Work { return Work{int64(macs), 2 * int64(macs)} }

// plus adds operations that are no multiply-accumulates.
func (w Work) plus(flops int) Work { return Work{w.MACs, w.FLOPs + int64(flops)} }

func (w Work) add(x Work) Work { return Work{w.MACs + x.MACs, w.FLOPs + x.FLOPs} }

func (w Work) times(n int) Work { return Work{w.MACs * int64(n), w.FLOPs * int64(n)} }

// wanted is the number of tensors that need a gradient; nil is none.
func wanted(xs ...*Tensor) int {
	n := 0
	for _, x := range xs {
		if x != nil && x.needsGrad() {
			n++
		}
	}
	return n
}

// pointwise is one operation for each element of y.
func pointwise(y *Tensor, backward bool, in ...*Tensor) Work {
	if backward {
		return Work{}.plus(y.Len() * wanted(in...))
	}
	return Work{}.plus(y.Len())
}

// biased is a product with a bias b, or nil, that is added to each element of y.
func biased(macs int, backward bool, x, w, b, y *Tensor) Work {
	switch {
	case backward:
		return product(macs).times(wanted(x, w)).plus(y.Len() * wanted(b))
	case b != nil:
		return product(macs).plus(y.Len())
	}
	return product(macs)
}

func (o *linear[T]) work(backward bool) Work {
	rows, in, out := o.sizes()
	return biased(rows*in*out, backward, o.x, o.w, o.b, o.y)
}

func (o *conv2d[T]) work(backward bool) Work {
	return biased(o.macs(), backward, o.x, o.w, o.b, o.y)
}

func (o *conv2d[T]) macs() int { return o.y.Len() * o.c.C * o.c.KH * o.c.KW }

func (o *upsampleConv[T]) work(backward bool) Work {
	w := biased(o.conv.macs(), backward, o.up.x, o.conv.w, o.conv.b, o.conv.y)
	if backward && o.up.x.needsGrad() {
		w = w.plus(o.up.y.Len())
	}
	return w
}

func (o *upsample[T]) work(backward bool) Work {
	if backward {
		return Work{}.plus(o.y.Len()) // repeated pixels are summed up
	}
	return Work{}
}

func (o *batchMatMul[T]) work(backward bool) Work {
	one := product(o.n * o.m * o.k * o.p)
	if backward {
		return one.times(wanted(o.a, o.b))
	}
	return one
}

// work counts what the backward pass computes again of the forward pass as a part of
// the backward pass: no checkpointing causes it, or avoids it.
func (o *attention[T]) work(backward bool) Work {
	s := o.sizes
	scores := s.Count * s.Rows * s.Cols
	one := product(scores * s.Dim)
	switch {
	case !backward:
		return one.times(2).plus(scores)
	case o.q == o.k || o.k == o.v || o.q == o.v: // one gradient at a time
		ofQK, ofV := attentionBackward(one, scores, 1, 0), attentionBackward(one, scores, 0, 1)
		return ofQK.times(wanted(o.q, o.k)).add(ofV.times(wanted(o.v)))
	}
	return attentionBackward(one, scores, wanted(o.q, o.k), wanted(o.v))
}

// attentionBackward is the work for the gradients of so many of q and k, and of v:
// probabilities, their gradient, and a product for each.
func attentionBackward(one Work, scores, qk, v int) Work {
	w := one.plus(scores).add(one.times(qk + v))
	if qk > 0 {
		w = w.add(one).plus(scores)
	}
	return w
}

func (o *groupNorm[T]) work(backward bool) Work {
	const perElement = 5 // mean, variance, difference, scale, shift
	if backward {
		return pointwise(o.y, true, o.x).times(perElement)
	}
	return pointwise(o.y, false).times(perElement)
}

func (o *groupNormSiLU[T]) work(backward bool) Work {
	return o.groupNorm.work(backward).add(pointwise(o.y, backward, o.x))
}

func (o *softmax[T]) work(backward bool) Work    { return pointwise(o.y, backward, o.x) }
func (o *silu[T]) work(backward bool) Work       { return pointwise(o.y, backward, o.x) }
func (o *addOp[T]) work(backward bool) Work      { return pointwise(o.y, backward, o.a, o.b) }
func (o *mulOp[T]) work(backward bool) Work      { return pointwise(o.y, backward, o.a, o.b) }
func (o *addChannel[T]) work(backward bool) Work { return pointwise(o.y, backward, o.x, o.v) }
func (o *dropout[T]) work(backward bool) Work    { return pointwise(o.y, backward, o.x) }
func (o *scaleShift[T]) work(backward bool) Work {
	return pointwise(o.y, backward, o.x, o.s, o.b)
}

// work is a difference, a square and a sum for each element.
func (o *mse[T]) work(backward bool) Work { return pointwise(o.pred, backward, o.pred).times(3) }

func (o *embedding[T]) work(backward bool) Work {
	if backward {
		return Work{}.plus(o.y.Len()) // rows that occur more than once are summed up
	}
	return Work{}
}
