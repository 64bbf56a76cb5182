package gated_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var all = func(gated.Event) bool { return true }

// sum is an all-reduce of rank+1 in every element.
func sum(rank, n, bucket int) *comm.Op {
	send := dtype.Make(dtype.F32, n)
	for i := range send.F32 {
		send.F32[i] = float32(rank + 1)
	}
	return &comm.Op{Kind: comm.AllReduce, Send: send, Recv: dtype.Make(dtype.F32, n), Sig: comm.Signature{Name: "sum", Step: 3, Bucket: bucket}}
}

// ranks runs f for every rank of a wrapped group and returns their errors.
func ranks(world int, o gated.Options, f func(*gated.Group, comm.Communicator) error) []error {
	g := gated.New(local.New(world, local.WithTimeout(time.Second)), o)
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range g.Comms() {
		wg.Go(func() {
			errs[r] = errors.Join(f(g, c), c.Close())
		})
	}
	wg.Wait()
	return errs
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("error %v does not contain %q", err, p)
		}
	}
}

// TestHold: what is held moves no data and does not end before its release, and
// collectives run in order of start whatever the order of the releases.
func TestHold(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		synctest.Test(t, func(t *testing.T) {
			g := gated.New(local.New(2), gated.Options{Hold: all})
			var mu sync.Mutex
			ended := [2]int{}
			var wg sync.WaitGroup
			ops := [2][]*comm.Op{}
			for r, c := range g.Comms() {
				var handles []comm.Handle
				for k := range 3 {
					ops[r] = append(ops[r], sum(r, 4, k))
					handles = append(handles, c.Start(t.Context(), ops[r][k]))
				}
				for _, h := range handles {
					wg.Go(func() {
						if err := h.Wait(); err != nil {
							t.Error(err)
						}
						mu.Lock()
						ended[r]++
						mu.Unlock()
					})
				}
			}
			freed := map[int]bool{}
			for _, k := range order {
				for r := range 2 {
					synctest.Wait()
					if ev, err := g.Await(t.Context(), r, k); err != nil || ev.Bucket != k || ev.Held != k {
						t.Errorf("held collective %d of rank %d is %+v, %v", k, r, ev, err)
					}
					g.Release(r, k)
				}
				freed[k] = true
				synctest.Wait()
				want := 0
				for freed[want] {
					want++
				}
				for r := range 2 {
					if ended[r] != want {
						t.Errorf("order %v, after release %d: rank %d has ended %d collectives, want %d", order, k, r, ended[r], want)
					}
					for k := range 3 {
						if v := ops[r][k].Recv.F32[0]; (v == 3) != (k < want) {
							t.Errorf("order %v: result %d is %v with %d ended", order, k, v, want)
						}
					}
				}
			}
			wg.Wait()
			for _, c := range g.Comms() {
				c.Close()
			}
		})
	}
}

// TestLog: every collective is recorded with its formats, counts and buffers.
func TestLog(t *testing.T) {
	var events [][]gated.Event
	var sent uintptr
	var mu sync.Mutex
	noErrors(t, ranks(2, gated.Options{}, func(g *gated.Group, c comm.Communicator) error {
		op := &comm.Op{
			Kind: comm.ReduceScatter, Bounds: []int{0, 3, 5}, Sig: comm.Signature{Name: "bucket", Step: 7, Bucket: 2},
			Send: dtype.Make(dtype.BF16, 5), Recv: dtype.Make(dtype.F32, 3-c.Rank()),
		}
		err := errors.Join(comm.Do(context.Background(), c, op), comm.Do(context.Background(), c, &comm.Op{Kind: comm.Barrier}))
		mu.Lock()
		defer mu.Unlock()
		events = append(events, g.Log(c.Rank()))
		if c.Rank() == 0 {
			sent = g.Log(0)[0].SentFrom
			again := &comm.Op{Kind: comm.AllReduce, Send: op.Send, Recv: dtype.Make(dtype.F32, 5)}
			c.Start(context.Background(), again)
			if l := g.Log(0); l[2].SentFrom != sent || l[2].ReceivedIn == l[0].ReceivedIn {
				t.Errorf("one buffer is sent from %x and %x", sent, l[2].SentFrom)
			}
		}
		return err
	}))
	for _, l := range events {
		r := l[0].Rank
		want := gated.Event{Rank: r, Held: -1, Kind: comm.ReduceScatter, Name: "bucket", Step: 7, Bucket: 2, Sent: 5, Received: 3 - r,
			SentAs: dtype.BF16, ReceivedAs: dtype.F32, SentFrom: l[0].SentFrom, ReceivedIn: l[0].ReceivedIn}
		if l[0] != want || l[0].SentFrom == 0 || l[0].ReceivedIn == 0 {
			t.Errorf("event %+v, want %+v", l[0], want)
		}
		if l[1].Kind != comm.Barrier || l[1].N != 1 || l[1].SentFrom != 0 {
			t.Errorf("second event %+v", l[1])
		}
	}
}

