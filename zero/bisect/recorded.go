package bisect

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/zerogap/zerogap/internal/safetensors"
	"github.com/zerogap/zerogap/zero"
)

// Gradients that were recorded elsewhere are a folder of files
//
//	step-1/rank-0.safetensors
//	step-1/rank-1.safetensors
//	step-2/rank-0.safetensors
//	...
//
// each with one tensor for each parameter, under its name: the gradient of that rank in
// that optimizer step, the mean over its micro-batches, without loss scale and before
// anything is reduced or clipped. A parameter without a tensor has a gradient of zero.

// recordName is the name of a file.
func recordName(dir string, step, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("step-%d", step), fmt.Sprintf("rank-%d.safetensors", rank))
}

// Record writes the gradients of one step of one rank: g by element, shapes by
// parameter.
func Record(dir string, step, rank int, plan *zero.Plan, shapes [][]int, g []float32) error {
	var all []safetensors.Tensor
	for i := range plan.Params() {
		if s, ok := plan.Span(i); ok {
			all = append(all, safetensors.Tensor{Name: plan.Name(i), Shape: shapes[i], Data: g[s.Lo:s.Hi]})
		}
	}
	path := recordName(dir, step, rank)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fmt.Errorf("record gradients: %w", err)
	}
	return safetensors.Write(path, all, map[string]string{"format": "pt"})
}

// Recorded is a folder of recorded gradients.
type Recorded struct {
	dir  string
	plan *zero.Plan
	last int
}

// OpenRecorded looks which steps a folder has. Every step from 1 on must have a file
// for each of world ranks.
func OpenRecorded(dir string, plan *zero.Plan, world int) (*Recorded, error) {
	r := &Recorded{dir: dir, plan: plan}
	for step := 1; ; step++ {
		for rank := range world {
			path := recordName(dir, step, rank)
			_, err := os.Stat(path)
			switch {
			case err == nil:
			case errors.Is(err, fs.ErrNotExist) && rank == 0 && step > 1:
				return r, nil
			default:
				return nil, fmt.Errorf("recorded gradients: %w; wanted are step-1, step-2, ..., each with rank-0.safetensors to rank-%d.safetensors", err, world-1)
			}
		}
		if _, err := os.Stat(recordName(dir, step, world)); err == nil {
			return nil, fmt.Errorf("recorded gradients: %s exists, and the training has %d ranks: set comm.world", recordName(dir, step, world), world)
		}
		r.last = step
	}
}

// Last is the number of steps.
func (r *Recorded) Last() int { return r.last }

// Mismatch is the first difference between gradients and recorded ones.
type Mismatch struct {
	Step, Rank int
	Param      string
	Offset     int
	Have, Want float64 // computed here, and recorded
	Count      int     // elements of this step and rank that differ
	Params     int     // parameters that they belong to
	Of         int     // parameters
	Absent     int     // parameters that were not recorded, and have a gradient here
}

// String is a report of several lines.
func (m *Mismatch) String() string {
	s := fmt.Sprintf("first       local gradient of step %d, rank %d\nparameter   %s, element %d\nvalues      %v here, %v recorded\nextent      %d elements of %d of %d parameters differ on this rank",
		m.Step, m.Rank, m.Param, m.Offset, m.Have, m.Want, m.Count, m.Params, m.Of)
	if m.Absent > 0 {
		s += fmt.Sprintf("\nabsent      %d parameters have no gradient in the recording", m.Absent)
	}
	return s
}

// Compare holds the gradients of a step, by rank and element, against the recorded
// ones. Differences up to tolerance times the larger of both, or of the parameter's
// largest element where that is more by a factor of 1000, count as none. It returns nil
// when there is no other.
func (r *Recorded) Compare(step int, ranks [][]float32, tolerance float64) (*Mismatch, error) {
	for rank, g := range ranks {
		f, err := safetensors.Open(recordName(r.dir, step, rank))
		if err != nil {
			return nil, err
		}
		m, err := r.compareRank(f, g, tolerance)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", recordName(r.dir, step, rank), err)
		}
		if m != nil {
			m.Step, m.Rank = step, rank
			return m, nil
		}
	}
	return nil, nil
}

func (r *Recorded) compareRank(f *safetensors.File, g []float32, tolerance float64) (*Mismatch, error) {
	var m Mismatch
	for i := range r.plan.Params() {
		s, ok := r.plan.Span(i)
		if !ok {
			continue
		}
		m.Of++
		found, want := f.Has(r.plan.Name(i)), make([]float32, s.Len())
		if found {
			x, err := f.Float32(r.plan.Name(i))
			if err != nil {
				return nil, err
			}
			if len(x) != len(want) {
				return nil, fmt.Errorf("tensor %s has %d elements, want %d", r.plan.Name(i), len(x), len(want))
			}
			want = x
		}
		largest := 0.0
		for _, v := range g[s.Lo:s.Hi] {
			largest = max(largest, math.Abs(float64(v)))
		}
		if !found && largest > 0 {
			m.Absent++
		}
		differs := false
		for k, v := range g[s.Lo:s.Hi] {
			x, y := float64(v), float64(want[k])
			if same(x, y) || math.Abs(x-y) <= tolerance*max(math.Abs(x), math.Abs(y), largest/1000) {
				continue
			}
			if m.Count++; m.Count == 1 {
				m.Param, m.Offset, m.Have, m.Want = r.plan.Name(i), k, x, y
			}
			differs = true
		}
		if differs {
			m.Params++
		}
	}
	if m.Count == 0 {
		return nil, nil
	}
	return &m, nil
}
