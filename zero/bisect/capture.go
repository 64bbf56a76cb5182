package bisect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/zerogap/zerogap/zero"
)

// view is one point in full: values by element.
type view struct {
	values  []float64
	present []bool // what was shown; the rest is zero
	bucket  []int  // number of the bucket, -1 where buckets have no part
	order   []int  // of first elements, as the sights came
}

// capture keeps one step of a training in full.
type capture struct {
	training Training
	step     int
	mu       sync.Mutex
	views    map[point]*view
}

func newCapture(t Training, step int) *capture {
	return &capture{training: t, step: step, views: map[point]*view{}}
}

// look is a zero.Probe.
func (c *capture) look(s zero.Sight) {
	if s.Step != c.step {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := pointOf(s, c.training.world())
	v := c.views[p]
	if v == nil {
		n := c.training.Plan.Elements
		if s.Life == zero.LifeNorm || s.Life == zero.LifeClip {
			n = 1
		}
		v = &view{values: make([]float64, n), present: make([]bool, n), bucket: make([]int, n)}
		c.views[p] = v
	}
	v.order = append(v.order, s.Elements.Lo)
	for i := range s.Values.Len() {
		e := s.Elements.Lo + i
		v.values[e], v.present[e], v.bucket[e] = s.Values.At(i), true, s.Bucket
	}
}

// gate ends the training after the step.
func (c *capture) gate(_ context.Context, step int) error {
	if step >= c.step {
		return ErrStop
	}
	return nil
}

// at returns the view of a point, nil when nothing was shown there.
func (c *capture) at(l zero.Life, part int) *view { return c.views[point{l, part}] }

// run trains up to the step.
func (c *capture) run(ctx context.Context) error {
	err := c.training.Run(ctx, c.look, c.gate)
	if err == nil || errors.Is(err, ErrStop) {
		return nil
	}
	if len(c.views) > 0 { // it ended in this step: what was seen is what there is
		return nil
	}
	return fmt.Errorf("%s, again up to step %d: %w", c.training.Name, c.step, err)
}

// detail runs both trainings again and looks at the step in which they differ.
func detail(ctx context.Context, a, b Training, step int, p point) (*Difference, error) {
	ca, cb := newCapture(a, step), newCapture(b, step)
	if err := errors.Join(ca.run(ctx), cb.run(ctx)); err != nil {
		return nil, err
	}
	d := &Difference{Step: step, Life: p.life, Micro: -1, Rank: -1, Bucket: -1, Element: -1, Offset: -1, a: ca, b: cb, point: p}
	d.locate()
	if d.Count == 0 {
		return nil, fmt.Errorf("step %d differs at %v, and does not when it is run again: a training is not repeatable", step, p)
	}
	d.suspect()
	return d, nil
}

// same compares bits; NaNs of any kind are one.
func same(x, y float64) bool {
	return math.Float64bits(x) == math.Float64bits(y) || x != x && y != y
}
