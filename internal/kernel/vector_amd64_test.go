//go:build amd64 && !noasm

package kernel

import "testing"

// TestVectorMatchesPlain compares assembly and Go at every length around the
// vector width and at odd alignments, with special values among the operands.
func TestVectorMatchesPlain(t *testing.T) {
	if !hasVector {
		t.Log("no AVX2 here: the plain loops are compared with themselves")
	}
	lengths := []int{1000, 2*foldBlock + 5, grain + 77}
	for n := range 71 {
		lengths = append(lengths, n)
	}
	for _, c := range bitCases() {
		for _, n := range lengths {
			for _, special := range []bool{false, true} {
				p := newSpans(n, n%4, special)
				want := withoutVector(func() [][]float32 { return c.run(p) })
				for name, got := range map[string][][]float32{
					"assembly":          c.run(p),
					"assembly for AVX2": without512(func() [][]float32 { return c.run(p) }),
				} {
					if k, i, bad := differ(got, want); bad {
						t.Fatalf("%s: n=%d special=%v: output %d[%d] is %x (%v) by %s, plain Go has %x (%v)", c.name, n, special,
							k, i, got[k][i], got[k][i], name, want[k][i], want[k][i])
					}
				}
			}
		}
	}
}

// without512 runs f on the kernels for AVX2. Tests that call it are not parallel.
func without512(f func() [][]float32) [][]float32 {
	was := hasVector512
	hasVector512 = false
	defer func() { hasVector512 = was }()
	return f()
}

// withoutVector runs f on the plain loops. Tests that call it are not parallel.
func withoutVector(f func() [][]float32) [][]float32 {
	was, was512 := hasVector, hasVector512
	hasVector, hasVector512 = false, false
	defer func() { hasVector, hasVector512 = was, was512 }()
	return f()
}
