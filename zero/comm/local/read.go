package local

import (
	"unsafe"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero/comm"
)

// scratch is a worker's reusable list of peers' buffers.
type scratch []dtype.Buffer

// read does rank's part of a collective whose ranks have all come.
func (s *scratch) read(op *comm.Op, ops []*comm.Op, rank int) {
	switch op.Kind {
	case comm.ReduceScatter:
		s.fold(op.Recv, ops, op.Bounds[rank], op.Bounds[rank+1])
	case comm.AllReduce:
		s.fold(op.Recv, ops, 0, op.Send.Len())
	case comm.AllGather:
		for r, peer := range ops {
			dst := op.Recv.Slice(op.Bounds[r], op.Bounds[r+1])
			// A rank's own segment may be what it sends. The peers are
			// reading it: not even the same bits may be written.
			if dst.Len() > 0 && !same(dst, peer.Send) {
				dst.Copy(peer.Send)
			}
		}
	}
}

// fold adds elements [lo, hi) of every rank's Send to acc, in rank order.
func (s *scratch) fold(acc dtype.Buffer, ops []*comm.Op, lo, hi int) {
	if lo == hi {
		return
	}
	*s = (*s)[:0]
	for _, peer := range ops {
		*s = append(*s, peer.Send.Slice(lo, hi))
	}
	kernel.Fold(acc, *s)
	clear(*s)
}

// same reports whether a and b begin at one address.
func same(a, b dtype.Buffer) bool {
	return unsafe.SliceData(a.F32) == unsafe.SliceData(b.F32) &&
		unsafe.SliceData(a.U16) == unsafe.SliceData(b.U16) &&
		unsafe.SliceData(a.F64) == unsafe.SliceData(b.F64)
}
