package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
)

// draw returns n standard normal numbers.
func draw[T Float](r *rand.Rand, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(r.NormFloat64())
	}
	return s
}

// drawIntegers returns n small integers: sums of their products are exact in
// float32, in any order.
func drawIntegers[T Float](r *rand.Rand, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(r.IntN(17) - 8)
	}
	return s
}

// eachProcs calls f with GOMAXPROCS set to several values in turn.
func eachProcs(f func(procs int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2, 3, 8} {
		runtime.GOMAXPROCS(procs)
		f(procs)
	}
}

// bound is the error that a sum of n products whose absolute values sum up to
// abs may have: every partial sum rounds once or twice.
func bound[T Float](n int, abs float64) float64 {
	eps := 0x1p-52
	if isF32[T]() {
		eps = 0x1p-23
	}
	return float64(n+2) * eps * abs
}

// gemmCase is one product: sizes and the slack in the leading dimensions.
type gemmCase struct {
	transA, transB bool
	m, n, k        int
	pad            int
	acc            bool
}

func (c gemmCase) String() string {
	return fmt.Sprintf("transA=%v transB=%v m=%d n=%d k=%d pad=%d acc=%v", c.transA, c.transB, c.m, c.n, c.k, c.pad, c.acc)
}

// stored returns the leading dimension and size of a matrix.
func (c gemmCase) stored(rows, cols int, trans bool) (ld, size int) {
	if trans {
		rows, cols = cols, rows
	}
	ld = cols + c.pad
	return ld, max(0, (rows-1)*ld+cols)
}

// gemmData is the operands and the result of one product.
type gemmData[T Float] struct {
	a, b, c       []T
	lda, ldb, ldc int
}

func newGemm[T Float](c gemmCase, draw func(*rand.Rand, int) []T, seed uint64) gemmData[T] {
	r := rand.New(rand.NewPCG(seed, 7))
	var d gemmData[T]
	var size int
	d.lda, size = c.stored(c.m, c.k, c.transA)
	d.a = draw(r, size)
	d.ldb, size = c.stored(c.k, c.n, c.transB)
	d.b = draw(r, size)
	d.ldc, size = c.stored(c.m, c.n, false)
	d.c = draw(r, size)
	return d
}

func (d gemmData[T]) run(c gemmCase) []T {
	out := append([]T(nil), d.c...)
	Gemm(c.transA, c.transB, c.m, c.n, c.k, d.a, d.lda, d.b, d.ldb, out, d.ldc, c.acc)
	return out
}

// check compares a result with the definition in float64.
func (d gemmData[T]) check(c gemmCase, got []T) error {
	for i := range got {
		if i%d.ldc >= c.n && got[i] != d.c[i] {
			return fmt.Errorf("%v: element %d beyond the columns of c changed", c, i)
		}
	}
	for i := range c.m {
		for j := range c.n {
			var sum, abs float64
			if c.acc {
				sum = float64(d.c[i*d.ldc+j])
				abs = math.Abs(sum)
			}
			for p := range c.k {
				a, b := i*d.lda+p, p*d.ldb+j
				if c.transA {
					a = p*d.lda + i
				}
				if c.transB {
					b = j*d.ldb + p
				}
				v := float64(d.a[a]) * float64(d.b[b])
				sum += v
				abs += math.Abs(v)
			}
			if g := float64(got[i*d.ldc+j]); !(math.Abs(g-sum) <= bound[T](c.k, abs)) {
				return fmt.Errorf("%v: c[%d,%d] is %v, want %v", c, i, j, g, sum)
			}
		}
	}
	return nil
}

// gemmCases are products around the sizes where tiles, panels and blocks end.
func gemmCases() []gemmCase {
	r := rand.New(rand.NewPCG(1, 2))
	shapes := [][3]int{
		{0, 3, 3}, {3, 0, 3}, {3, 3, 0}, {1, 1, 1}, {1, 70, 70}, {70, 1, 70}, {70, 70, 1}, {2, 17, 5}, {5, 16, 8}, {8, 8, 8},
		{12, 32, 64}, {145, 33, 257}, {13, 1025, 9}, {150, 20, 513},
	}
	for range 24 {
		shapes = append(shapes, [3]int{1 + r.IntN(70), 1 + r.IntN(70), 1 + r.IntN(70)})
	}
	var cases []gemmCase
	for i, s := range shapes {
		for bits := range 8 {
			cases = append(cases, gemmCase{bits&1 > 0, bits&2 > 0, s[0], s[1], s[2], i % 3, bits&4 > 0})
		}
	}
	return cases
}

func TestGemm(t *testing.T) {
	t.Run("float32", testGemm[float32])
	t.Run("float64", testGemm[float64])
}

func testGemm[T Float](t *testing.T) {
	for i, c := range gemmCases() {
		d := newGemm(c, draw[T], uint64(i))
		if err := d.check(c, d.run(c)); err != nil {
			t.Error(err)
		}
	}
}

