package zero

import (
	"context"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// gatherer brings the updated weights, rounded to their formats, into every
// rank's Values, one format after the other. It works in pieces: piece k is the
// k-th run of every partition, so all ranks send in every piece. One piece that
// covers everything lands in the flat buffer of the Values itself, where there is
// one and the partitions lie in it in order; otherwise pieces pass through staging.
type gatherer struct {
	plan    *Plan
	rank    int
	values  []Param
	flat    []dtype.Buffer // by class: the Values of its trainable parameters, or empty
	staging []dtype.Buffer // by class
	bounds  []int
}

// gathers reports whether weights have to travel: not when every rank updates
// all of them.
func (p *Plan) gathers() bool {
	return p.cfg.ZeroOptimization.Stage > 0 && p.World > 1
}

// longest returns the most elements of class c that one rank owns.
func (p *Plan) longest(c class) int {
	n := 0
	for _, r := range p.owned {
		n = max(n, r.cut(c.Interval).Len())
	}
	return n
}

// gatherRun returns how many elements of each partition one piece takes.
func (p *Plan) gatherRun(c class) int {
	return max(1, min(p.longest(c), p.cfg.ZeroOptimization.AllgatherBucketSize/p.World))
}

// stagingLen returns the elements of class c that gathered weights need outside
// the Values.
func (p *Plan) stagingLen(c class, flat bool) int {
	run := p.gatherRun(c)
	if !p.gathers() || flat && p.ordered && run >= p.longest(c) {
		return 0
	}
	return min(c.Len(), run*p.World)
}

// stagingBytes returns the bytes of that over all classes.
func (p *Plan) stagingBytes(flat bool) int64 {
	var n int64
	for _, c := range p.classes {
		n += int64(p.stagingLen(c, flat)) * int64(c.param.Size())
	}
	return n
}

func newGatherer(plan *Plan, rank int, params []Param, flat []dtype.Buffer, l *ledger) *gatherer {
	g := &gatherer{plan: plan, rank: rank, values: params, flat: flat, bounds: make([]int, plan.World+1)}
	for k, c := range plan.classes {
		g.staging = append(g.staging, l.make(kindWorkspace, c.param, plan.stagingLen(c, flat[k].Len() == c.Len())))
	}
	return g
}

// home returns where the compute copies of the shard lie in one run, in its order:
// gathered weights arrive there, and need not be rounded anywhere else first.
func (g *gatherer) home(s *shard) dtype.Buffer {
	if len(g.flat) != 1 || g.flat[0].Len() != g.plan.Elements || g.staging[0].Len() > 0 || len(s.region.Runs) != 1 {
		return dtype.Buffer{}
	}
	run := s.region.Runs[0]
	return g.flat[0].Slice(run.Lo, run.Hi)
}

// gather brings the shard, rounded, into the Values of all ranks. rounded says
// that it is at home already.
func (g *gatherer) gather(ctx context.Context, c comm.Communicator, s *shard, rounded bool, sig comm.Signature) error {
	if !g.plan.gathers() {
		if rounded {
			return nil
		}
		for _, sp := range g.plan.spans {
			s.round(g.values[sp.param].Value, s.region.cut(sp.Interval))
		}
		return nil
	}
	sig.Name, sig.Bucket = nameWeights, 0
	for k, class := range g.plan.classes {
		run, longest := g.plan.gatherRun(class), g.plan.longest(class)
		for at := 0; at < longest; at += run {
			if err := g.piece(ctx, c, s, k, Interval{at, at + run}, rounded, sig); err != nil {
				return err
			}
			sig.Bucket++
		}
	}
	return nil
}

// piece gathers a run of every partition's elements of class k.
func (g *gatherer) piece(ctx context.Context, c comm.Communicator, s *shard, k int, run Interval, rounded bool, sig comm.Signature) error {
	class := g.plan.classes[k]
	for r := range g.plan.World {
		g.bounds[r+1] = g.bounds[r] + g.partOf(r, class, run).Len()
	}
	recv := g.staging[k]
	if recv.Len() == 0 {
		recv = g.flat[k]
	}
	recv = recv.Slice(0, g.bounds[g.plan.World])
	send := recv.Slice(g.bounds[g.rank], g.bounds[g.rank+1])
	if !rounded {
		s.round(send, g.partOf(g.rank, class, run))
	}
	err := comm.Do(ctx, c, &comm.Op{Kind: comm.AllGather, Sig: sig, Bounds: g.bounds, Send: send, Recv: recv})
	if err != nil || g.staging[k].Len() == 0 {
		return err
	}
	for r := range g.plan.World {
		g.spread(recv.Slice(g.bounds[r], g.bounds[r+1]), r, g.partOf(r, class, run))
	}
	return nil
}

// partOf returns the offsets of a run of rank r's elements of class c, as far as
// they exist.
func (g *gatherer) partOf(r int, c class, run Interval) Interval {
	in := g.plan.owned[r].cut(c.Interval)
	return in.intersect(run.shift(in.Lo))
}

// spread copies the weights at the offsets part of rank r's partition to the
// Values they belong to.
func (g *gatherer) spread(weights dtype.Buffer, r int, part Interval) {
	g.plan.owned[r].each(part, func(run Interval, at int) {
		for _, sp := range g.plan.spansIn(run) {
			iv := run.intersect(sp.Interval)
			from := at - part.Lo + iv.Lo - run.Lo
			g.values[sp.param].Value.Slice(iv.Lo-sp.Lo, iv.Hi-sp.Lo).Copy(weights.Slice(from, from+iv.Len()))
		}
	})
}
