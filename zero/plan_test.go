package zero

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func planOf(t fataler, sizes []int, world, bucket int) *Plan {
	t.Helper()
	return planWith(t, sizes, world, func(c *Config) { c.ZeroOptimization.ReduceBucketSize = bucket })
}

func planWith(t fataler, sizes []int, world int, change func(*Config)) *Plan {
	t.Helper()
	params := make([]Param, len(sizes))
	for i, n := range sizes {
		params[i] = Param{Name: fmt.Sprintf("p%d", i), Shape: []int{n}}
	}
	p, err := NewPlan(params, config(change), world)
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
// the sizes, and the places in a bucket's buffer are in order of the owners.
func TestPlanCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 200_000), 1, 30).Draw(t, "sizes")
		world := rapid.IntRange(1, 40).Draw(t, "world")
		size := rapid.IntRange(1000, 1_000_000).Draw(t, "bucket")
		p := planWith(t, sizes, world, func(c *Config) {
			c.ZeroOptimization.ReduceBucketSize = size
			c.ZeroOptimization.RoundRobinGradients = rapid.Bool().Draw(t, "round robin")
			c.ZeroOptimization.ContiguousGradients = rapid.Bool().Draw(t, "contiguous")
			c.ZeroOptimization.Stage = 2
		})
		at := p.Elements
		for _, b := range p.Buckets {
			if b.Hi != at || b.Len() < 1 || b.Len() > size {
				t.Fatalf("bucket %+v after element %d", b, at)
			}
			at = b.Lo
			if s := p.spansIn(b); len(s) > 1 && (s[0].Lo < b.Lo || s[len(s)-1].Hi > b.Hi || !p.cfg.ZeroOptimization.ContiguousGradients) {
				t.Fatalf("bucket %+v cuts a parameter and holds another", b)
			}
			checkPlaces(t, p, b)
		}
		if at != 0 {
			t.Fatalf("buckets end at element %d", at)
		}
		checkPartitions(t, p)
	})
}

// checkPlaces: each element of bucket b has a place, in the segment of its owner,
// in ascending order there.
func checkPlaces(t *rapid.T, p *Plan, b Interval) {
	bounds, total := make([]int, p.World+1), 0
	p.owners(b, bounds)
	next := slices.Clone(bounds)
	for r := range p.World {
		if n := p.Owned(r).cut(b).Len(); n != bounds[r+1]-bounds[r] {
			t.Fatalf("bucket %+v: rank %d owns %d elements, bounds %v", b, r, n, bounds)
		}
	}
	for _, pl := range p.places(b) {
		owner := p.segmentsIn(pl.Interval)[0].owner
		if off := p.Owned(owner).offset(pl.Lo); pl.at != next[owner] || off-p.Owned(owner).offset(b.Lo) != pl.at-bounds[owner] {
			t.Fatalf("bucket %+v: %+v of rank %d, next place %d", b, pl, owner, next[owner])
		}
		next[owner] += pl.Len()
		total += pl.Len()
	}
	if total != b.Len() {
		t.Fatalf("bucket %+v has places for %d elements", b, total)
	}
}

// checkPartitions: the ranks' regions are whole norm blocks, apart, of equal size,
// and cover all elements.
func checkPartitions(t *rapid.T, p *Plan) {
	owner, total := make([]int, ceilDiv(p.Elements, p.NormBlock)), 0
	for r := range p.World {
		own := p.Owned(r)
		if own.Len() > p.Partition {
			t.Fatalf("rank %d owns %d elements, a partition has %d", r, own.Len(), p.Partition)
		}
		total += own.Len()
		for _, run := range own.Runs {
			if run.Lo%p.NormBlock != 0 || run.Hi%p.NormBlock != 0 && run.Hi != p.Elements {
				t.Fatalf("rank %d owns %+v with norm blocks of %d", r, run, p.NormBlock)
			}
			for k := run.Lo / p.NormBlock; k < ceilDiv(run.Hi, p.NormBlock); k++ {
				if owner[k]++; owner[k] > 1 {
					t.Fatalf("block %d has two owners", k)
				}
			}
			own.each(own.cut(run), func(iv Interval, at int) {
				if iv != run || own.offset(run.Lo) != at {
					t.Fatalf("run %+v is at %d, found as %+v", run, at, iv)
				}
			})
		}
	}
	if total != p.Elements || p.Partition%p.NormBlock != 0 {
		t.Fatalf("partitions of %d cover %d of %d elements", p.Partition, total, p.Elements)
	}
}

// TestRoundRobin: parameters go to the ranks by turns, as far as equal shares allow.
func TestRoundRobin(t *testing.T) {
	for _, tc := range []struct {
		sizes []int
		world int
		want  [][]Interval
	}{
		{[]int{10, 10, 10, 10}, 2, [][]Interval{{{0, 10}, {20, 30}}, {{10, 20}, {30, 40}}}},
		{[]int{10, 10, 10, 10}, 1, [][]Interval{{{0, 40}}}},
		{[]int{6, 0, 2, 4}, 2, [][]Interval{{{0, 6}}, {{6, 12}}}},
		{[]int{6, 2, 4}, 2, [][]Interval{{{0, 6}}, {{6, 12}}}},
		{[]int{2, 6, 4}, 2, [][]Interval{{{0, 2}, {8, 12}}, {{2, 8}}}},
		{[]int{4, 4, 8}, 2, [][]Interval{{{0, 4}, {8, 12}}, {{4, 8}, {12, 16}}}},
		{[]int{1}, 3, [][]Interval{{{0, 1}}, nil, nil}},
	} {
		p := planWith(t, tc.sizes, tc.world, func(c *Config) { c.ZeroOptimization.RoundRobinGradients = true })
		for r, want := range tc.want {
			if got := p.Owned(r).Runs; !slices.Equal(got, want) {
				t.Errorf("%v over %d: rank %d owns %v, want %v", tc.sizes, tc.world, r, got, want)
			}
		}
	}
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
