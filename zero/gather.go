package zero

import (
	"context"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// gatherer brings the updated weights, rounded to the parameter format, into
// every rank's Values. It works in pieces: piece k is the k-th run of every
// partition, so all ranks send in every piece. One piece that covers everything
// lands in the flat buffer of the Values itself, where there is one; otherwise
// pieces pass through staging.
type gatherer struct {
	plan    *Plan
	rank    int
	values  []Param
	flat    dtype.Buffer // the Values of all trainable parameters, or empty
	staging dtype.Buffer
	bounds  []int
}

// gathers reports whether weights have to travel: not when every rank updates
// all of them.
func (p *Plan) gathers() bool {
	return p.cfg.ZeroOptimization.Stage > 0 && p.World > 1
}

// gatherRun returns how many elements of each partition one piece takes.
func (p *Plan) gatherRun() int {
	return max(1, min(p.Partition, p.cfg.ZeroOptimization.AllgatherBucketSize/p.World))
}

// stagingLen returns the elements that gathered weights need outside the Values.
func (p *Plan) stagingLen(flat bool) int {
	run := p.gatherRun()
	if !p.gathers() || (flat && run >= p.Partition) {
		return 0
	}
	return min(p.Elements, run*p.World)
}

func newGatherer(plan *Plan, rank int, params []Param, flat dtype.Buffer, l *ledger) *gatherer {
	own := flat.Len() == plan.Elements
	return &gatherer{
		plan: plan, rank: rank, values: params, flat: flat,
		staging: l.make(kindWorkspace, plan.policy.Param, plan.stagingLen(own)),
		bounds:  make([]int, plan.World+1),
	}
}

// gather rounds the shard into the Values of all ranks.
func (g *gatherer) gather(ctx context.Context, c comm.Communicator, s *shard, sig comm.Signature) error {
	if !g.plan.gathers() {
		for _, sp := range g.plan.spans {
			s.round(g.values[sp.param].Value, sp.Interval)
		}
		return nil
	}
	run := g.plan.gatherRun()
	for k := 0; k*run < g.plan.Partition; k++ {
		sig.Name, sig.Bucket = nameWeights, k
		if err := g.piece(ctx, c, s, k*run, run, sig); err != nil {
			return err
		}
	}
	return nil
}

// piece gathers elements [at, at+run) of every partition.
func (g *gatherer) piece(ctx context.Context, c comm.Communicator, s *shard, at, run int, sig comm.Signature) error {
	for r := range g.plan.World {
		g.bounds[r+1] = g.bounds[r] + g.runOf(r, at, run).Len()
	}
	recv := g.staging
	if recv.Len() == 0 {
		recv = g.flat
	}
	recv = recv.Slice(0, g.bounds[g.plan.World])
	send := recv.Slice(g.bounds[g.rank], g.bounds[g.rank+1])
	if mine := g.runOf(g.rank, at, run); mine.Len() > 0 {
		s.round(send, mine)
	}
	err := comm.Do(ctx, c, &comm.Op{Kind: comm.AllGather, Sig: sig, Bounds: g.bounds, Send: send, Recv: recv})
	if err != nil || g.staging.Len() == 0 {
		return err
	}
	for r := range g.plan.World {
		g.spread(recv.Slice(g.bounds[r], g.bounds[r+1]), g.runOf(r, at, run))
	}
	return nil
}

// runOf returns elements [at, at+run) of rank r's partition, as far as they exist.
func (g *gatherer) runOf(r, at, run int) Interval {
	lo := r*g.plan.Partition + at
	hi := min(lo+run, (r+1)*g.plan.Partition)
	return Interval{0, g.plan.Elements}.intersect(Interval{lo, max(lo, hi)})
}

// spread copies the weights of iv to the Values they belong to.
func (g *gatherer) spread(weights dtype.Buffer, iv Interval) {
	for _, sp := range g.plan.spansIn(iv) {
		part := iv.intersect(sp.Interval)
		g.values[sp.param].Value.Slice(part.Lo-sp.Lo, part.Hi-sp.Lo).Copy(weights.Slice(part.Lo-iv.Lo, part.Hi-iv.Lo))
	}
}
