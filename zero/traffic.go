package zero

import (
	"context"
	"sync/atomic"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// Names of the optimizer's collectives, in signatures and in Traffic.
const (
	nameBucket  = "gradient bucket"
	nameNorm    = "norm block sums"
	nameWeights = "weights"
)

// Flow is what one rank sends to the others, see comm.Op.Sent.
type Flow struct {
	Bytes       int64
	Collectives int64 // started, those that send nothing included
}

// Traffic counts what one rank sends by what it is for.
type Traffic struct {
	Gradients Flow // buckets on their way to the owners
	Weights   Flow // gathered after the update
	Norm      Flow // block sums of the norm, with what is not finite
	Other     Flow // start-up, and agreements of the ranks
}

// Total returns the sum of all kinds.
func (t Traffic) Total() Flow {
	var sum Flow
	for _, f := range []Flow{t.Gradients, t.Weights, t.Norm, t.Other} {
		sum.Bytes += f.Bytes
		sum.Collectives += f.Collectives
	}
	return sum
}

// Traffic predicts what rank sends in one optimizer step of
// gradient_accumulation_steps backwards that is applied. Gradients, Weights and
// Norm are exact; Other is not predicted.
func (p *Plan) Traffic(rank int) Traffic {
	var t Traffic
	peers, times := int64(p.World-1), int64(p.cfg.GradientAccumulationSteps)
	if p.local() {
		times = 1
	}
	for b, iv := range p.Buckets {
		elements, collectives := int64(iv.Len()), int64(1)
		if p.reduction() == comm.AllReduce {
			elements *= peers
		} else {
			elements -= int64(p.owned[rank].cut(iv).Len())
		}
		if p.foldsByOwner() {
			collectives = int64(p.ownersIn(iv))
		}
		t.Gradients.Bytes += times * elements * int64(p.wireOf(b).Size())
		t.Gradients.Collectives += times * collectives
	}
	t.Norm = Flow{peers * int64(p.normSums(rank)*dtype.F64.Size()), 1}
	if p.gathers() {
		for _, c := range p.classes {
			t.Weights.Bytes += peers * int64(p.owned[rank].cut(c.Interval).Len()) * int64(c.param.Size())
			t.Weights.Collectives += int64(ceilDiv(p.longest(c), p.gatherRun(c)))
		}
	}
	return t
}

// meter is a communicator that counts what its rank sends.
type meter struct {
	comm.Communicator
	bytes, collectives [4]atomic.Int64 // by place in Traffic
}

// Start implements comm.Communicator.
func (m *meter) Start(ctx context.Context, op *comm.Op) comm.Handle {
	k := 3
	switch op.Sig.Name {
	case nameBucket:
		k = 0
	case nameWeights:
		k = 1
	case nameNorm:
		k = 2
	}
	m.bytes[k].Add(op.Sent(m.Rank(), m.Size()))
	m.collectives[k].Add(1)
	return m.Communicator.Start(ctx, op)
}

func (m *meter) traffic() Traffic {
	flow := func(k int) Flow { return Flow{m.bytes[k].Load(), m.collectives[k].Load()} }
	return Traffic{Gradients: flow(0), Weights: flow(1), Norm: flow(2), Other: flow(3)}
}

// Traffic returns what this rank has sent since New. It may be called from any
// goroutine.
func (o *Optimizer) Traffic() Traffic { return o.meter.traffic() }
