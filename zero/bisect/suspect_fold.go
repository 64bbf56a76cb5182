package bisect

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/fault"
)

// sums is what an accumulator is made of: what it was, and what each rank sent.
type sums struct {
	before float64
	sent   []float32
	owner  int
	at, of int // place in its bucket, and the bucket's length
}

// candidate is what a class makes of contributions: the sum of one element after a
// micro-step.
type candidate struct {
	class, why string
	sum        func(s sums, micro int, wire dtype.DType) float32
}

// candidates lists the classes that can be computed.
func (d *Difference) candidates() []candidate {
	config, policy := d.b.training.Config, d.b.training.Config.Policy()
	add := func(acc float32, xs ...float32) float32 {
		for _, x := range xs {
			acc = dtype.Round(policy.Accum, acc+x)
		}
		return acc
	}
	own := func(s sums) float32 { return add(float32(s.before), s.sent[s.owner]*float32(len(s.sent))) }
	last := config.GradientAccumulationSteps - 1
	return []candidate{
		{fault.AccumDTypeIgnored, "the accumulators are what additions in the model's format give", func(s sums, _ int, _ dtype.DType) float32 {
			v := float32(s.before)
			for _, x := range s.sent {
				v = dtype.Round(policy.Param, v+x)
			}
			return v
		}},
		{fault.RingOrder, "the accumulators are what a ring gives, with partial sums in the wire format", func(s sums, _ int, wire dtype.DType) float32 {
			return add(float32(s.before), ring(s, wire))
		}},
		{fault.FP32CopyDiscarded, "each rank has added its own gradients alone", func(s sums, _ int, _ dtype.DType) float32 { return own(s) }},
		{fault.LastMicrobatchLocal, "each rank has added its own last micro-batch alone", func(s sums, micro int, _ dtype.DType) float32 {
			if micro == last {
				return own(s)
			}
			return add(float32(s.before), s.sent...)
		}},
		{fault.MicrostepOverwrite, "the accumulators hold one micro-step's sum alone", func(s sums, _ int, _ dtype.DType) float32 { return add(0, s.sent...) }},
	}
}

// suspectFold computes what each class would have made of the right contributions, and
// names those that give b's accumulators everywhere, in all micro-steps.
func (d *Difference) suspectFold() {
	for _, c := range d.candidates() {
		explains := d.a.training.world() == d.b.training.world() // else contributions are of other micro-batches
		for micro := 0; explains && micro < d.b.training.Config.GradientAccumulationSteps; micro++ {
			explains = d.explains(micro, c)
		}
		if explains {
			d.add(c.class, c.why)
		}
	}
	if len(d.Suspects) == 0 {
		d.add(fault.StaleTail, "something was added to some elements that nobody sent for them")
	}
}

// explains reports whether a class gives b's accumulators after a micro-step.
func (d *Difference) explains(micro int, c candidate) bool {
	plan, world := d.b.training.Plan, d.b.training.world()
	after, before := d.b.at(zero.LifeFold, (micro+1)*world), d.b.at(zero.LifeFold, micro*world)
	sent := make([]*view, world)
	for r := range sent {
		if sent[r] = d.a.at(zero.LifeWire, micro*world+r); sent[r] == nil {
			return false
		}
	}
	if after == nil {
		return false
	}
	s := sums{sent: make([]float32, world)}
	for b, iv := range plan.Buckets {
		for e := iv.Lo; e < iv.Hi; e++ {
			s.before, s.owner = before.value(e), plan.Owner(e)
			s.at, s.of = e-iv.Lo, iv.Len()
			for r := range sent {
				s.sent[r] = float32(sent[r].values[e])
			}
			if !same(float64(c.sum(s, micro, plan.Wire(b))), after.values[e]) {
				return false
			}
		}
	}
	return true
}

// ring is the sum of one element by a ring that cuts each bucket into one chunk for
// each rank and begins at the rank behind the chunk's number.
func ring(s sums, wire dtype.DType) float32 {
	world := len(s.sent)
	start := s.at*world/s.of + 1
	v := s.sent[start%world]
	for k := 1; k < world; k++ {
		v = dtype.Round(wire, v+s.sent[(start+k)%world])
	}
	return v
}
