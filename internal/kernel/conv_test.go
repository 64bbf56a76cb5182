package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// convData is the operands of one convolution, with earlier gradients to add to.
type convData[T Float] struct {
	s                                   Conv
	x, w, bias, dy, dxOld, dwOld, dbOld []T
}

func newConv[T Float](s Conv, draw func(*rand.Rand, int) []T) convData[T] {
	r := rand.New(rand.NewPCG(uint64(s.H), uint64(s.C)))
	x, w, y := s.N*s.C*s.H*s.W, s.O*s.C*s.KH*s.KW, s.N*s.O*s.OutH()*s.OutW()
	return convData[T]{s, draw(r, x), draw(r, w), draw(r, s.O), draw(r, y), draw(r, x), draw(r, w), draw(r, s.O)}
}

// convResult is everything that one convolution computes.
type convResult[T Float] struct{ y, plain, dx, dxAcc, dw, db, dwAcc, dbAcc []T }

func (r convResult[T]) all() [][]T {
	return [][]T{r.y, r.plain, r.dx, r.dxAcc, r.dw, r.db, r.dwAcc, r.dbAcc}
}

func nan[T Float](n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(math.NaN())
	}
	return s
}

func clone[T Float](s []T) []T { return append([]T(nil), s...) }

// run fills destinations that are to be overwritten with NaN first.
func (d convData[T]) run() convResult[T] {
	r := convResult[T]{
		nan[T](len(d.dy)), nan[T](len(d.dy)), nan[T](len(d.x)), clone(d.dxOld),
		nan[T](len(d.w)), nan[T](len(d.bias)), clone(d.dwOld), clone(d.dbOld),
	}
	ConvForward(d.s, d.x, d.w, d.bias, r.y)
	ConvForward(d.s, d.x, d.w, nil, r.plain)
	ConvBackwardInput(d.s, d.w, d.dy, r.dx, false)
	ConvBackwardInput(d.s, d.w, d.dy, r.dxAcc, true)
	ConvBackwardWeight(d.s, d.x, d.dy, r.dw, r.db, false)
	ConvBackwardWeight(d.s, d.x, d.dy, r.dwAcc, r.dbAcc, true)
	return r
}

// reference is the definition, by loops in float64, and for each element the
// sum of the absolute values of what it sums up.
func (d convData[T]) reference() (want, abs [][]float64) {
	s := d.s
	wide := func(v []T) []float64 {
		out := make([]float64, len(v))
		for i, e := range v {
			out[i] = float64(e)
		}
		return out
	}
	want = [][]float64{
		make([]float64, len(d.dy)), make([]float64, len(d.dy)), make([]float64, len(d.x)), wide(d.dxOld),
		make([]float64, len(d.w)), make([]float64, s.O), wide(d.dwOld), wide(d.dbOld),
	}
	for _, v := range want {
		a := make([]float64, len(v))
		for i := range v {
			a[i] = math.Abs(v[i])
		}
		abs = append(abs, a)
	}
	add := func(v float64, i int, results ...int) {
		for _, r := range results {
			want[r][i] += v
			abs[r][i] += math.Abs(v)
		}
	}
	oh, ow := s.OutH(), s.OutW()
	for y := range d.dy {
		n, o, i, j := y/ow/oh/s.O, y/ow/oh%s.O, y/ow%oh, y%ow
		g := float64(d.dy[y])
		add(float64(d.bias[o]), y, 0)
		add(g, o, 5, 7)
		for t := range s.C * s.KH * s.KW {
			row, col := i*s.Stride+t/s.KW%s.KH-s.PadTop, j*s.Stride+t%s.KW-s.PadLeft
			w := o*s.C*s.KH*s.KW + t
			if row < 0 || row >= s.H || col < 0 || col >= s.W {
				add(0*float64(d.w[w]), y, 0, 1) // not a number if w is infinite
				add(g*0, w, 4, 6)
				continue
			}
			x := ((n*s.C+t/s.KW/s.KH)*s.H+row)*s.W + col
			add(float64(d.x[x])*float64(d.w[w]), y, 0, 1)
			add(g*float64(d.w[w]), x, 2, 3)
			add(g*float64(d.x[x]), w, 4, 6)
		}
	}
	return want, abs
}

var convNames = []string{"y", "y without bias", "dx", "dx added", "dw", "db", "dw added", "db added"}

