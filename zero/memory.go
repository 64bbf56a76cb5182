package zero

import (
	"sync"

	"github.com/zerogap/zerogap/dtype"
)

// Memory counts one rank's bytes by what they are for.
type Memory struct {
	Parameters   int64 // compute copies, trainable and frozen
	Gradients    int64 // the whole local gradient, or sum of gradients, where a stage keeps it
	Accumulators int64 // sums of micro-batch gradients
	Master       int64 // fp32 weights
	Moments      int64 // the rule's states
	Buckets      int64 // gradient bucket buffers
	Workspace    int64 // staging of gathered weights, block sums of the norm
}

// Total returns the sum of all kinds.
func (m Memory) Total() int64 {
	return m.Parameters + m.Gradients + m.Accumulators + m.Master + m.Moments + m.Buckets + m.Workspace
}

// kind is a field of Memory.
type kind int

const (
	kindParameters kind = iota
	kindGradients
	kindAccumulators
	kindMaster
	kindMoments
	kindBuckets
	kindWorkspace
	kinds
)

// Memory predicts what rank allocates when gradients become ready in bucket
// order. rule and groups are those that New is given; rule may be nil for a
// prediction without moments. flat says that parameter memory is the optimizer's
// own (Param.Value left empty).
func (p *Plan) Memory(rank int, rule Rule, flat bool, groups ...Group) Memory {
	size := func(d dtype.DType, n int) int64 { return int64(n) * int64(d.Size()) }
	sums := p.accumulates(rank).Len()
	m := Memory{
		Parameters:   p.parameterBytes(),
		Gradients:    p.gradientBytes(),
		Accumulators: size(p.policy.Accum, sums),
		Master:       size(p.policy.Master, sums),
		Buckets:      p.bucketBytes(),
	}
	sent := p.normSums(rank)
	for r := range p.World {
		sent += p.normSums(r)
	}
	m.Workspace = size(dtype.F64, sent) + p.stagingBytes(flat)
	m.Moments = size(dtype.F32, p.states(rank, rule, groups))
	return m
}

// states returns how many elements the rules' states have on rank.
func (p *Plan) states(rank int, rule Rule, groups []Group) (n int) {
	region := p.accumulates(rank)
	for _, sp := range p.spans {
		r := rule
		if sp.group < len(groups) && groups[sp.group].Rule != nil {
			r = groups[sp.group].Rule
		}
		if r != nil {
			n += region.cut(sp.Interval).Len() * len(r.States())
		}
	}
	return n
}

// ledger counts what one rank has allocated, now and at most.
type ledger struct {
	mu        sync.Mutex
	now, peak [kinds]int64
}

// make allocates a zeroed buffer and counts it.
func (l *ledger) make(k kind, d dtype.DType, n int) dtype.Buffer {
	b := dtype.Make(d, n)
	l.add(k, int64(b.Bytes()))
	return b
}

// add counts bytes that came (or went, when negative).
func (l *ledger) add(k kind, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now[k] += bytes
	l.peak[k] = max(l.peak[k], l.now[k])
}

// close counts everything but the parameters as gone.
func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = [kinds]int64{kindParameters: l.now[kindParameters]}
}

// report returns the live and the largest counts.
func (l *ledger) report() (now, peak Memory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return asMemory(l.now), asMemory(l.peak)
}

func (l *ledger) resetPeak() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peak = l.now
}

func asMemory(c [kinds]int64) Memory {
	return Memory{
		Parameters: c[kindParameters], Gradients: c[kindGradients], Accumulators: c[kindAccumulators],
		Master: c[kindMaster], Moments: c[kindMoments], Buckets: c[kindBuckets], Workspace: c[kindWorkspace],
	}
}
