package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/zerogap/zerogap/internal/picture"
	"github.com/zerogap/zerogap/internal/progress"
	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// drawing says how pictures are drawn.
type drawing struct {
	n, world, steps int
	seed            uint64
	sampler         string
	eta             float64
}

func (d *drawing) register(f *flag.FlagSet, n int) {
	f.IntVar(&d.n, "n", n, "number of pictures")
	f.Uint64Var(&d.seed, "seed", 0, "seed of the noise; without it that of the training, which draws its grids with it")
	f.StringVar(&d.sampler, "sampler", "", "ddpm or ddim, instead of the configured one")
	f.IntVar(&d.steps, "steps", 0, "steps of the sampler, instead of the configured number")
	f.Float64Var(&d.eta, "eta", 0, "noise of ddim, from 0 to 1")
	f.IntVar(&d.world, "world", 1, "number of ranks that share the work; the pictures are the same")
}

// apply puts what was given over the network's configuration, and checks it.
func (d *drawing) apply(f *flag.FlagSet, net *trainedNet) error {
	given := map[string]bool{}
	f.Visit(func(fl *flag.Flag) { given[fl.Name] = true })
	c := &net.cfg.Diffusion
	if given["sampler"] {
		c.Sampler = d.sampler
	}
	if given["steps"] {
		c.SampleSteps = d.steps
	}
	if given["eta"] || given["sampler"] && d.sampler == "ddpm" {
		c.Eta = d.eta
	}
	if !given["seed"] {
		d.seed = net.cfg.Run.Seed
	}
	const most = 65536
	switch {
	case d.n < 1 || d.n > most:
		return fmt.Errorf("-n %d: must be from 1 to %d", d.n, most)
	case d.world < 1 || d.world > 64:
		return fmt.Errorf("-world %d: must be from 1 to 64", d.world)
	}
	var err error
	net.diffusion, err = newDiffusion(net.cfg)
	return err
}

// draw draws the pictures.
func (d *drawing) draw(ctx context.Context, net *trainedNet, stderr io.Writer) (pictures []float32, c, h, w int, err error) {
	m := net.model.Config()
	c, h, w = m.InChannels, m.SampleSize.Height, m.SampleSize.Width
	if h == 0 || w == 0 {
		return nil, 0, 0, 0, errors.New("the network's configuration has no sample_size: set it in its config.json")
	}
	counter := progress.NewCounter(stderr, "pictures", d.n)
	defer counter.Close()
	var mu sync.Mutex
	done := make([]int, d.world)
	err = local.Run(ctx, d.world, func(ctx context.Context, rank comm.Communicator) error {
		all, err := net.viewer(rank, c, h, w).pictures(ctx, d.n, d.seed, func(mine, _ int) {
			mu.Lock()
			defer mu.Unlock()
			done[rank.Rank()] = mine
			sum := 0
			for _, n := range done {
				sum += n
			}
			counter.Set(sum)
		})
		if rank.Rank() == 0 {
			pictures = all
		}
		return err
	})
	return pictures, c, h, w, err
}

// sampleCommand is "train sample".
func sampleCommand(args []string, stdout, stderr io.Writer) error {
	var n networkFlags
	var d drawing
	var out, files, noise string
	f := newFlags("sample")
	n.register(f)
	d.register(f, 64)
	f.StringVar(&out, "out", "samples.png", "`file` of the grid, a PNG")
	f.StringVar(&files, "files", "", "`folder` for each picture as a PNG of its own, too")
	f.StringVar(&noise, "noise", "", "safetensors `file` for the noise that the pictures are made of, so that another program can draw the same: start, and step.I of each step that adds some, [N,C,H,W]")
	if err := parseFlags(f, args, stderr); err != nil {
		return err
	}
	net, err := n.open(stderr)
	if err == nil {
		err = d.apply(f, net)
	}
	if err == nil {
		err = writable(filepath.Dir(out), files, dirOf(noise))
	}
	if err != nil {
		return usageError{err}
	}
	ctx, stop := interruptible()
	defer stop()
	all, c, h, w, err := d.draw(ctx, net, stderr)
	if err != nil {
		return err
	}
	if err := picture.Grid(out, all, d.n, c, h, w, columns(d.n)); err != nil {
		return err
	}
	if noise != "" {
		if err := safetensors.Write(noise, d.noise(net, c, h, w), nil); err != nil {
			return err
		}
	}
	said := out
	if files != "" {
		for i := range d.n {
			path := filepath.Join(files, fmt.Sprintf("%05d.png", i))
			if err := picture.Single(path, all[i*c*h*w:(i+1)*c*h*w], c, h, w); err != nil {
				return err
			}
		}
		said += fmt.Sprintf(" and %d files in %s", d.n, files)
	}
	_, err = fmt.Fprintf(stdout, "%d pictures of %s, %s in %d steps, seed %d: %s\n", d.n, net.describe(), net.cfg.Diffusion.Sampler, net.cfg.Diffusion.SampleSteps, d.seed, said)
	return err
}

// noise is what the pictures are made of.
func (d *drawing) noise(net *trainedNet, c, h, w int) []safetensors.Tensor {
	draw, size := unet.StreamNoise(d.seed), c*h*w
	tensor := func(name string, step int) safetensors.Tensor {
		all := make([]float32, d.n*size)
		for i := range d.n {
			draw(all[i*size:(i+1)*size], i, step)
		}
		return safetensors.Tensor{Name: name, Shape: []int{d.n, c, h, w}, Data: all}
	}
	tensors := []safetensors.Tensor{tensor("start", -1)}
	for i := range net.diffusion.Sampler.Timesteps() {
		if net.diffusion.Sampler.NeedsNoise(i) {
			tensors = append(tensors, tensor(fmt.Sprintf("step.%d", i), i))
		}
	}
	return tensors
}

// dirOf is the folder of a file that may not be asked for.
func dirOf(file string) string {
	if file == "" {
		return ""
	}
	return filepath.Dir(file)
}

// writable makes the folders that are named, so that what cannot be written is known
// before the work.
func writable(dirs ...string) error {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		probe, err := os.CreateTemp(dir, ".probe-*")
		if err != nil {
			return err
		}
		if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
			return err
		}
	}
	return nil
}
