package fault

import (
	"context"
	"math"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
)

// fly decides what becomes of each bucket between copy and reduction.
func (c *carrier) fly(fills []*fill) {
	overlap := c.desk.Config.ZeroOptimization.OverlapComm
	for k, f := range fills {
		f.sent = dtype.Make(f.copied.DType, f.copied.Len())
		f.sent.Copy(f.copied)
		c.now.bucket = f.bucket
		if overlap && c.lab.has(ReuseInFlight) {
			c.overwrite(ReuseInFlight, f, fills, k+2)
		}
		if overlap && c.lab.has(PingpongReset) {
			c.overwrite(PingpongReset, f, fills, k+1)
		}
		if c.lab.has(OneProducerWait) {
			c.halfFilled(f)
		}
		if overlap && c.lab.has(OversizeLifetime) && c.oversize(f.at) {
			c.released(f)
		}
		c.struck(zero.LifeWire, f.at.Len(), func(k int) int { return f.at.Lo + k }, func(k int) bool { return !same(f.copied.At(k), f.sent.At(k)) })
	}
}

// overwrite lets a later fill of the same buffer overtake the reduction: what was not
// yet sent is sent as that fill has written it.
func (c *carrier) overwrite(name string, f *fill, fills []*fill, later int) {
	if later >= len(fills) || fills[later].copied.DType != f.copied.DType {
		return
	}
	done, ok := c.lab.overtaken(c.lab.draw(name, c.now), f.at.Len())
	if !ok {
		return
	}
	over := fills[later].copied
	for j := done; j < min(f.at.Len(), over.Len()); j++ {
		set(f.sent, j, float32(over.At(j)))
	}
}

// halfFilled lets the reduction wait for the producer of the last gradient alone. Two
// producers take the gradients by turns; the other's may have copied only a part by
// then, and what was in the buffer before is sent in place of the rest.
func (c *carrier) halfFilled(f *fill) {
	r := c.lab.draw(OneProducerWait, c.now)
	for k := len(f.pieces) - 2; k >= 0; k -= 2 {
		p := f.pieces[k]
		done, ok := c.lab.overtaken(r, p.Len())
		if !ok {
			continue
		}
		for e := p.Lo + done; e < p.Hi; e++ {
			set(f.sent, e-f.at.Lo, f.stale[e-f.at.Lo])
		}
	}
}

// released lets the memory of a gradient be written by others while it is being sent:
// by fp32 numbers around 1, which a 16-bit format reads as two numbers each, one of
// them from bits that mean nothing.
func (c *carrier) released(f *fill) {
	r := c.lab.draw(OversizeLifetime, c.now)
	done, ok := c.lab.overtaken(r, f.at.Len())
	if !ok {
		return
	}
	for j := done; j < f.at.Len(); j++ {
		bits := math.Float32bits(float32(r.NormFloat64()))
		switch {
		case f.sent.DType == dtype.F32:
			f.sent.F32[j] = math.Float32frombits(bits)
		case j%2 == 0:
			f.sent.U16[j] = uint16(bits)
		default:
			f.sent.U16[j] = uint16(bits >> 16)
		}
	}
}

// addTails is stale-tail: what an earlier fill has left behind the filled part of each
// buffer is reduced too, and added to the elements that follow the bucket's.
func (c *carrier) addTails(ctx context.Context, fills []*fill) error {
	if !c.lab.has(StaleTail) {
		return nil
	}
	tails := make([]float32, c.plan.Elements)
	for _, f := range fills {
		for k := f.at.Len(); k < len(f.stale) && f.at.Lo+k < len(tails); k++ {
			tails[f.at.Lo+k] += f.stale[k]
		}
	}
	all, err := gather(ctx, c.desk, "tails of the laboratory", tails)
	if err != nil {
		return err
	}
	c.struck(zero.LifeFold, len(tails), func(k int) int { return k }, func(k int) bool {
		for _, x := range all {
			if x[k] != 0 {
				return true
			}
		}
		return false
	})
	c.desk.Region.Each(zero.Interval{Lo: 0, Hi: len(tails)}, func(run zero.Interval, at int) {
		for e := run.Lo; e < run.Hi; e++ {
			for _, x := range all {
				if x[e] != 0 {
					i := at + e - run.Lo
					set(c.desk.Sums, i, float32(c.desk.Sums.At(i))+x[e])
				}
			}
		}
	})
	return nil
}
