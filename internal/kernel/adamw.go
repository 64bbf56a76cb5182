package kernel

import (
	"fmt"
	"math"
)

// adam holds the factors of one AdamW step, each derived in float64 and rounded
// once to float32.
type adam struct {
	decay float32 // 1 - lr*weightDecay
	b1    float32 // beta1
	c1    float32 // 1 - beta1
	b2    float32 // beta2
	c2    float32 // 1 - beta2
	root  float32 // sqrt(1 - beta2^step)
	eps   float32
	rate  float32 // lr / (1 - beta1^step)
}

// AdamW applies one step of AdamW (Loshchilov and Hutter, "Decoupled Weight
// Decay Regularization", 2019) to the span w with gradient g and moments m, v:
//
//	w *= 1 - lr*weightDecay
//	m  = beta1*m + (1-beta1)*g
//	v  = beta2*v + (1-beta2)*g*g
//	w -= lr/(1-beta1^step) * m / (sqrt(v)/sqrt(1-beta2^step) + eps)
//
// step counts from 1. w, g, m and v must not overlap. The factors that contain
// only scalars are derived in float64 and rounded once; the rest is float32 without
// fused multiply-add, the same bits on every machine and for every split of the
// span.
func AdamW(step int, lr, beta1, beta2, eps, weightDecay float64, w, g, m, v []float32) {
	checkLen("AdamW", len(w), len(g), len(m), len(v))
	if step < 1 {
		panic(fmt.Sprintf("kernel: AdamW: step %d, the first is 1", step))
	}
	a := adam{
		decay: float32(1 - float64(lr*weightDecay)),
		b1:    float32(beta1),
		c1:    float32(1 - beta1),
		b2:    float32(beta2),
		c2:    float32(1 - beta2),
		root:  float32(math.Sqrt(1 - math.Pow(beta2, float64(step)))),
		eps:   float32(eps),
		rate:  float32(lr / (1 - math.Pow(beta1, float64(step)))),
	}
	Parallel(len(w), grain, func(lo, hi int) { a.span(w[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi]) })
}

func (a *adam) span(w, g, m, v []float32) {
	for i := adamw32(a, w, g, m, v); i < len(w); i++ {
		mi := float32(a.b1*m[i]) + float32(a.c1*g[i])
		vi := float32(a.b2*v[i]) + float32(a.c2*float32(g[i]*g[i]))
		// The square root of a float32 taken in float64 and rounded is the
		// correctly rounded one.
		root := float32(math.Sqrt(float64(vi)))
		step := float32(a.rate*mi) / (root/a.root + a.eps)
		w[i] = float32(w[i]*a.decay) - step
		m[i], v[i] = mi, vi
	}
}
