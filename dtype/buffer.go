package dtype

import "fmt"

// Buffer is a flat run of elements of one format. Exactly one of the slices is
// in use, by DType. A Buffer is a view: copying it or slicing it aliases the
// same memory. The zero value is an empty F32 buffer.
type Buffer struct {
	DType DType
	F32   []float32 // DType F32
	U16   []uint16  // DType BF16, F16
	F64   []float64 // DType F64
}

// Make returns a zeroed buffer of n elements of its own.
func Make(d DType, n int) Buffer {
	switch d {
	case F32:
		return Buffer{DType: d, F32: make([]float32, n)}
	case BF16, F16:
		return Buffer{DType: d, U16: make([]uint16, n)}
	case F64:
		return Buffer{DType: d, F64: make([]float64, n)}
	}
	panic("dtype: unknown " + d.String())
}

// OfFloat32 wraps s without copying.
func OfFloat32(s []float32) Buffer { return Buffer{DType: F32, F32: s} }

// Len returns the number of elements.
func (b Buffer) Len() int {
	switch b.DType {
	case F32:
		return len(b.F32)
	case F64:
		return len(b.F64)
	}
	return len(b.U16)
}

// Bytes returns the size of the elements in memory.
func (b Buffer) Bytes() int { return b.Len() * b.DType.Size() }

// Slice returns the view of elements [lo, hi). Its capacity ends at hi, so an
// append cannot write into the neighbour.
func (b Buffer) Slice(lo, hi int) Buffer {
	switch b.DType {
	case F32:
		return Buffer{DType: b.DType, F32: b.F32[lo:hi:hi]}
	case F64:
		return Buffer{DType: b.DType, F64: b.F64[lo:hi:hi]}
	}
	return Buffer{DType: b.DType, U16: b.U16[lo:hi:hi]}
}

// Clear sets every element to zero.
func (b Buffer) Clear() {
	clear(b.F32)
	clear(b.U16)
	clear(b.F64)
}

// Copy copies src into b bit for bit. It panics if format or length differ:
// both are known when buffers are planned, so a mismatch is a bug.
func (b Buffer) Copy(src Buffer) {
	if b.DType != src.DType || b.Len() != src.Len() {
		panic(fmt.Sprintf("dtype: copy of %d %s into %d %s", src.Len(), src.DType, b.Len(), b.DType))
	}
	copy(b.F32, src.F32)
	copy(b.U16, src.U16)
	copy(b.F64, src.F64)
}

// At returns element i as a float64, exactly.
func (b Buffer) At(i int) float64 {
	switch b.DType {
	case F32:
		return float64(b.F32[i])
	case F64:
		return b.F64[i]
	}
	return float64(ToFloat32(b.DType, b.U16[i]))
}
