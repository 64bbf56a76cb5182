package cases

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
	"github.com/zerogap/zerogap/zero"
)

// Section D: activation checkpointing.

// gradients runs one backward of loss and returns every gradient by name.
func gradients(t *testing.T, compute dtype.DType, loss func(*framework.Tape) *framework.Tensor) map[string][]float32 {
	t.Helper()
	got := map[string][]float32{}
	tape := framework.NewTape(framework.WithCompute(compute), framework.WithGradHook(func(p *framework.Param, g dtype.Buffer) error {
		if got[p.Name] != nil {
			t.Errorf("the gradient of %s came twice", p.Name)
		}
		got[p.Name] = slices.Clone(g.F32)
		return nil
	}))
	if err := tape.Backward(loss(tape), 1); err != nil {
		t.Fatal(err)
	}
	return got
}

func sameGradients(t *testing.T, what string, got, right map[string][]float32) {
	t.Helper()
	if len(got) != len(right) {
		t.Errorf("%s: %d gradients, want %d: a parameter inside a segment got none", what, len(got), len(right))
	}
	for name, g := range right {
		if i := firstDifference(g, got[name]); i >= 0 {
			t.Errorf("%s: gradient of %s differs at %d", what, name, i)
		}
		if !slices.ContainsFunc(g, func(v float32) bool { return v != 0 }) {
			t.Errorf("%s: the gradient of %s is zero", what, name)
		}
	}
}

func drawn(name string, seed uint64, shape ...int) *framework.Param {
	n := 1
	for _, d := range shape {
		n *= d
	}
	w := make([]float32, n)
	framework.NewStream(seed, 0, 0, "init").FillNorm(w)
	return framework.NewParam(name, w, shape...)
}

// TestE24InputsWithoutGradient: weights inside a segment whose inputs need no
// gradient get theirs all the same: the first convolution sees an image (PyTorch
// #7617, transformers #21381, open_clip #573).
func TestE24InputsWithoutGradient(t *testing.T) {
	image := make([]float32, 2*5*4)
	framework.NewStream(3, 0, 0, "image").FillNorm(image)
	for _, frozen := range []bool{false, true} {
		for _, compute := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			var right map[string][]float32
			for _, mode := range modes {
				for _, layout := range []string{"each layer", "both layers", "nested"} {
					convIn, norm, convOut := drawn("conv_in", 1, 4, 2, 3, 3), drawn("norm", 2, 4), drawn("conv_out", 4, 1, 4, 3, 3)
					beta := drawn("beta", 5, 4)
					convIn.Frozen = frozen // then the segment's first layer has nothing to learn at all
					got := gradients(t, compute, func(tape *framework.Tape) *framework.Tensor {
						first := func(x *framework.Tensor) *framework.Tensor {
							return tape.SiLU(tape.Conv2d(x, convIn.Value, nil, 1, framework.Pad(1)))
						}
						second := func(x *framework.Tensor) *framework.Tensor {
							x = tape.GroupNorm(x, norm.Value, beta.Value, 2, 1e-5)
							return tape.Conv2d(x, convOut.Value, nil, 1, framework.Pad(1))
						}
						x := tape.Input([]int{1, 2, 5, 4}, image)
						var y *framework.Tensor
						switch layout {
						case "each layer":
							y = tape.Checkpoint(mode, tape.Checkpoint(mode, x, first), second)
						case "both layers":
							y = tape.Checkpoint(mode, x, func(x *framework.Tensor) *framework.Tensor { return second(first(x)) })
						case "nested":
							y = tape.Checkpoint(mode, x, func(x *framework.Tensor) *framework.Tensor {
								return second(tape.Checkpoint(mode, x, first))
							})
						}
						return tape.MSELoss(y, tape.Constant([]int{1, 1, 5, 4}, make([]float32, 20)))
					})
					if right == nil {
						right = got
						if n := len(got); n != 4 && !frozen || n != 3 && frozen {
							t.Fatalf("%d gradients without checkpointing", n)
						}
					}
					sameGradients(t, fmt.Sprintf("%v, %v, %s, conv_in frozen %v", compute, mode, layout, frozen), got, right)
				}
			}
		}
	}
}

