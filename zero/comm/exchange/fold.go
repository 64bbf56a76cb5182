package exchange

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero/comm"
)

// folding receives the same segment from all ranks, chunk by chunk, and adds it up.
type folding struct {
	x      *exchange
	op     *comm.Op
	own    dtype.Buffer // this rank's own contribution
	size   int          // bytes of an element on the wire
	chunks int
	posted int
	folded int
	slots  [flights]slot
	xs     []dtype.Buffer // scratch
}

// slot is one chunk from every rank.
type slot struct {
	words   []uint64 // the memory, which is aligned for every format
	missing int
	got     []bool // by rank, for lacking
}

// foldChunk is the bytes of a chunk from one rank. All chunks that are under way
// take 16 MiB, unless there are very many ranks.
func foldChunk(size int) int {
	const most, least, budget = 512 << 10, 64 << 10, 16 << 20
	return min(most, max(least, budget/(flights*max(1, size-1))&^63))
}

func (f *folding) begin(x *exchange) {
	op := x.c.op
	f.x, f.op, f.own, f.size = x, op, x.c.share(x.rank), op.Send.DType.Size()
	f.chunks, f.posted, f.folded = chunks(f.own.Bytes(), foldChunk(x.size)), 0, 0
	x.pending += f.chunks
	if x.size == 1 && f.chunks > 0 {
		f.chunks, x.pending = 0, x.pending-f.chunks
		f.sum(nil, 0, f.own.Len())
	}
	if f.chunks > 0 && len(f.own.F32)+len(f.own.U16) > 0 && f.own.Bytes() <= inlineBytes {
		f.posted = 1 // put brings it
		f.slots[0].prepare(x, f.own.Bytes())
	}
}

// prepare makes room for n bytes from every rank.
func (s *slot) prepare(x *exchange, n int) {
	words := (n + 7) / 8
	if need := words * x.size; len(s.words) < need {
		s.words = make([]uint64, need)
	}
	s.missing = x.size - 1
	s.got = resized(s.got, x.size)
}

// part is where n bytes from a rank lie.
func (s *slot) part(r, n int) []byte {
	words := (n + 7) / 8
	return bytesOf(s.words[r*words : (r+1)*words])[:n]
}

// put takes a contribution that came with an announcement.
func (f *folding) put(r int, payload []byte) {
	s := &f.slots[0]
	copy(s.part(r, len(payload)), payload)
	s.got[r] = true
	s.missing--
}

// span is the elements of a chunk.
func (f *folding) span(chunk int) (lo, hi int) {
	n := foldChunk(f.x.size) / f.size
	return chunk * n, min(f.own.Len(), (chunk+1)*n)
}

// pump adds up the chunks that are there and receives more.
func (f *folding) pump() {
	if f.x == nil || f.chunks == 0 {
		return
	}
	for {
		f.receive()
		if f.folded == f.posted || f.x.err != nil {
			return
		}
		s := &f.slots[f.folded%flights]
		if s.missing > 0 {
			return
		}
		lo, hi := f.span(f.folded)
		f.sum(s, lo, hi)
		f.folded++
		f.x.pending--
	}
}

// receive posts chunks while there are free slots.
func (f *folding) receive() {
	for f.posted < f.chunks && f.posted < f.folded+flights {
		lo, hi := f.span(f.posted)
		s := &f.slots[f.posted%flights]
		n := (hi - lo) * f.size
		s.prepare(f.x, n)
		f.x.eachPeer(func(r int) { f.x.post(target{is: receiveData, peer: r, chunk: f.posted}, s.part(r, n)) })
		f.posted++
	}
}

func (f *folding) arrived(t target) {
	s := &f.slots[t.chunk%flights]
	s.got[t.peer] = true
	s.missing--
}

// sum adds elements [lo, hi) of every rank to the accumulator, in rank order.
func (f *folding) sum(s *slot, lo, hi int) {
	f.xs = f.xs[:0]
	for r := range f.x.size {
		if r == f.x.rank {
			f.xs = append(f.xs, f.own.Slice(lo, hi))
		} else {
			f.xs = append(f.xs, view(f.op.Send.DType, s.part(r, (hi-lo)*f.size)))
		}
	}
	kernel.Fold(f.op.Recv.Slice(lo, hi), f.xs)
	clear(f.xs)
}

// waitsFor reports whether a chunk of rank r is still to come.
func (f *folding) waitsFor(r int) bool {
	for c := f.folded; c < f.posted; c++ {
		if !f.slots[c%flights].got[r] {
			return true
		}
	}
	return false
}

func (f *folding) end() {
	f.x, f.op, f.own, f.chunks, f.posted, f.folded = nil, nil, dtype.Buffer{}, 0, 0, 0
}
