package commtest

import (
	"bytes"
	"fmt"
	"math"
	"unsafe"

	"github.com/zerogap/zerogap/dtype"
)

// value is element i of what rank sends, as bits spread over all exponents that sums
// of a few stay finite with. It is the same on every rank that asks.
func value(seed, rank, i int) float32 {
	h := uint64(seed)*0x9e3779b97f4a7c15 + uint64(rank+1)*0xbf58476d1ce4e5b9 + uint64(i)*0x94d049bb133111eb
	h ^= h >> 31
	h *= 0xd6e8feb86659fd93
	h ^= h >> 32
	mantissa := float32(int32(h)) / (1 << 31)
	return mantissa * float32(math.Ldexp(1, int(h>>40%8)))
}

// period is after how many elements the values repeat: large buffers are then cheap
// to check, and no chunk of a power of two can take the place of another.
const period = 65521

// fill sets b to elements [at, at+len) of what rank sends.
func fill(b dtype.Buffer, seed, rank, at int) {
	one := pattern(b.DType, b.Len(), func(i int) float32 { return value(seed, rank, (at+i)%period) })
	repeat(b, one)
}

// pattern returns at most a period of values.
func pattern(d dtype.DType, n int, f func(i int) float32) dtype.Buffer {
	one := dtype.Make(d, min(n, period))
	for i := range one.Len() {
		set(one, i, f(i))
	}
	return one
}

// repeat fills b with copies of one.
func repeat(b, one dtype.Buffer) {
	for lo := 0; lo < b.Len(); lo += one.Len() {
		hi := min(b.Len(), lo+one.Len())
		b.Slice(lo, hi).Copy(one.Slice(0, hi-lo))
	}
}

// equal checks b bit for bit against copies of one.
func equal(b, one dtype.Buffer) error {
	for lo := 0; lo < b.Len(); lo += one.Len() {
		hi := min(b.Len(), lo+one.Len())
		if bytes.Equal(memory(b.Slice(lo, hi)), memory(one.Slice(0, hi-lo))) {
			continue
		}
		for i := lo; i < hi; i++ {
			if bits(b, i) != bits(one, i-lo) {
				return fmt.Errorf("element %d of %d: %v (%x), want %v (%x)", i, b.Len(), b.At(i), bits(b, i), one.At(i-lo), bits(one, i-lo))
			}
		}
	}
	return nil
}

// isSent checks that b holds elements [at, at+len) of what rank sends.
func isSent(b dtype.Buffer, seed, rank, at int) error {
	return equal(b, pattern(b.DType, b.Len(), func(i int) float32 { return value(seed, rank, (at+i)%period) }))
}

func set(b dtype.Buffer, i int, v float32) {
	switch b.DType {
	case dtype.F32:
		b.F32[i] = v
	case dtype.F64:
		b.F64[i] = float64(v)
	default:
		b.U16[i] = dtype.FromFloat32(b.DType, v)
	}
}

// rounded is v as it arrives over the format d.
func rounded(d dtype.DType, v float32) float32 {
	if d == dtype.F32 || d == dtype.F64 {
		return v
	}
	return dtype.ToFloat32(d, dtype.FromFloat32(d, v))
}

// bits returns element i as it is in memory.
func bits(b dtype.Buffer, i int) uint64 {
	switch b.DType {
	case dtype.F32:
		return uint64(math.Float32bits(b.F32[i]))
	case dtype.F64:
		return math.Float64bits(b.F64[i])
	}
	return uint64(b.U16[i])
}

// isSum checks that acc is what the ranks' contributions, sent as d, give when they
// are added in rank order to what fill(acc, seed, -1, at) was.
func isSum(acc dtype.Buffer, d dtype.DType, seed, world, at int) error {
	return equal(acc, pattern(acc.DType, acc.Len(), func(i int) float32 {
		i = (at + i) % period
		sum := rounded(acc.DType, value(seed, -1, i))
		for r := range world {
			sum = rounded(acc.DType, sum+rounded(d, value(seed, r, i)))
		}
		return sum
	}))
}

// memory is what b lies in.
func memory(b dtype.Buffer) []byte {
	var p unsafe.Pointer
	switch b.DType {
	case dtype.F32:
		p = unsafe.Pointer(unsafe.SliceData(b.F32))
	case dtype.F64:
		p = unsafe.Pointer(unsafe.SliceData(b.F64))
	default:
		p = unsafe.Pointer(unsafe.SliceData(b.U16))
	}
	return unsafe.Slice((*byte)(p), b.Bytes())
}

// even cuts n elements into equal segments, as far as that goes.
func even(n, world int) []int {
	b := make([]int, world+1)
	for r := range b {
		b[r] = n * r / world
	}
	return b
}

// uneven cuts n elements into segments of 1, 2, 3 parts and so on, except that the
// first rank has none.
func uneven(n, world int) []int {
	b := make([]int, world+1)
	parts := world * (world - 1) / 2
	for r := range b {
		if r > 0 && parts > 0 {
			b[r] = n * (r * (r - 1) / 2) / parts
		}
	}
	b[world] = n
	return b
}

// lopsided gives everything to the rank in the middle.
func lopsided(n, world int) []int {
	b := make([]int, world+1)
	for r := world/2 + 1; r <= world; r++ {
		b[r] = n
	}
	return b
}
