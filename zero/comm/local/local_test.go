package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fataler is what testing and rapid have in common.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// ranks runs f for every rank of a new group and returns the ranks' errors. It
// fails the test if they do not all return within ten seconds.
func ranks(t fataler, world int, f func(comm.Communicator) error, opts ...Option) []error {
	t.Helper()
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range New(world, opts...) {
		wg.Go(func() {
			defer c.Close()
			errs[r] = f(c)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("ranks did not return within 10 s")
	}
	return errs
}

func run(t *testing.T, world int, f func(comm.Communicator) error) {
	t.Helper()
	for r, err := range ranks(t, world, f) {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

func sig(name string, bucket int) comm.Signature {
	return comm.Signature{Name: name, Step: 1, Bucket: bucket, Layout: 7}
}

// TestFoldOrder: the sum is taken in rank order from the accumulator, in the
// accumulator's format. 256+1+1+1 is 259 in fp32 and, rounded after each
// addition, 256 in bf16; with the large value last nothing is lost on the way.
func TestFoldOrder(t *testing.T) {
	for _, tc := range []struct {
		name  string
		acc   dtype.DType
		start float32
		x     []float32
		want  float64
	}{
		{"fp32", dtype.F32, 0, []float32{256, 1, 1, 1}, 259},
		{"bf16 large first", dtype.BF16, 0, []float32{256, 1, 1, 1}, 256},
		{"bf16 large last", dtype.BF16, 0, []float32{1, 1, 1, 256}, 260},
		{"bf16 large start", dtype.BF16, 256, []float32{1, 1}, 256},
	} {
		for _, kind := range []comm.Kind{comm.AllReduce, comm.ReduceScatter} {
			t.Run(fmt.Sprintf("%s/%s", tc.name, kind), func(t *testing.T) {
				const n = 13
				run(t, len(tc.x), func(c comm.Communicator) error {
					bounds := make([]int, len(tc.x)+1)
					for r := range bounds {
						bounds[r] = r * n / len(tc.x)
					}
					lo, hi := bounds[c.Rank()], bounds[c.Rank()+1]
					op := &comm.Op{Kind: kind, Sig: sig("x", 0), Bounds: bounds, Send: dtype.Make(dtype.BF16, n), Recv: dtype.Make(tc.acc, n)}
					for i := range op.Send.U16 {
						op.Send.U16[i] = dtype.BF16FromFloat32(tc.x[c.Rank()])
						if tc.acc == dtype.BF16 {
							op.Recv.U16[i] = dtype.BF16FromFloat32(tc.start)
						}
					}
					if kind == comm.ReduceScatter {
						op.Recv = op.Recv.Slice(lo, hi)
					}
					if err := comm.Do(context.Background(), c, op); err != nil {
						return err
					}
					for i := range op.Recv.Len() {
						if got := op.Recv.At(i); got != tc.want {
							return fmt.Errorf("element %d: %v, want %v", i, got, tc.want)
						}
					}
					return nil
				})
			})
		}
	}
}

// TestCollectives compares random collectives, several in flight, with the values
// they must give.
func TestCollectives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 6).Draw(t, "world")
		depth := rapid.IntRange(1, 5).Draw(t, "in flight")
		format := rapid.SampledFrom([]dtype.DType{dtype.F32, dtype.F64}).Draw(t, "format")
		bounds := make([][]int, depth)
		for k := range bounds {
			bounds[k] = []int{0}
			for range world {
				bounds[k] = append(bounds[k], bounds[k][len(bounds[k])-1]+rapid.IntRange(0, 5).Draw(t, "segment"))
			}
		}
		kinds := rapid.SliceOfN(rapid.SampledFrom([]comm.Kind{comm.AllGather, comm.ReduceScatter, comm.AllReduce, comm.Barrier}), depth, depth).Draw(t, "kinds")
		alias := rapid.Bool().Draw(t, "alias")
		value := func(k, r, i int) float64 { return float64(1000*k + 100*r + i) }
		for r, err := range ranks(t, world, func(c comm.Communicator) error {
			ops := make([]*comm.Op, depth)
			var handles []comm.Handle
			for k := range ops {
				b := bounds[k]
				n, lo, hi := b[world], b[c.Rank()], b[c.Rank()+1]
				op := &comm.Op{Kind: kinds[k], Sig: sig("x", k), Bounds: b}
				switch kinds[k] {
				case comm.AllGather:
					op.Recv = dtype.Make(format, n)
					op.Send = dtype.Make(format, hi-lo)
					if alias {
						op.Send = op.Recv.Slice(lo, hi)
					}
					for i := range op.Send.Len() {
						set(op.Send, i, value(k, c.Rank(), i))
					}
				case comm.ReduceScatter:
					op.Send, op.Recv = ramp(n, func(i int) float64 { return value(k, c.Rank(), i) }), dtype.Make(dtype.F32, hi-lo)
				case comm.AllReduce:
					op.Send, op.Recv = ramp(n, func(i int) float64 { return value(k, c.Rank(), i) }), dtype.Make(dtype.F32, n)
				}
				ops[k] = op
				handles = append(handles, c.Start(context.Background(), op))
			}
			for k, h := range handles {
				if err := h.Wait(); err != nil {
					return err
				}
				if err := verify(ops[k], k, c.Rank(), world, value); err != nil {
					return err
				}
			}
			return nil
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
		}
	})
}

func ramp(n int, f func(i int) float64) dtype.Buffer {
	b := dtype.Make(dtype.F32, n)
	for i := range n {
		b.F32[i] = float32(f(i))
	}
	return b
}

func set(b dtype.Buffer, i int, v float64) {
	if b.DType == dtype.F64 {
		b.F64[i] = v
	} else {
		b.F32[i] = float32(v)
	}
}

func verify(op *comm.Op, k, rank, world int, value func(k, r, i int) float64) error {
	for i := range op.Recv.Len() {
		var want float64
		switch op.Kind {
		case comm.AllGather:
			r := 0
			for op.Bounds[r+1] <= i {
				r++
			}
			want = value(k, r, i-op.Bounds[r])
		default:
			at := i
			if op.Kind == comm.ReduceScatter {
				at += op.Bounds[rank]
			}
			for r := range world {
				want += value(k, r, at)
			}
		}
		if got := op.Recv.At(i); got != want {
			return fmt.Errorf("%v element %d: %v, want %v", op, i, got, want)
		}
	}
	return nil
}

// TestGatherBits: an all-gather moves bits, also those of a NaN.
func TestGatherBits(t *testing.T) {
	run(t, 2, func(c comm.Communicator) error {
		recv := dtype.Make(dtype.F32, 2)
		send := dtype.OfFloat32([]float32{math.Float32frombits(0x7fa00001 + uint32(c.Rank()))})
		op := &comm.Op{Kind: comm.AllGather, Sig: sig("x", 0), Bounds: []int{0, 1, 2}, Send: send, Recv: recv}
		if err := comm.Do(context.Background(), c, op); err != nil {
			return err
		}
		for r, v := range recv.F32 {
			if got := math.Float32bits(v); got != 0x7fa00001+uint32(r) {
				return fmt.Errorf("element %d has bits %x", r, got)
			}
		}
		return nil
	})
}

// TestMismatch: ranks that do not run the same collective all get an error that
// names them and both sides, and every later operation gets it too.
func TestMismatch(t *testing.T) {
	base := func() *comm.Op {
		return &comm.Op{Kind: comm.ReduceScatter, Sig: sig("gradient bucket", 3), Bounds: []int{0, 2, 4}, Send: dtype.Make(dtype.BF16, 4), Recv: dtype.Make(dtype.F32, 2)}
	}
	for _, tc := range []struct {
		name   string
		change func(*comm.Op)
		want   []string
	}{
		{"kind", func(op *comm.Op) { *op = comm.Op{Kind: comm.Barrier, Sig: op.Sig} }, []string{"reduce-scatter", "barrier"}},
		{"name", func(op *comm.Op) { op.Sig.Name = "weights" }, []string{"gradient bucket", "weights"}},
		{"step", func(op *comm.Op) { op.Sig.Step = 2 }, []string{"step 1", "step 2"}},
		{"bucket", func(op *comm.Op) { op.Sig.Bucket = 4 }, []string{"bucket 3", "bucket 4"}},
		{"layout", func(op *comm.Op) { op.Sig.Layout = 8 }, []string{"layout hash", "0000000000000007", "0000000000000008"}},
		{"sent format", func(op *comm.Op) { op.Send = dtype.Make(dtype.F16, 4) }, []string{"sent format", "bf16", "fp16"}},
		{"received format", func(op *comm.Op) { op.Recv = dtype.Make(dtype.BF16, 2) }, []string{"received format", "bf16", "fp32"}},
		{"bounds", func(op *comm.Op) { op.Bounds = []int{0, 3, 5}; op.Send = dtype.Make(dtype.BF16, 5) }, []string{"bounds", "[0 2 4]", "[0 3 5]"}},
		{"ill-formed", func(op *comm.Op) { op.Bounds = []int{0, 4} }, []string{"bounds [0 4]", "rank 1"}},
		{"wrong buffer", func(op *comm.Op) { op.Send = dtype.Make(dtype.BF16, 3) }, []string{"rank 1", "bounds want 4 and 2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := ranks(t, 2, func(c comm.Communicator) error {
				op := base()
				if c.Rank() == 1 {
					tc.change(op)
				}
				err := comm.Do(context.Background(), c, op)
				if again := comm.Do(context.Background(), c, &comm.Op{Kind: comm.Barrier}); err != nil && again == nil {
					return errors.New("the communicator is not poisoned")
				}
				return err
			})
			for r, err := range errs {
				if err == nil {
					t.Fatalf("rank %d: no error", r)
				}
				for _, want := range tc.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("rank %d: %q does not contain %q", r, err, want)
					}
				}
			}
		})
	}
}

