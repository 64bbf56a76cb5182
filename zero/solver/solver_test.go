package solver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The model of these tests: y = relu(x·W1 + b1)·W2 + b2 on micro-batches of 4
// rows, loss mean (y - t)². It is written twice: as a Gorgonia graph and by hand.
const (
	rows, inputs, hidden = 4, 3, 8
	micros, steps        = 4, 12 // micro-batches of a step, over all ranks
)

var names = []string{"w1", "b1", "w2", "b2"}

var shapes = [][]int{{inputs, hidden}, {1, hidden}, {hidden, 1}, {1, 1}}

// value is a number between -1 and 1 that depends on its keys alone.
func value(keys ...int) float32 {
	h := uint32(2166136261)
	for _, k := range keys {
		h = (h ^ uint32(k+1)) * 16777619
		h ^= h >> 15
	}
	return float32(int32(h)) / (1 << 31)
}

func initial(i int) []float32 {
	w := make([]float32, shapes[i][0]*shapes[i][1])
	for k := range w {
		w[k] = value(100+i, k)
	}
	return w
}

// micro is micro-batch g of a step.
func micro(step, g int) (x, t []float32) {
	x, t = make([]float32, rows*inputs), make([]float32, rows)
	for r := range rows {
		for j := range inputs {
			x[r*inputs+j] = value(step, g, r, j)
		}
		t[r] = x[r*inputs] * x[r*inputs+1]
	}
	return x, t
}

// graph is the model as a Gorgonia program of one rank.
type graph struct {
	x, t       *gorgonia.Node
	learnables gorgonia.Nodes
	vm         gorgonia.VM
}

func newGraph(t *testing.T) *graph {
	g := gorgonia.NewGraph()
	m := &graph{
		x: gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, inputs), gorgonia.WithName("x")),
		t: gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, 1), gorgonia.WithName("t")),
	}
	for i, name := range names {
		v := tensor.New(tensor.WithShape(shapes[i]...), tensor.WithBacking(initial(i)))
		m.learnables = append(m.learnables, gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithName(name), gorgonia.WithValue(v), gorgonia.WithShape(shapes[i]...)))
	}
	p := m.learnables
	layer := func(x, w, b *gorgonia.Node) *gorgonia.Node {
		return gorgonia.Must(gorgonia.BroadcastAdd(gorgonia.Must(gorgonia.Mul(x, w)), b, nil, []byte{0}))
	}
	y := layer(gorgonia.Must(gorgonia.Rectify(layer(m.x, p[0], p[1]))), p[2], p[3])
	loss := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Sub(y, m.t))))))
	if _, err := gorgonia.Grad(loss, p...); err != nil {
		t.Fatal(err)
	}
	m.vm = gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(p...))
	return m
}

// backward runs the tape machine on micro-batch g.
func (m *graph) backward(step, g int) error {
	x, t := micro(step, g)
	if err := gorgonia.Let(m.x, tensor.New(tensor.WithShape(rows, inputs), tensor.WithBacking(x))); err != nil {
		return err
	}
	if err := gorgonia.Let(m.t, tensor.New(tensor.WithShape(rows, 1), tensor.WithBacking(t))); err != nil {
		return err
	}
	defer m.vm.Reset()
	return m.vm.RunAll()
}

func config(world, stage int, bf16 bool) zero.Config {
	cfg := zero.DefaultConfig()
	cfg.GradientAccumulationSteps = micros / world
	cfg.GradientClipping = 0.5
	cfg.BF16.Enabled = bf16
	cfg.ZeroOptimization.Stage = stage
	cfg.ZeroOptimization.OverlapComm = true
	cfg.ZeroOptimization.ReduceBucketSize = 10
	return cfg
}

const rate = 0.05

