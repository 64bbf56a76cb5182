package framework

import (
	"errors"
	"fmt"

	"github.com/zerogap/zerogap/dtype"
)

// Backward runs the tape backward from a scalar loss whose gradient is seed (1,
// or a loss scale), hands every parameter's gradient to the hook once, after
// its last contribution, and resets the tape.
//
// Contributions to one tensor are added in reverse order of use. Activations
// and their gradients are released as the pass goes by. An error of a hook ends
// the pass and is returned.
func (t *Tape) Backward(loss *Tensor, seed float64) error {
	switch {
	case t.running:
		return errors.New("backward called inside a backward pass")
	case loss.Len() != 1:
		return fmt.Errorf("backward from a tensor of shape %v: want a scalar loss", loss.shape)
	}
	t.running, t.hookErr = true, nil
	defer func(module string) {
		t.running, t.module = false, module
		t.Reset()
	}(t.module)
	if !loss.needGrad {
		return nil // no parameter took part: every gradient is zero
	}
	t.seedGrad(loss, seed)
	if err := t.runBackward(t.nodes); err != nil {
		return err
	}
	return t.flushParams()
}

func (t *Tape) seedGrad(loss *Tensor, seed float64) {
	loss.grad = t.arena.get(loss.dtype, 1)
	if t.dry() {
		return
	}
	switch b := loss.grad.buf; b.DType {
	case dtype.F64:
		b.F64[0] = seed
	case dtype.F32:
		b.F32[0] = float32(seed)
	default:
		b.U16[0] = dtype.FromFloat32(b.DType, float32(seed))
	}
}

// runBackward walks nodes from last to first. All consumers of a node's output
// come after it, so when its turn is over, its output is needed no more.
func (t *Tape) runBackward(nodes []*node) error {
	for i := len(nodes) - 1; i >= 0; i-- {
		n := nodes[i]
		if n.out.grad != nil {
			if n.seg != nil {
				n.seg.replay(t)
			}
			t.performGradient(n)
		}
		t.release(n.out)
		for _, x := range n.in {
			if x.param != nil && x.needsGrad() {
				t.contributed(x.param)
			}
		}
		if t.hookErr != nil {
			return t.hookErr
		}
	}
	return nil
}

// contributed notes that one use of p has been dealt with, and hands the
// gradient over after the last.
func (t *Tape) contributed(p *Param) {
	p.uses--
	if p.uses == 0 {
		t.deliver(p)
	}
}

func (t *Tape) deliver(p *Param) {
	g := p.Value.grad
	if g == nil {
		return // none of its uses reached the loss
	}
	if t.dry() {
		t.releaseGrad(p.Value)
		return
	}
	grad := g.buf.Slice(0, p.Len())
	if t.hook != nil {
		if err := t.hook(p, grad); err != nil && t.hookErr == nil {
			t.hookErr = fmt.Errorf("gradient of %s: %w", p.Name, err)
		}
	} else {
		p.accumulate(grad)
	}
	t.releaseGrad(p.Value)
}

// flushParams ends the pass for parameters with uses that no walk came by,
// such as those inside a checkpointed segment whose output the loss ignores.
func (t *Tape) flushParams() error {
	for _, p := range t.touched {
		if p.uses > 0 {
			p.uses = 0
			t.deliver(p)
		}
	}
	return t.hookErr
}

func (p *Param) accumulate(g dtype.Buffer) {
	if p.Grad.Len() == 0 {
		p.Grad = dtype.Make(g.DType, g.Len())
	}
	for i, v := range g.F32 {
		p.Grad.F32[i] += v
	}
	for i, v := range g.F64 {
		p.Grad.F64[i] += v
	}
}
