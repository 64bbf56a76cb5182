package main

import (
	"fmt"

	"github.com/zerogap/zerogap/zero"
)

// layout draws the flat element space of a small model as zero.NewPlan lays it out:
// parameters, partitions and buckets.
func layout() (string, error) {
	params := []zero.Param{
		{Name: "in.weight", Shape: []int{64, 24}}, {Name: "in.bias", Shape: []int{64}},
		{Name: "hidden.weight", Shape: []int{64, 64}}, {Name: "hidden.bias", Shape: []int{64}},
		{Name: "out.weight", Shape: []int{24, 64}}, {Name: "out.bias", Shape: []int{24}},
	}
	const world = 4
	cfg := zero.DefaultConfig()
	cfg.ZeroOptimization.Stage = 2
	cfg.ZeroOptimization.ReduceBucketSize = 2000
	p, err := zero.NewPlan(params, cfg, world)
	if err != nil {
		return "", err
	}
	f := &figure{width: 980, height: 300}
	x := func(element int) float64 { return 120 + float64(element)*810/float64(p.Elements) }
	f.text(12, 22, 13, "start", black, fmt.Sprintf("%d elements in one flat space, in registration order", p.Elements))
	f.parameters(params, x)
	for r := range world {
		for _, run := range p.Owned(r).Runs {
			f.piece(run, 120, x, []string{blue, orange, green, purple}[r], fmt.Sprintf("rank %d: %d", r, run.Len()))
		}
	}
	f.text(12, 144, 12, "start", black, "partitions")
	f.text(12, 160, 11, "start", grey, fmt.Sprintf("of %d ranks", world))
	for b, iv := range p.Buckets {
		f.piece(iv, 190, x, pale, fmt.Sprintf("bucket %d: %d", b, iv.Len()))
	}
	f.text(12, 214, 12, "start", black, "buckets")
	f.text(12, 230, 11, "start", grey, "at most 2000")
	f.arrow(x(p.Elements), 256, x(0), 256, grey)
	f.text(x(p.Elements/2), 276, 12, "middle", grey, "gradients become complete, and buckets are sent, about in this direction")
	return f.String(), nil
}

// parameters draws the first row.
func (f *figure) parameters(params []zero.Param, x func(int) float64) {
	at := 0
	for _, p := range params {
		n, err := p.Len()
		if err != nil {
			panic(err) // shapes are written above
		}
		iv := zero.Interval{Lo: at, Hi: at + n}
		f.piece(iv, 52, x, "white", fmt.Sprintf("%s %v", p.Name, p.Shape))
		at += n
	}
	f.text(12, 76, 12, "start", black, "parameters")
}

// piece draws a run of elements.
func (f *figure) piece(iv zero.Interval, y float64, x func(int) float64, fill, label string) {
	f.rect(x(iv.Lo), y, x(iv.Hi)-x(iv.Lo), 40, fill, black, "")
	middle := (x(iv.Lo) + x(iv.Hi)) / 2
	if x(iv.Hi)-x(iv.Lo) > 40 {
		f.text(middle, y+24, 12, "middle", black, label)
	} else {
		f.text(middle, y-6, 11, "middle", grey, label)
	}
}
