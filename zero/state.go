package zero

import (
	"slices"
	"sort"
)

// update is a run of a shard whose elements have one group.
type update struct {
	Interval // offsets in the shard
	group    int
	state    [][]float32 // views, in the order of the rule's States
	at       []int       // where each view begins in its array
}

// states are a shard's arrays for the rules' states, one for each name that a
// rule of its parameters has.
type states struct {
	names  []string
	arrays [][]float32
}

func (s *states) index(name string) int {
	k := slices.Index(s.names, name)
	if k < 0 {
		k = len(s.names)
		s.names, s.arrays = append(s.names, name), append(s.arrays, nil)
	}
	return k
}

// updates cuts region into runs of one group, each at most chunk long.
func updates(plan *Plan, region Region) []update {
	var all []update
	for _, run := range region.Runs {
		for _, sp := range plan.spansIn(run) {
			part, group := region.cut(run.intersect(sp.Interval)), sp.group
			for part.Len() > 0 {
				if n := len(all); n == 0 || all[n-1].group != group || all[n-1].Len() == chunk {
					all = append(all, update{Interval: Interval{part.Lo, part.Lo}, group: group})
				}
				u := &all[len(all)-1]
				n := min(part.Len(), chunk-u.Len())
				u.Hi += n
				part.Lo += n
			}
		}
	}
	return all
}

// allocate makes the arrays and gives each update its views of them.
func (s *states) allocate(all []update, groups []Group, l *ledger) {
	lens := map[string]int{}
	for _, u := range all {
		for _, name := range groups[u.group].Rule.States() {
			s.index(name)
			lens[name] += u.Len()
		}
	}
	for k, name := range s.names {
		s.arrays[k] = l.make(kindMoments, 0, lens[name]).F32
	}
	at := make([]int, len(s.names))
	for i := range all {
		u := &all[i]
		for _, name := range groups[u.group].Rule.States() {
			k := s.index(name)
			lo, hi := at[k], at[k]+u.Len()
			u.state, u.at = append(u.state, s.arrays[k][lo:hi:hi]), append(u.at, lo)
			at[k] = hi
		}
	}
}

// updateAt returns the first update that ends beyond an offset.
func (s *shard) updateAt(offset int) int {
	return sort.Search(len(s.updates), func(i int) bool { return s.updates[i].Hi > offset })
}

// eachState calls f with the runs of state k of the elements at the offsets part,
// and the place of each run in part. The elements are of one parameter.
func (s *shard) eachState(k int, part Interval, f func(state []float32, at int)) {
	for _, u := range s.updates[s.updateAt(part.Lo):] {
		run := part.intersect(u.Interval)
		if run.Len() == 0 {
			return
		}
		f(u.state[k][run.Lo-u.Lo:run.Hi-u.Lo], run.Lo-part.Lo)
	}
}
