package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zerogap/zerogap/zero/comm"
)

const (
	// ahead is how many collectives are announced while the oldest one runs.
	ahead = 4
	// awake is how many pauses the worker takes before it sleeps until something is
	// started: the next collective often follows at once.
	awake = 50
	// tick is how often a sleeping worker looks for messages. Some transports make
	// progress only then.
	tick = 2 * time.Millisecond
)

// worker runs a rank's collectives on the transport. All of it belongs to the
// goroutine of run.
type worker struct {
	*End
	t      Transport
	peers  []peer // by rank; this rank's own is not used
	active []*collective
	seq    uint64 // of the collective started last
	x      exchange

	err  error // sticky
	by   int   // the rank that set err, or nobody
	dead bool  // the transport is of no more use

	targets  []target // by Request
	done     []Request
	came     []target // those of done
	outgoing int      // control messages that are being sent
	buffers  [][]byte
	idle     int
	taken    []*handle
	timer    *time.Timer
}

// peer is what is known of another rank.
type peer struct {
	inbox []letter // announcements that are ahead of this rank
	gone  bool     // it has said goodbye, or that it is broken
}

// letter is a message with the buffer that it is a view of.
type letter struct {
	message
	buf []byte
}

// target is what becomes of a message when its request is complete.
type target struct {
	is    purpose
	peer  int
	chunk int
	buf   []byte // of control messages
}

type purpose uint8

const (
	sendControl purpose = iota
	receiveControl
	sendData
	receiveData
)

func newWorker(e *End, t Transport) *worker {
	w := &worker{End: e, t: t, peers: make([]peer, e.size), timer: time.NewTimer(time.Hour)}
	w.x.worker = w
	return w
}

// run works until the communicator is closed, and closes the transport.
func (w *worker) run() error {
	defer w.timer.Stop()
	w.eachPeer(w.listen)
	for {
		closing := w.round()
		if closing && len(w.active) == 0 {
			return w.leave()
		}
		w.rest()
	}
}

// round does all that can be done at once.
func (w *worker) round() (closing bool) {
	w.taken, closing = w.admit(w.taken[:0])
	w.poll()
	if closing && w.err == nil && len(w.active) > 0 {
		w.poison(w.rank, &comm.RankError{Rank: w.rank, Err: errLeft})
	}
	for w.err == nil && len(w.active) > 0 {
		w.announce()
		if w.err != nil || !w.x.advance() {
			break
		}
		w.idle = 0
		w.pop()
	}
	if len(w.active) == 0 {
		for _, f := range w.takeCalls() {
			f()
		}
	}
	return closing
}

// admit takes over what has been started and asked for.
func (w *worker) admit(to []*handle) (taken []*handle, closing bool) {
	taken, cause, closing := w.take(to)
	if cause != nil {
		w.poison(w.rank, &comm.RankError{Rank: w.rank, Err: cause})
	}
	for _, h := range taken {
		w.idle = 0
		if w.err != nil {
			h.finish(w.explain(h.op))
			continue
		}
		w.seq++
		w.active = append(w.active, &collective{handle: h, seq: w.seq, form: h.op.Form()})
	}
	clear(taken)
	return taken, closing
}

// announce tells the peers of the oldest collective and of some after it.
func (w *worker) announce() {
	for i, c := range w.active[:min(ahead, len(w.active))] {
		if c.announced {
			continue
		}
		err := c.op.Check(w.rank, w.size)
		if err == nil && context.Cause(c.ctx) != nil {
			err = fmt.Errorf("%v: %w", c.op, context.Cause(c.ctx))
		}
		switch {
		case err == nil:
			c.hash = hashBounds(c.form.Bounds)
			c.announced = true
			w.sendAnnouncement(c)
		case i == 0:
			w.poison(w.rank, &comm.RankError{Rank: w.rank, Err: err})
			return
		default:
			return // its error waits for its turn
		}
	}
}

