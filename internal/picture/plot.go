package picture

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

const (
	plotWidth  = 9 * vg.Inch
	plotHeight = 5 * vg.Inch
	plotDPI    = 110
	margin     = 10 // points around the plot
)

// inks are safe for the usual kinds of colour blindness (Okabe and Ito, 2008).
var inks = [...]color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255},
	{86, 180, 233, 255}, {153, 153, 51, 255}, {136, 34, 85, 255},
}

// Curve is one series of a plot.
type Curve struct {
	Name string
	X, Y []float64 // of one length, X ascending

	// Points draws markers joined by a line, for a few exact values such as the
	// held-out loss. Otherwise the values are drawn light, as they are, under a
	// smoothed line: the mean over a window of up to 1/25 of the curve.
	Points bool
}

// LossPlot writes a PNG file of losses over steps, the loss on a logarithmic
// axis. Values that are not finite or not positive have no place on it; the
// line is broken there. A plot without any value has empty axes.
func LossPlot(path, title string, curves ...Curve) error {
	return Panels(path, Panel{Title: title, X: "step", Y: "loss", Curves: curves})
}

// Panel is one plot of several in a picture.
type Panel struct {
	Title, X, Y string // of the plot and its axes
	Curves      []Curve
}

// Panels writes a PNG file with plots below each other, with axes as in LossPlot.
func Panels(path string, panels ...Panel) error {
	height := plotHeight * vg.Length(len(panels))
	canvas := vgimg.NewWith(vgimg.UseWH(plotWidth, height), vgimg.UseDPI(plotDPI))
	for i, panel := range panels {
		p, err := panel.plot()
		if err != nil {
			return fmt.Errorf("plot %s: %w", path, err)
		}
		below := plotHeight * vg.Length(len(panels)-1-i)
		above := -plotHeight * vg.Length(i)
		p.Draw(draw.Crop(draw.New(canvas), margin, -2*margin, below+margin, above-margin))
	}
	return write(path, func(f io.Writer) error { return encode(f, canvas.Image()) })
}

func (panel Panel) plot() (*plot.Plot, error) {
	p := plot.New()
	e := emptyExtent()
	for _, c := range panel.Curves {
		if len(c.X) != len(c.Y) {
			panic(fmt.Sprintf("picture: curve %q has %d steps and %d values", c.Name, len(c.X), len(c.Y)))
		}
		e.include(c)
	}
	style(p, panel)
	e.apply(p)
	p.Add(grid())
	for i, c := range panel.Curves {
		if err := addCurve(p, c, inks[i%len(inks)]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func style(p *plot.Plot, panel Panel) {
	p.Title.Text, p.Title.Padding = panel.Title, 8
	sansSerif(&p.Title.TextStyle, 14)
	p.X.Label.Text, p.Y.Label.Text = panel.X, panel.Y
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.TickerFunc(logTicks)
	p.X.Tick.Marker = plot.TickerFunc(stepTicks)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		sansSerif(&a.Label.TextStyle, 11)
		sansSerif(&a.Tick.Label, 10)
		a.Padding = 0
	}
	p.Legend.Top, p.Legend.Padding = true, 4
	p.Legend.XOffs, p.Legend.YOffs = -6, -6
	sansSerif(&p.Legend.TextStyle, 11)
}

func sansSerif(s *text.Style, size vg.Length) { s.Font.Variant, s.Font.Size = "Sans", size }

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	for _, s := range []*draw.LineStyle{&g.Vertical, &g.Horizontal} {
		s.Color, s.Width = color.Gray{228}, 0.5
	}
	return g
}

// addCurve draws c in the given colour.
func addCurve(p *plot.Plot, c Curve, ink color.RGBA) error {
	thick, thin := draw.LineStyle{Color: ink, Width: 1.8}, draw.LineStyle{Color: fade(ink), Width: 0.7}
	if !c.Points {
		if err := addLines(p, segments(c.X, c.Y), thin); err != nil {
			return err
		}
		if err := addLines(p, segments(c.X, smooth(c.Y)), thick); err != nil {
			return err
		}
		p.Legend.Add(c.Name, &plotter.Line{LineStyle: thick})
		return nil
	}
	if err := addLines(p, segments(c.X, c.Y), draw.LineStyle{Color: ink, Width: 1}); err != nil {
		return err
	}
	glyph := draw.GlyphStyle{Color: ink, Radius: 3, Shape: draw.CircleGlyph{}}
	for _, s := range segments(c.X, c.Y) {
		points, err := plotter.NewScatter(s)
		if err != nil {
			return err
		}
		points.GlyphStyle = glyph
		p.Add(points)
	}
	p.Legend.Add(c.Name, &plotter.Line{LineStyle: draw.LineStyle{Color: ink, Width: 1}}, &plotter.Scatter{GlyphStyle: glyph})
	return nil
}

func addLines(p *plot.Plot, lines []plotter.XYs, style draw.LineStyle) error {
	for _, s := range lines {
		l, err := plotter.NewLine(s)
		if err != nil {
			return err
		}
		l.LineStyle = style
		p.Add(l)
	}
	return nil
}

// fade mixes a colour with white.
func fade(c color.RGBA) color.RGBA {
	light := func(v uint8) uint8 { return uint8(255 - (255-int(v))*35/100) }
	return color.RGBA{light(c.R), light(c.G), light(c.B), 255}
}

// drawable reports whether a value has a place on a logarithmic axis.
func drawable(v float64) bool { return v > 0 && finite(v) }

// segments splits a curve at values that cannot be drawn.
func segments(x, y []float64) []plotter.XYs {
	var all []plotter.XYs
	var run plotter.XYs
	for i := range x {
		if drawable(y[i]) {
			run = append(run, plotter.XY{X: x[i], Y: y[i]})
			continue
		}
		if run != nil {
			all, run = append(all, run), nil
		}
	}
	if run != nil {
		all = append(all, run)
	}
	return all
}

// smooth returns the mean of the drawable values in a window around each. The
// window is narrow at the beginning, where a loss falls fast, and stays where
// there is no value.
func smooth(y []float64) []float64 {
	half := len(y) / 50
	out := make([]float64, len(y))
	for i := range y {
		if !drawable(y[i]) {
			out[i] = y[i]
			continue
		}
		var sum float64
		n := 0
		reach := min(i, half)
		for _, v := range y[i-reach : min(len(y), i+reach+1)] {
			if drawable(v) {
				sum += v
				n++
			}
		}
		out[i] = sum / float64(n)
	}
	return out
}

// extent is the range of the axes.
type extent struct{ minX, maxX, minY, maxY float64 }

func emptyExtent() extent {
	return extent{math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)}
}

