package kernel

import (
	"fmt"
	"slices"
)

// The vector kernels work on float32 and take the longest prefix that fills
// whole vectors: a function named xxx32 returns how many elements it has done
// (0 where there is no vector unit), and the plain Go loop after it does the
// rest. Both perform the same roundings in the same order, without fused
// multiply-add, so the border between them cannot be seen in the result.

// grain is the least number of elements worth a goroutine: at memory speed
// about ten microseconds of work.
const grain = 1 << 14

// f32 returns s itself when T is float32, and nil otherwise.
func f32[T Float](s []T) []float32 {
	f, _ := any(s).([]float32)
	return f
}

// isF32 reports whether T is float32.
func isF32[T Float]() bool {
	var z T
	_, ok := any(z).(float32)
	return ok
}

// grainOf returns the grain, in units, for a loop over units of size elements.
func grainOf(size int) int { return max(1, grain/max(1, size)) }

// checkLen panics unless every length is n.
func checkLen(op string, n int, lens ...int) {
	for _, l := range lens {
		if l != n {
			// A copy is printed, so that lens itself stays on the stack.
			panic(fmt.Sprintf("kernel: %s: lengths %v, want %d each", op, slices.Clone(lens), n))
		}
	}
}

// checkOutput panics unless s is nil, for an output not asked for, or of length n.
func checkOutput[T Float](op string, n int, s []T) {
	if s != nil {
		checkLen(op, n, len(s))
	}
}

// lanes is the accumulator of every sum over a run of elements: element i is
// added to lane i mod 16 in ascending order, in float64, and total combines the
// lanes in one fixed tree. That order depends on nothing but the length.
type lanes [16]float64

// total returns the sum of the lanes.
func (l *lanes) total() float64 {
	var v [4]float64
	for i := range v {
		v[i] = (l[i] + l[4+i]) + (l[8+i] + l[12+i])
	}
	return (v[0] + v[2]) + (v[1] + v[3])
}

// sum adds the elements of x to l.
func sum[T Float](l *lanes, x []T) {
	for i := sum32(l, f32(x)); i < len(x); i++ {
		l[i&15] += float64(x[i])
	}
}

// sumSquares adds the squares of x to l.
func sumSquares[T Float](l *lanes, x []T) {
	for i := sumSquares32(l, f32(x)); i < len(x); i++ {
		v := float64(x[i])
		l[i&15] += float64(v * v)
	}
}

// dot adds the products of a and b to l.
func dot[T Float](l *lanes, a, b []T) {
	b = b[:len(a)]
	for i := dot32(l, f32(a), f32(b)); i < len(a); i++ {
		l[i&15] += float64(float64(a[i]) * float64(b[i]))
	}
}
