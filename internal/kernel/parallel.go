package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// partsPerCPU cuts work finer than the number of CPUs, so that a helper that
// starts late still finds something to take over.
const partsPerCPU = 2

// Parallel splits [0, n) into contiguous ranges of at least grain items, calls f
// for each, and returns when all are done. A panic in f reaches the caller.
//
// The caller works through the ranges itself; up to GOMAXPROCS-1 goroutines help
// as they find the time. When other ranks keep all CPUs busy nobody helps, and
// nothing is waited for. Which ranges there are depends on GOMAXPROCS, so f must
// compute every item independently of the range it comes in.
func Parallel(n, grain int, f func(lo, hi int)) {
	helpers := min(runtime.GOMAXPROCS(0), n/max(grain, 1)) - 1
	if helpers < 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	p := &parallel{n: n, parts: min(partsPerCPU*(helpers+1), n/max(grain, 1)), f: f}
	p.pending.Add(p.parts)
	for range helpers {
		go p.work()
	}
	// The runtime lets the newest goroutine wait for the processor that made it
	// and hands it to an idle one only after some 100 microseconds. One more takes
	// that place.
	go func() {}()
	p.work()
	p.pending.Wait()
	if p.failed.Load() {
		panic(p.failure)
	}
}

// parallel is one call's work: ranges are claimed in order.
type parallel struct {
	n, parts int
	f        func(lo, hi int)
	claimed  atomic.Int64
	pending  sync.WaitGroup // ranges, not goroutines: a late one is not waited for
	failed   atomic.Bool
	once     sync.Once
	failure  any
}

func (p *parallel) work() {
	for {
		i := int(p.claimed.Add(1)) - 1
		if i >= p.parts {
			return
		}
		p.run(i)
	}
}

func (p *parallel) run(i int) {
	defer p.pending.Done()
	defer func() {
		if r := recover(); r != nil {
			p.once.Do(func() { p.failure = r; p.failed.Store(true) })
		}
	}()
	p.f(p.n*i/p.parts, p.n*(i+1)/p.parts)
}
