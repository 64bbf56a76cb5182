package engine_test

import (
	"context"
	"fmt"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// Towers is a module of one's own: out(SiLU(left(x), right(x) side by side)).
type Towers struct{ left, right, out *nn.Linear }

func NewTowers(s *nn.Scope, in, hidden int) *Towers {
	return &Towers{
		left:  nn.NewLinear(s.Sub("left"), in, hidden),
		right: nn.NewLinear(s.Sub("right"), in, hidden),
		out:   nn.NewLinear(s.Sub("out"), 2*hidden, 1),
	}
}

func (m *Towers) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return m.out.Forward(t, t.SiLU(t.Concat(m.left.Forward(t, x), m.right.Forward(t, x))))
}

func (m *Towers) Params() []*framework.Param { return nn.Params(m.left, m.right, m.out) }

// Two ranks train a module on four points each, with the optimizer's states and
// gradients shared out between them.
func Example() {
	err := local.Run(context.Background(), 2, func(ctx context.Context, c comm.Communicator) error {
		model := NewTowers(nn.NewScope(1), 2, 8)
		cfg := zero.DefaultConfig()
		cfg.ZeroOptimization.Stage = 2
		e, err := engine.New(ctx, model, cfg, zero.Constant{Rate: 0.02}, zero.DefaultAdamW(), c)
		if err != nil {
			return err
		}
		defer e.Close()
		sign := float32(1 - 2*c.Rank()) // of this rank's points
		x, y := []float32{0, 0, 0, sign, sign, 0, sign, sign}, []float32{0, 0, 0, 1}
		var loss float64
		for range 300 {
			t := e.Tape()
			pred := model.Forward(t, t.Input([]int{4, 2}, x))
			if err := e.Backward(ctx, t.MSELoss(pred, t.Constant([]int{4, 1}, y))); err != nil {
				return err
			}
			r, err := e.Step(ctx)
			if err != nil {
				return err
			}
			loss = r.Loss
		}
		if c.Rank() == 0 {
			fmt.Println("learned x·y:", loss < 0.01)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// learned x·y: true
}
