package fault_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
	"github.com/zerogap/zerogap/zero/fault"
)

// linear is the fixture as a model: a sum of products of weights and the fixture's
// gradients, one checkpointed segment for each parameter, in order of registration.
type linear []*framework.Param

func newLinear() linear {
	var m linear
	for i, n := range f1 {
		m = append(m, framework.NewParam(fmt.Sprintf("p%d", i), make([]float32, n), 1, n))
	}
	return m
}

func (m linear) Params() []*framework.Param { return m }

func (m linear) loss(t *framework.Tape, mode framework.Mode, micro, rank int) *framework.Tensor {
	y, lo := t.Input([]int{1, 1}, []float32{0}), 0
	for _, p := range m {
		if p.Len() == 0 {
			continue
		}
		g := make([]float32, p.Len())
		for j := range g {
			g[j] = exact(0, micro, rank, lo+j)
		}
		lo += p.Len()
		x := t.Input([]int{1, p.Len()}, g)
		y = t.Checkpoint(mode, y, func(y *framework.Tensor) *framework.Tensor {
			return t.Add(y, t.Linear(x, p.Value, nil))
		})
	}
	return y
}

// norms trains the linear model for a step and returns the norm and the weights.
func linearStep(t *testing.T, faults []string, mode framework.Mode, stage int) (norm float64, weights []float32) {
	t.Helper()
	lab, err := fault.New(faults, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(func(c *zero.Config) { c.ZeroOptimization.Stage = stage })
	err = local.Run(context.Background(), 2, func(ctx context.Context, c comm.Communicator) error {
		m, part := newLinear(), lab.Rank()
		e, err := engine.New(ctx, m, cfg, zero.Constant{Rate: 1}, part.Rule(zero.SGD{}), c, engine.WithParts(part.Parts, part.Hook, part.Tape...))
		if err != nil {
			return err
		}
		defer e.Close()
		if err := e.Backward(ctx, m.loss(e.Tape(), mode, 0, c.Rank())); err != nil {
			return err
		}
		r, err := e.Step(ctx)
		if err == nil && c.Rank() == 0 {
			norm = r.Norm
			for _, p := range m {
				weights = append(weights, p.Value.Float32s()...)
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v, %v: %v", faults, mode, err)
	}
	return norm, weights
}

// TestSegments: with reentrant checkpointing the first segment's parameter gets no
// gradient, or all but the last segment's come too late, and the norm is lower by just
// that. Other modes give no occasion, and the correct tape gives every gradient.
func TestSegments(t *testing.T) {
	tr := training{world: 2, grad: exact, cfg: config(nil)}
	right := tr.right(0)
	for _, tc := range []struct {
		name string
		keep zero.Interval // elements that have a gradient
	}{
		{fault.ReentrantNoGradInput, zero.Interval{Lo: 7, Hi: f1Len}},     // all but p0
		{fault.FirstBackwardEpilogue, zero.Interval{Lo: 1075, Hi: f1Len}}, // p5 alone
	} {
		for stage := range 3 {
			for _, mode := range []framework.Mode{framework.ModeNone, framework.ModeNonReentrant, framework.ModeReentrant} {
				keep := zero.Interval{Hi: f1Len}
				if mode == framework.ModeReentrant {
					keep = tc.keep
				}
				for _, faults := range [][]string{{tc.name}, nil} {
					if faults == nil {
						keep = zero.Interval{Hi: f1Len}
					}
					var squares float64
					norm, weights := linearStep(t, faults, mode, stage)
					for i, w := range weights {
						want := 0.0
						if i >= keep.Lo && i < keep.Hi {
							want = -right[i]
						}
						squares += want * want
						if float64(w) != want {
							t.Fatalf("%v, %v, stage %d: weight %d is %v, want %v", faults, mode, stage, i, w, want)
						}
					}
					if math.Abs(norm-math.Sqrt(squares)) > 1e-9 {
						t.Errorf("%v, %v, stage %d: norm %v, want %v", faults, mode, stage, norm, math.Sqrt(squares))
					}
				}
			}
		}
	}
}

// TestScheduleInBF16: the first 10 of 1000 timesteps get no noise, while the target is
// the noise still; the right schedule adds some at every timestep.
func TestScheduleInBF16(t *testing.T) {
	right, err := unet.NewSchedule(unet.DefaultScheduleConfig())
	if err != nil {
		t.Fatal(err)
	}
	lab, err := fault.New([]string{fault.ScheduleInBF16}, 0)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := lab.Schedule(right)
	if err != nil {
		t.Fatal(err)
	}
	for ts := range right.Len() {
		x, target := make([]float32, 1), make([]float32, 1)
		picture, noise := []float32{0.25}, []float32{1}
		wrong.AddNoise(x, picture, noise, ts)
		wrong.Target(target, unet.PredictEpsilon, picture, noise, ts)
		if none := x[0] == picture[0]; none != (ts < 10) || target[0] != 1 {
			t.Errorf("timestep %d: %v from a picture of %v and a target of %v", ts, x[0], picture[0], target[0])
		}
		right.AddNoise(x, picture, noise, ts)
		if x[0] == picture[0] {
			t.Errorf("the right schedule adds no noise at timestep %d", ts)
		}
	}
	if same, err := (&fault.Lab{}).Schedule(right); err != nil || same != right {
		t.Errorf("without the fault the schedule is another: %v", err)
	}
}
