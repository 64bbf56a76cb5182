package picture

import (
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readPNG(t *testing.T, path string) image.Image {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	must(t, err)
	return img
}

func at(img image.Image, x, y int) color.RGBA {
	return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)
}

func TestGridPixels(t *testing.T) {
	for _, c := range []struct{ n, channels, h, w, columns, wantColumns, wantRows, scale int }{
		{6, 1, 32, 32, 3, 3, 2, 3},
		{5, 3, 2, 4, 2, 2, 3, 24},
		{5, 1, 8, 4, 0, 3, 2, 12},
		{1, 3, 1, 1, 9, 1, 1, 96},
		{2, 1, 97, 60, 2, 2, 1, 1},
		{3, 1, 49, 20, -1, 2, 2, 1},
	} {
		name := fmt.Sprintf("%+v", c)
		x := make([]float32, c.n*c.channels*c.h*c.w)
		for i := range x {
			x[i] = float32((i*37)%256)/127.5 - 1
		}
		path := filepath.Join(t.TempDir(), "grid.png")
		must(t, Grid(path, x, c.n, c.channels, c.h, c.w, c.columns))
		img := readPNG(t, path)
		stepX, stepY := c.w*c.scale+2, c.h*c.scale+2
		if want := image.Rect(0, 0, c.wantColumns*stepX+2, c.wantRows*stepY+2); img.Bounds() != want {
			t.Fatalf("%s: size %v, want %v", name, img.Bounds(), want)
		}
		for py := range img.Bounds().Dy() {
			for px := range img.Bounds().Dx() {
				want := gutterColor
				tile := py/stepY*c.wantColumns + px/stepX
				if px%stepX >= 2 && py%stepY >= 2 && tile < c.n {
					k := (py%stepY-2)/c.scale*c.w + (px%stepX-2)/c.scale
					value := func(ch int) uint8 {
						ch = min(ch, c.channels-1)
						return uint8((((tile*c.channels+ch)*c.h*c.w + k) * 37) % 256)
					}
					want = color.RGBA{value(0), value(1), value(2), 255}
				}
				if got := at(img, px, py); got != want {
					t.Fatalf("%s: pixel %d,%d is %v, want %v", name, px, py, got, want)
				}
			}
		}
	}
}

func TestLevels(t *testing.T) {
	for v, want := range map[float32]uint8{-1: 0, 1: 255, 0: 128, -2: 0, 7: 255, -0.999: 0, 0.999: 255} {
		if got := level(v); got != want {
			t.Errorf("%v is drawn as %d, want %d", v, got, want)
		}
	}
}

func TestNonFiniteIsSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grid.png")
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	must(t, Grid(path, []float32{0, nan, 0, 0, 0, inf, 0, 0, 0}, 1, 3, 1, 3, 1))
	img := readPNG(t, path)
	for tile, want := range []color.RGBA{{128, 128, 128, 255}, {255, 0, 255, 255}, {255, 0, 255, 255}} {
		if got := at(img, 2+tile*32, 2); got != want {
			t.Errorf("pixel %d is %v, want %v", tile, got, want)
		}
	}
}

func TestGridPanicsOnWrongSizes(t *testing.T) {
	for _, c := range [][5]int{{3, 1, 1, 2, 2}, {4, 0, 1, 2, 2}, {8, 1, 2, 2, 2}, {0, 1, 1, 0, 2}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic for %v", c)
				}
			}()
			_ = Grid(filepath.Join(t.TempDir(), "x.png"), make([]float32, c[0]), c[1], c[2], c[3], c[4], 1)
		}()
	}
}

// TestWriteIsWholeOrNothing: when writing fails, the file that was there stays,
// and nothing else is left in the folder.
func TestWriteIsWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.png")
	must(t, write(path, func(w io.Writer) error { _, err := io.WriteString(w, "old"); return err }))
	err := write(path, func(w io.Writer) error {
		_, _ = io.WriteString(w, strings.Repeat("new", 10_000))
		return fmt.Errorf("disk on fire")
	})
	wantError(t, err, path, "disk on fire")
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("the file is now %q, %v", b, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files left: %v, %v", files, err)
	}
}

func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	x := []float32{0}
	wantError(t, Grid(filepath.Join(dir, "gone", "x.png"), x, 1, 1, 1, 1, 1), "gone", "x.png: no such file")
	must(t, os.Mkdir(filepath.Join(dir, "x.png"), 0o777))
	wantError(t, Grid(filepath.Join(dir, "x.png"), x, 1, 1, 1, 1, 1), "x.png: file exists")
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files left: %v, %v", files, err)
	}
	if runtime.GOOS == "linux" {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		wantError(t, fillAndSync(f, func(w io.Writer) error { _, err := w.Write(make([]byte, 10)); return err }), "no space left")
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), ".tmp") {
			t.Errorf("error %q lacks %q, has several lines, or names a temporary file", err, p)
		}
	}
}

func TestWritersOfOneFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.png")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := Grid(path, []float32{float32(i)/4 - 1}, 1, 1, 1, 1, 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	readPNG(t, path)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files left: %v, %v", files, err)
	}
}