// TestE24UNet: the same with a whole UNet whose first convolution, or whole first
// half, is frozen, through the engine.
func TestE24UNet(t *testing.T) {
	for _, prefixes := range [][]string{{"conv_in"}, {"conv_in", "down_blocks", "time_embedding"}} {
		var right modelOutcome
		for _, mode := range modes {
			for _, segments := range []int{0, 1, 2} {
				out := modelTraining{
					cfg: config(func(c *zero.Config) { c.ZeroOptimization.Stage = 2 }), world: 2, steps: 2,
					schedule: zero.Constant{Rate: 0.01}, rule: zero.DefaultAdamW(),
					build: func() (network, error) {
						net, err := newUNetwork(mode, segments)
						if err != nil {
							return nil, err
						}
						for _, p := range net.Params() {
							p.Frozen = slices.ContainsFunc(prefixes, func(s string) bool { return strings.HasPrefix(p.Name, s) })
						}
						return net, nil
					},
				}.must(t)
				if right.losses == nil {
					right = out
				}
				if d := right.differs(out); d != "" {
					t.Errorf("%v frozen, %v in %d segments: other %s", prefixes, mode, segments, d)
				}
			}
		}
		initial, err := unet.New(tinyConfig(), 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range initial.Params() {
			moved := firstDifference(p.Value.Float32s(), right.weights[p.Name]) >= 0
			frozen := slices.ContainsFunc(prefixes, func(s string) bool { return strings.HasPrefix(p.Name, s) })
			if moved == frozen {
				t.Errorf("%s: frozen %v, moved %v", p.Name, frozen, moved)
			}
		}
	}
}

// dropping is two dropout layers of rate one half on 1001 elements, each in a
// segment, perhaps within a third.
func dropping(tape *framework.Tape, w *framework.Param, mode framework.Mode, nested bool, sample int) *framework.Tensor {
	tape.SetSample(framework.Sample{Seed: 7, Step: 1, Samples: []int{sample}, Train: true})
	ones := make([]float32, 1001)
	for i := range ones {
		ones[i] = 1
	}
	layer := func(k uint64) func(*framework.Tensor) *framework.Tensor {
		return func(x *framework.Tensor) *framework.Tensor {
			return tape.Dropout(tape.Mul(x, w.Value), 0.5, k)
		}
	}
	both := func(x *framework.Tensor) *framework.Tensor {
		return tape.Checkpoint(mode, tape.Checkpoint(mode, x, layer(1)), layer(2))
	}
	x := tape.Input([]int{1, 1001}, ones)
	if nested {
		return tape.Checkpoint(mode, x, both)
	}
	return both(x)
}

// TestE25Dropout: a segment that runs again draws the masks it drew first, whatever
// else draws random numbers meanwhile; no stream has moved afterwards; ranks have
// masks of their own (PyTorch #14253, #194478, OLMo-core #828).
func TestE25Dropout(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // somebody else's random numbers
		for {
			select {
			case <-stop:
				return
			default:
				rand.Int()
			}
		}
	})
	defer wg.Wait()
	defer close(stop)

	for _, compute := range []dtype.DType{dtype.F32, dtype.BF16} {
		var right map[string][]float32
		var after []uint64
		for _, nested := range []bool{false, true} {
			for _, mode := range modes {
				w := framework.NewParam("w", slices.Repeat([]float32{1.5}, 1001), 1, 1001)
				stream := framework.NewStream(7, 1, 0, "dropout")
				got := gradients(t, compute, func(tape *framework.Tape) *framework.Tensor {
					return tape.MSELoss(dropping(tape, w, mode, nested, 4), tape.Constant([]int{1, 1001}, make([]float32, 1001)))
				})
				var next []uint64
				for range 5 {
					next = append(next, stream.Uint64())
				}
				if right == nil {
					right, after = got, next
				}
				sameGradients(t, fmt.Sprintf("%v, %v, nested %v", compute, mode, nested), got, right)
				if !slices.Equal(next, after) {
					t.Errorf("%v: the stream has moved", mode)
				}
			}
		}
		kept := 0
		for _, g := range right["w"] {
			if g != 0 {
				kept++
			}
		}
		if kept < 180 || kept > 320 { // a quarter of 1001 passes both masks
			t.Errorf("%d of 1001 elements have a gradient", kept)
		}
	}
}

// TestE25MasksDiffer: two samples, and so two ranks, have different masks, and so
// have two steps and two layers.
func TestE25MasksDiffer(t *testing.T) {
	mask := func(step, sample int, layer uint64) string {
		tape := framework.NewTape()
		tape.SetSample(framework.Sample{Seed: 7, Step: step, Samples: []int{sample}, Train: true})
		return fmt.Sprint(tape.Dropout(tape.Input([]int{1, 64}, slices.Repeat([]float32{1}, 64)), 0.5, layer).Float32s())
	}
	seen := map[string]string{}
	for step := range 3 {
		for sample := range 4 {
			for layer := range uint64(3) {
				key := fmt.Sprintf("step %d, sample %d, layer %d", step, sample, layer)
				m := mask(step, sample, layer)
				if other, twice := seen[m]; twice {
					t.Errorf("%s has the mask of %s", key, other)
				}
				seen[m] = key
				if m != mask(step, sample, layer) {
					t.Errorf("%s has two masks", key)
				}
			}
		}
	}
}

// TestE25WorldSize: the masks belong to samples: a UNet with dropout trains to the
// same bits on one rank and on four, checkpointed or not.
func TestE25WorldSize(t *testing.T) {
	var right modelOutcome
	for _, world := range []int{1, 2, 4} {
		for _, mode := range modes {
			cfg := config(func(c *zero.Config) {
				c.GradientAccumulationSteps = 4 / world
				c.ZeroOptimization.Stage = 1
			})
			out := tinyUNet{cfg: cfg, world: world, steps: 2, mode: mode}.must(t)
			if right.losses == nil {
				right = out
			}
			if d := right.differs(out); d != "" {
				t.Errorf("world %d, %v: other %s than on one rank", world, mode, d)
			}
		}
	}
	if l := math.Float64frombits(right.losses[0]); !(l > 0) {
		t.Errorf("loss %v", l)
	}
}
