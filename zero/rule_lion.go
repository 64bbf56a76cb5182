package zero

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Lion is the evolved sign momentum of Chen et al., 2023, with decoupled weight
// decay:
//
//	u  = sign(Beta1·m + (1-Beta1)·g)
//	w  = w·(1 - lr·WeightDecay) - lr·u
//	m  = Beta2·m + (1-Beta2)·g
//
// The sign of zero is zero. Every weight moves by lr, so rates are three to ten
// times smaller than AdamW's.
type Lion struct {
	Beta1, Beta2 float64
	WeightDecay  float64
}

// DefaultLion returns the paper's betas, without weight decay.
func DefaultLion() Lion { return Lion{Beta1: 0.9, Beta2: 0.99} }

// String implements Rule.
func (l Lion) String() string {
	return fmt.Sprintf("Lion(betas=(%g, %g), weight_decay=%g)", l.Beta1, l.Beta2, l.WeightDecay)
}

// Validate returns every problem at once, joined, by dotted key.
func (l Lion) Validate() error {
	return AdamW{Beta1: l.Beta1, Beta2: l.Beta2, WeightDecay: l.WeightDecay}.Validate()
}

// States implements Rule.
func (Lion) States() []string { return []string{"exp_avg"} }

// Update implements Rule.
func (l Lion) Update(_ int, lr float64, w, g []float32, state [][]float32) {
	m := state[0]
	keep := float32(1 - float64(lr*l.WeightDecay))
	b1, c1 := float32(l.Beta1), float32(1-l.Beta1)
	b2, c2 := float32(l.Beta2), float32(1-l.Beta2)
	rate := float32(lr)
	kernel.Parallel(len(w), ruleGrain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			u := float32(b1*m[i]) + float32(c1*g[i])
			w[i] = float32(w[i]*keep) - float32(rate*sign(u))
			m[i] = float32(b2*m[i]) + float32(c2*g[i])
		}
	})
}

// sign returns -1, 0 or 1; NaN stays NaN.
func sign(x float32) float32 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x
}
