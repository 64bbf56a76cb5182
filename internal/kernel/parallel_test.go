package kernel

import (
	"sync/atomic"
	"testing"
)

func TestParallelCoversTheRangeOnce(t *testing.T) {
	eachProcs(func(procs int) {
		for _, n := range []int{-1, 0, 1, 2, 7, 64, 1000} {
			for _, grain := range []int{0, 1, 3, 64, 5000} {
				seen := make([]atomic.Int32, max(n, 0))
				var calls atomic.Int32
				Parallel(n, grain, func(lo, hi int) {
					calls.Add(1)
					if hi-lo < min(n, grain) {
						t.Errorf("n=%d grain=%d: range [%d,%d)", n, grain, lo, hi)
					}
					for i := lo; i < hi; i++ {
						seen[i].Add(1)
					}
				})
				if int(calls.Load()) > partsPerCPU*procs {
					t.Errorf("n=%d grain=%d: %d ranges on %d processors", n, grain, calls.Load(), procs)
				}
				for i := range seen {
					if seen[i].Load() != 1 {
						t.Errorf("n=%d grain=%d: element %d was visited %d times", n, grain, i, seen[i].Load())
					}
				}
			}
		}
	})
}

func TestParallelHandsOverAPanicWhenAllRangesHaveEnded(t *testing.T) {
	eachProcs(func(procs int) {
		var seen atomic.Int32
		defer func() {
			if p := recover(); p != "upper half" || procs > 1 && seen.Load() != 100 {
				t.Errorf("GOMAXPROCS %d: recovered %v after %d elements", procs, p, seen.Load())
			}
		}()
		Parallel(100, 1, func(lo, hi int) {
			seen.Add(int32(hi - lo))
			if hi > 50 {
				panic("upper half")
			}
		})
	})
}
