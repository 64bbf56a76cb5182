// Program gorgonia trains a Gorgonia model on two ranks with ZeRO stage 2: each rank
// has a graph and a tape machine of its own, and solver.Solver where a
// gorgonia.AdamSolver would be.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/solver"
)

const (
	world  = 2
	batch  = 32 // rows of a rank in a step
	hidden = 16
	steps  = 600
	report = 150
)

func main() {
	if err := local.Run(context.Background(), world, train); err != nil {
		log.Fatal(err)
	}
}

// train is one rank.
func train(ctx context.Context, c comm.Communicator) error {
	var m *model
	err := solver.Build(func() (err error) { // one rank after the other
		m, err = newModel()
		return err
	})
	if err != nil {
		return err
	}
	defer m.vm.Close()
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = true
	s, err := solver.New(ctx, m.learnables, cfg, zero.Constant{Rate: 0.02}, zero.DefaultAdamW(), c)
	if err != nil {
		return err
	}
	defer s.Close()
	for step := range steps {
		if err := m.backward(step*world + c.Rank()); err != nil {
			return err
		}
		if err := s.Step(gorgonia.NodesToValueGrads(m.learnables)); err != nil {
			return err
		}
		if result, _ := s.Last(); c.Rank() == 0 && (step+1)%report == 0 {
			fmt.Printf("step %3d  loss %.4f  norm %.4f\n", step+1, m.loss.Data(), result.Norm)
		}
	}
	return nil
}

// model learns the product of two numbers: relu(x·w1 + b1)·w2.
type model struct {
	x, y       *gorgonia.Node
	learnables gorgonia.Nodes
	loss       gorgonia.Value
	vm         gorgonia.VM
}

func newModel() (*model, error) {
	g := gorgonia.NewGraph()
	matrix := func(name string, rows, cols int, init gorgonia.NodeConsOpt) *gorgonia.Node {
		return gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, cols), gorgonia.WithName(name), init)
	}
	m := &model{
		x: matrix("x", batch, 2, gorgonia.WithInit(gorgonia.Zeroes())),
		y: matrix("y", batch, 1, gorgonia.WithInit(gorgonia.Zeroes())),
	}
	w1, b1 := matrix("w1", 2, hidden, weights(1, 2, hidden)), matrix("b1", 1, hidden, weights(2, 1, hidden))
	w2 := matrix("w2", hidden, 1, weights(3, hidden, 1))
	m.learnables = gorgonia.Nodes{w1, b1, w2}

	xw := gorgonia.Must(gorgonia.Mul(m.x, w1))
	h := gorgonia.Must(gorgonia.Rectify(gorgonia.Must(gorgonia.BroadcastAdd(xw, b1, nil, []byte{0}))))
	diff := gorgonia.Must(gorgonia.Sub(gorgonia.Must(gorgonia.Mul(h, w2)), m.y))
	loss := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(diff))))
	gorgonia.Read(loss, &m.loss)
	if _, err := gorgonia.Grad(loss, m.learnables...); err != nil {
		return nil, err
	}
	m.vm = gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(m.learnables...))
	return m, nil
}

// weights are the same on every rank: a solver refuses ranks that differ.
func weights(seed uint64, rows, cols int) gorgonia.NodeConsOpt {
	r, w := rand.New(rand.NewPCG(seed, 0)), make([]float32, rows*cols)
	for i := range w {
		w[i] = float32(r.NormFloat64()) / 2
	}
	return gorgonia.WithValue(tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(w)))
}

// backward runs the tape machine on batch number n.
func (m *model) backward(n int) error {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	x, y := m.x.Value().Data().([]float32), m.y.Value().Data().([]float32)
	for i := range y {
		x[2*i], x[2*i+1] = 2*r.Float32()-1, 2*r.Float32()-1
		y[i] = x[2*i] * x[2*i+1]
	}
	defer m.vm.Reset()
	return m.vm.RunAll()
}
