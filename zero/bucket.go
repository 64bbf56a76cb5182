package zero

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero/comm"
)

// gradients carries micro-batch gradients from the backward to the accumulators:
//
//	put: round into the bucket ─▶ bucket full ─▶ queue ─▶ reduce ─▶ buffer free
//
// This file is the side of the hooks, reduce.go the side of the wire. A bucket
// buffer is in exactly one place: with the hooks (bucket.held), in the queue or
// being reduced (sending), or free. Whoever has it may touch it without asking;
// the mutex guards only who has it.
//
// Buckets are sent in one order on all ranks. A gradient that becomes ready
// before its bucket's turn takes a buffer all the same, and the backward goes on.
// It waits for a buffer only while one is being reduced, since that one comes
// back without help from this rank's backward; otherwise another is made. So no
// ready order can block a backward, and the buffers beyond the usual one or two
// are as many as buckets are partly full at one time.
type gradients struct {
	plan   *Plan
	rank   int
	layout uint64
	comm   comm.Communicator
	shard  *shard
	ledger *ledger

	mu      sync.Mutex
	changed chan struct{} // closed when a buffer came back or err was set
	waiting int           // goroutines that wait for changed
	err     error         // sticky

	buckets []bucket     // by number
	local   dtype.Buffer // the whole local gradient, where the stage keeps it
	free    []dtype.Buffer
	made    int // buffers that exist

	ready   []bool // by parameter, in this backward
	filling int    // calls of put that are running
	bad     int    // lowest element of this rank's gradients that is Inf or NaN in this step, -1 for none

	step     int   // for signatures
	order    []int // buckets in the order they are sent
	next     int   // place in order of the next one
	measured []int // buckets in the order they became full; nil once the ranks have agreed
	queue    []job
	sending  int // jobs queued or being reduced
	reducing bool
	wake     chan struct{}
	stop     context.CancelCauseFunc
	stopped  chan struct{}
	bounds   []int
}

// bucket is the state of one bucket in this backward.
type bucket struct {
	buf     dtype.Buffer
	held    bool // buf is with the hooks
	sending bool // its last job is not back; matters where buf is a view of local
	missing int  // elements that have no gradient yet
}

func newGradients(plan *Plan, c comm.Communicator, s *shard, layout uint64, l *ledger) *gradients {
	g := &gradients{
		plan: plan, rank: c.Rank(), layout: layout, comm: c, shard: s, ledger: l,
		changed: make(chan struct{}),
		buckets: make([]bucket, len(plan.Buckets)),
		ready:   make([]bool, len(plan.place)),
		bad:     -1,
		step:    1,
		order:   make([]int, len(plan.Buckets)),
		bounds:  make([]int, plan.World+1),
	}
	for b := range g.buckets {
		g.buckets[b].missing = plan.Buckets[b].Len()
		g.order[b] = b
	}
	if len(g.order) > 1 {
		g.measured = make([]int, 0, len(g.order))
	}
	if plan.keepsLocal() {
		g.local = l.make(kindGradients, plan.policy.Wire, plan.Elements)
	}
	g.start()
	return g
}

// put rounds the gradient of parameter i into its buckets and sends what is full.
func (g *gradients) put(ctx context.Context, i int, grad []float32) error {
	if err := g.enter(i); err != nil {
		return err
	}
	defer g.leave()
	s, ok := g.plan.span(i)
	if !ok {
		return nil
	}
	for b := g.plan.bucketsOf(s.Interval); b < len(g.buckets) && g.plan.Buckets[b].Hi > s.Lo; b++ {
		piece := g.plan.Buckets[b].intersect(s.Interval)
		if err := g.fill(ctx, b, piece, grad[piece.Lo-s.Lo:piece.Hi-s.Lo]); err != nil {
			return err
		}
	}
	return nil
}

func (g *gradients) enter(i int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	if g.ready[i] {
		return fmt.Errorf("parameter %q: second gradient in one backward; give it once, after its last contribution", g.plan.names[i])
	}
	g.ready[i] = true
	g.filling++
	return nil
}

func (g *gradients) leave() {
	g.mu.Lock()
	g.filling--
	g.mu.Unlock()
}

