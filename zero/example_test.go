package zero_test

import (
	"context"
	"fmt"
	"log"
	"math"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// Adagrad is a rule of one's own: elementwise arithmetic on flat float32 spans.
type Adagrad struct{ Eps float64 }

func (a Adagrad) String() string   { return fmt.Sprintf("Adagrad(eps=%g)", a.Eps) }
func (a Adagrad) States() []string { return []string{"sum"} }

func (a Adagrad) Update(step int, lr float64, w, g []float32, state [][]float32) {
	sum := state[0]
	for i := range w {
		sum[i] += float32(g[i] * g[i])
		w[i] -= float32(lr * float64(g[i]) / (math.Sqrt(float64(sum[i])) + a.Eps))
	}
}

// A rule that zero does not have needs about ten lines. Stages, formats, clipping,
// loss scale, parameter groups and access by name work with it as with any other.
func ExampleRule() {
	c := local.New(1)[0]
	defer c.Close()
	ctx := context.Background()
	params := []zero.Param{{Name: "w", Shape: []int{2}, Init: []float32{1, 1}}}
	opt, err := zero.New(ctx, params, zero.DefaultConfig(), c, Adagrad{Eps: 1e-10})
	if err != nil {
		log.Fatal(err)
	}
	defer opt.Close()
	for range 3 {
		if err := opt.GradReady(ctx, 0, []float32{0.5, -0.25}); err != nil {
			log.Fatal(err)
		}
		if err := opt.EndBackward(ctx); err != nil {
			log.Fatal(err)
		}
		if _, err := opt.Step(ctx, 0.1); err != nil {
			log.Fatal(err)
		}
	}
	sum, err := opt.FullState(ctx, "w", "sum")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sum)
	fmt.Printf("%.4f\n", opt.Value(0).F32)
	// Output:
	// [0.75 0.1875]
	// [0.7716 1.2284]
}

// A model whose weights are []float32 keeps its own loop and memory. Four ranks
// fit y = a·x + b to points of the line 2x + 1, each on points of its own.
func Example() {
	if err := local.Run(context.Background(), 4, fitLine); err != nil {
		fmt.Println(err)
	}
	// Output:
	// y = 2.000 x + 1.000
}

func fitLine(ctx context.Context, c comm.Communicator) error {
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = true
	opt, err := zero.New(ctx, []zero.Param{
		{Name: "a", Shape: []int{1}, Init: []float32{0}},
		{Name: "b", Shape: []int{1}, Init: []float32{0}},
	}, cfg, c, zero.SGD{Momentum: 0.9})
	if err != nil {
		return err
	}
	defer opt.Close()
	a, b := opt.Value(0).F32, opt.Value(1).F32 // Step writes these
	for step := range 200 {
		x := float32((step+c.Rank())%4) - 1.5
		slope := 2 * (a[0]*x + b[0] - (2*x + 1)) // of the squared error

		if err := opt.GradReady(ctx, 1, []float32{slope}); err != nil {
			return err
		}
		if err := opt.GradReady(ctx, 0, []float32{slope * x}); err != nil {
			return err
		}
		if err := opt.EndBackward(ctx); err != nil {
			return err
		}
		if _, err := opt.Step(ctx, 0.05); err != nil {
			return err
		}
	}
	if c.Rank() == 0 {
		fmt.Printf("y = %.3f x + %.3f\n", a[0], b[0])
	}
	return nil
}
