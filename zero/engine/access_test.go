package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// dot is the model y = x·w + b on a vector of 3.
type dot struct{ w, b *framework.Param }

func newDot() *dot {
	return &dot{framework.NewParam("w", []float32{1, 2, 3}, 1, 3), framework.NewParam("b", []float32{0.5}, 1)}
}

func (d *dot) Params() []*framework.Param { return []*framework.Param{d.w, d.b} }

// loss is (x·w + b - 0)², whose gradient is 2y·x and 2y.
func (d *dot) loss(t *framework.Tape, x ...float32) *framework.Tensor {
	y := t.Linear(t.Input([]int{1, 3}, x), d.w.Value, d.b.Value)
	return t.MSELoss(y, t.Constant([]int{1, 1}, []float32{0}))
}

// onRanks runs f on the ranks of an engine over dot.
func onRanks(t *testing.T, world int, cfg zero.Config, rule zero.Rule, f func(e *engine.Engine, m *dot, c comm.Communicator) error, opts ...engine.Option) {
	t.Helper()
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range local.New(world) {
		wg.Go(func() {
			defer c.Close()
			m := newDot()
			e, err := engine.New(context.Background(), m, cfg, zero.Constant{Rate: 1}, rule, c, opts...)
			if err != nil {
				errs[r] = err
				return
			}
			if errs[r] = f(e, m, c); errs[r] != nil {
				c.Abort(errs[r])
			}
			errs[r] = errors.Join(errs[r], e.Close())
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func want(what string, got []float32, err error, want ...float32) error {
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return err
}

// TestAccessByName: weights, gradients and states of one parameter can be read and
// replaced, on all ranks alike.
func TestAccessByName(t *testing.T) {
	for stage := range 3 {
		cfg := zero.DefaultConfig()
		cfg.GradientClipping = 0
		cfg.ZeroOptimization.Stage = stage
		onRanks(t, 2, cfg, zero.DefaultAdamW(), func(e *engine.Engine, m *dot, c comm.Communicator) error {
			ctx := context.Background()
			if _, err := e.FullGrad(ctx, "w"); err == nil {
				return errors.New("a gradient before the first backward")
			}
			x := float32(c.Rank()) // y = 0.5, then 1+0.5
			if err := e.Backward(ctx, m.loss(e.Tape(), x, 0, 0)); err != nil {
				return err
			}
			g, err := e.FullGrad(ctx, "w")
			if err := want("gradient", g, err, 1.5, 0, 0); err != nil {
				return err
			}
			if err := e.SetFullGrad(ctx, "w", []float32{0, 0, 2}); err != nil {
				return err
			}
			r, err := e.Step(ctx)
			if err != nil || r.Norm != 2*1.4142135623730951 { // of 0, 0, 2 and, for b, (1+3)/2
				return fmt.Errorf("norm %v, %w", r.Norm, err)
			}
			v, err := e.FullState(ctx, "w", "exp_avg")
			if err := want("exp_avg", v, err, 0, 0, 0.2); err != nil {
				return err
			}
			if err := e.SetFullState(ctx, "b", "exp_avg_sq", []float32{7}); err != nil {
				return err
			}
			v, err = e.FullState(ctx, "b", "exp_avg_sq")
			if err := want("exp_avg_sq", v, err, 7); err != nil {
				return err
			}
			if err := e.SetFullParam(ctx, "w", []float32{4, 5, 6}); err != nil {
				return err
			}
			if err := want("compute copy", m.w.Value.Float32s(), nil, 4, 5, 6); err != nil {
				return err
			}
			w, err := e.FullParam(ctx, "w")
			return want("weights", w, err, 4, 5, 6)
		})
	}
}

// TestUnmanaged: without managed_gradient_accumulation the gradients of all
// backwards before Step count, and NoSync keeps them on their rank.
func TestUnmanaged(t *testing.T) {
	for _, order := range []string{zero.OrderGlobal, zero.OrderLocal} {
		for stage := range 3 {
			cfg := zero.DefaultConfig()
			cfg.GradientClipping = 0
			cfg.ManagedGradientAccumulation = false
			cfg.ZeroOptimization.Stage, cfg.ZeroOptimization.ReductionOrder = stage, order
			onRanks(t, 2, cfg, zero.SGD{}, func(e *engine.Engine, m *dot, c comm.Communicator) error {
				ctx := context.Background()
				if _, err := e.Step(ctx); err == nil {
					return errors.New("a step without a backward")
				}
				backward := func() error { return e.Backward(ctx, m.loss(e.Tape(), 0, 0, 0)) }
				quiet := e.NoSync(backward)
				if order == zero.OrderLocal && stage < 2 {
					if quiet != nil {
						return quiet
					}
				} else if quiet == nil {
					return errors.New("NoSync where every backward is reduced")
				} else if err := backward(); err != nil {
					return err
				}
				for range 2 {
					if err := backward(); err != nil {
						return err
					}
				}
				if e.IsGradientAccumulationBoundary() {
					return errors.New("a boundary that only the caller knows")
				}
				r, err := e.Step(ctx)
				if err != nil || r.Loss != 0.25 || r.Norm != 3 { // three times 2y = 1
					return fmt.Errorf("%+v, %w", r, err)
				}
				b, err := e.FullParam(ctx, "b")
				return want("b", b, err, 0.5-3)
			})
		}
	}
}

// TestGroupsAndFormats: a group has its own rule and rate, and a parameter its own
// format.
func TestGroupsAndFormats(t *testing.T) {
	cfg := zero.DefaultConfig()
	cfg.GradientClipping = 0
	cfg.BF16.Enabled = true
	cfg.ZeroOptimization.Stage = 2
	bias := func(p *framework.Param) bool { return p.Name == "b" }
	onRanks(t, 2, cfg, zero.SGD{}, func(e *engine.Engine, m *dot, c comm.Communicator) error {
		ctx := context.Background()
		if err := e.Backward(ctx, m.loss(e.Tape(), 1, 0, 0)); err != nil { // y = 1.5
			return err
		}
		if _, err := e.Step(ctx); err != nil {
			return err
		}
		if d := m.b.Value.DType(); d != dtype.F32 || m.w.Value.DType() != dtype.BF16 {
			return fmt.Errorf("b is %v, w is %v", d, m.w.Value.DType())
		}
		if err := want("w", m.w.Value.Float32s(), nil, 1-3, 2, 3); err != nil {
			return err
		}
		return want("b", m.b.Value.Float32s(), nil, 0.5-3.0/4)
	}, engine.WithGroups(func(p *framework.Param) int {
		if bias(p) {
			return 1
		}
		return 0
	}, zero.Group{}, zero.Group{LRScale: 0.25}), engine.WithParamDType(func(p *framework.Param) string {
		if bias(p) {
			return "fp32"
		}
		return ""
	}))
}

// twice lists its weight under two names.
type twice struct{ *dot }

func (m twice) Params() []*framework.Param {
	other := framework.NewParam("tied", m.w.Value.Data().F32, 1, 3)
	return []*framework.Param{m.w, m.b, other}
}

// TestTiedWeightListedTwice is refused, with both names.
func TestTiedWeightListedTwice(t *testing.T) {
	c := local.New(1)[0]
	defer c.Close()
	_, err := engine.New(context.Background(), twice{newDot()}, zero.DefaultConfig(), zero.Constant{}, zero.SGD{}, c)
	if err == nil || !strings.Contains(err.Error(), `"w" and "tied"`) {
		t.Errorf("error %v, want one that names both", err)
	}
}

// TestChangingAccumulation: the number of backwards may change between steps.
func TestChangingAccumulation(t *testing.T) {
	cfg := zero.DefaultConfig()
	cfg.GradientClipping = 0
	cfg.GradientAccumulationSteps = 4
	onRanks(t, 2, cfg, zero.SGD{}, func(e *engine.Engine, m *dot, c comm.Communicator) error {
		ctx := context.Background()
		for _, n := range []int{4, 2, 1, 3} {
			if err := e.SetGradientAccumulationSteps(ctx, n); err != nil {
				return err
			}
			for k := range n {
				if last := k == n-1; e.IsGradientAccumulationBoundary() != last {
					return fmt.Errorf("backward %d of %d: boundary %v", k+1, n, !last)
				}
				if err := e.Backward(ctx, m.loss(e.Tape(), 0, 0, 0)); err != nil {
					return err
				}
			}
			b, err := e.FullParam(ctx, "b")
			if err != nil {
				return err
			}
			if r, err := e.Step(ctx); err != nil || r.Norm != float64(max(2*b[0], -2*b[0])) {
				return fmt.Errorf("accumulation %d: %+v, %w", n, r, err)
			}
		}
		return nil
	})
}
