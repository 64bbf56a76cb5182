package zero

import (
	"errors"
	"fmt"
	"sort"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// Limits of the norm block, see normBlock.
const (
	maxNormBlock  = 1024
	normBlockPart = 1 << 16
)

// span is a trainable parameter's place in the flat element space. Parameters
// without elements have none.
type span struct {
	param int // index into the list given to New
	group int
	Interval
}

// Plan is the layout of a training: where every element lives, who owns it, and
// in which buckets gradients travel. It is a pure function of the parameters'
// names, shapes, formats and order, the Config and the world size.
//
// The flat element space holds the trainable parameters in registration order,
// those of the model's own format before those of others. Each rank owns an
// equal share of it, its partition, in whole norm blocks; the last partitions may
// reach beyond the elements. That padding is arithmetic only: it has no memory
// and enters no computation.
type Plan struct {
	World     int
	Elements  int // trainable elements
	NormBlock int // elements in one block of the norm
	Partition int // elements in one partition, with padding
	// Buckets cover the element space from its end to its start: reverse
	// registration order. Each is at most reduce_bucket_size long, and never
	// mixes pieces of a parameter larger than that with anything else, nor
	// formats.
	Buckets []Interval

	cfg      Config
	policy   Policy
	names    []string
	classes  []class   // ascending
	spans    []span    // ascending
	place    []int     // param index -> index into spans, -1 when it has none
	segments []segment // ascending
	owned    []Region  // by rank
	ordered  bool      // the segments' owners ascend
}

// NewPlan lays out params, of which it uses Name, Shape, DType, Group and Frozen.
func NewPlan(params []Param, cfg Config, world int) (*Plan, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if world < 1 {
		return nil, fmt.Errorf("world size %d: want at least 1", world)
	}
	p := &Plan{World: world, cfg: cfg, policy: cfg.Policy()}
	trainable, err := p.addParams(params)
	switch {
	case err != nil:
		return nil, err
	case len(params) == 0:
		return nil, errors.New("no parameters to train: the list is empty")
	case !trainable:
		return nil, fmt.Errorf("no parameters to train: all %d are frozen", len(params))
	}
	p.NormBlock = normBlock(p.Elements)
	p.deal()
	p.cutBuckets()
	return p, nil
}

// addParams gives the trainable parameters their places in the element space.
func (p *Plan) addParams(params []Param) (trainable bool, err error) {
	formats, lens := make([]dtype.DType, len(params)), make([]int, len(params))
	for i, param := range params {
		if lens[i], err = param.Len(); err != nil {
			return false, err
		}
		if formats[i], err = paramFormat(param, p.policy); err != nil {
			return false, err
		}
		p.names = append(p.names, param.Name)
		p.place = append(p.place, -1)
		trainable = trainable || !param.Frozen
	}
	p.addClasses(formats)
	for k := range p.classes {
		c := &p.classes[k]
		c.Lo = p.Elements
		for i, param := range params {
			switch {
			case formats[i] != c.param:
			case param.Frozen:
				c.frozen += lens[i]
			case lens[i] > 0:
				p.place[i] = len(p.spans)
				p.spans = append(p.spans, span{i, param.Group, Interval{p.Elements, p.Elements + lens[i]}})
				p.Elements += lens[i]
			}
		}
		c.Hi = p.Elements
	}
	return trainable, nil
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

// Owned returns the elements of rank's partition that exist.
func (p *Plan) Owned(rank int) Region { return p.owned[rank] }

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

// local reports whether a rank adds up its own micro-batches and reduces the sums
// once per step.
func (p *Plan) local() bool {
	z := p.cfg.ZeroOptimization
	return z.ReductionOrder == OrderLocal && z.Stage < 2
}

// keepsGradient reports whether a rank holds its whole local gradient, in the wire
// format, until the step. Buckets are then views of it. Stage 0 with accumulators
// of the compute format does not: there they are the gradient.
func (p *Plan) keepsGradient() bool {
	switch {
	case p.local():
		return false // it holds sums
	case p.cfg.ZeroOptimization.Stage == 0:
		return p.policy.Accum != p.policy.Compute
	}
	return p.cfg.ZeroOptimization.Stage == 1
}

// bucketBuffers returns how many bucket buffers a backward uses when gradients
// become ready in bucket order, for each wire format.
func (p *Plan) bucketBuffers() int {
	switch {
	case p.keepsGradient() || len(p.Buckets) == 0:
		return 0
	case p.cfg.ZeroOptimization.OverlapComm:
		return 2
	}
	return 1
}

// wireOf returns the wire format of bucket b.
func (p *Plan) wireOf(b int) dtype.DType { return p.classOf(p.Buckets[b].Lo).wire }

// bufferLen returns the longest bucket on the wire format d.
func (p *Plan) bufferLen(d dtype.DType) int {
	n := 0
	for b, iv := range p.Buckets {
		if p.wireOf(b) == d {
			n = max(n, iv.Len())
		}
	}
	return n
}

// reduction returns the collective that sums buckets.
func (p *Plan) reduction() comm.Kind {
	if z := p.cfg.ZeroOptimization; z.Stage > 0 && z.ReduceScatter {
		return comm.ReduceScatter
	}
	return comm.AllReduce
}

// foldsWhole reports whether every rank sums whole buckets, of which it keeps a
// part.
func (p *Plan) foldsWhole() bool {
	return p.cfg.ZeroOptimization.Stage > 0 && p.reduction() == comm.AllReduce
}

// foldsByOwner reports whether a bucket takes one collective for each owner.
func (p *Plan) foldsByOwner() bool {
	return p.reduction() == comm.ReduceScatter && !p.cfg.ZeroOptimization.UseMultiRankBucketAllreduce
}

// predivisor returns what gradients are divided by before they are sent.
func (p *Plan) predivisor() float64 {
	if p.cfg.PrescaleGradients {
		return float64(p.World)
	}
	return p.cfg.GradientPredivideFactor
}

// accumulates returns the elements that rank sums and updates.
func (p *Plan) accumulates(rank int) Region {
	if p.cfg.ZeroOptimization.Stage > 0 {
		return p.owned[rank]
	}
	var all Region
	all.add(Interval{0, p.Elements})
	return all
}

// gradientBytes returns what a rank keeps of its own gradients: all of them in the
// wire format, or their sums. At stage 0 the sums are the accumulators.
func (p *Plan) gradientBytes() int64 {
	if p.local() && p.cfg.ZeroOptimization.Stage > 0 {
		return int64(p.Elements) * int64(p.policy.Accum.Size())
	}
	var n int64
	if p.keepsGradient() {
		for _, c := range p.classes {
			n += int64(c.Len()) * int64(c.wire.Size())
		}
	}
	return n
}

// bucketBytes returns the bucket buffers of a backward in bucket order.
func (p *Plan) bucketBytes() int64 {
	var n int64
	counted := map[dtype.DType]bool{}
	for _, c := range p.classes {
		if !counted[c.wire] {
			counted[c.wire] = true
			n += int64(p.bucketBuffers()*p.bufferLen(c.wire)) * int64(c.wire.Size())
		}
	}
	if p.foldsWhole() {
		n += int64(p.BucketLen()) * int64(p.policy.Accum.Size())
	}
	return n
}

// Stage returns the ZeRO stage: 0, 1 or 2.
func (p *Plan) Stage() int { return p.cfg.ZeroOptimization.Stage }
