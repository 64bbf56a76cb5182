package zero

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/zerogap/zerogap/zero/comm"
)

// backwards gives the one parameter of o its gradients, one backward each.
func backwards(o *Optimizer, grads ...float32) error {
	ctx := context.Background()
	for _, g := range grads {
		if err := errors.Join(o.GradReady(ctx, 0, []float32{g}), o.EndBackward(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// forEachOrder runs f on one parameter of one element, at every stage and order.
func forEachOrder(t *testing.T, world int, change func(*Config), f func(o *Optimizer, c comm.Communicator) error) {
	t.Helper()
	for stage := range 3 {
		for _, order := range []string{OrderGlobal, OrderLocal} {
			cfg := config(change)
			cfg.ZeroOptimization.Stage, cfg.ZeroOptimization.ReductionOrder = stage, order
			errs := trial{cfg: cfg, world: world, sizes: []int{1}}.withOptimizer(t, f)
			if err := errors.Join(errs...); err != nil {
				t.Errorf("stage %d, %s: %v", stage, order, err)
			}
		}
	}
}

// weightIs compares the only weight.
func weightIs(o *Optimizer, want float32) error {
	w, err := o.FullParam(context.Background(), "p0")
	if err == nil && w[0] != want {
		err = fmt.Errorf("weight %v, want %v", w[0], want)
	}
	return err
}

// TestUnmanaged: without managed_gradient_accumulation every backward before Step
// counts, in steps of any length; the mean is over the configured number.
func TestUnmanaged(t *testing.T) {
	forEachOrder(t, 2, func(c *Config) { c.ManagedGradientAccumulation = false }, func(o *Optimizer, c comm.Communicator) error {
		ctx := context.Background()
		var sum float32
		for _, grads := range [][]float32{{1, 2, 3}, {4}, {5, 6}} {
			if _, err := o.Step(ctx, 1); err == nil {
				return errors.New("a step without a backward")
			}
			if err := backwards(o, grads...); err != nil {
				return err
			}
			for _, g := range grads {
				sum += g
			}
			if _, err := o.Step(ctx, 1); err != nil {
				return err
			}
			if err := weightIs(o, -sum); err != nil {
				return err
			}
		}
		if err := o.GradReady(ctx, 0, []float32{1}); err != nil {
			return err
		}
		_, err := o.Step(ctx, 1)
		wantError(t, err, "step")
		return o.EndBackward(ctx)
	})
}

// TestFullGradEndsLocalSums: in "local" order a look at the gradient reduces the
// sums; a backward after it would be counted twice, and is refused until the step.
func TestFullGradEndsLocalSums(t *testing.T) {
	forEachOrder(t, 2, func(c *Config) { c.ManagedGradientAccumulation = false }, func(o *Optimizer, c comm.Communicator) error {
		ctx := context.Background()
		if err := backwards(o, 1, 2); err != nil {
			return err
		}
		if g, err := o.FullGrad(ctx, "p0"); err != nil || g[0] != 3 {
			return fmt.Errorf("gradient %v, %w", g, err)
		}
		sum, err := float32(3), backwards(o, 4)
		if o.plan.local() {
			wantError(t, err, "reduction_order = local", "call Step first")
		} else if sum += 4; err != nil {
			return err
		}
		if _, err := o.Step(ctx, 1); err != nil {
			return err
		}
		if err := weightIs(o, -sum); err != nil {
			return err
		}
		return backwards(o, 1)
	})
}

// TestNoSync: inside NoSync nothing is sent; where that cannot be, it is refused
// with the reason.
func TestNoSync(t *testing.T) {
	forEachOrder(t, 2, func(c *Config) { c.GradientAccumulationSteps = 3 }, func(o *Optimizer, c comm.Communicator) error {
		ctx := context.Background()
		if !o.plan.local() {
			err := o.NoSync(func() error { return errors.New("ran") })
			if o.cfg.ZeroOptimization.Stage == 2 {
				wantError(t, err, "stage = 2")
			} else {
				wantError(t, err, "reduction_order = global", "local")
			}
			return nil
		}
		for quiet := range 4 { // how many backwards, from the end, are inside
			before := o.Traffic().Gradients
			if err := backwards(o, []float32{2, 3, 4}[:3-quiet]...); err != nil {
				return err
			}
			sent := o.Traffic().Gradients
			if (sent == before) != (quiet > 0) {
				return fmt.Errorf("%d backwards inside: %v sent before, %v after", quiet, before, sent)
			}
			err := o.NoSync(func() error {
				wantError(t, o.NoSync(func() error { return nil }), "inside NoSync")
				if quiet == 0 {
					return nil
				}
				err := backwards(o, []float32{2, 3, 4}[3-quiet:]...)
				_, stepErr := o.Step(ctx, 1)
				wantError(t, stepErr, "NoSync")
				return err
			})
			if err != nil {
				return err
			}
			if now := o.Traffic().Gradients; now != sent {
				return fmt.Errorf("NoSync sent %v", now)
			}
			if _, err := o.Step(ctx, 1); err != nil {
				return err
			}
			if now := o.Traffic().Gradients; now.Collectives != before.Collectives+1 {
				return fmt.Errorf("%d reductions in a step", now.Collectives-before.Collectives)
			}
			if err := weightIs(o, -3*float32(quiet+1)); err != nil {
				return err
			}
		}
		if err := o.NoSync(func() error { return o.GradReady(ctx, 0, []float32{1}) }); err == nil {
			return errors.New("NoSync ends inside a backward")
		}
		wantError(t, o.NoSync(func() error { return nil }), "inside a backward")
		return o.EndBackward(ctx)
	})
}

// TestSetGradientAccumulationSteps: the number may change between steps, on all
// ranks alike.
func TestSetGradientAccumulationSteps(t *testing.T) {
	forEachOrder(t, 2, func(c *Config) { c.GradientAccumulationSteps = 4 }, func(o *Optimizer, c comm.Communicator) error {
		ctx := context.Background()
		var sum float32
		for _, grads := range [][]float32{{1, 2, 3, 6}, {2, 4}, {7}, {1, 2, 3}} {
			if err := o.SetGradientAccumulationSteps(ctx, len(grads)); err != nil {
				return err
			}
			var mean float32
			for k, g := range grads {
				if err := backwards(o, g); err != nil {
					return err
				}
				if mean += g; k+1 < len(grads) {
					wantError(t, o.SetGradientAccumulationSteps(ctx, 9), "between steps")
				}
			}
			if err := backwards(o, 1); err == nil {
				return errors.New("one backward too many")
			}
			if _, err := o.Step(ctx, 1); err != nil {
				return err
			}
			if sum -= mean / float32(len(grads)); weightIs(o, sum) != nil {
				return weightIs(o, sum)
			}
		}
		wantError(t, o.SetGradientAccumulationSteps(ctx, 0), "gradient_accumulation_steps = 0")
		wantError(t, o.SetGradientAccumulationSteps(ctx, 1+c.Rank()), "rank 0 has gradient_accumulation_steps = 1; rank 1 has gradient_accumulation_steps = 2")
		wantError(t, backwards(o, 1), "set up differently")
		return nil
	})
}

// TestUnusedInLocalOrder: a parameter without a gradient in some backward is told
// of at the end of the step, where the ranks meet.
func TestUnusedInLocalOrder(t *testing.T) {
	for _, managed := range []bool{true, false} {
		cfg := config(func(c *Config) {
			c.GradientAccumulationSteps = 2
			c.ManagedGradientAccumulation = managed
			c.ZeroOptimization.ReductionOrder = OrderLocal
			c.ZeroOptimization.IgnoreUnusedParameters = false
		})
		tr := trial{cfg: cfg, world: 2, sizes: []int{2, 3}, steps: 2, lr: 1, grad: exactGrad(2)}
		tr.must(t)
		tr.order = func(s, m, r int) []int {
			if s == 1 && m == 0 && r == 1 {
				return []int{0}
			}
			return []int{0, 1}
		}
		_, errs := tr.run(t)
		for _, err := range errs {
			wantError(t, err, `"p1" on rank 1`)
		}
	}
}

// TestCloseReleases: a closed optimizer keeps nothing but the weights.
func TestCloseReleases(t *testing.T) {
	for stage := range 3 {
		tr := trial{cfg: config(func(c *Config) { c.ZeroOptimization.Stage = stage; c.BF16.Enabled = true }), world: 1, sizes: []int{1000}, rule: DefaultAdamW(), grad: exactGrad(1)}
		errs := tr.withOptimizer(t, func(o *Optimizer, c comm.Communicator) error {
			ctx := context.Background()
			if err := errors.Join(tr.backward(o, 0, 0, 0), o.EndBackward(ctx)); err != nil {
				return err
			}
			if _, err := o.Step(ctx, 0); err != nil {
				return err
			}
			if err := errors.Join(o.Close(), o.Close()); err != nil {
				return err
			}
			if now, _ := o.Memory(); now != (Memory{Parameters: 2000}) {
				return fmt.Errorf("held after Close: %+v", now)
			}
			_, err := o.Step(ctx, 0)
			for _, err := range []error{err, o.GradReady(ctx, 0, nil), o.EndBackward(ctx), o.Drain(ctx), o.NoSync(func() error { return nil }), o.SetGradientAccumulationSteps(ctx, 2)} {
				wantError(t, err, "closed")
			}
			if o.Value(0).Len() != 1000 || o.LossScale() != 1 || o.Plan() == nil {
				return errors.New("weights, scale or plan are gone")
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("stage %d: %v", stage, err)
		}
	}
}
