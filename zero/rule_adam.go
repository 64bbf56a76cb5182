package zero

import (
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// Adam is Adam with L2 regularisation (Kingma and Ba, 2015), as torch.optim.Adam
// defines it: the weights times WeightDecay are added to the gradient, and so
// pass through the moments. Without weight decay it is AdamW.
type Adam struct {
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64
}

// DefaultAdam returns PyTorch's hyper-parameters of Adam.
func DefaultAdam() Adam { return Adam{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8} }

// String implements Rule.
func (a Adam) String() string {
	return fmt.Sprintf("Adam(betas=(%g, %g), eps=%g, weight_decay=%g)", a.Beta1, a.Beta2, a.Eps, a.WeightDecay)
}

// Validate returns every problem at once, joined, by dotted key.
func (a Adam) Validate() error { return AdamW(a).Validate() }

// States implements Rule, with PyTorch's names.
func (Adam) States() []string { return AdamW{}.States() }

// Update implements Rule.
func (a Adam) Update(step int, lr float64, w, g []float32, state [][]float32) {
	if decay := float32(a.WeightDecay); decay != 0 {
		kernel.Parallel(len(w), ruleGrain, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				g[i] += float32(decay * w[i])
			}
		})
	}
	kernel.AdamW(step, lr, a.Beta1, a.Beta2, a.Eps, 0, w, g, state[0], state[1])
}
