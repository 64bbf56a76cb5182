package fault

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/internal/kernel"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
)

// carrier is a route for gradients in which each piece can be wrong: where gradients
// lie in the buckets, what happens to a buffer on its way, and how contributions are
// added. Without a fault it gives the bits of the optimizer's own route. It is slow
// and plain: it collects the whole local gradient of a backward, and only at its end
// goes through the buckets that a real trainer would have sent meanwhile; every rank
// gets every rank's buckets, and takes from them what a real one would have taken.
type carrier struct {
	lab  *Lab
	desk zero.Desk
	now  moment // bucket is set where it counts
	plan *zero.Plan

	mu    sync.Mutex
	order []int     // parameters of this backward, as they became ready
	grads []float32 // by element; zero without a gradient

	buffers map[dtype.DType]*bufferPair // what real buffers would hold
	fold    folder
}

// fill is a bucket in its buffer, in order of its places.
type fill struct {
	bucket int
	at     zero.Interval // places, which are elements where the layout is right
	copied dtype.Buffer  // as it was filled
	sent   dtype.Buffer  // as it was reduced
	pieces []zero.Interval
	stale  []float32 // of the buffer behind the filled part, before this fill
}

// carries reports whether a fault needs the carrier.
func (l *Lab) carries() bool {
	return slices.ContainsFunc([]string{
		HookOrderLayout, ReuseInFlight, OversizeLifetime, PingpongReset, OneProducerWait, StaleTail, NotReadyShift,
		AccumDTypeIgnored, FP32CopyDiscarded, MicrostepOverwrite, LastMicrobatchLocal, RingOrder, PredivideLowPrecision,
	}, l.has)
}

func newCarrier(l *Lab, d zero.Desk) *carrier {
	c := &carrier{lab: l, desk: d, plan: d.Plan, grads: make([]float32, d.Plan.Elements), buffers: map[dtype.DType]*bufferPair{}}
	c.now.rank = d.Comm.Rank()
	c.fold = c.newFolder()
	return c
}

// Take implements zero.Route.
func (c *carrier) Take(_ context.Context, i int, at zero.Interval, grad []float32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = append(c.order, i)
	copy(c.grads[at.Lo:at.Hi], grad)
	return nil
}

// Rest implements zero.Route.
func (c *carrier) Rest(ctx context.Context) error {
	c.now.step, c.now.micro = c.desk.Signature().Step, c.desk.Micro()
	source := c.layout() // element at each place
	fills := c.fill(source)
	c.fly(fills)
	all, err := c.exchange(ctx, fills)
	if err != nil {
		return c.desk.Fail(fmt.Errorf("reducing the gradients: %w", err))
	}
	c.addUp(source, all)
	if err := c.addTails(ctx, fills); err != nil {
		return c.desk.Fail(fmt.Errorf("reducing the gradients: %w", err))
	}
	c.show(zero.LifeFold)
	c.order = c.order[:0]
	clear(c.grads)
	return nil
}

// fill copies the gradients into the buckets.
func (c *carrier) fill(source []int) []*fill {
	var all []*fill
	for b, iv := range c.plan.Buckets {
		f := &fill{bucket: b, at: iv, copied: dtype.Make(c.plan.Wire(b), iv.Len()), pieces: c.pieces(iv)}
		x := make([]float32, iv.Len())
		for j := range x {
			x[j] = c.grads[source[iv.Lo+j]]
		}
		c.scale(x)
		kernel.Round(f.copied, x)
		c.divideLow(f.copied)
		c.noteBad(f, source)
		f.stale = c.pairOf(b).put(f.copied)
		c.shift(f)
		right := dtype.Make(f.copied.DType, iv.Len())
		copy(x, c.grads[iv.Lo:iv.Hi])
		c.scale(x)
		kernel.Round(right, x)
		c.struck(zero.LifeCopy, iv.Len(), func(k int) int { return iv.Lo + k }, func(k int) bool { return !same(right.At(k), f.copied.At(k)) })
		c.look(zero.LifeCopy, f, f.copied)
		all = append(all, f)
	}
	return all
}

// pieces cuts a bucket at the borders of its parameters, in the order of filling: the
// last first.
func (c *carrier) pieces(iv zero.Interval) []zero.Interval {
	var all []zero.Interval
	for hi := iv.Hi; hi > iv.Lo; {
		_, at := c.plan.ParamAt(hi - 1)
		lo := max(iv.Lo, hi-1-at)
		all = append(all, zero.Interval{Lo: lo, Hi: hi})
		hi = lo
	}
	return all
}

// scale divides by what the configuration divides by before the sum.
func (c *carrier) scale(x []float32) {
	d := c.desk.Config.GradientPredivideFactor
	if c.desk.Config.PrescaleGradients {
		d = float64(c.plan.World)
	}
	if d == 1 {
		return
	}
	for i, v := range x {
		x[i] = float32(float64(v) / d)
	}
}

