package profile

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zerogap/zerogap/framework"
	"github.com/zerogap/zerogap/nn"
)

func ones(name string, shape ...int) *framework.Param {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return framework.NewParam(name, slices.Repeat([]float32{1}, n), shape...)
}

// profiled counts a forward and a backward pass.
func profiled(t *testing.T, params []*framework.Param, forward func(t *framework.Tape) *framework.Tensor) *Flops {
	t.Helper()
	f, tape := NewFlops(params), framework.NewTape()
	tape.SetObserver(f.Observe)
	y := forward(tape)
	if err := tape.Backward(tape.MSELoss(y, tape.Constant(y.Shape(), make([]float32, y.Len()))), 1); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestSharedWeights: a 100x100 linear without bias on three rows is 30,000
// multiply-accumulates, 60,000 operations and 10,000 parameters, whether it takes the
// rows at once or one after the other as three layers. Three linears with weights of
// their own are as much work and 30,000 parameters.
func TestSharedWeights(t *testing.T) {
	rows := func(tape *framework.Tape, n int) *framework.Tensor {
		return tape.Input([]int{n, 100}, make([]float32, n*100))
	}
	linear := func(name string) *nn.Linear { return &nn.Linear{Weight: ones(name+".weight", 100, 100)} }
	inTurn := func(layers ...*nn.Linear) (*Flops, string) {
		modules := []nn.Module{layers[0], layers[1], layers[2]}
		return profiled(t, nn.Params(modules...), func(tape *framework.Tape) *framework.Tensor {
			y := layers[0].Forward(tape, rows(tape, 1))
			for _, l := range layers[1:] {
				y = tape.Add(y, l.Forward(tape, rows(tape, 1)))
			}
			return y
		}), "fc"
	}
	shared := linear("fc.0")
	atOnce := profiled(t, shared.Params(), func(tape *framework.Tape) *framework.Tensor { return shared.Forward(tape, rows(tape, 3)) })
	tied, _ := inTurn(shared, &nn.Linear{Weight: shared.Weight}, &nn.Linear{Weight: shared.Weight})
	apart, _ := inTurn(linear("fc.0"), linear("fc.1"), linear("fc.2"))
	for _, c := range []struct {
		what       string
		f          *Flops
		params     int64
		executions int
	}{{"three rows at once", atOnce, 10_000, 1}, {"a shared weight", tied, 10_000, 3}, {"three weights", apart, 30_000, 3}} {
		counts, params := c.f.Module("fc")
		want := framework.Work{MACs: 30_000, FLOPs: 60_000}
		if counts.Forward.Work != want || counts.Forward.Executions != c.executions || params != c.params {
			t.Errorf("%s: forward %+v, %d parameters, want %+v in %d executions, %d", c.what, counts.Forward, params, want, c.executions, c.params)
		}
		// The gradient of the input is not wanted.
		if counts.Backward.Work != want || counts.Recompute != (Pass{}) {
			t.Errorf("%s: %+v, want a backward like the forward and no recompute", c.what, counts)
		}
		if whole, all := c.f.Module(""); whole.Forward.MACs != 30_000 || all != c.params {
			t.Errorf("%s: the model has %+v and %d parameters", c.what, whole.Forward, all)
		}
	}
	if c, n := apart.Module("fc.1"); c.Forward.FLOPs != 20_000 || n != 10_000 {
		t.Errorf("one of three: %+v, %d parameters", c.Forward, n)
	}
	if c, n := apart.Module("nothing.here"); c != (Counts{}) || n != 0 {
		t.Errorf("a module that is not there: %+v, %d", c, n)
	}
}

// TestConvolution of 3x3, 8 to 16 channels, with an output of 12x10: 138,240
// multiply-accumulates are 276,480 operations.
func TestConvolution(t *testing.T) {
	conv := nn.NewConv2d(nn.NewScope(1).Sub("conv"), nn.Conv2dConfig{In: 8, Out: 16, Kernel: 3})
	conv.Bias = nil
	f := profiled(t, conv.Params(), func(tape *framework.Tape) *framework.Tensor {
		return conv.Forward(tape, tape.Input([]int{1, 8, 14, 12}, make([]float32, 8*14*12)))
	})
	if c, _ := f.Module("conv"); c.Forward.Work != (framework.Work{MACs: 138_240, FLOPs: 276_480}) {
		t.Errorf("%+v", c.Forward)
	}
}

// TestAttentionCounts: the products of attention, which have no parameters, belong to
// the module, beside its four linears.
func TestAttentionCounts(t *testing.T) {
	a := nn.NewAttention(nn.NewScope(1).Sub("attn"), nn.AttentionConfig{Channels: 8, HeadDim: 4})
	f := profiled(t, a.Params(), func(tape *framework.Tape) *framework.Tensor {
		return a.Forward(tape, tape.Input([]int{2, 8, 3, 5}, make([]float32, 2*8*15)))
	})
	// 2 pictures of 15 positions; 4 linears of 8x8; 2 heads of 4 channels.
	linears, products := 2*15*8*8*4, 2*(2*2)*15*15*4
	if c, n := f.Module("attn"); c.Forward.MACs != int64(linears+products) || n != 4*(64+8) {
		t.Errorf("%d MACs, %d parameters, want %d + %d", c.Forward.MACs, n, linears, products)
	}
}

// TestReport reads the numbers back from the text, and looks at what the options leave
// out.
func TestReport(t *testing.T) {
	f := NewFlops([]*framework.Param{ones("a.x.weight", 1000), ones("a.y.weight", 2, 250), ones("b.weight", 100)})
	run := func(module string, pass framework.Pass, macs int64, took time.Duration) {
		f.Observe(framework.Execution{Module: module, Pass: pass, Work: framework.Work{MACs: macs, FLOPs: 2 * macs}, Time: took})
	}
	run("a.x", framework.PassForward, 1_500_000, 2*time.Millisecond)
	run("a.y", framework.PassForward, 500_000, 4*time.Millisecond)
	run("b", framework.PassForward, 6_000_000, time.Millisecond)
	run("a.x", framework.PassRecompute, 1_500_000, time.Millisecond)
	run("b", framework.PassBackward, 12_000_000, 5*time.Millisecond)
	run("", framework.PassForward, 0, time.Microsecond)
	show := func(r Report) string {
		r.Model, r.Step, r.MicroBatches, r.Samples = "Model", 3, 2, 8
		var b strings.Builder
		if err := r.Write(&b, f); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	full := show(Report{ModuleDepth: -1, TopModules: 2, Detailed: true, RecomputeFwdFactor: 0.5})
	for _, want := range []string{
		`step 3, one rank, 2 micro-batches of 8 samples`,
		`forward +8,000,000 +16,000,000 +7\.00 +2\.3\n`,
		`recompute +1,500,000 +3,000,000 +1\.00 +3\.0\n`,
		`backward +12,000,000 +24,000,000 +5\.00 +4\.8\n`,
		`together +21,500,000 +43,000,000 +13\.00 +3\.3\n`,
		`parameters 1,600\.`,
		`forward x 3\.5: 56,000,000 FLOPs`,
		`depth 1 +parameters +a 1,500 \(93\.8 %\), b 100 \(6\.2 %\)`,
		`forward MACs +b 6\.000 M \(75\.0 %\), a 2\.000 M \(25\.0 %\)`,
		`depth 2 +parameters +a\.x 1,000 \(62\.5 %\), a\.y 500 `,
		`forward ms +a\.y 4\.00 \(57\.1 %\), a\.x 2\.00 `,
		`1\.600 K +8\.000 M +16\.00 M +100\.0 % +7\.00 +2\.3 +3\.000 M +1\.00 +24\.00 M +5\.00 +Model\n`,
		`1\.000 K +1\.500 M +3\.000 M +18\.8 % +2\.00 +1\.5 +3\.000 M +1\.00 +0 +0\.00 +x\n`,
	} {
		if !regexp.MustCompile(want).MatchString(full) {
			t.Errorf("no %q in\n%s", want, full)
		}
	}
	if s := show(Report{ModuleDepth: 1, TopModules: 1, Detailed: true}); strings.Contains(s, "depth 2") || strings.Contains(s, "  x\n") || !strings.Contains(s, "depth 1") || strings.Contains(s, ", b ") {
		t.Errorf("depth 1, one module:\n%s", s)
	}
	if s := show(Report{ModuleDepth: 0, TopModules: 1}); strings.Contains(s, "depth 1") || strings.Contains(s, "Modules,") {
		t.Errorf("depth 0, not detailed:\n%s", s)
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1.000 K", 276_480: "276.5 K", 12_345_678: "12.35 M", 4_000_000_000: "4.000 G", 5e18: "5000.0 P"} {
		if got := short(n); got != want {
			t.Errorf("%d is written as %q, want %q", n, got, want)
		}
	}
}
