package zero

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/zerogap/zerogap/zero/comm"
)

// Limits of the norm block, see normBlock.
const (
	maxNormBlock  = 1024
	normBlockPart = 1 << 16
)

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

// span is a trainable parameter's place in the flat element space. Parameters
// without elements have none.
type span struct {
	param int // index into the list given to New
	Interval
}

// Plan is the layout of a training: where every element lives, who owns it, and
// in which buckets gradients travel. It is a pure function of the parameters'
// names, shapes and order, the Config and the world size.
//
// The flat element space holds the trainable parameters in registration order.
// Partition r of W is the r-th of W runs of equal length; the length is a
// multiple of NormBlock, so the last partitions may reach beyond the elements.
// That padding is arithmetic only: it has no memory and enters no computation.
type Plan struct {
	World     int
	Elements  int // trainable elements
	NormBlock int // elements in one block of the norm
	Partition int // elements in one partition, with padding
	// Buckets cover the element space from its end to its start: reverse
	// registration order. Each is at most reduce_bucket_size long and never
	// mixes pieces of a parameter larger than that with anything else.
	Buckets []Interval

	cfg    Config
	policy Policy
	frozen int // elements of frozen parameters
	names  []string
	spans  []span // ascending
	place  []int  // param index -> index into spans, -1 when it has none
}

// NewPlan lays out params, of which it uses Name, Shape and Frozen.
func NewPlan(params []Param, cfg Config, world int) (*Plan, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if world < 1 {
		return nil, fmt.Errorf("world size %d: want at least 1", world)
	}
	p := &Plan{World: world, cfg: cfg, policy: cfg.Policy()}
	trainable := false
	for i, param := range params {
		n, err := param.Len()
		if err != nil {
			return nil, err
		}
		p.names = append(p.names, param.Name)
		p.place = append(p.place, -1)
		if param.Frozen {
			p.frozen += n
			continue
		}
		trainable = true
		if n > 0 {
			p.place[i] = len(p.spans)
			p.spans = append(p.spans, span{i, Interval{p.Elements, p.Elements + n}})
			p.Elements += n
		}
	}
	switch {
	case len(params) == 0:
		return nil, errors.New("no parameters to train: the list is empty")
	case !trainable:
		return nil, fmt.Errorf("no parameters to train: all %d are frozen", len(params))
	}
	p.NormBlock = normBlock(p.Elements)
	blocks := ceilDiv(p.Elements, p.NormBlock)
	p.Partition = ceilDiv(blocks, world) * p.NormBlock
	p.Buckets = cutBuckets(p.spans, cfg.ZeroOptimization.ReduceBucketSize)
	return p, nil
}

// normBlock returns the largest power of two up to elements/65536, within 1 and
// 1024. It depends on the model alone, so block sums are the same at any world
// size; small models get blocks of one element and almost no padding.
func normBlock(elements int) int {
	b := 1
	for b < maxNormBlock && 2*b <= elements/normBlockPart {
		b *= 2
	}
	return b
}

// cutBuckets groups whole parameters, from the last to the first, into buckets
// of at most size elements. A larger parameter is cut into buckets of its own.
func cutBuckets(spans []span, size int) []Interval {
	var buckets []Interval
	var open Interval
	flush := func() {
		if open.Len() > 0 {
			buckets = append(buckets, open)
		}
		open = Interval{}
	}
	for _, s := range slices.Backward(spans) {
		if open.Len()+s.Len() > size {
			flush()
		}
		if s.Len() > size {
			for hi := s.Hi; hi > s.Lo; hi -= size {
				buckets = append(buckets, Interval{max(s.Lo, hi-size), hi})
			}
			continue
		}
		if open.Len() == 0 {
			open.Hi = s.Hi
		}
		open.Lo = s.Lo
	}
	flush()
	return buckets
}

// Owned returns the elements of rank's partition that exist.
func (p *Plan) Owned(rank int) Interval {
	return Interval{0, p.Elements}.intersect(Interval{rank * p.Partition, (rank + 1) * p.Partition})
}

// Padding returns how many elements the partitions reach beyond the last one.
func (p *Plan) Padding() int { return p.Partition*p.World - p.Elements }

// BucketLen returns the length of the longest bucket.
func (p *Plan) BucketLen() int {
	n := 0
	for _, b := range p.Buckets {
		n = max(n, b.Len())
	}
	return n
}

// owners writes the borders between owners inside iv, counted from its start,
// into bounds (World+1 long).
func (p *Plan) owners(iv Interval, bounds []int) {
	for r := range bounds {
		bounds[r] = min(max(r*p.Partition, iv.Lo), iv.Hi) - iv.Lo
	}
}

// reduction returns the collective that sums buckets.
func (p *Plan) reduction() comm.Kind {
	if p.cfg.ZeroOptimization.Stage == 0 {
		return comm.AllReduce
	}
	return comm.ReduceScatter
}

// span returns the place of parameter i, false when it has no elements or is
// frozen.
func (p *Plan) span(i int) (span, bool) {
	if p.place[i] < 0 {
		return span{}, false
	}
	return p.spans[p.place[i]], true
}

// bucketsOf returns the first bucket, in bucket order, that holds a piece of iv;
// the others follow it.
func (p *Plan) bucketsOf(iv Interval) int {
	return sort.Search(len(p.Buckets), func(k int) bool { return p.Buckets[k].Lo < iv.Hi })
}

// spansIn returns the parameters that have a piece in iv, ascending.
func (p *Plan) spansIn(iv Interval) []span {
	lo := sort.Search(len(p.spans), func(k int) bool { return p.spans[k].Hi > iv.Lo })
	hi := sort.Search(len(p.spans), func(k int) bool { return p.spans[k].Lo >= iv.Hi })
	return p.spans[lo:max(lo, hi)]
}

// nameOf names the parameters of iv for an error.
func (p *Plan) nameOf(iv Interval) string {
	s := p.spansIn(iv)
	if len(s) == 0 {
		return "no parameter"
	}
	first, last := p.names[s[0].param], p.names[s[len(s)-1].param]
	if first == last {
		return fmt.Sprintf("parameter %q", first)
	}
	return fmt.Sprintf("parameters %q to %q", first, last)
}

// keepsLocal reports whether a rank holds its whole local gradient, in the wire
// format, until the step. Buckets are then views of it. Stage 0 with
// accumulators of the compute format does not: there they are the gradient.
func (p *Plan) keepsLocal() bool {
	switch p.cfg.ZeroOptimization.Stage {
	case 0:
		return p.policy.Accum != p.policy.Compute
	case 1:
		return true
	}
	return false
}

// bucketBuffers returns how many bucket buffers a backward uses when gradients
// become ready in bucket order.
func (p *Plan) bucketBuffers() int {
	switch {
	case p.keepsLocal() || len(p.Buckets) == 0:
		return 0
	case p.cfg.ZeroOptimization.OverlapComm:
		return 2
	}
	return 1
}

// accumulates returns the elements that rank sums and updates.
func (p *Plan) accumulates(rank int) Interval {
	if p.cfg.ZeroOptimization.Stage == 0 {
		return Interval{0, p.Elements}
	}
	return p.Owned(rank)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
