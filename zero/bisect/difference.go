package bisect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zerogap/zerogap/zero"
)

// Difference is the first one between two trainings.
type Difference struct {
	Step    int
	Micro   int // in its step, from 0, of a; -1 after the last
	Life    zero.Life
	Rank    int // -1 where the ranks' shares are one whole
	Bucket  int // in b; -1 where buckets have no part
	Param   string
	Element int // of the element space; -1 for the norm and the coefficient
	Offset  int // of the parameter
	A, B    float64

	Count    int // values that differ at this stage, over all ranks
	Params   int // parameters that they belong to
	Missing  int // parameters of which one training has no gradient at all
	Suspects []Suspect

	a, b  *capture
	point point
}

// Suspect is a class of faults that looks like a difference.
type Suspect struct {
	Class string // of package fault
	Why   string
}

// parts lists the points at the stage and the time of the difference, of all ranks.
func (d *Difference) parts() []int {
	world := max(d.a.training.world(), d.b.training.world())
	var all []int
	for p := range d.a.views {
		if p.life == d.Life && p.when(world) == d.point.when(world) {
			all = append(all, p.part)
		}
	}
	for p := range d.b.views {
		if p.life == d.Life && p.when(world) == d.point.when(world) && !slices.Contains(all, p.part) {
			all = append(all, p.part)
		}
	}
	slices.Sort(all)
	return all
}

// value returns an element of a view, zero where nothing was shown.
func (v *view) value(e int) float64 {
	if v == nil {
		return 0
	}
	return v.values[e]
}

// locate finds the lowest element that differs, of the lowest rank, and counts.
func (d *Difference) locate() {
	params := map[int]bool{}
	for _, part := range d.parts() {
		va, vb := d.a.at(d.Life, part), d.b.at(d.Life, part)
		n := len(either(va, vb).values)
		for e := range n {
			if same(va.value(e), vb.value(e)) {
				continue
			}
			d.Count++
			if n > 1 || d.a.training.Plan.Elements == 1 {
				i, _ := d.a.training.Plan.ParamAt(e)
				params[i] = true
			}
			if d.Count == 1 || d.Element >= 0 && e < d.Element {
				d.take(part, e, va, vb)
			}
		}
	}
	d.Params = len(params)
}

func either(a, b *view) *view {
	if a != nil {
		return a
	}
	return b
}

// take makes one element the difference.
func (d *Difference) take(part, e int, va, vb *view) {
	world := d.a.training.world()
	d.A, d.B = va.value(e), vb.value(e)
	switch d.Life {
	case zero.LifeLocal, zero.LifeCopy, zero.LifeWire:
		d.Micro, d.Rank = part/world, part%world
	case zero.LifeFold:
		d.Micro = part/world - 1
	case zero.LifeNorm, zero.LifeClip, zero.LifeGather:
		d.Rank = part
	}
	if d.Life == zero.LifeNorm || d.Life == zero.LifeClip {
		return
	}
	i, at := d.a.training.Plan.ParamAt(e)
	d.Element, d.Offset, d.Param = e, at, d.a.training.Plan.Name(i)
	if vb != nil && vb.present[e] {
		d.Bucket = vb.bucket[e]
	}
}

// String is a report of several lines.
func (d *Difference) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("first", "%v of step %d%s", d.Life, d.Step, d.where())
	if d.Element >= 0 {
		line("parameter", "%s, element %d", d.Param, d.Offset)
	}
	line("values", "%v in %s, %v in %s", d.A, d.a.training.Name, d.B, d.b.training.Name)
	if d.Element >= 0 {
		line("extent", "%d values of %d parameters differ at this stage, over all ranks", d.Count, d.Params)
	}
	if len(d.Suspects) == 0 {
		line("suspects", "none of the known classes looks like this")
	}
	for i, s := range d.Suspects {
		name := "suspects"
		if i > 0 {
			name = ""
		}
		line(name, "%s: %s", s.Class, s.Why)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// where names micro-step, rank and bucket, as far as they have a part.
func (d *Difference) where() string {
	var s string
	if d.Micro >= 0 {
		s += fmt.Sprintf(", micro-step %d", d.Micro+1)
	}
	if d.Rank >= 0 {
		s += fmt.Sprintf(", rank %d", d.Rank)
	}
	if d.Bucket >= 0 {
		s += fmt.Sprintf(", bucket %d of %d", d.Bucket, len(d.b.training.Plan.Buckets))
	}
	return s
}
