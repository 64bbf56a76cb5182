package zero

import (
	"math"
	"sync/atomic"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// firstNonFinite returns the index of the first Inf or NaN in b (fp32, bf16 or
// fp16), -1 when there is none.
func firstNonFinite(b dtype.Buffer) int {
	if !anyNonFinite(b) {
		return -1
	}
	for i := range b.Len() {
		if v := b.At(i); v-v != 0 {
			return i
		}
	}
	return -1
}

// roundFinite rounds x into dst and returns the index of the first Inf or NaN in
// dst, -1 when there is none. It looks at each part while it is in the cache.
func roundFinite(dst dtype.Buffer, x []float32) int {
	var first atomic.Int64 // the lowest index, as its distance from the end; 0 for none
	kernel.Parallel(ceilDiv(len(x), chunk), 1, func(lo, hi int) {
		for c := lo; c < hi; c++ {
			at, end := c*chunk, min((c+1)*chunk, len(x))
			part := dst.Slice(at, end)
			kernel.Round(part, x[at:end])
			if i := firstNonFinite(part); i >= 0 {
				d := int64(len(x) - at - i)
				for old := first.Load(); d > old && !first.CompareAndSwap(old, d); old = first.Load() {
				}
			}
		}
	})
	if d := int(first.Load()); d > 0 {
		return len(x) - d
	}
	return -1
}

// anyNonFinite looks for an exponent of all ones, without a branch per element:
// that exponent plus its lowest bit, and no other, carries into the sign's place.
func anyNonFinite(b dtype.Buffer) bool {
	switch b.DType {
	case dtype.F32:
		return anyOnes32(b.F32)
	case dtype.BF16:
		return anyOnes16(b.U16, 0x7f80, 0x0080)
	}
	return anyOnes16(b.U16, 0x7c00, 0x0400)
}

func anyOnes32(x []float32) bool {
	var a0, a1, a2, a3 uint32
	for ; len(x) >= 4; x = x[4:] {
		a0 |= math.Float32bits(x[0])&0x7f800000 + 0x00800000
		a1 |= math.Float32bits(x[1])&0x7f800000 + 0x00800000
		a2 |= math.Float32bits(x[2])&0x7f800000 + 0x00800000
		a3 |= math.Float32bits(x[3])&0x7f800000 + 0x00800000
	}
	for _, v := range x {
		a0 |= math.Float32bits(v)&0x7f800000 + 0x00800000
	}
	return (a0|a1|a2|a3)>>31 != 0
}

func anyOnes16(x []uint16, exponent, lowest uint16) bool {
	var a0, a1, a2, a3 uint16
	for ; len(x) >= 4; x = x[4:] {
		a0 |= x[0]&exponent + lowest
		a1 |= x[1]&exponent + lowest
		a2 |= x[2]&exponent + lowest
		a3 |= x[3]&exponent + lowest
	}
	for _, v := range x {
		a0 |= v&exponent + lowest
	}
	return (a0|a1|a2|a3)>>15 != 0
}
