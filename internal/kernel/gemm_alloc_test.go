//go:build !race

package kernel

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestSteadyStateAllocatesNoBuffers holds that after the first calls operands
// are packed into memory that is there already. (Under the race detector sync.Pool
// forgets at random.)
func TestSteadyStateAllocatesNoBuffers(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := gemmCase{m: 200, n: 300, k: 300}
	g := newGemm(c, draw[float32], 1)
	v := newConv(Conv{4, 24, 16, 16, 32, 3, 3, 1, 1, 1, 1, 1}, draw[float32])
	calls := map[string]func(){
		"Gemm":               func() { Gemm(false, false, c.m, c.n, c.k, g.a, g.lda, g.b, g.ldb, g.c, g.ldc, true) },
		"GemmBatch":          func() { GemmBatch(8, false, false, 64, 8, 64, g.a, 64, 0, g.b, 8, 0, g.c, 8, 64*8, true) },
		"ConvForward":        func() { ConvForward(v.s, v.x, v.w, v.bias, v.dy) },
		"ConvBackwardInput":  func() { ConvBackwardInput(v.s, v.w, v.dy, v.dxOld, true) },
		"ConvBackwardWeight": func() { ConvBackwardWeight(v.s, v.x, v.dy, v.dwOld, v.dbOld, true) },
	}
	for name, f := range calls {
		for range 4 { // the two scratches of a call change roles from call to call
			f()
		}
		const runs = 10
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / runs; bytes > 4096 {
			t.Errorf("%s allocates %d bytes a call", name, bytes)
		}
	}
}
