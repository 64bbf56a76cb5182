//go:build linux && (amd64 || arm64)

package mpi

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// NativeReduceScatter runs the library's own reduce-scatter of float32 sums, which is
// for comparison only: the order of its additions is its own affair, and changes with
// the size and the number of ranks. All ranks call it, with len(send) = len(recv) times
// the number of ranks, while no collective is under way. It cannot be interrupted.
func (c *Comm) NativeReduceScatter(send, recv []float32) error {
	if len(recv) == 0 || len(send) != len(recv)*c.Size() {
		return fmt.Errorf("reduce-scatter of %d elements into %d on %d ranks: want equal segments of at least one", len(send), len(recv), c.Size())
	}
	return c.native("MPI_Reduce_scatter_block", send, recv, func(send, recv uintptr, n uintptr) int32 {
		return call(c.t.reduceScatterBlock, send, recv, n, c.t.floats, c.t.sum, c.t.world)
	}, len(recv))
}

// NativeAllGather runs the library's own all-gather, for comparison. All ranks call it,
// with len(recv) = len(send) times the number of ranks, while no collective is under
// way. It cannot be interrupted.
func (c *Comm) NativeAllGather(send, recv []float32) error {
	if len(send) == 0 || len(recv) != len(send)*c.Size() {
		return fmt.Errorf("all-gather of %d elements into %d on %d ranks: want equal segments of at least one", len(send), len(recv), c.Size())
	}
	return c.native("MPI_Allgather", send, recv, func(send, recv uintptr, n uintptr) int32 {
		return call(c.t.allgather, send, n, c.t.floats, recv, n, c.t.floats, c.t.world)
	}, len(send))
}

// native runs f on MPI's thread, with pinned buffers.
func (c *Comm) native(what string, send, recv []float32, f func(send, recv, n uintptr) int32, n int) error {
	var pin runtime.Pinner
	pin.Pin(&send[0])
	pin.Pin(&recv[0])
	defer pin.Unpin()
	var err error
	if !c.Call(func() {
		err = c.t.check(what, f(uintptr(unsafe.Pointer(&send[0])), uintptr(unsafe.Pointer(&recv[0])), uintptr(n)))
	}) {
		return errors.New("the communicator is closed")
	}
	return err
}
