package fault

import (
	"hash/fnv"
	"math/rand/v2"
)

// moment is when and where something is left to chance.
type moment struct{ step, micro, bucket, rank int }

// draw returns the stream of a moment for one purpose.
func (l *Lab) draw(what string, m moment) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(what))
	key := uint64(m.step)<<40 ^ uint64(m.micro)<<28 ^ uint64(m.bucket)<<8 ^ uint64(m.rank)
	return rand.New(rand.NewPCG(l.seed^h.Sum64(), key*0x9e3779b97f4a7c15+1))
}

// DefaultLate is the chance that what should have been waited for has not happened,
// unless Late says otherwise.
const DefaultLate = 0.5

// Late returns a laboratory with the same faults in which races are lost with
// probability p, from 0 to 1: close to 1 where a backward is much faster than the
// network.
func (l *Lab) Late(p float64) *Lab {
	w := *l
	w.late = p
	return &w
}

// overtaken draws whether something comes too late, and how much of n elements was done
// by then.
func (l *Lab) overtaken(r *rand.Rand, n int) (done int, ok bool) {
	if r.Float64() >= l.late {
		return n, false
	}
	return r.IntN(n), true
}
