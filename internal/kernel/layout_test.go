package kernel

import (
	"runtime"
	"testing"
)

// counted returns 0, 1, 2, ... n-1.
func counted(n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(i)
	}
	return s
}

func TestTranspose2D(t *testing.T) {
	for _, s := range [][3]int{{1, 1, 1}, {0, 3, 3}, {2, 0, 5}, {2, 1, 7}, {3, 5, 1}, {2, 16, 16}, {2, 17, 33}, {3, 64, 100}} {
		batch, rows, cols := s[0], s[1], s[2]
		src, dst := counted(batch*rows*cols), make([]float32, batch*rows*cols)
		Transpose2D(dst, src, batch, rows, cols)
		for b := range batch {
			for i := range rows {
				for j := range cols {
					if g, w := dst[(b*cols+j)*rows+i], src[(b*rows+i)*cols+j]; g != w {
						t.Fatalf("%v: [%d,%d,%d] is %v, want %v", s, b, j, i, g, w)
					}
				}
			}
		}
	}
}

func TestUpsampleNearest(t *testing.T) {
	for _, s := range [][4]int{{1, 1, 1, 1}, {1, 1, 3, 5}, {2, 3, 4, 6}, {4, 4, 8, 8}, {3, 5, 7, 11}, {5, 4, 3, 2}, {3, 2, 3, 4}} {
		const planes = 3
		h, w, oh, ow := s[0], s[1], s[2], s[3]
		x, y := counted(planes*h*w), make([]float32, planes*oh*ow)
		UpsampleNearest(y, x, planes, h, w, oh, ow)
		dy := counted(len(y))
		got, want := counted(len(x)), counted(len(x))
		UpsampleNearestBackward(got, dy, planes, h, w, oh, ow, true)
		for p := range planes {
			for i := range oh {
				for j := range ow {
					from := (p*h+i*h/oh)*w + j*w/ow
					at := (p*oh+i)*ow + j
					if y[at] != x[from] {
						t.Fatalf("%v: [%d,%d,%d] is %v, want %v", s, p, i, j, y[at], x[from])
					}
					want[from] += dy[at]
				}
			}
		}
		for i, v := range want {
			if got[i] != v {
				t.Fatalf("%v: gradient %d is %v, want %v", s, i, got[i], v)
			}
		}
		// Overwriting, on top of what is there.
		UpsampleNearestBackward(got, dy, planes, h, w, oh, ow, false)
		for i, v := range want {
			if got[i] != v-float32(i) {
				t.Fatalf("%v: gradient %d is %v without acc, want %v", s, i, got[i], v-float32(i))
			}
		}
	}
}

func TestCopyBlocksConcatenates(t *testing.T) {
	// Channels of [2, 3, 4] and [2, 1, 4] side by side: [2, 4, 4].
	a, b, y := counted(24), counted(8), make([]float32, 32)
	CopyBlocks(y, 16, a, 12, 2, 12, false)
	CopyBlocks(y[12:], 16, b, 4, 2, 4, false)
	for i, v := range y {
		n, c := i/16, i%16
		w := b[n*4+max(0, c-12)]
		if c < 12 {
			w = a[n*12+c]
		}
		if v != w {
			t.Fatalf("element %d is %v, want %v", i, v, w)
		}
	}
	CopyBlocks(b, 4, y[12:], 16, 2, 4, true)
	for i, v := range b {
		if v != 2*float32(i) {
			t.Fatalf("element %d is %v, want %v", i, v, 2*i)
		}
	}
}

