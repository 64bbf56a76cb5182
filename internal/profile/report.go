package profile

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report says what of a profile is shown, and what was profiled. The fields that
// DeepSpeed has carry its names and meanings.
type Report struct {
	Model        string // name of the whole
	Step         int
	MicroBatches int // of one rank
	Samples      int // of a micro-batch

	ModuleDepth int  // levels of modules inside the model that are shown; -1 is all
	TopModules  int  // modules that are named for each level
	Detailed    bool // show every module
	// RecomputeFwdFactor is the share of the forward pass that DeepSpeed's estimate
	// takes as computed again.
	RecomputeFwdFactor float64
}

// Write writes the report on f.
func (r Report) Write(w io.Writer, f *Flops) error {
	var b strings.Builder
	r.summary(&b, f)
	levels := levelsOf(f.root, r.ModuleDepth)
	fmt.Fprintf(&b, "\nFirst of each level, with their share of the model:\n")
	for depth, level := range levels {
		if depth > 0 {
			r.top(&b, f.root, depth, level)
		}
	}
	if r.Detailed {
		fmt.Fprintf(&b, "\nModules, each with those inside it:\n")
		r.table(&b, f.root)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Report) summary(b *strings.Builder, f *Flops) {
	batches := "1 micro-batch"
	if r.MicroBatches != 1 {
		batches = fmt.Sprintf("%d micro-batches", r.MicroBatches)
	}
	fmt.Fprintf(b, "FLOPs profile of step %d, one rank, %s of %d samples\n\n", r.Step, batches, r.Samples)
	c := f.root.counts
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tMACs\tFLOPs\tms\tGFLOP/s\t\n")
	line := func(name string, p Pass) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", name, thousands(p.MACs), thousands(p.FLOPs), ms(p.Time), speed(p))
	}
	line("forward", c.Forward)
	line("recompute", c.Recompute)
	line("backward", c.Backward)
	var all Pass
	for _, p := range []Pass{c.Forward, c.Recompute, c.Backward} {
		all.add(p)
	}
	line("together", all)
	t.Flush() // to a strings.Builder, which never fails
	fmt.Fprintf(b, "\nparameters %s. A MAC is two FLOPs.\n", thousands(f.root.params))
	factor := 3 + r.RecomputeFwdFactor
	fmt.Fprintf(b, "DeepSpeed's estimate, forward x (3 + recompute_fwd_factor) = forward x %s: %s FLOPs.\n",
		strconv.FormatFloat(factor, 'g', -1, 64), thousands(int64(float64(c.Forward.FLOPs)*factor)))
}

// named is a module with its full name.
type named struct {
	name string
	*module
}

// levelsOf lists the modules by the number of modules around them, as far as depth.
func levelsOf(root *module, depth int) [][]named {
	levels := [][]named{{{"", root}}}
	for depth < 0 || len(levels) <= depth {
		var next []named
		for _, m := range levels[len(levels)-1] {
			for _, c := range m.children {
				next = append(next, named{strings.TrimPrefix(m.name+"."+c.name, "."), c})
			}
		}
		if next == nil {
			break
		}
		levels = append(levels, next)
	}
	return levels
}

// top names the first modules of a level by each measure.
func (r Report) top(b *strings.Builder, root *module, depth int, level []named) {
	for i, by := range []struct {
		what string
		of   func(*module) int64
		show func(int64) string
	}{
		{"parameters", func(m *module) int64 { return m.params }, thousands},
		{"forward MACs", func(m *module) int64 { return m.counts.Forward.MACs }, short},
		{"forward ms", func(m *module) int64 { return int64(m.counts.Forward.Time) }, func(n int64) string { return ms(time.Duration(n)) }},
	} {
		sorted := slices.Clone(level)
		slices.SortStableFunc(sorted, func(x, y named) int { return cmp.Compare(by.of(y.module), by.of(x.module)) })
		var parts []string
		for _, m := range sorted[:min(r.TopModules, len(sorted))] {
			n := by.of(m.module)
			parts = append(parts, fmt.Sprintf("%s %s (%s)", m.name, by.show(n), share(n, by.of(root))))
		}
		head := fmt.Sprintf("depth %d", depth)
		if i > 0 {
			head = ""
		}
		fmt.Fprintf(b, "%-8s %-13s %s\n", head, by.what, strings.Join(parts, ", "))
	}
}

// table is a line for each module.
func (r Report) table(b *strings.Builder, root *module) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "params\tMACs\tFLOPs\tshare\tms\tGFLOP/s\trecompute\tms\tbackward\tms\t  module")
	var walk func(m *module, name string, depth int)
	walk = func(m *module, name string, depth int) {
		c := m.counts
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t  %s%s\n", short(m.params), short(c.Forward.MACs), short(c.Forward.FLOPs),
			share(c.Forward.FLOPs, root.counts.Forward.FLOPs), ms(c.Forward.Time), speed(c.Forward), short(c.Recompute.FLOPs), ms(c.Recompute.Time),
			short(c.Backward.FLOPs), ms(c.Backward.Time), strings.Repeat("  ", depth), name)
		if r.ModuleDepth >= 0 && depth >= r.ModuleDepth {
			return
		}
		for _, child := range m.children {
			walk(child, child.name, depth+1)
		}
	}
	walk(root, r.Model, 0)
	t.Flush()
}

func ms(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 2, 64)
}

// speed is in GFLOP/s.
func speed(p Pass) string {
	if p.Time <= 0 || p.FLOPs == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(p.FLOPs)/float64(p.Time.Nanoseconds()), 'f', 1, 64)
}

func share(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 1, 64) + " %"
}

// short writes a count with four digits and a unit: 276.5 K.
func short(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	x, units := float64(n)/1000, []string{"K", "M", "G", "T", "P"}
	for x >= 1000 && len(units) > 1 {
		x, units = x/1000, units[1:]
	}
	return strconv.FormatFloat(x, 'f', digits(x), 64) + " " + units[0]
}

// digits is how many digits after the point make four in all.
func digits(x float64) int {
	switch {
	case x >= 100:
		return 1
	case x >= 10:
		return 2
	}
	return 3
}

// thousands writes 408641 as 408,641.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
