package fault

import (
	"context"
	"math"

	"github.com/zerogap/zerogap/zero"
)

// measurers puts the faults of norm and clipping in place.
func (l *Lab) measurers(p *zero.Parts) {
	if l.has(NormLocal) || l.has(NaNSentinel) {
		p.Measurer = func(d zero.Desk, own zero.Measurer) zero.Measurer {
			if l.has(NormLocal) {
				own = localNorm{d, own}
			}
			if l.has(NaNSentinel) {
				own = sentinel{d, own}
			}
			return own
		}
	}
	if l.has(ClipAfterUpdateScale) {
		p.Clip = func(d zero.Desk, own zero.Clip) zero.Clip {
			return func(norm float64) float64 {
				ratio := nextScaleRatio(d)
				return own(norm/ratio) / ratio
			}
		}
	}
}

// localNorm is norm-local.
type localNorm struct {
	desk zero.Desk
	own  zero.Measurer
}

// Measure implements zero.Measurer.
func (n localNorm) Measure(ctx context.Context) (zero.Measure, error) {
	m, err := n.own.Measure(ctx)
	if err == nil {
		m.Norm = math.Sqrt(squares(n.desk))
	}
	return m, err
}

// squares returns the sum of squares of the mean gradient of the rank's own partition.
func squares(d zero.Desk) float64 {
	divisor, sum := d.Divisor(), 0.0
	d.Plan.Owned(d.Comm.Rank()).Each(zero.Interval{Lo: 0, Hi: d.Plan.Elements}, func(run zero.Interval, _ int) {
		part := d.Region.Within(run)
		for i := part.Lo; i < part.Hi; i++ {
			v := float64(float32(d.Sums.At(i) / divisor))
			sum += v * v
		}
	})
	return sum
}

// sentinel is nan-sentinel.
type sentinel struct {
	desk zero.Desk
	own  zero.Measurer
}

// Measure implements zero.Measurer.
func (s sentinel) Measure(ctx context.Context) (zero.Measure, error) {
	m, err := s.own.Measure(ctx)
	if err == nil && !m.Finite() {
		m = zero.Measure{Norm: math.Sqrt(float64(s.desk.Groups)), Element: -1, Rank: -1}
	}
	return m, err
}

// nextScaleRatio returns by how much the loss scale is going to grow after this step,
// 1 where it stays.
func nextScaleRatio(d zero.Desk) float64 {
	scale := d.Progress().Scaler
	if scale == nil || (scale.GoodSteps+1)%d.Config.FP16.LossScaleWindow != 0 {
		return 1
	}
	return 2
}

// skipping puts the faults of skipped steps in place.
func (r *Rank) skipping() {
	switch {
	case r.lab.has(NoSkip):
		r.Parts.Skip = func(zero.Desk, zero.SkipRule) zero.SkipRule {
			return func(zero.Measure) bool { return false }
		}
	case r.lab.has(RankLocalSkip):
		r.Parts.Skip = func(d zero.Desk, own zero.SkipRule) zero.SkipRule {
			return func(m zero.Measure) bool {
				share := squares(d)
				r.skipped = own(m) && share-share != 0
				return false
			}
		}
	}
}

// halting is a rule that leaves everything as it is while its rank skips a step that
// the others apply. (A real rank would not gather either, and the others would wait.)
type halting struct {
	zero.Rule
	skipped *bool
}

// Update implements zero.Rule.
func (h halting) Update(step int, lr float64, w, g []float32, state [][]float32) {
	if !*h.skipped {
		h.Rule.Update(step, lr, w, g, state)
	}
}

// Validate asks the rule it stands for.
func (h halting) Validate() error {
	if v, ok := h.Rule.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}
