// Package bisect finds where two trainings first differ: the step, the micro-step, the
// stage of a gradient's life, the bucket, the parameter, the rank, the element and both
// values. Since no knob of the optimizer changes a bit, two trainings that should be
// equal have no difference but a fault, and the first difference is where it is.
//
// Both trainings run side by side, step by step, and only hashes are kept: a few bytes
// for each rank, micro-step and stage. When a step's hashes differ, both run again, up
// to that step, and are looked at in full there.
package bisect

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zerogap/zerogap/zero"
)

// Training is one of two that are compared. It must be repeatable: two calls of Run do
// the same, bit for bit.
type Training struct {
	Name   string
	Plan   *zero.Plan
	Config zero.Config
	// Run trains with probe on every rank. After each step every rank calls gate
	// with the step's number, from 1, and ends with gate's error when there is one.
	// The context of that call ends when another rank has failed.
	Run func(ctx context.Context, probe zero.Probe, gate Gate) error
}

// Gate waits at the end of a step.
type Gate func(ctx context.Context, step int) error

func (t Training) world() int { return t.Plan.World }

// ErrStop is what a gate returns when a training is not needed any further.
var ErrStop = errors.New("compared far enough")

// Result is what a comparison found.
type Result struct {
	Steps    int // that were compared, whole
	Compared int // hashes
	// First is nil where nothing differs.
	First *Difference
}

// Compare runs a and b in lockstep for steps steps, or until they differ. The error is
// that of a training that failed where the other did not; both failing alike is the
// end of the comparison.
func Compare(ctx context.Context, a, b Training, steps int) (Result, error) {
	if err := fit(a, b); err != nil {
		return Result{}, err
	}
	m := newMeeting(a, b, steps)
	errA, errB := m.both(ctx, [2]Training{a, b}, [2]zero.Probe{m.digests[0].look, m.digests[1].look}, m.gate)
	r := Result{Steps: m.done, Compared: m.compared}
	if !m.found {
		if (errA == nil) != (errB == nil) {
			return r, fmt.Errorf("in step %d: %s: %w", m.done+1, failing(a, b, errA), errors.Join(errA, errB))
		}
		return r, errors.Join(errA, errB)
	}
	first, err := detail(ctx, a, b, m.done+1, m.first)
	r.First = first
	return r, err
}

func failing(a, b Training, errA error) string {
	if errA != nil {
		return a.Name + " ended, and " + b.Name + " did not"
	}
	return b.Name + " ended, and " + a.Name + " did not"
}

// fit refuses trainings whose gradients have nothing to do with each other.
func fit(a, b Training) error {
	p, q := a.Plan, b.Plan
	if p.Elements != q.Elements || p.Params() != q.Params() {
		return fmt.Errorf("%s has %d elements in %d parameters, %s %d in %d: only trainings of one model can be compared", a.Name, p.Elements, p.Params(), b.Name, q.Elements, q.Params())
	}
	for i := range p.Params() {
		s, _ := p.Span(i)
		if u, _ := q.Span(i); p.Name(i) != q.Name(i) || s != u {
			return fmt.Errorf("parameter %d is %q of %d elements in %s and %q of %d in %s: only trainings of one model can be compared", i, p.Name(i), s.Len(), a.Name, q.Name(i), u.Len(), b.Name)
		}
	}
	g, h := p.World*a.Config.GradientAccumulationSteps, q.World*b.Config.GradientAccumulationSteps
	if g != h {
		return fmt.Errorf("%s has %d micro-batches a step, %s %d: only equal numbers can be compared", a.Name, g, b.Name, h)
	}
	return nil
}

// meeting is where the ranks of both trainings wait for each other after each step.
type meeting struct {
	steps   int
	digests [2]*digest
	worlds  [2]int

	mu       sync.Mutex
	expected int
	came     int
	next     chan struct{} // closed when all have come
	over     bool
	failed   bool
	done     int // steps that were equal
	compared int
	found    bool
	first    point
}

func newMeeting(a, b Training, steps int) *meeting {
	return &meeting{
		steps: steps, worlds: [2]int{a.world(), b.world()}, expected: a.world() + b.world(), next: make(chan struct{}),
		digests: [2]*digest{newDigest(a.world()), newDigest(b.world())},
	}
}

// both runs two trainings at once and returns their errors, those of an ordered stop
// left out.
func (m *meeting) both(ctx context.Context, t [2]Training, probes [2]zero.Probe, gate Gate) (errA, errB error) {
	var errs [2]error
	var wg sync.WaitGroup
	for k := range t {
		wg.Go(func() {
			err := t[k].Run(ctx, probes[k], gate)
			if errors.Is(err, ErrStop) {
				err = nil
			}
			errs[k] = err
			m.leave(err)
		})
	}
	wg.Wait()
	return errs[0], errs[1]
}

// leave lets nobody wait for a training that has ended.
func (m *meeting) leave(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = m.failed || err != nil
	if !m.over {
		m.over = true
		close(m.next)
	}
}

// gate is called by every rank of both trainings after each step. The last to come
// compares.
func (m *meeting) gate(ctx context.Context, _ int) error {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return ErrStop
	}
	next := m.next
	if m.came++; m.came == m.expected {
		m.came, m.next = 0, make(chan struct{})
		m.compare()
		close(next)
	}
	m.mu.Unlock()
	select {
	case <-next:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return ErrStop
	}
	return nil
}

// compare looks at the step that all have ended. m.mu is held.
func (m *meeting) compare() {
	a, b := m.digests[0].take(), m.digests[1].take()
	first, found, compared := firstDifference(a, b, m.worlds[0], m.worlds[1])
	m.compared += compared
	if found {
		m.found, m.first, m.over = true, first, true
		return
	}
	if m.done++; m.done >= m.steps {
		m.over = true
	}
}
