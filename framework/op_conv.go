package framework

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Padding is the number of zero rows and columns around an image.
type Padding struct{ Top, Left, Bottom, Right int }

// Pad returns the same padding on all sides.
func Pad(n int) Padding { return Padding{n, n, n, n} }

// Conv2d returns the cross-correlation of x [B,C,H,W] with w [O,C,KH,KW], plus
// b [O] or nil: shape [B,O,OutH,OutW] with OutH = (H+Top+Bottom-KH)/stride + 1
// rounded down.
func (t *Tape) Conv2d(x, w, b *Tensor, stride int, pad Padding) *Tensor {
	c := newConv("Conv2d", x.shape, w, b, stride, pad)
	y := t.result(c.N, c.O, c.OutH(), c.OutW())
	ins := []*Tensor{x, w}
	if b != nil {
		ins = append(ins, b)
	}
	if t.wide() {
		return t.record("Conv2d", &conv2d[float64]{c, x, w, b, y}, y, ins...)
	}
	return t.record("Conv2d", &conv2d[float32]{c, x, w, b, y}, y, ins...)
}

// newConv describes the convolution of an input of shape x.
func newConv(op string, x []int, w, b *Tensor, stride int, pad Padding) kernel.Conv {
	if len(x) != 4 || len(w.shape) != 4 || x[1] != w.Dim(1) || b != nil && b.Len() != w.Dim(0) {
		panic(fmt.Sprintf("framework: %s of x %v with weight %v", op, x, w.shape))
	}
	c := kernel.Conv{
		N: x[0], C: x[1], H: x[2], W: x[3],
		O: w.Dim(0), KH: w.Dim(2), KW: w.Dim(3), Stride: stride,
		PadTop: pad.Top, PadLeft: pad.Left, PadBottom: pad.Bottom, PadRight: pad.Right,
	}
	if c.OutH() < 1 || c.OutW() < 1 {
		panic(fmt.Sprintf("framework: %s of x %v with weight %v, stride %d, padding %v has no output", op, x, w.shape, stride, pad))
	}
	return c
}

type conv2d[T kernel.Float] struct {
	c          kernel.Conv
	x, w, b, y *Tensor
}

func (o *conv2d[T]) working(t *Tape) (forward, backward int) {
	if !t.half() {
		return 0, 0
	}
	w := widened(o.w) // parameters are widened whole
	if o.c.Stride == 1 {
		return w, w
	}
	return w, w + widened(o.y, o.x)
}

func (o *conv2d[T]) forward(t *Tape) {
	if t.half() {
		o.forwardStored(t)
		return
	}
	x, w, y := read[T](t, o.x), read[T](t, o.w), write[T](t, o.y)
	var b span[T]
	if o.b != nil {
		b = read[T](t, o.b)
	}
	kernel.ConvForward(o.c, x.s, w.s, b.s, y.s)
	b.free()
	y.commit()
	x.free()
	w.free()
}

func (o *conv2d[T]) forwardStored(t *Tape) {
	w := read[float32](t, o.w)
	var b span[float32]
	if o.b != nil {
		b = read[float32](t, o.b)
	}
	kernel.ConvForwardStored(o.c, o.x.Data(), w.s, b.s, o.y.Data())
	b.free()
	w.free()
}

func (o *conv2d[T]) backward(t *Tape) {
	if o.b != nil && o.b.needsGrad() {
		o.backwardBias(t)
	}
	if t.half() {
		o.backwardStored(t)
		return
	}
	dy := readGrad[T](t, o.y)
	defer dy.free()
	if o.w.needsGrad() {
		x, dw := read[T](t, o.x), gradient[T](t, o.w)
		kernel.ConvBackwardWeight(o.c, x.s, dy.s, dw.s, nil, dw.acc)
		dw.commit()
		x.free()
	}
	if o.x.needsGrad() {
		o.backwardInput(t, dy.s)
	}
}

func (o *conv2d[T]) backwardInput(t *Tape, dy []T) {
	w, dx := read[T](t, o.w), gradient[T](t, o.x)
	kernel.ConvBackwardInput(o.c, w.s, dy, dx.s, dx.acc)
	dx.commit()
	w.free()
}

func (o *conv2d[T]) backwardStored(t *Tape) {
	if o.w.needsGrad() {
		dw := gradient[float32](t, o.w)
		kernel.ConvBackwardWeightStored(o.c, o.x.Data(), o.y.gradData(), dw.s, dw.acc)
		dw.commit()
	}
	switch {
	case !o.x.needsGrad():
	case o.c.Stride == 1:
		w := read[float32](t, o.w)
		dx, acc := t.gradientStored(o.x)
		kernel.ConvBackwardInputStored(o.c, w.s, o.y.gradData(), dx, acc)
		w.free()
	default: // results that belong together lie apart
		dy := readGrad[T](t, o.y)
		o.backwardInput(t, dy.s)
		dy.free()
	}
}

