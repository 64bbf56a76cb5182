package zero

import "github.com/zerogap/zerogap/dtype"

// Life is a stage in the life of a gradient.
type Life uint8

// The stages, in their order. Local to Fold come once per backward, the others once
// per step.
const (
	LifeLocal  Life = iota // as GradReady was given it, fp32
	LifeCopy               // in the bucket buffer, rounded to the wire format
	LifeWire               // as the rank sends it
	LifeFold               // the accumulators, after the contributions of all ranks
	LifeNorm               // the norm, one float64
	LifeClip               // the coefficient, one float64
	LifeUpdate             // the fp32 master weights after the step, or after it was skipped
	LifeGather             // the compute copies
)

// String returns the stage's name in words.
func (l Life) String() string {
	return [...]string{"local gradient", "bucket copy", "wire", "fold", "norm", "clip", "update", "gather"}[l]
}

// Sight is what a Probe sees: a run of elements at a stage of its life.
type Sight struct {
	Life  Life
	Step  int // from 1
	Micro int // backward within the step, from 0; -1 after the last
	Rank  int
	// Bucket is a number in Plan.Buckets; -1 where buckets have no part.
	Bucket int
	// Elements are a run of the element space. A run at LifeLocal and LifeGather
	// is a whole parameter; others may hold parts of several. It is empty for the
	// norm and the coefficient.
	Elements Interval
	Values   dtype.Buffer // of the elements, in order
}

// Probe watches gradients on their way. It is called with memory that is in use: it
// reads Values before it returns and writes nothing. Calls come from the goroutines
// of the backward and of the reduction, several at once. At LifeFold and LifeUpdate a
// rank shows the elements of its own partition alone, at every stage, and at
// LifeGather all ranks show all.
type Probe func(Sight)

// lookLocal shows a gradient as it was given.
func (g *gradients) lookLocal(at Interval, grad []float32) {
	g.probe(Sight{Life: LifeLocal, Step: g.step, Micro: g.micro, Rank: g.rank, Bucket: -1, Elements: at, Values: dtype.OfFloat32(grad)})
}

// lookBucket shows the elements iv of bucket b in its buffer.
func (g *gradients) lookBucket(l Life, micro, b int, iv Interval, buf dtype.Buffer) {
	s := Sight{Life: l, Step: g.step, Micro: micro, Rank: g.rank, Bucket: b}
	if g.places == nil {
		s.Elements, s.Values = iv, buf.Slice(iv.Lo-g.plan.Buckets[b].Lo, iv.Hi-g.plan.Buckets[b].Lo)
		g.probe(s)
		return
	}
	for _, p := range g.places[b] {
		if s.Elements = iv.intersect(p.Interval); s.Elements.Len() > 0 {
			at := p.at + s.Elements.Lo - p.Lo
			s.Values = buf.Slice(at, at+s.Elements.Len())
			g.probe(s)
		}
	}
}

// lookFold shows this rank's accumulators of bucket b.
func (g *gradients) lookFold(j job) {
	g.shard.lookAt(g.plan.Buckets[j.bucket], func(iv Interval, part Interval) {
		g.probe(Sight{Life: LifeFold, Step: g.step, Micro: j.micro, Rank: g.rank, Bucket: j.bucket, Elements: iv, Values: g.shard.acc.Slice(part.Lo, part.Hi)})
	})
}

// lookAt calls f with the runs of the partition in iv and their offsets.
func (s *shard) lookAt(iv Interval, f func(iv, part Interval)) {
	s.own.each(s.own.cut(iv), func(run Interval, _ int) { f(run, s.region.cut(run)) })
}

// lookStep shows what follows the last backward. The numbers are those of the step
// that is ending.
func (o *Optimizer) lookStep(m Measure, clip float64) {
	s := Sight{Step: o.tried + 1, Micro: -1, Rank: o.comm.Rank(), Bucket: -1}
	number := func(l Life, x float64) {
		s.Life, s.Values = l, dtype.Buffer{DType: dtype.F64, F64: []float64{x}}
		o.parts.Probe(s)
	}
	number(LifeNorm, m.Norm)
	number(LifeClip, clip)
}

// lookWeights shows what the step has left.
func (o *Optimizer) lookWeights() {
	s := Sight{Life: LifeUpdate, Step: o.tried + 1, Micro: -1, Rank: o.comm.Rank(), Bucket: -1}
	o.shard.lookAt(Interval{0, o.plan.Elements}, func(iv, part Interval) {
		s.Elements, s.Values = iv, dtype.OfFloat32(o.shard.master[part.Lo:part.Hi])
		o.parts.Probe(s)
	})
	s.Life = LifeGather
	for _, sp := range o.plan.spans {
		s.Elements, s.Values = sp.Interval, o.params[sp.param].Value
		o.parts.Probe(s)
	}
}