// viaGorgonia trains with a Solver and returns the weights that rank 0 ends with.
func viaGorgonia(t *testing.T, world, stage int, bf16 bool) [][]float32 {
	var weights [][]float32
	ranks(t, world, func(ctx context.Context, c comm.Communicator) error {
		var m *graph
		if err := Build(func() error { m = newGraph(t); return nil }); err != nil {
			return err
		}
		defer m.vm.Close()
		s, err := New(ctx, m.learnables, config(world, stage, bf16), zero.Constant{Rate: rate}, zero.DefaultAdamW(), c)
		if err != nil {
			return err
		}
		defer s.Close()
		for step := range steps {
			for k := range micros / world {
				if err := m.backward(step, k*world+c.Rank()); err != nil {
					return err
				}
				if err := s.Step(gorgonia.NodesToValueGrads(m.learnables)); err != nil {
					return err
				}
				if _, stepped := s.Last(); stepped != (k == micros/world-1) {
					return fmt.Errorf("call %d of step %d: stepped is %v", k, step, stepped)
				}
			}
		}
		if r, _ := s.Last(); r.AppliedSteps != steps {
			return fmt.Errorf("%d steps applied, want %d", r.AppliedSteps, steps)
		}
		if c.Rank() == 0 {
			for _, n := range m.learnables {
				weights = append(weights, n.Value().Data().([]float32))
			}
		}
		return nil
	})
	return weights
}

// byHand trains the same model with loops over []float32 and zero's own API.
func byHand(t *testing.T, world, stage int, bf16 bool) [][]float32 {
	var weights [][]float32
	ranks(t, world, func(ctx context.Context, c comm.Communicator) error {
		params := make([]zero.Param, len(names))
		for i := range names {
			params[i] = zero.Param{Name: names[i], Shape: shapes[i], Init: initial(i)}
		}
		opt, err := zero.New(ctx, params, config(world, stage, bf16), c, zero.DefaultAdamW())
		if err != nil {
			return err
		}
		defer opt.Close()
		w := make([][]float32, len(names))
		for step := range steps {
			for k := range micros / world {
				read(w, opt)
				x, target := micro(step, k*world+c.Rank())
				for i, g := range gradients(w, x, target) {
					if err := opt.GradReady(ctx, i, g); err != nil {
						return err
					}
				}
				if err := opt.EndBackward(ctx); err != nil {
					return err
				}
			}
			if _, err := opt.Step(ctx, rate); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			read(w, opt)
			weights = w
		}
		return nil
	})
	return weights
}

func read(w [][]float32, opt *zero.Optimizer) {
	for i := range w {
		v := opt.Value(i)
		w[i] = make([]float32, v.Len())
		for k := range w[i] {
			w[i][k] = float32(v.At(k))
		}
	}
}

// gradients of the model, by hand.
func gradients(w [][]float32, x, target []float32) [4][]float32 {
	w1, b1, w2, b2 := w[0], w[1], w[2], w[3]
	var g [4][]float32
	for i := range g {
		g[i] = make([]float32, len(w[i]))
	}
	for r := range rows {
		var h [hidden]float32
		for j := range inputs {
			for k := range hidden {
				h[k] += x[r*inputs+j] * w1[j*hidden+k]
			}
		}
		var y float32
		for k := range hidden {
			h[k] = max(h[k]+b1[k], 0)
			y += h[k] * w2[k]
		}
		dy := 2 * (y + b2[0] - target[r]) / rows // rows is a power of two: no rounding
		g[3][0] += dy
		for k := range hidden {
			g[2][k] += h[k] * dy
			if h[k] > 0 {
				g[1][k] += dy * w2[k]
				for j := range inputs {
					g[0][j*hidden+k] += x[r*inputs+j] * (dy * w2[k])
				}
			}
		}
	}
	return g
}

func ranks(t *testing.T, world int, f func(context.Context, comm.Communicator) error) {
	t.Helper()
	if err := local.Run(context.Background(), world, f); err != nil {
		t.Error(err)
	}
}

