// Package unet is the denoising network of diffusion models, diffusers'
// UNet2DModel: same configuration, same parameter names and shapes, same
// arithmetic, weights interchangeable in both directions.
package unet

import (
	"fmt"
	"slices"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

// UNet2DModel predicts the noise (or what the schedule defines instead) in a
// batch of images at given timesteps.
//
// A model holds parameters and no activations. It belongs to one recording tape
// at a time; tapes that only evaluate, inside NoGrad, may share it as long as
// nobody writes its parameters or calls SetCheckpointing meanwhile.
type UNet2DModel struct {
	cfg    Config
	params []*framework.Param

	freqs         []float64
	convIn        *nn.Conv2d
	timeEmbedding *nn.TimestepEmbedding
	classes       *classes // nil for none
	steps         []step
	normOut       *nn.GroupNorm
	convOut       *nn.Conv2d

	mode     framework.Mode
	segments []segment // consecutive runs of steps, each a checkpoint
	dry      bool      // built for a prediction of memory: parameters have no values
}

// step is a block with what it does to the stack of skip connections.
type step struct {
	block
	push bool // its output becomes a skip connection
	pop  bool // it consumes the top of the stack
}

// New builds a model with fresh weights. Each parameter's initial values depend
// on (seed, parameter name) alone. The error is a *ConfigError.
func New(cfg Config, seed uint64) (*UNet2DModel, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return build(cfg, nn.NewScope(seed)), nil
}

// ParamShapes returns name and shape of every parameter of the model in
// registration order, without allocating any.
func ParamShapes(cfg Config) ([]nn.ParamShape, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := nn.NewShapeScope()
	build(cfg, s)
	return s.Shapes(), nil
}

// CountParams returns the number of parameters (elements) and of parameter
// tensors of the model without allocating any.
func CountParams(cfg Config) (elements, tensors int, err error) {
	shapes, err := ParamShapes(cfg)
	for _, p := range shapes {
		elements += p.Len()
	}
	return elements, len(shapes), err
}

// Config returns a copy of the configuration.
func (m *UNet2DModel) Config() Config { return m.cfg.clone() }

// Params returns every parameter in diffusers' registration order: down blocks,
// up blocks, then the middle block, and inside a block attentions before
// resnets. That is neither the order of the forward pass nor its reverse.
func (m *UNet2DModel) Params() []*framework.Param {
	return slices.Clone(m.params)
}

// build registers all parameters in diffusers' order and lays out the steps in
// the order of the forward pass. cfg is valid.
func build(cfg Config, s *nn.Scope) *UNet2DModel {
	c := cfg.clone()
	m := &UNet2DModel{cfg: c}
	first := c.BlockOutChannels[0]
	m.freqs = timestepFreqs(first, c.FreqShift)
	m.convIn = newConv3(s.Sub("conv_in"), c.inputs(), first)
	m.timeEmbedding = nn.NewTimestepEmbedding(s.Sub("time_embedding"), first, c.timeDim())
	m.classes = newClasses(s, &c)
	down := buildDown(s, &c)
	up := buildUp(s, &c)
	mid := buildMid(s, &c)
	if c.Variants.ParallelBranches > 0 {
		up = append(up, step{block: newParallel(s.Sub("branches"), &c, first)})
	}
	m.normOut = nn.NewGroupNorm(s.Sub("conv_norm_out"), c.NormNumGroups, first, c.NormEps)
	m.convOut = newConv3(s.Sub("conv_out"), first, c.OutChannels)
	m.steps = append(append(down, mid...), up...)
	m.params = s.Params()
	m.segments = cut(m.steps, len(m.steps))
	return m
}

func buildDown(s *nn.Scope, c *Config) []step {
	var steps []step
	in := c.BlockOutChannels[0]
	for i, out := range c.BlockOutChannels {
		b := s.Sub("down_blocks", i)
		widths := slices.Repeat([]int{out}, c.LayersPerBlock)
		widths[0] = in
		for _, l := range buildLayers(b, c, c.DownBlockTypes[i] == AttnDownBlock2D, widths, out) {
			steps = append(steps, step{block: l, push: true})
		}
		if i < len(c.BlockOutChannels)-1 {
			steps = append(steps, step{block: newDownsample(b.Sub("downsamplers", 0), c, out), push: true})
		}
		in = out
	}
	return steps
}

// buildUp mirrors buildDown: level i of the up path works at the resolution of
// level n-1-i of the down path and has one layer more, for the skip of the
// downsampler (or of conv_in) that led to that resolution.
func buildUp(s *nn.Scope, c *Config) []step {
	var steps []step
	n := len(c.BlockOutChannels)
	prev := c.BlockOutChannels[n-1]
	for i := range n {
		level := n - 1 - i
		out := c.BlockOutChannels[level]
		b := s.Sub("up_blocks", i)
		widths := slices.Repeat([]int{out + out}, c.LayersPerBlock+1)
		widths[0] = prev + out
		// The last skip of a level was made by the level before it. With one
		// layer per block there are still two layers here, so 0 is not last.
		widths[c.LayersPerBlock] = out + c.BlockOutChannels[max(level-1, 0)]
		for _, l := range buildLayers(b, c, c.UpBlockTypes[i] == AttnUpBlock2D, widths, out) {
			steps = append(steps, step{block: &upLayer{*l, b.Path()}, pop: true})
		}
		if level > 0 {
			steps = append(steps, step{block: newUpsample(b.Sub("upsamplers", 0), out)})
		}
		prev = out
	}
	return steps
}

func buildMid(s *nn.Scope, c *Config) []step {
	if c.MidBlockType == "" {
		return nil
	}
	b := s.Sub("mid_block")
	ch := c.BlockOutChannels[len(c.BlockOutChannels)-1]
	first := &layer{}
	if c.AddAttention {
		groups := int(c.AttnNormNumGroups)
		if groups == 0 && c.ResnetTimeScaleShift == timeAdd {
			groups = c.NormNumGroups
		}
		first.attn = newAttention(b.Sub("attentions", 0), c, ch, groups)
	}
	first.resnet = newResnetBlock(b.Sub("resnets", 0), c, ch, ch)
	second := &layer{resnet: first.resnet}
	if !c.Variants.SharedMiddle {
		second.resnet = newResnetBlock(b.Sub("resnets", 1), c, ch, ch)
	}
	return []step{{block: first}, {block: second}}
}

// buildLayers makes one layer per entry of widths, the channels that go in;
// out come out. All attentions are registered before all resnets.
func buildLayers(b *nn.Scope, c *Config, attend bool, widths []int, out int) []*layer {
	layers := make([]*layer, len(widths))
	for j := range layers {
		layers[j] = &layer{}
		if attend {
			layers[j].attn = newAttention(b.Sub("attentions", j), c, out, c.NormNumGroups)
		}
	}
	for j, in := range widths {
		layers[j].resnet = newResnetBlock(b.Sub("resnets", j), c, in, out)
	}
	return layers
}

func newAttention(s *nn.Scope, c *Config, channels, groups int) *nn.Attention {
	return nn.NewAttention(s, nn.AttentionConfig{
		Channels: channels, HeadDim: int(c.AttentionHeadDim), Groups: groups, Eps: c.NormEps,
	})
}

// SetCheckpointing makes Forward trade the memory of activations for computing
// them twice. The steps of the network (each resnet with its attention, each
// down- and upsampler) are cut into segments runs of nearly equal length, each
// one checkpoint; 0 makes every step a segment. A step whose output is a skip
// connection always ends its segment: that output is in memory anyway, so a
// longer segment would save nothing. The losses and gradients are the same bits
// in every mode at any number of segments.
//
// The error names the range of segments.
func (m *UNet2DModel) SetCheckpointing(mode framework.Mode, segments int) error {
	n := len(m.steps)
	if segments < 0 || segments > n {
		return fmt.Errorf("activation checkpointing: segments = %d: must be 0 (every step of the network) to %d, the number of steps", segments, n)
	}
	if segments == 0 {
		segments = n
	}
	m.mode, m.segments = mode, cut(m.steps, segments)
	return nil
}

// cut splits steps into runs of nearly equal length, and each run after every
// step that pushes.
func cut(steps []step, runs int) []segment {
	var segments []segment
	n := len(steps)
	for i := range runs {
		run := steps[i*n/runs : (i+1)*n/runs]
		lo := 0
		for j, st := range run {
			if st.push || j == len(run)-1 {
				segments = append(segments, run[lo:j+1])
				lo = j + 1
			}
		}
	}
	return segments
}
