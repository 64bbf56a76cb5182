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
