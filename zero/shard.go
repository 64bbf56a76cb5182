package zero

import (
	"math"
	"sync"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// chunk is how many elements of a shard are worked on at a time: their gradient
// stays in the cache as float32, whatever the accumulators' format. A multiple of
// every norm block.
const chunk = 1 << 14

// shard is what a rank sums and updates: its partition in stages 1 and 2, the
// whole element space in stage 0. Its arrays are indexed by offset in the region.
type shard struct {
	region  Region
	own     Region // the partition, for the norm and the gather
	acc     dtype.Buffer
	master  []float32
	states  states
	updates []update
	norms   []normPart

	mu      sync.Mutex
	scratch []*[chunk]float32 // free ones; at most one per worker exists
}

// normPart is a run of the partition whose block sums are made at a time.
type normPart struct {
	Interval     // elements
	first    int // number of its first block within the partition
}

func newShard(plan *Plan, rank int, groups []Group, l *ledger) *shard {
	s := &shard{region: plan.accumulates(rank), own: plan.Owned(rank)}
	s.acc = l.make(kindAccumulators, plan.policy.Accum, s.region.Len())
	s.master = l.make(kindMaster, plan.policy.Master, s.region.Len()).F32
	s.updates = updates(plan, s.region)
	s.states.allocate(s.updates, groups, l)
	for _, run := range s.own.Runs {
		for lo := run.Lo; lo < run.Hi; lo += chunk {
			s.norms = append(s.norms, normPart{Interval{lo, min(lo+chunk, run.Hi)}, s.own.offset(lo) / plan.NormBlock})
		}
	}
	return s
}

// load copies the initial weights of the parameter at sp to the master weights,
// as far as they are this rank's.
func (s *shard) load(sp Interval, init []float32, plan *Plan) {
	s.region.each(s.region.cut(sp), func(iv Interval, at int) {
		dst := s.master[at : at+iv.Len()]
		copy(dst, init[iv.Lo-sp.Lo:])
		if !plan.cfg.ZeroOptimization.LoadFromFP32Weights {
			d := plan.classOf(sp.Lo).param
			for i, w := range dst {
				dst[i] = dtype.Round(d, w)
			}
		}
	})
}

// segment returns the accumulators of the part of iv that this rank sums.
func (s *shard) segment(iv Interval) dtype.Buffer {
	part := s.region.cut(iv)
	return s.acc.Slice(part.Lo, part.Hi)
}

// clear makes the accumulators exact zeros.
func (s *shard) clear() { s.acc.Clear() }

// gradient turns accumulated sums into the gradient a rule takes.
type gradient struct {
	divisor float64 // micro-batches (for a mean) times loss scale
	clip    float64 // coefficient, at most 1
}

// read writes the gradient of acc into dst.
func (g gradient) read(dst []float32, acc dtype.Buffer) {
	kernel.Widen(dst, acc)
	g.apply(dst)
}

// view returns the gradient of acc, in dst unless acc is it already.
func (g gradient) view(dst []float32, acc dtype.Buffer) []float32 {
	if acc.DType == dtype.F32 && g.divisor == 1 && g.clip == 1 {
		return acc.F32
	}
	g.read(dst, acc)
	return dst
}

// take is read for a gradient that is not needed afterwards: its memory may be
// acc's.
func (g gradient) take(dst []float32, acc dtype.Buffer) []float32 {
	if acc.DType == dtype.F32 {
		g.apply(acc.F32)
		return acc.F32
	}
	g.read(dst, acc)
	return dst
}

// apply makes sums a gradient. A coefficient of 1 leaves bits alone.
func (g gradient) apply(x []float32) {
	divide(x, g.divisor)
	if g.clip != 1 {
		for i, v := range x {
			x[i] = float32(float64(v) * g.clip)
		}
	}
}

// divide divides x by d: exactly for a power of two, otherwise in float64, rounded
// once, which is the rounding of the true quotient.
func divide(x []float32, d float64) {
	if frac, exp := math.Frexp(d); frac == 0.5 && exp-1 <= 126 && exp-1 >= -127 {
		if exp != 1 {
			kernel.Scale(x, float32(math.Ldexp(1, 1-exp)))
		}
		return
	}
	for i, v := range x {
		x[i] = float32(float64(v) / d)
	}
}

// parallel calls f with every number below n and room for a chunk of gradient,
// possibly several at once.
func (s *shard) parallel(n int, f func(i int, scratch *[chunk]float32)) {
	kernel.Parallel(n, 1, func(lo, hi int) {
		scratch := s.borrow()
		defer s.giveBack(scratch)
		for i := lo; i < hi; i++ {
			f(i, scratch)
		}
	})
}

// borrow returns room for one chunk.
func (s *shard) borrow() *[chunk]float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.scratch); n > 0 {
		b := s.scratch[n-1]
		s.scratch = s.scratch[:n-1]
		return b
	}
	return new([chunk]float32)
}

func (s *shard) giveBack(b *[chunk]float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scratch = append(s.scratch, b)
}

// sumSquares writes the sum of squares of each norm block of the partition.
func (s *shard) sumSquares(sums []float64, block int, g gradient) {
	s.parallel(len(s.norms), func(i int, scratch *[chunk]float32) {
		part := s.norms[i]
		grad := g.view(scratch[:part.Len()], s.segment(part.Interval))
		kernel.SumSquares(sums[part.first:part.first+ceilDiv(len(grad), block)], grad, block)
	})
}

// firstNonFinite returns the first element of norm block b of the partition whose
// gradient is Inf or NaN, -1 when none is.
func (s *shard) firstNonFinite(b, block int, g gradient) int {
	first := -1
	s.own.each(Interval{b * block, min((b+1)*block, s.own.Len())}, func(iv Interval, _ int) { // one run
		grad := make([]float32, iv.Len())
		g.read(grad, s.segment(iv))
		if i := firstNonFinite(dtype.OfFloat32(grad)); i >= 0 {
			first = iv.Lo + i
		}
	})
	return first
}

// update applies the groups' rules to the whole shard and clears the accumulators.
// Where the compute copies lie as the shard does, in values (else empty), they are
// rounded here. Each chunk comes into the cache once for all of that.
func (s *shard) update(groups []Group, step int, lr float64, g gradient, values dtype.Buffer) {
	s.parallel(len(s.updates), func(i int, scratch *[chunk]float32) {
		u := s.updates[i]
		acc := s.acc.Slice(u.Lo, u.Hi)
		grad := g.take(scratch[:u.Len()], acc)
		group := groups[u.group]
		group.Rule.Update(step, lr*group.LRScale, s.master[u.Lo:u.Hi:u.Hi], grad[:u.Len():u.Len()], u.state)
		acc.Clear()
		if values.Len() > 0 {
			s.round(values.Slice(u.Lo, u.Hi), u.Interval)
		}
	})
}

// round writes the compute copy of the elements at the offsets part into dst.
func (s *shard) round(dst dtype.Buffer, part Interval) {
	kernel.Round(dst, s.master[part.Lo:part.Hi])
}