// pop ends the oldest collective.
func (w *worker) pop() {
	w.active[0].finish(nil)
	n := copy(w.active, w.active[1:])
	w.active[n] = nil
	w.active = w.active[:n]
}

// poll takes in the messages that have come or gone.
func (w *worker) poll() {
	if w.dead {
		return
	}
	var err error
	w.done, err = w.t.Test(w.done[:0])
	if err != nil {
		w.lose(err)
	}
	w.came = w.came[:0]
	for _, r := range w.done { // before any number is used again
		w.came = append(w.came, w.targets[r])
		w.targets[r] = target{}
	}
	for _, t := range w.came {
		w.idle = 0
		switch t.is {
		case sendControl:
			w.outgoing--
			w.buffers = append(w.buffers, t.buf)
		case receiveControl:
			w.receive(t.peer, t.buf)
		default:
			w.x.moved(t)
		}
	}
}

// lose takes in an error of the transport. Through the first one about a single rank
// the others can perhaps still be told; after any other it is given up.
func (w *worker) lose(err error) {
	var p *PeerError
	if errors.As(err, &p) && w.err == nil {
		w.poison(p.Rank, &comm.RankError{Rank: p.Rank, Err: &told{fmt.Sprintf("rank %d lost its connection: %v", w.rank, p.Err), true}})
		return
	}
	w.dead, w.outgoing = true, 0
	w.poison(w.rank, &comm.RankError{Rank: w.rank, Err: &told{err.Error(), true}})
}

// receive takes in a control message and listens for the next one.
func (w *worker) receive(rank int, buf []byte) {
	p := &w.peers[rank]
	m, err := decode(buf)
	if err != nil {
		w.poison(rank, &comm.RankError{Rank: rank, Err: err})
		return
	}
	switch m.kind {
	case announcement:
		p.inbox = append(p.inbox, letter{m, buf})
	case abortion:
		w.accept(m.cause())
	case goodbye:
		p.gone = true
	}
	if m.kind != announcement {
		w.buffers = append(w.buffers, buf)
	}
	if m.kind != goodbye { // which is the last one
		w.listen(rank)
	}
}

// eachPeer calls f for every other rank, the next one first, so that not all ranks
// turn to the same one.
func (w *worker) eachPeer(f func(rank int)) {
	for i := 1; i < w.size; i++ {
		f((w.rank + i) % w.size)
	}
}

// listen waits for the next control message of a rank.
func (w *worker) listen(rank int) {
	buf := w.buffer()
	w.post(target{is: receiveControl, peer: rank, buf: buf}, buf)
}

// send sends a control message, of which it keeps the buffer.
func (w *worker) send(rank int, buf []byte) {
	if w.dead {
		return
	}
	w.outgoing++
	w.post(target{is: sendControl, peer: rank, buf: buf[:controlBytes]}, buf)
}

// post begins to send or receive b.
func (w *worker) post(t target, b []byte) {
	if w.dead {
		return
	}
	begin, tag := w.t.Isend, Data
	if t.is == receiveControl || t.is == receiveData {
		begin = w.t.Irecv
	}
	if t.is == sendControl || t.is == receiveControl {
		tag = Control
	}
	r, err := begin(b, t.peer, tag)
	if err != nil {
		w.lose(err)
		return
	}
	for int(r) >= len(w.targets) {
		w.targets = append(w.targets, target{})
	}
	w.targets[r] = t
}

// buffer returns room for a control message.
func (w *worker) buffer() []byte {
	if n := len(w.buffers); n > 0 {
		b := w.buffers[n-1]
		w.buffers = w.buffers[:n-1]
		return b
	}
	return make([]byte, controlBytes)
}

// rest waits for a moment: in the transport while there is something to expect
// from it, else for what is started next.
func (w *worker) rest() {
	w.idle++
	if len(w.active) > 0 || w.outgoing > 0 || w.idle < awake {
		w.t.Pause(w.idle)
		return
	}
	w.timer.Reset(tick)
	select {
	case <-w.wake:
		w.idle = 0
	case <-w.timer.C:
	}
}
