package zero

import (
	"fmt"

	"github.com/zerogap/zerogap/dtype"
)

// Policy is the format of everything the optimizer stores or sends. It is
// built once from the Config and asked wherever a cast happens.
type Policy struct {
	Param   dtype.DType // the compute copy of the weights, Param.Value
	Compute dtype.DType // activations and their gradients, as the model makes them
	Wire    dtype.DType // a micro-batch gradient, rounded once, on its way to the owner
	Accum   dtype.DType // the sum of micro-batch gradients
	Master  dtype.DType // the weights the rule updates, and its states: always fp32
}

// Policy returns the formats that c asks for. c must be valid.
func (c Config) Policy() Policy {
	model := dtype.F32
	switch {
	case c.FP16.Enabled:
		model = dtype.F16
	case c.BF16.Enabled:
		model = dtype.BF16
	}
	p := Policy{Param: model, Compute: model, Wire: model, Accum: dtype.F32, Master: dtype.F32}
	if d, err := dtype.Parse(c.CommunicationDataType); err == nil {
		p.Wire = d
	}
	if d, err := dtype.Parse(c.DataTypes.GradAccumDType); err == nil {
		p.Accum = d
	}
	return p
}

// String lists the formats for the header of a run.
func (p Policy) String() string {
	return fmt.Sprintf("param %s, compute %s, wire %s, accum %s, master %s", p.Param, p.Compute, p.Wire, p.Accum, p.Master)
}
