package main

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/bisect"
	"github.com/zerogap/zerogap/zero/engine"
)

// locals collects the local gradients of one step: the mean of each rank's
// micro-batches, before anything is reduced.
type locals struct {
	plan  *zero.Plan
	micro int // micro-batches of a rank
	mu    sync.Mutex
	ranks [][]float32 // sums of this step
	met   int         // ranks that have ended the step
	next  chan struct{}
}

func newLocals(c *config.Config, plan *zero.Plan) *locals {
	l := &locals{plan: plan, micro: c.GradientAccumulationSteps, next: make(chan struct{})}
	for range c.Comm.World {
		l.ranks = append(l.ranks, make([]float32, plan.Elements))
	}
	return l
}

// look is a zero.Probe. A rank's own backwards come one after the other, so its sums
// are made in their order.
func (l *locals) look(s zero.Sight) {
	if s.Life != zero.LifeLocal {
		return
	}
	sums := l.ranks[s.Rank][s.Elements.Lo:s.Elements.Hi]
	for i, v := range s.Values.F32 {
		sums[i] += v
	}
}

// take returns the means by rank, of gradients that were multiplied by scale.
func (l *locals) take(scale float64) [][]float32 {
	means := make([][]float32, len(l.ranks))
	for r, sums := range l.ranks {
		means[r] = make([]float32, len(sums))
		for i, v := range sums {
			means[r][i] = float32(float64(v) / (float64(l.micro) * scale))
		}
		clear(sums)
	}
	return means
}

// each runs a training and calls f on one goroutine with the means of each step.
func (l *locals) each(ctx context.Context, c *config.Config, steps int, f func(step int, means [][]float32) error) error {
	var failed error
	r := rehearsal{cfg: c, steps: steps, probe: l.look}
	r.after = func(ctx context.Context, step, _ int, result engine.Result) error {
		l.mu.Lock()
		next := l.next
		if l.met++; l.met == len(l.ranks) {
			l.met, l.next = 0, make(chan struct{})
			failed = f(step, l.take(result.LossScale))
			close(next)
		}
		l.mu.Unlock()
		select {
		case <-next:
			return failed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.run(ctx)
}

// record writes the local gradients of a training.
func record(ctx context.Context, c *config.Config, o bisectOptions, stdout io.Writer) error {
	j, err := rehearsal{cfg: c}.prepared()
	if err != nil {
		return err
	}
	all, err := shapes(c)
	if err != nil {
		return err
	}
	l := newLocals(c, j.plan)
	err = l.each(ctx, c, o.steps, func(step int, means [][]float32) error {
		for rank, g := range means {
			if err := bisect.Record(o.record, step, rank, j.plan, all, g); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "recorded the gradients of %d steps and %d ranks in %s\n", o.steps, len(l.ranks), o.record)
	return err
}

// against compares the local gradients of a training with recorded ones.
func against(ctx context.Context, c *config.Config, o bisectOptions, stdout io.Writer) error {
	j, err := rehearsal{cfg: c}.prepared()
	if err != nil {
		return err
	}
	recorded, err := bisect.OpenRecorded(o.against, j.plan, c.Comm.World)
	if err != nil {
		return usageError{err}
	}
	var first *bisect.Mismatch
	compared := 0
	err = newLocals(c, j.plan).each(ctx, c, recorded.Last(), func(step int, means [][]float32) error {
		var err error
		if first, err = recorded.Compare(step, means, o.tolerance); err != nil {
			return err
		}
		if first != nil {
			return bisect.ErrStop
		}
		compared = step
		return nil
	})
	switch {
	case first != nil:
		_, err = fmt.Fprintf(stdout, "%v\nbefore      %d steps without a difference\n", first, compared)
	case err == nil:
		_, err = fmt.Fprintf(stdout, "no difference in %d steps of %d ranks: the recorded gradients are those of %s\n", compared, c.Comm.World, o.a)
	}
	return err
}

// shapes returns the shapes of the network's parameters, in order of registration.
func shapes(c *config.Config) ([][]int, error) {
	params, err := unet.ParamShapes(modelConfig(c))
	all := make([][]int, len(params))
	for i, p := range params {
		all[i] = p.Shape
	}
	return all, err
}