// backwardBias sums the gradient of y over each plane, then over the batch.
func (o *conv2d[T]) backwardBias(t *Tape) {
	c := o.c
	planes := scratch[T](t, c.N*c.O)
	if t.half() {
		kernel.SumChannelStored(float32Only(planes), o.y.gradData(), c.N, c.O, c.OutH()*c.OutW(), false)
	} else {
		dy := readGrad[T](t, o.y)
		kernel.SumChannel(planes.s, dy.s, c.N, c.O, c.OutH()*c.OutW(), false)
		dy.free()
	}
	db := gradient[T](t, o.b)
	kernel.SumRows(db.s, planes.s, c.N, c.O, db.acc)
	db.commit()
	planes.free()
}

// UpsampleConv2d is Conv2d(UpsampleNearest(x, oh, ow), w, b, stride, pad), the same
// bits, without keeping the large tensor between them: the backward pass repeats the
// pixels again.
func (t *Tape) UpsampleConv2d(x *Tensor, oh, ow int, w, b *Tensor, stride int, pad Padding) *Tensor {
	c := newConv("UpsampleConv2d", []int{x.Dim(0), x.Dim(1), oh, ow}, w, b, stride, pad)
	y := t.result(c.N, c.O, c.OutH(), c.OutW())
	ins := []*Tensor{x, w}
	if b != nil {
		ins = append(ins, b)
	}
	between := &Tensor{shape: []int{c.N, c.C, oh, ow}, dtype: t.compute}
	if t.wide() {
		return t.record("UpsampleConv2d", &upsampleConv[float64]{upsample[float64]{x, between}, conv2d[float64]{c, between, w, b, y}}, y, ins...)
	}
	return t.record("UpsampleConv2d", &upsampleConv[float32]{upsample[float32]{x, between}, conv2d[float32]{c, between, w, b, y}}, y, ins...)
}

// upsampleConv runs one operation into the other through a tensor that has memory
// only while they run.
type upsampleConv[T kernel.Float] struct {
	up   upsample[T]
	conv conv2d[T]
}

func (o *upsampleConv[T]) working(t *Tape) (forward, backward int) {
	forward, backward = o.conv.working(t)
	between := o.up.y.Len() * o.up.y.dtype.Size() / 4 // in elements of float32
	// What the convolution widens has been given back when the gradient of the large
	// tensor is summed up.
	return forward + between, 2*between + max(backward, widened(o.up.y, o.up.x))
}

func (o *upsampleConv[T]) forward(t *Tape) {
	o.upsampled(t)
	defer o.drop(t)
	o.conv.forward(t)
}

func (o *upsampleConv[T]) backward(t *Tape) {
	o.upsampled(t)
	defer o.drop(t)
	between := o.up.y
	between.needGrad = o.up.x.needsGrad()
	o.conv.backward(t)
	if between.needGrad {
		o.up.backward(t)
	}
}

func (o *upsampleConv[T]) upsampled(t *Tape) {
	o.up.y.st = t.arena.get(o.up.y.dtype, o.up.y.Len())
	o.up.forward(t)
}

func (o *upsampleConv[T]) drop(t *Tape) {
	t.releaseGrad(o.up.y)
	t.drop(o.up.y)
}

// UpsampleNearest resizes x [B,C,H,W] to [B,C,oh,ow] by repeating pixels:
// output row i shows input row ⌊i·H/oh⌋.
func (t *Tape) UpsampleNearest(x *Tensor, oh, ow int) *Tensor {
	y := t.result(x.Dim(0), x.Dim(1), oh, ow)
	if t.wide() {
		return t.record("UpsampleNearest", &upsample[float64]{x, y}, y, x)
	}
	return t.record("UpsampleNearest", &upsample[float32]{x, y}, y, x)
}

type upsample[T kernel.Float] struct{ x, y *Tensor }

func (o *upsample[T]) working(*Tape) (forward, backward int) {
	backward = widened(o.x, o.y)
	if o.x.dtype == o.y.dtype {
		return 0, backward
	}
	return backward, backward
}

func (o *upsample[T]) forward(t *Tape) {
	planes, h, w, oh, ow := o.x.Dim(0)*o.x.Dim(1), o.x.Dim(2), o.x.Dim(3), o.y.Dim(2), o.y.Dim(3)
	if t.half() && o.x.dtype == o.y.dtype {
		kernel.UpsampleNearestStored(o.y.Data(), o.x.Data(), planes, h, w, oh, ow)
		return
	}
	x, y := read[T](t, o.x), write[T](t, o.y)
	kernel.UpsampleNearest(y.s, x.s, planes, h, w, oh, ow)
	y.commit()
	x.free()
}

func (o *upsample[T]) backward(t *Tape) {
	dy, dx := readGrad[T](t, o.y), gradient[T](t, o.x)
	kernel.UpsampleNearestBackward(dx.s, dy.s, o.x.Dim(0)*o.x.Dim(1), o.x.Dim(2), o.x.Dim(3), o.y.Dim(2), o.y.Dim(3), dx.acc)
	dx.commit()
	dy.free()
}
