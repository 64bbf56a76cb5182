package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"
)

// timeOptions are the flags of train plan for the time of a step.
type timeOptions struct {
	nets                      repeated
	forward, backward, update float64
}

func (o *timeOptions) flags(f *flag.FlagSet) {
	f.Var(&o.nets, "net", "predict the time of a step with the network measured in `file` by train netcheck -out; may be repeated, for several numbers of ranks")
	f.Float64Var(&o.forward, "forward-ms", 0, "with -net: `milliseconds` of a micro-batch's forward pass")
	f.Float64Var(&o.backward, "backward-ms", 0, "with -net: `milliseconds` of a micro-batch's backward pass, without communication")
	f.Float64Var(&o.update, "update-ns", 0, "with -net: `nanoseconds` of the optimizer's update, of one element")
}

// table simulates a step of each prediction, and says what it takes for granted.
func (o *timeOptions) table(s *scenario, rows []prediction) (string, error) {
	switch {
	case min(o.forward, o.backward, o.update) < 0:
		return "", errors.New("-forward-ms, -backward-ms, -update-ns: want 0 or more")
	case len(o.nets) == 0 && max(o.forward, o.backward, o.update) > 0:
		return "", errors.New("-forward-ms, -backward-ms and -update-ns belong to -net: measure the network with train netcheck -out FILE")
	case len(o.nets) == 0:
		return "", nil
	}
	measured, err := readNetworks(o.nets)
	if err != nil {
		return "", err
	}
	c := compute{o.forward / 1e3, o.backward / 1e3, o.update / 1e9}
	var b strings.Builder
	b.WriteString("\ntime of a step, milliseconds\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "stage\tranks\taccum\tstep\tcompute\tgradients\thidden\tnorm\tweights\t\n")
	for _, r := range rows {
		n := at(measured, r.world)
		p := n.step(r, c)
		hidden := "-"
		if p.gradients > 0 {
			hidden = fmt.Sprintf("%.0f %%", 100*p.hidden/p.gradients)
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%.2f\t%.2f\t%.2f\t%s\t%.2f\t%.2f\t\n", r.stage, r.world, r.accum, 1e3*p.total, 1e3*p.compute, 1e3*p.gradients, hidden, 1e3*p.norm, 1e3*p.weights)
	}
	if err := t.Flush(); err != nil {
		return "", err
	}
	b.WriteString("\nThis is a simulation, from\n")
	for _, n := range measured {
		fmt.Fprintf(&b, "  %d ranks, %s: %s\n", n.World, n.Engine, strings.TrimSpace(strings.TrimPrefix(n.describe(), "model")))
	}
	latency := "in proportion to the number of other ranks (one number of ranks was measured: an upper bound)"
	if len(measured) > 1 && measured[0].World != measured[len(measured)-1].World {
		latency = "along the line through the smallest and the largest measurement"
	}
	fmt.Fprintf(&b, `It takes for granted that
  the latency of a collective grows %s;
  a byte takes what it took when measured: as many ranks share a link and a memory, and
  no switch between the machines is narrower than their links;
  all ranks compute equally fast: %g ms forward, %g ms backward, %g ns an element to update;
  gradients become ready evenly over the backward pass, in the order of the buckets;
  communication takes no CPU time from the computation;
  the next forward pass begins when the last reduction has ended.
`, latency, o.forward, o.backward, o.update)
	return b.String(), nil
}
