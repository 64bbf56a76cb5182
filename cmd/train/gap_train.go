package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"

	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/progress"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/engine"
)

// series is what one run shows.
type series struct {
	loss, norm []float64 // by step
	firstBad   int       // step whose loss or norm is the first that is not finite, 0 for none
}

// exactRun is one way to run the correct engine.
type exactRun struct {
	variant
	series
	weights uint64 // hash of the compute copy at the end
}

// normRun is one of the four with a learning rate of 0.
type normRun struct {
	variant
	norms []float64
}

const (
	normSteps = 3
	// badSteps is how long a run goes on after its first step that is not finite.
	badSteps = 5
)

// exactSteps is how long the correct engine runs in each way.
func (g *gap) exactSteps() int { return max(1, g.steps/10) }

var errEnough = errors.New("enough steps")

// train runs one variant and writes its curves and its configuration.
func (g *gap) train(ctx context.Context, v variant, seed int) (series, error) {
	var c series
	name := fmt.Sprintf("%s-seed%d", v.name, seed)
	csv, err := monitor.Open(monitor.Options{Path: filepath.Join(g.o.out, "csv"), JobName: name})
	if err != nil {
		return c, err
	}
	begin := g.done
	c, _, err = g.measure(ctx, v, seed, g.steps, func(samples int, loss, norm float64) error {
		return csv.Write(samples, monitor.Event{Name: monitor.TrainLoss, Value: loss}, monitor.Event{Name: gradNorm, Value: norm})
	})
	g.done = begin + g.steps // also when it ended early
	return c, errors.Join(err, csv.Close())
}

// measure runs a variant for some steps.
func (g *gap) measure(ctx context.Context, v variant, seed, steps int, record func(samples int, loss, norm float64) error) (c series, weights uint64, err error) {
	cfg, err := g.configure(v, seed)
	if err != nil {
		return c, 0, err
	}
	path := filepath.Join(g.o.out, "configs", fmt.Sprintf("%s-seed%d.toml", v.name, seed))
	if err := os.WriteFile(path, cfg.TOML(), 0o666); err != nil {
		return c, 0, err
	}
	h := fnv.New64a()
	r := rehearsal{cfg: cfg, steps: steps}
	r.probe = func(s zero.Sight) {
		if s.Life == zero.LifeGather && s.Rank == 0 && s.Step == steps {
			for i := range s.Values.Len() {
				b := math.Float32bits(float32(s.Values.At(i)))
				h.Write([]byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
			}
		}
	}
	bad := make([]int, cfg.Comm.World) // steps whose loss is not finite, by rank: all see the same losses
	r.after = func(_ context.Context, step, rank int, res engine.Result) error {
		if rank == 0 {
			if err := g.note(&c, step, cfg.TrainBatchSize, res, record); err != nil {
				return err
			}
		}
		if res.Loss-res.Loss != 0 {
			bad[rank]++
		}
		if bad[rank] >= badSteps {
			return errEnough
		}
		return nil
	}
	if err := r.run(ctx); err != nil && !errors.Is(err, errEnough) {
		return c, 0, err
	}
	return c, h.Sum64(), nil
}

// note keeps and shows a step.
func (g *gap) note(c *series, step, samples int, r engine.Result, record func(samples int, loss, norm float64) error) error {
	c.loss, c.norm = append(c.loss, r.Loss), append(c.norm, r.Norm)
	if c.firstBad == 0 && (r.Loss-r.Loss != 0 || r.Norm-r.Norm != 0) {
		c.firstBad = step
	}
	g.done++
	if record != nil {
		if err := record(step*samples, r.Loss, r.Norm); err != nil {
			return err
		}
	}
	if g.stop.Load() {
		return errors.New("interrupted")
	}
	return g.progress.Step(progress.Status{Step: g.done, Samples: samples, Loss: r.Loss, Norm: r.Norm, LR: r.LR, Skipped: !r.Applied})
}

// trainExact runs the correct engine in all ways.
func (g *gap) trainExact(ctx context.Context) error {
	for _, v := range g.ways() {
		c, weights, err := g.measure(ctx, v, 0, g.exactSteps(), nil)
		if err != nil {
			return fmt.Errorf("%s: %w", v.title, err)
		}
		g.exact = append(g.exact, exactRun{v, c, weights})
	}
	return nil
}

// trainNorms runs the four with a learning rate of 0.
func (g *gap) trainNorms(ctx context.Context) error {
	for _, v := range normVariants() {
		c, _, err := g.measure(ctx, v, 0, normSteps, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", v.title, err)
		}
		g.norms = append(g.norms, normRun{v, c.norm})
	}
	return nil
}