func TestElementwise(t *testing.T) {
	const n, c, hw = 2, 3, 19
	p := newSpans(n*c*hw, 1, false)
	a, b, s, shift := widen64(p.a), widen64(p.b), newSpans(n*c, 1, false).a, newSpans(n*c, 2, false).b
	check := func(name string, f func(y []float32), want func(i int) float64) {
		t.Helper()
		y, w := clone32(p.a), make([]float64, len(p.a))
		f(y)
		for i := range w {
			w[i] = want(i)
		}
		near(t, name, y, w, 2e-7)
	}
	check("Add", func(y []float32) { Add(y, y, p.b) }, func(i int) float64 { return a[i] + b[i] })
	check("Accumulate", func(y []float32) { Accumulate(y, p.b) }, func(i int) float64 { return a[i] + b[i] })
	check("Mul", func(y []float32) { Mul(y, y, p.b) }, func(i int) float64 { return a[i] * b[i] })
	check("MulAccumulate", func(y []float32) { MulAccumulate(y, p.b, p.c) }, func(i int) float64 { return a[i] + b[i]*float64(p.c[i]) })
	check("Scale", func(y []float32) { Scale(y, -0.5) }, func(i int) float64 { return -a[i] / 2 })
	check("ScaleBy", func(y []float32) { ScaleBy(y, 0.1) }, func(i int) float64 { return a[i] * 0.1 })
	check("AddRow", func(y []float32) { AddRow(y, p.b[:c*hw], n, c*hw) }, func(i int) float64 { return a[i] + b[i%(c*hw)] })
	check("AddChannel", func(y []float32) { AddChannel(y, y, s, n, c, hw) }, func(i int) float64 { return a[i] + float64(s[i/hw]) })
	check("ScaleShift", func(y []float32) { ScaleShift(y, y, s, shift, n, c, hw) },
		func(i int) float64 { return a[i]*(1+float64(s[i/hw])) + float64(shift[i/hw]) })
}

func TestScaleByOneKeepsBits(t *testing.T) {
	p := newSpans(100, 1, true)
	y := clone32(p.a)
	ScaleBy(y, 1)
	if k, i, bad := differ([][]float32{y}, [][]float32{p.a}); bad {
		t.Errorf("output %d[%d] changed", k, i)
	}
}

// TestMismatchPanics: operands of the wrong length are refused before assembly
// could run past an end.
func TestMismatchPanics(t *testing.T) {
	short, long, d := make([]float32, 16), make([]float32, 17), make([]float64, 2)
	for name, f := range map[string]func(){
		"Add":             func() { Add(long, long, short) },
		"Accumulate":      func() { Accumulate(long, short) },
		"SiLU":            func() { SiLU(long, short) },
		"SiLUBackward":    func() { SiLUBackward(long, short, long, false) },
		"Softmax":         func() { Softmax(long, short, 1, 17, 1) },
		"SoftmaxBackward": func() { SoftmaxBackward(long, long, short, 1, 17, 1) },
		"SumRows":         func() { SumRows(short, long, 1, 17, false) },
		"SumChannel":      func() { SumChannel(short, long, 1, 17, 1, false) },
		"GroupNorm":       func() { GroupNorm(long, short, long, long, 1, 17, 1, 1, 0, d[:1], d[:1]) },
		"GroupNorm groups": func() {
			GroupNorm(short, short, short, short, 1, 16, 1, 3, 0, d, d)
		},
		"AdamW":      func() { AdamW(1, 0, 0, 0, 0, 0, long, long, short, long) },
		"AdamW step": func() { AdamW(0, 0, 0, 0, 0, 0, long, long, long, long) },
		"MSE":        func() { MSE(long, short) },
		"SumSquares": func() { SumSquares(d, long, 16*17) },
		"block zero": func() { SumSquares(nil, nil, 0) },
		"Transpose2D": func() {
			Transpose2D(short, long, 1, 17, 1)
		},
		"UpsampleNearest": func() { UpsampleNearest(long, short, 1, 4, 4, 8, 8) },
		"CopyBlocks":      func() { CopyBlocks(long, 8, short, 8, 2, 9, false) },
	} {
		func() {
			defer func() {
				r := recover()
				if r == nil {
					t.Errorf("%s: no panic", name)
				}
				if _, bug := r.(runtime.Error); bug {
					t.Errorf("%s: %v, want a message that names the kernel", name, r)
				}
			}()
			f()
		}()
	}
}
