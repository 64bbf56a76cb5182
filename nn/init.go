package nn

import (
	"math"

	"github.com/zerogap/zerogap/framework"
)

// Init writes initial values into w, drawing from s. It must depend on nothing else.
type Init func(s *framework.Stream, w []float32)

// Uniform draws from [-bound, bound).
func Uniform(bound float64) Init {
	return func(s *framework.Stream, w []float32) {
		for i := range w {
			w[i] = float32((2*s.Float64() - 1) * bound)
		}
	}
}

// FanIn is PyTorch's default for Linear and Conv2d, weight and bias alike:
// uniform within 1/sqrt(fanIn), where fanIn counts the inputs of one output
// element. (PyTorch writes it as kaiming_uniform with a = sqrt(5), whose bound
// sqrt(6/((1+5)·fanIn)) is the same number.)
func FanIn(fanIn int) Init { return Uniform(1 / math.Sqrt(float64(fanIn))) }

// Normal draws from a normal distribution with mean 0 and deviation std.
func Normal(std float64) Init {
	return func(s *framework.Stream, w []float32) {
		for i := range w {
			w[i] = float32(std * s.Norm())
		}
	}
}

// Constant sets every element to v.
func Constant(v float32) Init {
	return func(_ *framework.Stream, w []float32) {
		for i := range w {
			w[i] = v
		}
	}
}
