package main

import (
	"context"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// averageState is the name of the moving average among the rule's states.
const averageState = "ema"

// withAverage runs f with the moving average of the weights, rounded, as the
// network's weights, where the configuration asks for one; f must not train. The
// training's own weights come back after it, bit for bit. It is collective.
func (t *trainer) withAverage(ctx context.Context, f func() error) (err error) {
	if t.cfg.Diffusion.EMADecay == 0 {
		return f()
	}
	opt := t.engine.Optimizer()
	params := opt.Params()
	for i, p := range params {
		value := opt.Value(i)
		if t.own == nil {
			t.own = make([]dtype.Buffer, len(params))
		}
		if t.own[i].Len() == 0 {
			t.own[i] = dtype.Make(value.DType, value.Len())
		}
		t.own[i].Copy(value)
		defer value.Copy(t.own[i])
		if p.Frozen {
			continue
		}
		average, err := opt.FullState(ctx, p.Name, averageState)
		if err != nil {
			return err
		}
		kernel.Round(value, average)
	}
	return f()
}
