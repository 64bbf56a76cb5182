package zero

import (
	"sort"

	"github.com/zerogap/zerogap/dtype"
)

// This file answers questions about single parameters and elements, for whoever has
// to name them.

// Params returns the number of parameters, frozen and empty ones included.
func (p *Plan) Params() int { return len(p.names) }

// Name returns the name of parameter i.
func (p *Plan) Name(i int) string { return p.names[i] }

// Span returns the elements of parameter i, false when it has none or is frozen.
func (p *Plan) Span(i int) (Interval, bool) {
	s, ok := p.span(i)
	return s.Interval, ok
}

// ParamAt returns the parameter that has an element of the element space, and the
// element's place in it, row-major.
func (p *Plan) ParamAt(element int) (i, at int) {
	k := sort.Search(len(p.spans), func(k int) bool { return p.spans[k].Hi > element })
	return p.spans[k].param, element - p.spans[k].Lo
}

// Owner returns the rank whose partition has an element.
func (p *Plan) Owner(element int) int {
	k := sort.Search(len(p.segments), func(k int) bool { return p.segments[k].Hi > element })
	return p.segments[k].owner
}

// Wire returns the wire format of bucket b.
func (p *Plan) Wire(b int) dtype.DType { return p.wireOf(b) }

// Within returns the offsets of r's elements in iv, among r's.
func (r Region) Within(iv Interval) Interval { return r.cut(iv) }

// Each calls f with the runs of r's elements in iv and the offset of each run's first
// element.
func (r Region) Each(iv Interval, f func(run Interval, at int)) { r.each(r.cut(iv), f) }
