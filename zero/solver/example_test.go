package solver_test

import (
	"context"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
	"github.com/zerogap/zerogap/zero/solver"
)

// Two ranks, each with a graph of its own, fit y = w·x to points of the line 3x.
func Example() {
	err := local.Run(context.Background(), 2, func(ctx context.Context, c comm.Communicator) error {
		var w *gorgonia.Node
		var vm gorgonia.VM
		err := solver.Build(func() error { // one rank after the other
			g := gorgonia.NewGraph()
			vector := func(name string, values ...float32) *gorgonia.Node {
				return gorgonia.NewVector(g, tensor.Float32, gorgonia.WithName(name), gorgonia.WithShape(len(values)),
					gorgonia.WithValue(tensor.New(tensor.WithShape(len(values)), tensor.WithBacking(values))))
			}
			at := float32(c.Rank() + 1) // this rank's point
			x, y := vector("x", at), vector("y", 3*at)
			w = vector("w", 0)
			diff := gorgonia.Must(gorgonia.Sub(gorgonia.Must(gorgonia.HadamardProd(w, x)), y))
			loss := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(diff))))
			if _, err := gorgonia.Grad(loss, w); err != nil {
				return err
			}
			vm = gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(w))
			return nil
		})
		if err != nil {
			return err
		}
		defer vm.Close()

		cfg := zero.DefaultConfig()
		cfg.ZeroOptimization.Stage = 2
		s, err := solver.New(ctx, gorgonia.Nodes{w}, cfg, zero.Constant{Rate: 0.1}, zero.SGD{}, c)
		if err != nil {
			return err
		}
		defer s.Close()
		for range 100 {
			if err := vm.RunAll(); err != nil {
				return err
			}
			if err := s.Step(gorgonia.NodesToValueGrads(gorgonia.Nodes{w})); err != nil {
				return err
			}
			vm.Reset()
		}
		if c.Rank() == 0 {
			fmt.Printf("w = %.3f\n", w.Value().Data())
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// w = [3.000]
}
