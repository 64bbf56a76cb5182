package unet

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// ConfigError lists everything that is wrong with a Config.
type ConfigError struct {
	Problems []string // each names key, value and what is allowed
}

func (e *ConfigError) Error() string {
	return "unet configuration: " + strings.Join(e.Problems, "; ")
}

// Validate checks that the network can be built. It returns nil or a
// *ConfigError with all problems at once.
func (c *Config) Validate() error {
	var v validator
	v.sizes(c)
	v.blocks(c)
	v.norms(c)
	v.heads(c)
	v.numbers(c)
	v.unsupported(c)
	v.variants(c)
	if len(v.problems) == 0 {
		return nil
	}
	return &ConfigError{v.problems}
}

type validator struct{ problems []string }

func (v *validator) addf(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

func (v *validator) atLeast(key string, value, least int) {
	if value < least {
		v.addf("%s = %d: must be at least %d", key, value, least)
	}
}

func (v *validator) sizes(c *Config) {
	v.atLeast("in_channels", c.InChannels, 1)
	v.atLeast("out_channels", c.OutChannels, 1)
	v.atLeast("layers_per_block", c.LayersPerBlock, 1)
	v.atLeast("norm_num_groups", c.NormNumGroups, 1)
	if len(c.BlockOutChannels) == 0 {
		v.addf("block_out_channels = []: must have at least one level")
	}
	for i, ch := range c.BlockOutChannels {
		v.atLeast(fmt.Sprintf("block_out_channels[%d]", i), ch, 1)
	}
	for _, f := range []struct {
		key   string
		value IntOrNull
	}{
		{"time_embedding_dim", c.TimeEmbeddingDim},
		{"attention_head_dim", c.AttentionHeadDim},
		{"attn_norm_num_groups", c.AttnNormNumGroups},
	} {
		if f.value < 0 {
			v.addf("%s = %d: must be at least 1, or null", f.key, f.value)
		}
	}
	if c.SampleSize.Height < 0 || c.SampleSize.Width < 0 || (c.SampleSize.Height == 0) != (c.SampleSize.Width == 0) {
		v.addf("sample_size = [%d, %d]: both must be at least 1, or null", c.SampleSize.Height, c.SampleSize.Width)
	}
}

func (v *validator) blocks(c *Config) {
	levels := len(c.BlockOutChannels)
	check := func(key string, types []string, allowed ...string) {
		if len(types) != levels {
			v.addf("%s has %d entries and block_out_channels has %d: both must have one per level", key, len(types), levels)
		}
		for i, t := range types {
			if !slices.Contains(allowed, t) {
				v.addf("%s[%d] = %q: allowed are %s", key, i, t, strings.Join(allowed, ", "))
			}
		}
	}
	check("down_block_types", c.DownBlockTypes, DownBlock2D, AttnDownBlock2D)
	check("up_block_types", c.UpBlockTypes, UpBlock2D, AttnUpBlock2D)
	if m := c.MidBlockType; m != "" && m != UNetMidBlock2D {
		v.addf("mid_block_type = %q: allowed are %s and null", m, UNetMidBlock2D)
	}
}

// norms checks that groups divide channels. The norms behind a concatenation
// see sums of entries of block_out_channels, and a sum of multiples is one, so
// the entries say it all. Group counts are never changed to make them fit: the
// network would be another one.
func (v *validator) norms(c *Config) {
	for i, ch := range c.BlockOutChannels {
		if g := c.NormNumGroups; g >= 1 && ch >= 1 && ch%g != 0 {
			v.addf("block_out_channels[%d] = %d is not divisible by norm_num_groups = %d: choose a multiple of %d, or groups that divide every level", i, ch, g, g)
		}
	}
	if g := int(c.AttnNormNumGroups); g > 0 && len(c.BlockOutChannels) > 0 {
		if ch := c.BlockOutChannels[len(c.BlockOutChannels)-1]; ch%g != 0 {
			v.addf("attn_norm_num_groups = %d does not divide the last of block_out_channels, %d: choose a divisor", g, ch)
		}
	}
}

// heads checks that heads divide the channels of every level with attention.
func (v *validator) heads(c *Config) {
	d := int(c.AttentionHeadDim)
	if d <= 0 {
		return
	}
	last := len(c.BlockOutChannels) - 1
	for i, ch := range c.BlockOutChannels {
		attends := i < len(c.DownBlockTypes) && c.DownBlockTypes[i] == AttnDownBlock2D ||
			last-i < len(c.UpBlockTypes) && c.UpBlockTypes[last-i] == AttnUpBlock2D ||
			i == last && c.AddAttention && c.MidBlockType != ""
		if attends && ch%d != 0 {
			v.addf("attention_head_dim = %d does not divide block_out_channels[%d] = %d: choose a divisor, or null for one head", d, i, ch)
		}
	}
}

func (v *validator) numbers(c *Config) {
	if !(c.Dropout >= 0 && c.Dropout < 1) {
		v.addf("dropout = %v: must be at least 0 and below 1", c.Dropout)
	}
	if !(c.NormEps > 0) || math.IsInf(c.NormEps, 0) {
		v.addf("norm_eps = %v: must be above 0", c.NormEps)
	}
	if c.DownsamplePadding != 0 && c.DownsamplePadding != 1 {
		v.addf("downsample_padding = %d: allowed are 0, 1", c.DownsamplePadding)
	}
	if len(c.BlockOutChannels) > 0 {
		if half := c.BlockOutChannels[0] / 2; half > 0 && (c.FreqShift < 0 || c.FreqShift >= half) {
			v.addf("freq_shift = %d: must be at least 0 and below half of block_out_channels[0], %d", c.FreqShift, half)
		}
	}
}

// unsupported refuses values that diffusers knows and this package does not.
func (v *validator) unsupported(c *Config) {
	only := func(key string, value any, ok bool, allowed string) {
		if !ok {
			v.addf("%s = %#v: only %s is implemented", key, value, allowed)
		}
	}
	only("time_embedding_type", c.TimeEmbeddingType, c.TimeEmbeddingType == "positional", `"positional"`)
	only("downsample_type", c.DownsampleType, c.DownsampleType == "conv", `"conv"`)
	only("upsample_type", c.UpsampleType, c.UpsampleType == "conv", `"conv"`)
	only("act_fn", c.ActFn, c.ActFn == "silu" || c.ActFn == "swish", `"silu" (also called "swish")`)
	only("center_input_sample", c.CenterInputSample, !c.CenterInputSample, "false")
	only("mid_block_scale_factor", c.MidBlockScaleFactor, c.MidBlockScaleFactor == 1, "1")
	only("class_embed_type", string(c.ClassEmbedType), c.ClassEmbedType == "", "null")
	only("num_class_embeds", int(c.NumClassEmbeds), c.NumClassEmbeds == 0, "null")
	if s := c.ResnetTimeScaleShift; s != timeAdd && s != timeScaleShift {
		v.addf("resnet_time_scale_shift = %q: allowed are %q, %q", s, timeAdd, timeScaleShift)
	}
}

// Values of resnet_time_scale_shift.
const (
	timeAdd        = "default"
	timeScaleShift = "scale_shift"
)
