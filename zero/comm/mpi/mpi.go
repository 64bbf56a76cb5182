//go:build linux && (amd64 || arm64)

package mpi

import (
	"os"
	"time"

	"github.com/zerogap/zerogap/zero/comm/exchange"
)

// Comm is this process's end of an MPI job. It is kept until the process ends, or
// Close has returned without a failure before: MPI may still use memory that it holds.
type Comm struct {
	*exchange.End
	t *transport
}

// Connect loads the MPI library, starts it and returns this rank's communicator. A
// process can do so once.
func Connect(o Options) (*Comm, error) {
	c := &Comm{}
	var err error
	c.End, err = exchange.Connect(func() (exchange.Transport, error) {
		t, err := open(o.Library, o.Launch)
		if err != nil {
			return nil, err
		}
		c.t = t
		return t, nil
	}, exchange.Options{Timeout: o.Timeout, Linger: o.Timeout})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Family is OpenMPI or MPICH.
func (c *Comm) Family() string { return c.t.family }

// Library describes the library, with its version.
func (c *Comm) Library() string { return c.t.version }

// finalizeTime is how long MPI_Finalize may take. When it begins, all ranks have said
// that they are done.
const finalizeTime = 10 * time.Second

// Close implements comm.Communicator. It does not wait for a library that hangs in
// MPI_Finalize, which MPICH over TCP was seen to do now and then: there is nothing left
// to lose, and the end of the process ends it.
func (c *Comm) Close() error {
	closed := make(chan error, 1)
	go func() { closed <- c.End.Close() }()
	select {
	case err := <-closed:
		return err
	case <-c.t.finalizing:
	}
	select {
	case err := <-closed:
		return err
	case <-time.After(finalizeTime):
		return nil
	}
}

// abortTime is how long MPI_Abort may take: it can hang when the network is gone.
const abortTime = 3 * time.Second

// Exit ends the whole job because of a failure, and this process with code. Close has
// returned before.
func (c *Comm) Exit(code int) {
	go func() {
		time.Sleep(abortTime)
		os.Exit(code)
	}()
	call(c.t.abort, c.t.world, uintptr(code))
	os.Exit(code)
}
