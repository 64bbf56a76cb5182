package kernel

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Waking a goroutine on a CPU that sleeps takes as long as many kernels run, 50
// microseconds and more. So a helper that has nothing to do stays awake for
// patience, the time between two kernels of a training step, and then ends: there
// are no helpers when nothing is computed.
//
// A goroutine that is ready may have to wait until one of those that compute gives
// way: callers and helpers do so every turn.
const (
	patience = 50 * time.Microsecond
	turn     = 200 * time.Microsecond
)

// helpers are the goroutines that help the calls of Parallel of all ranks.
var helpers pool

type pool struct {
	calls atomic.Int32 // calls of Parallel in progress
	alive atomic.Int32 // helpers, whether they work or wait for work
	top   atomic.Int32 // of slots, only those below have been used
	gave  atomic.Int64 // when a caller last gave way
	_     [64]byte
	slots [32]call // more calls at once than that go without help
}

// start is the zero of now.
var start = time.Now()

func now() time.Duration { return time.Since(start) }

// open makes a call of Parallel known to the helpers, nil if there are too many.
func (p *pool) open(n, parts int, f func(lo, hi int)) *call {
	for i := range p.slots {
		c := &p.slots[i]
		if c.taken.Load() || !c.taken.CompareAndSwap(false, true) {
			continue
		}
		for top := p.top.Load(); int(top) <= i && !p.top.CompareAndSwap(top, int32(i+1)); top = p.top.Load() {
		}
		if c.done == nil {
			c.done = make(chan struct{}, 1)
		}
		c.n, c.f = n, f
		c.failed.Store(false)
		c.pending.Store(int64(parts))
		p.calls.Add(1)
		c.state.Store(uint64(ranges(parts) * onePart))
		return c
	}
	return nil
}

// recruit starts helpers until there are as many as wanted, or calls and helpers
// have all CPUs.
func (p *pool) recruit(want, procs int) {
	started := false
	for int(p.alive.Load()) < want && p.enlist(procs) {
		go p.help()
		started = true
	}
	if started {
		// The runtime lets the newest goroutine wait for the processor that made it
		// and hands it to an idle one only after some 100 microseconds. One more takes
		// that place.
		go func() {}()
	}
}

// enlist counts one helper more, if there is a CPU for it.
func (p *pool) enlist(procs int) bool {
	alive := p.alive.Load()
	return int(alive+p.calls.Load()) < procs && p.alive.CompareAndSwap(alive, alive+1)
}

// yield lets other goroutines of the caller's CPU go first, once in a turn, while
// helpers keep the other CPUs from taking them over. Where ranks compete for the
// CPUs, the runtime's own turns, which are longer, do less harm to the caches.
func (p *pool) yield(procs int) {
	if p.alive.Load() == 0 || int(p.calls.Load()) >= procs {
		return
	}
	t, gave := now(), p.gave.Load()
	if t-time.Duration(gave) > turn && p.gave.CompareAndSwap(gave, int64(t)) {
		runtime.Gosched()
	}
}

// help works until there has been nothing to do for patience, or all CPUs are
// needed by callers.
func (p *pool) help() {
	ended := false
	defer func() {
		if !ended { // f ended the goroutine
			p.alive.Add(-1)
		}
	}()
	last := now()
	for i := 0; ; i++ {
		if p.work() {
			last = now()
			continue
		}
		procs := runtime.GOMAXPROCS(0)
		if idle := now() - last; idle < patience && int(p.calls.Load()+p.alive.Load()) <= procs {
			relax()
			if i%16 == 0 {
				runtime.Gosched() // a caller that gave way may want to go on
			}
			continue
		}
		// A call that came meanwhile has seen a helper that no longer looks.
		p.alive.Add(-1)
		ended = true
		if !p.waiting() || !p.enlist(procs) {
			return
		}
		ended = false
	}
}

// work helps the calls that are in progress and reports whether there was
// anything to do.
func (p *pool) work() (any bool) {
	for i := range p.top.Load() {
		if p.slots[i].work(oneBack) {
			any = true
		}
	}
	return any
}

// waiting reports whether there is a range that nobody has claimed.
func (p *pool) waiting() bool {
	for i := range p.top.Load() {
		if ranges(p.slots[i].state.Load()).left() > 0 {
			return true
		}
	}
	return false
}
