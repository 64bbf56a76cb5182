package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

// ulps returns how many units in the last place of want (as a float32) lie
// between the two.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(e-24, -149))
}

func TestExpAccuracy(t *testing.T) {
	worst := 0.0
	check := func(x float32) {
		if u := ulps(expNeg(x), math.Exp(float64(x))); u > worst {
			worst = u
			if u > 1.2 {
				t.Fatalf("exp(%v) = %v, want %v: %.3f ulp", x, expNeg(x), math.Exp(float64(x)), u)
			}
		}
	}
	for b := math.Float32bits(-0x1p-30); b <= math.Float32bits(expFloor); b += 97 {
		check(math.Float32frombits(b))
	}
	check(0)
	check(float32(math.Copysign(0, -1)))
	for _, x := range []float32{-87.00001, -1e3, -math.MaxFloat32, float32(math.Inf(-1))} {
		if expNeg(x) != 0 {
			t.Errorf("exp(%v) = %v, want 0", x, expNeg(x))
		}
	}
	t.Logf("worst error %.3f ulp", worst)
}

func TestSiLUAccuracy(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Exp(r.Float64()*8-3))
	}
	y, d, one := make([]float32, len(x)), make([]float32, len(x)), make([]float32, len(x))
	for i := range one {
		one[i] = 1
	}
	SiLU(y, x)
	SiLUBackward(d, x, one, false)
	for i, v := range x {
		z := float64(v)
		s := 1 / (1 + math.Exp(-z))
		// Below -87 the sigmoid is 0.
		if u := ulps(y[i], z*s); u > 4 && (z >= -87 || y[i] != 0) {
			t.Fatalf("SiLU(%v) = %v, want %v: %.2f ulp", v, y[i], z*s, u)
		}
		// The derivative is zero near -1.278: its error is bounded by the
		// terms that cancel there.
		want := s * (1 + z*(1-s))
		if e := math.Abs(float64(d[i]) - want); e > 4*0x1p-24*s*(1+math.Abs(z)*(1-s))+1e-35 {
			t.Fatalf("SiLU'(%v) = %v, want %v", v, d[i], want)
		}
	}
}

func TestSiLULimits(t *testing.T) {
	testSiLULimits[float32](t)
	testSiLULimits[float64](t)
}

func testSiLULimits[T Float](t *testing.T) {
	inf, nan := T(math.Inf(1)), T(math.NaN())
	// Nine equal elements, so that both the vector and the plain loop see them.
	for _, c := range []struct{ x, y, d T }{
		{0, 0, 0.5}, {inf, inf, 1}, {-inf, 0, 0}, {1e30, 1e30, 1}, {-1e30, 0, 0}, {800, 800, 1}, {-800, 0, 0}, {nan, nan, nan},
	} {
		x, y, d, one := make([]T, 9), make([]T, 9), make([]T, 9), make([]T, 9)
		for i := range x {
			x[i], one[i] = c.x, 1
		}
		SiLU(y, x)
		SiLUBackward(d, x, one, false)
		for i := range y {
			if y[i] != c.y && !(math.IsNaN(float64(c.y)) && math.IsNaN(float64(y[i]))) {
				t.Errorf("%T: SiLU(%v) = %v, want %v", c.x, c.x, y[i], c.y)
			}
			if d[i] != c.d && !(math.IsNaN(float64(c.d)) && math.IsNaN(float64(d[i]))) {
				t.Errorf("%T: SiLU'(%v) = %v, want %v", c.x, c.x, d[i], c.d)
			}
		}
	}
}

func TestSoftmaxAccuracy(t *testing.T) {
	for _, cols := range []int{1, 7, 8, 16, 33, 64, 1000} {
		for _, scale := range []float32{0.125, 1, -1, 30} {
			p := newSpans(cols, 1, false)
			x, y := tiled(p.a, 3), make([]float32, 3*cols)
			Softmax(y, x, 3, cols, scale)
			for r := range 3 {
				row, total := make([]float64, cols), 0.0
				top := math.Inf(-1)
				for i := range row {
					row[i] = float64(x[r*cols+i]) * float64(scale)
					top = max(top, row[i])
				}
				for i := range row {
					row[i] = math.Exp(row[i] - top)
					total += row[i]
				}
				for i := range row {
					want, got := row[i]/total, float64(y[r*cols+i])
					// The argument of the exponential, up to 240, is rounded to float32.
					if math.Abs(got-want) > 4e-7*want*(1+math.Abs(math.Log(row[i])+top)+math.Abs(top))+1e-37 {
						t.Fatalf("cols %d scale %v: [%d,%d] = %v, want %v", cols, scale, r, i, got, want)
					}
				}
			}
		}
	}
}

func TestSoftmaxSpecialRows(t *testing.T) {
	inf := float32(math.Inf(1))
	const cols = 19
	for _, c := range []struct {
		name string
		set  func(i int) float32
		want func(i int) float32 // NaN as -1
	}{
		{"masked half", func(i int) float32 {
			if i%2 == 1 {
				return -inf
			}
			return 5
		}, func(i int) float32 { return float32(1-i%2) * float32(1.0/10) }},
		{"huge", func(i int) float32 { return 1e30 * float32(i) }, func(i int) float32 { return float32(i / (cols - 1)) }},
		{"all masked", func(int) float32 { return -inf }, func(int) float32 { return -1 }},
		{"one NaN", func(i int) float32 {
			if i == 3 {
				return float32(math.NaN())
			}
			return 0
		}, func(int) float32 { return -1 }},
	} {
		x := make([]float32, cols)
		for i := range x {
			x[i] = c.set(i)
		}
		Softmax(x, x, 1, cols, 1)
		for i, v := range x {
			if w := c.want(i); v != w && !(w == -1 && v != v) {
				t.Errorf("%s: element %d is %v, want %v", c.name, i, v, w)
			}
		}
	}
}
