package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/engine"
	"github.com/zerogap/zerogap/zero/fault"
)

// newLab returns the faults that a configuration asks for, none as a rule.
func newLab(c *config.Config) (*fault.Lab, error) {
	lab, err := fault.New(c.Lab.Fault, c.Lab.Seed)
	if err != nil {
		return nil, err
	}
	return lab.Late(c.Lab.Late), nil
}

// checkLab refuses faults that do not go together, or with the rest.
func checkLab(c *config.Config) error {
	lab, err := newLab(c)
	if err != nil {
		return fmt.Errorf("lab.fault: %w", err)
	}
	local := c.ZeroOptimization.ReductionOrder == zero.OrderLocal && c.ZeroOptimization.Stage < 2
	if lab.Rank().Parts.Route != nil && local {
		return fmt.Errorf("lab.fault = %q: faults of the buckets need zero_optimization.reduction_order = global", c.Lab.Fault)
	}
	return nil
}

// faulty returns the rule of a rank and the engine's options with the configured
// faults in them, and whoever watches.
func (j *job) faulty() (zero.Rule, []engine.Option, error) {
	lab, err := newLab(j.cfg)
	if err != nil {
		return nil, nil, err
	}
	if j.strike != nil {
		lab = lab.Watch(j.strike)
	}
	part := lab.Rank()
	part.Parts.Probe = j.probe
	return part.Rule(rule(j.cfg)), []engine.Option{engine.WithParts(part.Parts, part.Hook, part.Tape...)}, nil
}

// labSchedule returns the noise schedule with the configured faults in it.
func labSchedule(c *config.Config, s *unet.Schedule) (*unet.Schedule, error) {
	lab, err := newLab(c)
	if err != nil {
		return nil, err
	}
	return lab.Schedule(s)
}

// labelled puts the names of the faults behind the name of a job.
func labelled(c *config.Config, job string) string {
	if len(c.Lab.Fault) == 0 {
		return job
	}
	return job + "-fault-" + strings.Join(c.Lab.Fault, "-")
}

// faultTitle begins the title of a training with faults.
func faultTitle(c *config.Config) string {
	if len(c.Lab.Fault) == 0 {
		return ""
	}
	return "FAULTS " + strings.Join(c.Lab.Fault, ", ") + ": "
}

func variants(c *config.Config) unet.Variants {
	m := c.Model
	return unet.Variants{
		NumClasses: m.NumClasses, LabelDropout: m.LabelDropout, ParallelBranches: m.ParallelBranches,
		SelfConditioning: m.SelfConditioning, SharedMiddle: m.SharedMiddle, CheckpointConvIn: m.CheckpointConvIn,
	}
}

// labels returns the labels that the network takes, nil when it takes none.
func labels(c *config.Config, all []int) []int {
	if c.Model.NumClasses == 0 {
		return nil
	}
	return all
}

// saveModel writes the network in diffusers' format, where it has one there: the
// compute copy, as it was trained, which the pictures were drawn with.
func (t *trainer) saveModel() error {
	if variants(t.cfg) != (unet.Variants{}) {
		return nil
	}
	return t.model.SaveDiffusers(filepath.Join(t.out, networkDir), nil)
}
