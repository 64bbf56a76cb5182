package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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

// TestParallelOfSeveralRanks holds that calls at once, some of them nested, share
// the helpers: every element is visited once, and helpers are fewer than CPUs.
func TestParallelOfSeveralRanks(t *testing.T) {
	eachProcs(func(procs int) {
		waitForHelpers(t) // of tests before, which had more CPUs
		var wg sync.WaitGroup
		for range 2 * len(helpers.slots) / 3 { // nested calls run out of slots
			wg.Go(func() {
				seen := make([]int32, 64)
				for range 50 {
					Parallel(8, 1, func(lo, hi int) {
						for i := lo; i < hi; i++ {
							Parallel(8, 1, func(lo, hi int) {
								for j := lo; j < hi; j++ {
									atomic.AddInt32(&seen[8*i+j], 1)
								}
							})
						}
						if n := helpers.alive.Load(); int(n) >= procs {
							t.Errorf("GOMAXPROCS %d: %d helpers", procs, n)
						}
					})
				}
				for i, n := range seen {
					if n != 50 {
						t.Errorf("GOMAXPROCS %d: element %d was visited %d times, want 50", procs, i, n)
					}
				}
			})
		}
		wg.Wait()
		waitForHelpers(t)
	})
}

// waitForHelpers fails the test if helpers stay when there is nothing to do.
func waitForHelpers(t *testing.T) {
	t.Helper()
	for range 1000 {
		if helpers.alive.Load() == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("a second after the last call there are %d helpers", helpers.alive.Load())
}

// TestParallelSplitsWork holds that a helper takes part in a call that lasts.
func TestParallelSplitsWork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var inside atomic.Int32
	deadline := time.Now().Add(10 * time.Second)
	Parallel(2, 1, func(lo, hi int) {
		inside.Add(1)
		for inside.Load() < 2 && time.Now().Before(deadline) {
			runtime.Gosched()
		}
	})
	if time.Now().After(deadline) {
		t.Error("for ten seconds nobody came to help")
	}
}

// TestParallelNestedPanic holds that a panic inside a nested call reaches the
// outermost caller, on whichever goroutine it happened.
func TestParallelNestedPanic(t *testing.T) {
	eachProcs(func(procs int) {
		for i := range 16 {
			func() {
				defer func() {
					if p := recover(); p != i {
						t.Errorf("GOMAXPROCS %d: recovered %v, want %d", procs, p, i)
					}
				}()
				Parallel(16, 1, func(lo, hi int) {
					Parallel(hi-lo, 1, func(l, h int) {
						if lo+l <= i && i < lo+h {
							panic(i)
						}
					})
				})
			}()
		}
		if n := helpers.calls.Load(); n != 0 {
			t.Errorf("GOMAXPROCS %d: %d calls are still open", procs, n)
		}
		waitForHelpers(t)
	})
}

// TestParallelOfAGoroutineThatEnds: runtime.Goexit, as testing's FailNow uses it,
// inside f leaves no helper and no call behind.
func TestParallelOfAGoroutineThatEnds(t *testing.T) {
	eachProcs(func(procs int) {
		for range 8 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				Parallel(16, 1, func(int, int) { runtime.Goexit() })
			}()
			<-done
		}
		if n := helpers.calls.Load(); n != 0 {
			t.Errorf("GOMAXPROCS %d: %d calls are still open", procs, n)
		}
		waitForHelpers(t)
	})
}

// TestParallelAllocatesNothing beyond the closure that its caller makes.
func TestParallelAllocatesNothing(t *testing.T) {
	eachProcs(func(procs int) {
		f := func(lo, hi int) {}
		if n := testing.AllocsPerRun(100, func() { Parallel(1000, 1, f) }); n >= 1 { // a new goroutine now and then
			t.Errorf("GOMAXPROCS %d: %v allocations a call", procs, n)
		}
	})
}

// BenchmarkParallel is what a call costs beside its work: two ranges on two CPUs,
// one call after the other, and after pauses in which the helper has ended.
func BenchmarkParallel(b *testing.B) {
	for _, pause := range []time.Duration{0, 20 * time.Microsecond, time.Millisecond} {
		b.Run("pause="+pause.String(), func(b *testing.B) {
			spin := func(d time.Duration) {
				for begin := now(); now()-begin < d; {
				}
			}
			const work = 100 * time.Microsecond
			var in time.Duration
			for b.Loop() {
				spin(pause)
				begin := now()
				Parallel(8, 1, func(lo, hi int) { spin(work / 8 * time.Duration(hi-lo)) })
				in += now() - begin
			}
			b.ReportMetric(float64(in)/float64(b.N)/float64(work), "time/alone")
			b.ReportMetric(0, "ns/op")
		})
	}
}
