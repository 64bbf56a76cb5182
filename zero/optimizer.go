// Package zero is a ZeRO optimizer (Rajbhandari et al., 2020; stages 0, 1 and 2)
// in which no performance knob changes a bit of training. Stage, bucket sizes,
// overlap, thread count, communication engine and, for the same number of
// micro-batches per step, the world size give bit-identical weights, states and
// norms. The order of arithmetic that makes it so:
//
//   - a micro-batch gradient is rounded once, to the wire format;
//   - the owner of an element folds the contributions of micro-step 0 in rank
//     order, then those of micro-step 1, and so on, onto its accumulator;
//   - the division by the number of micro-batches and the loss scale is made once,
//     after the fold, in float32 or wider;
//   - the norm is summed in float64 over blocks that depend on the model alone;
//   - the rule is elementwise on fp32 master weights, and the compute copy is
//     their rounding.
//
// The package knows no model: call GradReady from any backward.
package zero

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// Optimizer is one rank's part of the training. GradReady may be called from
// several goroutines at once; the other methods belong to the goroutine that runs
// the training loop. Ranks call EndBackward and Step in the same order.
//
// From the first GradReady of a step until Step or Drain returns, the optimizer
// uses the communicator; the caller's own collectives belong outside of that.
//
// An error from a collective, from a context that ended, or from an agreement of
// the ranks ends the training: every later call returns it. Errors in the use of
// this API (a gradient given twice, Step before its time) change nothing.
type Optimizer struct {
	plan   *Plan
	cfg    Config
	params []Param
	comm   comm.Communicator
	meter  *meter // comm, as it counts
	groups []Group
	layout uint64
	ledger *ledger

	grads   *gradients
	shard   *shard
	norm    *norm
	scaler  *scaler
	weights *gatherer

	parts    Parts // as given; these are in use:
	measurer Measurer
	clip     Clip
	skips    SkipRule

	micro   int  // backwards of this step that are closed
	noSync  bool // inside NoSync
	tried   int
	applied int
	inARow  int // skipped steps since the last applied one
	closed  bool
}

// StepResult is what Step did; it is the same on all ranks, bit for bit.
type StepResult struct {
	Step    int  // number of this step, counted from 1, skipped ones included
	Applied bool // false: skipped whole, see Skip
	// Norm is the L2 norm of the mean, unscaled gradient before clipping. It
	// is Inf or NaN when the gradient is.
	Norm            float64
	ClipCoefficient float64 // what the gradient was multiplied by, at most 1
	LossScale       float64 // of this step's gradients
	NextLossScale   float64 // of the next step's
	AppliedSteps    int     // so far, this one included
	SkippedSteps    int     // so far, this one included
	Skip            *Skip   // why the step was skipped, nil when it was applied
}

// New builds a rank's optimizer. It is collective: every rank calls it with equal
// parameters, configuration, rule and groups, and a difference is an error on every
// rank that names the first one and both sides. Without groups all parameters are
// of one, with rule. An error of one rank alone aborts the
// communicator, so that the others do not wait for it. New writes the initial
// weights into the Values; the communicator stays the caller's to close, after
// Close.
func New(ctx context.Context, params []Param, cfg Config, c comm.Communicator, rule Rule, groups ...Group) (*Optimizer, error) {
	return Parts{}.New(ctx, params, cfg, c, rule, groups...)
}

func build(ctx context.Context, parts Parts, params []Param, cfg Config, c comm.Communicator, rule Rule, groups []Group) (*Optimizer, error) {
	plan, err := NewPlan(params, cfg, c.Size())
	if err != nil {
		return nil, err
	}
	if groups, err = completed(groups, rule); err != nil {
		return nil, err
	}
	if err := checkParams(params, plan.policy, len(groups)); err != nil {
		return nil, err
	}
	if err := parts.fit(plan); err != nil {
		return nil, err
	}
	m := &meter{Communicator: c}
	c = m
	layout, err := agree(ctx, c, manifest(params, cfg, groups, parts.Names))
	if err != nil {
		return nil, err
	}
	o := &Optimizer{
		plan: plan, cfg: cfg, params: slices.Clone(params), comm: c, meter: m, groups: groups,
		layout: layout, ledger: new(ledger), scaler: newScaler(cfg.FP16), parts: parts,
	}
	flat := values(o.params, plan, o.ledger)
	o.shard = newShard(plan, c.Rank(), groups, o.ledger)
	o.norm = newNorm(plan, c.Rank(), o.ledger)
	o.weights = newGatherer(plan, c.Rank(), o.params, flat, o.ledger)
	load(o.params, o.shard, plan)
	o.grads = newGradients(plan, c, o.shard, layout, o.ledger, parts.Probe)
	o.assemble()
	o.nextBackward()
	return o, nil
}

// GradReady takes the gradient of parameter i (its index in the list given to
// New) of this micro-batch, complete, row-major, multiplied by LossScale. grad is
// read before GradReady returns. It may block while a bucket buffer is on the
// wire. Every parameter has at most one gradient per backward.
func (o *Optimizer) GradReady(ctx context.Context, i int, grad []float32) error {
	switch {
	case o.closed:
		return errClosed
	case i < 0 || i >= len(o.params):
		return fmt.Errorf("gradient of parameter %d: there are %d", i, len(o.params))
	case o.params[i].Frozen:
		return fmt.Errorf("parameter %q is frozen: it takes no gradient", o.params[i].Name)
	case o.full():
		return o.tooMany()
	}
	if n, _ := o.params[i].Len(); len(grad) != n {
		return fmt.Errorf("parameter %q: gradient of %d elements for shape %v, want %d", o.params[i].Name, len(grad), o.params[i].Shape, n)
	}
	return o.grads.put(ctx, i, grad)
}

