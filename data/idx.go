package data

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// idx is an array of bytes read from a file in the IDX format: a big-endian
// header (two zero bytes, type 8 for unsigned bytes, the number of dimensions,
// then each as 32 bits) and the elements, row-major. http://yann.lecun.com/exdb/mnist
type idx struct {
	path string
	dims []int
	data []uint8
}

// maxIDX bounds what a header may ask for: 4 GiB of pictures.
const maxIDX = 1 << 32

// readIDX reads the file of the given name in dir, "train-images" for example,
// under any of the names in use, plain or compressed.
func readIDX(dir, name string, rank int) (*idx, error) {
	path, err := findIDX(dir, fmt.Sprintf("%s-idx%d-ubyte", name, rank), fmt.Sprintf("%s.idx%d-ubyte", name, rank))
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, plain(err)
	}
	defer f.Close() // read only: nothing can be lost
	a := &idx{path: path}
	if err := a.read(f, rank); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the file ends too early")
		}
		return nil, fmt.Errorf("%s: %w: fetch it again", path, err)
	}
	return a, nil
}

func findIDX(dir string, names ...string) (string, error) {
	for _, n := range names {
		for _, ext := range []string{".gz", ""} {
			path := filepath.Join(dir, n+ext)
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return path, nil
			}
		}
	}
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("data.path: %w: give a folder with the IDX files, or leave data.path empty", plain(err))
	}
	return "", fmt.Errorf("data.path: no file %s or %[1]s.gz in %s: give a folder with the four IDX files, or leave data.path empty", names[0], dir)
}

func (a *idx) read(f io.Reader, rank int) (err error) {
	var r io.Reader = bufio.NewReaderSize(f, 1<<16)
	if strings.HasSuffix(a.path, ".gz") {
		if r, err = gzip.NewReader(r); err != nil {
			return err
		}
	}
	var word [4]byte
	if _, err := io.ReadFull(r, word[:]); err != nil {
		return err
	}
	if got, want := binary.BigEndian.Uint32(word[:]), uint32(0x800+rank); got != want {
		return fmt.Errorf("begins with 0x%08x, an IDX file of this kind with 0x%08x", got, want)
	}
	size := int64(1)
	for range rank {
		if _, err := io.ReadFull(r, word[:]); err != nil {
			return err
		}
		n := int64(binary.BigEndian.Uint32(word[:]))
		if a.dims = append(a.dims, int(n)); n > 0 && size > maxIDX/n {
			return fmt.Errorf("the header asks for more than %d bytes", int64(maxIDX))
		}
		size *= n
	}
	// Read through a limit instead of allocating what the header says, which
	// may be a lie.
	if a.data, err = io.ReadAll(io.LimitReader(r, size)); err != nil {
		return err
	}
	if int64(len(a.data)) < size {
		return io.ErrUnexpectedEOF
	}
	// One more read checks the checksum of a compressed file, too.
	if n, err := io.ReadFull(r, make([]byte, 1)); n > 0 {
		return fmt.Errorf("more bytes follow than the %d of the header", size)
	} else if err != io.EOF {
		return err
	}
	return nil
}

// plain turns a file error into "path: reason".
func plain(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return err
}
