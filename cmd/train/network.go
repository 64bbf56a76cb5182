package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/zerogap/zerogap/data"
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/internal/diffusion"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero/checkpoint"
	"github.com/zerogap/zerogap/zero/comm"
)

// networkFlags say which trained network a command is about.
type networkFlags struct {
	checkpoint, model, config, weights string
	sets                               repeated
}

func (n *networkFlags) register(f *flag.FlagSet) {
	f.StringVar(&n.checkpoint, "checkpoint", "", "the network of a checkpoint: the `folder` of a run (its last good one), or of one checkpoint")
	f.StringVar(&n.model, "model", "", "the network in a `folder` of diffusers: of a UNet2DModel, or of a pipeline with one")
	f.StringVar(&n.config, "config", "", "configuration `file`, instead of the checkpoint's own")
	f.StringVar(&n.weights, "weights", "", "`which` weights of a checkpoint: ema (the moving average; the default where there is one) or trained")
	f.Var(&n.sets, "set", "`key=value` overrides a configuration key; may be repeated")
}

// trainedNet is a trained network with what it takes to look at it.
type trainedNet struct {
	cfg       *config.Config
	model     *unet.UNet2DModel
	compute   dtype.DType
	diffusion *diffusion.Process
	weights   string // what they are, for people
	step      int    // of the training; 0 where it is not known
	path      string
}

// open reads the network, and more with it from the checkpoint, when it is from one.
func (n *networkFlags) open(stderr io.Writer, more ...func(*checkpoint.Folder) error) (*trainedNet, error) {
	switch {
	case (n.checkpoint == "") == (n.model == ""):
		return nil, errors.New("which network? Give -checkpoint with a run or a checkpoint, or -model with a folder of diffusers")
	case !slices.Contains([]string{"", "ema", "trained"}, n.weights):
		return nil, fmt.Errorf("-weights %s: allowed are ema and trained", n.weights)
	case n.model != "" && n.weights != "":
		return nil, errors.New("-weights is for -checkpoint: a folder of diffusers has one set of weights")
	case n.model != "":
		return n.openDiffusers()
	}
	f, warnings, err := openCheckpoint(n.checkpoint)
	for _, w := range warnings {
		fmt.Fprintf(stderr, "train: warning: %s\n", w)
	}
	if err != nil {
		return nil, err
	}
	net, err := n.openCheckpoint(f)
	for _, read := range more {
		if err == nil {
			err = read(f)
		}
	}
	return net, errors.Join(err, f.Close())
}

func (n *networkFlags) openCheckpoint(f *checkpoint.Folder) (*trainedNet, error) {
	path := n.config
	if path == "" {
		path = filepath.Join(f.Path(), configFile)
	}
	net := &trainedNet{path: f.Path(), step: f.Step(), weights: n.weights}
	var err error
	if net.cfg, err = config.Load(path, n.sets, checks()...); err != nil {
		return nil, err
	}
	if net.diffusion, err = newDiffusion(net.cfg); err != nil {
		return nil, err
	}
	if net.model, err = unet.New(modelConfig(net.cfg), net.cfg.Run.Seed); err != nil {
		return nil, err
	}
	params := f.Manifest().Params
	averaged := slices.ContainsFunc(params, func(p checkpoint.Param) bool { return slices.Contains(p.States, averageState) })
	switch {
	case net.weights == "ema" && !averaged:
		return nil, fmt.Errorf("-weights ema: %s has no moving average: it was trained with diffusion.ema_decay = 0", f.Path())
	case net.weights == "" && averaged:
		net.weights = "ema"
	case net.weights == "":
		net.weights = "trained"
	}
	net.compute = zeroConfig(net.cfg).Policy().Compute
	return net, net.load(f)
}

// load fills the network's parameters with the rounded weights of the checkpoint.
func (net *trainedNet) load(f *checkpoint.Folder) error {
	params := net.model.Params()
	if len(params) != len(f.Manifest().Params) {
		return fmt.Errorf("%s has %d parameters and the configured network %d", f.Path(), len(f.Manifest().Params), len(params))
	}
	for _, p := range params {
		saved, ok := f.Param(p.Name)
		if !ok || !slices.Equal(saved.Shape, p.Shape()) {
			return fmt.Errorf("%s is of another network: it has no parameter %s of shape %v", f.Path(), p.Name, p.Shape())
		}
		w, err := f.Weights(p.Name)
		if err != nil {
			return err
		}
		if net.weights == "ema" && !saved.Frozen {
			average, err := f.State(p.Name, averageState)
			if err != nil {
				return err
			}
			kernel.Round(w, average)
		}
		p.Rebind(w)
	}
	return nil
}

func (n *networkFlags) openDiffusers() (*trainedNet, error) {
	dir, settings, err := diffusersFolder(n.model)
	if err != nil {
		return nil, err
	}
	net := &trainedNet{path: n.model, weights: "stored", compute: dtype.F32}
	if net.model, err = unet.LoadDiffusers(dir); err != nil {
		return nil, err
	}
	m := net.model.Config()
	settings = append(settings, fmt.Sprintf("model.in_channels=%d", m.InChannels), fmt.Sprintf("model.out_channels=%d", m.OutChannels),
		fmt.Sprintf("model.sample_size=%d", m.SampleSize.Height), fmt.Sprintf("data.channels=%d", m.InChannels), fmt.Sprintf("data.image_size=%d", m.SampleSize.Height))
	if n.config == "" {
		settings = append(settings, "train_batch_size=1")
	}
	if net.cfg, err = config.Load(n.config, append(settings, n.sets...)); err != nil {
		return nil, err
	}
	net.diffusion, err = newDiffusion(net.cfg)
	return net, err
}

// viewer makes the viewer of one rank. All ranks share the weights.
func (net *trainedNet) viewer(c comm.Communicator, channels, h, w int) *viewer {
	tape := framework.NewTape(framework.WithCompute(net.compute))
	return &viewer{comm: c, tape: tape, model: net.model, diffusion: net.diffusion, c: channels, h: h, w: w, labeled: net.cfg.Model.NumClasses > 0}
}

// describe names the network for people.
func (net *trainedNet) describe() string {
	if net.step == 0 {
		return fmt.Sprintf("%s (%s weights)", net.path, net.weights)
	}
	return fmt.Sprintf("%s (step %d, %s weights)", net.path, net.step, net.weights)
}

// openData opens the pictures that the network is measured on.
func (net *trainedNet) openData() (train, heldOut data.Dataset, err error) { return openData(net.cfg) }
