package data

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func encodePNG(t *testing.T, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, png.Encode(&b, img))
	return b.Bytes()
}

func plainPicture(w, h int, c color.Color) image.Image {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		img.Set(i%w, i/w, c)
	}
	return img
}

func TestFolderSplitOrderAndClasses(t *testing.T) {
	dir := t.TempDir()
	// 23 files whose grey tells their place in the sorted order.
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("%c/sub/%02d.png", 'b'+i%3, i))
	}
	names = append(names, "a.PNG", "d/z.jpeg.png", "zz.png")
	slices.Sort(names)
	for i, n := range names {
		write(t, dir, n, encodePNG(t, plainPicture(4, 4, color.Gray{uint8(10 * i)})))
	}
	write(t, dir, "notes.txt", []byte("not a picture"))
	write(t, dir, ".hidden/x.png", []byte("not a picture"))
	write(t, dir, "b/._00.png", []byte("not a picture"))

	train, heldOut := open(t, Options{Kind: "folder", Path: dir, ImageSize: 4, Channels: 1})
	if train.Len() != 21 || heldOut.Len() != 2 {
		t.Fatalf("%d and %d pictures, want 21 and 2", train.Len(), heldOut.Len())
	}
	inTrain, inHeldOut := 0, 0
	for i, n := range names {
		set, k := train, &inTrain
		if i == 9 || i == 19 {
			set, k = heldOut, &inHeldOut
		}
		x, label := load(t, set, *k)
		*k++
		want := strings.Index("bcd", n[:1])
		if !strings.Contains(n, "/") {
			want = -1
		}
		if label != want || x[0] != unit(uint8(10*i)) || x[15] != x[0] {
			t.Errorf("%s: label %d, value %v, want %d and %v", n, label, x[0], want, unit(uint8(10*i)))
		}
	}
}

func TestSmallFolders(t *testing.T) {
	dir := t.TempDir()
	_, _, err := Open(Options{Kind: "folder", Path: dir, ImageSize: 4, Channels: 1})
	wantError(t, err, "data.path", "0 PNG or JPEG files", dir, "at least 2")
	for n := 1; n <= 11; n++ {
		write(t, dir, fmt.Sprintf("%02d.png", n), encodePNG(t, plainPicture(3, 3, color.White)))
		if n == 1 {
			continue
		}
		train, heldOut := open(t, Options{Kind: "folder", Path: dir, ImageSize: 4, Channels: 1})
		if train.Len() != n-1 || heldOut.Len() != 1 {
			t.Errorf("%d files: %d and %d pictures", n, train.Len(), heldOut.Len())
		}
	}
}

func TestFolderPixels(t *testing.T) {
	dir := t.TempDir()
	// Left half red, right half blue, on a wide picture with grey sides that the
	// centre cut removes; transparent below.
	img := image.NewNRGBA(image.Rect(-5, 7, 35, 27))
	for y := 7; y < 27; y++ {
		for x := -5; x < 35; x++ {
			c := color.NRGBA{255, 0, 0, 255}
			switch {
			case x < 5 || x >= 25:
				c = color.NRGBA{90, 90, 90, 255}
			case y >= 17:
				c = color.NRGBA{9, 9, 9, 0}
			case x >= 15:
				c = color.NRGBA{0, 0, 255, 255}
			}
			img.SetNRGBA(x, y, c)
		}
	}
	write(t, dir, "a.png", encodePNG(t, img))
	write(t, dir, "b.png", encodePNG(t, img))
	quadrants := [][3]uint8{{255, 0, 0}, {0, 0, 255}, {255, 255, 255}, {255, 255, 255}}
	for _, size := range []int{20, 10, 40, 6} {
		train, _ := open(t, Options{Kind: "folder", Path: dir, ImageSize: size, Channels: 3})
		x, _ := load(t, train, 0)
		for q, want := range quadrants {
			// The corner of each quadrant, far from the edges where it can be.
			at := (q/2*(size-1))*size + q%2*(size-1)
			for c := range 3 {
				got := x[c*size*size+at]
				if tolerance := 0.1; math.Abs(float64(got-unit(want[c]))) > tolerance {
					t.Errorf("size %d, quadrant %d, channel %d: %v, want %v", size, q, c, got, unit(want[c]))
				}
			}
		}
	}
	grey, _ := open(t, Options{Kind: "folder", Path: dir, ImageSize: 20, Channels: 1})
	x, _ := load(t, grey, 0)
	for _, c := range []struct {
		at   int
		want uint8
	}{{0, 76}, {19, 29}, {399, 255}} { // 0.299·255, 0.114·255
		if x[c.at] != unit(c.want) {
			t.Errorf("grey at %d: %v, want %v", c.at, x[c.at], unit(c.want))
		}
	}
}

// TestShrinkingAverages: a checkerboard of single pixels becomes grey, not a
// pattern of its own.
func TestShrinkingAverages(t *testing.T) {
	board := image.NewGray(image.Rect(0, 0, 64, 64))
	for i := range board.Pix {
		board.Pix[i] = uint8((i/64 + i) % 2 * 255)
	}
	for i, v := range fit(board, 8).Pix {
		if i%4 != 3 && (v < 125 || v > 130) {
			t.Fatalf("byte %d is %d, want about 127", i, v)
		}
	}
}

