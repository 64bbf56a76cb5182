package main

// gradient draws the life of a gradient, from the backward pass to the new weights on
// every rank.
func gradient() (string, error) {
	f := &figure{width: 960, height: 470}
	const laneH, y0 = 190.0, 50.0
	f.text(12, 24, 13, "start", black, "two ranks, stage 2: each owns half of the elements")
	for r, name := range []string{"rank 0", "rank 1"} {
		f.rank(name, y0+float64(r)*(laneH+20), laneH)
	}
	// Between the ranks: the two exchanges.
	f.exchange(392, "reduce-scatter", "each sends what the", "other one owns")
	f.exchange(830, "all-gather", "each sends its", "new weights")
	return f.String(), nil
}

// stage is a box of the way.
type stage struct {
	x, w        float64
	fill        string
	name        string
	line1, kind string
}

// rank draws what happens on one rank.
func (f *figure) rank(name string, y, h float64) {
	f.rect(70, y, 880, h, "#f6f8fa", grey, "")
	f.text(12, y+h/2, 13, "start", black, name)
	stages := []stage{
		{84, 96, green, "gradient", "complete after its", "last contribution"},
		{204, 96, pale, "bucket", "rounded once to", "the wire format"},
		{440, 100, orange, "accumulator", "acc+x0+x1, in the", "order of ranks"},
		{556, 108, purple, "norm, clip", "block sums of all", "ranks; all finite?"},
		{680, 108, blue, "AdamW", "fp32 master weights,", "one span of the shard"},
		{872, 68, green, "weights", "of all ranks", ""},
	}
	top := y + 50
	for i, s := range stages {
		f.rect(s.x, top, s.w, 44, s.fill, black, "")
		f.text(s.x+s.w/2, top+27, 13, "middle", black, s.name)
		f.text(s.x+s.w/2, top+64, 11, "middle", black, s.line1)
		f.text(s.x+s.w/2, top+78, 11, "middle", black, s.kind)
		if i > 0 {
			f.arrow(stages[i-1].x+stages[i-1].w, top+22, s.x, top+22, black)
		}
	}
	f.text(84, y+24, 12, "start", grey, "in every backward pass")
	f.text(404, y+24, 12, "start", grey, "meanwhile, with overlap_comm")
	f.text(732, y+h-14, 12, "middle", grey, "Step")
	f.line(560, y+h-30, 944, y+h-30, grey)
}

// exchange draws a collective between the two ranks.
func (f *figure) exchange(x float64, name, line1, line2 string) {
	const upper, lower = 50 + 72.0, 50 + 210 + 72.0
	f.line(x, upper, x, lower, black)
	f.polygon(black, x, upper+4, x-4, upper+14, x+4, upper+14)
	f.polygon(black, x, lower-4, x-4, lower-14, x+4, lower-14)
	f.rect(x-62, 208, 124, 64, "white", black, "")
	f.text(x, 228, 13, "middle", black, name)
	f.text(x, 246, 11, "middle", black, line1)
	f.text(x, 261, 11, "middle", black, line2)
}