// TestPoison: what was sent is NaN when Wait returns, in every format, after all
// ranks have read it; a collective's own result is not.
func TestPoison(t *testing.T) {
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16, dtype.F64} {
		noErrors(t, ranks(3, gated.Options{Poison: all}, func(_ *gated.Group, c comm.Communicator) error {
			send := dtype.Make(d, 2)
			op := &comm.Op{Kind: comm.AllGather, Bounds: []int{0, 2, 4, 6}, Send: send, Recv: dtype.Make(d, 6)}
			if err := comm.Do(context.Background(), c, op); err != nil {
				return err
			}
			for i := range 6 {
				if v := op.Recv.At(i); v != 0 {
					t.Errorf("%v: received %v", d, v)
				}
			}
			if !math.IsNaN(send.At(0)) || !math.IsNaN(send.At(1)) {
				t.Errorf("%v: sent memory holds %v", d, send)
			}
			op.Send = op.Recv.Slice(2*c.Rank(), 2*c.Rank()+2)
			if err := comm.Do(context.Background(), c, op); err != nil {
				return err
			}
			if op.Recv.At(2*c.Rank()) != 0 {
				t.Errorf("%v: a rank's own part of the result was poisoned", d)
			}
			return nil
		}))
	}
}

// TestWritten: a buffer that is written while it is the communicator's is an error
// on every rank, though the sum would be right.
func TestWritten(t *testing.T) {
	for name, write := range map[string]func(*comm.Op){
		"the sent buffer":      func(op *comm.Op) { op.Send.F32[1]++ },
		"the receiving buffer": func(op *comm.Op) { op.Recv.F32[3]++ },
	} {
		errs := ranks(2, gated.Options{Hold: all}, func(g *gated.Group, c comm.Communicator) error {
			op := sum(c.Rank(), 4, 5)
			h := c.Start(context.Background(), op)
			if c.Rank() == 1 {
				write(op)
			}
			g.Release(c.Rank(), 0)
			return h.Wait()
		})
		for _, err := range errs {
			contains(t, err, "rank 1", `all-reduce "sum" of step 3, bucket 5`, name, "written")
		}
	}
}

// TestFail: the collective that is made to fail does on every rank, with the
// cause, and so does everything after it.
func TestFail(t *testing.T) {
	cut := errors.New("the cable is cut")
	o := gated.Options{Fail: func(e gated.Event) error {
		if e.Rank == 1 && e.N == 2 {
			return cut
		}
		return nil
	}}
	errs := ranks(3, o, func(_ *gated.Group, c comm.Communicator) error {
		for k := range 5 {
			if err := comm.Do(context.Background(), c, sum(c.Rank(), 2, k)); (err != nil) != (k >= 2) {
				t.Errorf("rank %d, collective %d: %v", c.Rank(), k, err)
			} else if k == 4 {
				return err
			}
		}
		return nil
	})
	for _, err := range errs {
		contains(t, err, "rank 1", "bucket 2", cut.Error())
		if !errors.Is(err, cut) {
			t.Errorf("%v does not wrap the cause", err)
		}
	}
}

