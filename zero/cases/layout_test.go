package cases

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
)

// Section A: buckets, overlap, layout of partitions.

// TestE01BucketSize: reduce_bucket_size is a matter of speed and memory. A run got
// worse the smaller its buckets were (DeepSpeed #6351, #5242, #5294).
func TestE01BucketSize(t *testing.T) {
	buckets := []int{1, 7, 67, 100, 130, 131, 1001, 1204, 1205, 1206, 5e8}
	o := oracleOf(4, 1)
	var first outcome
	for _, bucket := range buckets {
		for n, cfg := range allConfigs(func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = bucket }) {
			if bucket < 67 && testing.Short() && n%8 != 0 {
				continue // thousands of collectives each
			}
			tr := training{cfg: cfg, world: 4, sizes: f1, grad: exact(4)}
			out := tr.must(t)
			o.check(t, tr, out)
			if first.results == nil {
				first = out
			}
			if d := sameTraining(first, out); d != "" {
				t.Fatalf("bucket %d gives other bits than bucket %d: %s\n%+v", bucket, buckets[0], d, cfg)
			}
		}
	}
}

// TestE01FlushSizes: the buckets that cross the wire, in the order they do. A
// bucket is closed before a parameter that does not fit; a parameter that is larger
// than a bucket travels in pieces of its own. Nothing empty is ever sent.
func TestE01FlushSizes(t *testing.T) {
	for _, tc := range []struct {
		bucket int
		sizes  []int
	}{
		{1, pieces(f1Len, 1)},
		{100, slices.Concat(pieces(130, 100), []int{67}, pieces(1001, 100), []int{7})},
		{131, slices.Concat([]int{130, 67}, pieces(1001, 131), []int{7})},
		{1001, []int{197, 1001, 7}},
		{1204, []int{1198, 7}},
		{1205, []int{1205}},
		{1206, []int{1205}},
		{5e8, []int{1205}},
	} {
		for stage := range 3 {
			cfg := config(func(c *zero.Config) {
				c.ZeroOptimization.Stage = stage
				c.ZeroOptimization.OverlapComm = true
				c.ZeroOptimization.ReduceBucketSize = tc.bucket
			})
			out := training{cfg: cfg, world: 2, sizes: f1, grad: exact(2)}.must(t)
			for r := range 2 {
				if got := sentSizes(out.gates.Log(r)); !slices.Equal(got, tc.sizes) {
					t.Errorf("stage %d, bucket %d, rank %d: reductions of %v elements, want %v", stage, tc.bucket, r, got, tc.sizes)
				}
			}
		}
	}
}

// pieces cuts n elements into buckets of size.
func pieces(n, size int) []int {
	p := slices.Repeat([]int{size}, n/size)
	if n%size > 0 {
		p = append(p, n%size)
	}
	return p
}

// sentSizes lists the elements of every reduction of gradients.
func sentSizes(log []gated.Event) []int {
	var sizes []int
	for _, e := range log {
		if gradientBucket(e) {
			sizes = append(sizes, e.Sent)
		}
	}
	return sizes
}

// TestE01OrderOfSum: rank values 256, 1, 1, 1 have the mean 64.75 wherever the
// element lies in whatever bucket (65 where the result is a bf16 weight).
func TestE01OrderOfSum(t *testing.T) {
	const n = 1000
	for _, bucket := range []int{1, 3, n} {
		for stage := range 3 {
			for _, model := range []string{"fp32", "bf16"} {
				cfg := config(func(c *zero.Config) {
					c.BF16.Enabled = model == "bf16"
					c.CommunicationDataType = "bf16"
					c.ZeroOptimization.Stage = stage
					c.ZeroOptimization.OverlapComm = true
					c.ZeroOptimization.ReduceBucketSize = bucket
				})
				at := []int{0, 1, n / 2, n - 1}
				out := training{cfg: cfg, world: 4, sizes: []int{n}, grad: func(_, _, r, i int) float32 {
					switch {
					case !slices.Contains(at, i):
						return 0
					case r == 0:
						return 256
					}
					return 1
				}}.must(t)
				right := 64.75
				if model == "bf16" {
					right = 65
				}
				for _, i := range at {
					want(t, fmt.Sprintf("%s, stage %d, bucket %d, element %d", model, stage, bucket, i), -float64(out.last()[i]), right,
						mistake{64, "ranks were summed one after the other in bf16"})
				}
			}
		}
	}
}

