package zero

import "sort"

// Interval is the run [Lo, Hi) of a flat element space.
type Interval struct{ Lo, Hi int }

// Len returns the number of elements.
func (i Interval) Len() int { return i.Hi - i.Lo }

// intersect returns the part of i that lies in j. It is within i also when it is
// empty.
func (i Interval) intersect(j Interval) Interval {
	lo := min(max(i.Lo, j.Lo), i.Hi)
	return Interval{lo, max(lo, min(i.Hi, j.Hi))}
}

// shift returns i moved by n elements.
func (i Interval) shift(n int) Interval { return Interval{i.Lo + n, i.Hi + n} }

// Region is a set of elements: runs of the flat element space, ascending, apart
// and not empty. Its elements are counted in ascending order; arrays over a
// region are indexed by that count, the offset.
type Region struct {
	Runs []Interval
	at   []int // offset of each run's first element
	n    int
}

func (r *Region) add(iv Interval) {
	if iv.Len() > 0 {
		r.Runs, r.at = append(r.Runs, iv), append(r.at, r.n)
		r.n += iv.Len()
	}
}

// Len returns the number of elements.
func (r Region) Len() int { return r.n }

// offset returns how many elements of r lie before element e.
func (r Region) offset(e int) int {
	k := sort.Search(len(r.Runs), func(k int) bool { return r.Runs[k].Hi > e })
	if k == len(r.Runs) {
		return r.n
	}
	return r.at[k] + max(0, e-r.Runs[k].Lo)
}

// cut returns the offsets of r's elements in iv.
func (r Region) cut(iv Interval) Interval { return Interval{r.offset(iv.Lo), r.offset(iv.Hi)} }

// each calls f with the runs of r's elements at the offsets part, and the offset
// of each run's first element.
func (r Region) each(part Interval, f func(iv Interval, at int)) {
	k := sort.Search(len(r.Runs), func(k int) bool { return r.at[k]+r.Runs[k].Len() > part.Lo })
	for ; k < len(r.Runs) && r.at[k] < part.Hi; k++ {
		iv := r.Runs[k].intersect(part.shift(r.Runs[k].Lo - r.at[k]))
		f(iv, r.offset(iv.Lo))
	}
}
