// Program module trains a module of one's own, written with the layers of package nn,
// on two ranks with ZeRO stage 2 in bf16: a gated residual layer learns which class
// a noisy point of two spirals has.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/engine"
)

// Gated is a module: y = x + out(SiLU(gate(x))).
type Gated struct{ gate, out *nn.Linear }

// NewGated registers gate and out below s.
func NewGated(s *nn.Scope, dim int) *Gated {
	return &Gated{nn.NewLinear(s.Sub("gate"), dim, 2*dim), nn.NewLinear(s.Sub("out"), 2*dim, dim)}
}

// Forward maps x [B,dim] to the same shape.
func (g *Gated) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return t.Add(x, g.out.Forward(t, t.SiLU(g.gate.Forward(t, x))))
}

// Params returns gate, out.
func (g *Gated) Params() []*framework.Param { return nn.Params(g.gate, g.out) }

const (
	world  = 2
	batch  = 64 // points of a rank in a step
	steps  = 1500
	report = 300
)

func main() {
	if err := local.Run(context.Background(), world, train); err != nil {
		log.Fatal(err)
	}
}

// train is one rank.
func train(ctx context.Context, c comm.Communicator) error {
	m := newModel()
	cfg := zero.DefaultConfig()
	cfg.BF16.Enabled = true
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = true
	e, err := engine.New(ctx, m, cfg, zero.Constant{Rate: 0.005}, zero.DefaultAdamW(), c)
	if err != nil {
		return err
	}
	defer e.Close()
	for step := range steps {
		x, y := spirals(step*world + c.Rank())
		t := e.Tape()
		loss := t.MSELoss(m.Forward(t, t.Input([]int{batch, 2}, x)), t.Constant([]int{batch, 1}, y))
		if err := e.Backward(ctx, loss); err != nil {
			return err
		}
		result, err := e.Step(ctx)
		if err != nil {
			return err
		}
		if c.Rank() == 0 && (step+1)%report == 0 {
			fmt.Printf("step %4d  loss %.4f  norm %.4f\n", step+1, result.Loss, result.Norm)
		}
	}
	return nil
}

type model struct {
	in, out *nn.Linear
	blocks  []*Gated
}

func newModel() *model {
	const dim = 32
	s := nn.NewScope(1) // the seed of the initial weights, the same on every rank
	m := &model{in: nn.NewLinear(s.Sub("in"), 2, dim)}
	for i := range 3 {
		m.blocks = append(m.blocks, NewGated(s.Sub("blocks", i), dim))
	}
	m.out = nn.NewLinear(s.Sub("out"), dim, 1)
	return m
}

// Forward maps x [B,2] to [B,1].
func (m *model) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	h := m.in.Forward(t, x)
	for _, b := range m.blocks {
		h = b.Forward(t, h)
	}
	return m.out.Forward(t, h)
}

// Params implements engine.Model.
func (m *model) Params() []*framework.Param {
	p := m.in.Params()
	for _, b := range m.blocks {
		p = append(p, b.Params()...)
	}
	return append(p, m.out.Params()...)
}

// spirals returns batch number n: points, and -1 or 1 for the arm each lies on.
func spirals(n int) (x, y []float32) {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	x, y = make([]float32, 2*batch), make([]float32, batch)
	for i := range y {
		arm, turn := r.IntN(2), 3*math.Pi*math.Sqrt(r.Float64())
		angle, radius := turn+math.Pi*float64(arm), turn/(3*math.Pi)
		x[2*i] = float32(radius*math.Cos(angle) + 0.02*r.NormFloat64())
		x[2*i+1] = float32(radius*math.Sin(angle) + 0.02*r.NormFloat64())
		y[i] = float32(2*arm - 1)
	}
	return x, y
}
