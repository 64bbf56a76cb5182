// Package dtype names the number formats that zerogap stores and the typed
// flat buffer that holds them. It is the leaf that every other package may
// import; arithmetic on whole buffers lives in internal/kernel.
//
// bf16 and fp16 are storage formats: 16 bits in memory, float32 in every
// computation, rounded once to nearest even on the way out.
package dtype

import (
	"fmt"
	"math"

	"github.com/x448/float16"
)

// DType is a number format. The zero value is F32.
type DType uint8

// The formats. F64 exists for gradient checks and references; no training
// state is ever stored in it.
const (
	F32 DType = iota
	BF16
	F16
	F64
)

// Names are the spellings that Parse takes, in the order they are listed to users.
var names = [...]string{F32: "fp32", BF16: "bf16", F16: "fp16", F64: "fp64"}

// String returns DeepSpeed's name of the format: fp32, bf16, fp16 or fp64.
func (d DType) String() string {
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Size returns the bytes of one element.
func (d DType) Size() int {
	switch d {
	case F32:
		return 4
	case BF16, F16:
		return 2
	case F64:
		return 8
	}
	panic("dtype: unknown " + d.String())
}

// Half reports whether the format is stored in 16 bits.
func (d DType) Half() bool { return d == BF16 || d == F16 }

// Parse reads a training dtype: fp32, bf16 or fp16, or PyTorch's names
// float32, bfloat16 and float16.
func Parse(s string) (DType, error) {
	switch s {
	case "fp32", "float32":
		return F32, nil
	case "bf16", "bfloat16":
		return BF16, nil
	case "fp16", "float16":
		return F16, nil
	}
	return 0, fmt.Errorf("unknown dtype %q: allowed are fp32, bf16, fp16", s)
}

// BF16FromFloat32 rounds f to bfloat16, to nearest even. A NaN stays a (quiet)
// NaN with its sign; overflow goes to infinity.
func BF16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}

// BF16ToFloat32 widens a bfloat16; every value is exact.
func BF16ToFloat32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F16FromFloat32 rounds f to IEEE half precision, to nearest even.
func F16FromFloat32(f float32) uint16 { return float16.Fromfloat32(f).Bits() }

// F16ToFloat32 widens an IEEE half; every value is exact.
func F16ToFloat32(h uint16) float32 { return float16.Frombits(h).Float32() }

// FromFloat32 rounds f to the 16-bit format d. It panics if d is not one.
func FromFloat32(d DType, f float32) uint16 {
	switch d {
	case BF16:
		return BF16FromFloat32(f)
	case F16:
		return F16FromFloat32(f)
	}
	panic("dtype: not a 16-bit format: " + d.String())
}

// ToFloat32 widens the 16-bit value h of format d. It panics if d is not a 16-bit format.
func ToFloat32(d DType, h uint16) float32 {
	switch d {
	case BF16:
		return BF16ToFloat32(h)
	case F16:
		return F16ToFloat32(h)
	}
	panic("dtype: not a 16-bit format: " + d.String())
}

// Round returns f after a trip through format d.
func Round(d DType, f float32) float32 {
	if d.Half() {
		return ToFloat32(d, FromFloat32(d, f))
	}
	return f
}
