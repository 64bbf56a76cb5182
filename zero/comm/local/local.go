// Package local connects ranks that are goroutines of one process. Collectives
// read the peers' memory directly: nothing is copied that a sum does not need.
package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// DefaultTimeout is how long a collective waits for ranks that do not come.
const DefaultTimeout = 60 * time.Second

// Option changes the group that New makes.
type Option func(*group)

// WithTimeout sets how long a collective waits for ranks that do not come.
func WithTimeout(d time.Duration) Option { return func(g *group) { g.timeout = d } }

// New connects world ranks and returns their ends, by rank. Each end has a
// goroutine of its own, which ends with Close: every end must be closed. New
// panics if world is less than 1.
func New(world int, opts ...Option) []comm.Communicator {
	if world < 1 {
		panic(fmt.Sprintf("local: world size %d", world))
	}
	g := &group{world: world, timeout: DefaultTimeout, poisoned: make(chan struct{}), closed: make([]bool, world)}
	for _, o := range opts {
		o(g)
	}
	g.round = newRound(world)
	ends := make([]comm.Communicator, world)
	for r := range ends {
		e := &end{group: g, rank: r, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
		go e.work()
		ends[r] = e
	}
	return ends
}

var (
	errClosed  = errors.New("the communicator is closed")
	errLeft    = errors.New("closed its communicator while a collective was waiting")
	errTimeout = errors.New("timeout of the communicator")
)

// end is one rank's Communicator.
type end struct {
	*group
	rank    int
	wake    chan struct{} // one token when the queue grew or the end was closed
	stopped chan struct{} // closed when the worker has ended
	queue   []*handle     // guarded by group.mu
}

// handle is a started collective.
type handle struct {
	ctx  context.Context
	op   *comm.Op
	done chan struct{}
	err  error // set before done is closed
}

// Wait implements comm.Handle.
func (h *handle) Wait() error {
	<-h.done
	return h.err
}

func (h *handle) finish(err error) {
	h.err = err
	close(h.done)
}

// Rank implements comm.Communicator.
func (e *end) Rank() int { return e.rank }

// Size implements comm.Communicator.
func (e *end) Size() int { return e.world }

// Start implements comm.Communicator.
func (e *end) Start(ctx context.Context, op *comm.Op) comm.Handle {
	h := &handle{ctx: ctx, op: op, done: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed[e.rank] {
		h.finish(fmt.Errorf("%v: %w", op, errClosed))
		return h
	}
	e.queue = append(e.queue, h)
	e.signal()
	return h
}

// Abort implements comm.Communicator.
func (e *end) Abort(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.poison(e.rank, &comm.RankError{Rank: e.rank, Err: cause})
}

// Close implements comm.Communicator. Operations of this rank that are not
// complete are given up, and the peers in them get an error.
func (e *end) Close() error {
	e.mu.Lock()
	if !e.closed[e.rank] {
		e.closed[e.rank] = true
		if len(e.queue) > 0 || e.round.waitsFor(e.rank) {
			e.poison(e.rank, &comm.RankError{Rank: e.rank, Err: errLeft})
		}
		e.signal()
	}
	e.mu.Unlock()
	<-e.stopped
	return nil
}

func (e *end) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// work runs this rank's operations in order until the end is closed.
func (e *end) work() {
	defer close(e.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var s scratch
	for range e.wake {
		for {
			h, open := e.peek()
			if h == nil {
				if open {
					break
				}
				return
			}
			err := e.run(h, timer, &s)
			e.pop()
			h.finish(err)
		}
	}
}

// peek returns the oldest operation, nil when there is none, and whether more can
// come. It stays in the queue while it runs, for Close to see.
func (e *end) peek() (h *handle, open bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 {
		h = e.queue[0]
	}
	return h, !e.closed[e.rank]
}

func (e *end) pop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := copy(e.queue, e.queue[1:])
	e.queue[n] = nil
	e.queue = e.queue[:n]
}
