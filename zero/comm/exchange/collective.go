package exchange

import (
	"context"
	"fmt"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// collective is one that has been started.
type collective struct {
	*handle
	seq       uint64
	form      comm.Form
	hash      uint64 // of the bounds
	announced bool
}

// exchange is the collective that runs: the oldest one. Its memory serves one after
// the other.
type exchange struct {
	*worker
	c       *collective
	since   time.Time // when it began, or last heard of a peer
	heard   []bool    // by rank: its announcement has come
	unheard int
	moving  bool // all have come

	out     []stream // by rank: what it is sent
	in      []stream // by rank: what comes from it, into its place
	pending int      // messages under way and to come
	fold    folding
}

// stream is a part of a buffer that goes to a rank or comes from it, in chunks.
type stream struct {
	bytes   []byte
	posted  int // bytes
	flights int // messages under way
}

// flights is how many chunks are under way between two ranks: one that arrives and
// one that is ready to.
const flights = 2

// gatherChunk is the chunk of data that is received into its place.
const gatherChunk = 1 << 20

// advance does what can be done for the oldest collective and reports whether it is
// complete.
func (x *exchange) advance() bool {
	if x.c != x.active[0] {
		x.begin(x.active[0])
	}
	if !x.moving && !x.hear() {
		x.watch()
		return false
	}
	x.pump()
	if x.err != nil || x.pending > 0 {
		x.watch()
		return false
	}
	x.end()
	return true
}

// begin turns to the next collective.
func (x *exchange) begin(c *collective) {
	x.c, x.since, x.moving, x.unheard = c, time.Now(), false, x.size-1
	x.heard = resized(x.heard, x.size)
	x.out, x.in = resized(x.out, x.size), resized(x.in, x.size)
	x.pending = 0
}

func resized[T any](s []T, n int) []T {
	if len(s) != n {
		return make([]T, n)
	}
	clear(s)
	return s
}

// hear takes the peers' announcements and reports whether all have come.
func (x *exchange) hear() bool {
	for r := range x.peers {
		p := &x.peers[r]
		if r == x.rank || x.heard[r] {
			continue
		}
		if len(p.inbox) == 0 {
			if p.gone {
				x.poison(r, &comm.RankError{Rank: r, Err: fmt.Errorf("closed its communicator before %v", x.c.op)})
				return false
			}
			continue
		}
		if !x.agree(r, &p.inbox[0]) {
			return false
		}
		x.heard[r] = true
		x.unheard--
		x.since = time.Now()
	}
	if x.unheard > 0 {
		return false
	}
	x.open()
	return x.err == nil
}

// agree compares a peer's announcement with this rank's collective.
func (x *exchange) agree(r int, l *letter) bool {
	d := l.differ(r, x.rank, x.c.form, x.c.hash)
	if d == "" && l.seq != x.c.seq {
		d = fmt.Sprintf("rank %d is at collective number %d, rank %d at %d: a message was lost", r, l.seq, x.rank, x.c.seq)
	}
	if d == "" {
		if size := x.segment(r); size > inlineBytes && len(l.payload) > 0 || size <= inlineBytes && len(l.payload) != size {
			d = fmt.Sprintf("rank %d sends %d bytes with %v, rank %d wants %d", r, len(l.payload), x.c.op, x.rank, size)
		}
	}
	if d != "" {
		x.poison(nobody, fmt.Errorf("ranks run different collectives: %s", d))
		return false
	}
	return true
}

// segment is how many bytes rank r sends to this one.
func (x *exchange) segment(r int) int {
	op := x.c.op
	switch op.Kind {
	case comm.ReduceScatter, comm.AllReduce:
		return op.Recv.Len() * op.Send.DType.Size()
	case comm.AllGather:
		return (op.Bounds[r+1] - op.Bounds[r]) * op.Send.DType.Size()
	}
	return 0
}

// share is what this rank sends to rank r.
func (c *collective) share(r int) dtype.Buffer {
	switch c.op.Kind {
	case comm.ReduceScatter:
		return c.op.Send.Slice(c.op.Bounds[r], c.op.Bounds[r+1])
	case comm.AllReduce, comm.AllGather:
		return c.op.Send
	}
	return dtype.Buffer{}
}

// open begins to move data. All ranks have come.
func (x *exchange) open() {
	x.moving = true
	op := x.c.op
	sums := op.Kind == comm.ReduceScatter || op.Kind == comm.AllReduce
	if sums {
		x.fold.begin(x)
	}
	for r := range x.peers {
		if r == x.rank {
			continue
		}
		l := x.peers[r].inbox[0]
		switch {
		case len(l.payload) == 0:
		case sums:
			x.fold.put(r, l.payload)
		default:
			copy(raw(op.Recv.Slice(op.Bounds[r], op.Bounds[r+1])), l.payload)
		}
		x.consume(r)
		x.out[r].bytes = notInline(raw(x.c.share(r)))
		if op.Kind == comm.AllGather {
			x.in[r].bytes = notInline(raw(op.Recv.Slice(op.Bounds[r], op.Bounds[r+1])))
		}
		for _, s := range []*stream{&x.out[r], &x.in[r]} {
			x.pending += chunks(len(s.bytes), x.chunk())
		}
	}
	if op.Kind == comm.AllGather {
		if own := op.Recv.Slice(op.Bounds[x.rank], op.Bounds[x.rank+1]); own.Len() > 0 && !same(own, op.Send) {
			own.Copy(op.Send)
		}
	}
}

// consume lets go of a peer's announcement.
func (x *exchange) consume(r int) {
	p := &x.peers[r]
	x.buffers = append(x.buffers, p.inbox[0].buf)
	n := copy(p.inbox, p.inbox[1:])
	p.inbox[n] = letter{}
	p.inbox = p.inbox[:n]
}

// notInline returns b where it is too long for an announcement.
func notInline(b []byte) []byte {
	if len(b) <= inlineBytes {
		return nil
	}
	return b
}

func chunks(n, chunk int) int { return (n + chunk - 1) / chunk }

// chunk is the bytes of a chunk, the same on all ranks.
func (x *exchange) chunk() int {
	if x.c.op.Kind == comm.AllGather {
		return gatherChunk
	}
	return foldChunk(x.size)
}

// pump keeps messages under way.
func (x *exchange) pump() {
	x.fold.pump()
	x.eachPeer(func(r int) {
		x.feed(&x.in[r], target{is: receiveData, peer: r})
		x.feed(&x.out[r], target{is: sendData, peer: r})
	})
}

func (x *exchange) feed(s *stream, t target) {
	for s.flights < flights && s.posted < len(s.bytes) && x.err == nil {
		end := min(len(s.bytes), s.posted+x.chunk())
		b := s.bytes[s.posted:end]
		s.posted = end
		s.flights++
		x.post(t, b)
	}
}

// moved counts a message of data that is complete.
func (x *exchange) moved(t target) {
	if x.err != nil {
		return
	}
	x.since = time.Now()
	switch {
	case t.is == sendData:
		x.out[t.peer].flights--
		x.pending--
	case x.c.op.Kind == comm.AllGather:
		x.in[t.peer].flights--
		x.pending--
	default:
		x.fold.arrived(t)
	}
}

// end lets go of the caller's memory.
func (x *exchange) end() {
	x.c = nil
	clear(x.out)
	clear(x.in)
	x.fold.end()
	if x.waiting.Load() != nil {
		x.waiting.Store(nil)
	}
}

// patience is after how long a wait is worth telling.
const patience = 200 * time.Millisecond

// watch breaks a collective that takes too long, or whose context has ended.
func (x *exchange) watch() {
	if x.err != nil {
		return
	}
	select {
	case <-x.c.ctx.Done():
		x.poison(x.rank, &comm.RankError{Rank: x.rank, Err: fmt.Errorf("%v: %w", x.c.op, context.Cause(x.c.ctx))})
		return
	default:
	}
	if x.idle%16 != 15 { // the clock is not for every round
		return
	}
	waited := time.Since(x.since)
	switch {
	case waited >= x.opts.Timeout:
		x.poison(x.rank, fmt.Errorf("%v: rank %d waited %v for %s: %w", x.c.op, x.rank, x.opts.Timeout, x.lacking(), ErrLost))
	case waited >= patience && x.waiting.Load() == nil:
		s := fmt.Sprintf("%v, for %s", x.c.op, x.lacking())
		x.waiting.Store(&s)
	}
}

// lacking says what the collective waits for.
func (x *exchange) lacking() string {
	if !x.moving {
		return x.missing(func(r int) bool { return !x.heard[r] }) + ", which did not come"
	}
	if late := x.missing(func(r int) bool { return x.in[r].flights > 0 || x.fold.waitsFor(r) }); late != "" {
		return "data of " + late
	}
	return x.missing(func(r int) bool { return x.out[r].flights > 0 }) + " to take its data"
}

// sendAnnouncement tells every peer of a collective, with the data that is short.
func (w *worker) sendAnnouncement(c *collective) {
	head := appendAnnouncement(w.buffer()[:0], c.seq, c.form)
	w.eachPeer(func(r int) {
		b := append(w.buffer()[:0], head...)
		payload := raw(c.share(r))
		if len(payload) > inlineBytes {
			payload = nil
		}
		w.send(r, appendPayload(b, payload))
	})
	w.buffers = append(w.buffers, head[:controlBytes])
}
