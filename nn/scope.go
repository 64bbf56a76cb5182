// Package nn holds the layers that models are built from: each layer registers
// its parameters under a dotted name when it is constructed and computes on a
// framework.Tape when it is called.
//
// Layer names, weight layouts and default initial values are PyTorch's: Linear
// weights are [out,in], convolution weights [out,in,kh,kw], normalisation
// layers start at weight 1 and bias 0. A layer is immutable after construction
// and holds no activations. Its parameters belong to one recording tape at a
// time; tapes that only evaluate, inside NoGrad, may share them as long as
// nobody writes them meanwhile.
package nn

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
)

// Module is anything that owns parameters. Params returns them in registration
// order, each once; the slice belongs to the caller.
type Module interface {
	Params() []*framework.Param
}

// Params concatenates the parameters of several modules, which is all that a
// module made of other modules needs for its own Params method.
func Params(modules ...Module) []*framework.Param {
	var all []*framework.Param
	for _, m := range modules {
		all = append(all, m.Params()...)
	}
	return all
}

// ParamShape is the name and shape of a parameter without its storage.
type ParamShape struct {
	Name  string
	Shape []int
}

// Len returns the number of elements.
func (p ParamShape) Len() int { return size(p.Shape) }

// Fill returns the initial values of the parameter called name, row-major; the
// parameter takes ownership of the slice. init is what the layer asked for.
type Fill func(name string, init Init, shape []int) []float32

// Scope composes the names of parameters while a model is constructed and
// records them in construction order:
//
//	root := nn.NewScope(seed)
//	fc := nn.NewLinear(root.Sub("layers", 0), 784, 10) // layers.0.weight, layers.0.bias
//
// A Scope is used by one goroutine and is not needed after construction.
type Scope struct {
	prefix string
	reg    *registry
}

// registry is what all scopes of one model share.
type registry struct {
	fill   Fill        // nil: record shapes only
	dry    bool        // parameters without values
	dtype  dtype.DType // of dry parameters
	params []*framework.Param
	shapes []ParamShape
	names  map[string]bool
}

// NewScope returns the root scope of a new model whose initial values come
// from seed. The values of each parameter depend on (seed, name) alone, so that
// adding or reordering layers leaves all others as they were.
func NewScope(seed uint64) *Scope {
	return NewScopeFill(func(name string, init Init, shape []int) []float32 {
		w := make([]float32, size(shape))
		init(framework.NewStream(seed, 0, 0, framework.Purpose("init:"+name)), w)
		return w
	})
}

// NewScopeFill returns a root scope whose parameters get their values from
// fill, for example from a file of weights.
func NewScopeFill(fill Fill) *Scope {
	return &Scope{reg: &registry{fill: fill, names: map[string]bool{}}}
}

// NewShapeScope returns a root scope that records names and shapes and
// allocates nothing: layers built from it hold nil parameters and cannot
// compute. It answers how large a model would be.
func NewShapeScope() *Scope { return NewScopeFill(nil) }

// NewDryScope returns a root scope whose parameters are stored as d and have no
// values: for tapes made with framework.WithDryRun.
func NewDryScope(d dtype.DType) *Scope {
	return &Scope{reg: &registry{dry: true, dtype: d, names: map[string]bool{}}}
}

// Sub returns the scope named by the parts below s; numbers become decimal, as
// in s.Sub("down_blocks", 0, "resnets", 1). Parts are strings and ints.
func (s *Scope) Sub(parts ...any) *Scope {
	p := s.prefix
	for _, part := range parts {
		switch v := part.(type) {
		case string:
			p += v + "."
		case int:
			p += strconv.Itoa(v) + "."
		default:
			panic(fmt.Sprintf("nn: scope part %v is a %T: allowed are string and int", part, part))
		}
	}
	return &Scope{prefix: p, reg: s.reg}
}

// Path returns the dotted name of the scope itself, "" at the root.
func (s *Scope) Path() string {
	if s.prefix == "" {
		return ""
	}
	return s.prefix[:len(s.prefix)-1]
}

// Param registers a parameter called name below the scope. It panics when the
// full name is taken. The result is nil in a scope of NewShapeScope.
func (s *Scope) Param(name string, init Init, shape ...int) *framework.Param {
	full := s.prefix + name
	if s.reg.names[full] {
		panic(fmt.Sprintf("nn: parameter %q registered twice", full))
	}
	s.reg.names[full] = true
	s.reg.shapes = append(s.reg.shapes, ParamShape{Name: full, Shape: slices.Clone(shape)})
	var p *framework.Param
	switch {
	case s.reg.dry:
		p = framework.NewDryParam(full, s.reg.dtype, shape...)
	case s.reg.fill == nil:
		return nil
	default:
		p = framework.NewParam(full, s.reg.fill(full, init, shape), shape...)
	}
	s.reg.params = append(s.reg.params, p)
	return p
}

// Params returns every parameter registered with the model so far, in
// registration order, whatever scope it was registered in.
func (s *Scope) Params() []*framework.Param { return slices.Clone(s.reg.params) }

// Shapes returns name and shape of every parameter registered with the model
// so far, in registration order.
func (s *Scope) Shapes() []ParamShape { return slices.Clone(s.reg.shapes) }

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// present drops the parameters that a layer was built without.
func present(params ...*framework.Param) []*framework.Param {
	return slices.DeleteFunc(params, func(p *framework.Param) bool { return p == nil })
}

// value returns the tensor of an optional parameter, nil if there is none.
func value(p *framework.Param) *framework.Tensor {
	if p == nil {
		return nil
	}
	return p.Value
}
