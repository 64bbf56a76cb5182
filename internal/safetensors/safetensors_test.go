package safetensors

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zerogap/zerogap/dtype"
)

const (
	pythonFile = "../../testdata/safetensors/python.safetensors"
	goFile     = "../../testdata/safetensors/go.safetensors"
)

var update = flag.Bool("update", false, "write "+goFile+" anew; check it with make.py afterwards")

// sample returns the tensors of testdata/safetensors/make.py.
func sample() ([]Tensor, map[string]string) {
	half := []float32{0, float32(math.Copysign(0, -1)), 1, -1.5, 0.15625, 65504}
	pack := func(d dtype.DType) dtype.Buffer {
		b := dtype.Make(d, len(half))
		for i, v := range half {
			b.U16[i] = dtype.FromFloat32(d, v)
		}
		return b
	}
	third := float32(1) / 3
	return []Tensor{
		{"u8", []int{3}, []byte{0, 1, 255}},
		{"scalar", nil, []float32{2.5}},
		{"f64", []int{2, 2}, []float64{1.0 / 3, -2.0e300, 5e-324, 0}},
		{"f32", []int{2, 3}, []float32{third, -2.0e30, math.Float32frombits(1), float32(math.Inf(1)), math.Float32frombits(0x7fc00000), 7}},
		{"f16", []int{6}, pack(dtype.F16)},
		{"bf16", []int{1, 2, 3}, pack(dtype.BF16)},
		{"i64", []int{3}, []int64{math.MinInt64, -1, math.MaxInt64}},
		{"empty", []int{0, 3}, []float32{}},
	}, map[string]string{"format": "pt", "note": "a \"quoted\" ü\n"}
}

