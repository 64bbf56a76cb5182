package kernel

import (
	"fmt"
	"math"
	"testing"
)

// widen64 returns s in float64.
func widen64(s []float32) []float64 {
	out := make([]float64, len(s))
	for i, v := range s {
		out[i] = float64(v)
	}
	return out
}

// near fails unless got is want within rel of the greatest element of want.
func near(t *testing.T, name string, got []float32, want []float64, rel float64) {
	t.Helper()
	within(t, name, got, want, rel, 0)
}

// within is near with a greatest element of at least scale, that of the terms
// whose sum may cancel.
func within(t *testing.T, name string, got []float32, want []float64, rel, scale float64) {
	t.Helper()
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	for i, w := range want {
		if e := math.Abs(float64(got[i]) - w); !(e <= rel*scale) {
			t.Fatalf("%s[%d] = %v, want %v (greatest %v)", name, i, got[i], w, scale)
		}
	}
}

// groupNormReference is GroupNorm and its gradient by their definitions, two
// passes in float64; term is the greatest term of dx.
func groupNormReference(x, gamma, beta, dy []float64, n, c, hw, groups int, eps float64) (y, dx, dgamma, dbeta []float64, term float64) {
	y, dx = make([]float64, len(x)), make([]float64, len(x))
	dgamma, dbeta = make([]float64, c), make([]float64, c)
	per := c / groups
	m := per * hw
	for g := range n * groups {
		at := g * m
		mean, variance := 0.0, 0.0
		for _, v := range x[at : at+m] {
			mean += v / float64(m)
		}
		for _, v := range x[at : at+m] {
			variance += (v - mean) * (v - mean) / float64(m)
		}
		rs := 1 / math.Sqrt(variance+eps)
		m1, m2 := 0.0, 0.0
		for i := range m {
			ch := g%groups*per + i/hw
			xhat, d := (x[at+i]-mean)*rs, dy[at+i]
			y[at+i] = xhat*gamma[ch] + beta[ch]
			dgamma[ch] += d * xhat
			dbeta[ch] += d
			m1 += d * gamma[ch] / float64(m)
			m2 += d * gamma[ch] * xhat / float64(m)
		}
		for i := range m {
			ch := g%groups*per + i/hw
			term = max(term, math.Abs(rs*dy[at+i]*gamma[ch]))
			dx[at+i] = rs * (dy[at+i]*gamma[ch] - m1 - (x[at+i]-mean)*rs*m2)
		}
	}
	return y, dx, dgamma, dbeta, term
}

func TestGroupNormAccuracy(t *testing.T) {
	for _, s := range []struct{ n, c, hw, groups int }{{1, 1, 1, 1}, {2, 4, 1, 2}, {2, 6, 7, 3}, {3, 8, 64, 8}, {2, 32, 100, 4}, {2, 4, 1024, 1}} {
		for _, offset := range []float32{0, 3, -1000} {
			p := newSpans(s.n*s.c*s.hw, 1, false)
			for i := range p.a {
				p.a[i] += offset
			}
			gamma, beta := newSpans(s.c, 2, false).a, newSpans(s.c, 3, false).b
			mean, rstd := make([]float64, s.n*s.groups), make([]float64, s.n*s.groups)
			y, dx := make([]float32, p.n), make([]float32, p.n)
			dgamma, dbeta := make([]float32, s.c), make([]float32, s.c)
			GroupNorm(y, p.a, gamma, beta, s.n, s.c, s.hw, s.groups, 1e-5, mean, rstd)
			GroupNormBackward(dx, dgamma, dbeta, p.a, gamma, p.b, s.n, s.c, s.hw, s.groups, mean, rstd, false, false)
			wy, wdx, wdg, wdb, term := groupNormReference(widen64(p.a), widen64(gamma), widen64(beta), widen64(p.b), s.n, s.c, s.hw, s.groups, 1e-5)
			name := fmt.Sprintf("%v offset %v: ", s, offset)
			near(t, name+"y", y, wy, 5e-7)
			within(t, name+"dx", dx, wdx, 1e-6, term)
			near(t, name+"dgamma", dgamma, wdg, 1e-6)
			near(t, name+"dbeta", dbeta, wdb, 1e-6)
		}
	}
}

func TestGroupNormConstantInput(t *testing.T) {
	x := make([]float32, 64)
	for i := range x {
		x[i] = 0.1
	}
	mean, rstd := make([]float64, 1), make([]float64, 1)
	GroupNorm(x, x, []float32{2}, []float32{7}, 1, 1, 64, 1, 1e-5, mean, rstd)
	if mean[0] != float64(float32(0.1)) || rstd[0] != 1/math.Sqrt(1e-5) {
		t.Errorf("mean %v, rstd %v of a constant", mean[0], rstd[0])
	}
	for i, v := range x {
		if v != 7 {
			t.Fatalf("y[%d] = %v, want beta", i, v)
		}
	}
}

