package unet

import (
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

// resnetBlock is diffusers' ResnetBlock2D:
//
//	h = conv1(SiLU(norm1(x)))
//	h = norm2(h + proj)              time embedding added, or
//	h = norm2(h)·(1+s) + b           with s, b the halves of proj
//	y = conv2(dropout(SiLU(h))) + shortcut(x)
type resnetBlock struct {
	norm1, norm2 *nn.GroupNorm
	conv1, conv2 *nn.Conv2d
	timeProj     *nn.Linear
	dropout      *nn.Dropout
	shortcut     *nn.Conv2d // nil when the channels stay
	scaleShift   bool
	path         string
}

func newResnetBlock(s *nn.Scope, c *Config, in, out int) *resnetBlock {
	r := &resnetBlock{scaleShift: c.ResnetTimeScaleShift == timeScaleShift, path: s.Path()}
	proj := out
	if r.scaleShift {
		proj = 2 * out
	}
	r.norm1 = nn.NewGroupNorm(s.Sub("norm1"), c.NormNumGroups, in, c.NormEps)
	r.conv1 = newConv3(s.Sub("conv1"), in, out)
	r.timeProj = nn.NewLinear(s.Sub("time_emb_proj"), c.timeDim(), proj)
	r.norm2 = nn.NewGroupNorm(s.Sub("norm2"), c.NormNumGroups, out, c.NormEps)
	r.dropout = nn.NewDropout(s.Sub("dropout"), c.Dropout)
	r.conv2 = newConv3(s.Sub("conv2"), out, out)
	if in != out {
		r.shortcut = nn.NewConv2d(s.Sub("conv_shortcut"), nn.Conv2dConfig{In: in, Out: out, Kernel: 1})
	}
	return r
}

// forward maps x [B,in,H,W] to [B,out,H,W]; temb [B,T] is the time embedding
// after its SiLU.
func (r *resnetBlock) forward(t *framework.Tape, x, temb *framework.Tensor) *framework.Tensor {
	defer t.LeaveModule(t.EnterModule(r.path))
	h := r.conv1.Forward(t, r.norm1.ForwardSiLU(t, x))
	proj := r.timeProj.Forward(t, temb)
	if r.scaleShift {
		half := t.Chunk(proj, 2)
		h = t.SiLU(t.ScaleShift(r.norm2.Forward(t, h), half[0], half[1]))
	} else {
		h = r.norm2.ForwardSiLU(t, t.AddChannelTo(h, proj))
	}
	h = r.conv2.Forward(t, r.dropout.Forward(t, h))
	if r.shortcut != nil {
		x = r.shortcut.Forward(t, x)
	}
	return t.AddTo(h, x)
}

// block is one step of the hidden state h [B,C,H,W] through the network. skip
// is the tensor on top of the stack of skip connections, nil when the stack is
// empty or the block has no use for it.
type block interface {
	forward(t *framework.Tape, h, temb, skip *framework.Tensor) *framework.Tensor
}

// layer is a resnet with the attention that follows it, if any.
type layer struct {
	resnet *resnetBlock
	attn   *nn.Attention
}

func (l *layer) forward(t *framework.Tape, h, temb, _ *framework.Tensor) *framework.Tensor {
	h = l.resnet.forward(t, h, temb)
	if l.attn != nil {
		h = l.attn.Forward(t, h)
	}
	return h
}

// upLayer is a layer on the hidden state with a skip connection behind it.
type upLayer struct {
	layer
	path string // of the block
}

func (l *upLayer) forward(t *framework.Tape, h, temb, skip *framework.Tensor) *framework.Tensor {
	defer t.LeaveModule(t.EnterModule(l.path))
	return l.layer.forward(t, t.Concat(h, skip), temb, nil)
}

// downsample halves the resolution: a 3x3 convolution of stride 2.
type downsample struct{ conv *nn.Conv2d }

func newDownsample(s *nn.Scope, c *Config, channels int) *downsample {
	pad := framework.Padding{Top: 1, Left: 1, Bottom: 1, Right: 1}
	if c.DownsamplePadding == 0 {
		pad = framework.Padding{Bottom: 1, Right: 1}
	}
	return &downsample{nn.NewConv2d(s.Sub("conv"), nn.Conv2dConfig{
		In: channels, Out: channels, Kernel: 3, Stride: 2, Padding: pad,
	})}
}

func (d *downsample) forward(t *framework.Tape, h, _, _ *framework.Tensor) *framework.Tensor {
	return d.conv.Forward(t, h)
}

// upsample repeats pixels up to the size of the skip connection that comes
// next, then convolves. That size is twice h's for even images; taking it from
// the skip makes odd ones come out as they went in.
type upsample struct{ conv *nn.Conv2d }

func newUpsample(s *nn.Scope, channels int) *upsample {
	return &upsample{newConv3(s.Sub("conv"), channels, channels)}
}

func (u *upsample) forward(t *framework.Tape, h, _, skip *framework.Tensor) *framework.Tensor {
	return u.conv.ForwardUpsampled(t, h, skip.Dim(2), skip.Dim(3))
}

// newConv3 is a 3x3 convolution that keeps the size.
func newConv3(s *nn.Scope, in, out int) *nn.Conv2d {
	return nn.NewConv2d(s, nn.Conv2dConfig{
		In: in, Out: out, Kernel: 3, Padding: framework.Padding{Top: 1, Left: 1, Bottom: 1, Right: 1},
	})
}
