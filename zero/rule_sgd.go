package zero

import (
	"errors"
	"fmt"

	"github.com/zerogap/zerogap/internal/kernel"
)

// ruleGrain is how many elements of a span are worth a goroutine. The optimizer
// gives rules spans that are not longer and runs them side by side itself; a
// caller with one long span is served as well.
const ruleGrain = chunk

// SGD is stochastic gradient descent with momentum, as torch.optim.SGD defines
// it (Sutskever et al., 2013, with the learning rate outside of the velocity):
//
//	g += WeightDecay·w
//	b  = g in the first step, afterwards Momentum·b + (1-Dampening)·g
//	w -= lr·b, or lr·(g + Momentum·b) when Nesterov
//
// Without momentum b is g and takes no memory.
type SGD struct {
	Momentum    float64
	Dampening   float64
	WeightDecay float64 // L2: added to the gradient
	Nesterov    bool
}

// String implements Rule.
func (s SGD) String() string {
	return fmt.Sprintf("SGD(momentum=%g, dampening=%g, weight_decay=%g, nesterov=%v)", s.Momentum, s.Dampening, s.WeightDecay, s.Nesterov)
}

// Validate returns every problem at once, joined, by dotted key.
func (s SGD) Validate() error {
	var p problems
	p.check(s.Momentum >= 0 && s.Momentum <= 1e6, "optimizer.params.momentum", s.Momentum, "a finite number of at least 0")
	p.check(s.Dampening >= -1e6 && s.Dampening <= 1e6, "optimizer.params.dampening", s.Dampening, "a finite number")
	p.check(s.WeightDecay >= 0 && s.WeightDecay <= 1e6, "optimizer.params.weight_decay", s.WeightDecay, "a finite number of at least 0")
	p.check(!s.Nesterov || s.Momentum > 0 && s.Dampening == 0, "optimizer.params.nesterov", s.Nesterov, "true only with a momentum above 0 and a dampening of 0")
	return errors.Join(p...)
}

// States implements Rule, with PyTorch's name.
func (s SGD) States() []string {
	if s.Momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

// Update implements Rule.
func (s SGD) Update(step int, lr float64, w, g []float32, state [][]float32) {
	kernel.Parallel(len(w), ruleGrain, func(lo, hi int) {
		if s.Momentum == 0 {
			s.plain(float32(lr), w[lo:hi], g[lo:hi])
			return
		}
		s.heavy(step, float32(lr), w[lo:hi], g[lo:hi], state[0][lo:hi])
	})
}

func (s SGD) plain(lr float32, w, g []float32) {
	decay := float32(s.WeightDecay)
	for i := range w {
		w[i] -= float32(lr * (g[i] + float32(decay*w[i])))
	}
}

func (s SGD) heavy(step int, lr float32, w, g, b []float32) {
	decay, momentum, fresh := float32(s.WeightDecay), float32(s.Momentum), float32(1-s.Dampening)
	for i := range w {
		d := g[i] + float32(decay*w[i])
		v := d
		if step > 1 {
			v = float32(momentum*b[i]) + float32(fresh*d)
		}
		b[i] = v
		if s.Nesterov {
			v = d + float32(momentum*v)
		}
		w[i] -= float32(lr * v)
	}
}
