package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
)

// point is a measured size: seconds of one collective; 0 where it was not measured.
type point struct {
	Bytes               int // of the whole buffer
	ReduceScatter       float64
	AllGather           float64
	NativeReduceScatter float64 `json:",omitempty"`
	NativeAllGather     float64 `json:",omitempty"`
	Memcpy              float64
}

// network is a measurement of train netcheck, and the model that fits it:
//
//	seconds of a collective = Latency + bytes a rank sends · PerByte
type network struct {
	Engine  string
	World   int
	Barrier float64
	Points  []point

	Scatter, Gather line
}

// line is a fitted model of one collective.
type line struct {
	Latency float64 // seconds
	PerByte float64 // seconds for each byte that a rank sends
}

func (l line) seconds(sent float64) float64 { return l.Latency + sent*l.PerByte }

// fit finds the lines that miss the measured times by the least squares, divided by the
// times: between absolute errors, where only the largest buffers would count, and
// relative ones, where the smallest count as much.
func (n *network) fit() {
	share := float64(n.World-1) / float64(n.World)
	fit := func(of func(point) float64) line {
		var sw, sx, sxx, sy, sxy float64
		for _, p := range n.Points {
			y, x := of(p), share*float64(p.Bytes)
			w := 1 / y
			sw, sx, sxx, sy, sxy = sw+w, sx+w*x, sxx+w*x*x, sy+w*y, sxy+w*x*y
		}
		det := sw*sxx - sx*sx
		if det <= 0 || sxx == 0 { // one rank sends nothing
			return line{Latency: n.Barrier}
		}
		slope := max(0, (sw*sxy-sx*sy)/det)
		return line{Latency: max(0, (sy-slope*sx)/sw), PerByte: slope}
	}
	n.Scatter = fit(func(p point) float64 { return p.ReduceScatter })
	n.Gather = fit(func(p point) float64 { return p.AllGather })
}

// latencyShare is the part of a reduction, in percent, that a good bucket gives to
// latency.
const latencyShare = 5

// bucket is the bytes of a bucket whose reduction is latency only to that part.
func (n *network) bucket() int {
	share := float64(n.World-1) / float64(n.World)
	if n.Scatter.PerByte == 0 || share == 0 {
		return 0
	}
	return int(math.Ceil((100/latencyShare - 1) * n.Scatter.Latency / n.Scatter.PerByte / share))
}

func (n *network) describe() string {
	one := func(what string, l line) string {
		if l.PerByte == 0 {
			return fmt.Sprintf("%s %.1f µs", what, 1e6*l.Latency)
		}
		return fmt.Sprintf("%s %.1f µs + bytes a rank sends / %.2f GB/s", what, 1e6*l.Latency, 1/l.PerByte/1e9)
	}
	return fmt.Sprintf("model        %s; %s", one("reduce-scatter", n.Scatter), one("all-gather", n.Gather))
}

// readNetworks reads measurements, fewest ranks first.
func readNetworks(paths []string) ([]network, error) {
	var all []network
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var n network
		if err := json.Unmarshal(raw, &n); err != nil || n.World < 2 || len(n.Points) == 0 {
			return nil, fmt.Errorf("%s: not a measurement of two ranks or more by train netcheck -out", path)
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b network) int { return cmp.Compare(a.World, b.World) })
	return all, nil
}

// at is the network of world ranks, as extrapolated: each rank exchanges messages with
// each other one, so latency grows along a line through the smallest and the largest
// measurement, or in proportion to the number of other ranks where there is one; a byte
// takes what it took in the largest measurement up to that world.
func at(measured []network, world int) network {
	first, last := measured[0], measured[len(measured)-1]
	base := first
	for _, n := range measured {
		if n.World <= world {
			base = n
		}
	}
	grow := func(a, b float64) float64 {
		peers := float64(world - 1)
		if first.World == last.World || b < a {
			return b * peers / float64(last.World-1)
		}
		slope := (b - a) / float64(last.World-first.World)
		return max(0, a+slope*float64(world-first.World))
	}
	return network{
		World:   world,
		Barrier: grow(first.Barrier, last.Barrier),
		Scatter: line{grow(first.Scatter.Latency, last.Scatter.Latency), base.Scatter.PerByte},
		Gather:  line{grow(first.Gather.Latency, last.Gather.Latency), base.Gather.PerByte},
	}
}

// compute is how long a rank's own work takes, in seconds.
type compute struct {
	forward, backward float64 // of a micro-batch
	update            float64 // of one element of the optimizer
}

// stepTime is a simulated optimizer step.
type stepTime struct {
	total, compute           float64
	gradients, norm, weights float64 // communication, hidden or not
	hidden                   float64 // part of the gradients' that the backward covers
}

// step simulates an optimizer step of the predicted plan. A backward makes its
// gradients ready evenly over its time, in the order of the buckets. With overlap_comm
// buckets are reduced one after the other while it goes on, else it waits for each. The
// next forward begins when the last reduction has ended.
func (n *network) step(r prediction, c compute) stepTime {
	var s stepTime
	var net network // of one rank: free
	if r.world > 1 {
		net = *n
	}
	reductions := r.accum
	if r.once {
		reductions = 1
	}
	for m := range r.accum {
		s.compute += c.forward + c.backward
		s.total += c.forward
		if m < r.accum-reductions { // a rank's own sums are sent with the last backward
			s.total += c.backward
			continue
		}
		took := r.reductions(net.Scatter, reductions)
		s.total += backward(r, c.backward, took)
		for _, t := range took {
			s.gradients += t
		}
	}
	s.hidden = s.compute + s.gradients - s.total
	if r.world > 1 {
		s.norm = net.Gather.seconds(float64(r.traffic.Norm.Bytes))
		s.weights = float64(r.traffic.Weights.Collectives)*net.Gather.Latency + float64(r.traffic.Weights.Bytes)*net.Gather.PerByte
	}
	owned := r.plan.Elements
	if r.stage > 0 {
		owned = r.plan.Partition
	}
	update := float64(owned) * c.update
	s.compute += update
	s.total += s.norm + update + s.weights
	return s
}

// reductions is the seconds of each bucket, in order.
func (r prediction) reductions(l line, times int) []float64 {
	p, g := r.plan, r.traffic.Gradients
	calls := float64(g.Collectives) / float64(times*len(p.Buckets))
	sent := float64(g.Bytes) / float64(times*p.Elements) // for an element
	all := make([]float64, len(p.Buckets))
	for b, iv := range p.Buckets {
		all[b] = calls*l.Latency + float64(iv.Len())*sent*l.PerByte
	}
	return all
}

// backward is the seconds from the start of a backward, which takes compute by itself,
// to the end of its last reduction.
func backward(r prediction, compute float64, reductions []float64) float64 {
	var ready, wire, waited float64
	for b, iv := range r.plan.Buckets {
		ready += compute * float64(iv.Len()) / float64(r.plan.Elements)
		wire = max(wire, ready) + reductions[b]
		waited += reductions[b]
	}
	if !r.overlap {
		return compute + waited
	}
	return max(compute, wire)
}
