package nn

import (
	"fmt"
	"math"

	"github.com/zerogap/zerogap/framework"
)

// AttentionConfig describes self-attention over the positions of an image.
type AttentionConfig struct {
	Channels int
	HeadDim  int // channels of one head; 0 means one head over all channels
	Groups   int // groups of the normalisation in front; 0 means no normalisation
	Eps      float64
}

// Attention is diffusers' Attention as its 2D UNets use it: group norm,
// multi-head self-attention over the H·W positions, output projection, plus
// the input. Channel c of the projections belongs to head ⌊c/HeadDim⌋.
type Attention struct {
	GroupNorm     *GroupNorm // nil when AttentionConfig.Groups is 0
	ToQ, ToK, ToV *Linear
	ToOut         *Linear

	heads, headDim int
	path           string
}

// NewAttention registers group_norm, to_q, to_k, to_v and to_out.0 below s. It
// panics unless HeadDim divides Channels.
func NewAttention(s *Scope, c AttentionConfig) *Attention {
	if c.HeadDim == 0 {
		c.HeadDim = c.Channels
	}
	if c.HeadDim < 0 || c.Channels%c.HeadDim != 0 {
		panic(fmt.Sprintf("nn: attention %q: %d channels in heads of %d", s.Path(), c.Channels, c.HeadDim))
	}
	a := &Attention{heads: c.Channels / c.HeadDim, headDim: c.HeadDim, path: s.Path()}
	if c.Groups > 0 {
		a.GroupNorm = NewGroupNorm(s.Sub("group_norm"), c.Groups, c.Channels, c.Eps)
	}
	a.ToQ = NewLinear(s.Sub("to_q"), c.Channels, c.Channels)
	a.ToK = NewLinear(s.Sub("to_k"), c.Channels, c.Channels)
	a.ToV = NewLinear(s.Sub("to_v"), c.Channels, c.Channels)
	a.ToOut = NewLinear(s.Sub("to_out", 0), c.Channels, c.Channels)
	return a
}

// Forward maps x [B,C,H,W] to the same shape.
func (a *Attention) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	defer t.LeaveModule(t.EnterModule(a.path))
	b, c, h, w := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)
	y := t.Reshape(x, b, c, h*w)
	if a.GroupNorm != nil {
		y = a.GroupNorm.Forward(t, y)
	}
	y = t.Transpose(y, 1, 2)
	q := a.split(t, a.ToQ.Forward(t, y))
	k := a.split(t, a.ToK.Forward(t, y))
	v := a.split(t, a.ToV.Forward(t, y))
	y = t.Attention(q, k, v, 1/math.Sqrt(float64(a.headDim)))
	y = a.ToOut.Forward(t, a.join(t, y, b))
	y = t.Reshape(t.Transpose(y, 1, 2), b, c, h, w)
	return t.AddTo(y, x)
}

// split rearranges [B,N,C] to one matrix per head, [B·heads,N,headDim].
func (a *Attention) split(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	if a.heads == 1 {
		return x
	}
	b, n := x.Dim(0), x.Dim(1)
	x = t.Transpose(t.Reshape(x, b, n, a.heads, a.headDim), 1, 2)
	return t.Reshape(x, b*a.heads, n, a.headDim)
}

// join is the inverse of split for a batch of b.
func (a *Attention) join(t *framework.Tape, x *framework.Tensor, b int) *framework.Tensor {
	if a.heads == 1 {
		return x
	}
	n := x.Dim(1)
	x = t.Transpose(t.Reshape(x, b, a.heads, n, a.headDim), 1, 2)
	return t.Reshape(x, b, n, a.heads*a.headDim)
}

// Params returns group_norm (if any), to_q, to_k, to_v, to_out.0.
func (a *Attention) Params() []*framework.Param {
	if a.GroupNorm == nil {
		return Params(a.ToQ, a.ToK, a.ToV, a.ToOut)
	}
	return Params(a.GroupNorm, a.ToQ, a.ToK, a.ToV, a.ToOut)
}
