package commtest

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// gathers are the cases of all-gather and of what is made of it.
func gathers() []Case {
	var all []Case
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16, dtype.F64} {
		all = append(all, Case{
			Name: fmt.Sprintf("gather of %s", d),
			Rank: func(c comm.Communicator, o Options) error { return gatherSizes(c, o, d) },
		})
	}
	return append(all, Case{Name: "gather of bits", Rank: gatherBits}, Case{Name: "texts", Rank: texts})
}

func gatherSizes(c comm.Communicator, o Options, d dtype.DType) error {
	for k, n := range sizes {
		if n*d.Size() > o.MaxBytes {
			break
		}
		for _, cut := range cuts {
			for _, inPlace := range []bool{false, true} {
				if n > large && (inPlace || cut.name != "even") {
					continue
				}
				if err := gather(c, k, n, cut.cut(n, c.Size()), d, inPlace); err != nil {
					return fmt.Errorf("%s segments of %d elements, in place %v: %w", cut.name, n, inPlace, err)
				}
			}
		}
	}
	return nil
}

func gather(c comm.Communicator, seed, n int, bounds []int, d dtype.DType, inPlace bool) error {
	lo, hi := bounds[c.Rank()], bounds[c.Rank()+1]
	op := &comm.Op{Kind: comm.AllGather, Sig: sig("gather", seed), Bounds: bounds, Recv: dtype.Make(d, n)}
	if op.Send = op.Recv.Slice(lo, hi); !inPlace {
		op.Send = dtype.Make(d, hi-lo)
	}
	fill(op.Send, seed, c.Rank(), lo)
	if err := comm.Do(context.Background(), c, op); err != nil {
		return err
	}
	for r := range c.Size() {
		if err := isSent(op.Recv.Slice(bounds[r], bounds[r+1]), seed, r, bounds[r]); err != nil {
			return fmt.Errorf("segment of rank %d: %w", r, err)
		}
	}
	return nil
}

// gatherBits: the bits of signalling NaNs, infinities and negative zero arrive.
func gatherBits(c comm.Communicator, _ Options) error {
	patterns := []uint32{0x7fa00001, 0xffc12345, 0x7f800000, 0x80000000, 1}
	n, world := len(patterns), c.Size()
	op := &comm.Op{Kind: comm.AllGather, Sig: sig("bits", 0), Bounds: even(n*world, world), Send: dtype.Make(dtype.F32, n), Recv: dtype.Make(dtype.F32, n*world)}
	for i, p := range patterns {
		op.Send.F32[i] = math.Float32frombits(p ^ uint32(c.Rank()<<8))
	}
	if err := comm.Do(context.Background(), c, op); err != nil {
		return err
	}
	for i, v := range op.Recv.F32 {
		if got, want := math.Float32bits(v), patterns[i%n]^uint32(i/n<<8); got != want {
			return fmt.Errorf("element %d has bits %x, want %x", i, got, want)
		}
	}
	return nil
}

func texts(c comm.Communicator, _ Options) error {
	text := func(r int) string { return strings.Repeat("né", 100*r) }
	got, err := comm.Texts(context.Background(), c, "texts", text(c.Rank()))
	if err != nil {
		return err
	}
	for r, s := range got {
		if s != text(r) {
			return fmt.Errorf("text of rank %d is %q", r, s)
		}
	}
	return nil
}
