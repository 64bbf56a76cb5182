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
// whole element space in stage 0.
type shard struct {
	Interval
	own    Interval // the partition, for the norm and the gather
	acc    dtype.Buffer
	master []float32
	state  [][]float32

	mu      sync.Mutex
	scratch []*[chunk]float32 // free ones; at most one per worker exists
}

func newShard(params []Param, plan *Plan, rank int, rule Rule, l *ledger) *shard {
	s := &shard{Interval: plan.accumulates(rank), own: plan.Owned(rank)}
	s.acc = l.make(kindAccumulators, plan.policy.Accum, s.Len())
	s.master = l.make(kindMaster, plan.policy.Master, s.Len()).F32
	for range rule.States() {
		s.state = append(s.state, l.make(kindMoments, dtype.F32, s.Len()).F32)
	}
	for _, sp := range plan.spansIn(s.Interval) {
		iv := s.intersect(sp.Interval)
		dst := s.master[iv.Lo-s.Lo : iv.Hi-s.Lo]
		copy(dst, params[sp.param].Init[iv.Lo-sp.Lo:])
		if !plan.cfg.ZeroOptimization.LoadFromFP32Weights {
			for i, w := range dst {
				dst[i] = dtype.Round(plan.policy.Param, w)
			}
		}
	}
	return s
}

// segment returns the accumulators of the part of iv that this rank sums.
func (s *shard) segment(iv Interval) dtype.Buffer {
	iv = s.intersect(iv)
	return s.acc.Slice(iv.Lo-s.Lo, iv.Hi-s.Lo)
}

// clear makes the accumulators exact zeros.
func (s *shard) clear() { s.acc.Clear() }

// gradient turns accumulated sums into the gradient a rule takes.
type gradient struct {
	divisor float64 // micro-batches (for a mean) times loss scale
	clip    float64 // coefficient, at most 1
}

// read writes the gradient of acc into dst. The division is exact for a power of
// two; otherwise it is made in float64 and rounded once, which is the rounding of
// the true quotient. A coefficient of 1 leaves bits alone.
func (g gradient) read(dst []float32, acc dtype.Buffer) {
	kernel.Widen(dst, acc)
	if frac, exp := math.Frexp(g.divisor); frac == 0.5 && exp-1 <= 126 && exp-1 >= -127 {
		if exp != 1 {
			kernel.Scale(dst, float32(math.Ldexp(1, 1-exp)))
		}
	} else {
		for i, v := range dst {
			dst[i] = float32(float64(v) / g.divisor)
		}
	}
	if g.clip != 1 {
		for i, v := range dst {
			dst[i] = float32(float64(v) * g.clip)
		}
	}
}

// each calls f with the gradient of every chunk of iv, possibly at once. iv lies
// within the shard; chunks start at iv.Lo.
func (s *shard) each(iv Interval, g gradient, f func(part Interval, grad []float32)) {
	kernel.Parallel(ceilDiv(iv.Len(), chunk), 1, func(lo, hi int) {
		scratch := s.borrow()
		defer s.giveBack(scratch)
		for c := lo; c < hi; c++ {
			part := Interval{iv.Lo + c*chunk, min(iv.Lo+(c+1)*chunk, iv.Hi)}
			grad := scratch[:part.Len()]
			g.read(grad, s.segment(part))
			f(part, grad)
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
	s.each(s.own, g, func(part Interval, grad []float32) {
		first := (part.Lo - s.own.Lo) / block
		kernel.SumSquares(sums[first:first+ceilDiv(len(grad), block)], grad, block)
	})
}

// firstNonFinite returns the first element of norm block b of the partition whose
// gradient is Inf or NaN, -1 when none is.
func (s *shard) firstNonFinite(b, block int, g gradient) int {
	part := Interval{s.own.Lo + b*block, s.own.Lo + (b+1)*block}.intersect(s.own)
	grad := make([]float32, part.Len())
	g.read(grad, s.segment(part))
	if i := firstNonFinite(dtype.OfFloat32(grad)); i >= 0 {
		return part.Lo + i
	}
	return -1
}

// update applies the rule to the whole shard.
func (s *shard) update(rule Rule, step int, lr float64, g gradient) {
	s.each(s.Interval, g, func(part Interval, grad []float32) {
		lo, hi := part.Lo-s.Lo, part.Hi-s.Lo
		state := make([][]float32, len(s.state))
		for k, x := range s.state {
			state[k] = x[lo:hi:hi]
		}
		rule.Update(step, lr, s.master[lo:hi:hi], grad, state)
	})
}

// round writes the compute copy of iv, which lies within the shard, into dst.
func (s *shard) round(dst dtype.Buffer, iv Interval) {
	kernel.Round(dst, s.master[iv.Lo-s.Lo:iv.Hi-s.Lo])
}
