package data

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // registers the decoder
	_ "image/png"  // registers the decoder
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/image/draw"
)

// heldOutEvery: of pictures that come without a split, every so-manyth is held out.
const heldOutEvery = 10

// maxPixels bounds one picture file, since a small file can ask for any amount
// of memory.
const maxPixels = 1 << 27

// openFolder decodes every picture into memory, 8 bits a value; what Open says
// of kind folder is done here.
func openFolder(o Options) (train, heldOut Dataset, err error) {
	if o.Path == "" {
		return nil, nil, errors.New("data.path is empty: give the folder of the pictures")
	}
	files, err := listPictures(o.Path)
	if err != nil {
		return nil, nil, err
	}
	if len(files) < 2 {
		return nil, nil, fmt.Errorf("data.path: %d PNG or JPEG files in %s: at least 2 are needed, one to train on and one to hold out", len(files), o.Path)
	}
	labels := classes(files)
	tr, out, place := split(o, len(files))
	jobs := make([]decodeJob, len(files))
	for i, name := range files {
		set, k := place(i)
		set.labels[k] = labels[i]
		jobs[i] = decodeJob{filepath.Join(o.Path, filepath.FromSlash(name)), set.picture(k)}
	}
	if err := decodeAll(jobs, o.ImageSize, o.Channels); err != nil {
		return nil, nil, err
	}
	return tr, out, nil
}

// split makes room for n pictures, of which every tenth is held out (of fewer
// than ten, the last). place says in which set, and where there, picture i is.
func split(o Options, n int) (train, heldOut *stored, place func(i int) (*stored, int)) {
	every := min(heldOutEvery, n)
	train, heldOut = newStored(o, n-n/every), newStored(o, n/every)
	return train, heldOut, func(i int) (*stored, int) {
		if i%every == every-1 {
			return heldOut, i / every
		}
		return train, i - i/every
	}
}

func newStored(o Options, n int) *stored {
	return &stored{
		pixels: make([]uint8, n*o.Channels*o.ImageSize*o.ImageSize), labels: make([]int, n),
		srcC: o.Channels, srcH: o.ImageSize, srcW: o.ImageSize,
		channels: o.Channels, height: o.ImageSize, width: o.ImageSize,
	}
}

// listPictures returns the slash-separated paths below root, sorted.
func listPictures(root string) ([]string, error) {
	var files []string
	var walk func(rel string, above []string) error
	walk = func(rel string, above []string) error {
		dir := filepath.Join(root, filepath.FromSlash(rel))
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return err
		}
		if slices.Contains(above, real) {
			return nil // a link back to a folder that we are in
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(rel, e.Name())
			if strings.HasPrefix(e.Name(), ".") {
				continue
			}
			info, err := os.Stat(filepath.Join(dir, e.Name())) // follows links
			switch {
			case err != nil:
				return err
			case info.IsDir():
				if err := walk(name, append(slices.Clip(above), real)); err != nil {
					return err
				}
			case isPicture(e.Name()):
				files = append(files, name)
			}
		}
		return nil
	}
	if err := walk("", nil); err != nil {
		return nil, fmt.Errorf("data.path = %q: %w: give a folder of PNG and JPEG files that can be read", root, plain(err))
	}
	slices.Sort(files)
	return files, nil
}

func isPicture(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".png", ".jpg", ".jpeg":
		return true
	}
	return false
}

// classes numbers the first folders of the paths by their names.
func classes(files []string) []int {
	class := func(f string) string {
		dir, _, below := strings.Cut(f, "/")
		if !below {
			return ""
		}
		return dir
	}
	var names []string
	for _, f := range files {
		if c := class(f); c != "" {
			names = append(names, c)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	labels := make([]int, len(files))
	for i, f := range files {
		labels[i] = slices.Index(names, class(f)) // −1 when there is none
	}
	return labels
}

type decodeJob struct {
	path string
	dst  []uint8 // [C,H,W]
}

// decodeAll decodes every file, on all CPUs. The error is that of the first
// broken file and counts the others, so that one run shows the extent.
func decodeAll(jobs []decodeJob, size, channels int) error {
	failures := make([]error, len(jobs))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(jobs)); i = next.Add(1) - 1 {
				failures[i] = decode(jobs[i], size, channels)
			}
		})
	}
	wg.Wait()
	var first error
	broken := 0
	for i, err := range failures {
		if err == nil {
			continue
		}
		if broken++; first == nil {
			first = fmt.Errorf("%s: %w", jobs[i].path, err)
		}
	}
	switch {
	case broken == 1:
		return fmt.Errorf("%w: replace or remove this picture", first)
	case broken > 1:
		return fmt.Errorf("%w: replace or remove this picture and %d more that cannot be read", first, broken-1)
	}
	return nil
}

func decode(j decodeJob, size, channels int) error {
	f, err := os.Open(j.path)
	if err != nil {
		return bare(err)
	}
	defer f.Close() // read only: nothing can be lost
	if _, err := checkPicture(f); err != nil {
		return err
	}
	img, _, err := image.Decode(f)
	if err != nil {
		return err
	}
	planes(j.dst, fit(img, size), channels)
	return nil
}

// checkPicture reads the header of a picture, refuses what is too large, and
// goes back to the start of the file.
func checkPicture(f *os.File) (image.Config, error) {
	head, _, err := image.DecodeConfig(f)
	if err != nil {
		return head, err
	}
	if head.Width < 1 || head.Height < 1 || head.Width > maxPixels/head.Height {
		return head, fmt.Errorf("%dx%d pixels, between 1 and %d in all can be read", head.Width, head.Height, maxPixels)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return head, bare(err)
	}
	return head, nil
}

// fit cuts the central square out of img, puts it on white and resizes it.
func fit(img image.Image, size int) *image.RGBA {
	b := img.Bounds()
	side := min(b.Dx(), b.Dy())
	at := b.Min.Add(image.Pt((b.Dx()-side)/2, (b.Dy()-side)/2))
	cut := onWhite(img, image.Rectangle{at, at.Add(image.Pt(side, side))})
	if side == size {
		return cut
	}
	out := image.NewRGBA(image.Rect(0, 0, size, size))
	draw.CatmullRom.Scale(out, out.Bounds(), cut, cut.Bounds(), draw.Src, nil)
	return out
}

// onWhite copies a part of img onto white.
func onWhite(img image.Image, part image.Rectangle) *image.RGBA {
	out := image.NewRGBA(image.Rect(0, 0, part.Dx(), part.Dy()))
	draw.Draw(out, out.Rect, image.White, image.Point{}, draw.Src)
	draw.Draw(out, out.Rect, img, part.Min, draw.Over)
	return out
}

// planes splits the pixels of an opaque picture into channels.
func planes(dst []uint8, img *image.RGBA, channels int) {
	n := len(dst) / channels
	for i := range n {
		r, g, b := img.Pix[4*i], img.Pix[4*i+1], img.Pix[4*i+2]
		if channels == 1 {
			dst[i] = color.GrayModel.Convert(color.RGBA{r, g, b, 255}).(color.Gray).Y
			continue
		}
		dst[i], dst[n+i], dst[2*n+i] = r, g, b
	}
}

// bare is the reason of a file error, for messages that begin with the path.
func bare(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
