package main

import (
	"fmt"
	"html"
	"strings"
)

// figure collects the elements of an SVG picture on white, so that it can be read on
// a dark page too.
type figure struct {
	width, height float64
	b             strings.Builder
}

// Colours, apart in print and for the colour-blind.
const (
	black  = "#1b1f24"
	grey   = "#8c959f"
	pale   = "#eaeef2"
	blue   = "#4c86c6"
	orange = "#e5933d"
	green  = "#4fa36b"
	purple = "#9a6fb8"
)

func (f *figure) rect(x, y, w, h float64, fill, stroke, title string) {
	fmt.Fprintf(&f.b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"`, x, y, w, h, fill)
	if stroke != "" {
		fmt.Fprintf(&f.b, ` stroke="%s"`, stroke)
	}
	if title == "" {
		f.b.WriteString("/>\n")
		return
	}
	fmt.Fprintf(&f.b, "><title>%s</title></rect>\n", html.EscapeString(title))
}

// text writes s; anchor is start, middle or end.
func (f *figure) text(x, y float64, size int, anchor, colour, s string) {
	fmt.Fprintf(&f.b, `<text x="%.2f" y="%.2f" font-size="%d" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, size, anchor, colour, html.EscapeString(s))
}

func (f *figure) line(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(&f.b, `<line x1="%.2f" y1="%.2f" x2="%.2f" y2="%.2f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

// arrow ends with a tip at x2, y2; it runs along an axis.
func (f *figure) arrow(x1, y1, x2, y2 float64, colour string) {
	f.line(x1, y1, x2, y2, colour)
	const tip = 6
	dx, dy := x2-x1, y2-y1
	switch {
	case dx > 0:
		f.polygon(colour, x2, y2, x2-tip, y2-tip/2, x2-tip, y2+tip/2)
	case dx < 0:
		f.polygon(colour, x2, y2, x2+tip, y2-tip/2, x2+tip, y2+tip/2)
	case dy > 0:
		f.polygon(colour, x2, y2, x2-tip/2, y2-tip, x2+tip/2, y2-tip)
	default:
		f.polygon(colour, x2, y2, x2-tip/2, y2+tip, x2+tip/2, y2+tip)
	}
}

func (f *figure) polygon(fill string, xy ...float64) {
	var points []string
	for i := 0; i < len(xy); i += 2 {
		points = append(points, fmt.Sprintf("%.2f,%.2f", xy[i], xy[i+1]))
	}
	fmt.Fprintf(&f.b, `<polygon points="%s" fill="%s"/>`+"\n", strings.Join(points, " "), fill)
}

func (f *figure) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="Helvetica, Arial, sans-serif">`+"\n"+
		`<rect width="100%%" height="100%%" fill="white"/>`+"\n%s</svg>\n", f.width, f.height, f.width, f.height, f.b.String())
}
