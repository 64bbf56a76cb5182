// Command vector writes the assembly, for AVX2 with F16C and some for AVX-512, of the elementwise, row and
// cast kernels of package kernel. Each function works on whole vectors: its n is
// a positive multiple of the step it names, or of 16 for AVX-512. None fuses a multiplication with an
// addition, so that the plain Go loops give the same bits.
//
//	go run . -out ../../vector_amd64.s -stubs ../../vector_stubs_amd64.go -pkg kernel
package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64,!noasm")
	relax()
	elementwise()
	sums()
	activations()
	normalisation()
	casts()
	adamw()
	Generate()
}

// relax writes the function of a loop that waits: it tells the processor so.
func relax() {
	function("relax", "func()", "lets some hundred cycles pass, which a second thread of the core can use.")
	for range 4 {
		PAUSE()
	}
	RET()
}

// function begins an assembly function.
func function(name, signature, doc string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + doc)
}

// pointer loads a parameter that is a pointer or an integer.
func pointer(name string) Register { return Load(Param(name), GP64()) }

// broadcast loads a float32 parameter into every lane.
func broadcast(name string) VecVirtual {
	addr, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	y := YMM()
	VBROADCASTSS(addr.Addr, y)
	return y
}

// broadcast64 loads a float64 parameter into every lane.
func broadcast64(name string) VecVirtual {
	addr, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	y := YMM()
	VBROADCASTSD(addr.Addr, y)
	return y
}

// loop runs body for i = 0, step, 2*step, ... below the parameter n, and ends
// the function.
func loop(step int, body func(i Register)) {
	n, i := pointer("n"), GP64()
	XORQ(i, i)
	again := "loop"
	Label(again)
	body(i)
	ADDQ(I32(int32(step)), i)
	CMPQ(i, n)
	JLT(LabelRef(again))
}

// end leaves the function.
func end() {
	VZEROUPPER()
	RET()
}

// at is element i+k of an array of elements of size bytes.
func at(base Register, i Register, k, size int) Mem {
	return Mem{Base: base, Index: i, Scale: uint8(size), Disp: k * size}
}

// avx512 makes the functions of vector and lanes those of AVX-512.
var avx512 bool

// vector allocates a register of the current width.
func vector() VecVirtual {
	if avx512 {
		return ZMM()
	}
	return YMM()
}

// vec loads a vector of the current width.
func vec(m Mem) VecVirtual {
	v := vector()
	VMOVUPS(m, v)
	return v
}

// lanes returns how many float32 a vector has.
func lanes() int {
	if avx512 {
		return 16
	}
	return 8
}

// suffix ends the names of functions of the current width.
func suffix() string {
	if avx512 {
		return "AVX512"
	}
	return "AVX2"
}

// ymm loads 32 bytes.
func ymm(m Mem) VecVirtual {
	y := YMM()
	VMOVUPS(m, y)
	return y
}

// constant is a read-only vector of sixteen equal 32-bit patterns.
func constant(name string, bits uint32) Mem {
	m := GLOBL(name, RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(bits))
	}
	return m
}

// float is a read-only vector of equal float32.
func float(name string, v float32) Mem { return constant(name, math.Float32bits(v)) }
