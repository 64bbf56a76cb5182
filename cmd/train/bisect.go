package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/bisect"
	"github.com/zerogap/zerogap/zero/engine"
)

// bisectOptions are the flags of "train bisect".
type bisectOptions struct {
	a, b, against, record string
	setsA, setsB          repeated
	steps                 int
	tolerance             float64
}

// bisectCommand is "train bisect": it finds where two trainings first differ.
//
//	train bisect -a A.toml -b B.toml [-steps N] [-set-a key=value]... [-set-b key=value]...
//	train bisect -a A.toml -record DIR [-steps N]
//	train bisect -a A.toml -against DIR [-tolerance X]
func bisectCommand(args []string, stdout, stderr io.Writer) error {
	var o bisectOptions
	f := newFlags("bisect")
	f.StringVar(&o.a, "a", "", "configuration `file` of the training that is right")
	f.StringVar(&o.b, "b", "", "configuration `file` of the training to compare with it")
	f.Var(&o.setsA, "set-a", "`key=value` overrides a key of a; may be repeated")
	f.Var(&o.setsB, "set-b", "`key=value` overrides a key of b; may be repeated")
	f.IntVar(&o.steps, "steps", 20, "optimizer `steps` to compare")
	f.StringVar(&o.record, "record", "", "write a's gradients into `folder`, one file for each step and rank")
	f.StringVar(&o.against, "against", "", "compare a's gradients with those recorded in `folder`")
	f.Float64Var(&o.tolerance, "tolerance", 0, "with -against, the relative `difference` that counts as none; recordings of other programs differ by roundings")
	if err := parseFlags(f, args, stderr); err != nil {
		return err
	}
	switch {
	case o.a == "" || (o.b != "") == (o.against+o.record != "") || o.against != "" && o.record != "":
		return usageError{errors.New("train bisect wants -a FILE and one of -b FILE, -record DIR and -against DIR")}
	case o.steps < 1 || !(o.tolerance >= 0):
		return usageError{fmt.Errorf("-steps %d, -tolerance %g: allowed are steps of at least 1 and a tolerance of at least 0", o.steps, o.tolerance)}
	}
	return bisectRun(context.Background(), o, stdout, stderr)
}

func bisectRun(ctx context.Context, o bisectOptions, stdout, stderr io.Writer) error {
	a, err := loadFor(o.a, o.setsA, "a", stderr)
	if err != nil {
		return err
	}
	switch {
	case o.record != "":
		return record(ctx, a, o, stdout)
	case o.against != "":
		return against(ctx, a, o, stdout)
	}
	b, err := loadFor(o.b, o.setsB, "b", stderr)
	if err != nil {
		return err
	}
	ta, err := training("a", a, o.steps)
	if err != nil {
		return err
	}
	tb, err := training("b", b, o.steps)
	if err != nil {
		return err
	}
	r, err := bisect.Compare(ctx, ta, tb, o.steps)
	if err != nil {
		return err
	}
	if r.First == nil {
		_, err = fmt.Fprintf(stdout, "no difference in %d steps: %d hashes of gradients, norms and weights are equal\n", r.Steps, r.Compared)
		return err
	}
	_, err = fmt.Fprintf(stdout, "%v\nbefore      %d steps without a difference\n", r.First, r.Steps)
	return err
}

// loadFor reads the configuration of one side.
func loadFor(path string, sets []string, side string, stderr io.Writer) (*config.Config, error) {
	c, err := config.Load(path, sets, checks()...)
	if err != nil {
		return nil, usageError{err}
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(stderr, "train bisect: warning: %s: %s\n", side, w)
	}
	return c, nil
}

// training describes one side of a comparison.
func training(name string, c *config.Config, steps int) (bisect.Training, error) {
	r := rehearsal{cfg: c, steps: steps}
	j, err := r.prepared()
	if err != nil {
		return bisect.Training{}, err
	}
	return bisect.Training{
		Name: name, Plan: j.plan, Config: zeroConfig(c),
		Run: func(ctx context.Context, probe zero.Probe, gate bisect.Gate) error {
			r := r
			r.probe = probe
			r.after = func(ctx context.Context, step, _ int, _ engine.Result) error { return gate(ctx, step) }
			return r.run(ctx)
		},
	}, nil
}
