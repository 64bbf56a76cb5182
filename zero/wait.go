package zero

import (
	"context"
	"fmt"
)

// wait returns when something changed. g.mu is held on entry and on return.
func (g *gradients) wait(ctx context.Context) error {
	changed := g.changed
	g.waiting++
	g.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	g.mu.Lock()
	g.waiting--
	if err := context.Cause(ctx); err != nil && g.err == nil {
		g.breakWith(fmt.Errorf("waiting for gradients on the wire: %w", err))
	}
	return g.err
}

// notify wakes whoever waits. g.mu is held.
func (g *gradients) notify() {
	if g.waiting > 0 {
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// drain returns when every bucket that was sent is in the accumulators.
func (g *gradients) drain(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.err == nil && g.sending > 0 {
		if err := g.wait(ctx); err != nil {
			return err
		}
	}
	return g.err
}

// failure returns what ended the training, nil while it goes on.
func (g *gradients) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// breakWith ends the training on this rank and tells the others. g.mu is held.
func (g *gradients) breakWith(err error) {
	if g.err == nil {
		g.err = err
		g.comm.Abort(err)
	}
	g.notify()
}

// fail is breakWith for callers without the lock; it returns the error that
// broke the training first.
func (g *gradients) fail(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.breakWith(err)
	return g.err
}

// end makes err the result of every later call. It is for what all ranks have
// agreed on: nobody needs to be told.
func (g *gradients) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
}

// nextStep begins a step, or ends the training with err.
func (g *gradients) nextStep(step int, err error) {
	g.mu.Lock()
	g.step, g.micro, g.bad, g.final = step, 0, -1, false
	g.mu.Unlock()
	if err != nil {
		g.end(err)
	}
}
