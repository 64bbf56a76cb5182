package zero

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// Parts are the replaceable pieces of an optimizer. The zero value is the optimizer
// that New builds. Other implementations serve experiments: package zero/fault holds
// wrong ones, so that the mistakes of other trainers can be looked at side by side
// with what is right.
//
// A function that is nil leaves its piece alone. The others are called once by New,
// with the rank's Desk and the piece they replace, which they may use or not.
type Parts struct {
	// Names says which implementations these are. Ranks compare them, and
	// Optimizer.Parts returns them, for whoever reports or stores a training.
	Names []string

	Route    func(Desk, Route) Route
	Measurer func(Desk, Measurer) Measurer
	Clip     func(Desk, Clip) Clip
	Skip     func(Desk, SkipRule) SkipRule

	// Probe watches the life of gradients; nil costs nothing.
	Probe Probe
}

// Route takes the local gradients of a backward to the accumulators of the elements'
// owners. It is asked only for backwards that are reduced.
type Route interface {
	// Take takes the gradient of parameter i, which has the elements at. grad may
	// be read until Take returns. Several goroutines may call Take at once.
	Take(ctx context.Context, i int, at Interval, grad []float32) error
	// Rest ends the backward, after the last Take: elements that got no gradient
	// in it count as zero. Reductions may still run when it returns.
	Rest(ctx context.Context) error
}

// Measurer measures the accumulated gradient, once per step. It is collective.
type Measurer interface {
	Measure(ctx context.Context) (Measure, error)
}

// Clip returns what a gradient of that norm is multiplied by.
type Clip func(norm float64) float64

// SkipRule reports whether a step whose gradient was measured so is skipped.
type SkipRule func(Measure) bool

// Desk is what the pieces of one rank's optimizer work with. It stays the
// optimizer's: all of it ends with Close.
type Desk struct {
	Plan   *Plan
	Config Config
	Policy Policy
	Groups int
	Comm   comm.Communicator

	// Region is the elements that this rank sums and updates, Sums their
	// accumulators, by offset in Region.
	Region Region
	Sums   dtype.Buffer

	// Signature begins the signature of a collective: the step and the layout.
	Signature func() comm.Signature
	// Micro is the number of the running backward in its step, from 0.
	Micro func() int
	// Divisor is what the sums are divided by to make them the mean gradient.
	Divisor func() float64
	// Progress returns the counters as the step began.
	Progress func() Progress
	// NonFinite notes that a gradient of this rank has an Inf or NaN at an element.
	NonFinite func(element int)
	// Fail ends the training on all ranks, and returns the error that did so first.
	Fail func(error) error
	// Probe is that of Parts.
	Probe Probe
}

// New is New with these pieces.
func (p Parts) New(ctx context.Context, params []Param, cfg Config, c comm.Communicator, rule Rule, groups ...Group) (*Optimizer, error) {
	o, err := build(ctx, p, params, cfg, c, rule, groups)
	if err != nil {
		if !errors.As(err, new(*disagreement)) { // which all ranks have found
			c.Abort(err)
		}
		return nil, err
	}
	return o, nil
}

// Parts returns the names of the pieces that are not the optimizer's own.
func (o *Optimizer) Parts() []string { return o.parts.Names }

// fit refuses pieces that a configuration has no place for.
func (p Parts) fit(plan *Plan) error {
	if p.Route != nil && plan.local() {
		return fmt.Errorf("zero_optimization.reduction_order = local with %s: a route for gradients of its own needs global", strings.Join(p.Names, ", "))
	}
	return nil
}

// assemble puts the pieces in their places: the optimizer's own, then those of parts
// over them.
func (o *Optimizer) assemble() {
	o.measurer, o.clip = measuring{o}, o.clipByNorm
	o.skips = func(m Measure) bool { return o.cfg.CheckGradOverflow && !m.Finite() }
	if p := o.parts; p.Route != nil || p.Measurer != nil || p.Clip != nil || p.Skip != nil {
		o.replace(p, o.desk())
	}
}

func (o *Optimizer) replace(p Parts, d Desk) {
	if p.Route != nil {
		o.grads.route = p.Route(d, o.grads.route)
	}
	if p.Measurer != nil {
		o.measurer = p.Measurer(d, o.measurer)
	}
	if p.Clip != nil {
		o.clip = p.Clip(d, o.clip)
	}
	if p.Skip != nil {
		o.skips = p.Skip(d, o.skips)
	}
}

func (o *Optimizer) desk() Desk {
	return Desk{
		Plan: o.plan, Config: o.cfg, Policy: o.plan.policy, Groups: len(o.groups), Comm: o.comm,
		Region: o.shard.region, Sums: o.shard.acc,
		Signature: o.signature, Micro: func() int { return o.micro }, Divisor: o.divisor, Progress: o.Progress,
		NonFinite: o.grads.nonFinite, Fail: o.grads.fail, Probe: o.parts.Probe,
	}
}

// measuring is the optimizer's own Measurer.
type measuring struct{ o *Optimizer }

// Measure implements Measurer.
func (m measuring) Measure(ctx context.Context) (Measure, error) {
	o := m.o
	return o.norm.measure(ctx, o.comm, o.shard, gradient{divisor: o.divisor(), clip: 1}, o.grads.bad, o.signature())
}

func (o *Optimizer) clipByNorm(norm float64) float64 {
	return clipCoefficient(o.cfg.GradientClipping, norm)
}
