// Package picture writes what a training shows as PNG files: grids of generated
// pictures and curves of the loss. Files appear whole or not at all.
package picture

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
)

const (
	gutter  = 2  // pixels between tiles and around them
	visible = 96 // tiles are enlarged by whole factors up to this size
)

var (
	gutterColor    = color.RGBA{72, 72, 80, 255}
	nonFiniteColor = color.RGBA{255, 0, 255, 255}
)

// Grid writes n pictures, [n,c,h,w] row-major with values in [−1, 1] (clipped),
// as one PNG file at path with the given number of columns (0: as many as make
// the grid about square), row by row. c is 1 (grey) or 3 (RGB). Small pictures
// are enlarged, each pixel to a square. Elements that are not finite are shown in magenta,
// since they mean that something went wrong.
func Grid(path string, images []float32, n, c, h, w, columns int) error {
	if n < 1 || h < 1 || w < 1 || c != 1 && c != 3 || len(images) != n*c*h*w {
		panic(fmt.Sprintf("picture: %d elements for %d pictures of %dx%dx%d", len(images), n, c, h, w))
	}
	if columns < 1 {
		columns = int(math.Ceil(math.Sqrt(float64(n))))
	}
	columns = min(columns, n)
	rows := (n + columns - 1) / columns
	scale := max(1, visible/max(h, w))
	stepX, stepY := w*scale+gutter, h*scale+gutter
	img := image.NewRGBA(image.Rect(0, 0, columns*stepX+gutter, rows*stepY+gutter))
	draw.Draw(img, img.Bounds(), image.NewUniform(gutterColor), image.Point{}, draw.Src)
	size := c * h * w
	for i := range n {
		tile := image.Rect(0, 0, w*scale, h*scale).Add(image.Pt(gutter+i%columns*stepX, gutter+i/columns*stepY))
		paint(img.SubImage(tile).(*image.RGBA), images[i*size:(i+1)*size], c, h, w, scale)
	}
	return write(path, func(f io.Writer) error { return png.Encode(f, img) })
}

// Single writes one picture, [c,h,w] as in Grid, pixel for pixel.
func Single(path string, pixels []float32, c, h, w int) error {
	if len(pixels) != c*h*w || c != 1 && c != 3 {
		panic(fmt.Sprintf("picture: %d elements for a picture of %dx%dx%d", len(pixels), c, h, w))
	}
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	paint(img, pixels, c, h, w, 1)
	return write(path, func(f io.Writer) error { return png.Encode(f, img) })
}

// paint draws one picture over the whole of dst.
func paint(dst *image.RGBA, pixels []float32, c, h, w, scale int) {
	plane, at := h*w, dst.Bounds().Min
	for y := range h * scale {
		for x := range w * scale {
			k := y/scale*w + x/scale
			r := pixels[k]
			g, b := r, r
			if c == 3 {
				g, b = pixels[plane+k], pixels[2*plane+k]
			}
			dst.SetRGBA(at.X+x, at.Y+y, shade(r, g, b))
		}
	}
}

func shade(r, g, b float32) color.RGBA {
	if !finite(float64(r)) || !finite(float64(g)) || !finite(float64(b)) {
		return nonFiniteColor
	}
	return color.RGBA{level(r), level(g), level(b), 255}
}

// level maps [−1, 1] to 0 … 255.
func level(v float32) uint8 {
	return uint8(math.Round(float64(min(max(v, -1), 1)+1) * 127.5))
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
