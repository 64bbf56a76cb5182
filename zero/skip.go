package zero

import "fmt"

// Skip says why a step was skipped. It is the same on all ranks.
type Skip struct {
	Step int
	// Param is the first parameter, in layout order, with an Inf or NaN.
	Param string
	// Rank is the lowest rank that contributed it; -1 when every micro-batch's
	// gradient was finite and only their sum is not.
	Rank int

	policy     Policy
	scale      float64
	next       float64
	hysteresis int // overflows until the scale is lowered, 0 when it is not dynamic
}

// String is one line for the log.
func (s *Skip) String() string {
	where := fmt.Sprintf("rank %d has a non-finite gradient, first in parameter %q", s.Rank, s.Param)
	if s.Rank < 0 {
		where = fmt.Sprintf("the sum of finite gradients overflows %s, first in parameter %q", s.policy.Accum, s.Param)
	}
	text := fmt.Sprintf("step %d skipped: %s", s.Step, where)
	if s.hysteresis > 0 {
		text += fmt.Sprintf("; loss scale %g -> %g, hysteresis left %d", s.scale, s.next, s.hysteresis)
	}
	return text
}

// skip describes the step of r, which m found not finite.
func (o *Optimizer) skip(m Measure, r StepResult) *Skip {
	s := &Skip{Step: r.Step, Rank: m.Rank, policy: o.plan.policy, scale: r.LossScale, next: r.NextLossScale}
	if in := o.plan.spansIn(Interval{m.Element, m.Element + 1}); len(in) > 0 {
		s.Param = o.plan.names[in[0].param]
	}
	if o.scaler.dynamic {
		s.hysteresis = o.scaler.left
	}
	return s
}
