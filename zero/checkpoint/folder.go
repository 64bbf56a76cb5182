package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/zero"
)

// Folder is one checkpoint, open for reading. Its methods may be called from
// several goroutines at once, for instance by all ranks of a process. What they
// return is the caller's.
type Folder struct {
	path     string
	manifest *Manifest
	params   map[string]int // index by name
	tensors  []*safetensors.File
	weights  map[string]*safetensors.File // by parameter
	pieces   map[run][]piece

	verify func() error // once
}

// run names one array: a parameter's master weights or one of its states.
type run struct{ param, key string }

// piece is a part of an array in a file.
type piece struct {
	zero.Interval
	file *safetensors.File
	name string
}

// Open opens the checkpoint in the folder path. It checks the manifest, that every
// file is there in full length, and that each element of each array is in one
// place. An error names the file and says what is wrong with it. The caller must
// Close the Folder.
func Open(path string) (*Folder, error) {
	f := &Folder{path: path, params: map[string]int{}, weights: map[string]*safetensors.File{}, pieces: map[run][]piece{}}
	f.verify = sync.OnceValue(f.checksums)
	if err := f.open(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Folder) open() error {
	path := filepath.Join(f.path, ManifestFile)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("checkpoint %s: no %s: it is not a checkpoint, or one that was not finished", f.path, ManifestFile)
	case err != nil:
		return fmt.Errorf("checkpoint %s: %w", f.path, err)
	}
	if f.manifest, err = decodeManifest(raw); err != nil {
		return fmt.Errorf("checkpoint file %s: %w", path, err)
	}
	for i, p := range f.manifest.Params {
		f.params[p.Name] = i
	}
	for _, info := range f.manifest.Files {
		if err := f.openFile(info); err != nil {
			return fmt.Errorf("checkpoint file %s: %w", filepath.Join(f.path, info.Name), err)
		}
	}
	if err := f.complete(); err != nil {
		if damaged := f.Verify(); damaged != nil { // says which file is to blame
			return damaged
		}
		return fmt.Errorf("checkpoint %s: %w", f.path, err)
	}
	return nil
}

// openFile checks a file's length, and takes stock of its tensors.
func (f *Folder) openFile(info FileInfo) error {
	path := filepath.Join(f.path, info.Name)
	if filepath.Base(info.Name) != info.Name {
		return errors.New("the name leads out of the folder")
	}
	stat, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("the file is missing")
	case err != nil:
		return err
	case stat.Size() != info.Bytes:
		return fmt.Errorf("the file has %d bytes, %s says %d", stat.Size(), ManifestFile, info.Bytes)
	}
	isWeights, isOptimizer := strings.HasPrefix(info.Name, weightsName), strings.HasPrefix(info.Name, optimizerName)
	if !isWeights && !isOptimizer {
		return nil
	}
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	f.tensors = append(f.tensors, file)
	for _, name := range file.Names() {
		if isWeights {
			f.weights[name] = file
			continue
		}
		param, key, lo, hi, err := parsePieceName(name)
		if err != nil {
			return err
		}
		at := run{param, key}
		f.pieces[at] = append(f.pieces[at], piece{zero.Interval{Lo: lo, Hi: hi}, file, name})
	}
	return nil
}

// complete checks that every parameter has its weights and each array every
// element once.
func (f *Folder) complete() error {
	for _, p := range f.manifest.Params {
		w, ok := f.weights[p.Name]
		if !ok {
			return fmt.Errorf("no weights of parameter %q", p.Name)
		}
		if shape := w.Shape(p.Name); !slices.Equal(shape, p.Shape) {
			return fmt.Errorf("weights of parameter %q have shape %v, %s says %v", p.Name, shape, ManifestFile, p.Shape)
		}
		for _, key := range p.keys() {
			pieces := f.pieces[run{p.Name, key}]
			slices.SortFunc(pieces, func(a, b piece) int { return a.Lo - b.Lo })
			at := 0
			for _, piece := range pieces {
				if piece.Lo != at {
					return fmt.Errorf("%s of parameter %q: elements %d to %d are missing or there twice", key, p.Name, min(at, piece.Lo), max(at, piece.Lo))
				}
				at = piece.Hi
			}
			if at != p.Len() {
				return fmt.Errorf("%s of parameter %q ends at element %d of %d", key, p.Name, at, p.Len())
			}
		}
	}
	return nil
}

