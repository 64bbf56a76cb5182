package zero

import (
	"math"
	"testing"
)

// TestRoundFinite: rounding and looking in one pass finds the lowest bad element,
// also of several in different parts, and rounds as the kernel does.
func TestRoundFinite(t *testing.T) {
	const n = 5*chunk + 3
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%1000) / 7
	}
	for _, d := range []string{"fp32", "bf16", "fp16"} {
		want := bufferOf(d, x)
		for _, at := range [][]int{nil, {0}, {n - 1}, {chunk, chunk - 1}, {4*chunk + 5, 3*chunk + 1, 2 * chunk}} {
			lowest := -1
			for _, i := range at {
				x[i] = float32(math.Inf(1))
				if lowest < 0 || i < lowest {
					lowest = i
				}
			}
			got := bufferOf(d, make([]float32, n))
			if i := roundFinite(got, x); i != lowest {
				t.Errorf("%s, bad at %v: %d, want %d", d, at, i, lowest)
			}
			for _, i := range at {
				x[i] = float32(i%1000) / 7
			}
			if at != nil {
				continue
			}
			for i := range n {
				if got.At(i) != want.At(i) {
					t.Fatalf("%s: element %d is %v, want %v", d, i, got.At(i), want.At(i))
				}
			}
		}
	}
	if i := roundFinite(bufferOf("fp32", nil), nil); i != -1 {
		t.Errorf("nothing: %d", i)
	}
}
