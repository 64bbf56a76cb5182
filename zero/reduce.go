package zero

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// job is a full bucket on its way to the owners of its elements.
type job struct {
	bucket int
	buf    dtype.Buffer
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
		g.queue = append(g.queue, job{b, s.buf})
		*s = bucket{sending: true, missing: g.plan.Buckets[b].Len()}
		g.sending++
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
	if op.Kind == comm.ReduceScatter {
		g.plan.owners(iv, g.bounds)
		op.Bounds = g.bounds
	}
	if err := comm.Do(ctx, g.comm, &op); err != nil {
		return fmt.Errorf("reducing %s: %w", g.plan.nameOf(iv), err)
	}
	return nil
}

// drain returns when every bucket that was sent is in the accumulators.
func (g *gradients) drain(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.err == nil && g.sending > 0 {
		if err := g.wait(ctx); err != nil {
			return err
		}
	}
	return g.err
}

// settle ends a backward with what the ranks have to agree on: after the first
// one the bucket order, and the unused parameters where they are not allowed.
func (g *gradients) settle(ctx context.Context, unused []int) error {
	strict := !g.plan.cfg.ZeroOptimization.IgnoreUnusedParameters
	if g.measured == nil && !strict {
		return nil
	}
	if err := g.drain(ctx); err != nil {
		return err
	}
	if err := g.agreeOrder(ctx); err != nil {
		return g.fail(err)
	}
	if !strict {
		return nil
	}
	names, err := g.agreeUnused(ctx, unused)
	if err != nil {
		return g.fail(err)
	}
	if names != "" {
		err = fmt.Errorf("no gradient in this backward for %s: use the parameters, freeze them, or set zero_optimization.ignore_unused_parameters = true", names)
		g.end(err)
	}
	return err
}

// nextStep begins a step, or ends the training with err.
func (g *gradients) nextStep(step int, err error) {
	g.mu.Lock()
	g.step, g.bad = step, -1
	g.mu.Unlock()
	if err != nil {
		g.end(err)
	}
}

// end makes err the result of every later call. It is for what all ranks have
// agreed on: nobody needs to be told.
func (g *gradients) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
}

// agreeOrder makes rank 0's ready order of the first backward the order in which
// every later backward sends its buckets. Reverse registration order is only a
// guess (a UNet registers its up blocks before its middle block), and a wrong
// guess costs buffers and overlap, never bits: each element is folded once per
// micro-step, whatever the order. The gradients must be drained.
func (g *gradients) agreeOrder(ctx context.Context) error {
	if g.measured == nil {
		return nil
	}
	n := len(g.order)
	bounds := make([]int, g.plan.World+1)
	for r := 1; r < len(bounds); r++ {
		bounds[r] = n
	}
	order := dtype.Make(dtype.F64, n)
	for i, b := range g.measured {
		order.F64[i] = float64(b)
	}
	send := order
	if g.rank != 0 {
		send = order.Slice(0, 0)
	}
	err := comm.Do(ctx, g.comm, &comm.Op{
		Kind: comm.AllGather, Bounds: bounds, Send: send, Recv: order,
		Sig: comm.Signature{Name: "bucket order", Step: g.step, Bucket: -1, Layout: g.layout},
	})
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, b := range order.F64 {
		g.order[i] = int(b)
	}
	g.measured = nil
	g.trim()
	return nil
}

// agreeUnused returns, on every rank, the names of the parameters without a
// gradient, by rank.
func (g *gradients) agreeUnused(ctx context.Context, unused []int) (string, error) {
	n := len(g.ready)
	bounds := make([]int, g.plan.World+1)
	for r := range bounds {
		bounds[r] = r * n
	}
	all := dtype.Make(dtype.F32, n*g.plan.World)
	mine := all.Slice(g.rank*n, (g.rank+1)*n)
	for _, i := range unused {
		mine.F32[i] = 1
	}
	err := comm.Do(ctx, g.comm, &comm.Op{
		Kind: comm.AllGather, Bounds: bounds, Send: mine, Recv: all,
		Sig: comm.Signature{Name: "unused parameters", Step: g.step, Bucket: -1, Layout: g.layout},
	})
	if err != nil {
		return "", err
	}
	var names []string
	for r := range g.plan.World {
		for i, name := range g.plan.names {
			if all.F32[r*n+i] != 0 {
				names = append(names, fmt.Sprintf("%q on rank %d", name, r))
			}
		}
	}
	return strings.Join(names, ", "), nil
}