func (e *extent) include(c Curve) {
	for i, y := range c.Y {
		e.minX, e.maxX = min(e.minX, c.X[i]), max(e.maxX, c.X[i])
		if drawable(y) {
			e.minY, e.maxY = min(e.minY, y), max(e.maxY, y)
		}
	}
}

// apply gives the axes room around the values, and a range when there are none.
func (e *extent) apply(p *plot.Plot) {
	if e.minX > e.maxX {
		e.minX, e.maxX = 0, 1
	}
	if e.minX > 0 && e.minX < e.maxX/10 {
		e.minX = 0
	}
	if e.minX == e.maxX {
		e.minX, e.maxX = e.minX-1, e.maxX+1
	}
	if e.minY > e.maxY {
		e.minY, e.maxY = 0.01, 1
	}
	p.X.Min, p.X.Max = e.minX, e.maxX
	// 5 % of the height, and never less than a factor of 1.1.
	room := max(math.Pow(e.maxY/e.minY, 0.05), 1.1)
	p.Y.Min, p.Y.Max = max(e.minY/room, math.SmallestNonzeroFloat64), min(e.maxY*room, math.MaxFloat64)
}

// stepTicks are at most nine multiples of 1, 2 or 5 times a power of ten.
func stepTicks(lo, hi float64) []plot.Tick {
	gap := math.Pow(10, math.Floor(math.Log10((hi-lo)/8)))
	for _, m := range []float64{2, 2.5, 2} { // to 2, 5 and 10 times
		if (hi-lo)/gap > 8 {
			gap *= m
		}
	}
	decimals := max(0, int(math.Ceil(-math.Log10(gap))))
	var ticks []plot.Tick
	for k := math.Ceil(lo / gap); k*gap <= hi && len(ticks) < 9; k++ {
		ticks = append(ticks, plot.Tick{Value: k * gap, Label: strconv.FormatFloat(k*gap, 'f', decimals, 64)})
	}
	return ticks
}

// logTicks labels 1, 2 and 5 times the powers of ten, only the powers over more
// than three decades, and fewer powers over very many.
func logTicks(lo, hi float64) []plot.Tick {
	first, last := int(math.Floor(math.Log10(lo))), int(math.Ceil(math.Log10(hi)))
	every := 1 + (last-first)/12
	var ticks []plot.Tick
	labels := 0
	for k := first; k <= last; k++ {
		for m := 1; m < 10; m++ {
			v, err := strconv.ParseFloat(fmt.Sprintf("%de%d", m, k), 64)
			if err != nil || v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 && k%every == 0 || (m == 2 || m == 5) && last-first <= 3 {
				t.Label = strconv.FormatFloat(v, 'g', -1, 64)
			}
			if t.Label != "" || every == 1 {
				ticks = append(ticks, t)
				if t.Label != "" {
					labels++
				}
			}
		}
	}
	if labels < 2 { // a narrow range
		return stepTicks(lo, hi)
	}
	return ticks
}
