//go:build linux && (amd64 || arm64)

package mpi

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/zerogap/zerogap/zero/comm/exchange"
)

// transport passes messages through MPI. Its requests lie in an array, as
// MPI_Testsome wants them.
type transport struct {
	*library
	rank, size int

	entries  []entry // of the requests under way
	requests []byte  // their MPI_Requests
	statuses []byte
	indices  []int32 // MPI_Testsome's result: the count, and the indices
	arrays   runtime.Pinner

	failed     []entry
	finalizing chan struct{} // closed when MPI_Finalize begins

	free []exchange.Request
	next exchange.Request
	pins []*runtime.Pinner // to use again
}

// entry is a request under way.
type entry struct {
	number exchange.Request
	peer   int
	pin    *runtime.Pinner // holds the buffer in place
}

// open loads and starts MPI.
func open(choice string, l Launch) (*transport, error) {
	lib, err := load(choice, l)
	if err != nil {
		return nil, err
	}
	t := &transport{library: lib, finalizing: make(chan struct{})}
	if t.rank, t.size, err = lib.start(); err != nil {
		return nil, err
	}
	if err := l.verify(t.rank, t.size, lib.version+" ("+lib.path+")"); err != nil {
		return nil, err
	}
	t.grow(64)
	return t, nil
}

// grow makes room for n requests.
func (t *transport) grow(n int) {
	t.arrays.Unpin()
	requests := make([]byte, n*t.request)
	copy(requests, t.requests)
	t.requests = requests
	t.statuses = make([]byte, n*t.status)
	t.indices = make([]int32, n+1)
	t.arrays.Pin(&t.requests[0])
	t.arrays.Pin(&t.statuses[0])
	t.arrays.Pin(&t.indices[0])
}

// Rank implements exchange.Transport.
func (t *transport) Rank() int { return t.rank }

// Size implements exchange.Transport.
func (t *transport) Size() int { return t.size }

// Isend implements exchange.Transport.
func (t *transport) Isend(b []byte, peer int, tag exchange.Tag) (exchange.Request, error) {
	return t.begin("MPI_Isend", t.isend, b, peer, tag)
}

// Irecv implements exchange.Transport.
func (t *transport) Irecv(b []byte, peer int, tag exchange.Tag) (exchange.Request, error) {
	return t.begin("MPI_Irecv", t.irecv, b, peer, tag)
}

func (t *transport) begin(what string, f uintptr, b []byte, peer int, tag exchange.Tag) (exchange.Request, error) {
	n := len(t.entries)
	if n+1 > len(t.indices)-1 {
		t.grow(2 * n)
	}
	pin := t.pinner()
	pin.Pin(&b[0])
	code := call(f, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), t.bytes, uintptr(peer), uintptr(tag), t.world,
		uintptr(unsafe.Pointer(&t.requests[n*t.request])))
	if code != 0 {
		return 0, &exchange.PeerError{Rank: peer, Err: t.check(what, code)}
	}
	e := entry{number: t.number(), peer: peer, pin: pin}
	t.entries = append(t.entries, e)
	return e.number, nil
}

func (t *transport) pinner() *runtime.Pinner {
	if n := len(t.pins); n > 0 {
		p := t.pins[n-1]
		t.pins = t.pins[:n-1]
		return p
	}
	return new(runtime.Pinner)
}

func (t *transport) number() exchange.Request {
	if n := len(t.free); n > 0 {
		r := t.free[n-1]
		t.free = t.free[:n-1]
		return r
	}
	t.next++
	return t.next - 1
}

// Test implements exchange.Transport.
func (t *transport) Test(done []exchange.Request) ([]exchange.Request, error) {
	n := len(t.entries)
	if n == 0 {
		return done, nil
	}
	code := call(t.testsome, uintptr(n), uintptr(unsafe.Pointer(&t.requests[0])), uintptr(unsafe.Pointer(&t.indices[0])),
		uintptr(unsafe.Pointer(&t.indices[1])), uintptr(unsafe.Pointer(&t.statuses[0])))
	count := int(t.indices[0])
	if code != 0 && code != t.inStatus {
		return done, t.check("MPI_Testsome", code)
	}
	if count <= 0 { // none, or MPI_UNDEFINED
		return done, nil
	}
	var err error
	for k, i := range t.indices[1 : count+1] {
		e := &t.entries[i]
		if code == t.inStatus {
			if own := *(*int32)(unsafe.Pointer(&t.statuses[k*t.status+t.statusError])); own != 0 {
				err = &exchange.PeerError{Rank: e.peer, Err: t.check("MPI_Testsome", own)}
				t.failed = append(t.failed, *e) // the buffer stays where it is
				e.pin = nil
				continue
			}
		}
		done = append(done, e.number)
		t.free = append(t.free, e.number)
		e.pin.Unpin()
		t.pins = append(t.pins, e.pin)
		e.pin = nil
	}
	t.compact()
	return done, err
}

// compact takes the complete requests, which have no pin, out of the arrays.
func (t *transport) compact() {
	kept := 0
	for i, e := range t.entries {
		if e.pin == nil {
			continue
		}
		if kept != i {
			t.entries[kept] = e
			copy(t.requests[kept*t.request:(kept+1)*t.request], t.requests[i*t.request:])
		}
		kept++
	}
	clear(t.entries[kept:])
	t.entries = t.entries[:kept]
}

// Pauses, by how long nothing has come: first none at all, then a turn for whoever
// else wants the CPU, then sleeps of the system, which are far shorter than the
// runtime's.
const (
	spins    = 20
	yields   = 200
	shortNap = 20_000 // nanoseconds
	longNap  = 200_000
)

// Pause implements exchange.Transport.
func (t *transport) Pause(idle int) {
	switch {
	case idle < spins:
	case idle < spins+yields:
		syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	default:
		nap := syscall.Timespec{Nsec: min(longNap, shortNap*int64(1+(idle-spins-yields)/50))}
		syscall.Nanosleep(&nap, nil) // a signal may end it early
	}
}

// Cancel implements exchange.Transport. MPI cannot take back a message: the buffers
// stay pinned.
func (t *transport) Cancel() {}

// Close implements exchange.Transport. After a failure MPI cannot be finalised, since
// that waits for the other ranks: the process ends with Comm.Exit.
func (t *transport) Close(broken bool) error {
	if broken {
		return nil
	}
	close(t.finalizing)
	err := t.check("MPI_Finalize", call(t.finalize))
	t.arrays.Unpin()
	for _, e := range t.entries { // none, after an orderly end
		e.pin.Unpin()
	}
	return err
}
