package zero

import (
	"context"
	"fmt"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// settle follows a backward that sent its gradients with what the ranks have to
// agree on: after the first one the bucket order, and the unused parameters where
// they are not allowed.
func (g *gradients) settle(ctx context.Context) error {
	strict := !g.plan.cfg.ZeroOptimization.IgnoreUnusedParameters
	if len(g.measured) == 0 && !strict {
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
	names, err := g.agreeUnused(ctx)
	if err != nil {
		return g.fail(err)
	}
	if names != "" {
		err = fmt.Errorf("no gradient in this backward for %s: use the parameters, freeze them, or set zero_optimization.ignore_unused_parameters = true", names)
		g.end(err)
	}
	return err
}

// agreeOrder makes rank 0's ready order of the first backward the order in which
// every later backward sends its buckets. Reverse registration order is only a
// guess (a UNet registers its up blocks before its middle block), and a wrong
// guess costs buffers and overlap, never bits: each element is folded once per
// micro-step, whatever the order. The gradients must be drained.
func (g *gradients) agreeOrder(ctx context.Context) error {
	if len(g.measured) == 0 {
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
	for _, p := range g.pools {
		p.trim()
	}
	return nil
}

// agreeUnused returns, on every rank, the names of the parameters that had no
// gradient in a backward since it was last called, by rank.
func (g *gradients) agreeUnused(ctx context.Context) (string, error) {
	n := len(g.ready)
	bounds := make([]int, g.plan.World+1)
	for r := range bounds {
		bounds[r] = r * n
	}
	all := dtype.Make(dtype.F32, n*g.plan.World)
	mine := all.Slice(g.rank*n, (g.rank+1)*n)
	for i, unused := range g.unused {
		if unused {
			mine.F32[i] = 1
		}
	}
	clear(g.unused)
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
