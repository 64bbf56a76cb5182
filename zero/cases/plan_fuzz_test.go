package cases

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/zero"
)

// FuzzPlan holds what must be true of every layout: partitions and buckets each
// cover every element once; partitions are equal shares in whole norm blocks;
// buckets keep the limit, and depend on the model and the bucket size alone; the
// predictions of memory add up.
//
// The first bytes are world size, bucket size and switches; then come sizes of two
// bytes, with frozen parameters and formats in their upper bits.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 100, 0, 0, 7, 0, 0, 0, 0xe9, 3, 64, 0, 3, 0, 130, 0})
	f.Add([]byte{7, 1, 0, 0xff, 1, 0, 1, 0, 0, 0x40, 9, 0x80})
	f.Add([]byte{200, 0, 0x10, 0x5a, 0xff, 0x1f, 0xff, 0x3f, 0xff, 0x5f})
	f.Fuzz(func(t *testing.T, in []byte) {
		params, cfg, world := planInput(in)
		p, err := zero.NewPlan(params, cfg, world)
		trainable := slices.ContainsFunc(params, func(p zero.Param) bool { return !p.Frozen })
		if trainable != (err == nil) {
			t.Fatalf("something to train: %v, error: %v", trainable, err)
		}
		if err != nil {
			return
		}
		checkPartitions(t, p, world)
		checkBuckets(t, p, cfg.ZeroOptimization.ReduceBucketSize)
		checkMemory(t, p, params, world)
		other, err := zero.NewPlan(params, cfg, world%7+1)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Buckets, other.Buckets) || p.NormBlock != other.NormBlock {
			t.Fatalf("buckets or norm blocks depend on the world size: %d of %d elements at world %d, %d of %d at %d",
				len(p.Buckets), p.NormBlock, world, len(other.Buckets), other.NormBlock, world%7+1)
		}
	})
}

func planInput(in []byte) ([]zero.Param, zero.Config, int) {
	in = append(in, make([]byte, max(0, 4-len(in)))...)
	switches := in[3]
	cfg := config(func(c *zero.Config) {
		z := &c.ZeroOptimization
		z.Stage = int(switches) % 3
		z.ContiguousGradients = switches&4 != 0
		z.RoundRobinGradients = switches&8 != 0
		z.UseMultiRankBucketAllreduce = switches&16 != 0
		z.ReduceScatter = switches&32 != 0
		z.OverlapComm = switches&64 != 0
		c.BF16.Enabled = switches&128 != 0
	})
	var params []zero.Param
	total := 0
	for in := in[4:]; len(in) >= 2 && len(params) < 200; in = in[2:] {
		v := int(binary.LittleEndian.Uint16(in))
		n := v & 0x1fff
		if v%11 == 0 {
			n *= 1000 // norm blocks of more than one element
		}
		total += n
		params = append(params, zero.Param{
			Name: fmt.Sprintf("p%d", len(params)), Shape: []int{n},
			Frozen: v>>13 == 7, DType: []string{"", "", "fp32", "bf16", "fp16"}[v>>13%5],
		})
	}
	cfg.ZeroOptimization.ReduceBucketSize = 1 + total/2000 + 37*(int(in[1])|int(in[2])<<8)
	return params, cfg, 1 + int(in[0])
}

// checkPartitions: every element has one owner, and borders are those of blocks.
func checkPartitions(t *testing.T, p *zero.Plan, world int) {
	t.Helper()
	var runs []zero.Interval
	owned := 0
	for r := range world {
		region := p.Owned(r)
		owned += region.Len()
		if region.Len() > p.Partition {
			t.Fatalf("rank %d owns %d elements, a partition has %d", r, region.Len(), p.Partition)
		}
		for _, run := range region.Runs {
			if run.Len() < 1 || run.Lo%p.NormBlock != 0 || run.Hi%p.NormBlock != 0 && run.Hi != p.Elements {
				t.Fatalf("rank %d owns %+v: norm blocks have %d elements", r, run, p.NormBlock)
			}
			runs = append(runs, run)
		}
	}
	if owned != p.Elements || p.Partition*world-p.Elements != p.Padding() || p.Padding() < 0 {
		t.Fatalf("%d elements, %d owned, padding %d", p.Elements, owned, p.Padding())
	}
	// A partition is the smallest share in whole blocks.
	if blocks := (p.Elements + p.NormBlock - 1) / p.NormBlock; p.Partition != (blocks+world-1)/world*p.NormBlock {
		t.Fatalf("partitions of %d for %d blocks of %d on %d ranks", p.Partition, blocks, p.NormBlock, world)
	}
	cover(t, runs, p.Elements)
}

// checkBuckets: they cover the elements from the end to the start.
func checkBuckets(t *testing.T, p *zero.Plan, size int) {
	t.Helper()
	at, longest := p.Elements, 0
	for _, b := range p.Buckets {
		if b.Hi != at || b.Len() < 1 || b.Len() > size {
			t.Fatalf("bucket %+v of at most %d after element %d", b, size, at)
		}
		at, longest = b.Lo, max(longest, b.Len())
	}
	if at != 0 || longest != p.BucketLen() {
		t.Fatalf("buckets end at %d; the longest has %d elements, BucketLen says %d", at, longest, p.BucketLen())
	}
}

// cover checks that runs, in any order, hold every element once.
func cover(t *testing.T, runs []zero.Interval, elements int) {
	t.Helper()
	slices.SortFunc(runs, func(a, b zero.Interval) int { return a.Lo - b.Lo })
	at := 0
	for _, r := range runs {
		if r.Lo != at {
			t.Fatalf("element %d has no owner, or two", min(at, r.Lo))
		}
		at = r.Hi
	}
	if at != elements {
		t.Fatalf("element %d has no owner", at)
	}
}

// checkMemory: shards are shares of the whole, and nothing is negative.
func checkMemory(t *testing.T, p *zero.Plan, params []zero.Param, world int) {
	t.Helper()
	var master int64
	all := 0
	for _, param := range params {
		n, _ := param.Len()
		all += n
	}
	for r := range world {
		m := p.Memory(r, zero.DefaultAdamW(), true)
		master += m.Master
		if m.Moments != 2*m.Master || m.Parameters < int64(2*all) || m.Parameters > int64(4*all) || min(m.Gradients, m.Accumulators, m.Buckets, m.Workspace) < 0 {
			t.Fatalf("rank %d: %+v for %d elements in all", r, m, all)
		}
		if m.Total() != m.Parameters+m.Gradients+m.Accumulators+m.Master+m.Moments+m.Buckets+m.Workspace {
			t.Fatalf("rank %d: the total of %+v is %d", r, m, m.Total())
		}
	}
	if whole := int64(4 * p.Elements); master != whole && master != whole*int64(world) {
		t.Fatalf("%d bytes of master weights for %d elements on %d ranks", master, p.Elements, world)
	}
}
