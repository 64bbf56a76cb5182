package kernel

import (
	"runtime"
	"sync/atomic"
)

// Parallel splits [0, n) into contiguous ranges of at least grain items, calls f
// for each, and returns when all are done. A panic in f reaches the caller.
//
// The caller works through the ranges itself; the process's helpers, GOMAXPROCS-1
// at most for all callers together, join in as they find the time. When other
// ranks keep all CPUs busy nobody helps, and nothing is waited for. Which ranges
// there are depends on GOMAXPROCS, so f must compute every item independently of
// the range it comes in.
func Parallel(n, grain int, f func(lo, hi int)) {
	procs := runtime.GOMAXPROCS(0)
	parts := min(partsPerCPU*procs, n/max(grain, 1), maxParts)
	if procs == 1 || parts < 2 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	c := helpers.open(n, parts, f)
	if c == nil {
		f(0, n)
		return
	}
	defer c.close()
	helpers.yield(procs)
	helpers.recruit(min(procs, parts)-1, procs)
	c.work(oneFront)
}

// partsPerCPU cuts work finer than the number of CPUs, so that a helper that
// starts late still finds something to take over.
const (
	partsPerCPU = 4
	maxParts    = 1<<20 - 1
)

// call is one call of Parallel. The caller claims ranges from the front, helpers
// from the back, so that from one kernel to the next a CPU finds most of its
// elements in its own cache. Calls are reused: a claim is valid for whatever the
// call is when state changes, and it stays that until the range is finished.
type call struct {
	taken   atomic.Bool
	failed  atomic.Bool
	state   atomic.Uint64 // see ranges
	pending atomic.Int64  // ranges that are not finished, plus asleep
	n       int
	f       func(lo, hi int)
	failure any           // set by who sets failed
	done    chan struct{} // woken by who finishes the last range, if the caller is asleep
	_       [64]byte      // calls of different ranks share no cache line
}

// asleep in call.pending says that the caller waits for done.
const asleep = 1 << 32

// ranges is the state of a call: how many ranges it has, and how many of them have
// been claimed from either end, 20 bits each.
type ranges uint64

const (
	oneFront ranges = 1
	oneBack  ranges = 1 << 20
	onePart  ranges = 1 << 40
)

func (r ranges) front() int { return int(r & maxParts) }
func (r ranges) back() int  { return int(r >> 20 & maxParts) }
func (r ranges) parts() int { return int(r >> 40) }
func (r ranges) left() int  { return r.parts() - r.back() - r.front() }

// work runs ranges until all are claimed, and reports whether there was any.
func (c *call) work(end ranges) (any bool) {
	for {
		i, parts, ok := c.claim(end)
		if !ok {
			return any
		}
		any = true
		c.run(i, parts)
	}
}

// claim takes the next range at the end oneFront or oneBack.
func (c *call) claim(end ranges) (i, parts int, ok bool) {
	for {
		r := ranges(c.state.Load())
		if r.left() == 0 {
			return 0, 0, false
		}
		if !c.state.CompareAndSwap(uint64(r), uint64(r+end)) {
			continue
		}
		if end == oneFront {
			return r.front(), r.parts(), true
		}
		return r.parts() - 1 - r.back(), r.parts(), true
	}
}

func (c *call) run(i, parts int) {
	defer c.finish(1)
	defer func() {
		if r := recover(); r != nil && !c.failed.Swap(true) {
			c.failure = r
		}
	}()
	c.f(c.n*i/parts, c.n*(i+1)/parts)
}

// finish counts ranges as finished.
func (c *call) finish(ranges int) {
	if c.pending.Add(-int64(ranges)) == asleep {
		c.done <- struct{}{}
	}
}

// close waits for the ranges that helpers have claimed, gives the call back and
// hands a panic on. Ranges that nobody has claimed, because f ended the caller's
// goroutine, are dropped.
func (c *call) close() {
	if left := ranges(c.state.Swap(0)).left(); left > 0 {
		c.finish(left)
	}
	c.wait()
	failed, failure := c.failed.Load(), c.failure
	c.f, c.failure = nil, nil
	helpers.calls.Add(-1)
	c.taken.Store(false)
	if failed {
		panic(failure)
	}
}

// wait returns when no range is pending. What a helper has begun is usually over
// soon, but a helper can lose its CPU.
func (c *call) wait() {
	for begin := now(); c.pending.Load() != 0; relax() {
		if now()-begin > patience {
			if c.pending.Add(asleep) != asleep {
				<-c.done
			}
			c.pending.Store(0)
			return
		}
	}
}
