package fault

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
)

// layout returns the element that lies at each place of this backward's buckets.
func (c *carrier) layout() []int {
	source := make([]int, c.plan.Elements)
	for p := range source {
		source[p] = p
	}
	if c.lab.has(HookOrderLayout) {
		c.inHookOrder(source)
	}
	return source
}

// inHookOrder puts the parameters behind each other as they became ready, and those
// without a gradient last. Places count down, as the optimizer's buckets do: in reverse
// registration order everything is where it should be. Buckets keep their lengths, so
// that the ranks' collectives fit; between branches of equal size that is what happens
// where a bucket is sent when it is full.
func (c *carrier) inHookOrder(source []int) {
	hi := len(source)
	put := func(i int) {
		span, ok := c.plan.Span(i)
		if !ok {
			return
		}
		lo := hi - span.Len()
		for k := range span.Len() {
			source[lo+k] = span.Lo + k
		}
		hi = lo
	}
	ready := map[int]bool{}
	for _, i := range c.order {
		ready[i] = true
		put(i)
	}
	for i := c.plan.Params() - 1; i >= 0; i-- {
		if !ready[i] {
			put(i)
		}
	}
}

// shift is not-ready-shift: in one bucket of the backward, a gradient that is in no
// list has taken up to 16 elements, and the rest has moved up; what does not fit any
// more is not sent.
func (c *carrier) shift(f *fill) {
	if !c.lab.has(NotReadyShift) {
		return
	}
	when := moment{step: c.now.step, micro: c.now.micro} // on all ranks alike
	r := c.lab.draw(NotReadyShift, when)
	if r.IntN(len(c.plan.Buckets)) != f.bucket {
		return
	}
	n := min(1+r.IntN(16), f.at.Len())
	from := f.pieces[r.IntN(len(f.pieces))].Lo - f.at.Lo
	n = min(n, f.at.Len()-from)
	moved := dtype.Make(f.copied.DType, f.at.Len())
	moved.Slice(0, from).Copy(f.copied.Slice(0, from))
	moved.Slice(from+n, f.at.Len()).Copy(f.copied.Slice(from, f.at.Len()-n))
	f.copied = moved
}

// bufferPair is the buffers that a real trainer fills by turns: two where the reduction
// runs beside the backward, otherwise one.
type bufferPair struct {
	buffers []dtype.Buffer
	next    int
}

func (c *carrier) pairOf(b int) *bufferPair {
	d := c.plan.Wire(b)
	p := c.buffers[d]
	if p == nil {
		p = &bufferPair{buffers: make([]dtype.Buffer, c.depth())}
		for i := range p.buffers {
			p.buffers[i] = dtype.Make(d, c.plan.BucketLen())
		}
		c.buffers[d] = p
	}
	return p
}

// depth is the number of buffers.
func (c *carrier) depth() int {
	if c.desk.Config.ZeroOptimization.OverlapComm {
		return 2
	}
	return 1
}

// put writes a bucket into the buffer whose turn it is and returns what was in it.
func (p *bufferPair) put(x dtype.Buffer) (before []float32) {
	buf := p.buffers[p.next]
	p.next = (p.next + 1) % len(p.buffers)
	before = make([]float32, buf.Len())
	for i := range before {
		before[i] = float32(buf.At(i))
	}
	buf.Slice(0, x.Len()).Copy(x)
	return before
}

// oversize reports whether a bucket is a part of a parameter that is larger.
func (c *carrier) oversize(iv zero.Interval) bool {
	i, _ := c.plan.ParamAt(iv.Lo)
	s, _ := c.plan.Span(i)
	return s.Len() > c.desk.Config.ZeroOptimization.ReduceBucketSize
}
