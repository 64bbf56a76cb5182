package cases

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zerogap/zerogap/dtype"
	"github.com/zerogap/zerogap/zero"
	"github.com/zerogap/zerogap/zero/comm"
	"github.com/zerogap/zerogap/zero/comm/gated"
	"github.com/zerogap/zerogap/zero/comm/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long any case may take, hangs included.
const limit = 5 * time.Second

// testingT is what testing and rapid have in common.
type testingT interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// training is one small training of a list of parameters, on goroutine ranks.
// What is left out has a sensible value.
type training struct {
	cfg    zero.Config
	world  int
	sizes  []int
	shapes [][]int // instead of sizes
	frozen []int
	edit   func([]zero.Param) // last change to the parameters, equal on all ranks
	rule   zero.Rule          // plain SGD
	groups []zero.Group
	steps  int // 1
	rate   func(applied int) float64
	init   func(i int) float32 // zero
	// grad is the gradient of element i of the space of all parameters, of the
	// unscaled loss of micro-step m of step s (from 0) on rank r.
	grad func(s, m, r, i int) float32
	// order lists the parameters that get a gradient, as they become ready; nil is
	// all of them, in reverse order of registration.
	order func(s, m, r int) []int
	hooks int // goroutines that call GradReady; 0 is the training's own
	// backwards of one step; 0 is the configured accumulation
	backwards int
	gates     gated.Options
	// watch runs beside the training, with the gate in its hand.
	watch func(*gated.Group)
	// ready is called around GradReady of parameter p on rank r.
	ready func(r, p int, done bool)
}

// outcome is what a training leaves.
type outcome struct {
	results []zero.StepResult // rank 0's; the others' are equal
	weights [][]float32       // the compute copies of trainable parameters, after each step
	all     [][]float32       // the compute copy of every parameter at the end
	plan    *zero.Plan
	peak    []zero.Memory // by rank
	gates   *gated.Group
}

// last returns the weights after the last step.
func (o outcome) last() []float32 { return o.weights[len(o.weights)-1] }

// config returns DeepSpeed's defaults, without clipping, and with change.
func config(change func(*zero.Config)) zero.Config {
	c := zero.DefaultConfig()
	c.GradientClipping = 0
	if change != nil {
		change(&c)
	}
	return c
}

// onRanks runs f for every rank of a new group and returns the ranks' errors. A
// rank that fails tells the others, as a program has to.
func onRanks(t testingT, world int, o gated.Options, watch func(*gated.Group), f func(comm.Communicator) error, opts ...local.Option) (*gated.Group, []error) {
	t.Helper()
	g := gated.New(local.New(world, opts...), o)
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r, c := range g.Comms() {
		wg.Go(func() {
			if errs[r] = f(c); errs[r] != nil {
				c.Abort(errs[r])
			}
			c.Close()
		})
	}
	if watch != nil {
		wg.Go(func() { watch(g) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * limit):
		buf := make([]byte, 1<<16)
		t.Fatalf("the ranks did not return within %v\n%s", 2*limit, buf[:runtime.Stack(buf, true)])
	}
	return g, errs
}

func (tr training) params() []zero.Param {
	shapes := tr.shapes
	for _, n := range tr.sizes {
		shapes = append(shapes, []int{n})
	}
	params := make([]zero.Param, len(shapes))
	at := 0
	for i, shape := range shapes {
		p := zero.Param{Name: fmt.Sprintf("p%d", i), Shape: shape, Frozen: slices.Contains(tr.frozen, i)}
		n, _ := p.Len()
		p.Init = make([]float32, n)
		for j := range p.Init {
			if tr.init != nil {
				p.Init[j] = tr.init(at + j)
			}
		}
		at += n
		params[i] = p
	}
	if tr.edit != nil {
		tr.edit(params)
	}
	return params
}

func (tr training) micros() int {
	if tr.backwards > 0 {
		return tr.backwards
	}
	return tr.cfg.GradientAccumulationSteps
}

// scaleOf is what the group of p multiplies the learning rate by.
func (tr training) scaleOf(p zero.Param) float64 {
	if len(tr.groups) == 0 || tr.groups[p.Group].LRScale == 0 {
		return 1
	}
	return tr.groups[p.Group].LRScale
}

// run trains and returns what it leaves and the ranks' errors.
func (tr training) run(t testingT) (outcome, []error) {
	t.Helper()
	if tr.rule == nil {
		tr.rule = zero.SGD{}
	}
	if tr.rate == nil {
		tr.rate = func(int) float64 { return 1 }
	}
	tr.steps = max(1, tr.steps)
	outs := make([]outcome, tr.world)
	var errs []error
	gates, errs := onRanks(t, tr.world, tr.gates, tr.watch, func(c comm.Communicator) error {
		return tr.rank(c, &outs[c.Rank()])
	})
	out := outs[0]
	out.gates, out.peak = gates, nil
	for r, o := range outs {
		if len(o.peak) > 0 {
			out.peak = append(out.peak, o.peak[0])
		}
		if errs[r] == nil && errs[0] == nil {
			sameOnRank(t, r, outs[0], o)
		}
	}
	return out, errs
}

// must is run for trainings that may not fail.
func (tr training) must(t testingT) outcome {
	t.Helper()
	out, errs := tr.run(t)
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\nconfiguration %+v, world %d", err, tr.cfg, tr.world)
	}
	return out
}

