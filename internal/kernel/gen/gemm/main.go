// Command gemm writes the assembly for AVX2 with FMA, and for AVX-512, of package kernel's matrix
// products and convolutions: the register tiles, the transposition that packing
// needs, and a loop that measures how fast the processor can multiply and add.
//
//	go run . -out ../../gemm_amd64.s -stubs ../../gemm_stubs_amd64.go -pkg kernel
package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64,!noasm")
	for _, height := range []int{6, 4} {
		multiply(height)
		gradient(height)
	}
	for _, height := range []int{6, 4} {
		multiplyWide(height, false)
		multiplyWide(height, true)
	}
	for _, height := range []int{12, 8, 6} {
		gradientWide(height)
	}
	transpose4()
	for _, n := range []int{4, 6, 8, 16} {
		copyRuns(n)
	}
	everySecond()
	peak()
	peakWide()
	Generate()
}

// function begins an assembly function.
func function(name, signature, doc string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(strings.Split(name+" "+doc, "\n")...)
}

// load puts a parameter into the register r.
func load(name string, r Register) { Load(Param(name), r) }

// param is the place of a parameter on the stack.
func param(name string) Mem {
	addr, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return addr.Addr
}

// bytes turns a count of float32 in r into one of bytes.
func bytes(r Register) { SHLQ(U8(2), r) }