// TestE01TinyUNet: 20 steps of AdamW in bf16 on a small UNet have the same losses
// for tiny and huge buckets, with and without overlap.
func TestE01TinyUNet(t *testing.T) {
	steps := 20
	if testing.Short() {
		steps = 4
	}
	var first []uint64
	for _, bucket := range []int{1, 1000, 1e9} {
		for _, overlap := range []bool{false, true} {
			cfg := config(func(c *zero.Config) {
				c.BF16.Enabled = true
				c.GradientClipping = 1
				c.ZeroOptimization.Stage = 2
				c.ZeroOptimization.OverlapComm = overlap
				c.ZeroOptimization.ReduceBucketSize = bucket
			})
			losses := tinyUNet{cfg: cfg, world: 2, steps: steps}.must(t).losses
			if first == nil {
				first = losses
			}
			if !slices.Equal(losses, first) {
				t.Errorf("bucket %d, overlap %v: other losses than bucket 1", bucket, overlap)
			}
		}
	}
	if first[0] == first[steps-1] {
		t.Error("the loss does not move")
	}
}

// TestE03OversizeParameter: a parameter as large as a bucket, or larger, is reduced
// once, also in another communication format, and the count of elements starts
// anew after it (DeepSpeed #4321, #7653, #7415).
func TestE03OversizeParameter(t *testing.T) {
	for _, tc := range []struct {
		sizes  []int
		bucket int
		want   []int // reductions, in order
	}{
		{[]int{100, 100, 50, 16384}, 100, slices.Concat(slices.Repeat([]int{100}, 163), []int{84, 50, 100, 100})},
		{[]int{16384}, 10000, []int{10000, 6384}},
		{[]int{16384}, 16384, []int{16384}},
		{[]int{100, 100}, 100, []int{100, 100}},
		{[]int{30, 30, 250}, 100, []int{100, 100, 50, 60}},
		{[]int{30, 250, 30}, 100, []int{30, 100, 100, 50, 30}},
	} {
		for _, cfg := range allConfigs(func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = tc.bucket }) {
			if testing.Short() && cfg.ZeroOptimization.OverlapComm {
				continue
			}
			out := training{cfg: cfg, world: 2, sizes: tc.sizes, grad: exact(2)}.must(t)
			for i, w := range out.last() {
				if right := -(exact(2)(0, 0, 0, i) + exact(2)(0, 0, 1, i)) / 2; w != right {
					t.Fatalf("%v in buckets of %d: weight %d is %v, want %v\n%+v", tc.sizes, tc.bucket, i, w, right, cfg)
				}
			}
			right := tc.want
			if z := cfg.ZeroOptimization; z.Stage > 0 && !z.ContiguousGradients {
				right = nil // each parameter by itself
				for _, n := range slices.Backward(tc.sizes) {
					right = append(right, pieces(n, tc.bucket)...)
				}
			}
			if got := sentSizes(out.gates.Log(1)); !slices.Equal(got, right) {
				t.Fatalf("%v in buckets of %d: reductions of %v, want %v\n%+v", tc.sizes, tc.bucket, got, right, cfg)
			}
		}
	}
}

// TestE03MixedFormats: a bucket never holds two formats: norm weights in fp32 among
// convolutions in bf16 have buckets of their own (DeepSpeed #7653, FairScale #583).
func TestE03MixedFormats(t *testing.T) {
	o := oracleOf(2, 1)
	for _, wire := range []string{"", "bf16", "fp32"} {
		for _, bucket := range []int{100, 5e8} {
			for n, cfg := range allConfigs(func(c *zero.Config) { c.BF16.Enabled = true; c.ZeroOptimization.ReduceBucketSize = bucket }) {
				cfg.CommunicationDataType = wire
				cfg.ZeroOptimization.RoundRobinGradients = n%3 == 0
				tr := training{cfg: cfg, world: 2, sizes: f1, grad: exact(2), edit: func(p []zero.Param) { p[2].DType, p[5].DType = "fp32", "fp32" }}
				out := tr.must(t)
				o.check(t, tr, out)
				elements := map[dtype.DType]int{}
				for _, e := range out.gates.Log(0) {
					if gradientBucket(e) {
						elements[e.SentAs] += e.Sent
					}
				}
				right := map[dtype.DType]int{dtype.BF16: 74, dtype.F32: 1131}
				switch wire {
				case "bf16":
					right = map[dtype.DType]int{dtype.BF16: f1Len}
				case "fp32":
					right = map[dtype.DType]int{dtype.F32: f1Len}
				}
				if !maps.Equal(elements, right) {
					t.Fatalf("wire %q: elements sent by format %v, want %v\n%+v", wire, elements, right, cfg)
				}
			}
		}
	}
}

