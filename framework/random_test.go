package framework

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// The numbers of a key are part of what a checkpoint and a seed mean: a change
// of any of these is a change of every training run.
func TestStreamsNeverChange(t *testing.T) {
	cases := []struct {
		seed         uint64
		step, sample int
		purpose      Purpose
		bits         [3]uint64
		float        float64
		norms        [4]float64
		perm         []int
	}{
		{0, 0, 0, "noise",
			[3]uint64{0x8c047d9a7b76cd7d, 0x1f537316d986a8b0, 0xee4723905068e1b3},
			0x1.1808fb34f6ed9p-01,
			[4]float64{0x1.cf0cc91c924e8p-01, 0x1.bffa35d53e6fap-01, 0x1.0adcb7015656cp+01, -0x1.fe7bbd54978ecp-01},
			[]int{1, 0, 5, 3, 2, 7, 4, 6}},
		{42, 7, 123456, "timestep",
			[3]uint64{0x682e19353bbf8ad5, 0x80932705f43f6dd8, 0xab0c6daf97c6fa81},
			0x1.a0b864d4eefe2p-02,
			[4]float64{-0x1.05aa88843412ap+00, -0x1.d88e74a5d203cp-07, -0x1.7b2d7a46b523ep+00, 0x1.c73adf54d9c1cp-04},
			[]int{0, 3, 5, 1, 7, 2, 6, 4}},
		{math.MaxUint64, -1, 1 << 40, "init:conv_in.weight",
			[3]uint64{0x27c2080e9da04445, 0x3529b713721eb2ea, 0xdcb16b820be588da},
			0x1.3e104074ed02p-03,
			[4]float64{0x1.38c49837684afp-03, 0x1.1f0297e72686dp-01, 0x1.6c977a3b13959p-01, -0x1.dbd9faee29041p+00},
			[]int{4, 7, 2, 3, 1, 6, 0, 5}},
	}
	for _, c := range cases {
		name := fmt.Sprintf("(%d, %d, %d, %q)", c.seed, c.step, c.sample, c.purpose)
		stream := func() *Stream { return NewStream(c.seed, c.step, c.sample, c.purpose) }
		s := stream()
		if got := [3]uint64{s.Uint64(), s.Uint64(), s.Uint64()}; got != c.bits {
			t.Errorf("%s: bits %#x, want %#x", name, got, c.bits)
		}
		if got := stream().Float64(); got != c.float {
			t.Errorf("%s: Float64 %x, want %x", name, got, c.float)
		}
		s = stream()
		for i, want := range c.norms {
			if got := s.Norm(); got != want {
				t.Errorf("%s: Norm %d is %x, want %x", name, i, got, want)
			}
		}
		if got := stream().Perm(8); !slices.Equal(got, c.perm) {
			t.Errorf("%s: Perm %v, want %v", name, got, c.perm)
		}
	}
}

// TestNeighbouringKeys looks for keys that begin with the same number. Among
// 66,000 good keys the chance of one such pair is 2⁻³³.
func TestNeighbouringKeys(t *testing.T) {
	seen := make(map[uint64]string)
	check := func(seed uint64, step, sample int, p Purpose) {
		first := NewStream(seed, step, sample, p).Uint64()
		name := fmt.Sprintf("(%d, %d, %d, %q)", seed, step, sample, p)
		if other, dup := seen[first]; dup {
			t.Fatalf("%s and %s begin with the same number", name, other)
		}
		seen[first] = name
	}
	for seed := range uint64(8) {
		for step := -1; step < 31; step++ {
			for sample := range 64 {
				for _, p := range []Purpose{"noise", "timestep", "flip", ""} {
					check(seed, step, sample, p)
				}
			}
		}
	}
	for _, p := range []Purpose{"\x00", "\x00\x00", "aaaaaaaa", "aaaaaaaa\x00", "aaaaaaaab", "baaaaaaaa"} {
		check(0, 0, 0, p)
	}
	for bit := range 64 { // single bits, which a weak hash would let cancel
		check(1<<bit, 0, 0, "bit")
		check(1, 1<<bit, 0, "bit")
		check(1, 0, 1<<bit, "bit")
	}
}

// TestStreamStatistics compares moments with their expectation, within five
// standard deviations; the seeds are fixed, so it cannot fail by chance later.
func TestStreamStatistics(t *testing.T) {
	const n = 200_000
	near := func(what string, got, want, sd float64) {
		t.Helper()
		if math.Abs(got-want) > 5*sd {
			t.Errorf("%s: %v, want %v within %v", what, got, want, 5*sd)
		}
	}
	moments := func(draw func(i int) float64) (m [4]float64) {
		for i := range n {
			for p, x := 0, draw(i); p < 4; p++ {
				m[p] += math.Pow(x, float64(p+1)) / n
			}
		}
		return m
	}
	within, across := NewStream(1, 0, 0, "noise"), func(i int) *Stream { return NewStream(1, i/1000, i%1000, "noise") }
	for name, draw := range map[string]func(i int) float64{
		"one stream":            func(int) float64 { return within.Norm() },
		"first of many streams": func(i int) float64 { return across(i).Norm() },
		"second of many":        func(i int) float64 { s := across(i); s.Norm(); return s.Norm() },
	} {
		m := moments(draw)
		for p, want := range []float64{0, 1, 0, 3} {
			sd := math.Sqrt([]float64{1, 2, 15, 96}[p] / n)
			near(fmt.Sprintf("normal, %s, moment %d", name, p+1), m[p], want, sd)
		}
	}
	u := moments(func(i int) float64 { return across(i).Float64() })
	for p := range 4 {
		k := float64(p + 1)
		near(fmt.Sprintf("uniform, moment %d", p+1), u[p], 1/(k+1), math.Sqrt((1/(2*k+1)-1/((k+1)*(k+1)))/n))
	}
	// Neighbours in sample, step, seed and purpose are uncorrelated.
	for name, pair := range map[string]func(i int) (*Stream, *Stream){
		"sample": func(i int) (*Stream, *Stream) { return NewStream(3, 7, i, "noise"), NewStream(3, 7, i+1, "noise") },
		"step":   func(i int) (*Stream, *Stream) { return NewStream(3, i, 7, "noise"), NewStream(3, i+1, 7, "noise") },
		"seed": func(i int) (*Stream, *Stream) {
			return NewStream(uint64(i), 3, 7, "n"), NewStream(uint64(i+1), 3, 7, "n")
		},
		"purpose": func(i int) (*Stream, *Stream) { return NewStream(3, i, 7, "noise"), NewStream(3, i, 7, "flip") },
	} {
		var sum float64
		for i := range n {
			a, b := pair(i)
			sum += a.Norm() * b.Norm()
		}
		near("correlation of neighbours in "+name, sum/n, 0, 1/math.Sqrt(n))
	}
}

