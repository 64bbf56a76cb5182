package framework

import "github.com/zerogap/zerogap/dtype"

// storage is a run of memory that one or more tensors look at. Views share it
// and count as references; the last one to go returns it to the arena.
type storage struct {
	buf   dtype.Buffer // whole capacity; empty on a dry tape
	dtype dtype.DType
	size  int // capacity in elements
	refs  int
}

func (s *storage) bytes() int64 { return int64(s.size) * int64(s.dtype.Size()) }

// arena recycles the memory of activations, their gradients and scratch. A
// training step asks for the same sizes again and again, so free memory is kept
// by exact (rounded) size and the second step allocates nothing.
//
// An arena belongs to one tape and is not safe for concurrent use.
type arena struct {
	dry   bool // count only
	free  map[slot][]*storage
	stats Stats
}

type slot struct {
	dtype dtype.DType
	n     int
}

// Stats counts the bytes of activations, activation gradients and scratch of
// one tape.
type Stats struct {
	Live  int64 // in use now
	Peak  int64 // the most that was in use at once since ResetPeak
	Owned int64 // taken from the runtime: in use or waiting for reuse
}

// granule rounds sizes up, so that nearly equal requests share free memory and
// every buffer starts a fresh cache line.
const granule = 64

func newArena() *arena { return &arena{free: make(map[slot][]*storage)} }

// get returns uninitialised storage for n elements with one reference.
func (a *arena) get(d dtype.DType, n int) *storage {
	size := (n + granule - 1) / granule * granule
	k := slot{d, size}
	var s *storage
	if list := a.free[k]; len(list) > 0 {
		s = list[len(list)-1]
		a.free[k] = list[:len(list)-1]
	} else {
		s = &storage{dtype: d, size: size}
		if !a.dry {
			s.buf = dtype.Make(d, size)
		}
		a.stats.Owned += s.bytes()
	}
	s.refs = 1
	a.stats.Live += s.bytes()
	a.stats.Peak = max(a.stats.Peak, a.stats.Live)
	return s
}

// put drops one reference.
func (a *arena) put(s *storage) {
	s.refs--
	if s.refs > 0 {
		return
	}
	if s.refs < 0 {
		panic("framework: storage released twice")
	}
	k := slot{s.dtype, s.size}
	a.free[k] = append(a.free[k], s)
	a.stats.Live -= s.bytes()
}
