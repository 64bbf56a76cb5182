// Package logged watches the collectives of a communicator: how long each took and
// how much it moved, as DeepSpeed's comms_logger does, one by one or summed up.
package logged

import (
	"context"
	"sync"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// Record is one collective of one rank.
type Record struct {
	Rank int
	Size int // number of ranks
	Kind comm.Kind
	Sig  comm.Signature
	// Bytes is the size of the whole buffer, of all ranks' segments, in the format
	// in which it is sent.
	Bytes int64

	Started time.Time // when Start was called
	// Began is when it was this collective's turn: Started, or when the one before
	// it ended.
	Began time.Time
	Ended time.Time // when this rank's part was complete
	Err   error     // what broke it
}

// Time is how long the collective took, waiting for slower ranks included, waiting
// for its turn not.
func (r Record) Time() time.Duration { return r.Ended.Sub(r.Began) }

// AlgBW is the algorithm bandwidth in bytes a second: Bytes over Time. 0 where
// nothing is moved.
func (r Record) AlgBW() float64 {
	if r.Bytes == 0 || r.Time() <= 0 {
		return 0
	}
	return float64(r.Bytes) / r.Time().Seconds()
}

// BusBW is the bus bandwidth in bytes a second: what each rank's link carries, as
// NCCL's tests define it: AlgBW times (n-1)/n, twice that for an all-reduce.
func (r Record) BusBW() float64 {
	share := float64(r.Size-1) / float64(r.Size)
	if r.Kind == comm.AllReduce {
		share *= 2
	}
	return r.AlgBW() * share
}

// Wrap returns a communicator that calls observe once for each collective of c,
// after it has ended and before its Wait returns. observe is called from other
// goroutines, in the order of the collectives, one call at a time. c is closed by closing the wrapper.
func Wrap(c comm.Communicator, observe func(Record)) comm.Communicator {
	return &end{Communicator: c, observe: observe}
}

type end struct {
	comm.Communicator
	observe func(Record)
	waits   sync.WaitGroup
	before  *handle   // the collective started last; Start's caller's
	last    time.Time // when a collective ended last; belongs to the newest one that ended
}

type handle struct {
	done chan struct{}
	err  error // set before done is closed
}

// Wait implements comm.Handle.
func (h *handle) Wait() error {
	<-h.done
	return h.err
}

// Start implements comm.Communicator.
func (e *end) Start(ctx context.Context, op *comm.Op) comm.Handle {
	r := Record{Rank: e.Rank(), Size: e.Size(), Kind: op.Kind, Sig: op.Sig, Bytes: bytes(op), Started: time.Now()}
	inner := e.Communicator.Start(ctx, op)
	h := &handle{done: make(chan struct{})}
	before := e.before
	e.before = h
	e.waits.Go(func() {
		r.Err = inner.Wait()
		r.Ended = time.Now()
		if before != nil {
			<-before.done // goroutines do not wake in the order of their collectives
		}
		e.ended(r)
		h.err = r.Err
		close(h.done)
	})
	return h
}

// ended records a collective after the one before it.
func (e *end) ended(r Record) {
	if r.Ended.Before(e.last) {
		r.Ended = e.last
	}
	if r.Began = r.Started; e.last.After(r.Began) {
		r.Began = e.last
	}
	e.last = r.Ended
	e.observe(r)
}

// Close implements comm.Communicator.
func (e *end) Close() error {
	err := e.Communicator.Close()
	e.waits.Wait()
	return err
}

// bytes is the size of an operation's whole buffer.
func bytes(op *comm.Op) int64 {
	switch op.Kind {
	case comm.AllGather:
		return int64(op.Recv.Bytes())
	case comm.Barrier:
		return 0
	}
	return int64(op.Send.Bytes())
}
