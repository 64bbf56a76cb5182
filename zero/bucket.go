package zero

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// gradients carries micro-batch gradients from the backward to the accumulators:
//
//	put: round into the bucket ─▶ bucket full ─▶ queue ─▶ reduce ─▶ buffer free
//
// In "local" order they are added to this rank's own sums first, and only the last
// backward of a step (or complete, where there is no last one) goes on to the
// buckets, with the sums.
//
// This file is the side of the hooks, reduce.go the side of the wire. A bucket
// buffer is in exactly one place: with the hooks (bucket.held), in the queue or
// being reduced (sending), or free. Whoever has it may touch it without asking;
// the mutex guards only who has it.
//
// Buckets are sent in one order on all ranks. A gradient that becomes ready
// before its bucket's turn takes a buffer all the same, and the backward goes on.
type gradients struct {
	plan   *Plan
	rank   int
	layout uint64
	comm   comm.Communicator
	shard  *shard
	ledger *ledger
	route  Route // itself, unless Parts has another
	probe  Probe // nil for none

	predivisor float64
	places     [][]place // by bucket; nil: in order of the elements

	mu      sync.Mutex
	changed chan struct{} // closed when a buffer came back or err was set
	waiting int           // goroutines that wait for changed
	err     error         // sticky

	buckets []bucket       // by number
	kept    []dtype.Buffer // by bucket: views of the whole local gradient, where the stage keeps it
	sums    dtype.Buffer   // of this rank's micro-batches, in "local" order
	pools   []*pool        // of the wire formats

	ready   []bool // by parameter, in this backward
	begun   bool   // a backward is open
	sends   bool   // its gradients go to the buckets
	reduces bool   // what sends is for the next backward
	pending bool   // sums have not been sent
	final   bool   // sums were sent before the step: it takes no more gradients
	filling int    // calls of put that are running
	unused  []bool // by parameter: had no gradient in a backward since the ranks last told each other
	bad     int    // lowest element of this rank's gradients that is Inf or NaN in this step, -1 for none

	step     int   // for signatures
	micro    int   // backwards of this step that were closed
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
	single   []int        // bounds of a reduction to one owner
	whole    dtype.Buffer // sums of a bucket that every rank makes, without reduce_scatter
}

// bucket is the state of one bucket in this backward.
type bucket struct {
	buf     dtype.Buffer
	held    bool // buf is with the hooks
	sending bool // its last job is not back; matters where buf is a view of kept
	missing int  // elements that have no gradient yet
}

func newGradients(plan *Plan, c comm.Communicator, s *shard, layout uint64, l *ledger, probe Probe) *gradients {
	g := &gradients{
		plan: plan, rank: c.Rank(), layout: layout, comm: c, shard: s, ledger: l, probe: probe,
		predivisor: plan.predivisor(),
		changed:    make(chan struct{}),
		buckets:    make([]bucket, len(plan.Buckets)),
		ready:      make([]bool, len(plan.place)),
		unused:     make([]bool, len(plan.place)),
		reduces:    !plan.local(),
		bad:        -1,
		step:       1,
		order:      plan.expectedOrder(),
		bounds:     make([]int, plan.World+1),
		single:     make([]int, plan.World+1),
	}
	for b := range g.buckets {
		g.buckets[b].missing = plan.Buckets[b].Len()
	}
	if len(g.order) > 1 {
		g.measured = make([]int, 0, len(g.order))
	}
	g.route = g
	g.layPlaces()
	g.allocate()
	g.start()
	return g
}

// allocate makes the memory that stays; buffers of buckets are made when needed.
func (g *gradients) allocate() {
	p, wires := g.plan, map[dtype.DType]bool{}
	for _, c := range p.classes {
		if c.Len() > 0 && !wires[c.wire] {
			wires[c.wire] = true
			g.pools = append(g.pools, newPool(p, c.wire, g.ledger))
		}
	}
	if p.keepsGradient() {
		g.kept = make([]dtype.Buffer, len(p.Buckets))
		for _, c := range p.classes {
			all := g.ledger.make(kindGradients, c.wire, c.Len())
			for b, iv := range p.Buckets {
				if iv.Lo >= c.Lo && iv.Hi <= c.Hi {
					g.kept[b] = all.Slice(iv.Lo-c.Lo, iv.Hi-c.Lo)
				}
			}
		}
	}
	if p.local() {
		if g.sums = g.shard.acc; p.cfg.ZeroOptimization.Stage > 0 {
			g.sums = g.ledger.make(kindGradients, p.policy.Accum, p.Elements)
		}
	}
	if p.foldsWhole() {
		g.whole = g.ledger.make(kindBuckets, p.policy.Accum, p.BucketLen())
	}
}

// poolOf returns the pool of bucket b's buffers.
func (g *gradients) poolOf(b int) *pool {
	for _, p := range g.pools {
		if p.wire == g.plan.wireOf(b) {
			return p
		}
	}
	panic(fmt.Sprintf("zero: no buffers for bucket %d", b))
}

