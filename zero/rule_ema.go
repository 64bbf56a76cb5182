package zero

import (
	"errors"
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// EMA adds an exponential moving average of the fp32 master weights to a rule:
//
//	ema = ema - (1-d)·(ema - w)
//
// once per applied step, after the rule has moved w; a skipped step leaves it
// alone. It starts from the initial weights. The average is a state called
// "ema": partitioned like the others (4Ψ/W bytes), read by name with
// Optimizer.FullState, and the same bits at any world size.
type EMA struct {
	Rule
	// Decay is d, from 0 up to, but not including, 1.
	Decay float64
	// Ramp lets the average follow quickly at first, as diffusers' EMAModel
	// does: with s = step - 1, d is 0 for s = 0 and min(Decay, (1+s)/(10+s))
	// after.
	Ramp bool
}

// String implements Rule.
func (e EMA) String() string {
	return fmt.Sprintf("%v, EMA(decay=%g, ramp=%v)", e.Rule, e.Decay, e.Ramp)
}

// Validate returns every problem at once, joined.
func (e EMA) Validate() error {
	var p problems
	p.check(e.Decay >= 0 && e.Decay < 1, "EMA decay", e.Decay, "a number from 0 up to, but not including, 1")
	if v, ok := e.Rule.(interface{ Validate() error }); ok {
		p = append(p, v.Validate())
	}
	return errors.Join(p...)
}

// States implements Rule.
func (e EMA) States() []string { return append(e.Rule.States(), "ema") }

// Update implements Rule.
func (e EMA) Update(step int, lr float64, w, g []float32, state [][]float32) {
	last := len(state) - 1
	ema := state[last]
	if step == 1 {
		copy(ema, w)
	}
	e.Rule.Update(step, lr, w, g, state[:last:last])
	follow := float32(1 - e.decay(step))
	kernel.Parallel(len(w), ruleGrain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			ema[i] -= float32(follow * float32(ema[i]-w[i]))
		}
	})
}

// decay returns d of the step, counted from 1.
func (e EMA) decay(step int) float64 {
	if !e.Ramp {
		return e.Decay
	}
	s := float64(step - 1)
	if s == 0 {
		return 0
	}
	return min(e.Decay, (1+s)/(10+s))
}
