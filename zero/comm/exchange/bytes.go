package exchange

import (
	"unsafe"

	"github.com/zerogap/zerogap/dtype"
)

// raw returns the memory of b. Ranks have the same byte order.
func raw(b dtype.Buffer) []byte {
	switch b.DType {
	case dtype.F32:
		return bytesOf(b.F32)
	case dtype.F64:
		return bytesOf(b.F64)
	}
	return bytesOf(b.U16)
}

func bytesOf[T float32 | float64 | uint16 | uint64](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// view is the inverse of raw for memory that is aligned.
func view(d dtype.DType, b []byte) dtype.Buffer {
	n, p := len(b)/d.Size(), unsafe.Pointer(unsafe.SliceData(b))
	switch d {
	case dtype.F32:
		return dtype.Buffer{DType: d, F32: unsafe.Slice((*float32)(p), n)}
	case dtype.F64:
		return dtype.Buffer{DType: d, F64: unsafe.Slice((*float64)(p), n)}
	}
	return dtype.Buffer{DType: d, U16: unsafe.Slice((*uint16)(p), n)}
}

// same reports whether a and b, which are not empty, begin at one address.
func same(a, b dtype.Buffer) bool {
	return unsafe.SliceData(raw(a)) == unsafe.SliceData(raw(b))
}
