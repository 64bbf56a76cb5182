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
			right := &keeping{own: own}
			own = right
			if l.has(NormLocal) {
				own = localNorm{d, own}
			}
			if l.has(NaNSentinel) {
				own = sentinel{d, own}
			}
			return watched{l, d, right, own}
		}
	}
	if l.has(ClipAfterUpdateScale) {
		p.Clip = func(d zero.Desk, own zero.Clip) zero.Clip {
			return func(norm float64) float64 {
				ratio := nextScaleRatio(d)
				wrong := own(norm/ratio) / ratio
				l.struckNumber(d, zero.LifeClip, own(norm), wrong)
				return wrong
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
		measure := r.Parts.Measurer
		r.Parts.Measurer = func(d zero.Desk, own zero.Measurer) zero.Measurer {
			if measure != nil {
				own = measure(d, own)
			}
			return shares{d, own, r}
		}
		r.Parts.Skip = func(_ zero.Desk, own zero.SkipRule) zero.SkipRule {
			return func(m zero.Measure) bool {
				r.skipped = r.skipped && own(m)
				return r.skipped && r.allSkip
			}
		}
	}
}

// shares looks which ranks' shares of the gradient are not finite. A rank knows only its
// own; that it learns whether all are serves the laboratory, which lets a step end
// regularly that no rank applies.
type shares struct {
	desk zero.Desk
	own  zero.Measurer
	rank *Rank
}

// Measure implements zero.Measurer.
func (s shares) Measure(ctx context.Context) (zero.Measure, error) {
	m, err := s.own.Measure(ctx)
	if err != nil {
		return m, err
	}
	flag := []float32{0}
	if share := squares(s.desk); share-share != 0 {
		flag[0] = 1
	}
	all, err := gather(ctx, s.desk, "overflows of the laboratory", flag)
	if err != nil {
		return m, err
	}
	s.rank.skipped, s.rank.allSkip = flag[0] == 1, true
	for _, x := range all {
		s.rank.allSkip = s.rank.allSkip && x[0] == 1
	}
	return m, nil
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

// keeping remembers what the optimizer's own measurer said.
type keeping struct {
	own  zero.Measurer
	said zero.Measure
}

// Measure implements zero.Measurer.
func (k *keeping) Measure(ctx context.Context) (m zero.Measure, err error) {
	k.said, err = k.own.Measure(ctx)
	return k.said, err
}

// watched tells where faults have changed the norm.
type watched struct {
	lab   *Lab
	desk  zero.Desk
	right *keeping
	own   zero.Measurer
}

// Measure implements zero.Measurer.
func (w watched) Measure(ctx context.Context) (zero.Measure, error) {
	m, err := w.own.Measure(ctx)
	if err == nil {
		w.lab.struckNumber(w.desk, zero.LifeNorm, w.right.said.Norm, m.Norm)
	}
	return m, err
}

// struckNumber tells of a strike at one number of a step.
func (l *Lab) struckNumber(d zero.Desk, life zero.Life, right, wrong float64) {
	if l.watch != nil && !same(right, wrong) {
		l.watch(Strike{life, d.Signature().Step, -1, d.Comm.Rank(), -1})
	}
}
