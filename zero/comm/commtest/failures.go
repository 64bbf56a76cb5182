package commtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// failures are the cases that break their communicator.
func failures() []Case {
	return append(mismatches(), leaves()...)
}

// mismatches: ranks that do not run the same collective all get an error that names
// them and both sides, and every later operation gets it too.
func mismatches() []Case {
	var all []Case
	for _, m := range []struct {
		name   string
		change func(*comm.Op)
		want   []string
	}{
		{"kind", func(op *comm.Op) { *op = comm.Op{Kind: comm.Barrier, Sig: op.Sig} }, []string{"reduce-scatter", "barrier"}},
		{"name", func(op *comm.Op) { op.Sig.Name = "weights" }, []string{"gradient bucket", "weights"}},
		{"step", func(op *comm.Op) { op.Sig.Step = 2 }, []string{"step 1", "step 2"}},
		{"bucket", func(op *comm.Op) { op.Sig.Bucket = 4 }, []string{"bucket 3", "bucket 4"}},
		{"layout", func(op *comm.Op) { op.Sig.Layout = 8 }, []string{"layout hash", "0000000000000007", "0000000000000008"}},
		{"sent format", func(op *comm.Op) { op.Send = dtype.Make(dtype.F16, op.Send.Len()) }, []string{"sent format", "bf16", "fp16"}},
		{"received format", func(op *comm.Op) { op.Recv = dtype.Make(dtype.BF16, op.Recv.Len()) }, []string{"received format", "bf16", "fp32"}},
		{"ill-formed", func(op *comm.Op) { op.Bounds = []int{0, 4} }, []string{"bounds [0 4]", "rank 1"}},
		{"wrong buffer", func(op *comm.Op) { op.Send = dtype.Make(dtype.BF16, 3) }, []string{"rank 1", "buffers of 3 elements"}},
	} {
		all = append(all, Case{Name: "ranks differ: " + m.name, Breaks: true, World: 2, Rank: func(c comm.Communicator, _ Options) error {
			const each = 100_000 // more than fits an announcement
			n := each * c.Size()
			op := &comm.Op{Kind: comm.ReduceScatter, Sig: sig("gradient bucket", 3), Bounds: even(n, c.Size()), Send: dtype.Make(dtype.BF16, n), Recv: dtype.Make(dtype.F32, each)}
			if c.Rank() == 1 {
				m.change(op)
			}
			return broken(c, op, m.want...)
		}})
	}
	return append(all,
		Case{Name: "ranks differ: bounds", Breaks: true, World: 2, Rank: func(c comm.Communicator, _ Options) error {
			n := 4*c.Size() + c.Rank()/(c.Size()-1)
			bounds := even(n, c.Size())
			op := &comm.Op{Kind: comm.AllGather, Sig: sig("x", 3), Bounds: bounds, Send: dtype.Make(dtype.BF16, bounds[c.Rank()+1]-bounds[c.Rank()]), Recv: dtype.Make(dtype.BF16, n)}
			return broken(c, op, "bounds", fmt.Sprint(even(4*c.Size(), c.Size())), fmt.Sprint(even(4*c.Size()+1, c.Size())))
		}},
		Case{Name: "ranks differ: count", Breaks: true, World: 2, Rank: func(c comm.Communicator, _ Options) error {
			n := 40_000 + c.Rank()/(c.Size()-1)
			return broken(c, total("x", n), "element count", fmt.Sprintf("rank %d has 40001", c.Size()-1))
		}})
}

// broken checks that the operation fails with all of want, and the next one too.
func broken(c comm.Communicator, op *comm.Op, want ...string) error {
	if err := contains(comm.Do(context.Background(), c, op), want...); err != nil {
		return err
	}
	return contains(comm.Do(context.Background(), c, &comm.Op{Kind: comm.Barrier}), want...)
}

func total(name string, n int) *comm.Op {
	return &comm.Op{Kind: comm.AllReduce, Sig: sig(name, 0), Send: dtype.Make(dtype.F32, n), Recv: dtype.Make(dtype.F32, n)}
}

// leaves: whatever way a rank leaves, the others return soon, with its number, the
// operation and the cause.
func leaves() []Case {
	cause := errors.New("the cause")
	ctx := context.Background()
	small, large := total("step", 3), total("step", 1_000_000)
	var all []Case
	for _, l := range []struct {
		name  string
		leave func(comm.Communicator) error // of rank 1
		want  []string                      // on the other ranks
	}{
		{"abort", func(c comm.Communicator) error { c.Abort(cause); return cause }, []string{"rank 1: the cause", "all-reduce"}},
		{"close", func(c comm.Communicator) error {
			time.AfterFunc(100*time.Millisecond, func() { c.Close() }) // when this rank has told what it saw
			return cause
		}, []string{"rank 1", "closed its communicator", "all-reduce"}},
		{"late", func(c comm.Communicator) error { time.Sleep(Timeout + time.Second/2); return cause }, []string{"waited 1s for rank 1", "all-reduce"}},
		{"cancelled before", func(c comm.Communicator) error {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(cause)
			return comm.Do(ctx, c, small)
		}, []string{"rank 1", "the cause", "all-reduce"}},
	} {
		for _, op := range []*comm.Op{small, large} {
			all = append(all, Case{Name: fmt.Sprintf("a rank leaves: %s, of %d", l.name, op.Send.Len()), Breaks: true, World: 2, Rank: func(c comm.Communicator, _ Options) error {
				if c.Rank() == 1 {
					return contains(l.leave(c))
				}
				own := total(op.Sig.Name, op.Send.Len())
				start := time.Now()
				if err := contains(comm.Do(ctx, c, own), l.want...); err != nil {
					return err
				}
				if took := time.Since(start); took > Timeout+3*time.Second {
					return fmt.Errorf("returned after %v", took)
				}
				return nil
			}})
		}
	}
	return append(all, Case{Name: "a rank leaves: cancelled while it waits", Breaks: true, World: 3, Rank: func(c comm.Communicator, _ Options) error {
		own := total("step", 3)
		switch c.Rank() {
		case 1:
			ctx, cancel := context.WithCancel(ctx)
			h := c.Start(ctx, own)
			cancel()
			return contains(h.Wait(), "canceled")
		case 2:
			time.Sleep(50 * time.Millisecond) // rank 1 is surely waiting
		}
		return contains(comm.Do(ctx, c, own), "rank 1", "canceled")
	}})
}
