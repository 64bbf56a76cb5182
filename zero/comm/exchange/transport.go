package exchange

import "fmt"

// Tag separates the two kinds of messages between a pair of ranks. Messages of one
// tag arrive in the order in which they were sent.
type Tag int

// The tags.
const (
	Control Tag = 1 // announcements, goodbyes and what broke
	Data    Tag = 2 // parts of buffers
)

// Request is a message under way: a small number, used again after the message is
// complete.
type Request int

// Transport moves bytes between the ranks of a job. It is used by one goroutine,
// which is locked to its thread from before the transport is opened until it is
// closed.
type Transport interface {
	// Rank is this rank's number, 0 to Size()-1.
	Rank() int
	// Size is the number of ranks.
	Size() int
	// Isend begins to send b, of at least one byte, to peer, which is another
	// rank. b belongs to the transport until the request is complete.
	Isend(b []byte, peer int, tag Tag) (Request, error)
	// Irecv begins to receive peer's next message with the tag into b, which is
	// at least as long as the message and belongs to the transport until then.
	Irecv(b []byte, peer int, tag Tag) (Request, error)
	// Test appends the requests that are complete to done and returns it, at once.
	// A message that cannot be delivered is an error, a *PeerError where it is
	// known whose: then messages of other ranks may still be delivered.
	Test(done []Request) ([]Request, error)
	// Pause lets others have the CPU for a moment. idle counts the calls since the
	// last message or operation, from 1: the longer nothing has come, the longer
	// the pause, up to a fraction of a millisecond.
	Pause(idle int)
	// Cancel gives up all Data messages. A transport whose ranks share memory
	// touches the buffers no more; another may go on reading and writing them, and
	// keeps them alive.
	Cancel()
	// Close ends the use. broken says that the job has failed: there may be messages
	// that nobody will ever receive.
	Close(broken bool) error
}

// PeerError is the failure of the connection to a rank.
type PeerError struct {
	Rank int
	Err  error
}

// Error implements error.
func (e *PeerError) Error() string {
	return fmt.Sprintf("the connection to rank %d failed: %v", e.Rank, e.Err)
}

// Unwrap returns the reason.
func (e *PeerError) Unwrap() error { return e.Err }
