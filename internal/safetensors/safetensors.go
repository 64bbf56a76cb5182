// Package safetensors reads and writes the safetensors file format: a
// little-endian uint64 with the length of a JSON header, the header
//
//	{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//
// and the tensors' little-endian bytes, row-major, back to back. The optional
// header entry "__metadata__" maps strings to strings.
//
// Reading checks everything that the header claims before any tensor is read:
// a file that Open accepts has no overlap, no hole, no byte out of range, and
// never makes a reader allocate more than the file holds.
package safetensors

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/zerogap/zerogap/dtype"
)

// DType is an element type by its name in the header.
type DType string

// The element types. All can be listed and read as bytes; Float32, Float64 and
// Int64 tell which of them they convert.
const (
	Bool   DType = "BOOL"
	U8     DType = "U8"
	I8     DType = "I8"
	F8E5M2 DType = "F8_E5M2"
	F8E4M3 DType = "F8_E4M3"
	I16    DType = "I16"
	U16    DType = "U16"
	F16    DType = "F16"
	BF16   DType = "BF16"
	I32    DType = "I32"
	U32    DType = "U32"
	F32    DType = "F32"
	I64    DType = "I64"
	U64    DType = "U64"
	F64    DType = "F64"
)

// Size returns the bytes of one element, and 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case Bool, U8, I8, F8E5M2, F8E4M3:
		return 1
	case I16, U16, F16, BF16:
		return 2
	case I32, U32, F32:
		return 4
	case I64, U64, F64:
		return 8
	}
	return 0
}

// Tensor is one tensor to write.
type Tensor struct {
	Name  string
	Shape []int // row-major; empty for a scalar
	// Data holds the elements: []float32 (F32), []float64 (F64), []int64 (I64),
	// []byte (U8) or a dtype.Buffer (F32, BF16, F16 or F64). Write only reads it.
	Data any
}

// layout returns the element type and the number of elements of t.Data.
func (t Tensor) layout() (DType, int, error) {
	switch v := t.Data.(type) {
	case []float32:
		return F32, len(v), nil
	case []float64:
		return F64, len(v), nil
	case []int64:
		return I64, len(v), nil
	case []byte:
		return U8, len(v), nil
	case dtype.Buffer:
		return ofFormat(v.DType), v.Len(), nil
	}
	return "", 0, fmt.Errorf("cannot store %T: allowed are []float32, []float64, []int64, []byte and dtype.Buffer", t.Data)
}

func ofFormat(d dtype.DType) DType {
	switch d {
	case dtype.BF16:
		return BF16
	case dtype.F16:
		return F16
	case dtype.F64:
		return F64
	}
	return F32
}

// formatOf is the inverse of ofFormat; ok is false for what is no float format.
func formatOf(d DType) (f dtype.DType, ok bool) {
	switch d {
	case F32:
		return dtype.F32, true
	case BF16:
		return dtype.BF16, true
	case F16:
		return dtype.F16, true
	case F64:
		return dtype.F64, true
	}
	return 0, false
}

// elements returns the product of shape, refusing negative sizes and overflow.
func elements(shape []int) (int, error) {
	n := uint64(1)
	for _, s := range shape {
		if s < 0 {
			return 0, fmt.Errorf("shape %s has a negative size", shapeString(shape))
		}
		hi, lo := bits.Mul64(n, uint64(s))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("shape %s overflows", shapeString(shape))
		}
		n = lo
	}
	return int(n), nil
}

func shapeString(shape []int) string {
	return "[" + strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ","), "[]") + "]"
}
