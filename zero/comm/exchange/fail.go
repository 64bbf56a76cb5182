package exchange

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

// poison breaks every collective, now and later, and tells the other ranks. The
// first cause stays.
func (w *worker) poison(by int, err error) {
	if w.err != nil {
		return
	}
	w.fail(by, err)
	cause, text := nobody, err.Error()
	if r, ok := err.(*comm.RankError); ok {
		cause, text = r.Rank, r.Err.Error()
	}
	w.eachPeer(func(rank int) {
		if !w.peers[rank].gone {
			w.send(rank, appendAbortion(w.buffer()[:0], cause, errors.Is(err, ErrLost), text))
		}
	})
}

// accept is poison with what another rank has told everybody.
func (w *worker) accept(err error) {
	if w.err == nil {
		w.fail(nobody, err)
	}
}

func (w *worker) fail(by int, err error) {
	w.err, w.by = err, by
	w.t.Cancel()
	for _, c := range w.active {
		c.finish(w.explain(c.op))
	}
	clear(w.active)
	w.active = w.active[:0]
	w.waiting.Store(nil)
}

// explain returns what broke the communicator, after the name of the operation that
// suffers from it.
func (w *worker) explain(op *comm.Op) error {
	if w.by == w.rank {
		return w.err // names it already
	}
	return fmt.Errorf("%v: %w", op, w.err)
}

// leave says goodbye, waits for that of the others as long as Linger allows, and
// closes the transport.
func (w *worker) leave() error {
	w.eachPeer(func(rank int) { w.send(rank, appendGoodbye(w.buffer()[:0])) })
	start := time.Now()
	w.idle = 0
	for {
		w.poll()
		linger := w.opts.Linger
		if w.err != nil {
			linger = min(linger, brokenLinger)
		}
		missing := w.missing(func(rank int) bool { return !w.peers[rank].gone })
		if w.dead || w.outgoing == 0 && missing == "" || time.Since(start) >= linger {
			return w.shut(missing)
		}
		w.idle++
		w.t.Pause(w.idle)
	}
}

// shut closes the transport; missing are the ranks that have not closed.
func (w *worker) shut(missing string) error {
	if w.err == nil && missing != "" && w.opts.Linger > 0 {
		w.err = fmt.Errorf("rank %d waited %v for %s to close: %w", w.rank, w.opts.Linger, missing, ErrLost)
		return joinText(w.err, w.t.Close(true))
	}
	return w.t.Close(w.err != nil)
}

func joinText(err, more error) error {
	if more == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, more)
}

// missing lists the ranks of which f is true, "" for none.
func (w *worker) missing(f func(rank int) bool) string {
	var ranks []string
	for r := range w.size {
		if r != w.rank && f(r) {
			ranks = append(ranks, fmt.Sprint(r))
		}
	}
	switch len(ranks) {
	case 0:
		return ""
	case 1:
		return "rank " + ranks[0]
	}
	return "ranks " + strings.Join(ranks, ", ")
}
