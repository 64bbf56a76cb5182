package cases

import (
	"fmt"
	"math"
	"testing"

	"github.com/zerogap/zerogap/zero"
)

// f1 is the fixture: sizes with an empty, a tiny and a large odd parameter. Flat
// offsets are 0, 7, 7, 1008, 1072, 1075.
var f1 = []int{7, 0, 1001, 64, 3, 130}

const f1Len = 1205

// exact is the fixture's gradient: whole numbers so small that every partial sum
// in any order, and every mean, is exact in fp32, bf16 and fp16. World 3 takes
// three times the numbers, which makes its means exact too.
func exact(world int) func(s, m, r, i int) float32 {
	factor := 1
	if world == 3 {
		factor = 3
	}
	return func(_, m, r, i int) float32 { return float32(factor * ((7*i+3*r+5*m)%17 - 8)) }
}

// oracles are the results of a float64 program of one process: the norm of the
// mean gradient, its sum of squares, and the mean at a few elements.
var oracles = []oracle{
	{1, 1, 28939, 170.114667210, [8]float64{-8, 0, 7, 3, -7, -1, 3, 5}},
	{2, 1, 16270, 127.553910171, [8]float64{-6.5, 1.5, 0, 4.5, -5.5, 0.5, 4.5, 6.5}},
	{3, 1, 79401, 281.781830500, [8]float64{-15, 9, -4, 1, -12, 6, 1, 7}},
	{4, 1, 4068.3125, 63.783324623, [8]float64{-3.5, 0.25, -1.25, -1, -2.5, 3.5, -1, 1}},
	{1, 4, 2560.8125, 50.604471146, [8]float64{-0.5, -1, 1.75, 2, 0.5, -2, 2, -0.25}},
	{2, 4, 791.890625, 28.140551256, [8]float64{-1.125, 0.5, 1.125, 1.375, -0.125, -0.5, 1.375, 1.25}},
	{3, 4, 3608.5, 60.070791571, [8]float64{-1, 1.75, 1.5, 2.25, -2.25, -1.25, 2.25, -0.25}},
	{4, 4, 112.9296875, 10.626838076, [8]float64{-0.25, 0.3125, -0.125, 0.125, -0.3125, 0.375, 0.125, 0}},
}

type oracle struct {
	world, accum int
	squares      float64
	norm         float64
	mean         [8]float64
}

var oracleAt = [8]int{0, 6, 7, 1007, 1008, 1072, 1075, 1204}

func oracleOf(world, accum int) oracle {
	for _, o := range oracles {
		if o.world == world && o.accum == accum {
			return o
		}
	}
	panic(fmt.Sprintf("no oracle for world %d, accumulation %d", world, accum))
}

// check compares a training on the fixture with the oracle: SGD of rate 1 from
// zero leaves exactly -mean times the steps, and every step has the oracle's norm.
func (o oracle) check(t testingT, tr training, out outcome) {
	t.Helper()
	grad := exact(o.world)
	for s, r := range out.results {
		near(t, fmt.Sprintf("norm of step %d", s+1), r.Norm, o.norm, 1e-7)
		near(t, "squared norm", r.Norm*r.Norm, o.squares, 1e-9*o.squares)
		for k, i := range oracleAt {
			if got, right := float64(out.weights[s][i]), -o.mean[k]*float64(s+1); got != right {
				t.Fatalf("step %d: weight %d is %v, want %v\n%+v", s+1, i, got, right, tr.cfg)
			}
		}
		for i, got := range out.weights[s] {
			var sum float64
			for m := range o.accum {
				for r := range o.world {
					sum += float64(grad(s, m, r, i))
				}
			}
			if right := -sum / float64(o.accum*o.world) * float64(s+1); float64(got) != right {
				t.Fatalf("step %d: weight %d is %v, want %v\n%+v", s+1, i, got, right, tr.cfg)
			}
		}
	}
}

// knobs are the settings that must not change a bit.
type knobs struct {
	stage      int
	overlap    bool
	scatter    bool
	contiguous bool
	wire       string
}

func (k knobs) String() string {
	return fmt.Sprintf("stage %d, overlap_comm %v, reduce_scatter %v, contiguous_gradients %v, communication_data_type %q", k.stage, k.overlap, k.scatter, k.contiguous, k.wire)
}

