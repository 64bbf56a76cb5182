package framework_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/unet"
)

// param is a parameter of ones.
func param(name string, shape ...int) *framework.Param {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return framework.NewParam(name, slices.Repeat([]float32{1}, n), shape...)
}

// watched returns what an observer sees of a forward and a backward pass of build's
// mean squared distance to zero.
func watched(t *testing.T, build func(t *framework.Tape) *framework.Tensor, opts ...framework.Option) []framework.Execution {
	t.Helper()
	var seen []framework.Execution
	tape := framework.NewTape(opts...)
	tape.SetObserver(func(e framework.Execution) { seen = append(seen, e) })
	y := build(tape)
	loss := tape.MSELoss(y, tape.Constant(y.Shape(), make([]float32, y.Len())))
	if err := tape.Backward(loss, 1); err != nil {
		t.Fatal(err)
	}
	for _, e := range seen {
		if e.Start.IsZero() || e.Time < 0 {
			t.Errorf("%s of %s at %v for %v", e.Op, e.Module, e.Start, e.Time)
		}
	}
	return seen
}

// work sums up what was seen of an operation.
func work(seen []framework.Execution, op string, pass framework.Pass) (sum framework.Work, times int) {
	for _, e := range seen {
		if e.Op == op && e.Pass == pass {
			sum.MACs += e.Work.MACs
			sum.FLOPs += e.Work.FLOPs
			times++
		}
	}
	return sum, times
}

// TestWork counts operations by hand.
func TestWork(t *testing.T) {
	type work2 struct{ forward, backward framework.Work }
	leaf := func(t *framework.Tape, shape ...int) *framework.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return t.Input(shape, make([]float32, n))
	}
	for op, c := range map[string]struct {
		build func(t *framework.Tape) *framework.Tensor
		want  work2
	}{
		"Linear": {func(t *framework.Tape) *framework.Tensor {
			return t.Linear(param("x", 3, 100).Value, param("w", 50, 100).Value, param("b", 50).Value)
		}, work2{framework.Work{MACs: 15_000, FLOPs: 30_150}, framework.Work{MACs: 30_000, FLOPs: 60_150}}},
		"Conv2d": {func(t *framework.Tape) *framework.Tensor { // no gradient of the input is wanted
			return t.Conv2d(leaf(t, 1, 8, 12, 10), param("w", 16, 8, 3, 3).Value, nil, 1, framework.Pad(1))
		}, work2{framework.Work{MACs: 138_240, FLOPs: 276_480}, framework.Work{MACs: 138_240, FLOPs: 276_480}}},
		"UpsampleConv2d": {func(t *framework.Tape) *framework.Tensor {
			return t.UpsampleConv2d(param("x", 1, 2, 3, 3).Value, 6, 6, param("w", 4, 2, 3, 3).Value, param("b", 4).Value, 1, framework.Pad(1))
		}, work2{framework.Work{MACs: 2592, FLOPs: 5184 + 144}, framework.Work{MACs: 5184, FLOPs: 10368 + 144 + 72}}},
		"BatchMatMul": {func(t *framework.Tape) *framework.Tensor {
			return t.BatchMatMul(param("a", 2, 3, 5).Value, param("b", 2, 7, 5).Value, true)
		}, work2{framework.Work{MACs: 210, FLOPs: 420}, framework.Work{MACs: 420, FLOPs: 840}}},
		// Scores and output; backward scores again, and gradients of v, of the
		// probabilities, of q and of k.
		"Attention": {func(t *framework.Tape) *framework.Tensor {
			return t.Attention(param("q", 2, 3, 5).Value, param("k", 2, 7, 5).Value, param("v", 2, 7, 5).Value, 1)
		}, work2{framework.Work{MACs: 420, FLOPs: 840 + 42}, framework.Work{MACs: 5 * 210, FLOPs: 10*210 + 2*42}}},
		"GroupNormSiLU": {func(t *framework.Tape) *framework.Tensor {
			return t.GroupNormSiLU(param("x", 2, 4, 3).Value, param("g", 4).Value, param("b", 4).Value, 2, 1e-5)
		}, work2{framework.Work{FLOPs: 6 * 24}, framework.Work{FLOPs: 6 * 24}}},
		"Softmax": {func(t *framework.Tape) *framework.Tensor { return t.Softmax(param("x", 2, 4).Value, 1) },
			work2{framework.Work{FLOPs: 8}, framework.Work{FLOPs: 8}}},
		"Add": {func(t *framework.Tape) *framework.Tensor { return t.Add(param("a", 7).Value, param("b", 7).Value) },
			work2{framework.Work{FLOPs: 7}, framework.Work{FLOPs: 14}}},
		"Reshape": {func(t *framework.Tape) *framework.Tensor { return t.Reshape(param("a", 6).Value, 2, 3) }, work2{}},
	} {
		seen := watched(t, c.build)
		forward, n := work(seen, op, framework.PassForward)
		backward, m := work(seen, op, framework.PassBackward)
		if got := (work2{forward, backward}); got != c.want || n != 1 || m != 1 {
			t.Errorf("%s: %+v in %d and %d executions, want %+v", op, got, n, m, c.want)
		}
	}
}

