package zero

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What this file offers is all that a checkpoint needs of an optimizer: package
// zero/checkpoint stores it in files.

// Progress is what an optimizer has counted: with weights, states and the data
// position, all that a training needs to go on as if it had never stopped.
type Progress struct {
	Tried         int           `json:"tried"`            // steps, skipped ones included
	Applied       int           `json:"applied"`          // steps; the learning rate and the rule count these
	SkippedInARow int           `json:"skipped_in_a_row"` // since the last applied one
	Scaler        *ScalerValues `json:"scaler,omitempty"` // nil when the loss scale is not dynamic
}

// ScalerValues are the values of a dynamic loss scale.
type ScalerValues struct {
	Scale float64 `json:"scale"`
	// OverflowsLeft is how many overflows the hysteresis still takes; the last
	// of them lowers the scale.
	OverflowsLeft int `json:"overflows_left"`
	GoodSteps     int `json:"good_steps"` // in a row
}

// Piece is a run of one parameter's elements on this rank.
type Piece struct {
	Param    int         // index in the list given to New
	Interval             // elements of the parameter, row-major
	Master   []float32   // their fp32 weights
	States   [][]float32 // the rule's states, in the order of StateNames
}

// Progress returns the counters between two steps.
func (o *Optimizer) Progress() Progress {
	p := Progress{Tried: o.tried, Applied: o.applied, SkippedInARow: o.inARow}
	if s := o.scaler; s.dynamic {
		p.Scaler = &ScalerValues{Scale: s.scale, OverflowsLeft: s.left, GoodSteps: s.good}
	}
	return p
}

// AtBoundary returns an error when a step has begun: gradients are in no
// checkpoint, so one is made between steps.
func (o *Optimizer) AtBoundary() error {
	switch {
	case o.closed:
		return errClosed
	case o.grads.failure() != nil:
		return o.grads.failure()
	case o.grads.open() || o.noSync:
		return errors.New("inside a backward: wait until Step has returned")
	case o.micro > 0:
		return fmt.Errorf("after %d of %d backwards of step %d: wait until Step has returned", o.micro, o.cfg.GradientAccumulationSteps, o.tried+1)
	}
	return nil
}

// Params returns the parameters given to New, without their initial weights.
func (o *Optimizer) Params() []Param {
	params := slices.Clone(o.params)
	for i := range params {
		params[i].Init, params[i].Loaded = nil, nil
	}
	return params
}

// StateNames returns the names of the states of parameter i; a frozen parameter
// has none.
func (o *Optimizer) StateNames(i int) []string {
	if o.params[i].Frozen {
		return nil
	}
	return o.groups[o.params[i].Group].Rule.States()
}

// Rules names the rules of the groups with their hyper-parameters.
func (o *Optimizer) Rules() string {
	names := make([]string, len(o.groups))
	for i, g := range o.groups {
		names[i] = g.Rule.String()
		if g.LRScale != 1 {
			names[i] += fmt.Sprintf(", learning rate times %g", g.LRScale)
		}
	}
	return strings.Join(slices.Compact(names), "; ")
}

// Partition returns the pieces of this rank's partition: each element of each
// trainable parameter is in one piece of one rank, at any stage. The slices are
// the optimizer's own memory; Step and Close end their use.
func (o *Optimizer) Partition() []Piece { return o.shard.pieces(o.plan, o.groups, o.shard.own) }

// Holding returns the pieces that this rank updates: its partition, and at stage
// 0 everything. A caller that restores a training writes all of them, between two
// steps, and then calls Resume.
func (o *Optimizer) Holding() []Piece { return o.shard.pieces(o.plan, o.groups, o.shard.region) }

// Resume makes the optimizer go on from p with the master weights and states that
// have been written to Holding: it rounds the weights into the compute copies of
// all ranks. It is collective, between two steps; different p are an error on every
// rank. A dynamic loss scale starts anew where p has none.
func (o *Optimizer) Resume(ctx context.Context, p Progress) error {
	if err := o.AtBoundary(); err != nil {
		return fmt.Errorf("resume %w", err)
	}
	if p.Applied < 0 || p.Tried < p.Applied || p.SkippedInARow < 0 || p.SkippedInARow > p.Tried-p.Applied {
		return fmt.Errorf("resume from %d applied of %d steps, %d skipped in a row: these numbers do not fit together", p.Applied, p.Tried, p.SkippedInARow)
	}
	fact := fmt.Sprintf("resume from step %d, %d applied, %d skipped in a row", p.Tried, p.Applied, p.SkippedInARow)
	if p.Scaler != nil {
		fact += fmt.Sprintf(", loss scale %+v", *p.Scaler)
	}
	if err := o.grads.drain(ctx); err != nil {
		return err
	}
	if err := o.agree(ctx, fact); err != nil {
		return err
	}
	o.tried, o.applied, o.inARow = p.Tried, p.Applied, p.SkippedInARow
	if s := o.scaler; s.dynamic && p.Scaler != nil {
		s.scale, s.left, s.good = p.Scaler.Scale, p.Scaler.OverflowsLeft, p.Scaler.GoodSteps
	}
	o.grads.nextStep(o.tried+1, nil)
	if err := o.weights.gather(ctx, o.comm, o.shard, false, o.signature()); err != nil {
		return o.grads.fail(err)
	}
	return nil
}

// pieces cuts the elements of within, which is a part of the shard's region, into
// runs of one parameter.
func (s *shard) pieces(plan *Plan, groups []Group, within Region) []Piece {
	var all []Piece
	for _, run := range within.Runs {
		for _, sp := range plan.spansIn(run) {
			iv := run.intersect(sp.Interval)
			part := s.region.cut(iv)
			piece := Piece{Param: sp.param, Interval: iv.shift(-sp.Lo), Master: s.master[part.Lo:part.Hi:part.Hi]}
			for k, name := range groups[sp.group].Rule.States() {
				piece.States = append(piece.States, s.stateRun(k, name, part))
			}
			all = append(all, piece)
		}
	}
	return all
}

// stateRun returns state k, by its name in the arrays, of the elements at the
// offsets part. They are of one parameter, so they lie in one run.
func (s *shard) stateRun(k int, name string, part Interval) []float32 {
	u := s.updates[s.updateAt(part.Lo)]
	lo := u.at[k] + part.Lo - u.Lo
	hi := lo + part.Len()
	return s.states.arrays[slices.Index(s.states.names, name)][lo:hi:hi]
}