func TestGorgoniaTrainsTheBitsOfTheModelByHand(t *testing.T) {
	for _, bf16 := range []bool{false, true} {
		want := byHand(t, 1, 0, bf16)
		if slices.Equal(want[0], initial(0)) {
			t.Fatal("the training by hand moved nothing")
		}
		for _, world := range []int{1, 2, 4} {
			for _, stage := range []int{1, 2} {
				same(t, fmt.Sprintf("by hand, W=%d, stage %d, bf16 %v", world, stage, bf16), byHand(t, world, stage, bf16), want)
				same(t, fmt.Sprintf("Gorgonia, W=%d, stage %d, bf16 %v", world, stage, bf16), viaGorgonia(t, world, stage, bf16), want)
			}
		}
	}
}

func same(t *testing.T, what string, got, want [][]float32) {
	t.Helper()
	for i := range want {
		for k := range want[i] {
			if math.Float32bits(got[i][k]) != math.Float32bits(want[i][k]) {
				t.Errorf("%s: %s[%d] is %v, want %v", what, names[i], k, got[i][k], want[i][k])
				return
			}
		}
	}
}

func TestErrorsSayHowToMendThem(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*zero.Config, *graph)
		want   string
	}{
		"fp16":      {func(cfg *zero.Config, _ *graph) { cfg.FP16.Enabled = true }, "bf16"},
		"unmanaged": {func(cfg *zero.Config, _ *graph) { cfg.ManagedGradientAccumulation = false }, "managed_gradient_accumulation"},
		"scalar": {func(_ *zero.Config, m *graph) {
			g := gorgonia.NewGraph()
			m.learnables[1] = gorgonia.NewScalar(g, tensor.Float32, gorgonia.WithName("s"), gorgonia.WithValue(float32(1)))
		}, "vector of one element"},
		"float64": {func(_ *zero.Config, m *graph) {
			g := gorgonia.NewGraph()
			m.learnables[1] = gorgonia.NewVector(g, tensor.Float64, gorgonia.WithName("v"), gorgonia.WithShape(2), gorgonia.WithInit(gorgonia.Zeroes()))
		}, "want float32"},
		"no value": {func(_ *zero.Config, m *graph) {
			g := gorgonia.NewGraph()
			m.learnables[1] = gorgonia.NewVector(g, tensor.Float32, gorgonia.WithName("v"), gorgonia.WithShape(2))
		}, "WithInit"},
		"twice": {func(_ *zero.Config, m *graph) { m.learnables[1] = m.learnables[0] }, "named"},
	} {
		t.Run(name, func(t *testing.T) {
			m, cfg := newGraph(t), config(1, 0, false)
			defer m.vm.Close()
			c.change(&cfg, m)
			end := local.New(1)[0]
			defer end.Close()
			_, err := New(context.Background(), m.learnables, cfg, zero.Constant{Rate: rate}, zero.DefaultAdamW(), end)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not contain %q", err, c.want)
			}
		})
	}
}

func TestStepRefusesAnotherModel(t *testing.T) {
	m := newGraph(t)
	defer m.vm.Close()
	end := local.New(1)[0]
	defer end.Close()
	s, err := New(context.Background(), m.learnables, config(1, 0, false), zero.Constant{Rate: rate}, zero.DefaultAdamW(), end)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	refuse := func(want string, model []gorgonia.ValueGrad) {
		t.Helper()
		if err := s.Step(model); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
	model := gorgonia.NodesToValueGrads(m.learnables)
	refuse("3 nodes", model[:3])
	refuse("BindDualValues", model) // no backward has run: there is no gradient
	if err := m.backward(0, 0); err != nil {
		t.Fatal(err)
	}
	refuse(`"b2" in place 2`, []gorgonia.ValueGrad{model[0], model[1], model[3], model[2]})
	// Nothing was taken: a right call still works.
	for range micros {
		if err := s.Step(model); err != nil {
			t.Fatal(err)
		}
	}
	if r, stepped := s.Last(); !stepped || !r.Applied {
		t.Errorf("%d calls after the refused ones made no step", micros)
	}
}
