package framework

import (
	"strings"
	"time"
)

// Pass says why an operation ran.
type Pass uint8

const (
	// PassForward is the first run of an operation.
	PassForward Pass = iota
	// PassRecompute is a further run, inside the backward pass of a checkpointed segment.
	PassRecompute
	// PassBackward is the computation of gradients.
	PassBackward
)

// String returns forward, recompute or backward.
func (p Pass) String() string { return [...]string{"forward", "recompute", "backward"}[p] }

// Work is the arithmetic of one execution: multiply-accumulates of matrix products and
// convolutions, and all floating-point operations, of which each of those is two.
type Work struct{ MACs, FLOPs int64 }

// Execution is one run of one operation.
type Execution struct {
	// Module is the dotted name of the module that the operation belongs to: the owner
	// of its first parameter, by the parameter's name, or else the module that was
	// entered last. It is empty outside all modules.
	Module string
	Op     string // for instance "Conv2d"
	Pass   Pass
	Work   Work
	Start  time.Time
	Time   time.Duration // gradient hooks and, of a segment, the operations inside not included
}

// Observer is called after each operation, on the goroutine of the tape. It must not
// use the tape.
type Observer func(Execution)

// SetObserver makes o see every operation from here on; nil ends that. What is
// computed does not change by a bit. An observer may be set between passes only.
func (t *Tape) SetObserver(o Observer) { t.observer = o }

// EnterModule names the module that the following operations belong to, as far as
// their parameters do not say. It returns what LeaveModule takes:
//
//	defer t.LeaveModule(t.EnterModule("blocks.0.attention"))
func (t *Tape) EnterModule(name string) (outer string) {
	outer, t.module = t.module, name
	return outer
}

// LeaveModule goes back to the module that EnterModule returned.
func (t *Tape) LeaveModule(outer string) { t.module = outer }

// perform runs an operation forward, for the observer if there is one.
func (t *Tape) perform(name string, op operation, out *Tensor, in []*Tensor) {
	if t.observer == nil {
		t.run(op, out, in)
		return
	}
	pass := PassForward
	if t.running {
		pass = PassRecompute
	}
	start := time.Now()
	t.run(op, out, in)
	t.observe(name, op, in, pass, start)
}

// performGradient runs an operation backward, for the observer if there is one.
func (t *Tape) performGradient(n *node) {
	t.module = n.module // also of what a segment computes again
	if t.observer == nil {
		t.runGradient(n)
		return
	}
	start := time.Now()
	t.runGradient(n)
	t.observe(n.name, n.op, n.in, PassBackward, start)
}

func (t *Tape) observe(name string, op operation, in []*Tensor, pass Pass, start time.Time) {
	if _, segment := op.(*reentrantOp); segment {
		return // its operations have been observed one by one
	}
	e := Execution{Module: t.module, Op: name, Pass: pass, Start: start, Time: time.Since(start)}
	for _, x := range in {
		if x.param != nil {
			e.Module = x.param.Name[:max(0, strings.LastIndexByte(x.param.Name, '.'))]
			break
		}
	}
	if c, ok := op.(counted); ok {
		e.Work = c.work(pass == PassBackward)
	}
	t.observer(e)
}
