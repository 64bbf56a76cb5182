package dtype

import (
	"math"
	"math/rand/v2"
	"testing"
)

// nearestBF16 finds the nearest bfloat16 by comparing both neighbours in
// float64, ties to the even one: slow and obviously right.
func nearestBF16(f float32) uint16 {
	lo := uint16(math.Float32bits(f) >> 16) // towards zero
	hi := lo + 1                            // away from zero; may be infinity
	x := math.Abs(float64(f))
	a := math.Abs(float64(BF16ToFloat32(lo)))
	b := 2 * float64(float32(math.Ldexp(1, 127))) // what infinity stands for when rounding
	if hi&0x7f80 != 0x7f80 {
		b = math.Abs(float64(BF16ToFloat32(hi)))
	}
	switch {
	case x-a < b-x, x-a == b-x && lo&1 == 0:
		return lo
	}
	return hi
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(f float32) {
		if got, want := BF16FromFloat32(f), nearestBF16(f); got != want {
			t.Fatalf("BF16FromFloat32(%v = %08x) = %04x, want %04x", f, math.Float32bits(f), got, want)
		}
	}
	for range 200000 {
		f := math.Float32frombits(r.Uint32())
		if f != f || math.IsInf(float64(f), 0) {
			continue
		}
		check(f)
	}
	for h := 0; h < 0x7f80; h++ { // every value, its tie and the neighbours of the tie
		for _, low := range []uint32{0, 0x7fff, 0x8000, 0x8001, 0xffff} {
			check(math.Float32frombits(uint32(h)<<16 | low))
			check(math.Float32frombits(1<<31 | uint32(h)<<16 | low))
		}
	}
}

func TestSixteenBitFormatsKeepWhatTheyHold(t *testing.T) {
	for _, d := range []DType{BF16, F16} {
		for h := 0; h <= 0xffff; h++ {
			f := ToFloat32(d, uint16(h))
			got := FromFloat32(d, f)
			if f != f {
				if back := ToFloat32(d, got); back == back {
					t.Fatalf("%v: NaN %04x came back as %v", d, h, back)
				}
				continue
			}
			if got != uint16(h) {
				t.Fatalf("%v: %04x came back as %04x", d, h, got)
			}
		}
	}
}

func TestNaNStaysNaN(t *testing.T) {
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0x7fc00000} {
		f := math.Float32frombits(bits)
		for _, d := range []DType{BF16, F16} {
			if g := Round(d, f); g == g {
				t.Errorf("%v: NaN %08x rounded to %v", d, bits, g)
			}
		}
	}
	if g := Round(BF16, math.MaxFloat32); !math.IsInf(float64(g), 1) {
		t.Errorf("bf16 of the largest float32 = %v, want +Inf (it lies beyond the last tie)", g)
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]DType{"fp32": F32, "bf16": BF16, "fp16": F16, "float32": F32, "bfloat16": BF16, "float16": F16} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("Parse(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"fp8", "", "fp64", "BF16"} {
		if d, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", s, d)
		}
	}
}

func TestBufferViewsAlias(t *testing.T) {
	for _, d := range []DType{F32, BF16, F16, F64} {
		b := Make(d, 10)
		if b.Len() != 10 || b.Bytes() != 10*d.Size() {
			t.Errorf("%v: %d elements in %d bytes", d, b.Len(), b.Bytes())
		}
		one := Make(d, 1)
		switch d {
		case F32:
			one.F32[0] = 1
		case F64:
			one.F64[0] = 1
		default:
			one.U16[0] = FromFloat32(d, 1)
		}
		b.Slice(3, 4).Copy(one)
		if b.At(3) != 1 || b.At(2) != 0 || b.At(4) != 0 {
			t.Errorf("%v: a write through a view is not seen in the buffer", d)
		}
		b.Clear()
		if b.At(3) != 0 {
			t.Errorf("%v: Clear left a value", d)
		}
	}
}
