package gated

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

var errClosed = errors.New("the communicator is closed")

// end is one rank's wrapped Communicator.
type end struct {
	comm.Communicator
	group *Group

	mu      sync.Mutex
	n       int // collectives started
	queue   []*handle
	closed  bool
	wake    chan struct{} // one token when the queue grew or the end was closed
	closing chan struct{}
	stopped chan struct{}
}

// handle is a started collective.
type handle struct {
	ctx        context.Context
	op         *comm.Op
	event      Event
	fail       error
	delay      time.Duration
	poison     bool
	send, recv uint64 // checksums at Start
	done       chan struct{}
	err        error // set before done is closed
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

// Start implements comm.Communicator.
func (e *end) Start(ctx context.Context, op *comm.Op) comm.Handle {
	h := &handle{ctx: ctx, op: op, done: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		h.finish(fmt.Errorf("%v: %w", op, errClosed))
		return h
	}
	o := e.group.opts
	h.event = newEvent(e.Rank(), e.n, op)
	e.n++
	e.group.enter(&h.event)
	if o.Delay != nil {
		h.delay = o.Delay(h.event)
	}
	if o.Fail != nil {
		h.fail = o.Fail(h.event)
	}
	h.poison = o.Poison != nil && o.Poison(h.event)
	h.send, h.recv = checksum(op.Send), checksum(op.Recv)
	e.queue = append(e.queue, h)
	e.signal()
	return h
}

// Abort implements comm.Communicator.
func (e *end) Abort(cause error) {
	e.Communicator.Abort(cause)
	e.group.ReleaseAll()
}

// Close implements comm.Communicator.
func (e *end) Close() error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.closing)
		e.signal()
	}
	e.mu.Unlock()
	e.group.ReleaseAll()
	err := e.Communicator.Close() // gives up what is under way
	<-e.stopped
	return err
}

func (e *end) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// work runs this rank's collectives in order until the end is closed.
func (e *end) work() {
	defer close(e.stopped)
	for range e.wake {
		for {
			h, open := e.peek()
			if h == nil {
				if open {
					break
				}
				return
			}
			err := e.run(h)
			e.pop()
			h.finish(err)
		}
	}
}

// peek returns the oldest collective, nil when there is none, and whether more
// can come.
func (e *end) peek() (h *handle, open bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 {
		h = e.queue[0]
	}
	return h, !e.closed
}

func (e *end) pop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue[0] = nil
	e.queue = e.queue[1:]
}

// run takes one collective through its gate and the communicator underneath.
func (e *end) run(h *handle) error {
	e.wait(h)
	err := h.fail
	if err == nil {
		err = h.written()
	}
	if err == nil {
		if err := e.Communicator.Start(h.ctx, h.op).Wait(); err != nil {
			e.group.ReleaseAll()
			return err
		}
		h.recv = checksum(h.op.Recv)
		err = h.written()
	}
	if err != nil {
		err = fmt.Errorf("%v: %w", h.op, err)
		e.Abort(err)
		return &comm.RankError{Rank: e.Rank(), Err: err}
	}
	if h.poison && !overlap(h.op.Send, h.op.Recv) {
		poison(h.op.Send)
	}
	return nil
}

// wait returns when the collective may move data.
func (e *end) wait(h *handle) {
	if h.event.Held >= 0 {
		select {
		case <-e.group.gate(h.event.Rank, h.event.Held).open:
		case <-e.group.freed:
		case <-h.ctx.Done():
		}
	}
	if h.delay > 0 {
		select {
		case <-time.After(h.delay):
		case <-e.closing:
		case <-h.ctx.Done():
		}
	}
}

// written is the error of a buffer that has changed since its checksum was taken.
func (h *handle) written() error {
	for _, b := range []struct {
		name string
		buf  dtype.Buffer
		sum  uint64
	}{{"sent", h.op.Send, h.send}, {"receiving", h.op.Recv, h.recv}} {
		if checksum(b.buf) != b.sum {
			return fmt.Errorf("the %s buffer was written between Start and the end of Wait", b.name)
		}
	}
	return nil
}
