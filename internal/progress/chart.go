package progress

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart draws a curve with the dots of braille characters, two columns and four rows
// of them in a cell.
type chart struct {
	width, height int // in cells
	lo, hi        float64
	log           bool
	dots          [][]byte // by row and column of cells
}

// brailleDots are the bits of a cell, by row and column of dots.
var brailleDots = [4][2]byte{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

// newChart returns a chart whose scale holds all finite values, logarithmic where
// they lie far apart.
func newChart(width, height int, values ...[]float64) *chart {
	c := &chart{width: width, height: height, lo: math.Inf(1), hi: math.Inf(-1)}
	for _, curve := range values {
		for _, v := range curve {
			if finite(v) {
				c.lo, c.hi = min(c.lo, v), max(c.hi, v)
			}
		}
	}
	if c.lo > c.hi { // nothing to show
		c.lo, c.hi = 0, 0
	}
	const farApart = 8
	c.log = c.lo > 0 && c.hi/c.lo > farApart
	c.dots = make([][]byte, height)
	for i := range c.dots {
		c.dots[i] = make([]byte, width)
	}
	return c
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// y returns the row of dots of a value, from the top.
func (c *chart) y(v float64) int {
	rows := 4 * c.height
	lo, hi := c.lo, c.hi
	if c.log {
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(v)
	}
	at := 0.5
	if hi > lo {
		at = (v - lo) / (hi - lo)
	}
	return rows - 1 - int(math.Round(at*float64(rows-1)))
}

// draw connects the values, spread over the whole width; where they are many, each
// column shows the mean of its own.
func (c *chart) draw(values []float64) {
	last := -1 // row of the dot before
	for x, v := range spread(values, 2*c.width) {
		if !finite(v) {
			last = -1
			continue
		}
		y := c.y(v)
		from := y
		if last >= 0 && last != y { // up to the row beside the dot before
			from = last + sign(y-last)
		}
		for row := min(from, y); row <= max(from, y); row++ {
			c.dots[row/4][x/2] |= brailleDots[row%4][x%2]
		}
		last = y
	}
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// spread makes n values of any number of them: means of runs, or lines between. Of one
// value, or none, there is as much.
func spread(values []float64, n int) []float64 {
	k := len(values)
	if k < 2 {
		return values
	}
	out := make([]float64, n)
	for i := range out {
		if k >= n {
			out[i] = mean(values[i*k/n : (i+1)*k/n])
			continue
		}
		at := float64(i) * float64(k-1) / float64(n-1)
		j := min(int(at), k-2)
		out[i] = values[j] + (at-float64(j))*(values[j+1]-values[j])
	}
	return out
}

// mean leaves out what is not finite; of nothing it is NaN.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if finite(v) {
			sum += v
			n++
		}
	}
	return sum / float64(n)
}

// row returns a row of cells as text.
func (c *chart) row(i int) string {
	var b strings.Builder
	for _, d := range c.dots[i] {
		if d == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(0x2800 + rune(d))
	}
	return b.String()
}

// sparkline shows the last values in so many cells, one block for each.
func sparkline(values []float64, cells int) string {
	const blocks = "▁▂▃▄▅▆▇█"
	values = values[max(0, len(values)-cells):]
	ok := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !finite(v) })
	if len(ok) == 0 {
		return ""
	}
	lo, hi := slices.Min(ok), slices.Max(ok)
	levels := []rune(blocks)
	var b strings.Builder
	for _, v := range values {
		switch {
		case !finite(v):
			b.WriteByte('!')
		case hi == lo:
			b.WriteRune(levels[0])
		default:
			b.WriteRune(levels[int((v-lo)/(hi-lo)*float64(len(levels)-1)+0.5)])
		}
	}
	return b.String()
}

// label writes a value of the scale in at most six characters.
func label(v float64) string {
	s := ""
	for digits := 3; digits > 0; digits-- {
		if s = strconv.FormatFloat(v, 'g', digits, 64); len(s) <= 6 {
			break
		}
	}
	return s
}
