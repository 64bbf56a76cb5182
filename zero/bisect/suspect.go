package bisect

import (
	"math"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/fault"
)

// suspect names the classes that look like the difference: b is held against what each
// would have made of the numbers of a.
func (d *Difference) suspect() {
	switch d.Life {
	case zero.LifeLocal:
		d.suspectLocal()
	case zero.LifeCopy:
		d.suspectCopy()
	case zero.LifeWire:
		d.suspectWire()
	case zero.LifeFold:
		d.suspectFold()
	case zero.LifeNorm:
		d.suspectNorm()
	case zero.LifeClip:
		if d.b.training.Config.FP16.Enabled && d.b.training.Config.FP16.LossScale == 0 {
			d.add(fault.ClipAfterUpdateScale, "norms are equal and the coefficients are not, with a dynamic loss scale")
		}
	case zero.LifeUpdate:
		d.suspectUpdate()
	}
}

func (d *Difference) add(class, why string) { d.Suspects = append(d.Suspects, Suspect{class, why}) }

// suspectLocal tells lost gradients from other ones.
func (d *Difference) suspectLocal() {
	plan, changed := d.a.training.Plan, 0
	later := false // a gradient came after one that was lost
	for _, part := range d.parts() {
		va, vb := d.a.at(d.Life, part), d.b.at(d.Life, part)
		if va == nil {
			continue
		}
		lost := false
		for _, lo := range va.order {
			i, _ := plan.ParamAt(lo)
			s, _ := plan.Span(i)
			if vb == nil || !vb.present[lo] {
				lost = true
				d.Missing++
				continue
			}
			later = later || lost
			for e := s.Lo; e < s.Hi; e++ {
				if !same(va.values[e], vb.values[e]) {
					changed++
				}
			}
		}
	}
	switch {
	case d.Missing == 0 || changed > 0:
		if !d.someEqual() {
			d.add(fault.ScheduleInBF16, "every parameter's gradient differs: the network was given other inputs")
		}
	case later:
		d.add(fault.ReentrantNoGradInput, "some parameters have no gradient, and ones that become ready later have")
	default:
		d.add(fault.FirstBackwardEpilogue, "from some point of the backward on no parameter has a gradient")
	}
}

// someEqual reports whether a parameter's gradient is the same in both.
func (d *Difference) someEqual() bool {
	va, vb := d.a.at(d.Life, d.point.part), d.b.at(d.Life, d.point.part)
	plan := d.a.training.Plan
	for i := range plan.Params() {
		s, ok := plan.Span(i)
		equal, zeros := ok, true
		for e := s.Lo; e < s.Hi && equal; e++ {
			equal = same(va.value(e), vb.value(e))
			zeros = zeros && va.value(e) == 0
		}
		if equal && !zeros {
			return true
		}
	}
	return false
}

// suspectCopy tells moved values from rounded ones.
func (d *Difference) suspectCopy() {
	world := float32(d.b.training.world())
	divided, moved := true, true
	buckets := map[int]bool{}
	for _, part := range d.parts() {
		va, vb := d.a.at(d.Life, part), d.b.at(d.Life, part)
		if va == nil || vb == nil {
			return
		}
		var counts = map[float64]int{}
		for e, x := range va.values {
			y := vb.values[e]
			counts[x]++
			counts[y]--
			if same(x, y) {
				continue
			}
			buckets[vb.bucket[e]] = true
			wire := d.b.training.Plan.Wire(vb.bucket[e])
			divided = divided && same(float64(dtype.Round(wire, float32(x)/world)), y)
		}
		for _, n := range counts {
			moved = moved && n == 0
		}
	}
	switch {
	case divided && world > 1:
		d.add(fault.PredivideLowPrecision, "what differs is divided by the number of ranks, and rounded again")
	case moved:
		d.add(fault.HookOrderLayout, "the same values lie at other places")
	case len(buckets) == 1:
		d.add(fault.NotReadyShift, "one bucket alone differs: its values have moved and some are gone")
	default:
		d.add(fault.HookOrderLayout, "values lie at other places")
	}
}

// suspectWire compares what was sent with what other fills of the buffer hold.
func (d *Difference) suspectWire() {
	plan := d.b.training.Plan
	// How many elements that differ are explained by the fill so many later.
	explained, total, big := map[int]int{}, 0, true
	for _, part := range d.parts() {
		va, vb, copied := d.a.at(d.Life, part), d.b.at(d.Life, part), d.b.at(zero.LifeCopy, part)
		if va == nil || vb == nil || copied == nil {
			return
		}
		for e := range vb.values {
			if same(va.values[e], vb.values[e]) {
				continue
			}
			total++
			k := vb.bucket[e]
			for _, later := range []int{1, 2} {
				if k+later >= len(plan.Buckets) {
					continue
				}
				other := plan.Buckets[k+later]
				if at := other.Lo + e - plan.Buckets[k].Lo; at < other.Hi && same(copied.values[at], vb.values[e]) {
					explained[later]++
				}
			}
			i, _ := plan.ParamAt(e)
			s, _ := plan.Span(i)
			big = big && s.Len() > d.b.training.Config.ZeroOptimization.ReduceBucketSize
		}
	}
	switch {
	case explained[2] == total:
		d.add(fault.ReuseInFlight, "what is sent was filled into the buffer two buckets later")
	case explained[1] == total:
		d.add(fault.PingpongReset, "what is sent was filled in with the next bucket")
	case big:
		d.add(fault.OversizeLifetime, "only parameters larger than a bucket differ, and their values are in no bucket")
	default:
		d.add(fault.OneProducerWait, "parts of buckets hold what was in the buffer before")
	}
}

// suspectNorm tells a sentinel from a share.
func (d *Difference) suspectNorm() {
	if !finite(d.A) && finite(d.B) {
		d.add(fault.NaNSentinel, "a norm that is not finite has become one that is")
		return
	}
	var squares float64
	for r := range d.b.training.world() {
		if v := d.b.at(zero.LifeNorm, r); v != nil {
			squares += v.values[0] * v.values[0]
		}
	}
	if math.Abs(math.Sqrt(squares)-d.A) < 1e-6*d.A {
		d.add(fault.NormLocal, "the squares of the ranks' norms add up to that of the right one")
	}
}

// suspectUpdate looks at which shares of the weights a step with a non-finite norm has
// changed.
func (d *Difference) suspectUpdate() {
	norm := d.a.at(zero.LifeNorm, 0)
	if norm == nil || finite(norm.values[0]) {
		return
	}
	va, vb, plan := d.a.at(zero.LifeUpdate, 0), d.b.at(zero.LifeUpdate, 0), d.b.training.Plan
	changed := map[int]bool{}
	for e := range vb.values {
		if !same(va.values[e], vb.values[e]) {
			changed[plan.Owner(e)] = true
		}
	}
	if len(changed) == plan.World {
		d.add(fault.NoSkip, "a step with a norm that is not finite has changed the weights")
	} else {
		d.add(fault.RankLocalSkip, "a step with a norm that is not finite has changed the weights of some ranks")
	}
}

func finite(x float64) bool { return x-x == 0 }
