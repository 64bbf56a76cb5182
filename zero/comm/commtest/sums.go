package commtest

import (
	"context"
	"fmt"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// sizes are numbers of elements about the borders at which an engine may change its
// way of working, and none at all.
var sizes = []int{0, 1, 2, 3, 511, 512, 513, 1023, 1024, 1025, 4097, 131071, 131072, 131073, 262145, 1<<20 + 7, 1 << 24}

// large is the number of elements beyond which not every case is tried.
const large = 1 << 21

var cuts = []struct {
	name string
	cut  func(n, world int) []int
}{{"even", even}, {"uneven", uneven}, {"lopsided", lopsided}}

// sums are the cases of reduce-scatter and all-reduce.
func sums() []Case {
	var all []Case
	sent := []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}
	for _, d := range sent {
		for _, acc := range sent {
			if d != acc && d != dtype.F32 && acc != dtype.F32 {
				continue // bf16 and fp16 are never mixed
			}
			all = append(all, Case{
				Name: fmt.Sprintf("sum of %s in %s", d, acc),
				Rank: func(c comm.Communicator, o Options) error { return sumSizes(c, o, d, acc) },
			})
		}
	}
	return append(all, Case{Name: "order of the sum", Rank: sumOrder})
}

func sumSizes(c comm.Communicator, o Options, d, acc dtype.DType) error {
	for k, n := range sizes {
		if n*d.Size() > o.MaxBytes {
			break
		}
		if err := sum(c, comm.AllReduce, k, n, nil, d, acc); err != nil {
			return err
		}
		for _, cut := range cuts {
			if n > large && cut.name != "even" {
				continue
			}
			if err := sum(c, comm.ReduceScatter, k, n, cut.cut(n, c.Size()), d, acc); err != nil {
				return fmt.Errorf("%s segments: %w", cut.name, err)
			}
		}
	}
	return nil
}

// sum runs one collective and checks every bit.
func sum(c comm.Communicator, kind comm.Kind, seed, n int, bounds []int, d, acc dtype.DType) error {
	if kind == comm.AllReduce && n > large {
		return nil // every rank would be sent all of it
	}
	lo, hi := 0, n
	if bounds != nil {
		lo, hi = bounds[c.Rank()], bounds[c.Rank()+1]
	}
	op := &comm.Op{Kind: kind, Sig: sig("sum", seed), Bounds: bounds, Send: dtype.Make(d, n), Recv: dtype.Make(acc, hi-lo)}
	fill(op.Send, seed, c.Rank(), 0)
	fill(op.Recv, seed, -1, lo)
	if err := comm.Do(context.Background(), c, op); err != nil {
		return err
	}
	if err := isSum(op.Recv, d, seed, c.Size(), lo); err != nil {
		return fmt.Errorf("%v of %d elements: %w", op, n, err)
	}
	if err := isSent(op.Send, seed, c.Rank(), 0); err != nil {
		return fmt.Errorf("%v: the sent buffer has changed: %w", op, err)
	}
	return nil
}

// sumOrder: 256 + 1 + 1 + ... in bf16 stays 256 when the large value comes first,
// and is exact when it comes last.
func sumOrder(c comm.Communicator, _ Options) error {
	world := c.Size()
	for _, large := range []int{0, world - 1} {
		op := &comm.Op{Kind: comm.AllReduce, Sig: sig("order", large), Send: dtype.Make(dtype.BF16, 5), Recv: dtype.Make(dtype.BF16, 5)}
		for i := range 5 {
			set(op.Send, i, 1)
			if c.Rank() == large {
				set(op.Send, i, 256)
			}
		}
		if err := comm.Do(context.Background(), c, op); err != nil {
			return err
		}
		want := float32(256)
		if large > 0 {
			want = rounded(dtype.BF16, float32(255+world))
		}
		if got := op.Recv.At(4); got != float64(want) {
			return fmt.Errorf("256 from rank %d of %d and 1 from the others: %v, want %v", large, world, got, want)
		}
	}
	return nil
}