// divideLow is predivide-low-precision: another division, of what is rounded already,
// that is rounded again.
func (c *carrier) divideLow(b dtype.Buffer) {
	if !c.lab.has(PredivideLowPrecision) {
		return
	}
	for i := range b.Len() {
		set(b, i, float32(b.At(i))/float32(c.plan.World))
	}
}

// noteBad tells the optimizer of the first gradient that is not finite.
func (c *carrier) noteBad(f *fill, source []int) {
	first := -1
	for j := range f.copied.Len() {
		if v := f.copied.At(j); v-v != 0 {
			if e := source[f.at.Lo+j]; first < 0 || e < first {
				first = e
			}
		}
	}
	c.desk.NonFinite(first)
}

// set writes v, rounded, into b.
func set(b dtype.Buffer, i int, v float32) {
	if b.DType == dtype.F32 {
		b.F32[i] = v
		return
	}
	b.U16[i] = dtype.FromFloat32(b.DType, v)
}

// exchange returns, by rank, what each sent, by place.
func (c *carrier) exchange(ctx context.Context, fills []*fill) ([][]float32, error) {
	mine := make([]float32, c.plan.Elements)
	for _, f := range fills {
		c.look(zero.LifeWire, f, f.sent)
		kernel.Widen(mine[f.at.Lo:f.at.Hi], f.sent)
	}
	return gather(ctx, c.desk, "buckets of the laboratory", mine)
}

// gather returns every rank's x.
func gather(ctx context.Context, d zero.Desk, name string, x []float32) ([][]float32, error) {
	n, world := len(x), d.Plan.World
	bounds, all := make([]int, world+1), dtype.Make(dtype.F32, n*world)
	for r := range bounds {
		bounds[r] = r * n
	}
	sig := d.Signature()
	sig.Name, sig.Bucket = name, -1
	err := comm.Do(ctx, d.Comm, &comm.Op{Kind: comm.AllGather, Sig: sig, Bounds: bounds, Send: dtype.OfFloat32(x), Recv: all})
	if err != nil {
		return nil, err
	}
	by := make([][]float32, world)
	for r := range by {
		by[r] = all.F32[r*n : (r+1)*n]
	}
	return by, nil
}

// addUp folds what all ranks sent into the accumulators of this rank's elements, each
// from the place where this rank believes it to be.
func (c *carrier) addUp(source []int, all [][]float32) {
	place := make([]int, len(source))
	for p, e := range source {
		place[e] = p
	}
	c.desk.Region.Each(zero.Interval{Lo: 0, Hi: c.plan.Elements}, func(run zero.Interval, at int) {
		for _, b := range c.plan.Buckets {
			lo, hi := max(b.Lo, run.Lo), min(b.Hi, run.Hi)
			if lo >= hi {
				continue
			}
			xs := make([][]float32, len(all))
			for r := range all {
				xs[r] = make([]float32, hi-lo)
				for k := range xs[r] {
					xs[r][k] = all[r][place[lo+k]]
				}
			}
			acc := c.desk.Sums.Slice(at+lo-run.Lo, at+hi-run.Lo)
			right := dtype.Make(acc.DType, acc.Len())
			right.Copy(acc)
			inOrder(right, xs)
			c.fold.run(acc, xs, span{bucket: b, places: place[lo:hi], micro: c.now.micro, rank: c.now.rank, wire: c.wireAt(lo)})
			c.struck(zero.LifeFold, hi-lo, func(k int) int { return lo + k }, func(k int) bool { return !same(right.At(k), acc.At(k)) })
		}
	})
}

// wireAt returns the wire format of an element.
func (c *carrier) wireAt(element int) dtype.DType {
	for b, iv := range c.plan.Buckets {
		if element >= iv.Lo && element < iv.Hi {
			return c.plan.Wire(b)
		}
	}
	panic(fmt.Sprintf("fault: element %d is in no bucket", element))
}

// look shows a bucket.
func (c *carrier) look(l zero.Life, f *fill, values dtype.Buffer) {
	if c.desk.Probe != nil {
		c.desk.Probe(zero.Sight{Life: l, Step: c.now.step, Micro: c.now.micro, Rank: c.now.rank, Bucket: f.bucket, Elements: f.at, Values: values})
	}
}

// show shows the accumulators of this rank's partition.
func (c *carrier) show(l zero.Life) {
	if c.desk.Probe == nil {
		return
	}
	for b, iv := range c.plan.Buckets {
		c.plan.Owned(c.now.rank).Each(iv, func(run zero.Interval, _ int) {
			part := c.desk.Region.Within(run)
			c.desk.Probe(zero.Sight{Life: l, Step: c.now.step, Micro: c.now.micro, Rank: c.now.rank, Bucket: b, Elements: run, Values: c.desk.Sums.Slice(part.Lo, part.Hi)})
		})
	}
}
