package fault

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

// segments puts the faults of reentrant checkpointing in place.
func (r *Rank) segments() {
	var e *epilogue
	if r.lab.has(FirstBackwardEpilogue) {
		e = &epilogue{}
		r.Hook = e.hook
	}
	unrecords := r.lab.has(ReentrantNoGradInput)
	if e == nil && !unrecords {
		return
	}
	r.Tape = append(r.Tape, framework.WithCheckpoint(func(own framework.CheckpointFunc) framework.CheckpointFunc {
		if e != nil {
			own = e.watch(own)
		}
		if unrecords {
			own = unrecorded(own)
		}
		return own
	}))
}

// unrecorded is reentrant-no-grad-input: a segment is one operation, and an operation
// whose inputs need no gradient is not recorded. That is so for a segment that begins at
// the data; those behind it have a second input, such as the time embedding, that needs
// one.
func unrecorded(own framework.CheckpointFunc) framework.CheckpointFunc {
	var last *framework.Tensor // output of a segment that was not recorded
	return func(t *framework.Tape, mode framework.Mode, x *framework.Tensor, f func(*framework.Tensor) *framework.Tensor) *framework.Tensor {
		if mode != framework.ModeReentrant || x.NeedsGrad() || x == last {
			return own(t, mode, x, f)
		}
		var shape []int
		var values []float32
		_ = t.NoGrad(func() error { // it fails only where f does
			y := f(x)
			shape, values = append(shape, y.Shape()...), y.Float32s()
			return nil
		})
		last = t.Input(shape, values)
		return last
	}
}

// epilogue is first-backward-epilogue. The inner backward of a segment begins when its
// function is called for the second time; when the next one's is, the first has ended,
// and with it, here, the reduction.
type epilogue struct {
	inner int // inner backwards that have begun in this pass
}

// watch counts the inner backwards.
func (e *epilogue) watch(own framework.CheckpointFunc) framework.CheckpointFunc {
	return func(t *framework.Tape, mode framework.Mode, x *framework.Tensor, f func(*framework.Tensor) *framework.Tensor) *framework.Tensor {
		if mode != framework.ModeReentrant {
			return own(t, mode, x, f)
		}
		calls := 0
		return own(t, mode, x, func(x *framework.Tensor) *framework.Tensor {
			if calls++; calls == 1 {
				e.inner = 0 // a forward pass
			} else {
				e.inner++
			}
			return f(x)
		})
	}
}

// hook drops the gradients that come after the end.
func (e *epilogue) hook(next framework.GradHook) framework.GradHook {
	return func(p *framework.Param, grad dtype.Buffer) error {
		if e.inner > 1 {
			return nil
		}
		return next(p, grad)
	}
}