// TestSharedTensorsOfAttention: the work is that of the passes that are made for a
// tensor that is q, k and v at once.
func TestSharedTensorsOfAttention(t *testing.T) {
	seen := watched(t, func(t *framework.Tape) *framework.Tensor {
		x := param("x", 2, 3, 5).Value
		return t.Attention(x, x, x, 1)
	})
	const one, scores = 2 * 3 * 3 * 5, 2 * 3 * 3
	want := framework.Work{MACs: (2 + 3 + 3) * one, FLOPs: 2*(2+3+3)*one + 5*scores}
	if got, _ := work(seen, "Attention", framework.PassBackward); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestObserverAllocatesNothing: a pass that is watched allocates what one does that is
// not.
func TestObserverAllocatesNothing(t *testing.T) {
	w, x, target := param("fc.weight", 4, 4), make([]float32, 8), make([]float32, 8)
	var n int
	allocations := func(o framework.Observer) float64 {
		tape := framework.NewTape(framework.WithGradHook(func(*framework.Param, dtype.Buffer) error { return nil }))
		tape.SetObserver(o)
		return testing.AllocsPerRun(50, func() {
			y := tape.SiLU(tape.Linear(tape.Input([]int{2, 4}, x), w.Value, nil))
			if err := tape.Backward(tape.MSELoss(y, tape.Constant([]int{2, 4}, target)), 1); err != nil {
				t.Fatal(err)
			}
		})
	}
	plain, seen := allocations(nil), allocations(func(framework.Execution) { n++ })
	if seen != plain || n == 0 {
		t.Errorf("%v allocations when watched, %v else; %d operations seen", seen, plain, n)
	}
}

// summary adds up a pass by module.
func summary(seen []framework.Execution, pass framework.Pass) map[string]framework.Work {
	sums := map[string]framework.Work{}
	for _, e := range seen {
		if e.Pass == pass {
			s := sums[e.Module]
			sums[e.Module] = framework.Work{MACs: s.MACs + e.Work.MACs, FLOPs: s.FLOPs + e.Work.FLOPs}
		}
	}
	return sums
}

// passOf watches a pass of a small UNet.
func passOf(t *testing.T, mode framework.Mode, segments int, dry bool) []framework.Execution {
	t.Helper()
	c := unet.DefaultConfig()
	c.InChannels, c.OutChannels = 1, 1
	c.BlockOutChannels = []int{8, 16}
	c.DownBlockTypes = []string{unet.DownBlock2D, unet.AttnDownBlock2D}
	c.UpBlockTypes = []string{unet.AttnUpBlock2D, unet.UpBlock2D}
	c.NormNumGroups, c.LayersPerBlock = 4, 1
	m, err := unet.New(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetCheckpointing(mode, segments); err != nil {
		t.Fatal(err)
	}
	var opts []framework.Option
	if dry {
		opts = append(opts, framework.WithDryRun())
	}
	return watched(t, func(tape *framework.Tape) *framework.Tensor {
		pred, err := m.Forward(tape, tape.Input([]int{2, 1, 8, 8}, make([]float32, 128)), []int{1, 500})
		if err != nil {
			t.Fatal(err)
		}
		return pred
	}, opts...)
}

// TestCheckpointingIsSeenApart: forward and backward do the same work, by module, with
// and without checkpointing; recomputed is what lies in segments, once.
func TestCheckpointingIsSeenApart(t *testing.T) {
	plain := passOf(t, framework.ModeNone, 0, false)
	if n := len(summary(plain, framework.PassRecompute)); n != 0 {
		t.Errorf("%d modules are recomputed without checkpointing", n)
	}
	same := func(what string, got, want map[string]framework.Work) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v\nwant %v", what, got, want)
		}
	}
	forward, backward := summary(plain, framework.PassForward), summary(plain, framework.PassBackward)
	dry := passOf(t, framework.ModeNone, 0, true)
	same("dry run, forward", summary(dry, framework.PassForward), forward)
	same("dry run, backward", summary(dry, framework.PassBackward), backward)
	var inside map[string]framework.Work // of all segments
	for _, mode := range []framework.Mode{framework.ModeReentrant, framework.ModeNonReentrant} {
		for _, segments := range []int{0, 1, 3} {
			what := fmt.Sprintf("%v, %d segments", mode, segments)
			seen := passOf(t, mode, segments, false)
			same(what+", forward", summary(seen, framework.PassForward), forward)
			same(what+", backward", summary(seen, framework.PassBackward), backward)
			again := summary(seen, framework.PassRecompute)
			// The recorded segment does not repeat the operation that made its output.
			for module, w := range again {
				if f := forward[module]; w != f && (strings.HasSuffix(module, ".conv1") || w.MACs > f.MACs || w.FLOPs > f.FLOPs) {
					t.Errorf("%s: %s does %+v again, and %+v forward", what, module, w, f)
				}
			}
			if again["conv_in"] != (framework.Work{}) || again["conv_out"] != (framework.Work{}) {
				t.Errorf("%s: %v is outside all segments", what, again)
			}
			if mode == framework.ModeReentrant {
				if inside == nil {
					inside = again
				}
				same(what+", recomputed", again, inside)
			}
		}
	}
	for module, f := range forward {
		layer := strings.Contains(module, "_block")
		if w, ok := inside[module]; ok != layer || layer && w != f {
			t.Errorf("%s is done again as %+v, forward is %+v", module, w, f)
		}
	}
}