// keys lists the arrays of a parameter in the optimizer files.
func (p Param) keys() []string {
	if p.Frozen {
		return nil
	}
	return append([]string{master}, p.States...)
}

// Verify compares the SHA-256 of every file with the manifest. The files are read
// once, however often and from however many goroutines it is called.
func (f *Folder) Verify() error { return f.verify() }

func (f *Folder) checksums() error {
	for _, info := range f.manifest.Files {
		path := filepath.Join(f.path, info.Name)
		got, err := fileDigest(path)
		if err != nil {
			return fmt.Errorf("checkpoint file %s: %w", path, err)
		}
		if got != info.SHA256 {
			return fmt.Errorf("checkpoint file %s: SHA-256 is %s, %s says %s: the file was damaged after it was written", path, got, ManifestFile, info.SHA256)
		}
	}
	return nil
}

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, file)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, file.Close())
}

// Close closes the files.
func (f *Folder) Close() error {
	var errs []error
	for _, file := range f.tensors {
		errs = append(errs, file.Close())
	}
	f.tensors = nil
	return errors.Join(errs...)
}

// Path returns the folder that was opened.
func (f *Folder) Path() string { return f.path }

// Manifest returns the table of contents. It must not be changed.
func (f *Folder) Manifest() *Manifest { return f.manifest }

// Step returns the number of steps, skipped ones included, that the training had
// made.
func (f *Folder) Step() int { return f.manifest.Progress.Tried }

// Param returns the named parameter, false where there is none.
func (f *Folder) Param(name string) (Param, bool) {
	i, ok := f.params[name]
	if !ok {
		return Param{}, false
	}
	return f.manifest.Params[i], true
}

// Weights returns the named parameter as it is computed with, row-major, bit for
// bit: for a trained parameter the rounding of Master to its format.
func (f *Folder) Weights(name string) (dtype.Buffer, error) {
	w, ok := f.weights[name]
	if !ok {
		return dtype.Buffer{}, f.unknown(name)
	}
	return w.Buffer(name)
}

// Master returns the fp32 weights of the named parameter, row-major. A frozen
// parameter has none: its Weights are returned, widened.
func (f *Folder) Master(name string) ([]float32, error) {
	p, ok := f.Param(name)
	switch {
	case !ok:
		return nil, f.unknown(name)
	case p.Frozen:
		return f.weights[name].Float32(name)
	}
	return f.read(p, master)
}

// State returns one of the rule's states of the named parameter, row-major: for
// AdamW "exp_avg" or "exp_avg_sq", for a training with a moving average of the
// weights "ema". How many steps a state has followed is Progress.Applied of the
// manifest.
func (f *Folder) State(name, key string) ([]float32, error) {
	p, ok := f.Param(name)
	switch {
	case !ok:
		return nil, f.unknown(name)
	case !slices.Contains(p.States, key):
		return nil, fmt.Errorf("checkpoint %s: parameter %q has no state %q: it has %q", f.path, name, key, p.States)
	}
	return f.read(p, key)
}

func (f *Folder) unknown(name string) error {
	return fmt.Errorf("checkpoint %s: no parameter is named %q among %d", f.path, name, len(f.params))
}

func (f *Folder) read(p Param, key string) ([]float32, error) {
	x := make([]float32, p.Len())
	return x, f.readRun(p.Name, key, 0, x)
}

// readRun fills dst with the elements of an array from lo on.
func (f *Folder) readRun(param, key string, lo int, dst []float32) error {
	for _, piece := range f.pieces[run{param, key}] {
		from, to := max(lo, piece.Lo), min(lo+len(dst), piece.Hi)
		if from < to {
			if err := piece.file.ReadFloat32(piece.name, from-piece.Lo, dst[from-lo:to-lo]); err != nil {
				return fmt.Errorf("checkpoint: %w", err)
			}
		}
	}
	return nil
}

// Attachment returns the content of a file that the caller of Save gave.
func (f *Folder) Attachment(name string) ([]byte, error) {
	for _, info := range f.manifest.Files {
		if info.Name == name {
			return os.ReadFile(filepath.Join(f.path, name))
		}
	}
	return nil, fmt.Errorf("checkpoint %s: there is no file %s in it", f.path, name)
}
