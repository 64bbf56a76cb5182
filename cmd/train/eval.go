package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/internal/evaluate"
	"github.com/zerogap/zerogap/internal/monitor"
	"github.com/zerogap/zerogap/internal/picture"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// directions of the sliced Wasserstein distance.
const directions = 256

// evaluation is what "train eval" finds.
type evaluation struct {
	Network string         `json:"network"`
	Step    int            `json:"step"`
	Weights string         `json:"weights"`
	Loss    float64        `json:"held_out_loss"`
	Samples int            `json:"held_out_samples"`
	Bins    []evaluate.Bin `json:"held_out_loss_by_timestep"`

	Drawn   int    `json:"drawn"`
	Seed    uint64 `json:"seed"`
	Sampler string `json:"sampler"`
	Steps   int    `json:"sampler_steps"`

	// The distance of the drawn pictures, and of as many training pictures, from
	// the held-out ones: a perfect network's pictures are as far as the latter.
	Wasserstein         float64 `json:"sliced_wasserstein"`
	WassersteinTraining float64 `json:"sliced_wasserstein_of_training_pictures"`

	// The distance of the drawn pictures, and of held-out ones, from the nearest
	// training picture: a network that copies draws nearer ones than are held out.
	Nearest        []evaluate.Nearest `json:"nearest_training_pictures"`
	NearestMedian  float64            `json:"nearest_median"`
	NearestHeldOut float64            `json:"nearest_median_of_held_out_pictures"`
}

// evalCommand is "train eval".
func evalCommand(args []string, stdout, stderr io.Writer) error {
	var n networkFlags
	var d drawing
	var out string
	var heldOut int
	f := newFlags("eval")
	n.register(f)
	d.register(f, 64)
	f.StringVar(&out, "out", "", "`folder` for eval.json, pictures and CSV curves")
	f.IntVar(&heldOut, "held-out", 0, "number of held-out pictures to measure the loss on, instead of run.eval_samples")
	if err := parseFlags(f, args, stderr); err != nil {
		return err
	}
	net, err := n.open(stderr)
	if err != nil {
		return usageError{err}
	}
	if err := d.apply(f, net); err != nil {
		return usageError{err}
	}
	train, test, err := net.openData()
	if err == nil {
		err = writable(out)
	}
	if err != nil {
		return usageError{err}
	}
	if heldOut <= 0 {
		heldOut = net.cfg.Run.EvalSamples
	}
	ctx, stop := interruptible()
	defer stop()
	e := &evaluation{
		Network: net.path, Step: net.step, Weights: net.weights,
		Drawn: d.n, Seed: d.seed, Sampler: net.cfg.Diffusion.Sampler, Steps: net.cfg.Diffusion.SampleSteps,
	}
	if err := e.losses(ctx, net, d.world, test, heldOut); err != nil {
		return err
	}
	pictures, c, h, w, err := d.draw(ctx, net, stderr)
	if err != nil {
		return err
	}
	if err := e.distances(pictures, c*h*w, train, test); err != nil {
		return err
	}
	if out != "" {
		if err := e.save(out, net, pictures, train); err != nil {
			return err
		}
	}
	return e.print(stdout, out)
}

func (e *evaluation) losses(ctx context.Context, net *trainedNet, world int, heldOut data.Dataset, n int) error {
	c, h, w := heldOut.Shape()
	return local.Run(ctx, world, func(ctx context.Context, rank comm.Communicator) error {
		losses, timesteps, err := net.viewer(rank, c, h, w).losses(ctx, heldOut, n)
		if err == nil && rank.Rank() == 0 {
			e.Samples, e.Loss = len(losses), evaluate.Mean(losses)
			e.Bins = evaluate.Bins(losses, timesteps, net.diffusion.Len(), evaluate.DefaultBins)
		}
		return err
	})
}

