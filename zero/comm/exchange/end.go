// Package exchange makes a Communicator of any way to pass messages between ranks.
// A transport sends, receives and tests; everything else is here: the order of the
// sums, the comparison of what the ranks want, deadlines, and how a failure reaches
// every rank.
//
// A reduce-scatter is an exchange of segments. They travel in chunks, and as soon
// as the same chunk has come from every rank it is added to the accumulator in rank
// order, with the kernel that the local engine uses: the same bits. An all-gather
// receives into its place.
//
// Before any data is received, every rank has every other rank's announcement of
// the collective: its number, signature, bounds and formats. Data of up to 2 KiB
// for a peer travels inside the announcement.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// DefaultTimeout is how long a collective waits for ranks that do not come.
const DefaultTimeout = 5 * time.Minute

// Options of Connect.
type Options struct {
	// Timeout is how long a collective waits without hearing of a rank it needs; 0
	// is DefaultTimeout.
	Timeout time.Duration
	// Linger is how long Close waits for the other ranks to close, or to hear of a
	// failure. 0 is not at all: messages that are on their way are then sent all
	// the same, where the transport outlives this rank.
	Linger time.Duration
}

// brokenLinger bounds the wait of Close after a failure: the peers may be gone.
const brokenLinger = 2 * time.Second

var (
	errClosed = errors.New("the communicator is closed")
	errLeft   = errors.New("closed its communicator while a collective was waiting")
)

// ErrLost is in every rank's error when the communication itself failed: a rank did not
// come in time, or a connection broke. A new start from the last checkpoint may help.
// It is not there when a rank failed for a reason of its own.
var ErrLost = errors.New("timeout of the communicator")

// nobody is who poisons a communicator whose ranks do not agree.
const nobody = -1

// End is one rank's Communicator.
type End struct {
	rank, size int
	opts       Options
	wake       chan struct{} // one token when there is something for the worker
	stopped    chan struct{} // closed when the worker has ended
	closeErr   error         // set before stopped is closed
	waiting    atomic.Pointer[string]

	mu      sync.Mutex
	queue   []*handle // started, not yet the worker's
	calls   []func()
	closing bool
	cause   error // of Abort, or of a Close with work under way
}

// handle is a started collective.
type handle struct {
	ctx  context.Context
	op   *comm.Op
	done chan struct{}
	err  error // set before done is closed
}

// Wait implements comm.Handle. After an error a transport that has no shared memory
// may still read and write the operation's buffers.
func (h *handle) Wait() error {
	<-h.done
	return h.err
}

func (h *handle) finish(err error) {
	h.err = err
	close(h.done)
}

// Connect opens a transport and returns the communicator that uses it. open is
// called on the goroutine, locked to its thread, that makes all later calls of the
// transport; Close ends it.
func Connect(open func() (Transport, error), o Options) (*End, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	e := &End{opts: o, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	opened := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(e.stopped)
		t, err := open()
		if err != nil {
			opened <- err
			return
		}
		e.rank, e.size = t.Rank(), t.Size()
		w := newWorker(e, t)
		opened <- nil
		e.closeErr = w.run()
	}()
	if err := <-opened; err != nil {
		<-e.stopped
		return nil, err
	}
	return e, nil
}

// Rank implements comm.Communicator.
func (e *End) Rank() int { return e.rank }

// Size implements comm.Communicator.
func (e *End) Size() int { return e.size }

// Start implements comm.Communicator.
func (e *End) Start(ctx context.Context, op *comm.Op) comm.Handle {
	h := &handle{ctx: ctx, op: op, done: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		h.finish(fmt.Errorf("%v: %w", op, errClosed))
		return h
	}
	e.queue = append(e.queue, h)
	e.signal()
	return h
}

// Abort implements comm.Communicator. It does not wait for the others to be told;
// Close does.
func (e *End) Abort(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil {
		e.cause = cause
		e.signal()
	}
}

// Close implements comm.Communicator. The error is that of the transport.
func (e *End) Close() error {
	e.mu.Lock()
	if !e.closing {
		e.closing = true
		e.signal()
	}
	e.mu.Unlock()
	<-e.stopped
	return e.closeErr
}

// Call runs f on the thread that makes all calls of the transport, when no collective
// is under way, and returns when it has. It reports whether it did: not after Close.
func (e *End) Call(f func()) bool {
	done := make(chan struct{})
	e.mu.Lock()
	if !e.closing {
		e.calls = append(e.calls, func() { f(); close(done) })
		e.signal()
	}
	e.mu.Unlock()
	select {
	case <-done:
		return true
	case <-e.stopped:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// Waiting says in words which collective this rank has been waiting in for at least
// a moment, and for which ranks; "" when it is not.
func (e *End) Waiting() string {
	if s := e.waiting.Load(); s != nil {
		return *s
	}
	return ""
}

func (e *End) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// takeCalls hands over what Call was given.
func (e *End) takeCalls() []func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls := e.calls
	e.calls = nil
	return calls
}

// take hands what was started to the worker, and tells it what is asked of it.
func (e *End) take(to []*handle) (queue []*handle, cause error, closing bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	to = append(to, e.queue...)
	clear(e.queue)
	e.queue = e.queue[:0]
	return to, e.cause, e.closing
}