func TestIntnIsUniform(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 10, 1000} {
		counts := make([]float64, n)
		s := NewStream(11, 0, n, "intn")
		const draws = 200_000
		for range draws {
			counts[s.Intn(n)]++ // panics when out of range
		}
		var chi2 float64
		want := float64(draws) / float64(n)
		for _, c := range counts {
			chi2 += (c - want) * (c - want) / want
		}
		// chi-squared with n-1 degrees: mean n-1, variance 2(n-1).
		if free := float64(n - 1); math.Abs(chi2-free) > 5*math.Sqrt(2*free) {
			t.Errorf("Intn(%d): chi-squared %.1f with %d degrees of freedom", n, chi2, n-1)
		}
	}
	// A bound for which a plain remainder would give the lower third twice as often.
	const n = 3 << 61
	s, low := NewStream(12, 0, 0, "intn"), 0
	for range 30_000 {
		if s.Intn(n) < n/3 {
			low++
		}
	}
	if math.Abs(float64(low)-10_000) > 5*math.Sqrt(30_000*2/9.0) {
		t.Errorf("Intn(3<<61) is in the lower third %d times of 30000", low)
	}
}

func TestPermIsUniform(t *testing.T) {
	counts := map[string]int{}
	for i := range 24_000 {
		counts[fmt.Sprint(NewStream(0, i, 0, "order").Perm(4))]++
	}
	if len(counts) != 24 {
		t.Errorf("%d different orders of 4, want 24", len(counts))
	}
	for p, c := range counts {
		if math.Abs(float64(c)-1000) > 5*math.Sqrt(1000) {
			t.Errorf("order %s came %d times of 24000", p, c)
		}
	}
	if got := NewStream(0, 0, 0, "order").Perm(0); len(got) != 0 {
		t.Errorf("Perm(0) = %v", got)
	}
}

func TestOwnLogAndSincos(t *testing.T) {
	s := NewStream(2, 0, 0, "elementary")
	us := []float64{1, 0.5, 0.25, 0.125, 0.375, 0.75, 0.875, math.Sqrt2 / 2, 0x1p-53, 1 - 0x1p-53, 0x1p-1022}
	for range 50_000 {
		us = append(us, 1-s.Float64())
	}
	for _, u := range us {
		if got, want := logUnit(u), math.Log(u); math.Abs(got-want) > 5e-16*max(1, -want) {
			t.Fatalf("log %v = %v, want %v", u, got, want)
		}
		if u == 1 {
			u = 0
		}
		sin, cos := sincosTurn(u)
		// math.Sincos of 2πu has a rounding error in its argument; fold first.
		wantSin, wantCos := math.Sincos(2 * math.Pi * (u - math.Round(u)))
		if math.Abs(sin-wantSin) > 6e-16 || math.Abs(cos-wantCos) > 6e-16 {
			t.Fatalf("sincos of %v turns = %v, %v, want %v, %v", u, sin, cos, wantSin, wantCos)
		}
		if r := sin*sin + cos*cos; math.Abs(r-1) > 5e-16 {
			t.Fatalf("sin² + cos² of %v turns = %v", u, r)
		}
	}
}

func TestFillNormIsNorm(t *testing.T) {
	a, b := NewStream(5, 1, 2, "noise"), NewStream(5, 1, 2, "noise")
	got := make([]float32, 7)
	a.FillNorm(got[:3]) // an odd number: the spare half must not be lost
	a.FillNorm(got[3:])
	for i, x := range got {
		if want := float32(b.Norm()); x != want {
			t.Errorf("element %d is %v, want %v", i, x, want)
		}
	}
}

func TestStreamIsAValue(t *testing.T) {
	s := NewStream(5, 0, 0, "noise")
	s.Norm()
	fork := *s
	for range 5 {
		if a, b := s.Norm(), fork.Norm(); a != b {
			t.Fatalf("copy gives %v, original %v", b, a)
		}
	}
	sink := 0.0
	if n := testing.AllocsPerRun(100, func() { sink += NewStream(1, 2, 3, "noise").Norm() }); n != 0 {
		t.Errorf("a stream costs %v allocations", n)
	}
}

func BenchmarkNorm(b *testing.B) {
	s, x := NewStream(1, 0, 0, "noise"), make([]float32, 1024)
	b.SetBytes(4 * 1024)
	for b.Loop() {
		s.FillNorm(x)
	}
}