// TestE04ZeroSized: a parameter without elements, anywhere, is as if it were not
// there, and keeps its place and shape (DeepSpeed #8279, #8297).
func TestE04ZeroSized(t *testing.T) {
	for _, tc := range []struct {
		world, bucket int
		shapes        [][]int
	}{
		{2, 5e8, [][]int{{8}, {0}, {24}}},
		{2, 5e8, [][]int{{8}, {8}, {0, 4}}},
		{2, 5e8, [][]int{{0, 4}, {8}, {8}}},
		{2, 5e8, [][]int{{16}, {0, 4}, {16}}},
		{2, 5e8, [][]int{{0, 4}}},
		{2, 8, [][]int{{0}, {8}, {4, 0}, {0}, {24}, {0}}},
		{4, 100, [][]int{{7}, {0, 4}, {1001}}},
	} {
		var plain [][]int
		for _, s := range tc.shapes {
			if !slices.Contains(s, 0) {
				plain = append(plain, s)
			}
		}
		for _, cfg := range allConfigs(func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = tc.bucket }) {
			tr := training{cfg: cfg, world: tc.world, shapes: tc.shapes, steps: 3, rule: zero.DefaultAdamW(), rate: rate(0.01), grad: exact(2)}
			out := tr.must(t)
			if slices.Contains(sentSizes(out.gates.Log(0)), 0) {
				t.Fatalf("%v: an empty reduction", tc.shapes)
			}
			for i, s := range tc.shapes {
				if slices.Contains(s, 0) && len(out.all[i]) != 0 {
					t.Fatalf("%v: parameter %d has %d elements", tc.shapes, i, len(out.all[i]))
				}
			}
			if len(plain) == 0 {
				continue
			}
			tr.shapes = plain
			if d := sameTraining(tr.must(t), out); d != "" {
				t.Fatalf("%v is not as without the empty parameters: %s\n%+v", tc.shapes, d, cfg)
			}
		}
	}
}

func rate(lr float64) func(int) float64 { return func(int) float64 { return lr } }

// TestE05FewElements: fewer elements than ranks, odd sizes, odd worlds
// (DeepSpeed #129, Megatron-LM #792): the same training as on one rank.
func TestE05FewElements(t *testing.T) {
	for _, sizes := range [][]int{{1, 1}, {5, 3, 6}, {1}, f1} {
		for stage := range 3 {
			one := func(world, accum int) outcome {
				cfg := config(func(c *zero.Config) {
					c.GradientAccumulationSteps = accum
					c.ZeroOptimization.Stage = stage
				})
				// Micro-batch g = m·world + r of the step, whatever the ranks.
				grad := func(s, m, r, i int) float32 { return exact(1)(0, s*8+m*world+r, 0, i) }
				return training{cfg: cfg, world: world, sizes: sizes, steps: 5, rule: zero.DefaultAdam(), rate: rate(0.1), grad: grad}.must(t)
			}
			for _, world := range []int{4, 8} {
				if d := sameTraining(one(1, world), one(world, 1)); d != "" {
					t.Errorf("%v, stage %d: world %d and world 1 differ: %s", sizes, stage, world, d)
				}
			}
		}
	}
}

// TestE05Partitions: every rank's partition, the padding, and who owns nothing.
func TestE05Partitions(t *testing.T) {
	for _, tc := range []struct {
		sizes                            []int
		world, partition, padding, empty int
	}{
		{[]int{5, 3, 6}, 1, 14, 0, 0},
		{[]int{5, 3, 6}, 3, 5, 1, 0},
		{[]int{5, 3, 6}, 4, 4, 2, 0},
		{[]int{5, 3, 6}, 5, 3, 1, 0},
		{[]int{5, 3, 6}, 20, 1, 6, 6},
		{f1, 3, 402, 1, 0},
		{f1, 4, 302, 3, 0},
		{f1, 8, 151, 3, 0},
	} {
		cfg := config(func(c *zero.Config) { c.ZeroOptimization.Stage = 2 })
		out := training{cfg: cfg, world: tc.world, sizes: tc.sizes, grad: exact(1)}.must(t)
		p, empty, bytes := out.plan, 0, int64(0)
		for r := range tc.world {
			n := p.Owned(r).Len()
			if n == 0 {
				empty++
			}
			if m := out.peak[r]; m.Master != int64(4*n) || m.Accumulators != int64(4*n) {
				t.Errorf("%v, world %d: rank %d has %d bytes of master weights and %d of accumulators for %d elements", tc.sizes, tc.world, r, m.Master, m.Accumulators, n)
			}
			bytes += out.peak[r].Master
		}
		if p.Partition != tc.partition || p.Padding() != tc.padding || empty != tc.empty {
			t.Errorf("%v, world %d: partitions of %d, padding %d, %d empty; want %d, %d, %d", tc.sizes, tc.world, p.Partition, p.Padding(), empty, tc.partition, tc.padding, tc.empty)
		}
		// Padding cannot reach a norm, a weight or a file: it has no memory.
		if bytes != int64(4*p.Elements) {
			t.Errorf("%v, world %d: %d bytes of master weights for %d elements", tc.sizes, tc.world, bytes, p.Elements)
		}
		var squares float64
		for _, w := range out.last() {
			squares += float64(w) * float64(w)
		}
		near(t, "norm", out.results[0].Norm, math.Sqrt(squares), 1e-9)
	}
}

