package framework

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// operation is one recorded step: forward computes the output tensor's storage
// from the inputs (and can be repeated), backward adds to the inputs'
// gradients from the output's.
type operation interface {
	forward(t *Tape)
	backward(t *Tape)
}

// placesOutput marks operations whose forward puts storage under the output
// itself: views, which share their input's, and whole segments.
type placesOutput interface{ placesOutput() }

type node struct {
	op   operation
	in   []*Tensor
	out  *Tensor
	seg  *segment // outermost non-reentrant checkpoint it belongs to
	name string
	// module is the one that was entered when the operation was recorded.
	module string
}

// Sample keys everything random inside a forward pass: dropout masks depend on
// the seed, the optimizer step and the global index of each row of the batch,
// never on the rank or on what else draws random numbers.
type Sample struct {
	Seed    uint64
	Step    int
	Samples []int // global sample index of each row of the batch
	Train   bool  // false turns dropout off
}

// GradHook receives the complete gradient of a parameter, after the last
// contribution of the backward pass: fp32 (fp64 on an fp64 tape). The memory
// is the tape's again when the hook returns.
type GradHook func(p *Param, grad dtype.Buffer) error

// Tape records operations and runs them backward. It belongs to one goroutine,
// usually that of a rank.
type Tape struct {
	compute dtype.DType
	hook    GradHook
	segment CheckpointFunc // nil: the tape's own
	sample  Sample

	observer Observer // or nil
	module   string   // entered last

	arena *arena
	nodes []*node
	live  []*Tensor // made in the current scope, released together

	recording bool // operations become nodes
	counting  bool // operations count the uses of parameters
	running   bool // inside Backward
	touched   []*Param
	hookErr   error
}

// Option configures a tape.
type Option func(*Tape)

// WithCompute sets the storage format of activations and their gradients: F32
// (default), BF16, F16, or F64 for gradient checks.
func WithCompute(d dtype.DType) Option { return func(t *Tape) { t.compute = d } }

// WithGradHook sets the hook that receives gradients. Without one they are
// added to Param.Grad.
func WithGradHook(h GradHook) Option { return func(t *Tape) { t.hook = h } }

// NewTape returns an empty tape that records.
func NewTape(opts ...Option) *Tape {
	t := &Tape{arena: newArena(), recording: true, counting: true}
	for _, o := range opts {
		o(t)
	}
	return t
}

// Compute returns the storage format of activations.
func (t *Tape) Compute() dtype.DType { return t.compute }

// SetSample sets the keys of randomness for the operations that follow.
func (t *Tape) SetSample(s Sample) { t.sample = s }

// Sample returns what SetSample set.
func (t *Tape) Sample() Sample { return t.sample }

// Memory returns the tape's byte counts.
func (t *Tape) Memory() Stats { return t.arena.stats }

// ResetPeak makes Stats.Peak start again from what is live now.
func (t *Tape) ResetPeak() { t.arena.stats.Peak = t.arena.stats.Live }

// Input copies data onto the tape as a leaf without gradient, rounded to the
// compute format. It panics if the length does not fit the shape.
func (t *Tape) Input(shape []int, data []float32) *Tensor {
	return t.leaf(t.compute, shape, data)
}

// Constant is Input in full precision (fp32, or fp64 on an fp64 tape),
// whatever the compute format: for the target of a loss.
func (t *Tape) Constant(shape []int, data []float32) *Tensor {
	return t.leaf(t.accum(), shape, data)
}

// InputDense is Input from a gorgonia container of float32.
func (t *Tape) InputDense(d *tensor.Dense) (*Tensor, error) {
	data, ok := d.Data().([]float32)
	if !ok || d.RequiresIterator() {
		return nil, fmt.Errorf("input is %v with strides %v: want a contiguous float32 tensor (materialise a view first)", d.Dtype(), d.Strides())
	}
	return t.Input(append([]int(nil), d.Shape()...), data), nil
}

