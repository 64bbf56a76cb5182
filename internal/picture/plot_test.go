package picture

import (
	"image"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"gonum.org/v1/plot"
)

// drawn makes a plot and returns how many of its pixels have each colour.
func drawn(t *testing.T, curves ...Curve) map[color.RGBA]int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "loss.png")
	must(t, LossPlot(path, "title", curves...))
	img := readPNG(t, path)
	if want := image.Rect(0, 0, 990, 550); img.Bounds() != want {
		t.Fatalf("size %v, want %v", img.Bounds(), want)
	}
	count := map[color.RGBA]int{}
	for y := range 550 {
		for x := range 990 {
			count[at(img, x, y)]++
		}
	}
	return count
}

func falling(n int) Curve {
	c := Curve{Name: "training"}
	for i := range n {
		c.X = append(c.X, float64(i+1))
		c.Y = append(c.Y, 0.02+1/float64(i+1)*(1+0.5*math.Sin(float64(i))))
	}
	return c
}

func TestPlotShowsItsCurves(t *testing.T) {
	points := Curve{Name: "held out", X: []float64{100, 200, 300}, Y: []float64{0.1, 0.05, 0.03}, Points: true}
	both, none := drawn(t, falling(300), points), drawn(t)
	if n := none[inks[0]] + none[inks[1]]; n != 0 {
		t.Errorf("%d coloured pixels in an empty plot", n)
	}
	for what, ink := range map[string]color.RGBA{"smoothed": inks[0], "raw": fade(inks[0]), "points": inks[1]} {
		if both[ink] < 100 {
			t.Errorf("%s curve: %d pixels", what, both[ink])
		}
	}
}

func TestPlotOfAnything(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, c := range map[string]Curve{
		"no steps":        {},
		"one step":        {X: []float64{1}, Y: []float64{0.5}},
		"one point":       {X: []float64{1}, Y: []float64{0.5}, Points: true},
		"constant":        {X: []float64{1, 2, 3}, Y: []float64{2, 2, 2}},
		"nothing to draw": {X: []float64{1, 2, 3}, Y: []float64{nan, 0, -1}},
		"diverging":       {X: []float64{1, 2, 3, 4, 5}, Y: []float64{1, 1e30, inf, nan, 1e300}},
		"tiny":            {X: []float64{1, 2}, Y: []float64{5e-324, 1}},
		"whole range":     {X: []float64{1, 2}, Y: []float64{5e-324, math.MaxFloat64}},
		"large steps":     {X: []float64{1e9, 1e9 + 7}, Y: []float64{1, 2}},
	} {
		t.Run(name, func(t *testing.T) { drawn(t, c) })
	}
}

func TestSmooth(t *testing.T) {
	y := make([]float64, 200)
	for i := range y {
		y[i] = 2 + float64(i%2*2-1) // 1, 3, 1, 3, ...
	}
	s := smooth(y)
	for i, v := range s {
		reach := min(i, 4)
		n := min(len(y), i+reach+1) - (i - reach)
		if math.Abs(v-2) > 1/float64(n)+1e-12 {
			t.Errorf("at %d: %v over a window of %d", i, v, n)
		}
	}
	if s[0] != y[0] {
		t.Errorf("the first value became %v", s[0])
	}
	y[100] = math.NaN()
	s = smooth(y)
	if !math.IsNaN(s[100]) || math.IsNaN(s[99]) || math.IsNaN(s[101]) {
		t.Errorf("around a missing value: %v", s[99:102])
	}
}

func TestSegmentsBreakWhereThereIsNoValue(t *testing.T) {
	got := segments([]float64{1, 2, 3, 4, 5, 6}, []float64{1, 2, math.NaN(), 0, 3, math.Inf(1)})
	if len(got) != 2 || len(got[0]) != 2 || len(got[1]) != 1 || got[1][0].X != 5 {
		t.Errorf("segments %v", got)
	}
}

func labels(ticks []plot.Tick) []string {
	var all []string
	for _, t := range ticks {
		if t.Label != "" {
			all = append(all, t.Label)
		}
	}
	return all
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		ticks  func(lo, hi float64) []plot.Tick
		lo, hi float64
		want   []string
	}{
		{stepTicks, 0, 800, []string{"0", "100", "200", "300", "400", "500", "600", "700", "800"}},
		{stepTicks, 0, 1000, []string{"0", "200", "400", "600", "800", "1000"}},
		{stepTicks, 0, 35, []string{"0", "5", "10", "15", "20", "25", "30", "35"}},
		{stepTicks, 310, 800, []string{"400", "500", "600", "700", "800"}},
		{stepTicks, 0, 2, []string{"0.0", "0.5", "1.0", "1.5", "2.0"}},
		{stepTicks, 0, 1_200_000, []string{"0", "200000", "400000", "600000", "800000", "1000000", "1200000"}},
		{logTicks, 0.015, 0.7, []string{"0.02", "0.05", "0.1", "0.2", "0.5"}},
		{logTicks, 0.9, 3, []string{"1", "2"}},
		{logTicks, 1e-4, 30, []string{"0.0001", "0.001", "0.01", "0.1", "1", "10"}},
	} {
		if got := labels(c.ticks(c.lo, c.hi)); !slices.Equal(got, c.want) {
			t.Errorf("from %v to %v: %q, want %q", c.lo, c.hi, got, c.want)
		}
	}
}
