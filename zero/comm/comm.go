// Package comm defines the seam between the ZeRO optimizer and the machines it
// runs on: a small set of collectives with one fixed order of arithmetic.
//
// A reduction is never a ring or a tree. The owner of an element folds the
// contributions of all ranks left to right, in rank order, starting from its
// accumulator: acc = ((acc + x0) + x1) + ... The result therefore depends on
// nothing but the values, and is the same bits through every engine.
package comm

import (
	"context"

	"github.com/zerogap/zerogap/dtype"
)

// Kind says what a collective does with its buffers.
type Kind uint8

// The collectives. "Every rank" means every rank of the communicator.
const (
	// ReduceScatter: rank r folds segment Bounds[r]:Bounds[r+1] of every
	// rank's Send into its own Recv (len = its segment), in rank order.
	ReduceScatter Kind = iota
	// AllReduce: every rank folds the whole Send of every rank into its own
	// Recv (len = len(Send)), in rank order.
	AllReduce
	// AllGather: every rank receives, in Recv[Bounds[r]:Bounds[r+1]], the
	// Send of rank r (len = its segment), bit for bit. Send may alias the
	// rank's own segment of Recv.
	AllGather
	// Barrier: no data; completes when every rank has started it.
	Barrier
)

// Signature identifies a collective. All ranks must start collectives with
// equal signatures (and equal kinds, bounds and dtypes) in the same order; a
// difference is an error on every rank that names both sides, never a wrong sum.
type Signature struct {
	Name   string // what it is for, in words: "gradient bucket", "norm blocks", "weights"
	Step   int    // optimizer step, counted from 1; 0 before the first
	Bucket int    // bucket number within the step, or -1
	Layout uint64 // hash of the layout the buffers belong to
}

// Op is one collective. The buffers belong to the communicator from Start until
// the handle's Wait returns.
type Op struct {
	Kind   Kind
	Sig    Signature
	Bounds []int // W+1 increasing offsets for ReduceScatter and AllGather
	Send   dtype.Buffer
	Recv   dtype.Buffer
}

// Handle is a started collective.
type Handle interface {
	// Wait returns when the collective is complete on this rank and its
	// buffers may be used again, or with the error that broke it. After an
	// error the communicator is poisoned: every later Start fails with it.
	Wait() error
}

// Communicator connects the ranks of one training. A rank uses its own
// Communicator from one goroutine at a time, except Abort, which may be called
// from any. Collectives run in the order in which they were started.
type Communicator interface {
	// Rank is this rank's number, 0 to Size()-1.
	Rank() int
	// Size is the number of ranks.
	Size() int
	// Start begins a collective and returns at once. Errors, also those of
	// the signature check and of an ended context, come from Wait. op and
	// its slices must not change until then. An ended context poisons the
	// communicator: the peers are told, and do not wait for this rank.
	Start(ctx context.Context, op *Op) Handle
	// Abort poisons the communicator on every rank with a *RankError of this
	// rank's number and the cause, so that nobody waits for a rank that has
	// left. The first cause stays.
	Abort(cause error)
	// Close ends this rank's use. It gives up this rank's operations, waits
	// for the communicator's own goroutines, and may be called twice. A peer
	// that waits for this rank, now or later, gets an error.
	Close() error
}

// Do runs one collective to its end.
func Do(ctx context.Context, c Communicator, op *Op) error {
	return c.Start(ctx, op).Wait()
}
