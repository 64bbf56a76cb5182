package comm

import (
	"fmt"
	"slices"

	"github.com/zerogap/zerogap/dtype"
)

var kindNames = [...]string{
	ReduceScatter: "reduce-scatter",
	AllReduce:     "all-reduce",
	AllGather:     "all-gather",
	Barrier:       "barrier",
}

// String returns the collective's usual name, for instance "reduce-scatter".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// RankError is the error of a rank that stopped, as every rank receives it: Rank
// left, failed or was cancelled, for the reason in Err.
type RankError struct {
	Rank int
	Err  error
}

// Error implements error.
func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

// Unwrap returns the reason.
func (e *RankError) Unwrap() error { return e.Err }

// Sent returns the bytes that rank, of size ranks, gives to the others: each rank
// hands every other one what that one adds or receives, and nothing is passed on.
// For a reduce-scatter these are the bytes of a ring, (size-1)/size of the whole
// where the segments are equal. An all-reduce in which every rank adds for itself
// sends the whole to every other rank.
func (op *Op) Sent(rank, size int) int64 {
	n := int64(op.Send.Len())
	switch op.Kind {
	case ReduceScatter:
		n -= int64(op.Bounds[rank+1] - op.Bounds[rank])
	case AllReduce, AllGather:
		n *= int64(size - 1)
	default:
		n = 0
	}
	return n * int64(op.Send.DType.Size())
}

// Check returns an error when op is not well formed for rank of size ranks:
// bounds that are no borders, or buffers that do not fit them.
func (op *Op) Check(rank, size int) error {
	send, recv := op.Send.Len(), op.Recv.Len()
	switch op.Kind {
	case Barrier:
		return nil
	case AllReduce:
		if err := op.checkSum(); err != nil {
			return err
		}
		if send != recv {
			return fmt.Errorf("%s: sends %d elements and receives %d: want equal counts", op, send, recv)
		}
		return nil
	case ReduceScatter:
		if err := op.checkSum(); err != nil {
			return err
		}
	case AllGather:
	default:
		return fmt.Errorf("%s: unknown collective", op)
	}
	b := op.Bounds
	if len(b) != size+1 || b[0] != 0 || !slices.IsSorted(b) {
		return fmt.Errorf("%s: bounds %v: want %d increasing offsets from 0", op, b, size+1)
	}
	whole, part := send, recv
	if op.Kind == AllGather {
		whole, part = recv, send
		if op.Send.DType != op.Recv.DType {
			return fmt.Errorf("%s: sends %s and receives %s: want one format", op, op.Send.DType, op.Recv.DType)
		}
	}
	if own := b[rank+1] - b[rank]; whole != b[size] || part != own {
		return fmt.Errorf("%s: buffers of %d elements in all and %d of this rank: bounds want %d and %d", op, whole, part, b[size], own)
	}
	return nil
}

// checkSum returns an error where the formats cannot be added.
func (op *Op) checkSum() error {
	if op.Send.DType == dtype.F64 || op.Recv.DType == dtype.F64 {
		return fmt.Errorf("%s: sends %s and adds to %s: sums are made of fp32, bf16 and fp16", op, op.Send.DType, op.Recv.DType)
	}
	return nil
}
