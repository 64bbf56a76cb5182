package unet

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

// Pass describes one forward and backward pass for a prediction.
type Pass struct {
	Batch, Height, Width int
	Compute              dtype.DType // of activations and compute copies of parameters
	Mode                 framework.Mode
	Segments             int // as SetCheckpointing takes it
}

// ActivationMemory predicts the most bytes of activations, their gradients and
// working memory that a forward and backward pass with a mean squared error at its
// end holds at once: what framework.Stats.Peak will say, to the byte. Nothing is
// computed, and nothing of that size allocated.
func ActivationMemory(cfg Config, p Pass) (int64, error) {
	if err := cfg.Validate(); err != nil {
		return 0, err
	}
	if p.Batch < 1 {
		return 0, fmt.Errorf("unet: a pass over a batch of %d pictures", p.Batch)
	}
	m := build(cfg, nn.NewDryScope(p.Compute))
	m.dry = true
	if err := m.SetCheckpointing(p.Mode, p.Segments); err != nil {
		return 0, err
	}
	t := framework.NewTape(framework.WithDryRun(), framework.WithCompute(p.Compute))
	shape := []int{p.Batch, cfg.InChannels, p.Height, p.Width}
	samples := make([]int, p.Batch)
	t.SetSample(framework.Sample{Samples: samples, Train: true})
	pred, err := m.Forward(t, t.Input(shape, nil), samples)
	if err != nil {
		return 0, err
	}
	if err := t.Backward(t.MSELoss(pred, t.Constant(pred.Shape(), nil)), 1); err != nil {
		return 0, err
	}
	return t.Memory().Peak, nil
}