// TestCountMismatch is TestMismatch for all-reduce, where no bounds tell.
func TestCountMismatch(t *testing.T) {
	for r, err := range ranks(t, 3, func(c comm.Communicator) error {
		n := 4
		if c.Rank() == 2 {
			n = 5
		}
		return comm.Do(context.Background(), c, &comm.Op{Kind: comm.AllReduce, Sig: sig("x", 0), Send: dtype.Make(dtype.F32, n), Recv: dtype.Make(dtype.F32, n)})
	}) {
		if err == nil || !strings.Contains(err.Error(), "element count") || !strings.Contains(err.Error(), "rank 2 has 5") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

var errCause = errors.New("the cause")

// TestRankLeaves: whatever way a rank leaves, the others return soon, with its
// number, the operation and the cause.
func TestRankLeaves(t *testing.T) {
	for _, tc := range []struct {
		name  string
		leave func(comm.Communicator) error // of rank 1
		want  []string                      // on the other ranks
		cause error
	}{
		{"abort", func(c comm.Communicator) error { c.Abort(errCause); return errCause }, []string{"rank 1: the cause", "all-reduce"}, errCause},
		{"close", func(c comm.Communicator) error { c.Close(); return errCause }, []string{"rank 1", "closed its communicator", "all-reduce"}, nil},
		{"late", func(c comm.Communicator) error { time.Sleep(300 * time.Millisecond); return errCause }, []string{"waited 100ms for rank 1", "all-reduce"}, errTimeout},
		{"cancelled", func(c comm.Communicator) error {
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(errCause)
			return comm.Do(ctx, c, sum("step"))
		}, []string{"rank 1", "the cause", "all-reduce"}, errCause},
		{"cancelled while waiting", func(c comm.Communicator) error {
			ctx, cancel := context.WithCancel(context.Background())
			h := c.Start(ctx, sum("step"))
			cancel()
			return h.Wait()
		}, []string{"rank 1", "context canceled"}, context.Canceled},
		{"closed with work queued", func(c comm.Communicator) error {
			h := c.Start(context.Background(), sum("step"))
			c.Close()
			return h.Wait()
		}, []string{"rank 1", "closed its communicator"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Now()
			errs := ranks(t, 3, func(c comm.Communicator) error {
				switch c.Rank() {
				case 1:
					return tc.leave(c)
				case 2:
					if strings.HasPrefix(tc.name, "cancelled while") || strings.HasPrefix(tc.name, "closed with") {
						time.Sleep(20 * time.Millisecond) // rank 1 is surely waiting
					}
				}
				return comm.Do(context.Background(), c, sum("step"))
			}, WithTimeout(100*time.Millisecond))
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("took %v", d)
			}
			for r, err := range errs {
				if err == nil {
					t.Fatalf("rank %d: no error", r)
				}
				if r == 1 {
					continue
				}
				for _, want := range tc.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("rank %d: %q does not contain %q", r, err, want)
					}
				}
				if tc.cause != nil && !errors.Is(err, tc.cause) {
					t.Errorf("rank %d: %v is not %v", r, err, tc.cause)
				}
			}
		})
	}
}

