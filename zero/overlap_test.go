package zero

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/local"
)

// gate is a communicator whose gradient reductions end only when the test lets
// them, and which overwrites what was sent as soon as they have.
type gate struct {
	comm.Communicator
	hold func(n int) // called before the n-th reduction ends, from 0
	n    int
	mu   sync.Mutex
	sent []int // buckets in the order they were started
}

func (g *gate) Start(ctx context.Context, op *comm.Op) comm.Handle {
	h := g.Communicator.Start(ctx, op)
	if op.Sig.Name != "gradient bucket" {
		return h
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent = append(g.sent, op.Sig.Bucket)
	g.n++
	return gated{h, g, op, g.n - 1}
}

type gated struct {
	comm.Handle
	gate *gate
	op   *comm.Op
	n    int
}

func (h gated) Wait() error {
	if h.gate.hold != nil {
		h.gate.hold(h.n)
	}
	err := h.Handle.Wait()
	for i := range h.op.Send.Len() {
		if h.op.Send.DType == dtype.F32 {
			h.op.Send.F32[i] = float32(math.NaN())
		} else {
			h.op.Send.U16[i] = 0x7fff
		}
	}
	return err
}

// TestOverlapBuffers: with two buffers a backward fills the second while the
// first is on the wire, and waits before a third bucket touches the first. Sent
// memory is poisoned as soon as it is free, and the result is exact.
func TestOverlapBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 6
		cfg := config(func(c *Config) {
			c.ZeroOptimization.Stage = 2
			c.ZeroOptimization.OverlapComm = true
			c.ZeroOptimization.ReduceBucketSize = 10
		})
		release := make(chan struct{}, n)
		var ready atomic.Int32
		tr := trial{cfg: cfg, world: 1, sizes: slices.Repeat([]int{10}, n), steps: 1, lr: 1, grad: exactGrad(1)}
		tr.wrap = func(c comm.Communicator) comm.Communicator {
			return &gate{Communicator: c, hold: func(int) { <-release }}
		}
		tr.order = func(int, int, int) []int { return []int{5, 4, 3, 2, 1, 0} }
		inner := tr.grad
		tr.grad = func(s, m, r, i int) float32 {
			if i%10 == 0 {
				ready.Add(1) // this parameter's hook runs
			}
			return inner(s, m, r, i)
		}
		done := make(chan outcome)
		go func() { done <- tr.must(t) }()
		for k := range n {
			synctest.Wait()
			// Two buckets are on the way or full; the hook of the next one
			// runs, and waits for a buffer.
			if got, want := int(ready.Load()), min(n, k+3); got != want {
				t.Errorf("%d reductions have ended: %d hooks have run, want %d", k, got, want)
			}
			release <- struct{}{}
		}
		out := <-done
		for i, v := range out.values[0] {
			if want := -inner(0, 0, 0, i); v != want {
				t.Errorf("weight %d is %v, want %v", i, v, want)
			}
		}
		if max := int64(2 * 10 * 4); out.peak.Buckets != max {
			t.Errorf("bucket buffers took %d bytes, want %d", out.peak.Buckets, max)
		}
	})
}

// TestOverlapOverlaps: eight buckets of 50 ms compute and 50 ms communication
// take 450 ms with overlap and 800 ms without.
func TestOverlapOverlaps(t *testing.T) {
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(func(c *Config) {
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.OverlapComm = overlap
					c.ZeroOptimization.ReduceBucketSize = 10
				})
				tr := trial{cfg: cfg, world: 2, sizes: slices.Repeat([]int{10}, 8), steps: 1, lr: 1}
				tr.wrap = func(c comm.Communicator) comm.Communicator {
					return &gate{Communicator: c, hold: func(int) { time.Sleep(50 * time.Millisecond) }}
				}
				exact := exactGrad(2)
				tr.grad = func(s, m, r, i int) float32 {
					if i%10 == 0 {
						time.Sleep(50 * time.Millisecond)
					}
					return exact(s, m, r, i)
				}
				start := time.Now()
				tr.must(t)
				want := 800 * time.Millisecond
				if overlap {
					want = 450 * time.Millisecond
				}
				if got := time.Since(start); got != want {
					t.Errorf("stage %d, overlap %v: %v, want %v", stage, overlap, got, want)
				}
			})
		}
	}
}

// TestHooksFromManyGoroutines: hooks in random order from four goroutines, with
// poisoned buffers and delays on the wire, give exact results.
func TestHooksFromManyGoroutines(t *testing.T) {
	for seed := range uint64(60) {
		cfg := config(func(c *Config) {
			c.ZeroOptimization.Stage = int(seed % 3)
			c.ZeroOptimization.OverlapComm = seed%2 == 0
			c.ZeroOptimization.ReduceBucketSize = 67
			c.GradientAccumulationSteps = 4
		})
		tr := trial{cfg: cfg, world: 2, sizes: fixture, steps: 2, lr: 1, grad: exactGrad(2), hooks: 4, order: shuffled(len(fixture), seed)}
		tr.wrap = func(c comm.Communicator) comm.Communicator {
			return &gate{Communicator: c, hold: func(n int) {
				if (uint64(n)+seed)%5 == 0 {
					time.Sleep(50 * time.Microsecond)
				}
			}}
		}
		out := tr.must(t)
		checkFixture(t, cfg, out, oracle[5].norm, oracle[5].mean)
		if t.Failed() {
			return
		}
	}
}

