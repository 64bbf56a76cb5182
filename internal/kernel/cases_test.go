package kernel

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// spans are the operands of one case: runs of n elements that do not start at
// the beginning of their memory.
type spans struct {
	n          int
	a, b, c, d []float32 // uniform in [-4, 4), with special values if asked for
	pos        []float32 // squares
}

func newSpans(n, offset int, special bool) *spans {
	r := rand.New(rand.NewPCG(uint64(n), uint64(offset)))
	draw := func(special bool) []float32 {
		s := make([]float32, n+offset)[offset:]
		for i := range s {
			s[i] = float32(int32(r.Uint32())) * 0x1p-29 // uniform in [-4, 4)
			if special && r.IntN(8) == 0 {
				s[i] = specials[r.IntN(len(specials))]
			}
		}
		return s
	}
	p := &spans{n: n, a: draw(special), b: draw(special), c: draw(special), d: draw(false), pos: draw(false)}
	for i, v := range p.pos {
		p.pos[i] = v * v
	}
	return p
}

var specials = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 88, -88, 104, -104, 1e-40, -1e-40, 1e30, -1e30, 65504, 65520, -65536,
	math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32,
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
}

// clone32 copies s to memory of its own.
func clone32(s []float32) []float32 { return append([]float32(nil), s...) }

// narrow32 makes float32 of float64, for comparison.
func narrow32(s []float64) []float32 {
	out := make([]float32, 0, 2*len(s))
	for _, v := range s {
		b := math.Float64bits(v)
		if v != v {
			b = 0
		}
		out = append(out, float32(b>>48), float32(b>>24&0xffffff), float32(b&0xffffff))
	}
	return out
}

// tiled repeats s rows times, each row different.
func tiled(s []float32, rows int) []float32 {
	out := make([]float32, 0, rows*len(s))
	for r := range rows {
		for _, v := range s {
			out = append(out, v*float32(r+1)/2)
		}
	}
	return out
}

// bitCase is one kernel run on given operands, whose outputs are to have the
// same bits however it is computed.
type bitCase struct {
	name string
	run  func(p *spans) [][]float32
}

func bitCases() []bitCase {
	cases := []bitCase{
		{"Add", func(p *spans) [][]float32 { y := clone32(p.a); Add(y, p.a, p.b); return [][]float32{y} }},
		{"Accumulate", func(p *spans) [][]float32 { y := clone32(p.a); Accumulate(y, p.b); return [][]float32{y} }},
		{"Mul", func(p *spans) [][]float32 { y := clone32(p.a); Mul(y, p.a, p.b); return [][]float32{y} }},
		{"MulAccumulate", func(p *spans) [][]float32 { y := clone32(p.c); MulAccumulate(y, p.a, p.b); return [][]float32{y} }},
		{"Scale", func(p *spans) [][]float32 { y := clone32(p.a); Scale(y, 0.3); return [][]float32{y} }},
		{"ScaleBy", func(p *spans) [][]float32 { y := clone32(p.a); ScaleBy(y, 1.0/3); return [][]float32{y} }},
		{"AddRow", func(p *spans) [][]float32 { y := tiled(p.a, 3); AddRow(y, p.b, 3, p.n); return [][]float32{y} }},
		{"AddChannel", func(p *spans) [][]float32 {
			x := tiled(p.a, 6)
			AddChannel(x, x, []float32{1, 2, 3, -1, -2, -3}, 2, 3, p.n)
			return [][]float32{x}
		}},
		{"ScaleShift", runScaleShift},
		{"SiLU", func(p *spans) [][]float32 { y := clone32(p.a); SiLU(y, p.a); return [][]float32{y} }},
		{"SiLUBackward", func(p *spans) [][]float32 {
			y, z := clone32(p.a), clone32(p.c)
			SiLUBackward(y, p.a, p.b, false)
			SiLUBackward(z, p.a, p.b, true)
			return [][]float32{y, z}
		}},
		{"Softmax", func(p *spans) [][]float32 {
			x := tiled(p.a, 3)
			y, dx := clone32(x), tiled(p.b, 3)
			Softmax(y, x, 3, p.n, 0.7)
			SoftmaxBackward(dx, y, dx, 3, p.n, 0.7)
			return [][]float32{y, dx}
		}},
		{"GroupNorm", runGroupNorm},
		{"Sums", runSums},
		{"MSE", func(p *spans) [][]float32 {
			y, z := clone32(p.a), clone32(p.c)
			MSEBackward(y, p.a, p.b, 0.3, false)
			MSEBackward(z, p.a, p.b, 0.3, true)
			return [][]float32{narrow32([]float64{MSE(p.a, p.b)}), y, z}
		}},
		{"AdamW", func(p *spans) [][]float32 {
			w, m, v := clone32(p.a), clone32(p.c), clone32(p.pos)
			for step := 1; step <= 3; step++ {
				AdamW(step, 1e-3, 0.9, 0.999, 1e-8, 0.01, w, p.b, m, v)
			}
			return [][]float32{w, m, v}
		}},
		{"CopyBlocks", func(p *spans) [][]float32 {
			y := tiled(p.a, 6)
			CopyBlocks(y, 2*p.n, tiled(p.b, 3), p.n, 3, p.n, false)
			CopyBlocks(y[p.n:], 2*p.n, tiled(p.c, 3), p.n, 3, p.n, true)
			return [][]float32{y}
		}},
	}
	for _, acc := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		cases = append(cases, bitCase{"Cast/" + acc.String(), func(p *spans) [][]float32 {
			b, y := dtype.Make(acc, p.n), make([]float32, p.n)
			Round(b, p.a)
			Widen(y, b)
			return [][]float32{y}
		}})
		for _, x := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			cases = append(cases, bitCase{"Fold/" + acc.String() + "+" + x.String(), func(p *spans) [][]float32 {
				y := make([]float32, p.n)
				sum := rounded(acc, p.a)
				Fold(sum, []dtype.Buffer{rounded(x, p.b), rounded(x, p.c), rounded(x, p.d)})
				Widen(y, sum)
				return [][]float32{y}
			}})
		}
	}
	return cases
}

