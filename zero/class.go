package zero

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
)

// class is the parameters of one format. The trainable ones are a run of the
// element space; most models have one class.
type class struct {
	Interval
	param  dtype.DType // of the compute copies
	wire   dtype.DType // of their gradients on the wire
	frozen int         // elements of frozen parameters
}

// paramFormat returns the format of p's compute copy.
func paramFormat(p Param, policy Policy) (dtype.DType, error) {
	if p.DType == "" {
		return policy.Param, nil
	}
	d, err := dtype.Parse(p.DType)
	if err != nil {
		return 0, fmt.Errorf("parameter %q: %w", p.Name, err)
	}
	return d, nil
}

// addClasses makes a class of each format that parameters use. The model's own
// comes first and the others in a fixed order, so that the element space depends
// on nothing but the parameters.
func (p *Plan) addClasses(formats []dtype.DType) {
	used := map[dtype.DType]bool{}
	for _, d := range formats {
		used[d] = true
	}
	order := []dtype.DType{p.policy.Param}
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		if d != p.policy.Param {
			order = append(order, d)
		}
	}
	for _, d := range order {
		if !used[d] {
			continue
		}
		wire := d
		if p.cfg.CommunicationDataType != "" {
			wire = p.policy.Wire
		}
		p.classes = append(p.classes, class{param: d, wire: wire})
	}
}

// classOf returns the class of element e.
func (p *Plan) classOf(e int) *class {
	for k := range p.classes {
		if e < p.classes[k].Hi {
			return &p.classes[k]
		}
	}
	return &p.classes[len(p.classes)-1]
}
