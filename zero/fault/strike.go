package fault

import "github.com/zerogap/zerogap/zero"

// Strike is an effect of a fault: what was computed differs from what correct code
// makes of the same numbers.
type Strike struct {
	Life    zero.Life
	Step    int // from 1
	Micro   int // from 0, -1 after the last backward
	Rank    int
	Element int // the lowest that is affected, -1 for the norm and the coefficient
}

// Watch returns a laboratory with the same faults that tells f of each strike, from any
// goroutine. Faults of checkpointing, of skipped steps and of the noise schedule strike
// where the optimizer does not see them, and are not told.
func (l *Lab) Watch(f func(Strike)) *Lab {
	w := *l
	w.watch = f
	return &w
}

// struck tells of a strike of the carrier at the lowest of n elements for which differs
// holds; element k is at(k).
func (c *carrier) struck(l zero.Life, n int, at func(k int) int, differs func(k int) bool) {
	if c.lab.watch == nil {
		return
	}
	lowest := -1
	for k := range n {
		if e := at(k); differs(k) && (lowest < 0 || e < lowest) {
			lowest = e
		}
	}
	if lowest >= 0 {
		c.lab.watch(Strike{l, c.now.step, c.now.micro, c.now.rank, lowest})
	}
}

// same compares numbers, NaN with NaN as equal.
func same(a, b float64) bool { return a == b || a != a && b != b }
