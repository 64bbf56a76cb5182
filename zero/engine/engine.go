// Package engine joins a model written with package framework to the ZeRO
// optimizer: it moves the parameters into one flat buffer of the compute
// format, sends every gradient to the optimizer the moment it is complete, and
// keeps the training state (step, learning rate, loss).
package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
)

// Model is anything with parameters, listed in registration order: the order
// decides the optimizer's layout and must be the same on every rank.
type Model interface {
	Params() []*framework.Param
}

// Engine trains one rank's copy of a model. It is used from one goroutine; the
// ranks of a training call the same methods in the same order.
type Engine struct {
	opt      *zero.Optimizer
	comm     comm.Communicator
	tape     *framework.Tape
	policy   zero.Policy
	schedule zero.Schedule
	index    map[*framework.Param]int

	ctx     context.Context // of the backward in progress, for the hook
	accum   int
	managed bool      // Step belongs after accum backwards
	losses  []float64 // of this rank's micro-batches since the last step
	sum     []float64 // of all ranks' micro-batches, as gathered
	bounds  []int
}

// New moves the model's parameters (fp32, as initialised) into a flat buffer of
// the compute format and builds the optimizer on them. It is collective: every
// rank calls it with an equal model and configuration, and a difference is an
// error on every rank.
func New(ctx context.Context, m Model, cfg zero.Config, schedule zero.Schedule, rule zero.Rule, c comm.Communicator, opts ...Option) (*Engine, error) {
	var o options
	for _, set := range opts {
		set(&o)
	}
	params := m.Params()
	policy := cfg.Policy()
	e := &Engine{
		comm: c, policy: policy, schedule: schedule,
		index: make(map[*framework.Param]int, len(params)),
		accum: cfg.GradientAccumulationSteps, managed: cfg.ManagedGradientAccumulation,
	}
	zp, err := e.describe(params, o)
	if err != nil {
		c.Abort(err)
		return nil, err
	}
	if e.opt, err = o.parts.New(ctx, zp, cfg, c, rule, o.groups...); err != nil {
		return nil, err
	}
	hook := framework.GradHook(e.gradient)
	if o.hook != nil {
		hook = o.hook(hook)
	}
	e.tape = framework.NewTape(append(o.tape, framework.WithCompute(policy.Compute), framework.WithGradHook(hook))...)
	e.bounds = make([]int, c.Size()+1)
	return e, nil
}

// describe lists the parameters for the optimizer.
func (e *Engine) describe(params []*framework.Param, o options) ([]zero.Param, error) {
	zp := make([]zero.Param, len(params))
	memory := make(map[*float32]string, len(params)) // where values begin
	var release releaser
	for i, p := range params {
		if p.Value.DType() != dtype.F32 {
			return nil, fmt.Errorf("parameter %s is stored as %s: the engine wants the initial weights in fp32", p.Name, p.Value.DType())
		}
		init := p.Value.Data().F32
		if len(init) > 0 {
			if other, tied := memory[&init[0]]; tied {
				return nil, fmt.Errorf("parameters %q and %q share memory: list a tied weight once", other, p.Name)
			}
			memory[&init[0]] = p.Name
		}
		zp[i] = zero.Param{Name: p.Name, Shape: p.Shape(), Frozen: p.Frozen, Init: init}
		o.apply(&zp[i], p)
		zp[i].Loaded = func(value dtype.Buffer) {
			p.Rebind(value) // the fp32 initial weights are garbage from here on
			zp[i].Init = nil
			release.of(p.Len())
		}
		release.total += p.Len()
		e.index[p] = i
	}
	return zp, nil
}

// releaser returns the memory of initial weights to the system while they become
// garbage. Left to the collector, all of them would still be resident when the
// optimizer's state is written, and the start of a training would need more
// memory than the training.
type releaser struct{ total, garbage int } // elements

// of counts n elements as garbage. It acts a few times for a large model, never
// for a small one.
func (r *releaser) of(n int) {
	const parts, least = 4, 4 << 20
	if r.garbage += n; r.garbage >= max(least, r.total/parts) {
		debug.FreeOSMemory()
		r.garbage = 0
	}
}

