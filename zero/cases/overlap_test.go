package cases

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// E02, overlap: a bucket's buffer was filled or read while its reduction was in
// flight, or its result was recycled before its last reader (DeepSpeed #7371,
// #7188, #7804, #8061, #7965, #5545, #2867). A buffer that is written while it is
// the communicator's is an error of the gate in every test of this package.

// progress is what the hooks of one rank have done.
type progress struct {
	mu                sync.Mutex
	entered, returned []int // parameters, in order
}

func (p *progress) ready(_, param int, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done {
		p.returned = append(p.returned, param)
	} else {
		p.entered = append(p.entered, param)
	}
}

func (p *progress) is(t *testing.T, when string, entered, returned []int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.entered, entered) || !slices.Equal(p.returned, returned) {
		t.Errorf("%s: hooks of parameters %v have begun and of %v ended, want %v and %v", when, p.entered, p.returned, entered, returned)
	}
}

// TestE02TwoBuffers: while a reduction is in flight the backward fills the second
// buffer and waits before it touches the first again.
func TestE02TwoBuffers(t *testing.T) {
	for _, tc := range []struct {
		bucket            int
		entered, returned []int // with the first reduction held
		then              []int // ended when it has been released
	}{
		// The first parameter, of 130, fills both buffers.
		{67, []int{5, 4}, []int{5}, []int{5, 4, 3}},
		// The second holds parameters 4 and 3; parameter 2 needs a third.
		{131, []int{5, 4, 3, 2}, []int{5, 4, 3}, []int{5, 4, 3}},
	} {
		for _, stage := range []int{0, 2} { // stage 1 keeps the whole gradient and needs no buffers
			t.Run(fmt.Sprintf("bucket %d, stage %d", tc.bucket, stage), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cfg := config(func(c *zero.Config) {
						c.ZeroOptimization.Stage = stage
						c.ZeroOptimization.OverlapComm = true
						c.ZeroOptimization.ReduceBucketSize = tc.bucket
					})
					var ranks [2]progress
					tr := training{cfg: cfg, world: 2, sizes: f1, grad: exact(2), gates: gated.Options{Hold: gradientBucket, Poison: gradientBucket}}
					tr.ready = func(r, p int, done bool) { ranks[r].ready(r, p, done) }
					order := []int{5, 4, 3, 2, 1, 0}
					tr.order = func(int, int, int) []int { return order }
					tr.watch = func(g *gated.Group) {
						synctest.Wait()
						for r := range 2 {
							ranks[r].is(t, fmt.Sprintf("rank %d, first reduction held", r), tc.entered, tc.returned)
							if n := len(sentSizes(g.Log(r))); n != 1 {
								t.Errorf("rank %d has started %d reductions, want 1", r, n)
							}
							g.Release(r, 1) // the second first: it waits its turn
						}
						synctest.Wait()
						for r := range 2 {
							ranks[r].is(t, fmt.Sprintf("rank %d, second reduction released", r), tc.entered, tc.returned)
							g.Release(r, 0)
						}
						synctest.Wait()
						for r := range 2 {
							if got := ranks[r].returned; !slices.Equal(got[:len(tc.then)], tc.then) {
								t.Errorf("rank %d, both released: hooks of %v have ended, want %v first", r, got, tc.then)
							}
						}
						g.ReleaseAll()
					}
					out := tr.must(t)
					oracleOf(2, 1).check(t, tr, out)
					buffers := map[uintptr]bool{}
					for _, e := range out.gates.Log(0) {
						if gradientBucket(e) {
							buffers[e.SentFrom] = true
						}
					}
					if len(buffers) != 2 {
						t.Errorf("%d buffers were sent from, want 2", len(buffers))
					}
				})
			})
		}
	}
}

// TestE02Poison: what was sent is poisoned the moment it is free; nobody reads it.
func TestE02Poison(t *testing.T) {
	for _, bucket := range []int{67, 131, 5e8} {
		for _, accum := range []int{1, 4} {
			for _, cfg := range allConfigs(func(c *zero.Config) {
				c.GradientAccumulationSteps = accum
				c.ZeroOptimization.ReduceBucketSize = bucket
			}) {
				tr := training{cfg: cfg, world: 2, sizes: f1, grad: exact(2), steps: 2, gates: gated.Options{Poison: gradientBucket}}
				oracleOf(2, accum).check(t, tr, tr.must(t))
			}
		}
	}
}

