package framework

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/zerogap/zerogap/dtype"
)

func param(seed uint64, name string, shape ...int) *Param {
	return NewParam(name, uniform(seed, numel(shape)), shape...)
}

// recorder collects what the hook delivers, in order.
type recorder struct {
	names []string
	grads map[string][]float32
}

func (r *recorder) hook(p *Param, g dtype.Buffer) error {
	r.names = append(r.names, p.Name)
	if r.grads == nil {
		r.grads = map[string][]float32{}
	}
	r.grads[p.Name] = slices.Clone(g.F32)
	return nil
}

func TestHookFiresOnceAfterTheLastContribution(t *testing.T) {
	// y = w·xA + w·xB, with other parameters between the uses.
	w, v := param(1, "w", 1, 1), param(2, "v", 1, 1)
	w.Value.Data().F32[0], v.Value.Data().F32[0] = 1, 1
	var r recorder
	tape := NewTape(WithGradHook(r.hook))
	a := tape.Linear(tape.Input([]int{1, 1}, []float32{1}), w.Value, nil)
	b := tape.Linear(a, v.Value, nil)
	c := tape.Linear(tape.Input([]int{1, 1}, []float32{2}), w.Value, nil)
	loss := tape.MSELoss(tape.Add(b, c), tape.Constant([]int{1, 1}, []float32{2.5}))
	if err := tape.Backward(loss, 1); err != nil { // dloss/dy = 2·(3-2.5) = 1
		t.Fatal(err)
	}
	if want := []string{"v", "w"}; !slices.Equal(r.names, want) {
		t.Errorf("hooks fired for %v, want %v", r.names, want)
	}
	if g := r.grads["w"][0]; g != 3 {
		t.Errorf("gradient of w = %v, want 3 (1 only the first use, 2 only the last)", g)
	}
}

func TestParamWhoseUsesMissTheLoss(t *testing.T) {
	w, dead := param(1, "w", 2, 2), param(2, "dead", 2, 2)
	var r recorder
	tape := NewTape(WithGradHook(r.hook))
	x := tape.Input([]int{1, 2}, []float32{1, 2})
	y := tape.Linear(x, w.Value, nil)
	tape.SiLU(tape.Linear(x, dead.Value, nil))
	tape.Checkpoint(ModeReentrant, x, func(x *Tensor) *Tensor { return tape.Linear(x, dead.Value, nil) })
	if err := tape.Backward(lossOf(tape, y), 1); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.names, []string{"w"}) {
		t.Errorf("hooks fired for %v, want only w", r.names)
	}
	// The counts start again: the same parameter is complete in the next pass.
	y = tape.Linear(tape.Input([]int{1, 2}, []float32{1, 2}), dead.Value, nil)
	if err := tape.Backward(lossOf(tape, y), 1); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.names, []string{"w", "dead"}) {
		t.Errorf("hooks fired for %v, want w, dead", r.names)
	}
}

func TestHookErrorEndsBackward(t *testing.T) {
	w := param(1, "layer.weight", 2, 2)
	tape := NewTape(WithGradHook(func(*Param, dtype.Buffer) error { return errors.New("disk on fire") }))
	y := tape.Linear(tape.Input([]int{1, 2}, []float32{1, 2}), w.Value, nil)
	err := tape.Backward(lossOf(tape, y), 1)
	if err == nil || !strings.Contains(err.Error(), "layer.weight") || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("error %v, want the parameter and the cause", err)
	}
}

func TestFrozenParamsGetNoGradient(t *testing.T) {
	w, f := param(1, "w", 3, 3), param(2, "frozen", 3, 3)
	f.Frozen = true
	for _, mode := range []Mode{ModeNone, ModeReentrant, ModeNonReentrant} {
		var r recorder
		tape := NewTape(WithGradHook(r.hook))
		y := tape.Checkpoint(mode, tape.Input([]int{1, 3}, []float32{1, 2, 3}), func(x *Tensor) *Tensor {
			x = tape.Linear(x, f.Value, nil)
			return tape.Linear(tape.Linear(x, w.Value, nil), f.Value, nil)
		})
		if err := tape.Backward(lossOf(tape, y), 1); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.names, []string{"w"}) {
			t.Errorf("%v: hooks fired for %v, want only w", mode, r.names)
		}
	}
}

// network is a model with what makes checkpointing hard: shared weights across
// segments, nested segments, dropout, a skip connection around a segment, an
// input that needs no gradient, and a tensor that several segments use.
type network struct {
	emb, in, shared, conv, norm, beta, out *Param
}

func newNetwork() *network {
	return &network{
		param(1, "emb", 4, 4), param(2, "in", 4, 2, 3, 3), param(3, "shared", 4, 4, 3, 3),
		param(4, "conv", 4, 8, 1, 1), param(5, "norm", 4), param(6, "beta", 4), param(7, "out", 2, 4, 3, 3),
	}
}

