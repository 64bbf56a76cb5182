package zero

import (
	"slices"
	"sort"
)

// segment is a run of the element space that one rank owns.
type segment struct {
	Interval
	owner int
}

// deal gives the elements to the ranks, in whole norm blocks and equal shares.
// By default rank r gets the r-th run of the element space. With
// round_robin_gradients the parameters are put into the order of their number
// modulo the world size first; a block counts as a part of the parameter that it
// begins in. The element space itself, and with it the norm and the buckets,
// stays as it is.
func (p *Plan) deal() {
	blocks := ceilDiv(p.Elements, p.NormBlock)
	share := ceilDiv(blocks, p.World)
	p.Partition = share * p.NormBlock
	at := 0 // blocks that have been given away
	for _, run := range p.dealt(blocks) {
		for run.Len() > 0 {
			owner := at / share
			n := min(run.Len(), (owner+1)*share-at)
			p.segments = append(p.segments, segment{p.elementsOf(Interval{run.Lo, run.Lo + n}), owner})
			run.Lo += n
			at += n
		}
	}
	p.segments = joined(p.segments)
	p.ordered = slices.IsSortedFunc(p.segments, func(a, b segment) int { return a.owner - b.owner })
	p.owned = make([]Region, p.World)
	for _, s := range p.segments {
		p.owned[s.owner].add(s.Interval)
	}
}

// joined sorts segments and joins neighbours of one owner.
func joined(segments []segment) []segment {
	slices.SortFunc(segments, func(a, b segment) int { return a.Lo - b.Lo })
	var all []segment
	for _, s := range segments {
		if n := len(all); n > 0 && all[n-1].owner == s.owner {
			all[n-1].Hi = s.Hi
			continue
		}
		all = append(all, s)
	}
	return all
}

// dealt returns runs of blocks in the order in which they are given away.
func (p *Plan) dealt(blocks int) []Interval {
	if !p.cfg.ZeroOptimization.RoundRobinGradients {
		return []Interval{{0, blocks}}
	}
	var runs []Interval
	for turn := range p.World {
		for k := turn; k < len(p.spans); k += p.World {
			s := p.spans[k]
			runs = append(runs, Interval{ceilDiv(s.Lo, p.NormBlock), ceilDiv(s.Hi, p.NormBlock)})
		}
	}
	return runs
}

// elementsOf returns the elements of a run of norm blocks.
func (p *Plan) elementsOf(blocks Interval) Interval {
	return Interval{blocks.Lo * p.NormBlock, min(blocks.Hi*p.NormBlock, p.Elements)}
}

// segmentsIn returns the segments that have a part in iv, ascending.
func (p *Plan) segmentsIn(iv Interval) []segment {
	lo := sort.Search(len(p.segments), func(k int) bool { return p.segments[k].Hi > iv.Lo })
	hi := sort.Search(len(p.segments), func(k int) bool { return p.segments[k].Lo >= iv.Hi })
	return p.segments[lo:max(lo, hi)]
}

// owners writes into bounds (World+1 long) where each rank's elements of iv begin
// when they are put in order of their owners.
func (p *Plan) owners(iv Interval, bounds []int) {
	clear(bounds)
	for _, s := range p.segmentsIn(iv) {
		bounds[s.owner+1] += s.intersect(iv).Len()
	}
	for r := range p.World {
		bounds[r+1] += bounds[r]
	}
}

// ownersIn returns how many ranks own elements of iv.
func (p *Plan) ownersIn(iv Interval) int {
	ranks := map[int]bool{}
	for _, s := range p.segmentsIn(iv) {
		ranks[s.owner] = true
	}
	return len(ranks)
}

// place is where a run of elements lies in a bucket buffer.
type place struct {
	Interval
	at int
}

// places returns where the elements of iv lie in a buffer in order of their
// owners, ascending by element.
func (p *Plan) places(iv Interval) []place {
	at := make([]int, p.World+1)
	p.owners(iv, at)
	var all []place
	for _, s := range p.segmentsIn(iv) {
		part := s.intersect(iv)
		all = append(all, place{part, at[s.owner]})
		at[s.owner] += part.Len()
	}
	return all
}

// cutBuckets groups whole parameters, from the last to the first, into buckets
// of at most reduce_bucket_size elements. A larger parameter is cut into buckets
// of its own, and with contiguous_gradients off every parameter has its own. No
// bucket mixes parameters of two formats.
func (p *Plan) cutBuckets() {
	z := p.cfg.ZeroOptimization
	size, join := z.ReduceBucketSize, z.ContiguousGradients || z.Stage == 0
	var open Interval
	flush := func() {
		if open.Len() > 0 {
			p.Buckets = append(p.Buckets, open)
		}
		open = Interval{}
	}
	for _, s := range slices.Backward(p.spans) {
		if open.Len()+s.Len() > size || !join || s.Hi == p.classOf(s.Lo).Hi {
			flush()
		}
		if s.Len() > size {
			for hi := s.Hi; hi > s.Lo; hi -= size {
				p.Buckets = append(p.Buckets, Interval{max(s.Lo, hi-size), hi})
			}
			continue
		}
		if open.Len() == 0 {
			open.Hi = s.Hi
		}
		open.Lo = s.Lo
	}
	flush()
}

// expectedOrder lists the buckets in the order in which they become full when
// gradients become ready in reverse registration order: that of Buckets, but for
// parameters of several formats.
func (p *Plan) expectedOrder() []int {
	order := make([]int, len(p.Buckets))
	for b := range order {
		order[b] = b
	}
	lowest := func(b int) int { return p.spansIn(p.Buckets[b])[0].param }
	slices.SortStableFunc(order, func(a, b int) int { return lowest(b) - lowest(a) })
	return order
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