func (tr training) rank(c comm.Communicator, out *outcome) (err error) {
	ctx := context.Background()
	params := tr.params()
	o, err := zero.New(ctx, params, tr.cfg, c, tr.rule, tr.groups...)
	if err != nil {
		return err
	}
	defer o.Close()
	defer abortOnFailure(c, &err)
	out.plan = o.Plan()
	for s := range tr.steps {
		for m := range tr.micros() {
			if err := tr.backward(o, params, s, m, c.Rank()); err != nil {
				return err
			}
			if err := o.EndBackward(ctx); err != nil {
				return err
			}
		}
		_, applied := o.Steps()
		r, err := o.Step(ctx, tr.rate(applied))
		if r.Step > 0 {
			out.results = append(out.results, r)
		}
		if err != nil {
			return err
		}
		out.weights = append(out.weights, weights(o, params))
	}
	for i := range params {
		out.all = append(out.all, values(o, i))
	}
	_, peak := o.Memory()
	out.peak = []zero.Memory{peak}
	return nil
}

// backward gives the gradients of one micro-batch, by one or several goroutines.
func (tr training) backward(o *zero.Optimizer, params []zero.Param, s, m, r int) error {
	var order []int
	if tr.order != nil {
		order = tr.order(s, m, r)
	} else {
		for i := len(params) - 1; i >= 0; i-- {
			order = append(order, i)
		}
	}
	offset := make([]int, len(params)+1)
	for i, p := range params {
		n, _ := p.Len()
		offset[i+1] = offset[i] + n
	}
	give := func(i int) error {
		if params[i].Frozen {
			return nil
		}
		g := make([]float32, offset[i+1]-offset[i])
		for j := range g {
			g[j] = tr.grad(s, m, r, offset[i]+j) * float32(o.LossScale())
		}
		if tr.ready != nil {
			tr.ready(r, i, false)
			defer tr.ready(r, i, true)
		}
		defer func() { // the optimizer must have read it
			for j := range g {
				g[j] = float32(math.NaN())
			}
		}()
		return o.GradReady(context.Background(), i, g)
	}
	errs := make([]error, max(1, tr.hooks))
	hook := func(h int) {
		for k := h; k < len(order) && errs[h] == nil; k += len(errs) {
			errs[h] = give(order[k])
		}
	}
	if tr.hooks == 0 {
		hook(0)
		return errs[0]
	}
	var wg sync.WaitGroup
	for h := range errs {
		wg.Go(func() { hook(h) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// weights returns the compute copies of the trainable parameters, joined.
func weights(o *zero.Optimizer, params []zero.Param) []float32 {
	var all []float32
	for i, p := range params {
		if !p.Frozen {
			all = append(all, values(o, i)...)
		}
	}
	return all
}

func values(o *zero.Optimizer, i int) []float32 {
	v := o.Value(i)
	w := make([]float32, v.Len())
	for j := range w {
		w[j] = float32(v.At(j))
	}
	return w
}

// sameOnRank compares what rank r saw with what rank 0 saw, bit for bit.
func sameOnRank(t testingT, r int, a, b outcome) {
	t.Helper()
	for s, x := range a.results {
		y := b.results[s]
		if math.Float64bits(x.Norm) != math.Float64bits(y.Norm) || x.Applied != y.Applied || x.NextLossScale != y.NextLossScale || x.SkippedSteps != y.SkippedSteps {
			t.Fatalf("step %d: rank 0 has %+v, rank %d has %+v", s+1, x, r, y)
		}
		if i := firstDifference(a.weights[s], b.weights[s]); i >= 0 {
			t.Fatalf("step %d: weight %d is %v on rank 0 and %v on rank %d: a micro-batch was counted on one rank only", s+1, i, a.weights[s][i], b.weights[s][i], r)
		}
	}
}

// sameTraining compares two trainings bit for bit and names the first difference.
func sameTraining(a, b outcome) string {
	if len(a.results) != len(b.results) {
		return fmt.Sprintf("%d and %d steps", len(a.results), len(b.results))
	}
	for s := range a.results {
		if x, y := a.results[s].Norm, b.results[s].Norm; math.Float64bits(x) != math.Float64bits(y) {
			return fmt.Sprintf("step %d: norms %v and %v", s+1, x, y)
		}
		if i := firstDifference(a.weights[s], b.weights[s]); i >= 0 {
			return fmt.Sprintf("step %d: weight %d", s+1, i)
		}
	}
	return ""
}

// firstDifference returns where the bits of a and b differ first, -1 for nowhere.
func firstDifference(a, b []float32) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// want compares one number with the right one. wrong gives the values of known
// mistakes, with their names.
func want(t testingT, what string, got, right float64, wrong ...mistake) {
	t.Helper()
	if got == right {
		return
	}
	for _, w := range wrong {
		if got == w.value {
			t.Errorf("%s: %v, want %v: %s", what, got, right, w.name)
			return
		}
	}
	t.Errorf("%s: %v, want %v", what, got, right)
}

// mistake is a wrong result that tells its cause.
type mistake struct {
	value float64
	name  string
}

func near(t testingT, what string, got, right, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-right) <= tolerance) {
		t.Errorf("%s: %.12g, want %.12g within %g", what, got, right, tolerance)
	}
}

// wantErrors checks that every rank returned an error with all of parts.
func wantErrors(t testingT, errs []error, parts ...string) {
	t.Helper()
	for r, err := range errs {
		wantError(t, fmt.Sprintf("rank %d", r), err, parts...)
	}
}

func wantError(t testingT, who string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", who, parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: error %q does not contain %q", who, err, p)
		}
	}
}

// shuffled is a ready order that differs by seed, step, micro-step and rank.
func shuffled(n int, seed uint64) func(s, m, r int) []int {
	return func(s, m, r int) []int {
		return rand.New(rand.NewPCG(seed, uint64(s<<20|m<<10|r))).Perm(n)
	}
}

// constant is the same gradient everywhere.
func constant(g float32) func(s, m, r, i int) float32 {
	return func(int, int, int, int) float32 { return g }
}

// gradientBucket matches the reductions of gradients.
func gradientBucket(e gated.Event) bool { return e.Name == "gradient bucket" }

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// containsAny reports whether s contains one of parts.
func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(s, p) })
}

// bufferOf is fp32 memory of a parameter's own.
func bufferOf(n int) dtype.Buffer { return dtype.Make(dtype.F32, n) }