func (n *network) loss(t *Tape, mode Mode) *Tensor {
	t.SetSample(Sample{Seed: 7, Step: 2, Samples: []int{10, 11, 12}, Train: true})
	x := t.Input([]int{3, 2, 6, 6}, uniform(20, 3*2*36))
	e := t.SiLU(t.Linear(t.Input([]int{3, 4}, uniform(21, 12)), n.emb.Value, nil))
	h := t.Checkpoint(mode, x, func(x *Tensor) *Tensor { return t.Conv2d(x, n.in.Value, nil, 1, Pad(1)) })
	block := func(h *Tensor, layer uint64) *Tensor {
		return t.Checkpoint(mode, h, func(h *Tensor) *Tensor {
			g := t.SiLU(t.GroupNorm(h, n.norm.Value, n.beta.Value, 2, 1e-5))
			g = t.Conv2d(g, n.shared.Value, nil, 1, Pad(1))
			g = t.AddChannel(g, e)
			return t.Dropout(g, 0.5, layer)
		})
	}
	skip := block(h, 1)
	h = t.Checkpoint(mode, h, func(h *Tensor) *Tensor { return t.Add(block(skip, 2), t.Reshape(block(h, 3), 3, 4, 6, 6)) })
	h = t.Conv2d(t.Concat(h, skip), n.conv.Value, nil, 1, Pad(0))
	return lossOf(t, t.Conv2d(h, n.out.Value, nil, 1, Pad(1)))
}

func TestCheckpointingGivesTheSameBits(t *testing.T) {
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		run := func(mode Mode, procs int) (float64, *recorder) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			r := &recorder{}
			tape := NewTape(WithCompute(d), WithGradHook(r.hook))
			loss := newNetwork().loss(tape, mode)
			if err := tape.Backward(loss, 1); err != nil {
				t.Fatal(err)
			}
			return loss.Item(), r
		}
		wantLoss, want := run(ModeNone, 1)
		if len(want.names) != 7 {
			t.Fatalf("%v: hooks fired for %v, want 7 parameters once each", d, want.names)
		}
		for _, mode := range []Mode{ModeNone, ModeReentrant, ModeNonReentrant} {
			for _, procs := range []int{1, 2, 5} {
				loss, got := run(mode, procs)
				if loss != wantLoss {
					t.Errorf("%v %v: loss %v, want %v", d, mode, loss, wantLoss)
				}
				if !slices.Equal(got.names, want.names) {
					t.Errorf("%v %v: hooks %v, want %v", d, mode, got.names, want.names)
				}
				for name, w := range want.grads {
					for i, g := range got.grads[name] {
						if math.Float32bits(g) != math.Float32bits(w[i]) {
							t.Fatalf("%v %v procs %d: gradient of %s[%d] = %x, want %x", d, mode, procs, name, i, g, w[i])
						}
					}
				}
			}
		}
	}
}

func TestCheckpointingLowersPeakMemory(t *testing.T) {
	peak := func(mode Mode) int64 {
		ws := make([]*Param, 12)
		for i := range ws {
			ws[i] = param(uint64(i), fmt.Sprint("w", i), 8, 8, 3, 3)
		}
		tape := NewTape()
		for step := 0; step < 2; step++ {
			tape.ResetPeak()
			h := tape.Input([]int{2, 8, 16, 16}, uniform(3, 2*8*256))
			for i := 0; i < len(ws); i += 4 {
				h = tape.Checkpoint(mode, h, func(g *Tensor) *Tensor {
					for _, w := range ws[i : i+4] {
						g = tape.SiLU(tape.Conv2d(g, w.Value, nil, 1, Pad(1)))
					}
					return g
				})
			}
			if err := tape.Backward(lossOf(tape, h), 1); err != nil {
				t.Fatal(err)
			}
		}
		if live := tape.Memory().Live; live != 0 {
			t.Errorf("%v: %d bytes live after backward, want 0", mode, live)
		}
		return tape.Memory().Peak
	}
	none, re, non := peak(ModeNone), peak(ModeReentrant), peak(ModeNonReentrant)
	if re > none*6/10 || non > none*6/10 {
		t.Errorf("peak bytes: none %d, reentrant %d, non-reentrant %d; want less than 0.6 of none", none, re, non)
	}
}

func TestSecondStepAllocatesNoNewMemory(t *testing.T) {
	n := newNetwork()
	tape := NewTape(WithCompute(dtype.BF16), WithGradHook((&recorder{}).hook))
	step := func() {
		if err := tape.Backward(n.loss(tape, ModeReentrant), 1); err != nil {
			t.Fatal(err)
		}
	}
	step()
	owned := tape.Memory().Owned
	step()
	step()
	if got := tape.Memory().Owned; got != owned {
		t.Errorf("arena grew from %d to %d bytes", owned, got)
	}
}

func TestNoGradRecordsNothing(t *testing.T) {
	n := newNetwork()
	tape := NewTape()
	var out []float32
	if err := tape.NoGrad(func() error {
		out = n.loss(tape, ModeReentrant).Float32s()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if live := tape.Memory().Live; live != 0 {
		t.Errorf("%d bytes live after NoGrad", live)
	}
	if want := n.loss(tape, ModeNone).Item(); float64(out[0]) != want {
		t.Errorf("loss without recording %v, with %v", out[0], want)
	}
}

func TestGradCollectsWithoutHook(t *testing.T) {
	w := param(1, "w", 1, 1)
	tape := NewTape()
	for range 2 {
		y := tape.Linear(tape.Input([]int{1, 1}, []float32{3}), w.Value, nil)
		loss := tape.MSELoss(y, tape.Constant([]int{1, 1}, []float32{3*w.Value.Data().F32[0] - 0.5}))
		if err := tape.Backward(loss, 2); err != nil {
			t.Fatal(err)
		}
	}
	if g := w.Grad.At(0); math.Abs(g-12) > 1e-5 { // twice 2·(2·0.5·3)
		t.Errorf("collected gradient %v, want 12", g)
	}
}