// TestModuleNames: operations on a parameter belong to its owner, the others to the
// module that was entered, forward and backward and when computed again.
func TestModuleNames(t *testing.T) {
	for _, mode := range []framework.Mode{framework.ModeNone, framework.ModeReentrant} {
		seen := passOf(t, mode, 0, false)
		for _, want := range []struct{ op, module string }{
			{"Conv2d", "down_blocks.0.resnets.0.conv1"}, {"Attention", "mid_block.attentions.0"}, {"Linear", "mid_block.attentions.0.to_q"},
			{"AddTo", "up_blocks.1.resnets.0"}, {"Concat", "up_blocks.1"}, {"SiLU", "time_embedding"}, {"MSELoss", ""},
			{"UpsampleConv2d", "up_blocks.0.upsamplers.0.conv"}, {"GroupNormSiLU", "conv_norm_out"},
		} {
			for _, pass := range []framework.Pass{framework.PassForward, framework.PassBackward, framework.PassRecompute} {
				if pass == framework.PassRecompute && (mode == framework.ModeNone || !strings.Contains(want.module, "_block")) {
					continue
				}
				if !slices.ContainsFunc(seen, func(e framework.Execution) bool {
					return e.Op == want.op && e.Module == want.module && e.Pass == pass
				}) {
					t.Errorf("%v: no %v of %s in %q", mode, pass, want.op, want.module)
				}
			}
		}
	}
}
