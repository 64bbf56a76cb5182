package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A lane pointer holds sixteen float64: element i of a run is added to lane
// i mod 16.

// accumulators loads the sixteen lanes at p.
func accumulators(p Register) (acc [4]VecVirtual) {
	for k := range acc {
		acc[k] = ymm(Mem{Base: p, Disp: 32 * k})
	}
	return acc
}

// keep stores the lanes back.
func keep(acc [4]VecVirtual, p Register) {
	for k, a := range acc {
		VMOVUPS(a, Mem{Base: p, Disp: 32 * k})
	}
}

// wide loads four float32 as float64.
func wide(m Mem) VecVirtual {
	v := YMM()
	VCVTPS2PD(m, v)
	return v
}

func sums() {
	function("sumAVX2", "func(l *float64, x *float32, n int)", "adds x to the lanes l. Step 16.")
	reduce([]string{"x"}, func(v []VecVirtual) VecVirtual { return v[0] })

	function("sumSquaresAVX2", "func(l *float64, x *float32, n int)", "adds x*x to the lanes l. Step 16.")
	reduce([]string{"x"}, func(v []VecVirtual) VecVirtual {
		VMULPD(v[0], v[0], v[0])
		return v[0]
	})

	function("dotAVX2", "func(l *float64, a, b *float32, n int)", "adds a*b to the lanes l. Step 16.")
	reduce([]string{"a", "b"}, func(v []VecVirtual) VecVirtual {
		VMULPD(v[1], v[0], v[0])
		return v[0]
	})

	function("squaredErrorAVX2", "func(l *float64, a, b *float32, n int)", "adds (a-b)*(a-b) to the lanes l. Step 16.")
	reduce([]string{"a", "b"}, func(v []VecVirtual) VecVirtual {
		VSUBPD(v[1], v[0], v[0])
		VMULPD(v[0], v[0], v[0])
		return v[0]
	})

	function("addWideAVX2", "func(sums *float64, x *float32, n int)", "adds x to sums, elementwise. Step 8.")
	s, x := pointer("sums"), pointer("x")
	loop(8, func(i Register) {
		for k := 0; k < 8; k += 4 {
			v := wide(at(x, i, k, 4))
			VADDPD(at(s, i, k, 8), v, v)
			VMOVUPD(v, at(s, i, k, 8))
		}
	})
	end()

	function("momentsAVX2", "func(s, q *float64, x *float32, n int, shift float64)",
		"adds d = x - shift to the lanes s and d*d to the lanes q. Step 16.")
	paired([]string{"s", "q"}, []string{"x"}, "shift", func(v []VecVirtual, shift VecVirtual) (a, b VecVirtual) {
		VSUBPD(shift, v[0], v[0])
		square := YMM()
		VMULPD(v[0], v[0], square)
		return v[0], square
	})

	function("planeSumAVX2", "func(a, b *float64, x, dy *float32, n int, mean float64)",
		"adds dy to the lanes a and dy*(x-mean) to the lanes b. Step 16.")
	paired([]string{"a", "b"}, []string{"x", "dy"}, "mean", func(v []VecVirtual, mean VecVirtual) (a, b VecVirtual) {
		VSUBPD(mean, v[0], v[0])
		VMULPD(v[1], v[0], v[0])
		return v[1], v[0]
	})
}

// pointers loads several pointer parameters.
func pointers(names []string) []Register {
	p := make([]Register, len(names))
	for k, name := range names {
		p[k] = pointer(name)
	}
	return p
}

// widened loads the four elements i+k of each array as float64.
func widened(p []Register, i Register, k int) []VecVirtual {
	v := make([]VecVirtual, len(p))
	for j, q := range p {
		v[j] = wide(at(q, i, k, 4))
	}
	return v
}

// reduce adds f of the arrays to the lanes l.
func reduce(arrays []string, f func(v []VecVirtual) VecVirtual) {
	l, p := pointer("l"), pointers(arrays)
	acc := accumulators(l)
	loop(16, func(i Register) {
		for k, a := range acc {
			VADDPD(f(widened(p, i, 4*k)), a, a)
		}
	})
	keep(acc, l)
	end()
}

// paired adds the two results of f to the two sets of lanes.
func paired(lanes, arrays []string, scalar string, f func(v []VecVirtual, s VecVirtual) (a, b VecVirtual)) {
	l, p, s := pointers(lanes), pointers(arrays), broadcast64(scalar)
	first, second := accumulators(l[0]), accumulators(l[1])
	loop(16, func(i Register) {
		for k := range first {
			a, b := f(widened(p, i, 4*k), s)
			VADDPD(a, first[k], first[k])
			VADDPD(b, second[k], second[k])
		}
	})
	keep(first, l[0])
	keep(second, l[1])
	end()
}