func (d convData[T]) check() error {
	want, abs := d.reference()
	terms := max(d.s.C, d.s.O, d.s.N) * max(d.s.KH*d.s.KW, d.s.OutH()*d.s.OutW())
	for k, got := range d.run().all() {
		for i, g := range got {
			if !(math.Abs(float64(g)-want[k][i]) <= bound[T](terms, abs[k][i])) {
				return fmt.Errorf("%+v: %s[%d] is %v, want %v", d.s, convNames[k], i, g, want[k][i])
			}
		}
	}
	return nil
}

// convCases are shapes of networks, and shapes at and beyond the edges.
func convCases() []Conv {
	cases := []Conv{
		{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},
		{2, 3, 1, 1, 5, 3, 3, 1, 1, 1, 1, 1},
		{2, 3, 13, 9, 4, 3, 3, 1, 1, 1, 1, 1},
		{2, 3, 13, 9, 4, 3, 3, 2, 1, 1, 1, 1},
		{2, 4, 12, 12, 6, 3, 3, 2, 0, 0, 1, 1},
		{3, 16, 12, 12, 17, 3, 3, 1, 1, 1, 1, 1},
		{2, 40, 8, 8, 32, 3, 3, 1, 1, 1, 1, 1},
		{5, 6, 8, 8, 7, 3, 3, 2, 0, 0, 1, 1},
		{9, 3, 4, 4, 32, 3, 3, 1, 1, 1, 1, 1},
		{2, 8, 16, 16, 8, 1, 1, 1, 0, 0, 0, 0},
		{2, 8, 7, 7, 8, 1, 1, 1, 0, 0, 0, 0},
		{2, 5, 9, 8, 3, 1, 1, 2, 0, 0, 0, 0},
		{1, 3, 10, 10, 4, 3, 3, 1, 0, 0, 0, 0},
		{1, 2, 5, 40, 3, 3, 3, 1, 2, 0, 0, 2},
		{2, 3, 11, 10, 4, 5, 3, 3, 2, 1, 2, 1},
		{1, 2, 6, 7, 3, 2, 4, 1, 0, 1, 1, 2},
		{1, 2, 9, 9, 2, 2, 2, 4, 0, 0, 0, 0},
		{1, 2, 3, 2, 2, 3, 3, 2, 1, 1, 1, 1},
		{1, 2, 2, 2, 2, 3, 3, 1, 0, 0, 0, 0}, // no output
		{0, 2, 4, 4, 2, 3, 3, 1, 1, 1, 1, 1},
		{1, 330, 8, 8, 5, 1, 1, 1, 0, 0, 0, 0},
		{1, 2, 260, 258, 1, 3, 3, 1, 1, 1, 1, 1}, // more than one strip
	}
	r := rand.New(rand.NewPCG(11, 12))
	for len(cases) < 54 {
		cases = append(cases, randomConv(func(n int) int { return r.IntN(n) }))
	}
	return cases
}

// randomConv draws a shape; pick(n) is a number below n.
func randomConv(pick func(n int) int) Conv {
	return Conv{
		N: 1 + pick(4), C: 1 + pick(12), H: 1 + pick(20), W: 1 + pick(20), O: 1 + pick(20), KH: 1 + pick(4), KW: 1 + pick(4),
		Stride: 1 + pick(3), PadTop: pick(3), PadLeft: pick(3), PadBottom: pick(3), PadRight: pick(3),
	}
}

func TestConv(t *testing.T) {
	for _, s := range convCases() {
		if err := newConv(s, draw[float32]).check(); err != nil {
			t.Error(err)
		}
		if err := newConv(s, draw[float64]).check(); err != nil {
			t.Errorf("float64: %v", err)
		}
	}
}

// TestConvIntegers holds sums that are exact to exactness.
func TestConvIntegers(t *testing.T) {
	for _, s := range convCases() {
		d := newConv(s, drawIntegers[float32])
		want, _ := d.reference()
		for k, got := range d.run().all() {
			for i, g := range got {
				if float64(g) != want[k][i] {
					t.Fatalf("%+v: %s[%d] is %v, want %v", s, convNames[k], i, g, want[k][i])
				}
			}
		}
	}
}

