package framework

import "github.com/zerogap/zerogap/dtype"

// WithDryRun makes a tape that records, checkpoints and runs backward without
// computing anything: tensors have sizes and no elements, and Memory counts what a
// pass would take. Inputs may be nil, and parameters made by NewDryParam. It answers
// how much activation memory a model will need, for a small part of the time and
// none of the memory.
func WithDryRun() Option { return func(t *Tape) { t.arena.dry = true } }

// NewDryParam makes a parameter stored as d without values, for tapes made
// WithDryRun.
func NewDryParam(name string, d dtype.DType, shape ...int) *Param {
	p := &Param{Name: name}
	p.Value = &Tensor{shape: shape, dtype: d, st: &storage{dtype: d, size: numel(shape), refs: 1}, param: p}
	return p
}

// dry reports whether the tape computes nothing.
func (t *Tape) dry() bool { return t.arena.dry }

// placer is an operation whose output lies in the memory of an input, which also
// takes the gradient of the output as it is.
type placer interface {
	place()
	under() *Tensor // the input
}

// worker is an operation that tells how many float32 elements it takes in its
// forward and in its backward pass beside inputs, outputs and gradients. The others
// widen all 16-bit operands and take nothing else.
type worker interface {
	working(t *Tape) (forward, backward int)
}

// run is op.forward, or what remains of it on a dry tape.
func (t *Tape) run(op operation, out *Tensor, in []*Tensor) {
	if !t.dry() {
		op.forward(t)
		return
	}
	if p, ok := op.(placer); ok {
		p.place()
	}
	if _, ok := op.(*reentrantOp); ok {
		op.forward(t)
		return
	}
	forward, _ := t.working(op, out, in)
	t.touch(forward)
}

// runGradient is op.backward, or what remains of it on a dry tape.
func (t *Tape) runGradient(n *node) {
	if !t.dry() {
		n.op.backward(t)
		return
	}
	if _, ok := n.op.(*reentrantOp); ok {
		n.op.backward(t)
		return
	}
	_, backward := t.working(n.op, n.out, n.in)
	work := t.arena.get(dtype.F32, backward)
	for _, x := range n.in {
		if !x.needsGrad() || x.grad != nil {
			continue
		}
		if p, ok := n.op.(placer); ok && p.under() == x && n.out.grad.dtype == t.gradFormat(x) {
			x.grad, n.out.grad = n.out.grad, nil
			continue
		}
		x.grad = t.arena.get(t.gradFormat(x), x.Len())
	}
	t.arena.put(work)
}

// touch counts working memory that is there for a moment.
func (t *Tape) touch(elements int) {
	if elements > 0 {
		t.arena.put(t.arena.get(dtype.F32, elements))
	}
}

func (t *Tape) working(op operation, out *Tensor, in []*Tensor) (forward, backward int) {
	if w, ok := op.(worker); ok {
		return w.working(t)
	}
	if _, ok := op.(placer); ok || !t.half() {
		return 0, 0
	}
	forward = widened(append([]*Tensor{out}, in...)...)
	return forward, 2 * forward // operands and gradients
}

// widened is the number of elements among those of xs that are stored in 16 bits:
// what spans of them take.
func widened(xs ...*Tensor) int {
	n := 0
	for _, x := range xs {
		if x.dtype.Half() {
			n += x.Len()
		}
	}
	return n
}
