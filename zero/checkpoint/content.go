package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/safetensors"
)

// Beginnings of the names of the tensor files.
const (
	weightsName   = "weights-"
	optimizerName = "optimizer-"
)

// content is a file to write: tensors, or bytes.
type content struct {
	name    string
	tensors []safetensors.Tensor
	data    []byte
}

// head is the manifest as far as it is known before anything is written.
func (s *Saver) head(tag string) Manifest {
	plan := s.opt.Plan()
	m := Manifest{
		Format: format, Version: version, Tag: tag, World: s.comm.Size(), Stage: plan.Stage(),
		DTypes: fmt.Sprint(s.opt.Policy()), Optimizer: s.opt.Rules(), Progress: s.opt.Progress(), Parts: s.opt.Parts(),
	}
	for i, p := range s.opt.Params() {
		m.Params = append(m.Params, Param{
			Name: p.Name, Shape: append([]int{}, p.Shape...), DType: s.opt.Value(i).DType.String(),
			Frozen: p.Frozen, States: s.opt.StateNames(i),
		})
	}
	return m
}

// contents lists the files of this rank. copied puts the tensors into memory of
// their own.
func (s *Saver) contents(attached []Attachment, copied bool) []content {
	rank, world := s.comm.Rank(), s.comm.Size()
	of := func(kind string) string { return fmt.Sprintf("%s%05d-of-%05d.safetensors", kind, rank, world) }
	files := []content{
		{name: of(weightsName), tensors: s.weights()},
		{name: of(optimizerName), tensors: s.optimizer()},
	}
	if copied {
		s.copies.reset()
		for _, f := range files {
			for i := range f.tensors {
				f.tensors[i].Data = s.copies.copy(f.tensors[i].Data)
			}
		}
	}
	for _, a := range attached {
		files = append(files, content{name: a.Name, data: a.Data})
	}
	return files
}

// weights lists this rank's share of the compute copies. Every rank has all of
// them; whole parameters are dealt out, those that begin in a rank's share of the
// elements to that rank.
func (s *Saver) weights() []safetensors.Tensor {
	params := s.opt.Params()
	total := 0
	for i := range params {
		total += params[i].Value.Len()
	}
	mine := []safetensors.Tensor{} // not nil: a file of no tensors
	at := 0
	for i, p := range params {
		if at*s.comm.Size()/max(1, total) == s.comm.Rank() || total == at && s.comm.Rank() == s.comm.Size()-1 {
			mine = append(mine, safetensors.Tensor{Name: p.Name, Shape: p.Shape, Data: s.opt.Value(i)})
		}
		at += p.Value.Len()
	}
	return mine
}

// optimizer lists what this rank owns of master weights and states.
func (s *Saver) optimizer() []safetensors.Tensor {
	params := s.opt.Params()
	all := []safetensors.Tensor{}
	for _, p := range s.opt.Partition() {
		add := func(key string, x []float32) {
			name := pieceName(params[p.Param].Name, key, p.Lo, p.Hi)
			all = append(all, safetensors.Tensor{Name: name, Shape: []int{len(x)}, Data: x})
		}
		add(master, p.Master)
		for k, key := range s.opt.StateNames(p.Param) {
			add(key, p.States[k])
		}
	}
	return all
}

// arena is memory for copies that is used again.
type arena struct {
	f32  []float32
	u16  []uint16
	need struct{ f32, u16 int } // of the last round
}

// reset frees the copies, and makes room for as much as the last round needed.
func (a *arena) reset() {
	a.f32 = slices.Grow(a.f32[:0], a.need.f32)
	a.u16 = slices.Grow(a.u16[:0], a.need.u16)
	a.need.f32, a.need.u16 = 0, 0
}

// copy copies a tensor's data.
func (a *arena) copy(data any) any {
	switch v := data.(type) {
	case []float32:
		return take(&a.f32, &a.need.f32, v)
	case dtype.Buffer:
		return dtype.Buffer{DType: v.DType, F32: take(&a.f32, &a.need.f32, v.F32), U16: take(&a.u16, &a.need.u16, v.U16)}
	}
	panic(fmt.Sprintf("checkpoint: copy of %T", data))
}

// take copies src to the end of free, or, where there is no room, to new memory.
func take[T any](free *[]T, need *int, src []T) []T {
	*need += len(src)
	if n := len(*free); cap(*free)-n >= len(src) {
		*free = append(*free, src...)
		return (*free)[n : n+len(src) : n+len(src)]
	}
	return slices.Clone(src)
}

// write writes this rank's files.
func (p *Pending) write() {
	defer close(p.done)
	for _, c := range p.files {
		info, err := p.writeFile(c)
		if err != nil {
			p.failed = err
			return
		}
		p.written = append(p.written, info)
	}
	p.files = nil
}

// writeFile writes one file and syncs it.
func (p *Pending) writeFile(c content) (FileInfo, error) {
	f, err := p.s.opts.FS.Create(filepath.Join(p.temp, c.name))
	if err != nil {
		return FileInfo{}, err
	}
	m := &measured{w: f, sum: sha256.New()}
	if c.tensors != nil {
		err = safetensors.Encode(m, c.tensors, map[string]string{"format": format, "step": fmt.Sprint(p.head.Progress.Tried)})
	} else {
		_, err = io.Copy(m, bytes.NewReader(c.data))
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return FileInfo{}, err
	}
	return FileInfo{Name: c.name, Bytes: m.n, SHA256: hex.EncodeToString(m.sum.Sum(nil))}, nil
}

// measured counts and sums what passes.
type measured struct {
	w   io.Writer
	sum interface {
		io.Writer
		Sum([]byte) []byte
	}
	n int64
}

func (m *measured) Write(b []byte) (int, error) {
	n, err := m.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	m.sum.Write(b[:n])
	m.n += int64(n)
	return n, err
}
