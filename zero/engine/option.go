package engine

import (
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/zero"
)

// Option changes what New does with the parameters. Ranks use equal ones.
type Option func(*options)

type options struct {
	groups []zero.Group
	group  func(*framework.Param) int
	dtype  func(*framework.Param) string
	parts  zero.Parts
	hook   func(framework.GradHook) framework.GradHook
	tape   []framework.Option
}

// apply completes zp, which is p as the optimizer sees it.
func (o *options) apply(zp *zero.Param, p *framework.Param) {
	if o.group != nil {
		zp.Group = o.group(p)
	}
	if o.dtype != nil {
		zp.DType = o.dtype(p)
	}
}

// WithGroups gives parameters hyper-parameters of their own: of returns the index
// of a parameter's group. A group without a rule has the one given to New.
func WithGroups(of func(*framework.Param) int, groups ...zero.Group) Option {
	return func(o *options) { o.group, o.groups = of, groups }
}

// WithParamDType keeps parameters in formats of their own: of returns fp32, bf16
// or fp16, or an empty string for the model's. Their gradients travel in that
// format too, unless communication_data_type is given.
func WithParamDType(of func(*framework.Param) string) Option {
	return func(o *options) { o.dtype = of }
}

// WithParts builds the optimizer with other implementations of its pieces, and puts
// hook, unless it is nil, between the tape and the optimizer; tape are more options
// of the tape. All are for experiments, see zero.Parts.
func WithParts(parts zero.Parts, hook func(next framework.GradHook) framework.GradHook, tape ...framework.Option) Option {
	return func(o *options) { o.parts, o.hook, o.tape = parts, hook, tape }
}
