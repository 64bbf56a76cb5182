package framework

import (
	"math"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// oracle runs the same expression in Gorgonia and here and compares the output
// and the gradients of all inputs, which are given loss = mean((y-target)²).
type oracle struct {
	name   string
	shapes [][]int
	ours   func(t *Tape, x []*Tensor) *Tensor
	theirs func(x []*G.Node) (*G.Node, error)
}

var oracles = []oracle{
	{"conv 3x3 pad 1", [][]int{{2, 3, 6, 5}, {4, 3, 3, 3}},
		func(t *Tape, x []*Tensor) *Tensor { return t.Conv2d(x[0], x[1], nil, 1, Pad(1)) },
		func(x []*G.Node) (*G.Node, error) {
			return G.Conv2d(x[0], x[1], tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1})
		}},
	{"conv 3x3 stride 2", [][]int{{2, 3, 7, 7}, {4, 3, 3, 3}},
		func(t *Tape, x []*Tensor) *Tensor { return t.Conv2d(x[0], x[1], nil, 2, Pad(1)) },
		func(x []*G.Node) (*G.Node, error) {
			return G.Conv2d(x[0], x[1], tensor.Shape{3, 3}, []int{1, 1}, []int{2, 2}, []int{1, 1})
		}},
	{"matrix product", [][]int{{5, 7}, {3, 7}},
		func(t *Tape, x []*Tensor) *Tensor { return t.Linear(x[0], x[1], nil) },
		func(x []*G.Node) (*G.Node, error) {
			w, err := G.Transpose(x[1], 1, 0)
			if err != nil {
				return nil, err
			}
			return G.Mul(x[0], w)
		}},
	{"batched matrix product", [][]int{{2, 5, 7}, {2, 7, 3}},
		func(t *Tape, x []*Tensor) *Tensor { return t.BatchMatMul(x[0], x[1], false) },
		func(x []*G.Node) (*G.Node, error) { return G.BatchedMatMul(x[0], x[1]) }},
	{"softmax", [][]int{{4, 6}},
		func(t *Tape, x []*Tensor) *Tensor { return t.Softmax(x[0], 1) },
		func(x []*G.Node) (*G.Node, error) { return G.SoftMax(x[0], 1) }},
	{"silu", [][]int{{4, 6}},
		func(t *Tape, x []*Tensor) *Tensor { return t.SiLU(x[0]) },
		func(x []*G.Node) (*G.Node, error) {
			s, err := G.Sigmoid(x[0])
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(x[0], s)
		}},
}

func TestOpsAgainstGorgonia(t *testing.T) {
	for _, o := range oracles {
		t.Run(o.name, func(t *testing.T) {
			g := G.NewGraph()
			tape := NewTape()
			var nodes []*G.Node
			var ps []*Param
			for i, shape := range o.shapes {
				p := param(uint64(30+i), string(rune('a'+i)), shape...)
				ps = append(ps, p)
				nodes = append(nodes, G.NodeFromAny(g, p.Value.Dense().Clone().(*tensor.Dense), G.WithName(p.Name)))
			}
			y := o.ours(tape, values(ps))
			target := uniform(99, y.Len())
			var out G.Value
			cost := theirLoss(t, g, o, nodes, y.Shape(), target, &out)
			if _, err := G.Grad(cost, nodes...); err != nil {
				t.Fatal(err)
			}
			vm := G.NewTapeMachine(g, G.BindDualValues(nodes...))
			defer vm.Close()
			if err := vm.RunAll(); err != nil {
				t.Fatal(err)
			}
			near(t, "output", y.Float32s(), out.Data().([]float32))
			if err := tape.Backward(tape.MSELoss(y, tape.Constant(y.Shape(), target)), 1); err != nil {
				t.Fatal(err)
			}
			for i, p := range ps {
				grad, err := nodes[i].Grad()
				if err != nil {
					t.Fatal(err)
				}
				near(t, "gradient of "+p.Name, p.Grad.F32, grad.Data().([]float32))
			}
		})
	}
}

func theirLoss(t *testing.T, g *G.ExprGraph, o oracle, nodes []*G.Node, shape []int, target []float32, value *G.Value) *G.Node {
	t.Helper()
	out, err := o.theirs(nodes)
	if err != nil {
		t.Fatal(err)
	}
	want := G.NodeFromAny(g, tensor.New(tensor.WithShape(shape...), tensor.WithBacking(target)), G.WithName("target"))
	G.Read(out, value)
	return G.Must(G.Mean(G.Must(G.Square(G.Must(G.Sub(out, want))))))
}

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, gorgonia has %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i] - want[i])); d > 1e-5*(1+math.Abs(float64(want[i]))) {
			t.Errorf("%s[%d] = %v, gorgonia has %v", what, i, got[i], want[i])
		}
	}
}
