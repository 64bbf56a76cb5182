package kernel

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
)

// Widen converts src (fp32, bf16 or fp16) to float32, exactly; a signalling
// fp16 NaN becomes quiet. dst and src have the same length.
func Widen(dst []float32, src dtype.Buffer) {
	checkLen("Widen", len(dst), src.Len())
	checkFormat("Widen", src.DType)
	Parallel(len(dst), grain, func(lo, hi int) { widenSpan(dst[lo:hi], src.Slice(lo, hi)) })
}

func widenSpan(dst []float32, src dtype.Buffer) {
	switch src.DType {
	case dtype.F32:
		copy(dst, src.F32)
	case dtype.BF16:
		for i := widenBF16(dst, src.U16); i < len(dst); i++ {
			dst[i] = dtype.BF16ToFloat32(src.U16[i])
		}
	case dtype.F16:
		for i := widenF16(dst, src.U16); i < len(dst); i++ {
			dst[i] = dtype.F16ToFloat32(src.U16[i])
		}
	}
}

// Round converts src to the format of dst (fp32, bf16 or fp16), to nearest even:
// what is too great becomes infinite, NaN stays NaN. dst and src have the same
// length.
func Round(dst dtype.Buffer, src []float32) {
	checkLen("Round", dst.Len(), len(src))
	checkFormat("Round", dst.DType)
	Parallel(len(src), grain, func(lo, hi int) { roundSpan(dst.Slice(lo, hi), src[lo:hi]) })
}

func roundSpan(dst dtype.Buffer, src []float32) {
	switch dst.DType {
	case dtype.F32:
		copy(dst.F32, src)
	case dtype.BF16:
		for i := roundBF16(dst.U16, src); i < len(src); i++ {
			dst.U16[i] = dtype.BF16FromFloat32(src[i])
		}
	case dtype.F16:
		for i := roundF16(dst.U16, src); i < len(src); i++ {
			dst.U16[i] = dtype.F16FromFloat32(src[i])
		}
	}
}

// checkFormat panics unless d is one of the formats training state is kept in.
func checkFormat(op string, d dtype.DType) {
	if d != dtype.F32 && !d.Half() {
		panic(fmt.Sprintf("kernel: %s: %s is not a training format", op, d))
	}
}
