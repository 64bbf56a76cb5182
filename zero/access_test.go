package zero

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// withOptimizer runs f on the ranks of tr, before any step.
func (tr trial) withOptimizer(t fataler, f func(o *Optimizer, c comm.Communicator) error) []error {
	t.Helper()
	if tr.rule == nil {
		tr.rule = sgd{}
	}
	return ranks(t, tr.world, func(c comm.Communicator) error {
		o, err := New(context.Background(), tr.params(), tr.cfg, c, tr.rule, tr.groups...)
		if err != nil {
			return err
		}
		defer o.Close()
		return f(o, c)
	})
}

// accessTrials are ways to lay out the fixture, in two groups with different
// states and two formats.
func accessTrials() map[string]trial {
	all := map[string]trial{}
	for stage := range 3 {
		for _, world := range []int{1, 3} {
			for _, turns := range []bool{false, true} {
				for _, order := range []string{OrderGlobal, OrderLocal} {
					all[fmt.Sprintf("stage %d, world %d, round robin %v, %s", stage, world, turns, order)] = trial{
						cfg: config(func(c *Config) {
							c.GradientAccumulationSteps = 2
							c.BF16.Enabled = true
							c.ZeroOptimization.Stage = stage
							c.ZeroOptimization.RoundRobinGradients = turns
							c.ZeroOptimization.ReductionOrder = order
							c.ZeroOptimization.ReduceBucketSize = 100
						}),
						world: world, sizes: fixture, steps: 1, init: initial, grad: exactGrad(world),
						rule: DefaultAdamW(), groups: []Group{{}, {Rule: sgd{}}},
						group: func(p int) int { return p % 2 },
						dtype: func(p int) string { return []string{"fp32", "", ""}[p%3] },
					}
				}
			}
		}
	}
	return all
}

