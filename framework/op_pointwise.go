package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// SiLU returns x·σ(x), elementwise.
func (t *Tape) SiLU(x *Tensor) *Tensor {
	y := t.result(x.shape...)
	if t.wide() {
		return t.record("SiLU", &silu[float64]{x, y}, y, x)
	}
	return t.record("SiLU", &silu[float32]{x, y}, y, x)
}

type silu[T kernel.Float] struct{ x, y *Tensor }

func (o *silu[T]) working(*Tape) (forward, backward int) { return 0, 0 }

func (o *silu[T]) forward(t *Tape) {
	if t.half() {
		kernel.SiLUStored(o.y.Data(), o.x.Data())
		return
	}
	x, y := read[T](t, o.x), write[T](t, o.y)
	kernel.SiLU(y.s, x.s)
	y.commit()
	x.free()
}

func (o *silu[T]) backward(t *Tape) {
	if t.half() {
		dx, acc := t.gradientStored(o.x)
		kernel.SiLUBackwardStored(dx, o.x.Data(), o.y.gradData(), acc)
		return
	}
	x, dy, dx := read[T](t, o.x), readGrad[T](t, o.y), gradient[T](t, o.x)
	kernel.SiLUBackward(dx.s, x.s, dy.s, dx.acc)
	dx.commit()
	x.free()
	dy.free()
}

// Add returns a + b, elementwise, for equal shapes.
func (t *Tape) Add(a, b *Tensor) *Tensor {
	if !sameShape(a, b) {
		panic(fmt.Sprintf("framework: Add of %v and %v", a.shape, b.shape))
	}
	y := t.result(a.shape...)
	if t.wide() {
		return t.record("Add", &addOp[float64]{a, b, y}, y, a, b)
	}
	return t.record("Add", &addOp[float32]{a, b, y}, y, a, b)
}

type addOp[T kernel.Float] struct{ a, b, y *Tensor }

func (o *addOp[T]) working(*Tape) (forward, backward int) { return 0, 0 }

func (o *addOp[T]) forward(t *Tape) {
	if t.half() {
		kernel.AddStored(o.y.Data(), o.a.Data(), o.b.Data())
		return
	}
	a, b, y := read[T](t, o.a), read[T](t, o.b), write[T](t, o.y)
	kernel.Add(y.s, a.s, b.s)
	y.commit()
	a.free()
	b.free()
}

func (o *addOp[T]) backward(t *Tape) {
	switch {
	case !o.a.needsGrad():
	case t.half():
		addStored(t, o.a, o.y.gradData())
	default:
		dy := readGrad[T](t, o.y)
		add(t, o.a, dy.s)
		dy.free()
	}
	if o.b.needsGrad() {
		give[T](t, o.b, o.y)
	}
}

// AddTo returns a + b in the memory of b, whose value must not be used by anything
// else: b is the output of an operation that does not look at it again, such as a
// convolution. It saves a tensor and gives the bits of Add.
func (t *Tape) AddTo(b, a *Tensor) *Tensor {
	if !sameShape(a, b) {
		panic(fmt.Sprintf("framework: AddTo of %v and %v", b.shape, a.shape))
	}
	y := t.inPlace(b)
	if t.wide() {
		return t.record("AddTo", &addTo[float64]{addOp[float64]{a, b, y}}, y, a, b)
	}
	return t.record("AddTo", &addTo[float32]{addOp[float32]{a, b, y}}, y, a, b)
}

// inPlace makes the output of an operation that writes over x.
func (t *Tape) inPlace(x *Tensor) *Tensor {
	if x.param != nil {
		panic(fmt.Sprintf("framework: an operation in the memory of parameter %s would change its value", x.param.Name))
	}
	y := &Tensor{shape: x.shape, dtype: x.dtype}
	t.live = append(t.live, y)
	return y
}

// takePlace puts y where x is.
func takePlace(y, x *Tensor) {
	y.st = x.st
	y.st.refs++
}

type addTo[T kernel.Float] struct{ addOp[T] }

func (*addTo[T]) placesOutput() {}

func (o *addTo[T]) forward(t *Tape) {
	o.place()
	o.addOp.forward(t)
}

func (o *addTo[T]) place() { takePlace(o.y, o.b) }

func (o *addTo[T]) under() *Tensor { return o.b }

// Mul returns a·b, elementwise, for equal shapes.
func (t *Tape) Mul(a, b *Tensor) *Tensor {
	if !sameShape(a, b) {
		panic(fmt.Sprintf("framework: Mul of %v and %v", a.shape, b.shape))
	}
	y := t.result(a.shape...)
	if t.wide() {
		return t.record("Mul", &mulOp[float64]{a, b, y}, y, a, b)
	}
	return t.record("Mul", &mulOp[float32]{a, b, y}, y, a, b)
}

type mulOp[T kernel.Float] struct{ a, b, y *Tensor }

func (o *mulOp[T]) working(*Tape) (forward, backward int) {
	return widened(o.a, o.b, o.y), widened(o.y, o.a, o.b)
}

func (o *mulOp[T]) forward(t *Tape) {
	a, b, y := read[T](t, o.a), read[T](t, o.b), write[T](t, o.y)
	kernel.Mul(y.s, a.s, b.s)
	y.commit()
	a.free()
	b.free()
}

func (o *mulOp[T]) backward(t *Tape) {
	dy := readGrad[T](t, o.y)
	defer dy.free()
	for _, pair := range [2][2]*Tensor{{o.a, o.b}, {o.b, o.a}} {
		to, other := pair[0], pair[1]
		if !to.needsGrad() {
			continue
		}
		v, g := read[T](t, other), gradient[T](t, to)
		if g.acc {
			kernel.MulAccumulate(g.s, dy.s, v.s)
		} else {
			kernel.Mul(g.s, dy.s, v.s)
		}
		g.commit()
		v.free()
	}
}

