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

// DefaultLate is how slow the network is beside the backward, unless Late says
// otherwise: half of the reductions are overtaken.
const DefaultLate = 0.5

// Late returns a laboratory with the same faults and a network of another speed: what
// is not waited for is overtaken with probability late, after a part of it that is
// anything from 0 to 1. Above 1 the network is so many times too slow: all is overtaken,
// when at most 1/late of it was done.
func (l *Lab) Late(late float64) *Lab {
	w := *l
	w.late = late
	return &w
}

// overtaken draws whether something comes too late, and how much of n elements was done
// by then: a part of the time that it takes, evenly from 0 to 1/late, has passed.
func (l *Lab) overtaken(r *rand.Rand, n int) (done int, ok bool) {
	passed := r.Float64() / l.late
	if !(passed < 1) {
		return n, false
	}
	return int(passed * float64(n)), true
}