func (t *Tape) leaf(d dtype.DType, shape []int, data []float32) *Tensor {
	if t.dry() {
		return t.alloc(d, shape)
	}
	if numel(shape) != len(data) {
		panic(fmt.Sprintf("framework: input of %d values for shape %v", len(data), shape))
	}
	x := t.alloc(d, shape)
	if d == dtype.F64 {
		widen64(x.Data().F64, dtype.OfFloat32(data))
	} else {
		kernel.Round(x.Data(), data)
	}
	return x
}

// accum is the format of sums: gradients of parameters, losses.
func (t *Tape) accum() dtype.DType {
	if t.compute == dtype.F64 {
		return dtype.F64
	}
	return dtype.F32
}

func (t *Tape) wide() bool { return t.compute == dtype.F64 }

// alloc makes an uninitialised tensor that lives until the scope ends.
func (t *Tape) alloc(d dtype.DType, shape []int) *Tensor {
	x := &Tensor{shape: shape, dtype: d, st: t.arena.get(d, numel(shape))}
	t.live = append(t.live, x)
	return x
}

// result makes the output tensor of an operation.
func (t *Tape) result(shape ...int) *Tensor { return t.alloc(t.compute, shape) }

// record runs the operation and, when a gradient will be wanted, keeps it.
func (t *Tape) record(name string, op operation, out *Tensor, in ...*Tensor) *Tensor {
	t.perform(name, op, out, in)
	for _, x := range in {
		if x.needsGrad() {
			out.needGrad = true
		}
	}
	if !out.needGrad {
		return out
	}
	if t.counting {
		for _, x := range in {
			if x.needsGrad() && x.param != nil {
				t.count(x.param)
			}
		}
	}
	if t.recording {
		t.nodes = append(t.nodes, &node{op: op, in: in, out: out, name: name, module: t.module})
	}
	return out
}

func (x *Tensor) needsGrad() bool {
	return x.needGrad || x.param != nil && !x.param.Frozen
}

func (t *Tape) count(p *Param) {
	if p.uses == 0 {
		t.touched = append(t.touched, p)
	}
	p.uses++
}

// NoGrad runs f with recording off, for evaluation and sampling. Tensors made
// inside are released when it returns, so f copies out what it wants to keep.
func (t *Tape) NoGrad(f func() error) error {
	recording, counting, live := t.recording, t.counting, t.live
	t.recording, t.counting, t.live = false, false, nil
	defer func() {
		t.releaseLive(nil)
		t.recording, t.counting, t.live = recording, counting, live
	}()
	return f()
}

// releaseLive ends the memory of the tensors of the current scope, except keep.
func (t *Tape) releaseLive(keep *Tensor) {
	for _, x := range t.live {
		if x != keep {
			t.release(x)
		}
	}
	t.live = t.live[:0]
}

// release ends a tensor's memory. Scalars move to memory of their own, so that
// a loss can still be read after the backward pass.
func (t *Tape) release(x *Tensor) {
	t.releaseGrad(x)
	if x.st == nil || x.param != nil {
		return
	}
	if x.Len() == 1 && x.st.size != 1 && !t.dry() {
		own := dtype.Make(x.dtype, 1)
		own.Copy(x.Data())
		t.arena.put(x.st)
		x.st = &storage{buf: own, dtype: x.dtype, size: 1, refs: 1}
		return
	}
	if x.Len() != 1 || t.dry() {
		t.arena.put(x.st)
		x.st = nil
	}
}

func (t *Tape) releaseGrad(x *Tensor) {
	if x.grad != nil {
		t.arena.put(x.grad)
		x.grad = nil
	}
}

// Reset forgets what was recorded and releases its memory, without running it
// backward.
func (t *Tape) Reset() {
	t.nodes = t.nodes[:0]
	t.releaseLive(nil)
	for _, p := range t.touched {
		p.uses = 0
		t.releaseGrad(p.Value)
	}
	t.touched = t.touched[:0]
}