func TestConvBitsDoNotDependOnGOMAXPROCS(t *testing.T) {
	for _, s := range []Conv{
		{16, 32, 16, 16, 32, 3, 3, 1, 1, 1, 1, 1},
		{5, 24, 8, 8, 40, 3, 3, 1, 1, 1, 1, 1},
		{1, 32, 33, 30, 16, 3, 3, 2, 0, 0, 1, 1},
		{3, 96, 16, 16, 64, 1, 1, 1, 0, 0, 0, 0},
	} {
		d := newConv(s, draw[float32])
		var want [][]float32
		eachProcs(func(procs int) {
			got := d.run().all()
			if want == nil {
				want = got
			}
			if k, i, bad := differ(got, want); bad {
				t.Errorf("%+v: GOMAXPROCS %d: %s[%d] is %v, with 1 it is %v", s, procs, convNames[k], i, got[k][i], want[k][i])
			}
		})
	}
}

// TestConvBitsDoNotDependOnTheBatch holds that an image has the same output and
// input gradient alone as in a batch.
func TestConvBitsDoNotDependOnTheBatch(t *testing.T) {
	s := Conv{5, 24, 12, 12, 40, 3, 3, 1, 1, 1, 1, 1}
	d := newConv(s, draw[float32])
	whole := d.run()
	for n := range s.N {
		one := d
		one.s.N = 1
		part := func(v []float32) []float32 { return v[n*len(v)/s.N:][:len(v)/s.N] }
		one.x, one.dy, one.dxOld = part(d.x), part(d.dy), part(d.dxOld)
		r := one.run()
		if k, i, bad := differ([][]float32{r.y, r.dx}, [][]float32{part(whole.y), part(whole.dx)}); bad {
			t.Errorf("image %d: output %d[%d] differs", n, k, i)
		}
	}
}

// TestConvKeepsInfinitiesInTheirPlace holds that an element which is not finite
// reaches the outputs that see it and no others: not by way of padding, of the
// ends of rows or of neighbours in a tile.
func TestConvKeepsInfinitiesInTheirPlace(t *testing.T) {
	for _, s := range []Conv{{1, 2, 6, 9, 3, 3, 3, 1, 1, 1, 1, 1}, {2, 2, 8, 8, 3, 3, 3, 2, 0, 0, 1, 1}} {
		d := newConv(s, draw[float32])
		for _, v := range []struct {
			name string
			s    []float32
		}{{"x", d.x}, {"dy", d.dy}} {
			was := v.s[len(v.s)/2+3]
			v.s[len(v.s)/2+3] = float32(math.Inf(1))
			want, _ := d.reference()
			for k, got := range d.run().all() {
				for i, g := range got {
					if math.IsInf(want[k][i], 0) != math.IsInf(float64(g), 0) || math.IsNaN(want[k][i]) != (g != g) {
						t.Errorf("%+v, infinity in %s: %s[%d] is %v, want %v", s, v.name, convNames[k], i, g, want[k][i])
					}
				}
			}
			v.s[len(v.s)/2+3] = was
		}
	}
}

func TestConvRefusesWrongLengths(t *testing.T) {
	s := Conv{1, 2, 4, 4, 3, 3, 3, 1, 1, 1, 1, 1}
	d := newConv(s, draw[float32])
	for name, f := range map[string]func(){
		"x":      func() { ConvForward(s, d.x[1:], d.w, d.bias, d.dy) },
		"w":      func() { ConvBackwardInput(s, d.w[1:], d.dy, d.x, false) },
		"dy":     func() { ConvBackwardWeight(s, d.x, d.dy[1:], d.w, nil, false) },
		"bias":   func() { ConvForward(s, d.x, d.w, d.bias[1:], d.dy) },
		"db":     func() { ConvBackwardWeight(s, d.x, d.dy, d.w, d.bias[1:], false) },
		"stride": func() { z := s; z.Stride = 0; ConvForward(z, d.x, d.w, d.bias, d.dy) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func FuzzConv(f *testing.F) {
	f.Add([]byte{1, 2, 8, 8, 3, 2, 2, 0, 1, 1, 1, 1})
	f.Add([]byte{0, 7, 12, 8, 9, 0, 3, 1, 0, 0, 1, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := randomConv(func(n int) int {
			if len(data) == 0 {
				return 0
			}
			v := int(data[0]) % n
			data = data[1:]
			return v
		})
		if err := newConv(s, draw[float32]).check(); err != nil {
			t.Error(err)
		}
	})
}