func TestSums(t *testing.T) {
	for _, s := range []struct{ n, c, hw int }{{1, 1, 0}, {1, 1, 1}, {2, 3, 5}, {2, 4, 64}, {3, 300, 33}} {
		p := newSpans(s.n*s.c*s.hw, 1, false)
		x := widen64(p.a)
		planes, rows, total := make([]float64, s.n*s.c), make([]float64, s.c*s.hw), 0.0
		for i, v := range x {
			planes[i/s.hw] += v
			rows[i%len(rows)] += v
			total += (v - float64(p.b[i])) * (v - float64(p.b[i]))
		}
		got := make([]float32, s.n*s.c)
		SumChannel(got, p.a, s.n, s.c, s.hw, false)
		near(t, "SumChannel", got, planes, 1e-7)
		got = make([]float32, s.c*s.hw)
		SumRows(got, p.a, s.n, s.c*s.hw, false)
		near(t, "SumRows", got, rows, 1e-7)
		if p.n == 0 {
			continue
		}
		if g, w := MSE(p.a, p.b), total/float64(p.n); math.Abs(g-w) > 1e-13*w {
			t.Errorf("MSE of %d: %v, want %v", p.n, g, w)
		}
		for _, block := range []int{1, 2, 4, 64, 1024} {
			sums := make([]float64, (p.n+block-1)/block)
			SumSquares(sums, p.a, block)
			for i, g := range sums {
				w := 0.0
				for _, v := range x[i*block : min(p.n, (i+1)*block)] {
					w += v * v
				}
				if math.Abs(g-w) > 1e-14*w {
					t.Fatalf("SumSquares %d in blocks of %d: block %d is %v, want %v", p.n, block, i, g, w)
				}
			}
		}
	}
}

// TestSumSquaresOfPartitions: cut on block borders, every block keeps its bits;
// and zero padding adds nothing.
func TestSumSquaresOfPartitions(t *testing.T) {
	p := newSpans(10*64+37, 1, false)
	whole := make([]float64, 11)
	SumSquares(whole, p.a, 64)
	part := make([]float64, 7)
	SumSquares(part, p.a[4*64:], 64)
	padded := make([]float64, 11)
	SumSquares(padded, append(clone32(p.a), make([]float32, 27)...), 64)
	for i, v := range whole {
		if i >= 4 && part[i-4] != v || padded[i] != v {
			t.Errorf("block %d: %v whole, %v padded, parts %v", i, v, padded[i], part)
		}
	}
}

func TestAdamWAgainstFloat64(t *testing.T) {
	p := newSpans(1003, 1, false)
	const lr, b1, b2, eps, wd = 1e-3, 0.9, 0.999, 1e-8, 0.01
	w, m, v := clone32(p.a), make([]float32, p.n), make([]float32, p.n)
	rw, rm, rv := widen64(p.a), make([]float64, p.n), make([]float64, p.n)
	for step := 1; step <= 20; step++ {
		grad := newSpans(1003, step, false).b
		AdamW(step, lr, b1, b2, eps, wd, w, grad, m, v)
		for i, f := range grad {
			g := float64(f)
			rw[i] *= 1 - lr*wd
			rm[i] = b1*rm[i] + (1-b1)*g
			rv[i] = b2*rv[i] + (1-b2)*g*g
			mhat, vhat := rm[i]/(1-math.Pow(b1, float64(step))), rv[i]/(1-math.Pow(b2, float64(step)))
			rw[i] -= lr * mhat / (math.Sqrt(vhat) + eps)
		}
	}
	near(t, "w", w, rw, 1e-6)
	near(t, "m", m, rm, 1e-6)
	near(t, "v", v, rv, 1e-6)
}

// TestAdamWFirstStepIsSignedRate checks the bias corrections: without decay the
// first step is lr * g/(|g| + eps), whatever the betas.
func TestAdamWFirstStepIsSignedRate(t *testing.T) {
	for _, g := range []float32{1e-3, -2, 50} {
		w, m, v := []float32{1}, []float32{0}, []float32{0}
		AdamW(1, 0.25, 0.9, 0.999, 1e-8, 0, w, []float32{g}, m, v)
		want := 1 - 0.25*math.Copysign(1, float64(g))/(1+1e-8/math.Abs(float64(g)))
		if math.Abs(float64(w[0])-want) > 1e-6 {
			t.Errorf("gradient %v: w = %v, want %v", g, w[0], want)
		}
	}
}