// TestE06ReadyOrder: ranks whose gradients become ready in different orders never
// add different parameters to each other (DeepSpeed #2343): every bucket's content
// follows from the order of registration, and buckets are sent in one order.
func TestE06ReadyOrder(t *testing.T) {
	value := func(r, layer int) float32 { return float32(1 + 10*layer + 2*r) }
	orders := [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}}
	for _, bucket := range []int{4, 8, 3, 5e8} {
		for _, world := range []int{2, 3, 4} {
			for _, cfg := range allConfigs(func(c *zero.Config) { c.ZeroOptimization.ReduceBucketSize = bucket }) {
				out := training{cfg: cfg, world: world, sizes: []int{4, 4, 4, 4}, steps: 3,
					grad:  func(_, _, r, i int) float32 { return value(r, i/4) },
					order: func(s, _, r int) []int { return orders[(r+s)%4] },
				}.must(t)
				for layer := range 4 {
					right := float64(value(0, layer)) + float64(world-1) // the mean of 2r over the ranks
					mixed := (float64(value(0, layer)) + float64(value(1, 3-layer))) / 2
					for s := range out.weights {
						want(t, fmt.Sprintf("bucket %d, world %d, layer %d after %d steps", bucket, world, layer, s+1), -float64(out.weights[s][4*layer]), right*float64(s+1),
							mistake{mixed * float64(s+1), "another layer of the other rank was added"})
					}
				}
			}
		}
	}
}

// TestE06RegistrationOrder: ranks that register in different orders are told so,
// all of them, with the first parameter that differs, before anything is summed.
func TestE06RegistrationOrder(t *testing.T) {
	names := [][]string{{"first", "second", "third", "fourth"}, {"first", "third", "second", "fourth"}}
	for stage := range 3 {
		g, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
			var params []zero.Param
			for _, name := range names[c.Rank()] {
				params = append(params, zero.Param{Name: name, Shape: []int{4}, Init: make([]float32, 4)})
			}
			o, err := zero.New(t.Context(), params, config(func(c *zero.Config) { c.ZeroOptimization.Stage = stage }), c, zero.SGD{})
			if err == nil {
				o.Close()
			}
			return err
		})
		wantErrors(t, errs, `parameter 1: "second"`, `parameter 1: "third"`, "rank 0", "rank 1")
		if n := len(sentSizes(g.Log(0))); n != 0 {
			t.Errorf("%d reductions before the error", n)
		}
	}
}

// TestE06OrderOnTheWire: should two ranks ever start different reductions, of equal
// size or not, both get an error that names both; nothing is added.
func TestE06OrderOnTheWire(t *testing.T) {
	for _, sizes := range [][2]int{{4, 4}, {4, 8}} {
		acc := [2]dtype.Buffer{}
		_, errs := onRanks(t, 2, gated.Options{}, nil, func(c comm.Communicator) error {
			var errs []error
			for k := range 2 {
				b := (k + c.Rank()) % 2 // rank 1 sends bucket 1 first
				send, recv := dtype.Make(dtype.F32, sizes[b]), dtype.Make(dtype.F32, sizes[b])
				for i := range send.F32 {
					send.F32[i] = float32(b + 1)
				}
				acc[c.Rank()] = recv
				errs = append(errs, comm.Do(t.Context(), c, &comm.Op{
					Kind: comm.AllReduce, Send: send, Recv: recv,
					Sig: comm.Signature{Name: "gradient bucket", Step: 1, Bucket: b},
				}))
			}
			return errors.Join(errs...)
		})
		wantErrors(t, errs, "rank 0", "rank 1", "bucket 0", "bucket 1", "different collectives")
		for r, b := range acc {
			for i := range b.Len() {
				want(t, fmt.Sprintf("rank %d's sum", r), b.At(i), 0)
			}
		}
	}
}
