package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/zero/checkpoint"
)

// resumption is the checkpoint that a run goes on from.
type resumption struct {
	folder *checkpoint.Folder
	state  trainState
	own    bool // it is the run's own: the run goes on in its folder
}

// step returns the step of the checkpoint, 0 without one.
func (r *resumption) step() int {
	if r == nil {
		return 0
	}
	return r.folder.Step()
}

// describe names the checkpoint for a comparison between ranks.
func (r *resumption) describe() string {
	if r == nil {
		return "the beginning"
	}
	m := r.folder.Manifest()
	return fmt.Sprintf("checkpoint %s, number %d of its folder", m.Tag, m.Serial)
}

func (r *resumption) close() error {
	if r == nil {
		return nil
	}
	return r.folder.Close()
}

// resumeConfig completes the command line of a run that goes on: without -config the
// configuration is the one in the run's folder, or in the checkpoint.
func resumeConfig(o *options) error {
	if o.resume == "" || o.config != "" {
		return nil
	}
	switch {
	case isPath(o.resume):
		f, _, err := openCheckpoint(o.resume)
		if err != nil {
			return fmt.Errorf("-resume %s: %w", o.resume, err)
		}
		o.config = filepath.Join(f.Path(), configFile)
		if err := f.Close(); err != nil {
			return err
		}
	case o.out == "":
		return fmt.Errorf("-resume %s: of which run? Name its folder with -out, or a configuration with -config", o.resume)
	default:
		o.config = filepath.Join(o.out, configFile)
	}
	return o.keepBatch()
}

// keepBatch lets -world change the accumulation and not the batch, which the
// configuration of a run has in full.
func (o *options) keepBatch() error {
	world := o.ranks
	if o.launch.MPI() {
		world = o.launch.Size
	}
	if world == 0 {
		return nil
	}
	c, err := config.Load(o.config, nil)
	if err != nil {
		return err
	}
	if per := c.TrainMicroBatchSizePerGPU * world; c.TrainBatchSize%per == 0 {
		o.sets = append(o.sets, fmt.Sprintf("gradient_accumulation_steps=%d", c.TrainBatchSize/per))
	}
	return nil
}

// isPath tells a path given to -resume from "auto" and from a tag.
func isPath(resume string) bool {
	_, err := os.Stat(filepath.Join(resume, checkpoint.ManifestFile))
	return err == nil || strings.ContainsRune(resume, filepath.Separator)
}

// openCheckpoint opens and verifies a checkpoint by its own folder, or the last good
// one by the folder of the run, or by that of its checkpoints.
func openCheckpoint(path string) (*checkpoint.Folder, []string, error) {
	if _, err := os.Stat(filepath.Join(path, checkpoint.ManifestFile)); err == nil {
		f, err := checkpoint.OpenVerified(path)
		return f, nil, err
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil, nil, fmt.Errorf("%s: no such folder: name a run, a folder of checkpoints or a checkpoint", path)
	}
	if sub := filepath.Join(path, checkpointsDir); isDir(sub) {
		path = sub
	}
	return checkpoint.Find(path)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// findCheckpoint opens what -resume names: "auto" is the last good checkpoint in the
// run's folder out, and nil if the run has none yet; a tag is one of its checkpoints; a
// path is any checkpoint, or the run whose last one is meant.
func findCheckpoint(resume, out string, stderr io.Writer) (*resumption, error) {
	r := &resumption{}
	dir := filepath.Join(out, checkpointsDir)
	var warnings []string
	var err error
	switch {
	case resume == "auto":
		all, listErr := checkpoint.List(dir)
		if listErr == nil && len(all) == 0 {
			return nil, nil
		}
		r.folder, warnings, err = checkpoint.Find(dir)
	case isPath(resume):
		r.folder, warnings, err = openCheckpoint(resume)
	default:
		r.folder, err = checkpoint.Tagged(dir, resume)
	}
	for _, w := range warnings {
		fmt.Fprintf(stderr, "train: warning: %s\n", w)
	}
	if err != nil {
		return nil, fmt.Errorf("-resume %s: %w", resume, err)
	}
	r.own = filepath.Dir(absolute(r.folder.Path())) == absolute(dir)
	return r, r.read()
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil { // the working directory is gone
		return filepath.Clean(path)
	}
	return abs
}

func (r *resumption) read() error {
	raw, err := r.folder.Attachment(stateFile)
	if err == nil {
		err = json.Unmarshal(raw, &r.state)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("checkpoint %s is not one of this command: %w", r.folder.Path(), err), r.folder.Close())
	}
	return nil
}

// fits refuses a checkpoint of another network or optimizer.
func (r *resumption) fits(c *config.Config) error {
	params, err := parameters(c)
	if err != nil {
		return err
	}
	states := rule(c).States()
	if err := r.folder.Fits(params, func(int) []string { return states }); err != nil {
		return fmt.Errorf("checkpoint %s: %w", r.folder.Path(), err)
	}
	return nil
}

// neutral are keys, and beginnings of keys, that change no bit of a training.
var neutral = []string{
	"run.out", "run.steps", "run.eval_", "run.sample_", "run.checkpoint_", "run.trace_", "comm.", "csv_monitor.", "tensorboard.", "comms_logger.",
	"flops_profiler.", "wall_clock_breakdown", "steps_per_print", "gradient_accumulation_steps",
	"zero_optimization.stage", "zero_optimization.overlap_comm", "zero_optimization.reduce_bucket_size",
	"zero_optimization.allgather_bucket_size", "zero_optimization.contiguous_gradients",
	"zero_optimization.reduce_scatter", "zero_optimization.use_multi_rank_bucket_allreduce",
	"zero_optimization.round_robin_gradients", "zero_optimization.max_consecutive_skips",
	"model.activation_checkpointing.", "data.path", "diffusion.sampler", "diffusion.sample_steps", "diffusion.eta", "diffusion.clip_sample",
}

// compare lists what the checkpoint was trained with and this run is not, where it
// matters to the bits.
func (r *resumption) compare(c *config.Config) (warnings []string, err error) {
	then, err := config.Load(filepath.Join(r.folder.Path(), configFile), nil)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", r.folder.Path(), err)
	}
	for _, d := range config.Differences(then, c) {
		isNeutral := false
		for _, prefix := range neutral {
			isNeutral = isNeutral || strings.HasPrefix(d.Path, prefix)
		}
		if !isNeutral {
			warnings = append(warnings, fmt.Sprintf("%s was %s when %s was saved and is %s now: the training goes on, but not as if it had never stopped", d.Path, d.A, r.folder.Manifest().Tag, d.B))
		}
	}
	return warnings, nil
}