// fill writes x (zeros when nil) into piece of bucket b, rounded once to the wire
// format, and sends what became full.
func (g *gradients) fill(ctx context.Context, b int, piece Interval, x []float32) error {
	g.mu.Lock()
	err := g.acquire(ctx, b)
	buf, at := g.buckets[b].buf, g.plan.Buckets[b].Lo
	g.mu.Unlock()
	if err != nil {
		return err
	}
	dst := buf.Slice(piece.Lo-at, piece.Hi-at)
	bad := -1
	if x == nil {
		dst.Clear()
	} else {
		kernel.Round(dst, x)
		bad = firstNonFinite(dst)
	}
	g.mu.Lock()
	if bad >= 0 && (g.bad < 0 || piece.Lo+bad < g.bad) {
		g.bad = piece.Lo + bad
	}
	g.buckets[b].missing -= piece.Len()
	full := g.buckets[b].missing == 0
	if full {
		g.send(b)
	}
	g.mu.Unlock()
	if full {
		return g.kick(ctx)
	}
	return nil
}

// acquire gives bucket b a buffer, and waits for one only where that is safe.
// g.mu is held, but not while it waits.
func (g *gradients) acquire(ctx context.Context, b int) error {
	s := &g.buckets[b]
	for {
		n := len(g.free)
		switch {
		case g.err != nil:
			return g.err
		case s.held:
			return nil
		case g.plan.keepsLocal():
			if !s.sending {
				iv := g.plan.Buckets[b]
				s.buf, s.held = g.local.Slice(iv.Lo, iv.Hi), true
				return nil
			}
		case n > 0:
			s.buf, s.held = g.free[n-1], true
			g.free = g.free[:n-1]
			return nil
		case g.made < g.plan.bucketBuffers() || g.sending == 0:
			s.buf, s.held = g.ledger.make(kindBuckets, g.plan.policy.Wire, g.plan.BucketLen()), true
			g.made++
			return nil
		}
		if err := g.wait(ctx); err != nil {
			return err
		}
	}
}

// release takes back the buffer of a bucket that was reduced. g.mu is held.
func (g *gradients) release(j job) {
	g.buckets[j.bucket].sending = false
	g.sending--
	if !g.plan.keepsLocal() {
		g.free = append(g.free, j.buf)
	}
	g.notify()
}

// trim gives up the buffers that only a backward out of order needed. It is for
// a moment when none is in use. g.mu is held.
func (g *gradients) trim() {
	keep := min(len(g.free), g.plan.bucketBuffers())
	for _, b := range g.free[keep:] {
		g.ledger.add(kindBuckets, -int64(b.Bytes()))
		g.made--
	}
	clear(g.free[keep:])
	g.free = g.free[:keep]
}

// finish closes a backward: pieces that got no gradient are zero, and the last
// buckets are sent. It returns the parameters that got none.
func (g *gradients) finish(ctx context.Context) (unused []int, err error) {
	g.mu.Lock()
	if g.filling > 0 {
		g.mu.Unlock()
		return nil, errors.New("EndBackward while GradReady is running: wait for the backward to end first")
	}
	for _, s := range g.plan.spans {
		if !g.ready[s.param] {
			unused = append(unused, s.param)
		}
	}
	rest := g.order[g.next:]
	g.mu.Unlock()
	for _, b := range rest {
		for _, s := range g.plan.spansIn(g.plan.Buckets[b]) {
			if g.ready[s.param] {
				continue
			}
			if err := g.fill(ctx, b, g.plan.Buckets[b].intersect(s.Interval), nil); err != nil {
				return unused, err
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = 0
	clear(g.ready)
	return unused, g.err
}

// wait returns when something changed. g.mu is held on entry and on return.
func (g *gradients) wait(ctx context.Context) error {
	changed := g.changed
	g.waiting++
	g.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	g.mu.Lock()
	g.waiting--
	if err := context.Cause(ctx); err != nil && g.err == nil {
		g.breakWith(fmt.Errorf("waiting for gradients on the wire: %w", err))
	}
	return g.err
}

// notify wakes whoever waits. g.mu is held.
func (g *gradients) notify() {
	if g.waiting > 0 {
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// breakWith ends the training on this rank and tells the others. g.mu is held.
func (g *gradients) breakWith(err error) {
	if g.err == nil {
		g.err = err
		g.comm.Abort(err)
	}
	g.notify()
}

// fail is breakWith for callers without the lock; it returns the error that
// broke the training first.
func (g *gradients) fail(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.breakWith(err)
	return g.err
}
