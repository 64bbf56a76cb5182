package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/zerogap/zerogap/dtype"
)

// File is an open safetensors file. Tensors are read when they are asked for,
// each into memory of its own. Its methods may be called concurrently.
type File struct {
	path    string
	r       io.ReaderAt
	closer  io.Closer
	base    int64 // file offset of the first data byte
	entries []entry
	index   map[string]int
	meta    map[string]string
}

// Open opens the file at path and validates its header. Errors name the file.
// The caller must Close it.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, plain(err))
	}
	file, err := ofDisk(f)
	if err != nil {
		_ = f.Close() // nothing was written; the first error says what went wrong
		return nil, fmt.Errorf("read %s: %w", path, plain(err))
	}
	file.path, file.closer = path, f
	return file, nil
}

func ofDisk(f *os.File) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return NewFile(f, info.Size())
}

// NewFile validates the header of the size bytes behind r. The file has no
// name of its own in errors, and Close does nothing.
func NewFile(r io.ReaderAt, size int64) (*File, error) {
	if size < lengthBytes {
		return nil, fmt.Errorf("%d bytes are too few for a safetensors file", size)
	}
	var word [lengthBytes]byte
	if err := readFull(r, word[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(word[:])
	switch {
	case n > maxHeader:
		return nil, fmt.Errorf("header length %d is over the limit of %d: not a safetensors file", n, maxHeader)
	case int64(n) > size-lengthBytes:
		return nil, fmt.Errorf("header length %d does not fit into a file of %d bytes: the file is truncated or not a safetensors file", n, size)
	}
	raw := make([]byte, n)
	if err := readFull(r, raw, lengthBytes); err != nil {
		return nil, err
	}
	entries, meta, err := decodeHeader(raw)
	if err != nil {
		return nil, err
	}
	base := lengthBytes + int64(n)
	if err := checkCover(entries, size-base); err != nil {
		return nil, err
	}
	f := &File{r: r, base: base, entries: entries, meta: meta, index: make(map[string]int, len(entries))}
	for i, e := range entries {
		f.index[e.name] = i
	}
	return f, nil
}

// Close closes the underlying file.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Names returns the tensors' names in the order of their data in the file.
func (f *File) Names() []string {
	names := make([]string, len(f.entries))
	for i, e := range f.entries {
		names[i] = e.name
	}
	return names
}

// Metadata returns a copy of the header's "__metadata__"; it is nil where the
// file has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.meta) }

// Has reports whether the file holds a tensor of that name.
func (f *File) Has(name string) bool {
	_, ok := f.index[name]
	return ok
}

// Shape returns a copy of the tensor's shape, empty for a scalar, and nil
// where the file has no such tensor.
func (f *File) Shape(name string) []int {
	i, ok := f.index[name]
	if !ok {
		return nil
	}
	return append([]int{}, f.entries[i].shape...)
}

// DType returns the tensor's element type, "" where the file has no such tensor.
func (f *File) DType(name string) DType {
	i, ok := f.index[name]
	if !ok {
		return ""
	}
	return f.entries[i].dtype
}

// Bytes reads the tensor's raw little-endian bytes.
func (f *File) Bytes(name string) ([]byte, error) {
	e, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return f.read(e)
}

// Float32 reads a tensor of F32, F16 or BF16 exactly, and of F64 rounded to
// the nearest float32.
func (f *File) Float32(name string) ([]float32, error) {
	b, err := f.Buffer(name)
	if err != nil {
		return nil, err
	}
	if b.DType == dtype.F32 {
		return b.F32, nil
	}
	out := make([]float32, b.Len())
	for i := range out {
		out[i] = float32(b.At(i))
	}
	return out, nil
}

// Float64 reads a tensor of F64, F32, F16 or BF16 exactly.
func (f *File) Float64(name string) ([]float64, error) {
	b, err := f.Buffer(name)
	if err != nil {
		return nil, err
	}
	if b.DType == dtype.F64 {
		return b.F64, nil
	}
	out := make([]float64, b.Len())
	for i := range out {
		out[i] = b.At(i)
	}
	return out, nil
}

// Buffer reads a tensor of F32, BF16, F16 or F64 bit for bit.
func (f *File) Buffer(name string) (dtype.Buffer, error) {
	e, err := f.find(name)
	if err != nil {
		return dtype.Buffer{}, err
	}
	format, ok := formatOf(e.dtype)
	if !ok {
		return dtype.Buffer{}, f.wrap(fmt.Errorf("tensor %q is %s: wanted F32, BF16, F16 or F64", name, e.dtype))
	}
	raw, err := f.read(e)
	if err != nil {
		return dtype.Buffer{}, err
	}
	b := dtype.Make(format, len(raw)/format.Size())
	for i := range b.F32 {
		b.F32[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	for i := range b.U16 {
		b.U16[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	for i := range b.F64 {
		b.F64[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return b, nil
}

// ReadFloat32 fills dst with the elements of a tensor of F32 from element at on,
// row-major, bit for bit. It reads in small pieces, so that a part of a large
// tensor needs no memory beside dst.
func (f *File) ReadFloat32(name string, at int, dst []float32) error {
	e, err := f.find(name)
	if err != nil {
		return err
	}
	const size = 4
	if n := int(e.end-e.begin) / size; e.dtype != F32 || at < 0 || at > n || len(dst) > n-at {
		return f.wrap(fmt.Errorf("tensor %q has %d elements of %s: wanted F32 from %d to %d", name, n, e.dtype, at, at+len(dst)))
	}
	raw := make([]byte, min(size*len(dst), 1<<16))
	off := f.base + e.begin + int64(size*at)
	for len(dst) > 0 {
		part := raw[:min(size*len(dst), len(raw))]
		if err := readFull(f.r, part, off); err != nil {
			return f.wrap(fmt.Errorf("tensor %q: %w", name, plain(err)))
		}
		for i := range len(part) / size {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(part[size*i:]))
		}
		dst, off = dst[len(part)/size:], off+int64(len(part))
	}
	return nil
}

// Int64 reads a tensor of I64, I32 or U8.
func (f *File) Int64(name string) ([]int64, error) {
	e, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]DType{I64, I32, U8}, e.dtype) {
		return nil, f.wrap(fmt.Errorf("tensor %q is %s: wanted I64, I32 or U8", name, e.dtype))
	}
	raw, err := f.read(e)
	if err != nil {
		return nil, err
	}
	out := make([]int64, len(raw)/e.dtype.Size())
	for i := range out {
		switch e.dtype {
		case I64:
			out[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
		case I32:
			out[i] = int64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		default:
			out[i] = int64(raw[i])
		}
	}
	return out, nil
}

func (f *File) find(name string) (entry, error) {
	i, ok := f.index[name]
	if !ok {
		return entry{}, f.wrap(fmt.Errorf("no tensor %q among %d", name, len(f.entries)))
	}
	return f.entries[i], nil
}

func (f *File) read(e entry) ([]byte, error) {
	raw := make([]byte, e.end-e.begin)
	if err := readFull(f.r, raw, f.base+e.begin); err != nil {
		return nil, f.wrap(fmt.Errorf("tensor %q: %w", e.name, plain(err)))
	}
	return raw, nil
}

func (f *File) wrap(err error) error {
	if f.path == "" {
		return err
	}
	return fmt.Errorf("read %s: %w", f.path, err)
}

// readFull fills p from offset off. io.ReaderAt may report io.EOF together
// with the last byte, which is no error here.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// plain strips the operation and path that package os puts before an error:
// ours name the file the user knows.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError // from Rename
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}