func open(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// checkSample compares f with sample bit for bit.
func checkSample(t *testing.T, f *File) {
	t.Helper()
	tensors, meta := sample()
	if diff := cmp.Diff(meta, f.Metadata()); diff != "" {
		t.Error(diff)
	}
	if len(f.Names()) != len(tensors) {
		t.Errorf("names %v", f.Names())
	}
	for _, w := range tensors {
		d, _, err := w.layout()
		if err != nil {
			t.Fatal(err)
		}
		if got := f.DType(w.Name); got != d {
			t.Errorf("%s: dtype %s, want %s", w.Name, got, d)
		}
		if !slices.Equal(f.Shape(w.Name), w.Shape) || f.Shape(w.Name) == nil {
			t.Errorf("%s: shape %v, want %v", w.Name, f.Shape(w.Name), w.Shape)
		}
		got, err := f.Bytes(w.Name)
		if err != nil {
			t.Fatal(err)
		}
		if want := rawBytes(w.Data); !bytes.Equal(got, want) {
			t.Errorf("%s: bytes %x, want %x", w.Name, got, want)
		}
	}
}

// rawBytes is a reference for the encoder by way of encoding/binary's reflection.
func rawBytes(v any) []byte {
	if b, ok := v.(dtype.Buffer); ok {
		v = b.U16
	}
	var w bytes.Buffer
	if err := binary.Write(&w, binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return w.Bytes()
}

func TestPythonFile(t *testing.T) {
	f := open(t, pythonFile)
	checkSample(t, f)

	third := float32(1) / 3
	if got, err := f.Float32("f64"); err != nil || got[0] != third || !math.IsInf(float64(got[1]), -1) {
		t.Errorf("f64 as float32: %v %v", got, err)
	}
	for _, name := range []string{"f16", "bf16"} {
		got, err := f.Float64(name)
		if err != nil {
			t.Fatal(err)
		}
		want := []float64{0, 0, 1, -1.5, 0.15625, 65504}
		if name == "bf16" {
			want[5] = 65536 // 65504 has more digits than bfloat16
		}
		if !slices.Equal(got, want) || !math.Signbit(got[1]) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got, err := f.Float64("f32"); err != nil || got[2] != 0x1p-149 || got[0] != float64(third) {
		t.Errorf("f32 as float64: %v %v", got, err)
	}
	if got, err := f.Int64("i64"); err != nil || !slices.Equal(got, []int64{math.MinInt64, -1, math.MaxInt64}) {
		t.Errorf("i64: %v %v", got, err)
	}
	if got, err := f.Int64("u8"); err != nil || !slices.Equal(got, []int64{0, 1, 255}) {
		t.Errorf("u8: %v %v", got, err)
	}
	if got, err := f.Float32("scalar"); err != nil || !slices.Equal(got, []float32{2.5}) {
		t.Errorf("scalar: %v %v", got, err)
	}
}

// The stored file was written by Write and read back by the Python library; a
// change of its bytes has to be checked there again.
func TestGoFile(t *testing.T) {
	tensors, meta := sample()
	if *update {
		if err := Write(goFile, tensors, meta); err != nil {
			t.Fatal(err)
		}
	}
	checkSample(t, open(t, goFile))
	var w bytes.Buffer
	if err := Encode(&w, tensors, meta); err != nil || !bytes.Equal(w.Bytes(), read(t, goFile)) {
		t.Errorf("Encode makes other bytes than %s holds (%v)", goFile, err)
	}
}

func TestWrongRequests(t *testing.T) {
	f := open(t, pythonFile)
	_, missing := f.Float32("nope")
	_, notFloat := f.Float32("i64")
	_, notInt := f.Int64("f32")
	for want, err := range map[string]error{
		`no tensor "nope" among 8`:                              missing,
		`tensor "i64" is I64: wanted F32, BF16, F16 or F64`:     notFloat,
		`tensor "f32" is F32: wanted I64, I32 or U8`:            notInt,
		"read " + pythonFile + `: tensor "f32" is F32: wanted `: notInt,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if f.Has("nope") || f.Shape("nope") != nil || f.DType("nope") != "" || !f.Has("empty") {
		t.Error("a missing tensor has properties")
	}
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b.safetensors")
	tensors, meta := sample()
	if err := Write(a, tensors, meta); err != nil {
		t.Fatal(err)
	}
	checkSample(t, open(t, a))

	slices.Reverse(tensors)
	if err := os.WriteFile(b, []byte("an older file, to be replaced"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(b, tensors, meta); err != nil {
		t.Fatal(err)
	}
	one, two := read(t, a), read(t, b)
	if !bytes.Equal(one, two) {
		t.Error("the file depends on the order of the tensors given")
	}
	if n := binary.LittleEndian.Uint64(one); (n+lengthBytes)%8 != 0 {
		t.Errorf("header length %d leaves the data unaligned", n)
	}
	var stream bytes.Buffer
	if err := Encode(&stream, tensors, meta); err != nil || !bytes.Equal(stream.Bytes(), one) {
		t.Errorf("Encode differs from Write (%v)", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("folder holds %v (%v), want the two files", left, err)
	}
	f := open(t, a)
	offset := int64(0)
	for _, name := range f.Names() {
		raw, err := f.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		if offset%int64(f.DType(name).Size()) != 0 {
			t.Errorf("%s starts at %d, unaligned", name, offset)
		}
		offset += int64(len(raw))
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestWriteNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.safetensors")
	if err := Write(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	if f := open(t, path); len(f.Names()) != 0 || f.Metadata() != nil {
		t.Errorf("names %v, metadata %v", f.Names(), f.Metadata())
	}
}

func TestWriteErrors(t *testing.T) {
	ok := Tensor{"x", []int{2}, []float32{1, 2}}
	cases := []struct {
		name    string
		tensors []Tensor
		meta    map[string]string
		want    string
	}{
		{"twice", []Tensor{ok, ok}, nil, `tensor "x": the name is used twice`},
		{"reserved", []Tensor{{"__metadata__", []int{2}, []float32{1, 2}}}, nil, "reserved"},
		{"name", []Tensor{{"\xff", []int{2}, []float32{1, 2}}}, nil, "not valid UTF-8"},
		{"count", []Tensor{{"x", []int{2, 2}, []float32{1, 2}}}, nil, "shape [2,2] needs 4 elements, data has 2"},
		{"negative", []Tensor{{"x", []int{-1, -2}, []float32{1, 2}}}, nil, "shape [-1,-2] has a negative size"},
		{"overflow", []Tensor{{"x", []int{math.MaxInt, 3}, []float32{1, 2}}}, nil, "overflows"},
		{"type", []Tensor{{"x", []int{1}, []int{1}}}, nil, "cannot store []int"},
		{"nil", []Tensor{{"x", []int{0}, nil}}, nil, "cannot store <nil>"},
		{"metadata", nil, map[string]string{"k": "\xff"}, `metadata "k"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f.safetensors")
			err := Write(path, c.tensors, c.meta)
			if err == nil || !strings.HasPrefix(err.Error(), "write "+path+": ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}

func TestWriteLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(folder, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		folder:                               "write " + folder + ": file exists",
		filepath.Join(dir, "no", "f.tensor"): "no such file or directory",
	} {
		err := Write(path, []Tensor{{"x", nil, []float32{1}}}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), ".tmp") {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// limited fails once n bytes are written, as a full disk does.
type limited struct{ n int }

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.n {
		return l.n, os.ErrClosed
	}
	l.n -= len(p)
	return len(p), nil
}

func TestEncodeReportsWriteErrors(t *testing.T) {
	big := []Tensor{{"x", []int{1 << 16}, make([]float32, 1<<16)}}
	for _, n := range []int{0, 100, 1 << 16, 1 << 18} {
		if err := Encode(&limited{n}, big, nil); err != os.ErrClosed {
			t.Errorf("limit %d: error %v", n, err)
		}
	}
}
