package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/internal/progress"
)

// gapOptions are the flags of "train gap".
type gapOptions struct {
	config, out string
	sets        repeated
	quick       bool
	steps       int
	seeds       int
}

// gapCommand is "train gap": it trains one model in the ways of a public report of a
// convergence gap, with this optimizer and with the faults that were found behind the
// report, and says which rows of it come out.
//
//	train gap -config configs/gap.toml -out DIR [-quick] [-steps N] [-seeds N] [-set key=value]...
func gapCommand(args []string, stdout, stderr io.Writer) error {
	var o gapOptions
	f := newFlags("gap")
	f.StringVar(&o.config, "config", "configs/gap.toml", "configuration `file` of the training that is varied")
	f.StringVar(&o.out, "out", "", "`folder` of the report, which must not exist or be empty")
	f.Var(&o.sets, "set", "`key=value` overrides a configuration key; may be repeated")
	f.BoolVar(&o.quick, "quick", false, "few steps and one seed: a first look within a minute and a half")
	f.IntVar(&o.steps, "steps", 0, "optimizer `steps` of each run; 0 is run.steps, a quarter of them with -quick")
	f.IntVar(&o.seeds, "seeds", 0, "runs of each variant, with other `seeds`; 0 is 3, and 1 with -quick")
	if err := parseFlags(f, args, stderr); err != nil {
		return err
	}
	switch {
	case o.out == "":
		return usageError{errors.New("no folder for the report: give one with -out, for example -out out/gap")}
	case o.steps < 0 || o.seeds < 0:
		return usageError{fmt.Errorf("-steps %d, -seeds %d: allowed are numbers of at least 0", o.steps, o.seeds)}
	}
	g, err := prepareGap(o, stdout, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	defer onInterrupt(&g.halt, cancel, func(text string) { fmt.Fprintf(stderr, "\n%s\n", text) })()
	return g.run(ctx)
}

// gap is one comparison of ways to train.
type gap struct {
	o        gapOptions
	base     *config.Config
	elements int // of the model
	steps    int
	seeds    int
	command  string

	stdout io.Writer
	halt
	progress *progress.Line
	done     int // steps so far, of all runs
	began    time.Time

	runs  map[string][]series // of the faulty side, by variant, one for each seed
	exact []exactRun          // of the correct side
	norms []normRun
}

func prepareGap(o gapOptions, stdout, stderr io.Writer) (*gap, error) {
	base, err := config.Load(o.config, o.sets, checks()...)
	if err != nil {
		return nil, usageError{err}
	}
	for _, w := range base.Warnings {
		fmt.Fprintf(stderr, "train gap: warning: %s\n", w)
	}
	g := &gap{o: o, base: base, steps: base.Run.Steps, seeds: 3, stdout: stdout, runs: map[string][]series{}}
	if o.quick {
		g.steps, g.seeds = max(1, g.steps/4), 1
	}
	if o.steps > 0 {
		g.steps = o.steps
	}
	if o.seeds > 0 {
		g.seeds = o.seeds
	}
	g.command = fmt.Sprintf("train gap -config %s -out DIR -steps %d -seeds %d", o.config, g.steps, g.seeds)
	p, _, err := plan(base)
	if err != nil {
		return nil, usageError{err}
	}
	g.elements = p.Elements
	for _, v := range g.all() { // every mistake before the first run
		if _, err := g.configure(v, 0); err != nil {
			return nil, usageError{fmt.Errorf("variant %s: %w", v.name, err)}
		}
	}
	entries, err := os.ReadDir(o.out)
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
		return nil, usageError{fmt.Errorf("output folder %s is not empty or cannot be read: choose another with -out, or remove it", o.out)}
	}
	if err := os.MkdirAll(filepath.Join(o.out, "configs"), 0o777); err != nil {
		return nil, usageError{fmt.Errorf("output folder: %w; choose another with -out", err)}
	}
	return g, nil
}

// run trains all variants and writes the report.
func (g *gap) run(ctx context.Context) (err error) {
	g.began = time.Now()
	fmt.Fprintf(g.stdout, "%s parameters, %d ranks; %d variants with faults, %d seeds of %d steps; %d ways to run the correct engine, %d steps each\n",
		thousands(g.elements), g.base.Comm.World, len(wrongVariants()), g.seeds, g.steps, len(g.ways()), g.exactSteps())
	g.progress = progress.New(progress.Options{Out: g.stdout, Total: g.total(), Every: max(1, g.total()/20)})
	defer func() { err = errors.Join(err, g.progress.Close()) }()
	if err := g.trainExact(ctx); err != nil {
		return err
	}
	if err := g.trainNorms(ctx); err != nil {
		return err
	}
	for _, v := range wrongVariants() {
		for seed := range g.seeds {
			c, err := g.train(ctx, v, seed)
			if err != nil {
				return fmt.Errorf("variant %s, seed %d: %w", v.name, seed, err)
			}
			g.runs[v.name] = append(g.runs[v.name], c)
		}
	}
	if err := g.progress.Close(); err != nil {
		return err
	}
	return g.report()
}

// total is the steps of all runs.
func (g *gap) total() int {
	return len(wrongVariants())*g.seeds*g.steps + len(g.ways())*g.exactSteps() + len(normVariants())*normSteps
}
