package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

// TestWidenEveryHalf compares all 65536 values of both formats with the scalars
// of package dtype, NaN payloads included.
func TestWidenEveryHalf(t *testing.T) {
	for _, d := range []dtype.DType{dtype.BF16, dtype.F16} {
		src := dtype.Make(d, 1<<16)
		for i := range src.U16 {
			src.U16[i] = uint16(i)
		}
		got := make([]float32, 1<<16)
		Widen(got, src)
		for i, g := range got {
			if w := dtype.ToFloat32(d, uint16(i)); math.Float32bits(g) != math.Float32bits(w) {
				t.Fatalf("%s %#04x: %#08x, want %#08x", d, i, math.Float32bits(g), math.Float32bits(w))
			}
		}
	}
}

// TestRoundSweep rounds float32 of every exponent, sign and upper mantissa, with
// lower bits around each tie, and compares with the scalars of package dtype.
func TestRoundSweep(t *testing.T) {
	lows := []uint32{0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff}
	r := rand.New(rand.NewPCG(1, 2))
	src := make([]float32, 0, 1<<20)
	for top := range uint32(1 << 16) {
		for _, low := range lows {
			src = append(src, math.Float32frombits(top<<16|low))
		}
		src = append(src, math.Float32frombits(top<<16|r.Uint32N(1<<16)))
	}
	for _, d := range []dtype.DType{dtype.BF16, dtype.F16} {
		got := dtype.Make(d, len(src))
		Round(got, src)
		for i, g := range got.U16 {
			if w := dtype.FromFloat32(d, src[i]); g != w {
				t.Fatalf("%s of %#08x: %#04x, want %#04x", d, math.Float32bits(src[i]), g, w)
			}
		}
	}
}

func TestCastF32IsACopy(t *testing.T) {
	p := newSpans(1003, 1, true)
	got, back := dtype.Make(dtype.F32, p.n), make([]float32, p.n)
	Round(got, p.a)
	Widen(back, got)
	for i, v := range back {
		if math.Float32bits(v) != math.Float32bits(p.a[i]) {
			t.Fatalf("element %d: %v, want %v", i, v, p.a[i])
		}
	}
}

// TestFoldOrder compares with the definition: one element at a time, rounded
// after each addition.
func TestFoldOrder(t *testing.T) {
	formats := []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}
	for _, acc := range formats {
		for _, first := range formats {
			for _, second := range formats {
				p := newSpans(foldBlock+39, 3, true)
				xs := []dtype.Buffer{rounded(first, p.b), rounded(second, p.c), rounded(first, p.d)}
				got, want := rounded(acc, p.a), rounded(acc, p.a)
				Fold(got, xs)
				for i := range p.n {
					v := float32(want.At(i))
					for _, x := range xs {
						v = dtype.Round(acc, v+float32(x.At(i)))
					}
					if g := float32(got.At(i)); math.Float32bits(g) != math.Float32bits(v) && (g == g || v == v) {
						t.Fatalf("%s + %s + %s: element %d is %v, want %v", acc, first, second, i, g, v)
					}
				}
			}
		}
	}
	empty := rounded(dtype.F32, []float32{1, 2})
	Fold(empty, nil)
	if empty.F32[0] != 1 || empty.F32[1] != 2 {
		t.Error("a fold of nothing changed the accumulator")
	}
}

// TestFoldEveryHalf adds to every value of a format some of the others, infinite
// and NaN with all kinds of payload included.
func TestFoldEveryHalf(t *testing.T) {
	for _, d := range []dtype.DType{dtype.BF16, dtype.F16} {
		inf := dtype.FromFloat32(d, float32(math.Inf(1)))
		for _, h := range []uint16{0, 1, 0x8000, 0x8001, 0x3c01, 0xbf81, inf - 1, inf, inf | 0x8000, inf + 1, inf | 0x40, 0x7fff, 0xffff} {
			acc, x := dtype.Make(d, 1<<16), dtype.Make(d, 1<<16)
			for i := range acc.U16 {
				acc.U16[i], x.U16[i] = uint16(i), h
			}
			Fold(acc, []dtype.Buffer{x})
			for i, got := range acc.U16 {
				sum := dtype.ToFloat32(d, uint16(i)) + dtype.ToFloat32(d, h)
				g := dtype.ToFloat32(d, got)
				if want := dtype.FromFloat32(d, sum); got != want && (g == g || sum == sum) {
					t.Fatalf("%s %#04x + %#04x: %#04x, want %#04x", d, i, h, got, want)
				}
			}
		}
	}
}
