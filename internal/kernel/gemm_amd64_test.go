//go:build amd64 && !noasm

package kernel

import (
	"testing"
	"time"
)

// TestAssemblyMatchesPlain compares the two paths on integers, where fused and
// separate rounding agree.
func TestAssemblyMatchesPlain(t *testing.T) {
	for i, c := range gemmCases() {
		d := newGemm(c, drawIntegers[float32], uint64(i))
		got := [][]float32{d.run(c)}
		if _, j, bad := differ(got, withoutFMA(func() [][]float32 { return [][]float32{d.run(c)} })); bad {
			t.Errorf("%v: element %d differs", c, j)
		}
	}
	for _, s := range convCases() {
		d := newConv(s, drawIntegers[float32])
		got := d.run().all()
		if k, j, bad := differ(got, withoutFMA(func() [][]float32 { return d.run().all() })); bad {
			t.Errorf("%+v: %s[%d] differs", s, convNames[k], j)
		}
	}
}

// TestWideKernelsGiveTheSameBits compares AVX-512 with AVX2.
func TestWideKernelsGiveTheSameBits(t *testing.T) {
	if !hasWide {
		t.Log("no AVX-512 here: the narrow kernels are compared with themselves")
	}
	for i, c := range gemmCases() {
		d := newGemm(c, draw[float32], uint64(i))
		got := [][]float32{d.run(c)}
		if _, j, bad := differ(got, withoutWide(func() [][]float32 { return [][]float32{d.run(c)} })); bad {
			t.Errorf("%v: element %d differs", c, j)
		}
	}
	// Many planes make columns of all kinds of tiles; few make incomplete ones.
	shapes := append(convCases(), Conv{2, 20, 9, 32, 24, 3, 3, 1, 1, 1, 1, 1}, Conv{3, 17, 8, 8, 33, 3, 3, 1, 1, 1, 1, 1}, Conv{2, 12, 16, 40, 7, 1, 1, 1, 0, 0, 0, 0})
	for _, s := range shapes {
		d := newConv(s, draw[float32])
		got := d.run().all()
		if k, j, bad := differ(got, withoutWide(func() [][]float32 { return d.run().all() })); bad {
			t.Errorf("%+v: %s[%d] differs", s, convNames[k], j)
		}
	}
}

// withoutWide runs f on the kernels for AVX2. Tests that call it are not parallel.
func withoutWide(f func() [][]float32) [][]float32 {
	was := hasWide
	hasWide = false
	defer func() { hasWide = was }()
	return f()
}

// withoutFMA runs f on the plain path. Tests that call it are not parallel.
func withoutFMA(f func() [][]float32) [][]float32 {
	fma, wide := hasFMA, hasWide
	hasFMA, hasWide = false, false
	defer func() { hasFMA, hasWide = fma, wide }()
	return f()
}

// peak measures how many floating point operations a second one core can do in
// the registers that the kernels use, the best of several runs. It is 0 where
// there are no kernels.
func peak() float64 {
	const rounds = 1 << 14
	best := 0.0
	for range 12 {
		start, perRound := time.Now(), 0
		switch {
		case hasWide:
			peakAVX512(rounds)
			perRound = 12 * 32
		case hasFMA:
			peakFMA(rounds)
			perRound = 12 * 16
		}
		best = max(best, float64(rounds*perRound)/time.Since(start).Seconds())
	}
	return best
}

// BenchmarkPeak reports the peak of one core.
func BenchmarkPeak(b *testing.B) {
	if !hasFMA {
		b.Skip("needs AVX2 and FMA")
	}
	best := 0.0
	for b.Loop() {
		best = max(best, peak())
	}
	b.ReportMetric(best/1e9, "GFLOP/s")
	b.ReportMetric(0, "ns/op")
}
