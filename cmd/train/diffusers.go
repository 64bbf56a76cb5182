package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/zerogap/zerogap/internal/config"
	"github.com/zerogap/zerogap/unet"
)

// A pipeline of diffusers is a folder with a folder for each of its parts.
const (
	pipelineFile    = "model_index.json"
	schedulerDir    = "scheduler"
	schedulerFile   = "scheduler_config.json"
	diffusersConfig = "config.json"
)

// schedulerConfig are the keys of diffusers' scheduler_config.json that matter here,
// and those it needs beside them.
type schedulerConfig struct {
	Class             string   `json:"_class_name"`
	Version           string   `json:"_diffusers_version"`
	NumTrainTimesteps *int     `json:"num_train_timesteps,omitempty"`
	BetaSchedule      *string  `json:"beta_schedule,omitempty"`
	BetaStart         *float64 `json:"beta_start,omitempty"`
	BetaEnd           *float64 `json:"beta_end,omitempty"`
	PredictionType    *string  `json:"prediction_type,omitempty"`
	ClipSample        *bool    `json:"clip_sample,omitempty"`
	ClipSampleRange   float64  `json:"clip_sample_range"`
	VarianceType      string   `json:"variance_type,omitempty"`
	SetAlphaToOne     *bool    `json:"set_alpha_to_one,omitempty"`
	Spacing           string   `json:"timestep_spacing"`
	StepsOffset       int      `json:"steps_offset"`
}

// diffusersFolder finds the network in a folder of diffusers, and the settings of a
// scheduler beside it.
func diffusersFolder(path string) (dir string, settings []string, err error) {
	pipeline := filepath.Dir(filepath.Clean(path))
	dir = path
	if _, err := os.Stat(filepath.Join(path, networkDir, diffusersConfig)); err == nil {
		dir, pipeline = filepath.Join(path, networkDir), path
	} else if _, err := os.Stat(filepath.Join(path, diffusersConfig)); err != nil {
		return "", nil, fmt.Errorf("-model %s: no %s there, nor in a folder %s: name a folder that diffusers' save_pretrained wrote", path, diffusersConfig, networkDir)
	}
	raw, err := os.ReadFile(filepath.Join(pipeline, schedulerDir, schedulerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	var s schedulerConfig
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", nil, fmt.Errorf("%s: %w", filepath.Join(pipeline, schedulerDir, schedulerFile), err)
	}
	return dir, s.settings(), nil
}

// pretrained returns the folder of the network in model.from_pretrained, after it has
// been compared with the configured one; "" without.
func pretrained(c *config.Config) (string, error) {
	if c.Model.FromPretrained == "" {
		return "", nil
	}
	dir, _, err := diffusersFolder(c.Model.FromPretrained)
	if err != nil {
		return "", fmt.Errorf("model.from_pretrained: %w", err)
	}
	stored, err := unet.ReadConfig(dir)
	if err != nil {
		return "", fmt.Errorf("model.from_pretrained: %w", err)
	}
	want, err := parameters(c)
	if err != nil {
		return "", err
	}
	have, err := unet.ParamShapes(stored)
	if err != nil {
		return "", fmt.Errorf("model.from_pretrained: %w", err)
	}
	for i := range max(len(have), len(want)) {
		switch {
		case i >= len(have):
			return "", fmt.Errorf("model.from_pretrained: %s has no %s: its network is not the one configured in [model]", dir, want[i].Name)
		case i >= len(want) || have[i].Name != want[i].Name || !slices.Equal(have[i].Shape, want[i].Shape):
			return "", fmt.Errorf("model.from_pretrained: %s has %s of shape %v: its network is not the one configured in [model]", dir, have[i].Name, have[i].Shape)
		}
	}
	same := modelConfig(c)
	same.Dropout, same.SampleSize = stored.Dropout, stored.SampleSize
	if !reflect.DeepEqual(same, stored) {
		return "", fmt.Errorf("model.from_pretrained: %s has another %s than [model] comes to: %+v, and not %+v", dir, diffusersConfig, stored, same)
	}
	return dir, nil
}

func (s schedulerConfig) settings() []string {
	var sets []string
	set := func(key string, value any) { sets = append(sets, fmt.Sprintf("diffusion.%s=%v", key, value)) }
	if s.NumTrainTimesteps != nil {
		set("num_train_timesteps", *s.NumTrainTimesteps)
	}
	if s.BetaSchedule != nil {
		set("beta_schedule", *s.BetaSchedule)
	}
	if s.BetaStart != nil && s.BetaEnd != nil {
		set("beta_start", *s.BetaStart)
		set("beta_end", *s.BetaEnd)
	}
	if s.PredictionType != nil {
		set("prediction_type", *s.PredictionType)
	}
	if s.ClipSample != nil {
		set("clip_sample", *s.ClipSample)
	}
	return sets
}

// writePipeline writes the files that make a folder with a network a pipeline of
// diffusers: DDPMPipeline.from_pretrained reads it, or DDIMPipeline, after sampler.
func writePipeline(dir, sampler string, d config.Diffusion) error {
	one := true
	s := schedulerConfig{
		Class: "DDPMScheduler", Version: "0.35.0", Spacing: "leading", ClipSampleRange: 1, VarianceType: "fixed_small",
		NumTrainTimesteps: &d.NumTrainTimesteps, BetaSchedule: &d.BetaSchedule, BetaStart: &d.BetaStart, BetaEnd: &d.BetaEnd,
		PredictionType: &d.PredictionType, ClipSample: &d.ClipSample,
	}
	pipeline := "DDPMPipeline"
	if sampler == "ddim" {
		pipeline, s.Class, s.VarianceType, s.SetAlphaToOne = "DDIMPipeline", "DDIMScheduler", "", &one
	}
	if err := os.MkdirAll(filepath.Join(dir, schedulerDir), 0o777); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, schedulerDir, schedulerFile), s); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, pipelineFile), map[string]any{
		"_class_name": pipeline, "_diffusers_version": s.Version,
		"scheduler": []string{"diffusers", s.Class}, "unet": []string{"diffusers", "UNet2DModel"},
	})
}

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o666)
}