// AddChannel returns x [B,C,H,W] with v [B,C] added to every position of each
// channel.
func (t *Tape) AddChannel(x, v *Tensor) *Tensor {
	checkChannels("AddChannel", x, v)
	y := t.result(x.shape...)
	if t.wide() {
		return t.record("AddChannel", &addChannel[float64]{x, v, y}, y, x, v)
	}
	return t.record("AddChannel", &addChannel[float32]{x, v, y}, y, x, v)
}

func checkChannels(op string, x, v *Tensor) {
	if len(v.shape) != 2 || v.Dim(0) != x.Dim(0) || v.Dim(1) != x.Dim(1) {
		panic(fmt.Sprintf("framework: %s of x %v with %v: want [%d %d]", op, x.shape, v.shape, x.Dim(0), x.Dim(1)))
	}
}

type addChannel[T kernel.Float] struct{ x, v, y *Tensor }

func (o *addChannel[T]) working(*Tape) (forward, backward int) { return 0, 0 }

func (o *addChannel[T]) forward(t *Tape) {
	n, c := o.x.Dim(0), o.x.Dim(1)
	if t.half() {
		v := read[float32](t, o.v)
		kernel.AddChannelStored(o.y.Data(), o.x.Data(), v.s, n, c, o.x.Len()/(n*c))
		v.free()
		return
	}
	x, v, y := read[T](t, o.x), read[T](t, o.v), write[T](t, o.y)
	kernel.AddChannel(y.s, x.s, v.s, n, c, len(x.s)/(n*c))
	y.commit()
	x.free()
	v.free()
}

func (o *addChannel[T]) backward(t *Tape) {
	if o.v.needsGrad() {
		n, c := o.x.Dim(0), o.x.Dim(1)
		sumPlanes[T](t, o.v, o.y, n, c)
	}
	if o.x.needsGrad() {
		give[T](t, o.x, o.y)
	}
}

// AddChannelTo is AddChannel in the memory of x, whose value must not be used by
// anything else; see AddTo.
func (t *Tape) AddChannelTo(x, v *Tensor) *Tensor {
	checkChannels("AddChannelTo", x, v)
	y := t.inPlace(x)
	if t.wide() {
		return t.record("AddChannelTo", &addChannelTo[float64]{addChannel[float64]{x, v, y}}, y, x, v)
	}
	return t.record("AddChannelTo", &addChannelTo[float32]{addChannel[float32]{x, v, y}}, y, x, v)
}

type addChannelTo[T kernel.Float] struct{ addChannel[T] }

func (*addChannelTo[T]) placesOutput() {}

func (o *addChannelTo[T]) forward(t *Tape) {
	o.place()
	o.addChannel.forward(t)
}

func (o *addChannelTo[T]) place() { takePlace(o.y, o.x) }

func (o *addChannelTo[T]) under() *Tensor { return o.x }

// sumPlanes contributes the sum of each of the n*c planes of the gradient of y to
// v.
func sumPlanes[T kernel.Float](t *Tape, v, y *Tensor, n, c int) {
	hw := y.Len() / (n * c)
	if t.half() {
		dv := gradient[float32](t, v)
		kernel.SumChannelStored(dv.s, y.gradData(), n, c, hw, dv.acc)
		dv.commit()
		return
	}
	dy, dv := readGrad[T](t, y), gradient[T](t, v)
	kernel.SumChannel(dv.s, dy.s, n, c, hw, dv.acc)
	dv.commit()
	dy.free()
}

// ScaleShift returns x·(1+s)+b for x [B,C,H,W] and s, b [B,C].
func (t *Tape) ScaleShift(x, s, b *Tensor) *Tensor {
	checkChannels("ScaleShift", x, s)
	checkChannels("ScaleShift", x, b)
	y := t.result(x.shape...)
	if t.wide() {
		return t.record("ScaleShift", &scaleShift[float64]{x, s, b, y}, y, x, s, b)
	}
	return t.record("ScaleShift", &scaleShift[float32]{x, s, b, y}, y, x, s, b)
}

type scaleShift[T kernel.Float] struct{ x, s, b, y *Tensor }

func (o *scaleShift[T]) working(*Tape) (forward, backward int) {
	forward = widened(o.x, o.s, o.b, o.y)
	return forward, widened(o.x, o.s, o.y, o.x)
}

func (o *scaleShift[T]) forward(t *Tape) {
	x, s, b, y := read[T](t, o.x), read[T](t, o.s), read[T](t, o.b), write[T](t, o.y)
	n, c := o.x.Dim(0), o.x.Dim(1)
	kernel.ScaleShift(y.s, x.s, s.s, b.s, n, c, len(x.s)/(n*c))
	y.commit()
	x.free()
	s.free()
	b.free()
}

func (o *scaleShift[T]) backward(t *Tape) {
	x, s, dy := read[T](t, o.x), read[T](t, o.s), readGrad[T](t, o.y)
	n, c := o.x.Dim(0), o.x.Dim(1)
	// One contribution at a time: s and b may be one tensor.
	for _, in := range [3]*Tensor{o.b, o.s, o.x} {
		if !in.needsGrad() {
			continue
		}
		g := gradient[T](t, in)
		var dx, ds, db []T
		switch in {
		case o.x:
			dx = g.s
		case o.s:
			ds = g.s
		default:
			db = g.s
		}
		kernel.ScaleShiftBackward(dx, ds, db, x.s, s.s, dy.s, n, c, len(x.s)/(n*c), g.acc, g.acc)
		g.commit()
	}
	x.free()
	s.free()
	dy.free()
}
