package engine

import "context"

// IsGradientAccumulationBoundary reports whether the next Backward is the last
// before Step. It is false when managed_gradient_accumulation is: the caller alone
// knows.
func (e *Engine) IsGradientAccumulationBoundary() bool {
	return e.managed && len(e.losses) == e.accum-1
}

// SetGradientAccumulationSteps changes the number of backwards per step, see
// zero.Optimizer.
func (e *Engine) SetGradientAccumulationSteps(ctx context.Context, n int) error {
	if err := e.opt.SetGradientAccumulationSteps(ctx, n); err != nil {
		return err
	}
	e.accum = n
	return nil
}

// NoSync runs f, in which backwards do not communicate, see zero.Optimizer. It
// needs reduction_order "local" and stage 0 or 1.
func (e *Engine) NoSync(f func() error) error { return e.opt.NoSync(f) }

// FullParam returns the fp32 master weights of the named parameter. Like the other
// methods that reach one parameter it is collective, see zero.Optimizer.
func (e *Engine) FullParam(ctx context.Context, name string) ([]float32, error) {
	return e.opt.FullParam(ctx, name)
}

// SetFullParam replaces the master weights of the named parameter, and the model's
// by their rounding.
func (e *Engine) SetFullParam(ctx context.Context, name string, w []float32) error {
	return e.opt.SetFullParam(ctx, name, w)
}

// FullGrad returns the mean, unscaled gradient of the named parameter, between the
// last Backward of a step and Step.
func (e *Engine) FullGrad(ctx context.Context, name string) ([]float32, error) {
	return e.opt.FullGrad(ctx, name)
}

// SetFullGrad replaces it.
func (e *Engine) SetFullGrad(ctx context.Context, name string, g []float32) error {
	return e.opt.SetFullGrad(ctx, name, g)
}

// FullState returns an optimizer state of the named parameter, for instance
// AdamW's "exp_avg".
func (e *Engine) FullState(ctx context.Context, name, key string) ([]float32, error) {
	return e.opt.FullState(ctx, name, key)
}

// SetFullState replaces it.
func (e *Engine) SetFullState(ctx context.Context, name, key string, x []float32) error {
	return e.opt.SetFullState(ctx, name, key, x)
}