// TestE02ManyHooks: hooks from four goroutines in random order, with delays on the
// wire, give exact results: a reduction starts after the last copy into its bucket,
// whoever made it.
func TestE02ManyHooks(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		cfg := config(func(c *zero.Config) {
			c.ZeroOptimization.Stage = int(seed % 3)
			c.ZeroOptimization.OverlapComm = seed%4 != 0
			c.ZeroOptimization.ReduceBucketSize = 67
		})
		tr := training{cfg: cfg, world: 2, sizes: f1, grad: exact(2), hooks: 4, order: shuffled(len(f1), seed)}
		tr.gates = gated.Options{Poison: gradientBucket, Delay: func(e gated.Event) time.Duration {
			return time.Duration(rand.New(rand.NewPCG(seed, uint64(e.N<<1|e.Rank))).IntN(4)) * 20 * time.Microsecond * time.Duration(1-min(1, e.N%5))
		}}
		tr.ready = func(r, p int, done bool) {
			if !done {
				time.Sleep(time.Duration(rand.New(rand.NewPCG(seed, uint64(p<<1|r))).IntN(50)) * time.Microsecond)
			}
		}
		oracleOf(2, 1).check(t, tr, tr.must(t))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestE02Repeats: ten runs of one training, with gradients whose sums depend on
// their order, are the same bits.
func TestE02Repeats(t *testing.T) {
	for stage := range 3 {
		var first outcome
		for n := range 10 {
			cfg := config(func(c *zero.Config) {
				c.BF16.Enabled = true
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = true
				c.ZeroOptimization.ReduceBucketSize = 67
			})
			out := training{cfg: cfg, world: 4, sizes: f1, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.01), grad: noise(11, 4), hooks: 2, order: shuffled(len(f1), uint64(n))}.must(t)
			if n == 0 {
				first = out
			}
			if d := sameTraining(first, out); d != "" {
				t.Fatalf("stage %d, run %d: %s", stage, n, d)
			}
		}
	}
}

// TestE02Overlaps: eight buckets of 50 ms compute and 50 ms communication take
// 450 ms when they overlap, and 800 ms when they do not. (Time is simulated.)
func TestE02Overlaps(t *testing.T) {
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(func(c *zero.Config) {
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.OverlapComm = overlap
					c.ZeroOptimization.ReduceBucketSize = 10
				})
				tr := training{cfg: cfg, world: 2, sizes: slices.Repeat([]int{10}, 8), grad: exact(2)}
				tr.ready = func(_, _ int, done bool) {
					if !done {
						time.Sleep(50 * time.Millisecond)
					}
				}
				tr.gates.Delay = func(e gated.Event) time.Duration {
					if gradientBucket(e) {
						return 50 * time.Millisecond
					}
					return 0
				}
				start := time.Now()
				tr.must(t)
				limit := 800 * time.Millisecond
				if overlap {
					limit = 450 * time.Millisecond
				}
				if d := time.Since(start); d != limit {
					t.Errorf("stage %d, overlap %v: %v, want %v", stage, overlap, d, limit)
				}
			})
		}
	}
}

// TestE02HeldForever: a backward that waits for a buffer whose reduction never ends
// returns with its context, and tells the other ranks.
func TestE02HeldForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(func(c *zero.Config) {
			c.ZeroOptimization.Stage = 2
			c.ZeroOptimization.OverlapComm = true
			c.ZeroOptimization.ReduceBucketSize = 67
		})
		start := time.Now()
		_, errs := onRanks(t, 2, gated.Options{Hold: gradientBucket}, nil, loop(cfg, f1, 2, func(ctx context.Context, rank int) (context.Context, context.CancelFunc) {
			if rank == 1 {
				return context.WithTimeout(ctx, 300*time.Millisecond)
			}
			return context.WithCancel(ctx)
		}, nil))
		wantErrors(t, errs, "deadline exceeded")
		wantError(t, "rank 0", errs[0], "rank 1: ", `"gradient bucket" of step 1, bucket 0`)
		if d := time.Since(start); d > time.Second {
			t.Errorf("took %v", d)
		}
	})
}
