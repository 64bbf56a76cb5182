package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/zero/checkpoint"
)

// exportCommand is "train export": a checkpoint's network for other programs.
func exportCommand(args []string, stdout, stderr io.Writer) error {
	var n networkFlags
	var out, format string
	f := newFlags("export")
	n.register(f)
	f.StringVar(&out, "out", "", "`folder` to write, which must not exist or be empty")
	f.StringVar(&format, "format", "diffusers", "diffusers: a pipeline folder; fp32: one safetensors file of all weights by name")
	if err := parseFlags(f, args, stderr); err != nil {
		return err
	}
	switch {
	case out == "":
		return usageError{errors.New("where to? Give -out with a folder")}
	case format != "diffusers" && format != "fp32":
		return usageError{fmt.Errorf("-format %s: allowed are diffusers and fp32", format)}
	case n.checkpoint == "":
		return usageError{errors.New("export what? Give -checkpoint with a run or a checkpoint")}
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return usageError{fmt.Errorf("-out %s is not empty: choose another folder, or remove it", out)}
	}
	var values map[string][]float32
	net, err := n.open(stderr, func(f *checkpoint.Folder) (err error) {
		values, err = exact(f, n.weights)
		return err
	})
	if err == nil {
		err = writable(out)
	}
	if err != nil {
		return usageError{err}
	}
	if format == "fp32" {
		err = exportFlat(out, net, values)
	} else {
		err = exportPipeline(out, net, values)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s as %s, fp32: %s\n", net.describe(), format, out)
	return err
}

// exact reads the weights in fp32, before they are rounded for computing.
func exact(f *checkpoint.Folder, weights string) (map[string][]float32, error) {
	values := map[string][]float32{}
	for _, p := range f.Manifest().Params {
		averaged := false
		for _, s := range p.States {
			averaged = averaged || s == averageState
		}
		var err error
		if averaged && weights != "trained" {
			values[p.Name], err = f.State(p.Name, averageState)
		} else {
			values[p.Name], err = f.Master(p.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	return values, nil
}

func exportPipeline(out string, net *trainedNet, values map[string][]float32) error {
	err := net.model.SaveDiffusers(filepath.Join(out, networkDir), func(p *framework.Param) []float32 { return values[p.Name] })
	if err != nil {
		return err
	}
	return writePipeline(out, net.cfg.Diffusion.Sampler, net.cfg.Diffusion)
}

func exportFlat(out string, net *trainedNet, values map[string][]float32) error {
	var tensors []safetensors.Tensor
	for _, p := range net.model.Params() {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, Shape: p.Shape(), Data: values[p.Name]})
	}
	return safetensors.Write(filepath.Join(out, "model.safetensors"), tensors, map[string]string{
		"format": "pt", "weights": net.weights, "step": fmt.Sprint(net.step),
	})
}
