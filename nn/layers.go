package nn

import (
	"fmt"
	"hash/fnv"

	"github.com/zerogap/zerogap/framework"
)

// Linear is y = x·Wᵀ + b with Weight [out,in] and Bias [out].
type Linear struct {
	Weight *framework.Param
	Bias   *framework.Param
}

// NewLinear registers weight and bias below s.
func NewLinear(s *Scope, in, out int) *Linear {
	return &Linear{
		Weight: s.Param("weight", FanIn(in), out, in),
		Bias:   s.Param("bias", FanIn(in), out),
	}
}

// Forward maps x [..., in] to [..., out].
func (l *Linear) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return t.Linear(x, l.Weight.Value, value(l.Bias))
}

// Params returns weight, bias.
func (l *Linear) Params() []*framework.Param { return present(l.Weight, l.Bias) }

// Conv2dConfig describes a convolution with a square kernel. Stride 0 means 1.
type Conv2dConfig struct {
	In, Out, Kernel int
	Stride          int
	Padding         framework.Padding // zeros added on each side
}

// Conv2d is a two-dimensional convolution with Weight [out,in,k,k] and Bias [out].
type Conv2d struct {
	Weight *framework.Param
	Bias   *framework.Param

	stride int
	pad    framework.Padding
}

// NewConv2d registers weight and bias below s.
func NewConv2d(s *Scope, c Conv2dConfig) *Conv2d {
	fanIn := c.In * c.Kernel * c.Kernel
	return &Conv2d{
		Weight: s.Param("weight", FanIn(fanIn), c.Out, c.In, c.Kernel, c.Kernel),
		Bias:   s.Param("bias", FanIn(fanIn), c.Out),
		stride: max(c.Stride, 1),
		pad:    c.Padding,
	}
}

// Forward maps x [B,in,H,W] to [B,out,H',W'], H' = ⌊(H+top+bottom−k)/stride⌋+1.
func (c *Conv2d) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return t.Conv2d(x, c.Weight.Value, value(c.Bias), c.stride, c.pad)
}

// ForwardUpsampled is Forward of x [B,in,h,w] with its pixels repeated to
// [B,in,oh,ow], as one operation with the same bits.
func (c *Conv2d) ForwardUpsampled(t *framework.Tape, x *framework.Tensor, oh, ow int) *framework.Tensor {
	return t.UpsampleConv2d(x, oh, ow, c.Weight.Value, value(c.Bias), c.stride, c.pad)
}

// Params returns weight, bias.
func (c *Conv2d) Params() []*framework.Param { return present(c.Weight, c.Bias) }

// GroupNorm normalises each of Groups groups of channels of each sample to
// mean 0 and (biased) variance 1, then scales and shifts each channel by
// Weight [C] and Bias [C].
type GroupNorm struct {
	Weight *framework.Param
	Bias   *framework.Param

	groups int
	eps    float64
}

// NewGroupNorm registers weight 1 and bias 0 below s. It panics unless groups
// divides channels.
func NewGroupNorm(s *Scope, groups, channels int, eps float64) *GroupNorm {
	if groups < 1 || channels%groups != 0 {
		panic(fmt.Sprintf("nn: group norm %q: %d channels in %d groups", s.Path(), channels, groups))
	}
	return &GroupNorm{
		Weight: s.Param("weight", Constant(1), channels),
		Bias:   s.Param("bias", Constant(0), channels),
		groups: groups,
		eps:    eps,
	}
}

// Forward maps x [B,C,...] to the same shape.
func (g *GroupNorm) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return t.GroupNorm(x, g.Weight.Value, g.Bias.Value, g.groups, g.eps)
}

// ForwardSiLU is Forward followed by SiLU, as one operation with the same bits.
func (g *GroupNorm) ForwardSiLU(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	return t.GroupNormSiLU(x, g.Weight.Value, g.Bias.Value, g.groups, g.eps)
}

// Params returns weight, bias.
func (g *GroupNorm) Params() []*framework.Param { return present(g.Weight, g.Bias) }

// Embedding is a table of rows, Weight [rows,dim], drawn from N(0,1).
type Embedding struct {
	Weight *framework.Param
}

// NewEmbedding registers the table as weight below s.
func NewEmbedding(s *Scope, rows, dim int) *Embedding {
	return &Embedding{Weight: s.Param("weight", Normal(1), rows, dim)}
}

// Forward looks up the rows ids and returns [len(ids),dim].
func (e *Embedding) Forward(t *framework.Tape, ids []int) *framework.Tensor {
	return t.Embedding(e.Weight.Value, ids)
}

// Params returns weight.
func (e *Embedding) Params() []*framework.Param { return present(e.Weight) }

// TimestepEmbedding is diffusers' MLP on sinusoidal features:
// linear_2(SiLU(linear_1(x))).
type TimestepEmbedding struct {
	Linear1, Linear2 *Linear

	path string
}

// NewTimestepEmbedding registers linear_1 [out,in] and linear_2 [out,out] below s.
func NewTimestepEmbedding(s *Scope, in, out int) *TimestepEmbedding {
	return &TimestepEmbedding{
		Linear1: NewLinear(s.Sub("linear_1"), in, out),
		Linear2: NewLinear(s.Sub("linear_2"), out, out),
		path:    s.Path(),
	}
}

// Forward maps x [B,in] to [B,out].
func (e *TimestepEmbedding) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	defer t.LeaveModule(t.EnterModule(e.path))
	return e.Linear2.Forward(t, t.SiLU(e.Linear1.Forward(t, x)))
}

// Params returns linear_1, linear_2.
func (e *TimestepEmbedding) Params() []*framework.Param { return Params(e.Linear1, e.Linear2) }

// Dropout zeroes each element with probability P while training and scales the
// rest by 1/(1−P). The mask of a row is a function of (seed, step, global
// sample index, layer): it does not change with the batch that the row sits
// in, with the rank that computes it, or when a checkpointed segment is
// computed again.
type Dropout struct {
	P     float64
	layer uint64
	path  string
}

// NewDropout names the layer after s; it has no parameters. It panics unless
// 0 <= p < 1.
func NewDropout(s *Scope, p float64) *Dropout {
	if !(p >= 0 && p < 1) {
		panic(fmt.Sprintf("nn: dropout %q: p = %v is not in [0, 1)", s.Path(), p))
	}
	h := fnv.New64a()
	h.Write([]byte(s.Path()))
	return &Dropout{P: p, layer: h.Sum64(), path: s.Path()}
}

// Forward maps x [B,...] to the same shape.
func (d *Dropout) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor {
	if d.P == 0 {
		return x
	}
	defer t.LeaveModule(t.EnterModule(d.path))
	return t.Dropout(x, d.P, d.layer)
}

// Params returns none.
func (d *Dropout) Params() []*framework.Param { return nil }

// SiLU is x·sigmoid(x), elementwise.
type SiLU struct{}

// Forward maps x to the same shape.
func (SiLU) Forward(t *framework.Tape, x *framework.Tensor) *framework.Tensor { return t.SiLU(x) }

// Params returns none.
func (SiLU) Params() []*framework.Param { return nil }

// MSELoss returns the mean over all elements of (pred−target)², a scalar. Both
// tensors have the same shape; the gradient flows into pred.
func MSELoss(t *framework.Tape, pred, target *framework.Tensor) *framework.Tensor {
	return t.MSELoss(pred, target)
}