// EndBackward closes a micro-step, after the last GradReady has returned.
// Parameters without a gradient count as zero, or, when
// ignore_unused_parameters is false, are an error on all ranks that names them
// (in "local" order, where ranks meet once per step, at the end of the step).
func (o *Optimizer) EndBackward(ctx context.Context) error {
	if o.closed {
		return errClosed
	}
	if o.full() {
		return o.tooMany()
	}
	sent, err := o.grads.finish(ctx)
	if err != nil {
		return err
	}
	if sent {
		if err := o.grads.settle(ctx); err != nil {
			return err
		}
	}
	o.micro++
	o.nextBackward()
	return nil
}

// Step updates the weights at the accumulation boundary: exactly
// gradient_accumulation_steps backwards must have been closed, or, when
// managed_gradient_accumulation is false, at least one. Out of its place it is an
// error that changes nothing. A step with non-finite gradients is skipped whole, on
// all ranks, unless check_grad_overflow is false. After Step, applied or not, the
// accumulators are zero.
func (o *Optimizer) Step(ctx context.Context, lr float64) (StepResult, error) {
	if err := o.boundary(lr); err != nil {
		return StepResult{}, err
	}
	if err := o.complete(ctx); err != nil {
		return StepResult{}, err
	}
	m, err := o.measurer.Measure(ctx)
	if err != nil {
		return StepResult{}, o.grads.fail(err)
	}
	grad := gradient{divisor: o.divisor(), clip: o.clip(m.Norm)}
	if o.parts.Probe != nil {
		o.lookStep(m, grad.clip)
	}
	apply := !o.skips(m)
	if apply {
		home := o.weights.home(o.shard)
		o.shard.update(o.groups, o.applied+1, lr, grad, home)
		if err := o.weights.gather(ctx, o.comm, o.shard, home.Len() > 0, o.signature()); err != nil {
			return StepResult{}, o.grads.fail(err)
		}
	} else {
		o.shard.clear()
	}
	if o.parts.Probe != nil {
		o.lookWeights()
	}
	return o.count(apply, m, grad.clip)
}

// count ends a step: counters, loss scale, and the stop after too many skips.
func (o *Optimizer) count(applied bool, m Measure, clip float64) (StepResult, error) {
	o.tried++
	o.micro = 0
	r := StepResult{Step: o.tried, Applied: applied, Norm: m.Norm, ClipCoefficient: clip, LossScale: o.scaler.scale}
	err := o.scaler.update(!applied)
	r.NextLossScale = o.scaler.scale
	if applied {
		o.applied++
		o.inARow = 0
	} else {
		o.inARow++
		r.ClipCoefficient = 1
		r.Skip = o.skip(m, r)
	}
	r.AppliedSteps, r.SkippedSteps = o.applied, o.tried-o.applied
	if err == nil && o.inARow >= o.cfg.MaxConsecutiveSkips {
		err = fmt.Errorf("%d steps in a row were skipped (max_consecutive_skips): gradients stay non-finite; lower the learning rate or look at the first bad parameter", o.inARow)
	}
	if err != nil {
		err = fmt.Errorf("%v: %w", r.Skip, err)
	}
	o.grads.nextStep(o.tried+1, err)
	o.nextBackward()
	return r, err
}

func (o *Optimizer) signature() comm.Signature {
	return comm.Signature{Step: o.tried + 1, Layout: o.layout}
}

// LossScale returns what to multiply the loss of the next backward by: 1 outside
// fp16. It changes only in Step.
func (o *Optimizer) LossScale() float64 { return o.scaler.scale }

// Steps returns how many steps were tried, and how many of them were applied.
func (o *Optimizer) Steps() (tried, applied int) { return o.tried, o.applied }

// Value returns the compute copy of parameter i. Step rewrites it.
func (o *Optimizer) Value(i int) dtype.Buffer { return o.params[i].Value }

// Plan returns the layout.
func (o *Optimizer) Plan() *Plan { return o.plan }

// Policy returns the formats in use, of parameters that have none of their own.
func (o *Optimizer) Policy() Policy { return o.plan.policy }

// Memory returns the bytes this rank holds now and the most it has held, by kind.
func (o *Optimizer) Memory() (now, peak Memory) { return o.ledger.report() }

// ResetPeak makes the most that this rank has held begin anew at what it holds now.
// The first backward may hold more buckets at a time than Plan.Memory says, up to all
// of them, where gradients come in another order than that of the parameters: the order
// is known from the second one on.
func (o *Optimizer) ResetPeak() { o.ledger.resetPeak() }

// Drain waits until every gradient that was sent is in the accumulators. Between
// closed backwards the communicator is then free for the caller's own use.
func (o *Optimizer) Drain(ctx context.Context) error {
	if o.closed {
		return errClosed
	}
	return o.grads.drain(ctx)
}

var errClosed = errors.New("the optimizer is closed")

// Close ends the optimizer's goroutine and lets go of all its memory but the
// Values. A reduction that is still running is given up, which the other ranks
// see as an error: a rank that failed calls Communicator.Abort with the cause
// first, so that they see that instead. No other method may be running; Value,
// Plan, Policy and the counts stay valid.
func (o *Optimizer) Close() error {
	if !o.closed {
		o.closed = true
		o.grads.close()
		o.grads, o.shard, o.norm, o.weights = nil, nil, nil, nil
		o.ledger.close()
	}
	return nil
}