// rounded returns s in format d, one scalar at a time.
func rounded(d dtype.DType, s []float32) dtype.Buffer {
	b := dtype.Make(d, len(s))
	if d == dtype.F32 {
		copy(b.F32, s)
	}
	for i := range b.U16 {
		b.U16[i] = dtype.FromFloat32(d, s[i])
	}
	return b
}

func runScaleShift(p *spans) [][]float32 {
	x, dy := tiled(p.a, 6), tiled(p.b, 6)
	s, b := []float32{1, 2, 3, -1, -2, -3}, []float32{0.5, 0.25, 0, -1, 3, 7}
	y, dx, dx2, ds, db := clone32(x), clone32(x), clone32(x), make([]float32, 6), make([]float32, 6)
	ScaleShift(y, x, s, b, 2, 3, p.n)
	ScaleShiftBackward(dx, ds, db, x, s, dy, 2, 3, p.n, false, false)
	ScaleShiftBackward(dx2, ds, db, x, s, dy, 2, 3, p.n, true, true)
	return [][]float32{y, dx, dx2, ds, db}
}

func runGroupNorm(p *spans) [][]float32 {
	x, dy := tiled(p.a, 8), tiled(p.b, 8)
	gamma, beta := []float32{1, 2, 0.5, -1}, []float32{0, 1, -1, 3}
	y, dx, dx2 := clone32(x), clone32(x), clone32(x)
	dgamma, dbeta := make([]float32, 4), make([]float32, 4)
	mean, rstd := make([]float64, 4), make([]float64, 4)
	GroupNorm(y, x, gamma, beta, 2, 4, p.n, 2, 1e-5, mean, rstd)
	GroupNormBackward(dx, dgamma, dbeta, x, gamma, dy, 2, 4, p.n, 2, mean, rstd, false, false)
	GroupNormBackward(dx2, dgamma, dbeta, x, gamma, dy, 2, 4, p.n, 2, mean, rstd, true, true)
	return [][]float32{y, dx, dx2, dgamma, dbeta, narrow32(mean), narrow32(rstd)}
}

func runSums(p *spans) [][]float32 {
	x := tiled(p.a, 6)
	planes, rows := make([]float32, 6), clone32(p.b)
	SumChannel(planes, x, 2, 3, p.n, false)
	SumChannel(planes, x, 2, 3, p.n, true)
	SumRows(rows, x, 6, p.n, true)
	out := [][]float32{planes, rows}
	for _, block := range []int{1, 2, 16, 64, 1024} {
		sums := make([]float64, (p.n+block-1)/block)
		SumSquares(sums, p.a, block)
		out = append(out, narrow32(sums))
	}
	return out
}

// differ returns the first place where two results have different bits; any NaN
// equals any other.
func differ(got, want [][]float32) (array, index int, found bool) {
	for k := range want {
		for i, w := range want[k] {
			g := got[k][i]
			if math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
				return k, i, true
			}
		}
	}
	return 0, 0, false
}

func TestResultsDoNotDependOnGOMAXPROCS(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	p := newSpans(2*grain+1003, 1, false)
	for _, c := range bitCases() {
		runtime.GOMAXPROCS(1)
		want := c.run(p)
		for _, procs := range []int{2, 3, 8} {
			runtime.GOMAXPROCS(procs)
			got := c.run(p)
			if k, i, bad := differ(got, want); bad {
				t.Errorf("%s: GOMAXPROCS %d: output %d[%d] is %v, with 1 it is %v", c.name, procs, k, i, got[k][i], want[k][i])
			}
		}
	}
}

// TestGoldenBits holds all builds to the same bits: with and without assembly,
// on every architecture, whether or not the compiler may fuse.
func TestGoldenBits(t *testing.T) {
	p := newSpans(1003, 3, false)
	for _, c := range bitCases() {
		want, ok := goldenBits[c.name]
		h := fnv.New64a()
		for _, s := range c.run(p) {
			for _, v := range s {
				b := math.Float32bits(v)
				h.Write([]byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
			}
		}
		if got := h.Sum64(); !ok || got != want {
			t.Errorf("%q: 0x%016x, want 0x%016x", c.name, got, want)
		}
	}
}
