package commtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

// sequences are the cases of several collectives under way.
func sequences() []Case {
	return []Case{
		{Name: "barriers", Rank: barriers},
		{Name: "handles waited for in any order", Rank: anyOrder},
		{Name: "late ranks", Rank: lateRanks},
		{Name: "garbage collections", Rank: garbage},
	}
}

// barriers: nobody leaves one before everybody has come. Seen by one rank: its time
// in a barrier that another comes to late.
func barriers(c comm.Communicator, _ Options) error {
	const nap = 30 * time.Millisecond
	for late := range c.Size() {
		if err := comm.Do(context.Background(), c, &comm.Op{Kind: comm.Barrier}); err != nil {
			return err
		}
		start := time.Now()
		if c.Rank() == late {
			time.Sleep(nap)
		}
		if err := comm.Do(context.Background(), c, &comm.Op{Kind: comm.Barrier, Sig: comm.Signature{Name: "late"}}); err != nil {
			return err
		}
		// The ranks leave the first barrier at slightly different times.
		if took := time.Since(start); took < nap/3 {
			return fmt.Errorf("left the barrier after %v, rank %d came after %v", took, late, nap)
		}
	}
	return nil
}

// anyOrder starts random collectives of random sizes and waits for them in another
// order.
func anyOrder(c comm.Communicator, _ Options) error {
	rng := rand.New(rand.NewPCG(1, 2)) // the same on all ranks
	for round := range 30 {
		type started struct {
			op   *comm.Op
			h    comm.Handle
			lo   int
			seed int
		}
		var all []started
		for k := range 1 + rng.IntN(12) {
			n := []int{0, 3, 700, 5000, 200_000}[rng.IntN(5)]
			kind := comm.Kind(rng.IntN(4))
			cut := cuts[rng.IntN(len(cuts))].cut(n, c.Size())
			lo, hi := cut[c.Rank()], cut[c.Rank()+1]
			op := &comm.Op{Kind: kind, Sig: sig("any", k), Bounds: cut}
			seed := 1000*round + k
			switch kind {
			case comm.ReduceScatter:
				op.Send, op.Recv = dtype.Make(dtype.BF16, n), dtype.Make(dtype.F32, hi-lo)
				fill(op.Send, seed, c.Rank(), 0)
			case comm.AllReduce:
				op.Send, op.Recv = dtype.Make(dtype.F32, n), dtype.Make(dtype.F32, n)
				lo = 0
				fill(op.Send, seed, c.Rank(), 0)
			case comm.AllGather:
				op.Send, op.Recv = dtype.Make(dtype.F32, hi-lo), dtype.Make(dtype.F32, n)
				fill(op.Send, seed, c.Rank(), lo)
			}
			if kind == comm.ReduceScatter || kind == comm.AllReduce {
				fill(op.Recv, seed, -1, lo)
			}
			all = append(all, started{op, c.Start(context.Background(), op), lo, seed})
			if rng.IntN(3) == 0 {
				time.Sleep(time.Duration(c.Rank()*rng.IntN(200)) * time.Microsecond)
			}
		}
		for _, k := range rng.Perm(len(all)) {
			s := all[k]
			if err := s.h.Wait(); err != nil {
				return err
			}
			if err := result(s.op, s.seed, s.lo, c.Size()); err != nil {
				return fmt.Errorf("round %d, collective %d of %d: %v: %w", round, k, len(all), s.op, err)
			}
		}
	}
	return nil
}

func result(op *comm.Op, seed, lo, world int) error {
	switch op.Kind {
	case comm.Barrier:
		return nil
	case comm.AllGather:
		for r := range world {
			if err := isSent(op.Recv.Slice(op.Bounds[r], op.Bounds[r+1]), seed, r, op.Bounds[r]); err != nil {
				return fmt.Errorf("segment of rank %d: %w", r, err)
			}
		}
		return nil
	}
	return isSum(op.Recv, op.Send.DType, seed, world, lo)
}

// lateRanks: a rank may be far behind, or start nothing for a while.
func lateRanks(c comm.Communicator, _ Options) error {
	for late := range c.Size() {
		if c.Rank() == late {
			time.Sleep(50 * time.Millisecond)
		}
		for k, n := range []int{5, 300_000, 9} {
			if err := sum(c, comm.ReduceScatter, 10*late+k, n, even(n, c.Size()), dtype.F32, dtype.F32); err != nil {
				return err
			}
		}
	}
	return nil
}

// garbage collects garbage all the time while buffers are on the wire.
func garbage(c comm.Communicator, o Options) error {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	times := 40
	if o.MaxBytes < 1<<20 {
		times = 8
	}
	for k := range times {
		n := 1000 + 7001*k
		if err := sum(c, comm.ReduceScatter, k, n, even(n, c.Size()), dtype.BF16, dtype.F32); err != nil {
			return err
		}
	}
	return nil
}