func (e *evaluation) distances(pictures []float32, size int, train, heldOut data.Dataset) error {
	test, err := loadAll(heldOut, 4*e.Drawn)
	if err != nil {
		return err
	}
	real, err := loadAll(train, e.Drawn)
	if err != nil {
		return err
	}
	tests := len(test) / size
	e.Wasserstein = evaluate.SlicedWasserstein(pictures, test, e.Drawn, tests, size, directions, 0)
	e.WassersteinTraining = evaluate.SlicedWasserstein(real, test, len(real)/size, tests, size, directions, 0)
	load := func(i int, p []float32) error {
		_, err := train.Load(i, p)
		return err
	}
	if e.Nearest, err = evaluate.FindNearest(pictures, size, train.Len(), load); err != nil {
		return err
	}
	others, err := evaluate.FindNearest(test[:min(tests, e.Drawn)*size], size, train.Len(), load)
	e.NearestMedian, e.NearestHeldOut = median(e.Nearest), median(others)
	return err
}

// loadAll loads n pictures that are spread evenly over the data set.
func loadAll(ds data.Dataset, n int) ([]float32, error) {
	n = min(n, ds.Len())
	c, h, w := ds.Shape()
	size := c * h * w
	all := make([]float32, n*size)
	for i := range n {
		if _, err := ds.Load(i*ds.Len()/n, all[i*size:(i+1)*size]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func median(x []evaluate.Nearest) float64 {
	d := make([]float64, len(x))
	for i := range x {
		d[i] = x[i].Distance
	}
	if len(d) == 0 {
		return math.NaN()
	}
	slices.Sort(d)
	return (d[(len(d)-1)/2] + d[len(d)/2]) / 2
}

// save leaves the results in a folder: as JSON, as a row of CSV series and TensorBoard
// where the configuration has them, and as two grids.
func (e *evaluation) save(out string, net *trainedNet, pictures []float32, train data.Dataset) (err error) {
	if err := writeJSON(filepath.Join(out, "eval.json"), e); err != nil {
		return err
	}
	c, h, w := train.Shape()
	size := c * h * w
	if err := picture.Grid(filepath.Join(out, "samples.png"), pictures, e.Drawn, c, h, w, columns(e.Drawn)); err != nil {
		return err
	}
	// Pairs: what was drawn, and the training picture nearest to it.
	shown := min(e.Drawn, 32)
	pairs := make([]float32, 2*shown*size)
	for i := range shown {
		copy(pairs[2*i*size:], pictures[i*size:(i+1)*size])
		if _, err := train.Load(e.Nearest[i].Index, pairs[(2*i+1)*size:(2*i+2)*size]); err != nil {
			return err
		}
	}
	if err := picture.Grid(filepath.Join(out, "nearest.png"), pairs, 2*shown, c, h, w, 8); err != nil {
		return err
	}
	m, err := monitor.Open(monitor.Options{Path: out, JobName: "csv", From: max(0, e.Step*net.cfg.TrainBatchSize-1)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return m.Write(e.Step*net.cfg.TrainBatchSize, e.events()...)
}

func (e *evaluation) events() []monitor.Event {
	return append(heldOutEvents(e.Loss, e.Bins),
		monitor.Event{Name: "Eval/Samples/sliced_wasserstein", Value: e.Wasserstein},
		monitor.Event{Name: "Eval/Samples/nearest_training_picture", Value: e.NearestMedian})
}

func (e *evaluation) print(w io.Writer, out string) (err error) {
	say := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	say("network      %s, step %d, %s weights", e.Network, e.Step, e.Weights)
	say("held-out     loss %.5f on %d pictures", e.Loss, e.Samples)
	for _, b := range e.Bins {
		if b.Samples > 0 {
			say("             timesteps %4d to %4d  %.5f", b.Lo, b.Hi-1, b.Loss)
		}
	}
	say("drawn        %d pictures, %s in %d steps, seed %d", e.Drawn, e.Sampler, e.Steps, e.Seed)
	say("distance     %.4f sliced Wasserstein from held-out pictures; training pictures are at %.4f", e.Wasserstein, e.WassersteinTraining)
	say("nearest      %.4f from the nearest training picture (median); held-out pictures are at %.4f", e.NearestMedian, e.NearestHeldOut)
	if out != "" {
		say("output       %s: eval.json, samples.png, nearest.png, csv", out)
	}
	return err
}