// TestFullAccess: what is read by name is what there is, on every rank and in every
// layout; what is written is what is read, bit for bit, and what the step uses.
func TestFullAccess(t *testing.T) {
	for name, tr := range accessTrials() {
		errs := tr.withOptimizer(t, func(o *Optimizer, c comm.Communicator) error {
			ctx := context.Background()
			for m := range 2 {
				if err := errors.Join(tr.backward(o, 0, m, c.Rank()), o.EndBackward(ctx)); err != nil {
					return err
				}
			}
			at := 0
			for i, n := range tr.sizes {
				if err := tr.checkAccess(o, i, at); err != nil {
					return fmt.Errorf("parameter %d: %w", i, err)
				}
				at += n
			}
			_, err := o.Step(ctx, 0)
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// checkAccess reads and writes all there is of parameter i, which begins at element
// at of all.
func (tr trial) checkAccess(o *Optimizer, i, at int) error {
	ctx, name, n := context.Background(), fmt.Sprintf("p%d", i), tr.sizes[i]
	weights, mean, other := make([]float32, n), make([]float32, n), make([]float32, n)
	for j := range n {
		weights[j], other[j] = initial(at+j), initial(at+j+5000)
		for m := range 2 {
			for r := range tr.world {
				mean[j] += tr.grad(0, m, r, at+j)
			}
		}
		mean[j] = float32(float64(mean[j]) / float64(2*tr.world))
	}
	same := func(what string, got []float32, err error, want []float32) error {
		if err == nil && !sameBits(got, want) {
			err = fmt.Errorf("%s is %v, want %v", what, got, want)
		}
		return err
	}
	w, err1 := o.FullParam(ctx, name)
	g, err2 := o.FullGrad(ctx, name)
	if err := errors.Join(same("weights", w, err1, weights), same("gradient", g, err2, mean)); err != nil {
		return err
	}
	if err := o.SetFullParam(ctx, name, other); err != nil {
		return err
	}
	w, err := o.FullParam(ctx, name)
	if err := same("weights", w, err, other); err != nil {
		return err
	}
	for j := range n {
		if got, want := float32(o.Value(i).At(j)), dtype.Round(o.Value(i).DType, other[j]); got != want {
			return fmt.Errorf("value %d is %v, want %v", j, got, want)
		}
	}
	if i%2 == 1 { // plain SGD
		if _, err := o.FullState(ctx, name, "exp_avg"); err == nil {
			return errors.New("a state that the rule has not")
		}
		return nil
	}
	for _, key := range []string{"exp_avg", "exp_avg_sq"} {
		v, err := o.FullState(ctx, name, key)
		if err := same(key, v, err, make([]float32, n)); err != nil {
			return err
		}
		if err := o.SetFullState(ctx, name, key, other); err != nil {
			return err
		}
		v, err = o.FullState(ctx, name, key)
		if err := same(key, v, err, other); err != nil {
			return err
		}
	}
	return nil
}

// TestSetFullGrad: the step uses the gradient that was set, and nothing of it is
// left afterwards.
func TestSetFullGrad(t *testing.T) {
	for stage := range 3 {
		tr := trial{cfg: config(func(c *Config) { c.ZeroOptimization.Stage = stage }), world: 2, sizes: []int{3, 2}, grad: exactGrad(2)}
		errs := tr.withOptimizer(t, func(o *Optimizer, c comm.Communicator) error {
			ctx := context.Background()
			for step, want := range []float64{5, 10} {
				if err := errors.Join(tr.backward(o, 0, 0, c.Rank()), o.EndBackward(ctx)); err != nil {
					return err
				}
				x := float32(step + 1)
				err := errors.Join(o.SetFullGrad(ctx, "p0", []float32{0, 3 * x, 0}), o.SetFullGrad(ctx, "p1", []float32{4 * x, 0}))
				if err != nil {
					return err
				}
				if r, err := o.Step(ctx, 1); err != nil || r.Norm != want {
					return fmt.Errorf("norm %v, want %v, %w", r.Norm, want, err)
				}
			}
			w, err := o.FullParam(ctx, "p1")
			if err == nil && !slices.Equal(w, []float32{-12, 0}) {
				err = fmt.Errorf("weights %v", w)
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("stage %d: %v", stage, err)
		}
	}
}

// TestAccessErrors: a mistake is an error that says what there is, and changes
// nothing; ranks that set different values all learn of it.
func TestAccessErrors(t *testing.T) {
	tr := trial{cfg: config(func(c *Config) { c.ZeroOptimization.Stage = 1; c.GradientAccumulationSteps = 2 }), world: 2,
		sizes: []int{3, 2}, frozen: map[int]bool{1: true}, grad: exactGrad(2), rule: DefaultAdamW()}
	errs := tr.withOptimizer(t, func(o *Optimizer, c comm.Communicator) error {
		ctx := context.Background()
		refused := func(_ any, err error) error { return err }
		wantError(t, refused(o.FullParam(ctx, "p2")), `"p2"`, `there are "p0", "p1"`)
		wantError(t, refused(o.FullState(ctx, "p0", "momentum")), `"momentum"`, `has "exp_avg", "exp_avg_sq"`)
		wantError(t, refused(o.FullState(ctx, "p1", "exp_avg")), `"p1" is frozen`)
		wantError(t, refused(o.FullGrad(ctx, "p1")), `"p1" is frozen`)
		wantError(t, o.SetFullParam(ctx, "p0", make([]float32, 4)), `"p0"`, "weights of 4 elements", "want 3")
		wantError(t, refused(o.FullGrad(ctx, "p0")), "after 0 of 2 backwards", "between the last backward and Step")
		if err := o.GradReady(ctx, 0, make([]float32, 3)); err != nil {
			return err
		}
		wantError(t, refused(o.FullParam(ctx, "p0")), "EndBackward")
		if err := o.EndBackward(ctx); err != nil {
			return err
		}
		wantError(t, refused(o.FullGrad(ctx, "p0")), "after 1 of 2 backwards")
		if err := o.SetFullParam(ctx, "p1", []float32{5, 6}); err != nil { // frozen weights may be set
			return err
		}
		if w, err := o.FullParam(ctx, "p1"); err != nil || !slices.Equal(w, []float32{5, 6}) {
			return fmt.Errorf("frozen weights %v, %w", w, err)
		}
		err := o.SetFullState(ctx, "p0", "exp_avg", []float32{1, 2, float32(c.Rank())})
		wantError(t, err, `rank 0 has exp_avg of parameter "p0"`, "; rank 1 has")
		wantError(t, o.EndBackward(ctx), "set up differently") // it ends the training
		if err := o.Close(); err != nil {
			return err
		}
		wantError(t, refused(o.FullParam(ctx, "p0")), "closed")
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
