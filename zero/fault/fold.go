package fault

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero"
)

// span is a run of elements of one bucket that is being folded.
type span struct {
	bucket zero.Interval
	places []int // of the elements
	micro  int   // from 0
	rank   int
	wire   dtype.DType
}

// folder adds contributions to accumulators, in four steps that a fault can replace.
type folder struct {
	before  func(acc dtype.Buffer, s span)
	pick    func(xs [][]float32, s span) [][]float32
	combine func(xs [][]float32, s span) [][]float32
	add     func(acc dtype.Buffer, xs [][]float32)
}

// run folds xs, by rank, into acc.
func (f folder) run(acc dtype.Buffer, xs [][]float32, s span) {
	if f.before != nil {
		f.before(acc, s)
	}
	if f.pick != nil {
		xs = f.pick(xs, s)
	}
	if f.combine != nil && len(xs) > 1 {
		xs = f.combine(xs, s)
	}
	f.add(acc, xs)
}

func (c *carrier) newFolder() folder {
	f := folder{add: inOrder}
	world := float32(c.plan.World)
	last := c.desk.Config.GradientAccumulationSteps - 1
	if c.lab.has(MicrostepOverwrite) {
		f.before = func(acc dtype.Buffer, s span) {
			if s.micro > 0 {
				acc.Clear()
			}
		}
	}
	if c.lab.has(FP32CopyDiscarded) {
		f.pick = func(xs [][]float32, s span) [][]float32 { return own(xs, s.rank, world) }
	}
	if c.lab.has(LastMicrobatchLocal) {
		f.pick = func(xs [][]float32, s span) [][]float32 {
			if s.micro == last {
				return own(xs, s.rank, world)
			}
			return xs
		}
	}
	if c.lab.has(RingOrder) {
		f.combine = ring
	}
	if c.lab.has(AccumDTypeIgnored) {
		model := c.desk.Policy.Param
		f.add = func(acc dtype.Buffer, xs [][]float32) { inModelFormat(model, acc, xs) }
	}
	if c.lab.has(PredivideLowPrecision) {
		add := f.add // what was divided counts for the whole
		f.add = func(acc dtype.Buffer, xs [][]float32) {
			for _, x := range xs {
				kernel.Scale(x, world)
			}
			add(acc, xs)
		}
	}
	return f
}

// inOrder is the right fold: left to right, in order of the ranks.
func inOrder(acc dtype.Buffer, xs [][]float32) {
	buffers := make([]dtype.Buffer, len(xs))
	for r, x := range xs {
		buffers[r] = dtype.OfFloat32(x)
	}
	kernel.Fold(acc, buffers)
}

// own is this rank's contribution in the place of all: the division by the number of
// micro-batches comes later, so it counts world times.
func own(xs [][]float32, rank int, world float32) [][]float32 {
	kernel.Scale(xs[rank], world)
	return xs[rank : rank+1]
}

// ring sums as a ring does: a bucket is cut into as many chunks as there are ranks,
// chunk k begins its way at rank k+1, and the partial sum is rounded to the wire format
// at each rank.
func ring(xs [][]float32, s span) [][]float32 {
	world := len(xs)
	sum := make([]float32, len(xs[0]))
	for i, place := range s.places {
		// A layout may have moved an element out of its own bucket.
		within := min(max(0, place-s.bucket.Lo), s.bucket.Len()-1)
		start := within*world/s.bucket.Len() + 1
		v := xs[start%world][i]
		for k := 1; k < world; k++ {
			v = dtype.Round(s.wire, v+xs[(start+k)%world][i])
		}
		sum[i] = v
	}
	return [][]float32{sum}
}

// inModelFormat adds in the model's format, whatever the accumulators' is.
func inModelFormat(model dtype.DType, acc dtype.Buffer, xs [][]float32) {
	for i := range acc.Len() {
		v := float32(acc.At(i))
		for _, x := range xs {
			v = dtype.Round(model, v+x[i])
		}
		set(acc, i, v)
	}
}
