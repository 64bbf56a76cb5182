// Package solver trains Gorgonia models with the ZeRO optimizer: a Solver is a
// gorgonia.Solver, and takes the place of one in a program that has a tape machine
// per rank.
package solver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
)

// Solver is one rank's gorgonia.Solver. It is used from one goroutine; the ranks
// of a training call Step the same number of times.
//
// The weights stay the memory of the nodes, in fp32, which is what Gorgonia
// computes in. With bf16 enabled they hold values rounded to bf16, gradients
// travel in bf16, and the optimizer keeps fp32 master weights.
type Solver struct {
	ctx      context.Context
	opt      *zero.Optimizer
	schedule zero.Schedule
	accum    int
	micro    int // backwards since the last step
	nodes    []*gorgonia.Node
	weights  [][]float32 // the nodes' memory
	grads    [][]float32 // of the call of Step that is running
	widen    bool        // the optimizer's compute copies are not the nodes' memory
	last     zero.StepResult
	stepped  bool
}

// New builds a rank's solver on the learnable nodes of its graph, in the same
// order on every rank; their values are the initial weights, equal on all ranks.
// Ranks in one process build their graphs with Build.
// It is collective, as zero.New is: a difference between ranks is an error on
// each. ctx ends the training when it ends.
//
// Nodes must hold contiguous float32 tensors, have names of their own, and be given
// to the tape machine with gorgonia.BindDualValues, so that they have gradients.
// fp16, which needs a scaled loss, is refused.
func New(ctx context.Context, learnables gorgonia.Nodes, cfg zero.Config, schedule zero.Schedule, rule zero.Rule, c comm.Communicator) (*Solver, error) {
	s := &Solver{ctx: ctx, schedule: schedule, accum: cfg.GradientAccumulationSteps, nodes: learnables}
	params, err := s.describe(cfg)
	if err != nil {
		c.Abort(err)
		return nil, err
	}
	if s.opt, err = zero.New(ctx, params, cfg, c, rule); err != nil {
		return nil, err
	}
	s.load()
	return s, nil
}

// describe lists the nodes as parameters.
func (s *Solver) describe(cfg zero.Config) ([]zero.Param, error) {
	if cfg.FP16.Enabled {
		return nil, errors.New("fp16.enabled = true: a Gorgonia loss is not multiplied by the loss scale; use bf16, or fp32")
	}
	if !cfg.ManagedGradientAccumulation {
		return nil, errors.New("managed_gradient_accumulation = false: the solver steps after gradient_accumulation_steps calls; leave it true")
	}
	s.widen = cfg.Policy().Param != dtype.F32
	params := make([]zero.Param, len(s.nodes))
	s.weights, s.grads = make([][]float32, len(s.nodes)), make([][]float32, len(s.nodes))
	for i, n := range s.nodes {
		w, err := floats(n.Name(), "value", n.Value())
		if err != nil {
			return nil, err
		}
		s.weights[i] = w
		params[i] = zero.Param{Name: n.Name(), Shape: append([]int(nil), n.Shape()...), Init: w}
		if !s.widen { // the nodes' memory is the compute copy
			params[i].Init, params[i].Value = append([]float32(nil), w...), dtype.OfFloat32(w)
		}
	}
	return params, nil
}

// floats returns the memory of a Gorgonia value.
func floats(name, what string, v gorgonia.Value) ([]float32, error) {
	d, ok := v.(*tensor.Dense)
	switch {
	case v == nil:
		return nil, fmt.Errorf("node %q has no %s: give it one (gorgonia.WithInit, gorgonia.Let; gradients come with gorgonia.BindDualValues)", name, what)
	case !ok:
		return nil, fmt.Errorf("the %s of node %q is a %T: want a tensor (a scalar can be a vector of one element)", what, name, v)
	case d.Dtype() != tensor.Float32:
		return nil, fmt.Errorf("the %s of node %q is of %v: want float32", what, name, d.Dtype())
	case d.RequiresIterator() || !d.DataOrder().IsRowMajor():
		return nil, fmt.Errorf("the %s of node %q is not contiguous in row-major order: materialise it first", what, name)
	}
	return d.Data().([]float32), nil
}

// Step implements gorgonia.Solver: it hands over the gradients of one backward,
// those of a mean loss over this rank's micro-batch, sets them to zero as
// Gorgonia's own solvers do, and at the accumulation boundary (every
// gradient_accumulation_steps calls) updates the weights on all ranks. model is the
// list given to New, as gorgonia.NodesToValueGrads makes it.
func (s *Solver) Step(model []gorgonia.ValueGrad) error {
	if len(model) != len(s.nodes) {
		return fmt.Errorf("step with %d nodes, the solver was made for %d", len(model), len(s.nodes))
	}
	for i, v := range model {
		var err error
		if s.grads[i], err = s.gradient(i, v); err != nil {
			return err // nothing has been handed over
		}
	}
	// From the last to the first, as a backward pass would: buckets are reduced
	// while later ones are filled.
	for i, g := range slices.Backward(s.grads) {
		if err := s.opt.GradReady(s.ctx, i, g); err != nil {
			return err
		}
		clear(g)
	}
	if err := s.opt.EndBackward(s.ctx); err != nil {
		return err
	}
	s.stepped = false
	if s.micro++; s.micro < s.accum {
		return nil
	}
	s.micro = 0
	_, applied := s.opt.Steps()
	result, err := s.opt.Step(s.ctx, s.schedule.LR(applied))
	if err != nil {
		return err
	}
	s.last, s.stepped = result, true
	s.load()
	return nil
}

// gradient returns the gradient of node i, which v is.
func (s *Solver) gradient(i int, v gorgonia.ValueGrad) ([]float32, error) {
	name := s.nodes[i].Name()
	if n, ok := v.(*gorgonia.Node); ok && n != s.nodes[i] {
		return nil, fmt.Errorf("step with node %q in place %d, where the solver was made for %q", n.Name(), i, name)
	}
	w, err := floats(name, "value", v.Value())
	if err != nil {
		return nil, err
	}
	if len(w) > 0 && &w[0] != &s.weights[i][0] {
		return nil, fmt.Errorf("node %q has been given another value since the solver was made: copy into its tensor instead", name)
	}
	grad, err := v.Grad()
	if err != nil {
		return nil, fmt.Errorf("node %q has no gradient: run the tape machine first, made with gorgonia.BindDualValues: %w", name, err)
	}
	return floats(name, "gradient", grad)
}

// load brings the optimizer's compute copies to the nodes.
func (s *Solver) load() {
	if !s.widen {
		return
	}
	for i, w := range s.weights {
		kernel.Widen(w, s.opt.Value(i))
	}
}

// Last returns the result of the last optimizer step, and whether the last call of
// Step made one (false between accumulation boundaries).
func (s *Solver) Last() (result zero.StepResult, stepped bool) { return s.last, s.stepped }

// Optimizer gives access to the full weights and states, the plan and the counts.
func (s *Solver) Optimizer() *zero.Optimizer { return s.opt }

// Close stops the optimizer's goroutines. The communicator stays open: it is the
// caller's.
func (s *Solver) Close() error { return s.opt.Close() }
