package zero

import (
	"slices"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
)

// values completes the compute copies of params: where they brought no memory it
// makes one flat buffer for each format, trainable parameters first, in layout
// order. It returns those buffers' trainable parts by class (empty when the caller
// brought the memory).
func values(params []Param, plan *Plan, l *ledger) []dtype.Buffer {
	flat := make([]dtype.Buffer, len(plan.classes))
	given := slices.ContainsFunc(params, func(p Param) bool { return p.Value.Len() > 0 })
	for k, c := range plan.classes {
		n := c.Len() + c.frozen
		if given {
			l.add(kindParameters, int64(n)*int64(c.param.Size()))
			continue
		}
		whole := l.make(kindParameters, c.param, n)
		flat[k] = whole.Slice(0, c.Len())
		carve(params, plan, c, whole)
	}
	return flat
}

// load writes the initial weights where they belong, one parameter after the
// other, and lets go of each.
func load(params []Param, s *shard, plan *Plan) {
	for i := range params {
		p := &params[i]
		if len(p.Init) > 0 {
			kernel.Round(p.Value, p.Init)
		}
		if sp, ok := plan.span(i); ok {
			s.load(sp.Interval, p.Init, plan)
		}
		loaded := p.Loaded
		p.Init, p.Loaded = nil, nil
		if loaded != nil {
			loaded(p.Value)
		}
	}
}

// carve makes the Values of class c views of whole.
func carve(params []Param, plan *Plan, c class, whole dtype.Buffer) {
	frozen := c.Len()
	for i := range params {
		p := &params[i]
		if d, _ := paramFormat(*p, plan.policy); d != c.param { // checked before
			continue
		}
		if s, ok := plan.span(i); ok {
			p.Value = whole.Slice(s.Lo-c.Lo, s.Hi-c.Lo)
			continue
		}
		n := 0
		if p.Frozen {
			n, _ = p.Len() // checked before
		}
		p.Value = whole.Slice(frozen, frozen+n)
		frozen += n
	}
}

// parameterBytes returns the bytes of all compute copies.
func (p *Plan) parameterBytes() int64 {
	var n int64
	for _, c := range p.classes {
		n += int64(c.Len()+c.frozen) * int64(c.param.Size())
	}
	return n
}
