//go:build !(linux && (amd64 || arm64))

package mpi

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/zerogap/zerogap/zero/comm/exchange"
)

// Comm is this process's end of an MPI job.
type Comm struct{ *exchange.End }

// Connect returns an error: the engine calls MPI on Linux, on amd64 and arm64.
func Connect(Options) (*Comm, error) {
	return nil, fmt.Errorf("the MPI engine runs on linux/amd64 and linux/arm64, not on %s/%s: use comm.engine = \"local\"", runtime.GOOS, runtime.GOARCH)
}

// Family is empty.
func (c *Comm) Family() string { return "" }

// Library is empty.
func (c *Comm) Library() string { return "" }

// Exit ends the process.
func (c *Comm) Exit(code int) { os.Exit(code) }

// NativeReduceScatter is not there.
func (c *Comm) NativeReduceScatter(send, recv []float32) error { return errNoMPI }

// NativeAllGather is not there.
func (c *Comm) NativeAllGather(send, recv []float32) error { return errNoMPI }

var errNoMPI = errors.New("no MPI on this system")