// TestBucketOrder: the first backward sends in reverse registration order
// whatever the ready order, and may need more buffers; later ones follow the
// order in which rank 0's buckets became ready, with the usual two.
func TestBucketOrder(t *testing.T) {
	const n = 8
	cfg := config(func(c *Config) {
		c.ZeroOptimization.Stage = 2
		c.ZeroOptimization.OverlapComm = true
		c.ZeroOptimization.ReduceBucketSize = 10
	})
	gates := make([]*gate, 2)
	tr := trial{cfg: cfg, world: 2, sizes: slices.Repeat([]int{10}, n), steps: 2, lr: 1, grad: exactGrad(2)}
	tr.wrap = func(c comm.Communicator) comm.Communicator {
		gates[c.Rank()] = &gate{Communicator: c}
		return gates[c.Rank()]
	}
	tr.order = func(s, _, r int) []int {
		if r == 1 && s == 0 {
			return []int{3, 1, 4, 0, 5, 7, 2, 6} // does not count
		}
		return []int{0, 1, 2, 4, 3, 5, 6, 7} // parameter i is bucket n-1-i
	}
	out := tr.must(t)
	want := []int{0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 3, 4, 2, 1, 0}
	for r, g := range gates {
		if !slices.Equal(g.sent, want) {
			t.Errorf("rank %d sent buckets %v, want %v", r, g.sent, want)
		}
	}
	if got, want := out.peak.Buckets, int64(n*10*4); got != want {
		t.Errorf("the first backward took %d bytes of buckets, want %d", got, want)
	}
	if got, want := out.now.Buckets, int64(2*10*4); got > want {
		t.Errorf("%d bytes of buckets are left after the first backward, want at most %d", got, want)
	}
}

// TestReadyOrderPerRank: ranks whose gradients become ready in opposite orders
// never mix them up.
func TestReadyOrderPerRank(t *testing.T) {
	for stage := range 3 {
		cfg := config(func(c *Config) { c.ZeroOptimization.Stage = stage; c.ZeroOptimization.ReduceBucketSize = 4 })
		tr := trial{cfg: cfg, world: 2, sizes: []int{4, 4}, steps: 3, lr: 1,
			grad:  func(_, _, r, i int) float32 { return float32(1 + i/4*10 + r*2) },
			order: func(_, _, r int) []int { return [][]int{{0, 1}, {1, 0}}[r] }}
		for s, v := range tr.must(t).values {
			if want := float32(-(s + 1)); v[0] != 2*want || v[4] != 12*want {
				t.Errorf("stage %d: step %d gives %v and %v, want %v and %v", stage, s+1, v[0], v[4], 2*want, 12*want)
			}
		}
	}
}

// TestLogOfTransport: each element crosses the wire exactly once per micro-step,
// and nothing empty does.
func TestLogOfTransport(t *testing.T) {
	for _, bucket := range []int{1, 100, 5e8} {
		cfg := config(func(c *Config) {
			c.GradientAccumulationSteps = 2
			c.ZeroOptimization.Stage = 2
			c.ZeroOptimization.ReduceBucketSize = bucket
		})
		var g *gate
		out := trial{cfg: cfg, world: 1, sizes: fixture, steps: 2, grad: exactGrad(1), wrap: func(c comm.Communicator) comm.Communicator {
			g = &gate{Communicator: c}
			return g
		}}.must(t)
		count := make([]int, len(out.plan.Buckets))
		for _, b := range g.sent {
			count[b]++
		}
		for b, n := range count {
			if n != 4 {
				t.Errorf("bucket size %d: bucket %d was sent %d times in 4 micro-steps", bucket, b, n)
			}
		}
	}
}

// TestWaitEnds: a rank that waits for a buffer whose reduction never ends returns
// when its context does, and the other ranks learn why.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(func(c *Config) {
			c.ZeroOptimization.Stage = 2
			c.ZeroOptimization.OverlapComm = true
			c.ZeroOptimization.ReduceBucketSize = 4
		})
		errs := ranks(t, 2, func(c comm.Communicator) error {
			tr := trial{cfg: cfg, sizes: slices.Repeat([]int{4}, 5)}
			o, err := New(context.Background(), tr.params(), cfg, c, sgd{})
			if err != nil {
				return err
			}
			defer o.Close()
			if c.Rank() == 1 { // takes part in nothing for a while
				time.Sleep(2 * time.Second)
				return o.GradReady(context.Background(), 4, make([]float32, 4))
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			for i := range 5 {
				if err := o.GradReady(ctx, 4-i, make([]float32, 4)); err != nil {
					return fmt.Errorf("parameter %d: %w", 4-i, err)
				}
			}
			return nil
		}, local.WithTimeout(time.Minute))
		wantError(t, errs[0], "parameter 2", "deadline exceeded")
	})
}