// put takes the gradient of parameter i and gives it to the route, or only adds it
// to the local sums.
func (g *gradients) put(ctx context.Context, i int, grad []float32) error {
	sends, err := g.enter(i)
	if err != nil {
		return err
	}
	defer g.leave()
	s, ok := g.plan.span(i)
	if !ok {
		return nil
	}
	if g.probe != nil {
		g.lookLocal(s.Interval, grad)
	}
	if g.plan.local() {
		g.addLocal(s, grad)
	}
	if !sends {
		return nil
	}
	return g.route.Take(ctx, i, s.Interval, grad)
}

// Take implements Route: it rounds a gradient into its buckets and sends what is
// full.
func (g *gradients) Take(ctx context.Context, _ int, at Interval, grad []float32) error {
	for b := g.plan.bucketsOf(at); b < len(g.buckets) && g.plan.Buckets[b].Hi > at.Lo; b++ {
		piece := g.plan.Buckets[b].intersect(at)
		if err := g.fill(ctx, b, piece, grad[piece.Lo-at.Lo:piece.Hi-at.Lo]); err != nil {
			return err
		}
	}
	return nil
}

// enter admits a gradient and reports whether it goes on to the buckets.
func (g *gradients) enter(i int) (sends bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.err != nil:
		return false, g.err
	case g.final:
		return false, errFinal
	case g.ready[i]:
		return false, fmt.Errorf("parameter %q: second gradient in one backward; give it once, after its last contribution", g.plan.names[i])
	case !g.begun:
		g.begun, g.sends = true, g.reduces
	}
	g.ready[i] = true
	g.filling++
	return g.sends, nil
}

var errFinal = errors.New("backward after FullGrad or SetFullGrad: with zero_optimization.reduction_order = local they end a step's gradients; call Step first")

func (g *gradients) leave() {
	g.mu.Lock()
	g.filling--
	g.mu.Unlock()
}

// fill writes x into piece of bucket b, see write, and sends what became full.
func (g *gradients) fill(ctx context.Context, b int, piece Interval, x []float32) error {
	g.mu.Lock()
	err := g.acquire(ctx, b)
	buf := g.buckets[b].buf
	g.mu.Unlock()
	if err != nil {
		return err
	}
	bad := g.write(b, buf, piece, x)
	if g.probe != nil {
		g.lookBucket(LifeCopy, g.micro, b, piece, buf)
	}
	g.mu.Lock()
	g.noteBad(bad)
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
		switch {
		case g.err != nil:
			return g.err
		case s.held:
			return nil
		case g.kept != nil:
			if !s.sending {
				s.buf, s.held = g.kept[b], true
				return nil
			}
		default:
			if s.buf, s.held = g.poolOf(b).take(); s.held {
				return nil
			}
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
	if g.kept == nil {
		p := g.poolOf(j.bucket)
		p.sending--
		p.giveBack(j.buf)
	}
	g.notify()
}

// finish closes a backward: pieces that got no gradient are zero, or what earlier
// backwards left in the local sums, and the last buckets are sent. It reports
// whether the backward sent any.
func (g *gradients) finish(ctx context.Context) (sent bool, err error) {
	g.mu.Lock()
	if g.filling > 0 {
		g.mu.Unlock()
		return false, errors.New("EndBackward while GradReady is running: wait for the backward to end first")
	}
	if g.final {
		g.mu.Unlock()
		return false, errFinal
	}
	if !g.begun {
		g.begun, g.sends = true, g.reduces
	}
	sends := g.sends
	for _, s := range g.plan.spans {
		if !g.ready[s.param] {
			g.unused[s.param] = true
		}
	}
	g.mu.Unlock()
	if sends {
		if err := g.route.Rest(ctx); err != nil {
			return false, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next, g.begun, g.pending = 0, false, !sends
	g.micro++
	clear(g.ready)
	return sends, g.err
}

// noteBad keeps the lowest element that is not finite; -1 is none. g.mu is held.
func (g *gradients) noteBad(element int) {
	if element >= 0 && (g.bad < 0 || element < g.bad) {
		g.bad = element
	}
}

// nonFinite is noteBad for callers without the lock.
func (g *gradients) nonFinite(element int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteBad(element)
}

// Rest implements Route: it fills and sends what is not ready.
func (g *gradients) Rest(ctx context.Context) error {
	g.mu.Lock()
	rest := g.order[g.next:]
	g.mu.Unlock()
	for _, b := range rest {
		for _, s := range g.plan.spansIn(g.plan.Buckets[b]) {
			if g.ready[s.param] {
				continue
			}
			if err := g.fill(ctx, b, g.plan.Buckets[b].intersect(s.Interval), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// unsent reports whether there are local sums that no backward has sent.
func (g *gradients) unsent() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pending && g.err == nil
}

// complete sends local sums that no backward has sent, and returns when all
// gradients of the step are in the accumulators.
func (g *gradients) complete(ctx context.Context) error {
	if g.unsent() {
		if err := g.route.Rest(ctx); err != nil {
			return err
		}
		g.mu.Lock()
		g.next, g.pending, g.final = 0, false, true
		if g.measured != nil {
			g.measured = g.measured[:0] // no order of readiness
		}
		g.mu.Unlock()
		if err := g.settle(ctx); err != nil {
			return err
		}
	}
	return g.drain(ctx)
}

// open reports whether gradients were given since the last EndBackward.
func (g *gradients) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun
}

// reduceNext says whether the next backward sends its gradients.
func (g *gradients) reduceNext(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reduces = yes
}
