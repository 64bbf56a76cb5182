// Package mpi connects the ranks of a training that are processes on any number of
// machines, started by mpirun, srun or Kubernetes' MPI operator. It loads Open MPI or
// MPICH when it is told to connect; nothing of either is needed to build.
//
// Only Isend, Irecv and Testsome of bytes are used. The collectives are those of
// package exchange, so the sums have the bits of the local engine, whatever the
// library, and whatever algorithm it would choose. One goroutine, locked to its
// thread, makes all calls. Buffers are Go's own, pinned while MPI holds them.
package mpi

import "time"

// Options of Connect.
type Options struct {
	// Library is "openmpi", "mpich", the path of a library, or "" or "auto" for that
	// which the launcher belongs to.
	Library string
	// Launch is what Detect has found. What MPI says goes before it.
	Launch Launch
	// Timeout is how long a collective waits for a rank; see exchange.Options.
	Timeout time.Duration
}

// ExitFailed is the exit code of a process whose communication failed: a run that is
// worth starting again from its last checkpoint.
const ExitFailed = 75
