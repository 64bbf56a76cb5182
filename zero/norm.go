package zero

import (
	"context"
	"math"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// normExtras is what a rank tells beside its block sums: the lowest element of
// its own micro-batch gradients that is not finite, and the lowest of its
// partition's sum; -1 for none.
const normExtras = 2

// norm measures the gradient. Every rank sums the squares of its partition by
// blocks, all receive all block sums and add them in block order: the same bits
// on every rank and at any world size. The same exchange carries what is not
// finite, so that the ranks agree before anything is written.
type norm struct {
	plan   *Plan
	rank   int
	bounds []int
	at     []int        // scratch of total
	send   dtype.Buffer // block sums of the partition, then normExtras
	recv   dtype.Buffer // the same of every rank
}

// Measure is what is known of a step's gradient; it is equal on all ranks.
type Measure struct {
	Norm    float64 // of the mean, unscaled gradient; Inf or NaN when that is not finite
	Element int     // lowest element known to be Inf or NaN, -1 when all are finite
	Rank    int     // the rank whose micro-batches had it first; -1 when only the sum does
}

// Finite reports whether the norm is.
func (m Measure) Finite() bool { return m.Norm-m.Norm == 0 }

// normSums returns how many float64 rank sends in a norm exchange.
func (p *Plan) normSums(rank int) int {
	return ceilDiv(p.Owned(rank).Len(), p.NormBlock) + normExtras
}

func newNorm(plan *Plan, rank int, l *ledger) *norm {
	n := &norm{plan: plan, rank: rank, bounds: make([]int, plan.World+1), at: make([]int, plan.World+1)}
	for r := range plan.World {
		n.bounds[r+1] = n.bounds[r] + plan.normSums(r)
	}
	n.send = l.make(kindWorkspace, dtype.F64, plan.normSums(rank))
	n.recv = l.make(kindWorkspace, dtype.F64, n.bounds[plan.World])
	return n
}

// measure runs the exchange. bad is the lowest element of this rank's own
// gradients that is not finite, -1 when all are.
func (n *norm) measure(ctx context.Context, c comm.Communicator, s *shard, g gradient, bad int, sig comm.Signature) (Measure, error) {
	sums := n.send.F64[:n.send.Len()-normExtras]
	s.sumSquares(sums, n.plan.NormBlock, g)
	extras := n.send.F64[len(sums):]
	extras[0], extras[1] = float64(bad), -1
	for b, v := range sums {
		if v-v != 0 {
			extras[1] = float64(s.firstNonFinite(b, n.plan.NormBlock, g))
			break
		}
	}
	sig.Name, sig.Bucket = nameNorm, -1
	err := comm.Do(ctx, c, &comm.Op{Kind: comm.AllGather, Sig: sig, Bounds: n.bounds, Send: n.send, Recv: n.recv})
	if err != nil {
		return Measure{}, err
	}
	return n.total(), nil
}

// total adds the block sums in block order and finds the first bad element. The
// ranks' own gradients come first: they tell whose micro-batch it was.
func (n *norm) total() Measure {
	copy(n.at, n.bounds)
	var sum float64
	for _, s := range n.plan.segments {
		blocks := ceilDiv(s.Len(), n.plan.NormBlock)
		for _, v := range n.recv.F64[n.at[s.owner] : n.at[s.owner]+blocks] {
			sum += v
		}
		n.at[s.owner] += blocks
	}
	m := Measure{Element: -1, Rank: -1, Norm: math.Sqrt(sum)}
	summed := -1
	for r := range n.plan.World {
		extras := n.recv.F64[n.bounds[r+1]-normExtras : n.bounds[r+1]]
		if e := int(extras[0]); e >= 0 && (m.Element < 0 || e < m.Element) {
			m.Element, m.Rank = e, r
		}
		if e := int(extras[1]); e >= 0 && (summed < 0 || e < summed) {
			summed = e
		}
	}
	if m.Element < 0 {
		m.Element = summed
	}
	return m
}

// clipCoefficient returns min(1, clip/(norm + 1e-6)), 1 when clip is 0.
func clipCoefficient(clip, norm float64) float64 {
	if clip == 0 {
		return 1
	}
	if c := clip / (norm + 1e-6); !(c >= 1) {
		return c
	}
	return 1
}
