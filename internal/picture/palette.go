package picture

import (
	"image"
	"image/color"
	"image/color/palette"
	"image/png"
	"io"
)

// encode writes a plot with few colours: those of the curves, greys and the usual 216
// for what lies between. It takes a third of the bytes, and plots go into pages.
func encode(w io.Writer, img image.Image) error {
	colours := append(color.Palette{}, palette.WebSafe...)
	for _, c := range inks {
		colours = append(colours, c, fade(c))
	}
	for v := 8; v < 256 && len(colours) < 256; v += 9 {
		colours = append(colours, color.Gray{uint8(v)})
	}
	b := img.Bounds()
	small := image.NewPaletted(b, colours)
	known := map[color.Color]uint8{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := img.At(x, y)
			k, ok := known[c]
			if !ok {
				k = uint8(colours.Index(c))
				known[c] = k
			}
			small.SetColorIndex(x, y, k)
		}
	}
	e := png.Encoder{CompressionLevel: png.BestCompression}
	return e.Encode(w, small)
}
