package nn_test

import (
	"fmt"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

// MLP is a module of two layers and an activation.
type MLP struct {
	in, out *nn.Linear
}

func NewMLP(s *nn.Scope, in, hidden, out int) *MLP {
	return &MLP{
		in:  nn.NewLinear(s.Sub("in"), in, hidden),
		out: nn.NewLinear(s.Sub("out"), hidden, out),
	}
}

func (m *MLP) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return m.out.Forward(t, t.SiLU(m.in.Forward(t, x)))
}

func (m *MLP) Params() []*framework.Param { return nn.Params(m.in, m.out) }

// A model of one's own is a struct of layers with a Params method. Here one
// learns y = x₀ − x₁ by gradient descent.
func Example() {
	model := NewMLP(nn.NewScope(7).Sub("mlp"), 2, 8, 1)
	for _, p := range model.Params() {
		fmt.Println(p.Name, p.Shape())
	}

	x := []float32{0, 0, 0, 1, 1, 0, 1, 1}
	y := []float32{0, -1, 1, 0}
	tape := framework.NewTape()
	var loss float64
	for range 500 {
		pred := model.Forward(tape, tape.Input([]int{4, 2}, x))
		l := nn.MSELoss(tape, pred, tape.Constant([]int{4, 1}, y))
		loss = l.Item()
		if err := tape.Backward(l, 1); err != nil {
			fmt.Println(err)
			return
		}
		for _, p := range model.Params() {
			w := p.Value.Data().F32
			for i, g := range p.Grad.F32 {
				w[i] -= 0.1 * g
			}
			p.Grad.Clear()
		}
	}
	fmt.Println("learned:", loss < 1e-3)
	// Output:
	// mlp.in.weight [8 2]
	// mlp.in.bias [8]
	// mlp.out.weight [1 8]
	// mlp.out.bias [1]
	// learned: true
}
