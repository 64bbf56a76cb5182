package zero

import (
	"errors"
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Rule is an optimizer's arithmetic over flat fp32 spans. It must be
// elementwise: w[i] may depend on nothing but w[i], g[i] and state[k][i],
// because a rank owns arbitrary runs of the flat element space and updates them
// in pieces.
type Rule interface {
	// String names the rule with its hyper-parameters. Ranks compare it at
	// start-up, so it must not hold addresses.
	fmt.Stringer
	// States names the state arrays, each one fp32 value per weight that
	// starts at zero, for instance "exp_avg".
	States() []string
	// Update changes w and the states in place. step counts applied steps
	// from 1. g is the mean, unscaled, clipped gradient and may be
	// overwritten. All slices have the length of w. Calls for disjoint spans
	// of one step may run at once.
	Update(step int, lr float64, w, g []float32, state [][]float32)
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
type AdamW struct {
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64
}

// DefaultAdamW returns PyTorch's hyper-parameters of AdamW.
func DefaultAdamW() AdamW {
	return AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
}

// String implements Rule.
func (a AdamW) String() string {
	return fmt.Sprintf("AdamW(betas=(%g, %g), eps=%g, weight_decay=%g)", a.Beta1, a.Beta2, a.Eps, a.WeightDecay)
}

// Validate returns every problem at once, joined, by dotted key.
func (a AdamW) Validate() error {
	var p problems
	p.check(a.Beta1 >= 0 && a.Beta1 < 1 && a.Beta2 >= 0 && a.Beta2 < 1, "optimizer.params.betas", []float64{a.Beta1, a.Beta2}, "two numbers from 0 up to, but not including, 1")
	p.check(a.Eps >= 0 && a.Eps < 1, "optimizer.params.eps", a.Eps, "a number from 0 up to, but not including, 1")
	p.check(a.WeightDecay >= 0 && a.WeightDecay <= 1e6, "optimizer.params.weight_decay", a.WeightDecay, "a finite number of at least 0")
	return errors.Join(p...)
}

// States implements Rule, with PyTorch's names.
func (AdamW) States() []string { return []string{"exp_avg", "exp_avg_sq"} }

// Update implements Rule.
func (a AdamW) Update(step int, lr float64, w, g []float32, state [][]float32) {
	kernel.AdamW(step, lr, a.Beta1, a.Beta2, a.Eps, a.WeightDecay, w, g, state[0], state[1])
}