// TestDelay: a delayed collective takes its time, on all ranks, and ends early
// with its context.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := gated.Options{Delay: func(e gated.Event) time.Duration {
			return time.Duration(e.Bucket*e.Rank) * 100 * time.Millisecond
		}}
		noErrors(t, ranks(2, o, func(_ *gated.Group, c comm.Communicator) error {
			start := time.Now()
			err := comm.Do(context.Background(), c, sum(c.Rank(), 2, 3))
			if d := time.Since(start); d != 300*time.Millisecond {
				t.Errorf("took %v, want 300ms", d)
			}
			return err
		}))
		start := time.Now()
		for _, err := range ranks(2, o, func(_ *gated.Group, c comm.Communicator) error {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			return comm.Do(ctx, c, sum(c.Rank(), 2, 600))
		}) {
			contains(t, err, "deadline exceeded")
		}
		if d := time.Since(start); d != 50*time.Millisecond {
			t.Errorf("took %v, want 50ms", d)
		}
	})
}

// TestNobodyStaysHeld: whatever way a rank leaves, ranks whose collectives are held
// return its error without a release.
func TestNobodyStaysHeld(t *testing.T) {
	lost := errors.New("lost")
	for name, leave := range map[string]func(c comm.Communicator){
		"rank 1: lost":   func(c comm.Communicator) { c.Abort(lost) },
		"rank 1: closed": func(c comm.Communicator) { c.Close() },
	} {
		errs := ranks(3, gated.Options{Hold: all}, func(g *gated.Group, c comm.Communicator) error {
			if c.Rank() == 1 {
				for _, r := range []int{0, 2} {
					if _, err := g.Await(context.Background(), r, 0); err != nil {
						t.Error(err)
					}
				}
				leave(c)
				return nil
			}
			return comm.Do(context.Background(), c, sum(c.Rank(), 2, 0))
		})
		for _, r := range []int{0, 2} {
			contains(t, errs[r], name)
		}
	}
}

// TestAwaitEnds: Await returns with its context.
func TestAwaitEnds(t *testing.T) {
	noErrors(t, ranks(1, gated.Options{}, func(g *gated.Group, c comm.Communicator) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, err := g.Await(ctx, 0, 4)
		contains(t, err, "rank 0", "0 held", "number 4", "deadline")
		return nil
	}))
}

// TestStartAfterClose: a closed end is an error, and may be closed again.
func TestStartAfterClose(t *testing.T) {
	g := gated.New(local.New(1), gated.Options{})
	c := g.Comms()[0]
	if err := errors.Join(comm.Do(t.Context(), c, sum(0, 1, 0)), c.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	contains(t, comm.Do(t.Context(), c, sum(0, 1, 0)), "all-reduce", "closed")
	if n := len(g.Log(0)); n != 1 {
		t.Errorf("%d collectives in the log, want 1", n)
	}
}

// TestSameBits: the wrapped communicator sums as the one underneath does.
func TestSameBits(t *testing.T) {
	result := func(wrap bool) []float32 {
		ends := local.New(4)
		if wrap {
			ends = gated.New(ends, gated.Options{Poison: all}).Comms()
		}
		out := make([]float32, 2)
		var wg sync.WaitGroup
		for r, c := range ends {
			wg.Go(func() {
				op := sum(r, 2, 0)
				op.Send.F32[0], op.Send.F32[1] = []float32{1e8, 1, -1e8, 1}[r], 0.1*float32(r)
				if err := errors.Join(comm.Do(context.Background(), c, op), c.Close()); err != nil {
					t.Error(err)
				}
				if r == 0 {
					copy(out, op.Recv.F32)
				}
			})
		}
		wg.Wait()
		return out
	}
	if a, b := result(false), result(true); !slices.Equal(a, b) || a[0] != 1 {
		t.Errorf("%v and %v", a, b)
	}
}
