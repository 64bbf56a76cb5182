package zero

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func planOf(t fataler, sizes []int, world, bucket int) *Plan {
	t.Helper()
	params := make([]Param, len(sizes))
	for i, n := range sizes {
		params[i] = Param{Name: fmt.Sprintf("p%d", i), Shape: []int{n}}
	}
	p, err := NewPlan(params, config(func(c *Config) { c.ZeroOptimization.ReduceBucketSize = bucket }), world)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPartitions(t *testing.T) {
	for _, tc := range []struct {
		sizes            []int
		world            int
		partition, empty int
		padding          int
	}{
		{[]int{5, 3, 6}, 1, 14, 0, 0},
		{[]int{5, 3, 6}, 3, 5, 0, 1},
		{[]int{5, 3, 6}, 4, 4, 0, 2},
		{[]int{5, 3, 6}, 5, 3, 0, 1},
		{[]int{5, 3, 6}, 20, 1, 6, 6},
		{fixture, 3, 402, 0, 1},
		{fixture, 4, 302, 0, 3},
		{fixture, 8, 151, 0, 3},
		{[]int{1, 1}, 8, 1, 6, 6},
		{[]int{0}, 4, 0, 4, 0},
		{[]int{1 << 26}, 3, 21846 * 1024, 0, 21846*1024*3 - 1<<26},
	} {
		p := planOf(t, tc.sizes, tc.world, 5e8)
		empty := 0
		for r := range tc.world {
			if p.Owned(r).Len() == 0 {
				empty++
			}
		}
		if p.Partition != tc.partition || p.Padding() != tc.padding || empty != tc.empty {
			t.Errorf("%v over %d: partition %d, padding %d, %d empty; want %d, %d, %d", tc.sizes, tc.world, p.Partition, p.Padding(), empty, tc.partition, tc.padding, tc.empty)
		}
	}
}

func TestNormBlock(t *testing.T) {
	for elements, want := range map[int]int{0: 1, 1: 1, 1 << 17: 2, 1<<17 - 1: 1, 1 << 20: 16, 1<<26 - 1: 512, 1 << 26: 1024, 1 << 40: 1024} {
		if got := normBlock(elements); got != want {
			t.Errorf("normBlock(%d) = %d, want %d", elements, got, want)
		}
	}
}

// TestBuckets: buckets hold whole parameters from the last to the first; a
// parameter larger than a bucket has buckets of its own; none is empty.
func TestBuckets(t *testing.T) {
	for _, tc := range []struct {
		sizes  []int
		bucket int
		want   []int
	}{
		{fixture, 100, append(append([]int{100, 30, 67}, slices.Repeat([]int{100}, 10)...), 1, 7)},
		{fixture, 131, append(append([]int{130, 67}, slices.Repeat([]int{131}, 7)...), 84, 7)},
		{fixture, 1001, []int{197, 1001, 7}},
		{fixture, 1204, []int{1198, 7}},
		{fixture, 1205, []int{1205}},
		{fixture, 5e8, []int{1205}},
		{[]int{16384}, 10000, []int{10000, 6384}},
		{[]int{100, 100, 50, 16384}, 16384, []int{16384, 250}},
		{[]int{30, 30, 250}, 100, []int{100, 100, 50, 60}},
		{[]int{8, 0, 24}, 24, []int{24, 8}},
		{[]int{0}, 10, nil},
	} {
		var got []int
		for _, b := range planOf(t, tc.sizes, 2, tc.bucket).Buckets {
			got = append(got, b.Len())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%v in buckets of %d: %v, want %v", tc.sizes, tc.bucket, got, tc.want)
		}
	}
	if n := len(planOf(t, fixture, 2, 1).Buckets); n != fixtureLen {
		t.Errorf("%d buckets of 1 element, want %d", n, fixtureLen)
	}
}

// TestPlanCovers: buckets and partitions each cover every element once, whatever
// the sizes.
func TestPlanCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 200_000), 1, 30).Draw(t, "sizes")
		world := rapid.IntRange(1, 40).Draw(t, "world")
		size := rapid.IntRange(1000, 1_000_000).Draw(t, "bucket")
		p := planOf(t, sizes, world, size)
		at := p.Elements
		for _, b := range p.Buckets {
			if b.Hi != at || b.Len() < 1 || b.Len() > size {
				t.Fatalf("bucket %+v after element %d", b, at)
			}
			at = b.Lo
			if s := p.spansIn(b); len(s) > 1 && (s[0].Lo < b.Lo || s[len(s)-1].Hi > b.Hi) {
				t.Fatalf("bucket %+v cuts a parameter and holds another", b)
			}
			bounds := make([]int, world+1)
			p.owners(b, bounds)
			for r := range world {
				own := b.intersect(p.Owned(r))
				if own.Len() != bounds[r+1]-bounds[r] || own.Len() > 0 && own.Lo-b.Lo != bounds[r] {
					t.Fatalf("bucket %+v: rank %d owns %+v, bounds %v", b, r, own, bounds)
				}
			}
		}
		if at != 0 {
			t.Fatalf("buckets end at element %d", at)
		}
		at = 0
		for r := range world {
			own := p.Owned(r)
			if own.Len() > 0 && own.Lo != at || own.Lo%p.NormBlock != 0 && own.Len() > 0 {
				t.Fatalf("rank %d owns %+v after element %d", r, own, at)
			}
			at += own.Len()
		}
		if at != p.Elements || p.Partition%p.NormBlock != 0 {
			t.Fatalf("partitions of %d cover %d of %d elements", p.Partition, at, p.Elements)
		}
	})
}

// TestZeroSized: an empty parameter is as if it were absent, wherever it stands.
func TestZeroSized(t *testing.T) {
	for _, sizes := range [][]int{{8, 0, 24}, {8, 8, 0}, {0, 8, 8}, {16, 0, 16}, {0}, {0, 0}, {7, 0, 1001}} {
		var without []int
		for _, n := range sizes {
			if n > 0 {
				without = append(without, n)
			}
		}
		for stage := range 3 {
			cfg := config(func(c *Config) { c.ZeroOptimization.Stage = stage; c.ZeroOptimization.ReduceBucketSize = 100 })
			tr := trial{cfg: cfg, world: 2, sizes: sizes, rule: DefaultAdamW(), steps: 3, lr: 0.1, init: initial, grad: noise(1, 2)}
			out := tr.must(t)
			if len(without) == 0 {
				if r := out.results[2]; r.Norm != 0 || !r.Applied {
					t.Errorf("%v: %+v", sizes, r)
				}
				continue
			}
			tr.sizes = without
			if err := sameOutcome(out, tr.must(t)); err != nil {
				t.Errorf("%v, stage %d: %v", sizes, stage, err)
			}
		}
	}
}

// TestFewerElementsThanRanks: ranks that own nothing only join the collectives.
func TestFewerElementsThanRanks(t *testing.T) {
	for stage := range 3 {
		var first outcome
		for _, world := range []int{1, 4, 8} {
			cfg := config(func(c *Config) { c.GradientAccumulationSteps = 8 / world; c.ZeroOptimization.Stage = stage })
			out := trial{cfg: cfg, world: world, sizes: []int{1, 1}, rule: DefaultAdamW(), steps: 5, lr: 0.1, init: initial, grad: noise(3, world)}.must(t)
			if first.plan == nil {
				first = out
			} else if err := sameOutcome(first, out); err != nil {
				t.Errorf("stage %d, world %d: %v", stage, world, err)
			}
		}
	}
}
