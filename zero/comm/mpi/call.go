//go:build linux && (amd64 || arm64)

package mpi

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// call calls a function of MPI. What its arguments point to is pinned, or belongs to
// the caller's stack frame until it returns.
func call(f uintptr, args ...uintptr) int32 {
	r, _, _ := purego.SyscallN(f, args...)
	return int32(r)
}

// cell is memory that C may write to.
type cell[T any] struct {
	v   *T
	pin runtime.Pinner
}

func newCell[T any]() *cell[T] {
	c := &cell[T]{v: new(T)}
	c.pin.Pin(c.v)
	return c
}

func (c *cell[T]) at() uintptr { return uintptr(unsafe.Pointer(c.v)) }
func (c *cell[T]) free()       { c.pin.Unpin() }

// describe returns the library's description of itself.
func (l *library) describe() string {
	text, n := newCell[[8192]byte](), newCell[int32]()
	defer text.free()
	defer n.free()
	if call(l.getLibraryVersion, text.at(), n.at()) != 0 {
		return ""
	}
	s := strings.TrimRight(string(text.v[:max(0, min(int(*n.v), len(text.v)))]), "\x00\n ")
	// MPICH lists how it was built, a line each.
	var parts []string
	for _, line := range strings.Split(s, "\n")[:min(2, strings.Count(s, "\n")+1)] {
		if line = strings.Join(strings.Fields(line), " "); !strings.HasPrefix(line, "MPICH Release date") {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, ", ")
}

// check turns the result of a function into an error.
func (l *library) check(what string, code int32) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", what, l.text(code))
}

// text describes an error code.
func (l *library) text(code int32) string {
	text, n := newCell[[1024]byte](), newCell[int32]()
	defer text.free()
	defer n.free()
	if call(l.errorString, uintptr(uint32(code)), text.at(), n.at()) != 0 {
		return fmt.Sprintf("MPI error %d", code)
	}
	s := string(text.v[:max(0, min(int(*n.v), len(text.v)))])
	return strings.Join(strings.Fields(s), " ")
}

// number calls one of the functions that write a number.
func (l *library) number(what string, f uintptr) (int, error) {
	n := newCell[int32]()
	defer n.free()
	err := l.check(what, call(f, l.world, n.at()))
	return int(*n.v), err
}

const threadSerialized = 2 // MPI_THREAD_SERIALIZED in both families

// start initialises MPI, on the thread that is to finalise it.
func (l *library) start() (rank, size int, err error) {
	provided := newCell[int32]()
	defer provided.free()
	if err := l.check("MPI_Init_thread", call(l.initThread, 0, 0, threadSerialized, provided.at())); err != nil {
		return 0, 0, err
	}
	if err := l.check("MPI_Comm_set_errhandler", call(l.commSetErrhandler, l.world, l.errorReturn)); err != nil {
		return 0, 0, err
	}
	if rank, err = l.number("MPI_Comm_rank", l.commRank); err != nil {
		return 0, 0, err
	}
	size, err = l.number("MPI_Comm_size", l.commSize)
	return rank, size, err
}
