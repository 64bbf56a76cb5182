//go:build amd64 && !noasm

package kernel

import "testing"

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

// withoutFMA runs f on the plain path. Tests that call it are not parallel.
func withoutFMA(f func() [][]float32) [][]float32 {
	was := hasFMA
	hasFMA = false
	defer func() { hasFMA = was }()
	return f()
}

// BenchmarkPeak measures what one core can multiply and add at most.
func BenchmarkPeak(b *testing.B) {
	if !hasFMA {
		b.Skip("needs AVX2 and FMA")
	}
	const rounds = 1 << 16
	for b.Loop() {
		peakFMA(rounds)
	}
	reportFLOPS(b, rounds*12*16)
}
