package cases

import (
	"math"
	"math/rand/v2"
)

// noise returns gradients of many magnitudes that depend on nothing but the seed,
// the step, the number of the micro-batch and the element.
func noise(seed uint64, world int) func(s, m, r, i int) float32 {
	return func(s, m, r, i int) float32 {
		rng := rand.New(rand.NewPCG(seed, uint64(s)<<48|uint64(m*world+r)<<32|uint64(i)))
		return float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(12)-10)))
	}
}
