package zero

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// full reports whether the step has all its backwards.
func (o *Optimizer) full() bool {
	return o.cfg.ManagedGradientAccumulation && o.micro == o.cfg.GradientAccumulationSteps
}

func (o *Optimizer) tooMany() error {
	a := o.cfg.GradientAccumulationSteps
	return fmt.Errorf("backward %d of a step with gradient_accumulation_steps = %d: call Step first", a+1, a)
}

// boundary refuses a Step that is out of place.
func (o *Optimizer) boundary(lr float64) error {
	switch a := o.cfg.GradientAccumulationSteps; {
	case o.closed:
		return errClosed
	case o.grads.failure() != nil:
		return o.grads.failure()
	case o.noSync:
		return errors.New("step inside NoSync: call it afterwards")
	case o.cfg.ManagedGradientAccumulation && o.micro != a:
		return fmt.Errorf("step after %d of %d backwards: gradient_accumulation_steps = %d", o.micro, a, a)
	case o.micro == 0:
		return errors.New("step without a backward: call EndBackward first")
	case o.grads.open():
		return errors.New("step inside a backward: call EndBackward first")
	case !(lr >= 0) || math.IsInf(lr, 0):
		return fmt.Errorf("learning rate %v: want a finite number of at least 0", lr)
	}
	return nil
}

// complete reduces the local sums that no backward of this step has sent, and
// returns when all gradients are in the accumulators. Sums do not show how many
// backwards they hold, so the ranks compare that first.
func (o *Optimizer) complete(ctx context.Context) error {
	if o.grads.unsent() {
		if err := o.agree(ctx, fmt.Sprintf("%d backwards in step %d", o.micro, o.tried+1)); err != nil {
			return err
		}
	}
	return o.grads.complete(ctx)
}

// nextBackward decides whether the next backward communicates: always in "global"
// order, else when it is known to be the step's last.
func (o *Optimizer) nextBackward() {
	last := o.cfg.ManagedGradientAccumulation && o.micro == o.cfg.GradientAccumulationSteps-1
	o.grads.reduceNext(!o.plan.local() || last && !o.noSync)
}

// divisor returns what the accumulators are divided by: micro-batches of all
// ranks, for a mean, times the loss scale that multiplied this step's losses, less
// what gradients were divided by before the sum.
func (o *Optimizer) divisor() float64 {
	d := o.scaler.scale
	if o.cfg.GradientAllreduceOp == OpMean {
		d *= float64(o.cfg.GradientAccumulationSteps * o.plan.World)
	}
	return d / o.plan.predivisor()
}

// NoSync runs f, in which backwards do not communicate, not even the last one of a
// step: its gradients are reduced in Step. It saves no traffic, since only one
// reduction per step is made in any case, and gives the same bits; it is for
// backwards that the caller does not want to wait for other ranks. It needs
// reduction_order "local" and stage 0 or 1; in "global" order and at stage 2 no
// rank keeps sums of its own. It may not be nested, hold a Step, or begin or end
// inside a backward.
func (o *Optimizer) NoSync(f func() error) error {
	z := o.cfg.ZeroOptimization
	switch {
	case o.closed:
		return errClosed
	case z.Stage == 2:
		return errors.New("NoSync at zero_optimization.stage = 2: ranks keep no gradients of their own, every backward is reduced; use stage 0 or 1")
	case !o.plan.local():
		return fmt.Errorf("NoSync with zero_optimization.reduction_order = %s: every backward is reduced in the order of global micro-batches; set it to local", z.ReductionOrder)
	case o.noSync:
		return errors.New("NoSync inside NoSync")
	case o.grads.open():
		return errors.New("NoSync inside a backward: call EndBackward first")
	}
	o.noSync = true
	o.nextBackward()
	defer func() {
		o.noSync = false
		if !o.closed {
			o.nextBackward()
		}
	}()
	if err := f(); err != nil {
		return err
	}
	if !o.closed && o.grads.open() {
		return errors.New("NoSync ends inside a backward: call EndBackward in it")
	}
	return nil
}

// SetGradientAccumulationSteps changes the number of backwards per step from the
// next step on. It is collective and belongs between two steps; different numbers
// are an error on every rank and end the training.
func (o *Optimizer) SetGradientAccumulationSteps(ctx context.Context, n int) error {
	switch {
	case o.closed:
		return errClosed
	case n < 1:
		return fmt.Errorf("gradient_accumulation_steps = %d: allowed is a whole number of at least 1", n)
	case o.micro > 0 || o.grads.open():
		return fmt.Errorf("gradient_accumulation_steps changed after %d backwards of a step: change it between steps", o.micro)
	}
	if err := o.agree(ctx, fmt.Sprintf("gradient_accumulation_steps = %d", n)); err != nil {
		return err
	}
	o.cfg.GradientAccumulationSteps = n
	o.nextBackward()
	return nil
}

// agree compares a fact with the other ranks; a difference ends the training.
func (o *Optimizer) agree(ctx context.Context, fact string) error {
	if err := o.grads.failure(); err != nil {
		return err
	}
	_, err := agree(ctx, o.comm, fact)
	if errors.As(err, new(*disagreement)) {
		o.grads.end(err) // all ranks have found it
		return err
	}
	if err != nil {
		return o.grads.fail(err)
	}
	return nil
}
