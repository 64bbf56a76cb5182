package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// job is a full bucket on its way to the owners of its elements.
type job struct {
	bucket int
	buf    dtype.Buffer
	micro  int
}

// start begins the reducer: a goroutine of its own when overlapping, otherwise
// whichever call of fill completes a bucket.
func (g *gradients) start() {
	if !g.plan.cfg.ZeroOptimization.OverlapComm {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	g.wake, g.stop, g.stopped = make(chan struct{}, 1), cancel, make(chan struct{})
	go func() {
		defer close(g.stopped)
		for {
			select {
			case <-g.wake:
				g.pump(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
}

var errClosedEarly = errors.New("closed its optimizer before the reduction was complete")

// close ends the reducer and waits for it. A reduction that is still running is
// given up, which the other ranks see as an error.
func (g *gradients) close() {
	if g.stop != nil {
		g.stop(errClosedEarly)
		<-g.stopped
	}
}

// send marks bucket b full and queues every bucket whose turn has come: all
// earlier ones in the order have been queued. g.mu is held.
func (g *gradients) send(b int) {
	if g.measured != nil {
		g.measured = append(g.measured, b)
	}
	for g.next < len(g.order) && g.buckets[g.order[g.next]].missing == 0 {
		b := g.order[g.next]
		s := &g.buckets[b]
		g.queue = append(g.queue, job{b, s.buf, g.micro})
		*s = bucket{sending: true, missing: g.plan.Buckets[b].Len()}
		g.sending++
		if g.kept == nil {
			g.poolOf(b).sending++
		}
		g.next++
	}
}

// kick gets the queue moving. Without overlap it returns when the queue is
// empty, unless another goroutine of this rank is already at it.
func (g *gradients) kick(ctx context.Context) error {
	if g.wake == nil {
		return g.pump(ctx)
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return nil
}

// pump reduces what is queued, one bucket at a time. One goroutine does so at
// any time: the communicator is not shared.
func (g *gradients) pump(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reducing {
		return nil
	}
	g.reducing = true
	for g.err == nil && len(g.queue) > 0 {
		j := g.queue[0]
		n := copy(g.queue, g.queue[1:])
		g.queue[n] = job{}
		g.queue = g.queue[:n]
		g.mu.Unlock()
		err := g.reduce(ctx, j)
		g.mu.Lock()
		if err != nil {
			g.breakWith(err)
		}
		g.release(j)
	}
	g.reducing = false
	return g.err
}

// reduce folds one bucket into the accumulators of the elements' owners.
func (g *gradients) reduce(ctx context.Context, j job) error {
	iv := g.plan.Buckets[j.bucket]
	op := comm.Op{
		Kind: g.plan.reduction(),
		Sig:  comm.Signature{Name: nameBucket, Step: g.step, Bucket: j.bucket, Layout: g.layout},
		Send: j.buf.Slice(0, iv.Len()),
		Recv: g.shard.segment(iv),
	}
	if g.probe != nil {
		g.lookBucket(LifeWire, j.micro, j.bucket, iv, j.buf)
	}
	var err error
	switch {
	case g.plan.foldsWhole():
		err = g.foldWhole(ctx, op, iv)
	case g.plan.foldsByOwner():
		err = g.foldByOwner(ctx, op, iv)
	default:
		if op.Kind == comm.ReduceScatter {
			g.plan.owners(iv, g.bounds)
			op.Bounds = g.bounds
		}
		err = comm.Do(ctx, g.comm, &op)
	}
	if err != nil {
		return fmt.Errorf("reducing %s: %w", g.plan.nameOf(iv), err)
	}
	if g.probe != nil {
		g.lookFold(j)
	}
	return nil
}

// foldWhole sums the whole bucket on every rank, each starting from what it has of
// the accumulators, and keeps this rank's part.
func (g *gradients) foldWhole(ctx context.Context, op comm.Op, iv Interval) error {
	op.Recv = g.whole.Slice(0, iv.Len())
	op.Recv.Clear()
	own := g.shard.region
	part := own.cut(iv)
	own.each(part, func(run Interval, at int) {
		op.Recv.Slice(run.Lo-iv.Lo, run.Hi-iv.Lo).Copy(g.shard.acc.Slice(at, at+run.Len()))
	})
	if err := comm.Do(ctx, g.comm, &op); err != nil {
		return err
	}
	own.each(part, func(run Interval, at int) {
		g.shard.acc.Slice(at, at+run.Len()).Copy(op.Recv.Slice(run.Lo-iv.Lo, run.Hi-iv.Lo))
	})
	return nil
}

// foldByOwner reduces the bucket's elements in one collective for each owner.
func (g *gradients) foldByOwner(ctx context.Context, op comm.Op, iv Interval) error {
	g.plan.owners(iv, g.bounds)
	bucket, own := op.Send, op.Recv
	op.Bounds = g.single
	for r := range g.plan.World {
		lo, hi := g.bounds[r], g.bounds[r+1]
		if lo == hi {
			continue
		}
		clear(g.single[:r+1])
		for k := r + 1; k < len(g.single); k++ {
			g.single[k] = hi - lo
		}
		op.Send, op.Recv = bucket.Slice(lo, hi), own.Slice(0, 0)
		if r == g.rank {
			op.Recv = own
		}
		if err := comm.Do(ctx, g.comm, &op); err != nil {
			return err
		}
	}
	return nil
}