// set writes the knobs into a configuration.
func (k knobs) set(c *zero.Config) {
	c.ZeroOptimization.Stage = k.stage
	c.ZeroOptimization.OverlapComm = k.overlap
	c.ZeroOptimization.ReduceScatter = k.scatter
	c.ZeroOptimization.ContiguousGradients = k.contiguous
	c.CommunicationDataType = k.wire
}

// allWays calls f for every combination of knobs.
func allWays(f func(knobs)) {
	for stage := range 3 {
		for _, overlap := range []bool{false, true} {
			for _, scatter := range []bool{true, false} {
				for _, contiguous := range []bool{true, false} {
					for _, wire := range []string{"fp32", "bf16"} {
						f(knobs{stage, overlap, scatter, contiguous, wire})
					}
				}
			}
		}
	}
}

// allConfigs is allWays with the rest of the configuration; short tests take a half
// in which every pair of settings still occurs.
func allConfigs(change func(*zero.Config)) []zero.Config {
	var all []zero.Config
	allWays(func(k knobs) {
		odd := k.overlap != k.scatter != k.contiguous != (k.wire == "bf16")
		if odd && testing.Short() {
			return
		}
		all = append(all, config(func(c *zero.Config) {
			if change != nil {
				change(c)
			}
			k.set(c)
		}))
	})
	return all
}

// others sets the knobs that are not part of the matrix to something else for every
// n: on exact gradients they must not matter either.
func others(c *zero.Config, n, world int) {
	c.ZeroOptimization.RoundRobinGradients = n/2%2 == 0
	c.ZeroOptimization.UseMultiRankBucketAllreduce = n/4%2 == 0
	c.ZeroOptimization.ReductionOrder = []string{zero.OrderGlobal, zero.OrderLocal}[n/3%2]
	if world != 3 { // a third is not exact
		c.PrescaleGradients = n/5%4 == 3 // or else:
		c.GradientPredivideFactor = []float64{1, 2, 4, 1}[n/5%4]
	}
}

// TestAllWays is the matrix: on exact gradients every way to run, on 1 to 4 ranks,
// with and without accumulation, gives the oracle's weights bit for bit in every
// step, and one and the same norm.
func TestAllWays(t *testing.T) {
	for _, o := range oracles {
		t.Run(fmt.Sprintf("world %d, accumulation %d", o.world, o.accum), func(t *testing.T) {
			var first outcome
			n := 0
			allWays(func(k knobs) {
				for _, model := range []string{"fp32", "bf16"} {
					cfg := config(func(c *zero.Config) {
						c.GradientAccumulationSteps = o.accum
						c.BF16.Enabled = model == "bf16" // -mean is exact in bf16
						c.ZeroOptimization.ReduceBucketSize = 100
						c.ZeroOptimization.AllgatherBucketSize = []int{100, 5e8}[n%2]
						k.set(c)
						others(c, n, o.world)
					})
					n++
					tr := training{cfg: cfg, world: o.world, sizes: f1, grad: exact(o.world)}
					out := tr.must(t)
					o.check(t, tr, out)
					if first.results == nil {
						first = out
					}
					if d := sameTraining(first, out); d != "" {
						t.Fatalf("%v, %s: another way gives other bits: %s", k, model, d)
					}
				}
			})
			t.Logf("%d ways give weights and norm %v bit for bit", n, first.results[0].Norm)
		})
	}
}

// TestFixtureTable holds the oracle to its own definition, so that a slip of the
// pen in the table cannot pass for a right result.
func TestFixtureTable(t *testing.T) {
	for _, o := range oracles {
		grad := exact(o.world)
		var squares float64
		means := make([]float64, f1Len)
		for i := range means {
			for m := range o.accum {
				for r := range o.world {
					means[i] += float64(grad(0, m, r, i)) / float64(o.accum*o.world)
				}
			}
			squares += means[i] * means[i]
		}
		near(t, "sum of squares", squares, o.squares, 1e-9*o.squares)
		near(t, "norm", math.Sqrt(squares), o.norm, 5e-10)
		for k, i := range oracleAt {
			near(t, fmt.Sprintf("world %d, accumulation %d: mean at %d", o.world, o.accum, i), means[i], o.mean[k], 1e-12)
		}
	}
}