// TestGemmIntegers holds products that are exact to exactness, which a wrong
// element cannot hide from in a tolerance.
func TestGemmIntegers(t *testing.T) {
	for i, c := range gemmCases() {
		d := newGemm(c, drawIntegers[float32], uint64(i))
		wide := gemmData[float64]{widened(d.a), widened(d.b), widened(d.c), d.lda, d.ldb, d.ldc}
		want := wide.run(c)
		for j, g := range d.run(c) {
			if float64(g) != want[j] {
				t.Fatalf("%v: element %d is %v, want %v", c, j, g, want[j])
			}
		}
	}
}

func widened(s []float32) []float64 {
	out := make([]float64, len(s))
	for i, v := range s {
		out[i] = float64(v)
	}
	return out
}

func TestGemmBitsDoNotDependOnGOMAXPROCS(t *testing.T) {
	for _, c := range []gemmCase{{m: 333, n: 210, k: 300}, {m: 7, n: 2100, k: 600, transB: true, acc: true}, {m: 1500, n: 17, k: 257, transA: true}} {
		d := newGemm(c, draw[float32], 1)
		var want []float32
		eachProcs(func(procs int) {
			got := d.run(c)
			if want == nil {
				want = got
			}
			if _, i, bad := differ([][]float32{got}, [][]float32{want}); bad {
				t.Errorf("%v: GOMAXPROCS %d: element %d is %v, with 1 it is %v", c, procs, i, got[i], want[i])
			}
		})
	}
}

// TestGemmBitsDoNotDependOnPlace holds that an element has the same bits whether
// its row and column are computed alone or in a large product: rows of a batch
// do not know of each other.
func TestGemmBitsDoNotDependOnPlace(t *testing.T) {
	c := gemmCase{m: 157, n: 83, k: 300}
	d := newGemm(c, draw[float32], 3)
	whole := d.run(c)
	for _, p := range [][4]int{{0, 1, 0, 1}, {5, 9, 3, 40}, {100, 157, 79, 83}, {150, 151, 0, 83}} {
		m, n := p[1]-p[0], p[3]-p[2]
		part := make([]float32, m*n)
		Gemm(false, false, m, n, c.k, d.a[p[0]*d.lda:], d.lda, d.b[p[2]:], d.ldb, part, n, false)
		for i := range part {
			at := (p[0]+i/n)*d.ldc + p[2] + i%n
			if math.Float32bits(part[i]) != math.Float32bits(whole[at]) {
				t.Fatalf("part %v: element %d is %v alone and %v in the whole", p, i, part[i], whole[at])
			}
		}
	}
}

func TestGemmBatch(t *testing.T) {
	for _, c := range []gemmCase{{m: 64, n: 64, k: 8, transB: true}, {m: 64, n: 8, k: 64, acc: true}, {m: 9, n: 130, k: 300}, {m: 200, n: 130, k: 100}} {
		for _, count := range []int{0, 1, 2, 5, 40} {
			testGemmBatch(t, c, count)
		}
	}
}

func testGemmBatch(t *testing.T, c gemmCase, count int) {
	r := rand.New(rand.NewPCG(uint64(count), 5))
	one := newGemm(c, draw[float32], 1)
	a, b := draw[float32](r, count*len(one.a)), draw[float32](r, len(one.b)) // b is shared
	out := draw[float32](r, count*len(one.c))
	want := append([]float32(nil), out...)
	for i := range count {
		d := gemmData[float32]{a[i*len(one.a):][:len(one.a)], b, want[i*len(one.c):][:len(one.c)], one.lda, one.ldb, one.ldc}
		copy(d.c, d.run(c))
	}
	eachProcs(func(procs int) {
		got := append([]float32(nil), out...)
		GemmBatch(count, c.transA, c.transB, c.m, c.n, c.k, a, one.lda, len(one.a), b, one.ldb, 0, got, one.ldc, len(one.c), c.acc)
		if _, i, bad := differ([][]float32{got}, [][]float32{want}); bad {
			t.Errorf("%v: count %d, GOMAXPROCS %d: element %d is %v, Gemm has %v", c, count, procs, i, got[i], want[i])
		}
	})
}

func TestGemmRefusesShortOperands(t *testing.T) {
	for _, f := range []func(){
		func() {
			Gemm(false, false, 2, 2, 2, make([]float32, 3), 2, make([]float32, 4), 2, make([]float32, 4), 2, false)
		},
		func() {
			Gemm(false, true, 2, 3, 2, make([]float32, 4), 2, make([]float32, 5), 2, make([]float32, 6), 3, false)
		},
		func() {
			Gemm(false, false, 2, 2, 2, make([]float32, 4), 2, make([]float32, 4), 2, make([]float32, 4), 1, false)
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

func FuzzGemm(f *testing.F) {
	f.Add(uint64(1), uint16(7), uint16(17), uint16(33), byte(5))
	f.Add(uint64(2), uint16(145), uint16(1), uint16(258), byte(2))
	f.Fuzz(func(t *testing.T, seed uint64, m, n, k uint16, bits byte) {
		c := gemmCase{bits&1 > 0, bits&2 > 0, int(m % 160), int(n % 160), int(k % 300), int(bits >> 5), bits&4 > 0}
		d := newGemm(c, draw[float32], seed)
		if err := d.check(c, d.run(c)); err != nil {
			t.Error(err)
		}
	})
}
