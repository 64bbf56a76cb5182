package gated

import (
	"math"
	"unsafe"

	"github.com/zerogap/zerogap/dtype"
)

// address returns where b's elements begin, 0 when it has none.
func address(b dtype.Buffer) uintptr {
	switch {
	case b.Len() == 0:
		return 0
	case b.DType == dtype.F32:
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.F32)))
	case b.DType == dtype.F64:
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.F64)))
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(b.U16)))
}

// overlap reports whether a and b share memory.
func overlap(a, b dtype.Buffer) bool {
	x, y := address(a), address(b)
	return x != 0 && y != 0 && x < y+uintptr(b.Bytes()) && y < x+uintptr(a.Bytes())
}

// checksum is FNV-1a over the bits of the elements.
func checksum(b dtype.Buffer) uint64 {
	h := uint64(14695981039346656037)
	const prime = 1099511628211
	for _, v := range b.F32 {
		h = (h ^ uint64(math.Float32bits(v))) * prime
	}
	for _, v := range b.U16 {
		h = (h ^ uint64(v)) * prime
	}
	for _, v := range b.F64 {
		h = (h ^ math.Float64bits(v)) * prime
	}
	return h
}

// poison makes every element NaN.
func poison(b dtype.Buffer) {
	for i := range b.F32 {
		b.F32[i] = float32(math.NaN())
	}
	for i := range b.U16 {
		b.U16[i] = 0x7fff // NaN in both 16-bit formats
	}
	for i := range b.F64 {
		b.F64[i] = math.NaN()
	}
}
