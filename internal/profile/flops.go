// Package profile looks into a training step: how much arithmetic each module of a
// model does and how long it takes, as DeepSpeed's flops_profiler does, and when each
// operation and each collective ran, as a trace for Perfetto.
package profile

import (
	"strings"
	"time"

	"github.com/zerogap/zerogap/framework"
)

// Counts is what a module did in the operations that were observed.
type Counts struct {
	Forward, Recompute, Backward Pass
}

// Pass is what a module did in one kind of pass: the first run of its operations, the
// further runs of those in checkpointed segments, or the computation of gradients.
type Pass struct {
	framework.Work
	Time       time.Duration
	Executions int
}

func (p *Pass) add(x Pass) {
	p.MACs += x.MACs
	p.FLOPs += x.FLOPs
	p.Time += x.Time
	p.Executions += x.Executions
}

func (c *Counts) add(x Counts) {
	c.Forward.add(x.Forward)
	c.Recompute.add(x.Recompute)
	c.Backward.add(x.Backward)
}

// FLOPs returns the operations of all passes.
func (c Counts) FLOPs() int64 { return c.Forward.FLOPs + c.Recompute.FLOPs + c.Backward.FLOPs }

// Flops counts the work of a model by module. Every execution of an operation counts
// once, and every parameter once, whatever uses it. It is not safe for concurrent use.
type Flops struct {
	root *module
}

// module is a node of the tree that the dotted names make.
type module struct {
	name     string // of its own, without those around it
	params   int64  // elements, of modules inside too
	counts   Counts // of modules inside too
	children []*module
}

// NewFlops returns an empty count for a model with these parameters, which may be
// listed more than once.
func NewFlops(params []*framework.Param) *Flops {
	f := &Flops{root: &module{}}
	seen := make(map[*framework.Param]bool, len(params))
	for _, p := range params {
		if !seen[p] {
			seen[p] = true
			owner := p.Name[:max(0, strings.LastIndexByte(p.Name, '.'))]
			f.walk(owner, func(m *module) { m.params += int64(p.Len()) })
		}
	}
	return f
}

// Observe counts an execution: it is a framework.Observer.
func (f *Flops) Observe(e framework.Execution) {
	var c Counts
	p := Pass{e.Work, e.Time, 1}
	switch e.Pass {
	case framework.PassForward:
		c.Forward = p
	case framework.PassRecompute:
		c.Recompute = p
	default:
		c.Backward = p
	}
	f.walk(e.Module, func(m *module) { m.counts.add(c) })
}

// walk calls visit for the named module and all around it, the model first.
func (f *Flops) walk(name string, visit func(*module)) {
	m := f.root
	visit(m)
	for name != "" {
		var first string
		first, name, _ = strings.Cut(name, ".")
		m = m.child(first)
		visit(m)
	}
}

// find returns the module inside that is called name, or nil.
func (m *module) find(name string) *module {
	for _, c := range m.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// child is find that makes the module if there is none.
func (m *module) child(name string) *module {
	c := m.find(name)
	if c == nil {
		c = &module{name: name}
		m.children = append(m.children, c)
	}
	return c
}

// Module returns what the named module and those inside it did, and the number of
// their parameters; "" is the model. A module that is not there has zeros.
func (f *Flops) Module(name string) (Counts, int64) {
	m := f.root
	for first := ""; name != ""; {
		first, name, _ = strings.Cut(name, ".")
		if m = m.find(first); m == nil {
			return Counts{}, 0
		}
	}
	return m.counts, m.params
}