func sum(name string) *comm.Op {
	return &comm.Op{Kind: comm.AllReduce, Sig: sig(name, 0), Send: dtype.Make(dtype.F32, 3), Recv: dtype.Make(dtype.F32, 3)}
}

// TestCloseAfterEnd: ranks that are done may close at any time, while others
// still finish the last collective, and twice.
func TestCloseAfterEnd(t *testing.T) {
	for range 200 {
		run(t, 4, func(c comm.Communicator) error {
			err := comm.Do(context.Background(), c, sum("last"))
			c.Close()
			if after := comm.Do(context.Background(), c, sum("after")); !errors.Is(after, errClosed) {
				return fmt.Errorf("after Close: %v", after)
			}
			return err
		})
	}
}

// TestAbortRace: aborts at random moments never let a rank read memory that its
// owner has again (the race detector watches the writes after Wait).
func TestAbortRace(t *testing.T) {
	for i := range 100 {
		ranks(t, 3, func(c comm.Communicator) error {
			op := sum("x")
			for k := 0; ; k++ {
				if c.Rank() == 0 && k == i%7 {
					go c.Abort(errCause)
				}
				err := comm.Do(context.Background(), c, op)
				for j := range op.Send.F32 {
					op.Send.F32[j] += 1
				}
				if err != nil || k > 1000 {
					return err
				}
			}
		})
	}
}

func TestNewPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("world size 0 is accepted")
		}
	}()
	New(0)
}

func BenchmarkReduceScatter(b *testing.B) {
	const world, n = 2, 1 << 20
	bounds := []int{0, n / 2, n}
	b.SetBytes(4 * n)
	ranks(b, world, func(c comm.Communicator) error {
		op := &comm.Op{Kind: comm.ReduceScatter, Sig: sig("x", 0), Bounds: bounds, Send: dtype.Make(dtype.F32, n), Recv: dtype.Make(dtype.F32, n/2)}
		for range b.N {
			if err := comm.Do(context.Background(), c, op); err != nil {
				return err
			}
		}
		return nil
	})
}