func TestFolderKinds(t *testing.T) {
	dir := t.TempDir()
	grey := plainPicture(6, 6, color.Gray{200})
	var j bytes.Buffer
	must(t, jpeg.Encode(&j, grey, nil))
	pal := image.NewPaletted(image.Rect(0, 0, 6, 6), color.Palette{color.Gray{200}})
	deep := image.NewGray16(image.Rect(0, 0, 6, 6))
	for i := range 36 {
		deep.SetGray16(i%6, i/6, color.Gray16{200 * 257})
	}
	write(t, dir, "0.jpg", j.Bytes())
	write(t, dir, "1.JPEG", j.Bytes())
	write(t, dir, "2.png", j.Bytes()) // what counts is inside
	write(t, dir, "3.png", encodePNG(t, pal))
	write(t, dir, "4.png", encodePNG(t, deep))
	write(t, dir, "5.png", encodePNG(t, grey))
	write(t, dir, "6.png", encodePNG(t, grey))
	for _, channels := range []int{1, 3} {
		train, _ := open(t, Options{Kind: "folder", Path: dir, ImageSize: 6, Channels: channels})
		if train.Len() != 6 {
			t.Fatalf("%d pictures, want 6", train.Len())
		}
		for i := range 6 {
			x, _ := load(t, train, i)
			for k, v := range x {
				if math.Abs(float64(v-unit(200))) > 2./255 {
					t.Fatalf("picture %d, element %d: %v, want about %v", i, k, v, unit(200))
				}
			}
		}
	}
}

func TestBrokenPictures(t *testing.T) {
	good := encodePNG(t, plainPicture(16, 16, color.White))
	noise := image.NewGray(image.Rect(0, 0, 64, 64))
	for i := range noise.Pix {
		noise.Pix[i] = uint8(i * i >> 3)
	}
	whole := encodePNG(t, noise)
	huge := bytes.Clone(good)
	copy(huge[16:], []byte{0, 1, 0, 0, 0, 1, 0, 0}) // 65536 x 65536; the header's checksum is now wrong
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":     {nil, "unknown format"},
		"text":      {[]byte("not a picture at all"), "unknown format"},
		"cut":       {whole[:len(whole)/2], "not enough pixel data"},
		"cut early": {good[:20], "unexpected EOF"},
		"header":    {huge, "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "a.png", good)
			write(t, dir, "c.png", good)
			write(t, dir, "b/broken.png", c.content)
			_, _, err := Open(Options{Kind: "folder", Path: dir, ImageSize: 8, Channels: 1})
			wantError(t, err, filepath.Join("b", "broken.png"), c.want, "replace or remove")
			write(t, dir, "d.png", []byte("broken, too"))
			_, _, err = Open(Options{Kind: "folder", Path: dir, ImageSize: 8, Channels: 1})
			wantError(t, err, filepath.Join("b", "broken.png"), "and 1 more")
		})
	}
}

func TestTooManyPixels(t *testing.T) {
	dir := t.TempDir()
	wide := encodePNG(t, image.NewGray(image.Rect(0, 0, 40000, 1)))
	write(t, dir, "a.png", wide)
	write(t, dir, "b.png", wide)
	train, _ := open(t, Options{Kind: "folder", Path: dir, ImageSize: 2, Channels: 1})
	if train.Len() != 1 {
		t.Errorf("%d pictures, want 1", train.Len())
	}
	// The same with a height of 40,000 in the header and a checksum that fits.
	binary.BigEndian.PutUint32(wide[20:], 40000)
	binary.BigEndian.PutUint32(wide[29:], crc32.ChecksumIEEE(wide[12:29]))
	write(t, dir, "b.png", wide)
	_, _, err := Open(Options{Kind: "folder", Path: dir, ImageSize: 2, Channels: 1})
	wantError(t, err, "b.png", "40000x40000 pixels")
}

func TestLinkedFolders(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Log("links need a privilege there; the walk is the same code")
		return
	}
	dir, other := t.TempDir(), t.TempDir()
	pic := encodePNG(t, plainPicture(2, 2, color.White))
	write(t, other, "x.png", pic)
	write(t, other, "y.png", pic)
	must(t, os.Symlink(other, filepath.Join(dir, "cats")))
	must(t, os.Symlink(dir, filepath.Join(dir, "loop")))
	root := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, root))
	got, err := listPictures(root)
	must(t, err)
	if want := []string{"cats/x.png", "cats/y.png"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	must(t, os.Symlink("nowhere", filepath.Join(dir, "z.png")))
	_, err = listPictures(root)
	wantError(t, err, "data.path", "z.png", "no such file")
}

func TestFolderThatIsNone(t *testing.T) {
	dir := t.TempDir()
	_, _, err := Open(Options{Kind: "folder", Path: filepath.Join(dir, "gone"), ImageSize: 8, Channels: 1})
	wantError(t, err, "data.path", "gone", "no such file", "give a folder")
	write(t, dir, "file", nil)
	_, _, err = Open(Options{Kind: "folder", Path: filepath.Join(dir, "file"), ImageSize: 8, Channels: 1})
	wantError(t, err, "data.path", "file", "not a directory")
}