// Tape is where the model's forward passes are recorded.
func (e *Engine) Tape() *framework.Tape { return e.tape }

// Optimizer gives access to the plan and the memory counts.
func (e *Engine) Optimizer() *zero.Optimizer { return e.opt }

// DataTypes returns the formats that really run.
func (e *Engine) DataTypes() zero.Policy { return e.policy }

// LR returns the learning rate that the next step will use. The schedule
// counts applied steps: a skipped step does not move it.
func (e *Engine) LR() float64 {
	_, applied := e.opt.Steps()
	return e.schedule.LR(applied)
}

func (e *Engine) gradient(p *framework.Param, g dtype.Buffer) error {
	i, ok := e.index[p]
	if !ok {
		return errors.New("the parameter does not belong to the engine's model")
	}
	return e.opt.GradReady(e.ctx, i, g.F32)
}

// Backward runs one micro-batch backward from its mean loss. Gradients flow to
// the optimizer while the pass is running; with overlap_comm their reduction
// does too.
func (e *Engine) Backward(ctx context.Context, loss *framework.Tensor) error {
	if e.managed && len(e.losses) == e.accum {
		return fmt.Errorf("backward number %d of a step with gradient_accumulation_steps = %d: call Step first", e.accum+1, e.accum)
	}
	if loss.Len() != 1 {
		return fmt.Errorf("backward from a loss of shape %v: want a scalar", loss.Shape())
	}
	value := loss.Item()
	e.ctx = ctx
	defer func() { e.ctx = nil }()
	if err := e.tape.Backward(loss, e.opt.LossScale()); err != nil {
		return err
	}
	if err := e.opt.EndBackward(ctx); err != nil {
		return err
	}
	e.losses = append(e.losses, value)
	return nil
}

// Result is what one optimizer step did.
type Result struct {
	zero.StepResult
	Loss float64 // mean over the micro-batches of all ranks, unscaled
	LR   float64 // learning rate of this step
}

// Step applies the optimizer at the accumulation boundary: after exactly
// gradient_accumulation_steps backwards, or, when managed_gradient_accumulation is
// false, after any number of them, equal on all ranks. Every rank gets the
// same result, bit for bit. A step with non-finite gradients is skipped whole
// and says so in Applied.
func (e *Engine) Step(ctx context.Context) (Result, error) {
	if e.managed && len(e.losses) != e.accum || len(e.losses) == 0 {
		return Result{}, fmt.Errorf("step after %d of %d backward passes (gradient_accumulation_steps)", len(e.losses), e.accum)
	}
	// One collective at a time: the reductions of this step first.
	if err := e.opt.Drain(ctx); err != nil {
		return Result{}, err
	}
	loss, err := e.meanLoss(ctx)
	if err != nil {
		return Result{}, err
	}
	lr := e.LR()
	r, err := e.opt.Step(ctx, lr)
	if err != nil {
		return Result{}, err
	}
	e.losses = e.losses[:0]
	return Result{StepResult: r, Loss: loss, LR: lr}, nil
}

// meanLoss averages the losses of all micro-batches in order of their global
// number g = m·W + r, so the mean has the same bits at any world size.
func (e *Engine) meanLoss(ctx context.Context) (float64, error) {
	n, world := len(e.losses), e.comm.Size()
	tried, _ := e.opt.Steps()
	for r := range e.bounds {
		e.bounds[r] = r * n
	}
	e.sum = slices.Grow(e.sum[:0], n*world)[:n*world]
	op := &comm.Op{
		Kind: comm.AllGather, Bounds: e.bounds,
		Sig:  comm.Signature{Name: "losses", Step: tried + 1, Bucket: -1},
		Send: dtype.Buffer{DType: dtype.F64, F64: e.losses},
		Recv: dtype.Buffer{DType: dtype.F64, F64: e.sum},
	}
	if err := comm.Do(ctx, e.comm, op); err != nil {
		return 0, err
	}
	var sum float64
	for m := range n {
		for r := range world {
			sum += e.sum[r*n+m]
		}
	}
	return sum / float64(len(e.sum)), nil
}

// Close stops the optimizer's goroutines. The communicator stays open: it is
// the caller's.
func (e *Engine) Close() error { return e.opt.Close() }
