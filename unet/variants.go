package unet

import (
	"fmt"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

// Variants are departures from diffusers' network that trainers are known to stumble
// over: branches that not every rank uses, or not in the same order, weights that
// several checkpoints share, a second forward pass. The zero value has none of them. A
// network with one cannot be written as diffusers' files.
//
// What is drawn at random depends on the seed, the step and the first sample of the
// batch, as everything else does: ranks differ because their samples do.
type Variants struct {
	// NumClasses adds a class-conditional branch to the time embedding, and one for
	// no class of the same shape (but the table of classes). Labels come with
	// ForwardLabeled.
	NumClasses int
	// LabelDropout is the probability that a training batch takes the branch for no
	// class.
	LabelDropout float64
	// ParallelBranches adds two branches behind the last block, whose outputs are
	// added: so many resnets each, and an attention in one, so that they differ in
	// size. In training, either may be computed first.
	ParallelBranches int
	// SelfConditioning gives the network its own prediction beside the picture: in
	// half of the training batches that of a first pass without gradient, else zeros.
	SelfConditioning bool
	// SharedMiddle uses the first resnet of the middle block in the place of its
	// second too.
	SharedMiddle bool
	// CheckpointConvIn makes the first convolution a checkpointed segment, whose
	// input is the picture and needs no gradient.
	CheckpointConvIn bool
}

func (v *validator) variants(c *Config) {
	x := c.Variants
	v.atLeast("num_classes", x.NumClasses, 0)
	v.atLeast("parallel_branches", x.ParallelBranches, 0)
	if !(x.LabelDropout >= 0 && x.LabelDropout <= 1) {
		v.addf("label_dropout = %v: must be from 0 to 1", x.LabelDropout)
	}
	if x.LabelDropout > 0 && x.NumClasses == 0 {
		v.addf("label_dropout = %v: there is no branch for labels without num_classes", x.LabelDropout)
	}
	if c.MidBlockType == "" && x.SharedMiddle {
		v.addf("shared_middle = true: there is no middle block")
	}
}

// inputs is the number of channels of the first convolution.
func (c *Config) inputs() int {
	if c.Variants.SelfConditioning {
		return c.InChannels + c.OutChannels
	}
	return c.InChannels
}

// classes are the branches of the time embedding.
type classes struct {
	dropout    float64
	table      *nn.Embedding
	class      *nn.TimestepEmbedding
	noClass    *nn.TimestepEmbedding
	num, width int
}

// newClasses returns nil where there are none.
func newClasses(s *nn.Scope, c *Config) *classes {
	if c.Variants.NumClasses == 0 {
		return nil
	}
	first := c.BlockOutChannels[0]
	k := &classes{dropout: c.Variants.LabelDropout, num: c.Variants.NumClasses, width: first}
	k.table = nn.NewEmbedding(s.Sub("class_branch", "embedding"), k.num, first)
	k.class = nn.NewTimestepEmbedding(s.Sub("class_branch"), first, c.timeDim())
	k.noClass = nn.NewTimestepEmbedding(s.Sub("null_branch"), first, c.timeDim())
	return k
}

// forward adds a branch to the time embedding e [B,T]; features [B,C0] are those of the
// timesteps. labels may be nil.
func (k *classes) forward(t *framework.Tape, e, features *framework.Tensor, labels []int) *framework.Tensor {
	if k == nil {
		return e
	}
	if labels == nil || chance(t, "label dropout", k.dropout) {
		return t.Add(e, k.noClass.Forward(t, features))
	}
	return t.Add(e, k.class.Forward(t, t.Add(features, k.table.Forward(t, labels))))
}

func (k *classes) check(labels []int, batch int) error {
	switch {
	case labels == nil:
		return nil
	case k == nil:
		return fmt.Errorf("unet: labels for a network without classes: set num_classes")
	case len(labels) != batch:
		return fmt.Errorf("unet: %d labels for a batch of %d images: one per image is needed", len(labels), batch)
	}
	for i, l := range labels {
		if l < 0 || l >= k.num {
			return fmt.Errorf("unet: label %d of image %d: allowed are 0 to %d, num_classes - 1", l, i, k.num-1)
		}
	}
	return nil
}

// chance draws for a training batch; outside of training nothing happens by chance.
func chance(t *framework.Tape, purpose framework.Purpose, p float64) bool {
	s := t.Sample()
	return s.Train && len(s.Samples) > 0 && framework.NewStream(s.Seed, s.Step, s.Samples[0], purpose).Float64() < p
}

// parallel is two runs of layers on one input, whose outputs are added.
type parallel struct{ small, large chain }

type chain []*layer

func (ls chain) forward(t *framework.Tape, h, temb *framework.Tensor) *framework.Tensor {
	for _, l := range ls {
		h = l.forward(t, h, temb, nil)
	}
	return h
}

func newParallel(s *nn.Scope, c *Config, channels int) *parallel {
	run := func(branch int) (ls chain) {
		for i := range c.Variants.ParallelBranches {
			ls = append(ls, &layer{resnet: newResnetBlock(s.Sub(branch, "resnets", i), c, channels, channels)})
		}
		return ls
	}
	p := &parallel{small: run(0), large: run(1)}
	p.large[0].attn = newAttention(s.Sub(1, "attentions", 0), c, channels, c.NormNumGroups)
	return p
}

func (p *parallel) forward(t *framework.Tape, h, temb, _ *framework.Tensor) *framework.Tensor {
	if chance(t, "branch order", 0.5) {
		large := p.large.forward(t, h, temb)
		return t.Add(p.small.forward(t, h, temb), large)
	}
	small := p.small.forward(t, h, temb)
	return t.Add(small, p.large.forward(t, h, temb))
}

// conditioned returns x with the network's own prediction behind it.
func (m *UNet2DModel) conditioned(t *framework.Tape, x *framework.Tensor, timesteps, labels []int) *framework.Tensor {
	if !m.cfg.Variants.SelfConditioning {
		return x
	}
	shape := append([]int(nil), x.Shape()...)
	shape[1] = m.cfg.OutChannels
	var guess []float32
	if !m.dry {
		guess = make([]float32, shape[0]*shape[1]*shape[2]*shape[3])
	}
	zeros := t.Input(shape, guess)
	if m.dry || !chance(t, "self-conditioning", 0.5) {
		return t.Concat(x, zeros)
	}
	_ = t.NoGrad(func() error { // nothing in it fails
		guess = m.predict(t, t.Concat(x, zeros), timesteps, labels).Float32s()
		return nil
	})
	return t.Concat(x, t.Input(shape, guess))
}
