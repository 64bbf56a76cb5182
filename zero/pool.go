package zero

import "github.com/zerogap/zerogap/dtype"

// pool is the bucket buffers of one wire format.
type pool struct {
	wire    dtype.DType
	len     int // of each buffer: the longest bucket
	limit   int // buffers that a backward in bucket order uses
	made    int // buffers that exist
	sending int // buffers that are queued or being reduced
	free    []dtype.Buffer
	ledger  *ledger
}

func newPool(plan *Plan, d dtype.DType, l *ledger) *pool {
	return &pool{wire: d, len: plan.bufferLen(d), limit: plan.bucketBuffers(), ledger: l}
}

// take returns a buffer, and false when one is on its way back and to be waited
// for: it comes without help from this rank's backward. Otherwise another is
// made, so that no ready order can block a backward.
func (p *pool) take() (dtype.Buffer, bool) {
	if n := len(p.free); n > 0 {
		buf := p.free[n-1]
		p.free = p.free[:n-1]
		return buf, true
	}
	if p.made >= p.limit && p.sending > 0 {
		return dtype.Buffer{}, false
	}
	p.made++
	return p.ledger.make(kindBuckets, p.wire, p.len), true
}

// giveBack takes a buffer that has been reduced.
func (p *pool) giveBack(buf dtype.Buffer) { p.free = append(p.free, buf) }

// trim gives up the buffers that only a backward out of order needed. It is for a
// moment when none is in use.
func (p *pool) trim() {
	keep := min(len(p.free), p.limit)
	for _, b := range p.free[keep:] {
		p.ledger.add(kindBuckets, -int64(b.Bytes()))
		p.made--
	}
	clear(p.free[keep:])
	p.free = p.free[:keep]
}
