// Program plain trains a model that owns its weights as []float32, with no framework:
// a layer of tanh units learns the sine, on four ranks with ZeRO stage 2.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

const (
	world  = 4
	units  = 32
	batch  = 16 // points of a rank in a step
	steps  = 2000
	report = 400
)

func main() {
	if err := local.Run(context.Background(), world, train); err != nil {
		log.Fatal(err)
	}
}

// train is one rank.
func train(ctx context.Context, c comm.Communicator) error {
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.OverlapComm = true
	opt, err := zero.New(ctx, []zero.Param{
		{Name: "a", Shape: []int{units}, Init: random(1)},
		{Name: "b", Shape: []int{units}, Init: random(2)},
		{Name: "v", Shape: []int{units}, Init: random(3)},
	}, cfg, c, zero.DefaultAdamW())
	if err != nil {
		return err
	}
	defer opt.Close()
	m := model{a: opt.Value(0).F32, b: opt.Value(1).F32, v: opt.Value(2).F32} // Step writes these
	for step := range steps {
		loss, gradients := m.backward(step*world + c.Rank())
		for i, g := range gradients {
			if err := opt.GradReady(ctx, i, g); err != nil {
				return err
			}
		}
		if err := opt.EndBackward(ctx); err != nil {
			return err
		}
		result, err := opt.Step(ctx, 0.01)
		if err != nil {
			return err
		}
		if c.Rank() == 0 && (step+1)%report == 0 {
			fmt.Printf("step %4d  loss %.5f  norm %.4f\n", step+1, loss, result.Norm)
		}
	}
	return nil
}

// model is y = Σ v·tanh(a·x + b).
type model struct{ a, b, v []float32 }

// backward returns the mean squared error on batch number n and its gradients, in
// the order in which the parameters were given.
func (m *model) backward(n int) (loss float32, gradients [3][]float32) {
	for i := range gradients {
		gradients[i] = make([]float32, units)
	}
	r := rand.New(rand.NewPCG(7, uint64(n)))
	h := make([]float32, units)
	for range batch {
		x := 6*r.Float32() - 3
		y := float32(0)
		for k := range h {
			h[k] = float32(math.Tanh(float64(m.a[k]*x + m.b[k])))
			y += m.v[k] * h[k]
		}
		diff := y - float32(math.Sin(float64(2*x)))
		loss += diff * diff / batch
		for k := range h {
			inner := 2 * diff / batch * m.v[k] * (1 - h[k]*h[k])
			gradients[0][k] += inner * x
			gradients[1][k] += inner
			gradients[2][k] += 2 * diff / batch * h[k]
		}
	}
	return loss, gradients
}

// random returns initial weights, the same on every rank.
func random(seed uint64) []float32 {
	r, w := rand.New(rand.NewPCG(seed, 0)), make([]float32, units)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	return w
}
