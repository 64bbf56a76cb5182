package zero

import (
	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero/comm"
)

// This file writes gradients into bucket buffers: straight from a backward, or in
// "local" order from the sums of a rank's own micro-batches.

// layPlaces finds where elements lie in the buckets' buffers. A bucket that goes
// to its owners in a reduce-scatter is in order of their numbers; that is the
// order of the elements, and needs no table, unless parameters were dealt out.
func (g *gradients) layPlaces() {
	if g.plan.ordered || g.plan.reduction() != comm.ReduceScatter {
		return
	}
	g.places = make([][]place, len(g.plan.Buckets))
	for b, iv := range g.plan.Buckets {
		g.places[b] = g.plan.places(iv)
	}
}

// write puts the gradient x of piece, rounded once to the wire format, into its
// places in the buffer of bucket b; nil is the local sum in "local" order, which
// becomes zero, and zeros otherwise. It returns the first element that is Inf or
// NaN, -1 when there is none.
func (g *gradients) write(b int, buf dtype.Buffer, piece Interval, x []float32) (bad int) {
	if g.places == nil {
		at := piece.Lo - g.plan.Buckets[b].Lo
		return g.writeRun(buf.Slice(at, at+piece.Len()), piece, x)
	}
	bad = -1
	for _, p := range g.places[b] {
		iv := piece.intersect(p.Interval)
		if iv.Len() == 0 {
			continue
		}
		at := p.at + iv.Lo - p.Lo
		part := x
		if x != nil {
			part = x[iv.Lo-piece.Lo : iv.Hi-piece.Lo]
		}
		if i := g.writeRun(buf.Slice(at, at+iv.Len()), iv, part); i >= 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (g *gradients) writeRun(dst dtype.Buffer, iv Interval, x []float32) (bad int) {
	switch {
	case g.plan.local():
		g.takeSums(dst, iv)
	case x == nil:
		dst.Clear()
		return -1
	case g.predivisor == 1:
		if i := roundFinite(dst, x); i >= 0 {
			return iv.Lo + i
		}
		return -1
	default:
		g.prescaled(dst, func(part []float32, at int) { copy(part, x[at:]) })
	}
	if i := firstNonFinite(dst); i >= 0 {
		return iv.Lo + i
	}
	return -1
}

// takeSums moves the local sums of iv into dst.
func (g *gradients) takeSums(dst dtype.Buffer, iv Interval) {
	sums := g.sums.Slice(iv.Lo, iv.Hi)
	if g.predivisor == 1 && sums.DType == dst.DType {
		dst.Copy(sums)
	} else {
		g.prescaled(dst, func(part []float32, at int) { kernel.Widen(part, sums.Slice(at, at+len(part))) })
	}
	sums.Clear()
}

// prescaled writes what read gives into dst, divided by what has to be divided by
// before the sum over ranks.
func (g *gradients) prescaled(dst dtype.Buffer, read func(part []float32, at int)) {
	scratch := g.shard.borrow()
	defer g.shard.giveBack(scratch)
	for at := 0; at < dst.Len(); at += chunk {
		part := scratch[:min(chunk, dst.Len()-at)]
		read(part, at)
		divide(part, g.predivisor)
		kernel.Round(dst.Slice(at, at+len(part)), part)
	}
}

// addLocal adds the gradient of a parameter to this rank's own sums.
func (g *gradients) addLocal(s span, x []float32) {
	kernel.Fold(g.sums.Slice(s.Lo, s.Hi), []dtype.Buffer{dtype.OfFloat32(x)})
}
