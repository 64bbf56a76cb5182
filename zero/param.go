package zero

import (
	"fmt"
	"math"
	"sort"
	"unsafe"

	"github.com/zerogap/zerogap/dtype"
)

// Param is one parameter of the model, in registration order.
type Param struct {
	Name  string
	Shape []int
	// Init holds the initial weights in fp32, row-major. New reads it and
	// keeps no reference. A frozen parameter may have none; its Value is then
	// left as it is.
	Init []float32
	// DType is the format of the compute copy: fp32, bf16, fp16, or empty for
	// Policy.Param.
	DType string
	// Group is the index of the parameter's group in those given to New.
	Group int
	// Value is the compute copy in that format: the caller's memory, written by
	// New and by each Step. It may be empty for every parameter: New then makes
	// them views of one flat buffer for each format (Optimizer.Value), and
	// gathered weights arrive in place.
	Value dtype.Buffer
	// Loaded, when it is not nil, is called once by New with the compute copy,
	// after the weights of Init have been written to it and wherever else they
	// belong: a caller that has no other use for them lets go of them here, and
	// needs no room for the initial weights of all parameters beside the
	// training state.
	Loaded func(value dtype.Buffer)
	// Frozen parameters have no gradient and are in no layout.
	Frozen bool
}

// Len returns the product of the shape, or an error that names the parameter.
func (p Param) Len() (int, error) {
	n := 1
	for _, d := range p.Shape {
		if d < 0 {
			return 0, fmt.Errorf("parameter %q: shape %v has a negative dimension", p.Name, p.Shape)
		}
		if d > 0 && n > math.MaxInt/d {
			return 0, fmt.Errorf("parameter %q: shape %v has too many elements", p.Name, p.Shape)
		}
		n *= d
	}
	return n, nil
}

// checkParams refuses what no layout can express: wrong lengths and formats, and
// a parameter that was given twice.
func checkParams(params []Param, policy Policy, groups int) error {
	names := make(map[string]int, len(params))
	var with, without []string // parameters with elements, by whether they bring a Value
	for i, p := range params {
		if j, twice := names[p.Name]; twice {
			return fmt.Errorf("parameters %d and %d are both named %q: register a tied weight once, and give others names of their own", j, i, p.Name)
		}
		names[p.Name] = i
		if err := checkParam(p, policy, groups); err != nil {
			return err
		}
		n, _ := p.Len() // checked by the plan
		switch {
		case p.Value.Len() > 0:
			with = append(with, p.Name)
		case n > 0:
			without = append(without, p.Name)
		}
	}
	if len(with) > 0 && len(without) > 0 {
		return fmt.Errorf("parameter %q has a Value and %q has none: give one for every parameter, or for none", with[0], without[0])
	}
	return checkOverlap(params)
}

// checkParam checks one parameter.
func checkParam(p Param, policy Policy, groups int) error {
	n, err := p.Len()
	if err != nil {
		return err
	}
	want, err := paramFormat(p, policy)
	switch {
	case err != nil:
		return err
	case len(p.Init) != n && !(p.Frozen && len(p.Init) == 0):
		return fmt.Errorf("parameter %q: %d initial weights for shape %v, want %d", p.Name, len(p.Init), p.Shape, n)
	case p.Group < 0 || p.Group >= groups:
		return fmt.Errorf("parameter %q: group %d, there are %d, numbered from 0", p.Name, p.Group, groups)
	case p.Value.Len() == 0:
		return nil
	case p.Value.Len() != n:
		return fmt.Errorf("parameter %q: Value has %d elements, shape %v wants %d", p.Name, p.Value.Len(), p.Shape, n)
	case p.Value.DType != want:
		return fmt.Errorf("parameter %q: Value is %s, the configuration makes it %s", p.Name, p.Value.DType, want)
	}
	return nil
}

// checkOverlap refuses parameters whose Values share memory: a tied weight is
// one parameter, with one state and one place in the norm.
func checkOverlap(params []Param) error {
	type memory struct {
		param  int
		lo, hi uintptr
	}
	var all []memory
	for i, p := range params {
		if at := address(p.Value); at != 0 {
			all = append(all, memory{i, at, at + uintptr(p.Value.Bytes())})
		}
	}
	sort.Slice(all, func(a, b int) bool {
		if all[a].lo != all[b].lo {
			return all[a].lo < all[b].lo
		}
		return all[a].param < all[b].param
	})
	for k := 1; k < len(all); k++ {
		if all[k].lo < all[k-1].hi {
			a, b := params[all[k-1].param].Name, params[all[k].param].Name
			return fmt.Errorf("parameters %q and %q share memory: register a tied weight once", a, b)
		}
	}
	return nil
}

// address returns where b's elements begin, 0 when it has none.
func address(b dtype.Buffer) uintptr {
	switch {
	case b.Len() == 0:
		return 0
	case b.DType == dtype.F32:
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.F32)))
	case b.DType == dtype.F64:
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.F64)))
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(b.U16)))
}
