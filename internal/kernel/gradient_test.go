package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

// checkGradient compares grad with the central difference of loss at each
// element of x, which it puts back afterwards.
func checkGradient(t *testing.T, name string, x, grad []float64, loss func() float64) {
	t.Helper()
	const h = 1e-5
	for i := range x {
		was := x[i]
		x[i] = was + h
		up := loss()
		x[i] = was - h
		down := loss()
		x[i] = was
		if num := (up - down) / (2 * h); math.Abs(num-grad[i]) > 1e-7*(1+math.Abs(num)) {
			t.Errorf("%s[%d]: gradient %v, difference quotient %v", name, i, grad[i], num)
		}
	}
}

func normal64(r *rand.Rand, n int) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = r.NormFloat64()
	}
	return s
}

// weighted returns the sum of y*dy, the loss whose gradient to y is dy.
func weighted(y, dy []float64) float64 {
	s := 0.0
	for i := range y {
		s += y[i] * dy[i]
	}
	return s
}

func TestGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	n := 24
	x, dy, y, dx := normal64(r, n), normal64(r, n), make([]float64, n), make([]float64, n)

	SiLUBackward(dx, x, dy, false)
	checkGradient(t, "SiLU", x, dx, func() float64 { SiLU(y, x); return weighted(y, dy) })

	Softmax(y, x, 4, 6, 0.7)
	SoftmaxBackward(dx, y, dy, 4, 6, 0.7)
	checkGradient(t, "Softmax", x, dx, func() float64 { Softmax(y, x, 4, 6, 0.7); return weighted(y, dy) })

	b := normal64(r, n)
	MSEBackward(dx, x, b, 3, false)
	checkGradient(t, "MSE", x, dx, func() float64 { return 3 * MSE(x, b) })

	s, shift, ds, db := normal64(r, 6), normal64(r, 6), make([]float64, 6), make([]float64, 6)
	loss := func() float64 { ScaleShift(y, x, s, shift, 2, 3, 4); return weighted(y, dy) }
	ScaleShiftBackward(dx, ds, db, x, s, dy, 2, 3, 4, false, false)
	checkGradient(t, "ScaleShift x", x, dx, loss)
	checkGradient(t, "ScaleShift s", s, ds, loss)
	checkGradient(t, "ScaleShift b", shift, db, loss)

	up := func() float64 { UpsampleNearest(y, x[:8], 2, 2, 2, 4, 3); return weighted(y, dy) }
	UpsampleNearestBackward(dx[:8], dy, 2, 2, 2, 4, 3, false)
	checkGradient(t, "UpsampleNearest", x[:8], dx[:8], up)
	up = func() float64 { UpsampleNearest(y, x[:6], 1, 2, 3, 4, 6); return weighted(y, dy) }
	UpsampleNearestBackward(dx[:6], dy, 1, 2, 3, 4, 6, false)
	checkGradient(t, "UpsampleNearest twice", x[:6], dx[:6], up)
}

func TestGroupNormGradient(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const n, c, hw, groups = 2, 6, 5, 3
	x, dy, gamma, beta := normal64(r, n*c*hw), normal64(r, n*c*hw), normal64(r, c), normal64(r, c)
	y, dx := make([]float64, len(x)), make([]float64, len(x))
	dgamma, dbeta := make([]float64, c), make([]float64, c)
	mean, rstd := make([]float64, n*groups), make([]float64, n*groups)
	loss := func() float64 {
		GroupNorm(y, x, gamma, beta, n, c, hw, groups, 1e-5, mean, rstd)
		return weighted(y, dy)
	}
	loss()
	GroupNormBackward(dx, dgamma, dbeta, x, gamma, dy, n, c, hw, groups, mean, rstd, false, false)
	checkGradient(t, "x", x, dx, loss)
	checkGradient(t, "gamma", gamma, dgamma, loss)
	checkGradient(t, "beta", beta, dbeta, loss)

	// The same again on top: everything doubles. And with nil for each output.
	loss()
	dx2, dgamma2, dbeta2 := append([]float64(nil), dx...), append([]float64(nil), dgamma...), append([]float64(nil), dbeta...)
	GroupNormBackward(dx2, dgamma2, dbeta2, x, gamma, dy, n, c, hw, groups, mean, rstd, true, true)
	for _, p := range [][2][]float64{{dx, dx2}, {dgamma, dgamma2}, {dbeta, dbeta2}} {
		for i, v := range p[0] {
			if p[1][i] != 2*v {
				t.Fatalf("accumulated %v on %v", p[1][i], v)
			}
		}
	}
	only := make([]float64, len(x))
	GroupNormBackward(only, nil, nil, x, gamma, dy, n, c, hw, groups, mean, rstd, false, false)
	GroupNormBackward(nil, dgamma2, dbeta2, x, gamma, dy, n, c, hw, groups, mean, rstd, false, false)
	for i, v := range dx {
		if only[i] != v {
			t.Fatalf("dx alone: element %d is %v, want %v", i, only[i], v)
		}
	}
	for i := range dgamma {
		if dgamma2[i] != dgamma[i] || dbeta2[i] != dbeta[i] {
			t.Fatalf("parameters alone: channel %d is %v, %v, want %v, %v", i, dgamma2[i], dbeta2[i], dgamma[i], dbeta[i])
		}
	}
}
