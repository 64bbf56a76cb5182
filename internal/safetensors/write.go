package safetensors

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/zerogap/zerogap/dtype"
)

// Write stores the tensors and the metadata (which may be nil) at path. The
// file's bytes depend on names, shapes, elements and metadata alone, not on the
// order of tensors: wide elements come first, then names ascend, so that every
// tensor is aligned to its element size.
//
// The file appears whole or not at all: it is written beside path under another
// name, synced and renamed. An existing file at path is replaced. Invalid
// tensors (see Tensor) are an error before anything is written.
func Write(path string, tensors []Tensor, metadata map[string]string) error {
	header, sorted, err := plan(tensors, metadata)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// A random name lets several processes write the same path; the last rename wins.
	temp := fmt.Sprintf("%s.%016x.tmp", path, rand.Uint64())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, plain(err))
	}
	err = fill(f, header, sorted)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	} else {
		_ = os.Remove(temp) // the first error says what went wrong
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, plain(err))
	}
	return nil
}

// Encode writes the bytes that Write would store to w.
func Encode(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	header, sorted, err := plan(tensors, metadata)
	if err != nil {
		return err
	}
	return encode(w, header, sorted)
}

func fill(f *os.File, header []byte, tensors []Tensor) error {
	if err := encode(f, header, tensors); err != nil {
		return err
	}
	return f.Sync()
}

// syncFolder makes the rename itself durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// plan validates the tensors and lays them out.
func plan(tensors []Tensor, metadata map[string]string) ([]byte, []Tensor, error) {
	type item struct {
		entry
		tensor Tensor
	}
	seen := map[string]bool{}
	items := make([]item, 0, len(tensors))
	for _, t := range tensors {
		d, n, err := t.check()
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return nil, nil, fmt.Errorf("tensor %q: the name is used twice", t.Name)
		}
		seen[t.Name] = true
		items = append(items, item{entry{name: t.Name, dtype: d, shape: t.Shape, end: int64(n) * int64(d.Size())}, t})
	}
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, nil, fmt.Errorf("metadata %q: %q is not UTF-8", k, v)
		}
	}
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(cmp.Compare(b.dtype.Size(), a.dtype.Size()), cmp.Compare(a.name, b.name))
	})
	entries, sorted := make([]entry, len(items)), make([]Tensor, len(items))
	var at int64
	for i, it := range items {
		it.begin, it.end = at, at+it.end
		at = it.end
		entries[i], sorted[i] = it.entry, it.tensor
	}
	header := encodeHeader(entries, metadata)
	if len(header) > maxHeader {
		return nil, nil, fmt.Errorf("header of %d bytes is over the format's limit of %d", len(header), maxHeader)
	}
	return header, sorted, nil
}

// check returns the tensor's element type and count.
func (t Tensor) check() (DType, int, error) {
	switch {
	case t.Name == metadataKey:
		return "", 0, errors.New("the name is reserved by the format")
	case !utf8.ValidString(t.Name):
		return "", 0, errors.New("the name is not valid UTF-8")
	}
	d, have, err := t.layout()
	if err != nil {
		return "", 0, err
	}
	n, err := elements(t.Shape)
	if err != nil {
		return "", 0, err
	}
	if n != have {
		return "", 0, fmt.Errorf("shape %s needs %d elements, data has %d", shapeString(t.Shape), n, have)
	}
	return d, n, nil
}

func encode(w io.Writer, header []byte, tensors []Tensor) error {
	b := bufio.NewWriterSize(w, 1<<16)
	e := encoder{w: b}
	e.put(binary.LittleEndian.AppendUint64(e.buf[:0], uint64(len(header))))
	e.put(header)
	for _, t := range tensors {
		e.data(t.Data)
	}
	if e.err != nil {
		return e.err
	}
	return b.Flush()
}

// encoder keeps the first error, so that the loops below stay loops.
type encoder struct {
	w   *bufio.Writer
	buf [8]byte
	err error
}

func (e *encoder) put(p []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(p)
	}
}

func (e *encoder) data(values any) {
	switch v := values.(type) {
	case []byte:
		e.put(v)
	case []float32:
		for _, x := range v {
			e.put(binary.LittleEndian.AppendUint32(e.buf[:0], math.Float32bits(x)))
		}
	case []float64:
		for _, x := range v {
			e.put(binary.LittleEndian.AppendUint64(e.buf[:0], math.Float64bits(x)))
		}
	case []int64:
		for _, x := range v {
			e.put(binary.LittleEndian.AppendUint64(e.buf[:0], uint64(x)))
		}
	case dtype.Buffer:
		e.data(v.F32)
		e.data(v.F64)
		for _, x := range v.U16 {
			e.put(binary.LittleEndian.AppendUint16(e.buf[:0], x))
		}
	}
}
