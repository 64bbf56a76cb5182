package kernel

import "github.com/zerogap/zerogap/dtype"

// foldBlock is how many elements of the accumulator Fold finishes before it goes
// on: they stay in the first-level cache, and every contribution is read once.
const foldBlock = 4096

// Fold adds the contributions to acc from left to right,
// acc = ((acc + xs[0]) + xs[1]) + ..., elementwise. Each addition is made in
// float32 and rounded to the format of acc. acc and each of xs are fp32, bf16 or
// fp16, all of one length; no xs may overlap acc.
func Fold(acc dtype.Buffer, xs []dtype.Buffer) {
	checkFormat("Fold", acc.DType)
	for _, x := range xs {
		checkFormat("Fold", x.DType)
		checkLen("Fold", acc.Len(), x.Len())
	}
	Parallel(acc.Len(), grain, func(lo, hi int) {
		for ; lo < hi; lo += foldBlock {
			end := min(hi, lo+foldBlock)
			block := acc.Slice(lo, end)
			for _, x := range xs {
				foldSpan(block, x.Slice(lo, end))
			}
		}
	})
}

// foldSpan adds one contribution.
func foldSpan(acc, x dtype.Buffer) {
	i := 0
	switch {
	case acc.DType == dtype.F32 && x.DType == dtype.F32:
		i = add32(acc.F32, acc.F32, x.F32)
	case acc.DType == dtype.F32 && x.DType == dtype.BF16:
		i = foldF32BF16(acc.F32, x.U16)
	case acc.DType == dtype.F32 && x.DType == dtype.F16:
		i = foldF32F16(acc.F32, x.U16)
	case acc.DType == dtype.BF16 && x.DType == dtype.BF16:
		i = foldBF16BF16(acc.U16, x.U16)
	case acc.DType == dtype.F16 && x.DType == dtype.F16:
		i = foldF16F16(acc.U16, x.U16)
	case acc.DType == dtype.BF16 && x.DType == dtype.F32:
		i = foldBF16F32(acc.U16, x.F32)
	case acc.DType == dtype.F16 && x.DType == dtype.F32:
		i = foldF16F32(acc.U16, x.F32)
	}
	for n := acc.Len(); i < n; i++ {
		v := load(acc, i) + load(x, i)
		if acc.DType == dtype.F32 {
			acc.F32[i] = v
		} else {
			acc.U16[i] = dtype.FromFloat32(acc.DType, v)
		}
	}
}

// load returns element i of an fp32, bf16 or fp16 buffer as float32.
func load(b dtype.Buffer, i int) float32 {
	if b.DType == dtype.F32 {
		return b.F32[i]
	}
	return dtype.ToFloat32(b.DType, b.U16[i])
}
