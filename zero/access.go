package zero

import (
	"context"
	"errors"
)

var errLater = errors.New("not part of the optimizer yet")

// FullParam returns the fp32 master weights of the named parameter.
func (o *Optimizer) FullParam(ctx context.Context, name string) ([]float32, error) {
	return nil, errLater
}

// SetFullParam replaces them.
func (o *Optimizer) SetFullParam(ctx context.Context, name string, w []float32) error {
	return errLater
}

// FullGrad returns the mean gradient of the named parameter.
func (o *Optimizer) FullGrad(ctx context.Context, name string) ([]float32, error) {
	return nil, errLater
}

// SetFullGrad replaces it.
func (o *Optimizer) SetFullGrad(ctx context.Context, name string, g []float32) error {
	return errLater
}

// FullState returns a state of the named parameter.
func (o *Optimizer) FullState(ctx context.Context, name, key string) ([]float32, error) {
	return nil, errLater
}

// SetFullState replaces it.
func (o *Optimizer) SetFullState(ctx context.Context, name, key string, x []float32) error {
	return errLater
}

// NoSync runs f, in which backwards do not communicate.
func (o *Optimizer) NoSync(f func() error) error {
	return errLater
}

// SetGradientAccumulationSteps changes the number of backwards per step.
func (o *Optimizer) SetGradientAccumulationSteps(ctx context.Context, n int) error {
	return errLater
}
