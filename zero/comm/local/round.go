package local

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// group is what the ranks share.
type group struct {
	world   int
	timeout time.Duration

	mu       sync.Mutex
	round    *round
	closed   []bool // by rank
	err      error  // sticky
	by       int    // the rank that set err, or nobody
	poisoned chan struct{}
}

// round is one collective. It has two meetings: when all ranks have come with
// equal signatures (ready), each reads what it needs from the others; when all
// have read (finished), buffers may change again.
//
// A round can break only before it is ready. From then on every rank does its
// part, which waits for nothing, so no memory is read after a Wait has returned,
// not even after an error.
type round struct {
	ops      []*comm.Op // by rank, nil until it has come
	came     int
	reading  int
	ready    chan struct{}
	finished chan struct{}
}

func newRound(world int) *round {
	return &round{ops: make([]*comm.Op, world), ready: make(chan struct{}), finished: make(chan struct{})}
}

// waitsFor reports whether others have come to the round and rank has not.
func (r *round) waitsFor(rank int) bool { return r.came > 0 && r.ops[rank] == nil }

// missing lists the ranks that have not come.
func (r *round) missing() string {
	var ranks []string
	for rank, op := range r.ops {
		if op == nil {
			ranks = append(ranks, fmt.Sprint(rank))
		}
	}
	if len(ranks) == 1 {
		return "rank " + ranks[0]
	}
	return "ranks " + strings.Join(ranks, ", ")
}

// nobody is who poisons a group whose ranks do not agree.
const nobody = -1

// poison breaks every operation that is not under way, now and later. The first
// cause stays. g.mu is held.
func (g *group) poison(by int, err error) {
	if g.err == nil {
		g.err, g.by = err, by
		close(g.poisoned)
	}
}

// run takes one operation through its round.
func (e *end) run(h *handle, timer *time.Timer, s *scratch) error {
	r, err := e.meet(h)
	if err != nil {
		return err
	}
	timer.Reset(e.timeout)
	select {
	case <-r.ready:
	case <-e.poisoned:
		err = e.withdraw(r, h, nil)
	case <-h.ctx.Done():
		err = e.withdraw(r, h, context.Cause(h.ctx))
	case <-timer.C:
		err = e.withdraw(r, h, errTimeout)
	}
	if err != nil {
		return err
	}
	s.read(h.op, r.ops, e.rank)
	e.leave(r)
	<-r.finished
	return nil
}

// meet brings the operation to the current round. The first rank's signature is
// the measure; whoever brings another poisons the group.
func (e *end) meet(h *handle) (*round, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.round
	if e.err == nil {
		if err := h.op.Check(e.rank, e.world); err != nil {
			e.poison(e.rank, &comm.RankError{Rank: e.rank, Err: err})
		} else if err := context.Cause(h.ctx); err != nil {
			e.poison(e.rank, &comm.RankError{Rank: e.rank, Err: fmt.Errorf("%v: %w", h.op, err)})
		}
	}
	for rank, op := range r.ops {
		if e.err != nil {
			break
		}
		switch {
		case op != nil:
			if d := comm.Differ(rank, op, e.rank, h.op); d != "" {
				e.poison(nobody, fmt.Errorf("ranks run different collectives: %s", d))
			}
		case e.closed[rank]:
			e.poison(rank, &comm.RankError{Rank: rank, Err: fmt.Errorf("closed its communicator before %v", h.op)})
		}
	}
	if e.err != nil {
		return nil, e.explain(h.op)
	}
	r.ops[e.rank] = h.op
	r.came++
	if r.came == e.world {
		r.reading = e.world
		e.round = newRound(e.world)
		close(r.ready)
	}
	return r, nil
}

// withdraw gives the operation up because of cause, or of what has poisoned the
// group. It returns nil when the round became ready in the meantime: then this
// rank owes it its part.
func (e *end) withdraw(r *round, h *handle, cause error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.came == e.world {
		return nil
	}
	switch cause {
	case nil:
	case errTimeout:
		e.poison(e.rank, fmt.Errorf("%v: rank %d waited %v for %s, which did not come: %w", h.op, e.rank, e.timeout, r.missing(), errTimeout))
	default:
		e.poison(e.rank, &comm.RankError{Rank: e.rank, Err: fmt.Errorf("%v: %w", h.op, cause)})
	}
	return e.explain(h.op)
}

// explain returns what poisoned the group, after the name of the operation that
// suffers from it. e.mu is held.
func (e *end) explain(op *comm.Op) error {
	if e.by == e.rank {
		return e.err // names it already
	}
	return fmt.Errorf("%v: %w", op, e.err)
}

// leave counts this rank's part done.
func (e *end) leave(r *round) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.reading--
	if r.reading == 0 {
		close(r.finished)
	}
}
